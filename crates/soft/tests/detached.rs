//! Detached devices, seen through the ring API.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use usb4_ring::{
    Access, Backend, Completion, Cq, Device, Endpoint, EndpointConfig, Error, MemoryRegion, Remote, Status,
    WorkRequest,
};

/// What counts as hung.
const HANG: Duration = Duration::from_secs(30);

/// A fabric name nobody else uses; sees to it that the server of this build is the one started.
fn fabric(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static SERVER: Once = Once::new();
    // SAFETY: before any other thread of this program reads the environment through this crate.
    SERVER.call_once(|| unsafe {
        std::env::set_var(usb4_soft::SERVER_VARIABLE, env!("CARGO_BIN_EXE_usb4-softd"))
    });
    format!(
        "{test}-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

struct Host {
    ep: Endpoint,
    cq: Cq,
    device: Device,
}

impl Host {
    fn open(fabric: &str, host: &str) -> Self {
        let device = Device::open(&format!("soft:{fabric},detached={host}")).unwrap();
        let cq = device.create_cq(256).unwrap();
        let ep = device
            .create_endpoint(&EndpointConfig::default(), &cq, &cq)
            .unwrap();
        Self { ep, cq, device }
    }

    fn memory(&self, len: usize, byte: u8) -> MemoryRegion {
        let region = self.device.alloc(len, Access::REMOTE_ALL).unwrap();
        region.write(0, &vec![byte; len]).unwrap();
        region
    }

    fn next(&mut self) -> Completion {
        let start = Instant::now();
        let mut out = [Completion::default()];
        while self.cq.poll(&mut out) == 0 {
            assert!(start.elapsed() < HANG, "no completion");
            self.device.progress();
        }
        out[0]
    }
}

/// Sends, receives, writes and adds between two clients.
fn exchange(a: &mut Host, b: &mut Host) {
    let to = a.ep.address_handle(&b.ep.address()).unwrap();
    let (mine, theirs) = (a.memory(1 << 17, 7), b.memory(1 << 17, 0));
    b.ep.post_recv(1, theirs.buffer(0, 100_000).unwrap()).unwrap();
    b.ep.submit().unwrap();
    a.ep.post(&WorkRequest::send(to, mine.buffer(0, 100_000).unwrap()).user_data(2))
        .unwrap();
    a.ep.submit().unwrap();
    let (got, sent) = (b.next(), a.next());
    assert_eq!((got.user_data, got.status, got.len), (1, Status::Ok, 100_000));
    assert_eq!((sent.user_data, sent.status), (2, Status::Ok));
    assert_eq!(b.ep.source(got.source), Some(a.ep.address()));
    let remote = Remote {
        addr: theirs.addr() + 100_000,
        key: theirs.remote_key(),
    };
    a.ep.post(&WorkRequest::write(to, mine.buffer(0, 1000).unwrap(), remote).unsignaled())
        .unwrap();
    a.ep.post(&WorkRequest::fetch_add(to, mine.buffer(0, 8).unwrap(), remote, 1).user_data(3))
        .unwrap();
    a.ep.submit().unwrap();
    assert_eq!(
        (a.next().value, b.device.progress()),
        (0x0707_0707_0707_0707, false)
    );
    let mut bytes = vec![0; 101_000];
    theirs.read(0, &mut bytes).unwrap();
    assert!(bytes[..100_000].iter().all(|byte| *byte == 7) && bytes[100_000] == 8);
}

#[test]
fn two_clients_of_one_device() {
    let fabric = fabric("one");
    let (mut a, mut b) = (Host::open(&fabric, "h"), Host::open(&fabric, "h"));
    assert_eq!(a.ep.address().node, b.ep.address().node);
    assert_eq!(
        (a.device.info().backend, a.device.info().process_memory),
        (Backend::SoftDetached, false)
    );
    exchange(&mut a, &mut b);
}

#[test]
fn two_devices_with_a_client_each() {
    let fabric = fabric("two");
    let (mut a, mut b) = (Host::open(&fabric, "a"), Host::open(&fabric, "b"));
    assert_ne!(a.ep.address().node, b.ep.address().node);
    exchange(&mut a, &mut b);
    assert!(
        a.device
            .peers()
            .iter()
            .any(|peer| peer.node == b.ep.address().node)
    );
}

#[test]
fn an_inline_device_and_a_detached_one() {
    let fabric = fabric("mixed");
    let mut a = Host::open(&fabric, "a");
    let device = Device::open(&format!("soft:{fabric}")).unwrap();
    let cq = device.create_cq(256).unwrap();
    let ep = device
        .create_endpoint(&EndpointConfig::default(), &cq, &cq)
        .unwrap();
    let mut b = Host { ep, cq, device };
    let to = b.ep.address_handle(&a.ep.address()).unwrap();
    a.ep.post_recv(1, usb4_ring::Buffer::EMPTY).unwrap();
    a.ep.submit().unwrap();
    b.ep.post(&WorkRequest::send(to, usb4_ring::Buffer::EMPTY).imm(9))
        .unwrap();
    b.ep.submit().unwrap();
    assert_eq!((a.next().imm, b.next().status), (Some(9), Status::Ok));
}

#[test]
fn a_sleeping_client_is_woken() {
    let fabric = fabric("sleep");
    let (mut a, mut b) = (Host::open(&fabric, "h"), Host::open(&fabric, "h"));
    let to = a.ep.address_handle(&b.ep.address()).unwrap();
    for round in 0..20 {
        b.ep.post_recv(round, usb4_ring::Buffer::EMPTY).unwrap();
        b.ep.submit().unwrap();
        assert!(!b.cq.wait(Some(Duration::from_millis(5))).unwrap());
        a.ep.post(&WorkRequest::send(to, usb4_ring::Buffer::EMPTY).unsignaled())
            .unwrap();
        a.ep.submit().unwrap();
        assert!(b.cq.wait(Some(HANG)).unwrap());
        assert_eq!(b.next().user_data, round);
    }
}

#[test]
fn memory_of_the_process_is_refused_with_a_reason() {
    let host = Host::open(&fabric("register"), "h");
    let mut bytes = [0u8; 64];
    // SAFETY: refused.
    let refused = unsafe { host.device.register(bytes.as_mut_ptr(), 64, Access::LOCAL) };
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("Device::alloc"), "{text}");
}

#[test]
fn a_plain_address_is_invalid() {
    let fabric = fabric("plain");
    let mut a = Host::open(&fabric, "h");
    let to = a.ep.address_handle(&a.ep.address()).unwrap();
    let bytes = [0u8; 64];
    // SAFETY: refused.
    let buffer = unsafe { usb4_ring::Buffer::process(bytes.as_ptr() as u64, 64) };
    a.ep.post(&WorkRequest::send(to, buffer)).unwrap();
    a.ep.submit().unwrap();
    assert_eq!(a.next().status, Status::Invalid);
}

#[test]
fn an_address_of_nobody_is_unreachable() {
    let mut a = Host::open(&fabric("nobody"), "h");
    let mut address = a.ep.address();
    address.node = usb4_ring::NodeId(7);
    assert!(matches!(a.ep.address_handle(&address), Err(Error::Unreachable(node)) if node == address.node));
}

#[test]
fn the_server_ends_with_its_last_client() {
    let fabric = fabric("end");
    let listening = || {
        std::fs::read_to_string("/proc/net/unix")
            .unwrap()
            .contains(&fabric)
    };
    let a = Host::open(&fabric, "h");
    drop(Host::open(&fabric, "h"));
    assert!(listening());
    drop(a);
    let start = Instant::now();
    while listening() {
        assert!(start.elapsed() < HANG, "the server stays");
        std::thread::sleep(Duration::from_millis(1));
    }
    // And another one can be started.
    drop(Host::open(&fabric, "h"));
}

#[test]
fn opening_a_device_that_is_just_ending_starts_the_next_one() {
    let fabric = fabric("again");
    let spec = format!("soft:{fabric},detached");
    for round in 0..100 {
        let device = Device::open(&spec);
        assert!(device.is_ok(), "round {round}: {}", device.unwrap_err());
    }
}

#[test]
fn one_client_too_many_is_told_so_at_once() {
    let fabric = fabric("full");
    let spec = format!("soft:{fabric},detached");
    let _clients: Vec<Device> = (0..15).map(|_| Device::open(&spec).unwrap()).collect();
    let start = Instant::now();
    assert!(matches!(Device::open(&spec), Err(Error::Limit(_))));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn clients_that_take_all_they_may_leave_the_others_theirs() {
    let fabric = fabric("quota");
    let spec = format!("soft:{fabric},detached");
    let greedy = [(); 2].map(|()| Device::open(&spec).unwrap());
    // That fifteen times as many fit the device is seen to where the quota is.
    let taken = greedy.each_ref().map(|device| {
        let cqs = std::iter::repeat_with(|| device.create_cq(1));
        cqs.take_while(Result::is_ok).collect::<Vec<_>>()
    });
    assert_eq!(taken.each_ref().map(Vec::len), [64, 64]);
    assert!(matches!(greedy[0].create_cq(1), Err(Error::Limit(_))));
    Host::open(&fabric, "0");
}

/// The process that serves a fabric.
fn server_of(fabric: &str) -> libc::pid_t {
    let mut found = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: libc::pid_t = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0);
        words.any(|word| word == fabric.as_bytes()).then_some(pid)
    });
    found.next().unwrap()
}

