//! The client over a fake kernel, up to the ring API.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use usb4_ring_abi::uapi;

use super::fake::FakeKernel;
use super::line::Line;
use super::{Client, open};
use crate::{
    Access, Backend, Buffer, Completion, Cq, Device, Endpoint, EndpointConfig, EndpointKind, Error, NodeId,
    Status, WorkRequest,
};

struct Host {
    kernel: Arc<FakeKernel>,
    device: Device,
    cq: Cq,
    ep: Endpoint,
}

impl Host {
    fn new(test: &str) -> Self {
        let kernel = Arc::new(FakeKernel::new(&format!("{test}-{}", std::process::id())));
        let line = Line::Fake(Box::new(Arc::clone(&kernel)));
        let info = open::greet("fake", &line).unwrap();
        let client = Client::new("fake", line, info).unwrap();
        let device = Device::on("fake", client.into(), Backend::Kernel);
        let cq = device.create_cq(64).unwrap();
        let ep = device
            .create_endpoint(&EndpointConfig::default(), &cq, &cq)
            .unwrap();
        Self {
            kernel,
            device,
            cq,
            ep,
        }
    }

    /// Calls of ENTER since the last question.
    fn entered(&self) -> u32 {
        self.kernel.entered.swap(0, Ordering::Relaxed)
    }

    fn next(&mut self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(done) = self.cq.take() {
                return done;
            }
            self.device.progress();
            assert!(start.elapsed() < Duration::from_secs(20), "no completion");
        }
    }
}

#[test]
fn messages_cross_between_two_kernels() {
    let (mut a, mut b) = (Host::new("cross"), Host::new("cross"));
    let peers = a.device.peers();
    assert!(
        peers
            .iter()
            .any(|peer| peer.node == b.device.info().node && peer.rails == 1)
    );
    let to = a.ep.address_handle(&b.ep.address()).unwrap();
    let from = a.device.alloc(10_000, Access::LOCAL).unwrap();
    let into = b.device.alloc(10_000, Access::LOCAL).unwrap();
    from.write(9_990, b"the end...").unwrap();
    b.ep.post_recv(1, into.buffer(0, 10_000).unwrap()).unwrap();
    b.ep.submit().unwrap();
    let send = WorkRequest::send(to, from.buffer(0, 10_000).unwrap());
    a.ep.post(&send.user_data(2)).unwrap();
    a.ep.submit().unwrap();
    let got = b.next();
    assert_eq!((got.user_data, got.status, got.len), (1, Status::Ok, 10_000));
    assert_eq!(b.ep.source(got.source), Some(a.ep.address()));
    let mut end = [0; 10];
    into.read(9_990, &mut end).unwrap();
    assert_eq!(&end, b"the end...");
    assert_eq!(a.next().status, Status::Ok);
    a.ep.close_handle(to);
}

#[test]
fn a_message_costs_one_call_and_a_receive_none() {
    let mut host = Host::new("calls");
    let to = host.ep.address_handle(&host.ep.address()).unwrap();
    host.entered();
    host.ep.post_recv(1, Buffer::EMPTY).unwrap();
    host.ep.submit().unwrap();
    assert_eq!(host.entered(), 0);
    host.ep.post(&WorkRequest::send(to, Buffer::EMPTY)).unwrap();
    host.ep.submit().unwrap();
    assert_eq!(host.entered(), 1);
    host.next();
    host.next();
    host.entered();
    host.device.progress();
    assert_eq!(host.entered(), 1, "a poll costs one");
}

#[test]
fn a_poll_costs_nothing_while_others_drive() {
    let host = Host::new("driven");
    let undriven = &host.kernel.notice[uapi::NOTICE_UNDRIVEN_WORD];
    undriven.store(0, Ordering::Relaxed);
    host.entered();
    for _ in 0..1000 {
        assert!(!host.device.progress());
    }
    assert_eq!(host.entered(), 0);
    undriven.store(1, Ordering::Relaxed);
    host.device.progress();
    assert_eq!(host.entered(), 1);
}

#[test]
fn a_sleeper_wakes_for_a_completion_or_in_time() {
    let mut host = Host::new("sleep");
    let to = host.ep.address_handle(&host.ep.address()).unwrap();
    assert!(!host.cq.wait(Some(Duration::ZERO)).unwrap());
    assert!(!host.cq.wait(Some(Duration::from_millis(5))).unwrap());
    host.ep.post_recv(1, Buffer::EMPTY).unwrap();
    host.ep.post(&WorkRequest::send(to, Buffer::EMPTY)).unwrap();
    host.ep.submit().unwrap();
    for _ in 0..2 {
        assert!(host.cq.wait(Some(Duration::from_secs(20))).unwrap());
        host.cq.take().unwrap();
    }
    host.entered();
    assert!(!host.cq.wait(Some(Duration::from_millis(5))).unwrap());
    assert_eq!(host.entered(), 1, "a sleep is one call");
}

#[test]
fn memory_of_ours_lingers_and_memory_of_the_callers_does_not() {
    let host = Host::new("linger");
    let flags = || host.kernel.deregistered.load(Ordering::Relaxed);
    drop(host.device.alloc(0, Access::LOCAL).unwrap());
    assert_eq!(flags(), uapi::DEREG_MR_LINGER);
    let mut bytes = [0_u64; 8];
    let start = bytes.as_mut_ptr().cast::<u8>();
    // SAFETY: nobody knows the key, and the region goes first.
    let region = unsafe { host.device.register(start, 64, Access::REMOTE_ALL) }.unwrap();
    drop(region);
    assert_eq!(flags(), 0);
    // SAFETY: it is refused.
    let askew = unsafe {
        host.device
            .register(start.wrapping_add(1), 8, Access::REMOTE_ATOMIC)
    };
    assert!(matches!(askew, Err(Error::Invalid(_))));
}

#[test]
fn what_the_device_refuses_becomes_the_error_it_is() {
    let mut host = Host::new("refuse");
    assert!(!host.device.info().process_memory);
    let mut nobody = host.ep.address();
    nobody.node = NodeId(5);
    let refused = host.ep.address_handle(&nobody);
    assert!(
        matches!(refused, Err(Error::Unreachable(NodeId(5)))),
        "{refused:?}"
    );
    let config = EndpointConfig {
        kind: EndpointKind::Connected,
        ..EndpointConfig::default()
    };
    let mut connected = host.device.create_endpoint(&config, &host.cq, &host.cq).unwrap();
    connected.address_handle(&host.ep.address()).unwrap();
    let again = connected.address_handle(&host.ep.address());
    assert!(matches!(again, Err(Error::Invalid(_))), "{again:?}");
    assert!(host.device.create_cq(100_000).is_err());
}

#[test]
fn a_module_of_another_version_is_refused_and_both_are_named() {
    let mut kernel = FakeKernel::new(&format!("version-{}", std::process::id()));
    kernel.abi_version = 7;
    let line = Line::Fake(Box::new(Arc::new(kernel)));
    let said = open::greet("/dev/usb4ring", &line).unwrap_err().to_string();
    for part in ["usb4_rdma fake", "/dev/usb4ring", "version 7", "version 1"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_child_process_is_told_to_open_its_own() {
    let mut host = Host::new("fork");
    // SAFETY: the child makes calls that only look at atomics, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = matches!(host.device.check(), Err(Error::Forked))
            && !host.device.progress()
            && matches!(host.ep.submit(), Err(Error::Forked));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if forked { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 7);
    host.device.check().unwrap();
}