#[test]
fn a_client_that_only_polls_learns_that_its_device_has_died() {
    let fabric = fabric("polls");
    let mut a = Host::open(&fabric, "h0");
    let to = a.ep.address_handle(&a.ep.address()).unwrap();
    // Nobody receives: it stays in flight.
    a.ep.post(&WorkRequest::send(to, usb4_ring::Buffer::EMPTY))
        .unwrap();
    a.ep.submit().unwrap();
    assert!(a.device.check().is_ok());
    // SAFETY: a server this test has started.
    unsafe { libc::kill(server_of(&fabric), libc::SIGKILL) };
    let start = Instant::now();
    while a.device.check().is_ok() {
        assert_eq!(a.cq.poll(&mut [Completion::default()]), 0);
        a.device.progress();
        assert!(start.elapsed() < HANG, "it polls a dead device for ever");
    }
    assert!(matches!(a.device.check(), Err(Error::Gone)));
}

#[test]
fn a_child_of_fork_is_refused_politely() {
    let mut host = Host::open(&fabric("child"), "h0");
    let to = host.ep.address_handle(&host.ep.address()).unwrap();
    // SAFETY: the child allocates and locks nothing but what this crate needs to refuse, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let posted = host.ep.post(&WorkRequest::send(to, usb4_ring::Buffer::EMPTY));
        let refused = [
            matches!(posted, Ok(()) | Err(Error::Forked)),
            matches!(host.ep.submit(), Err(Error::Forked)),
            host.cq.poll(&mut [Completion::default()]) == 0,
            matches!(host.cq.arm(), Err(Error::Forked)),
            matches!(host.cq.wait(Some(Duration::ZERO)), Err(Error::Forked)),
            matches!(host.device.check(), Err(Error::Forked)),
            !host.device.progress(),
        ];
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(refused != [true; 7])) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    // The parent's queues are as they were.
    host.ep.post_recv(1, usb4_ring::Buffer::EMPTY).unwrap();
    host.ep
        .post(&WorkRequest::send(to, usb4_ring::Buffer::EMPTY).unsignaled())
        .unwrap();
    host.ep.submit().unwrap();
    assert_eq!(host.next().user_data, 1);
}

#[test]
fn a_server_without_descriptors_left_waits_for_some_instead_of_spinning() {
    let fabric = fabric("full");
    let _first = Host::open(&fabric, "h0");
    let server = server_of(&fabric);
    let limit = |soft: libc::rlim_t| {
        let mut old = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: both are valid; the process is one this test has started.
        unsafe {
            libc::prlimit(server, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut old);
            let new = libc::rlimit {
                rlim_cur: soft,
                ..old
            };
            libc::prlimit(server, libc::RLIMIT_NOFILE, &raw const new, std::ptr::null_mut());
        }
        old.rlim_cur
    };
    // Processor time used by its threads, in ticks of 10 ms.
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{server}/stat")).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let fields: Vec<_> = rest.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = limit(3);
    let second = std::thread::spawn({
        let fabric = fabric.clone();
        move || Device::open(&format!("soft:{fabric},detached=h0")).map(|_| ())
    });
    std::thread::sleep(Duration::from_millis(200));
    let start = ticks();
    std::thread::sleep(Duration::from_secs(1));
    let used = ticks() - start;
    limit(before);
    assert!(used < 40, "{used} ticks of 10 ms in a second, with nothing to do");
    // The caller has waited, and is served now.
    second.join().unwrap().unwrap();
}
