//! Devices in several processes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/process.rs"]
mod process;

use std::time::{Duration, Instant};

use common::{HANG, Host, fabric, next, next_ok};
use process::Process;
use usb4_ring::{Completion, Device, EndpointConfig, Error, Status, WorkRequest};

/// Not a test: what the other processes do.
#[test]
fn child() {
    let Some((role, fabric)) = process::role() else {
        return;
    };
    let mut host = Host::open(&format!("soft:{fabric}"));
    process::announce(&host.ep.address());
    match role.as_str() {
        "echo" => echo(&mut host),
        // Its device's own thread does everything.
        "idle" => while process::told().is_some() {},
        _ => panic!("no such role"),
    }
}

/// Sends back what comes.
fn echo(host: &mut Host) {
    let Some(parent) = process::told() else { return };
    let to = host.ep.address_handle(&parent).unwrap();
    let memory = host.memory(64 * 4096, 0);
    let slot = |i: u64| memory.buffer(usize::try_from(i).unwrap() * 4096, 4096).unwrap();
    for i in 0..64 {
        host.ep.post_recv(i, slot(i)).unwrap();
    }
    host.ep.submit().unwrap();
    loop {
        let Some(done) = host.poll() else { continue };
        if done.status != Status::Ok {
            return;
        }
        if done.op == usb4_ring::Op::Receive {
            let start = usize::try_from(done.user_data).unwrap() * 4096;
            let answer = memory.buffer(start, usize::try_from(done.len).unwrap()).unwrap();
            host.ep
                .post(&WorkRequest::send(to, answer).user_data(done.user_data))
                .unwrap();
        } else {
            host.ep.post_recv(done.user_data, slot(done.user_data)).unwrap();
        }
        host.ep.submit().unwrap();
    }
}

#[test]
fn two_processes_exchange_messages() {
    let fabric = fabric("exchange");
    let mut host = Host::open(&format!("soft:{fabric}"));
    let mut peer = Process::start("echo", &fabric);
    peer.tell(&host.ep.address());
    let to = host.ep.address_handle(&peer.address).unwrap();
    let memory = host.memory(8192, 5);
    for len in [0, 1, 64, 1000, 4000, 4096].into_iter().cycle().take(3000) {
        host.ep.post_recv(1, memory.buffer(4096, 4096).unwrap()).unwrap();
        host.ep
            .post(&WorkRequest::send(to, memory.buffer(0, len).unwrap()).unsignaled())
            .unwrap();
        host.ep.submit().unwrap();
        let got = next_ok(&mut [&mut host], 0);
        assert_eq!((got.user_data, got.len as usize), (1, len));
    }
    assert!(
        host.device
            .peers()
            .iter()
            .any(|seen| seen.pid == Some(peer.child.id()))
    );
}

#[test]
fn a_killed_peer_s_work_fails_at_once() {
    let fabric = fabric("killed");
    let mut host = Host::open(&format!("soft:{fabric}"));
    let peer = Process::start("idle", &fabric);
    let to = host.ep.address_handle(&peer.address).unwrap();
    let memory = host.memory(1 << 16, 5);
    for i in 0..100 {
        host.ep
            .post(&WorkRequest::send(to, memory.buffer(0, 1 << 16).unwrap()).user_data(i))
            .unwrap();
    }
    host.ep.submit().unwrap();
    for _ in 0..1000 {
        assert_eq!(host.poll(), None, "nobody has posted a receive");
    }
    peer.signal(libc::SIGKILL);
    let start = Instant::now();
    for i in 0..100 {
        let done = next(&mut [&mut host], 0);
        assert_eq!((done.user_data, done.status), (i, Status::LinkDown));
    }
    // The promise is 100 ms; a machine that runs other tests may take longer to notice.
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    host.ep
        .post(&WorkRequest::send(to, memory.buffer(0, 8).unwrap()).user_data(7))
        .unwrap();
    host.ep.submit().unwrap();
    assert!(matches!(
        next(&mut [&mut host], 0).status,
        Status::LinkDown | Status::Unreachable
    ));
    assert!(matches!(
        host.ep.address_handle(&peer.address),
        Err(Error::Unreachable(_))
    ));
}

#[test]
fn a_killed_peer_s_work_fails_when_nobody_polls() {
    let fabric = fabric("asleep");
    let mut host = Host::open(&format!("soft:{fabric}"));
    let peer = Process::start("idle", &fabric);
    let to = host.ep.address_handle(&peer.address).unwrap();
    host.ep
        .post(&WorkRequest::send(to, usb4_ring::Buffer::EMPTY))
        .unwrap();
    host.ep.submit().unwrap();
    assert!(!host.cq.wait(Some(Duration::from_millis(20))).unwrap());
    peer.signal(libc::SIGKILL);
    assert!(host.cq.wait(Some(HANG)).unwrap());
    let mut out = [Completion::default()];
    assert_eq!((host.cq.poll(&mut out), out[0].status), (1, Status::LinkDown));
}

#[test]
fn a_stopped_peer_is_not_dead() {
    let fabric = fabric("stopped");
    let mut host = Host::open(&format!("soft:{fabric}"));
    let mut peer = Process::start("echo", &fabric);
    peer.tell(&host.ep.address());
    let to = host.ep.address_handle(&peer.address).unwrap();
    let memory = host.memory(2 * 4096, 5);
    let round = |host: &mut Host| {
        for _ in 0..100 {
            host.ep.post_recv(1, memory.buffer(4096, 4096).unwrap()).unwrap();
            host.ep
                .post(&WorkRequest::send(to, memory.buffer(0, 4096).unwrap()).unsignaled())
                .unwrap();
        }
        host.ep.submit().unwrap();
    };
    round(&mut host);
    for _ in 0..100 {
        next_ok(&mut [&mut host], 0);
    }
    peer.stop();
    round(&mut host);
    let until = Instant::now() + Duration::from_secs(1);
    let mut early = 0;
    while Instant::now() < until {
        if let Some(done) = host.poll() {
            assert_eq!(done.status, Status::Ok);
            early += 1;
        }
    }
    assert!(early < 100, "the peer answered while it was stopped");
    peer.signal(libc::SIGCONT);
    for _ in early..100 {
        next_ok(&mut [&mut host], 0);
    }
}

#[test]
fn a_call_to_a_stopped_process_times_out_with_a_clear_error() {
    let fabric = fabric("deaf");
    let mut host = Host::open(&format!("soft:{fabric}"));
    let peer = Process::start("idle", &fabric);
    peer.stop();
    assert!(matches!(host.ep.try_address_handle(&peer.address), Ok(None)));
    match host.ep.address_handle(&peer.address) {
        Err(Error::ConnectTimeout(node)) => assert_eq!(node, peer.address.node),
        other => panic!("{other:?}"),
    }
    peer.signal(libc::SIGCONT);
    assert!(host.ep.address_handle(&peer.address).is_ok());
}

#[test]
fn a_child_of_fork_is_refused_politely() {
    let spec = format!("soft:{}", fabric("fork"));
    let mut host = Host::open(&spec);
    let to = host.ep.address_handle(&host.ep.address()).unwrap();
    // SAFETY: the child allocates and locks nothing but what this crate needs to refuse, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        host.ep
            .post(&WorkRequest::send(to, usb4_ring::Buffer::EMPTY))
            .unwrap();
        let refused = [
            matches!(host.ep.submit(), Err(Error::Forked)),
            matches!(host.cq.arm(), Err(Error::Forked)),
            matches!(host.cq.wait_fd(), Err(Error::Forked)),
            matches!(host.device.create_cq(8), Err(Error::Forked)),
            matches!(host.device.alloc(8, usb4_ring::Access::LOCAL), Err(Error::Forked)),
            !host.device.progress(),
        ];
        drop(host);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(refused != [true; 6])) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    host.ep.post_recv(1, usb4_ring::Buffer::EMPTY).unwrap();
    host.ep
        .post(&WorkRequest::send(to, usb4_ring::Buffer::EMPTY).unsignaled())
        .unwrap();
    host.ep.submit().unwrap();
    assert_eq!(next_ok(&mut [&mut host], 0).user_data, 1);
}

#[test]
fn opening_and_closing_leaves_no_descriptor_behind() {
    let fabric = fabric("leak");
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let cycle = || {
        let spec = format!("soft:{fabric}");
        let (mut a, mut b) = (Host::open(&spec), Host::open(&spec));
        let _ = (a.cq.wait_fd().unwrap(), b.cq.wait_fd().unwrap());
        let (to, back) = (a.handle(&b), b.handle(&a));
        a.ep.post_recv(1, usb4_ring::Buffer::EMPTY).unwrap();
        a.ep.submit().unwrap();
        b.ep.post(&WorkRequest::send(back, usb4_ring::Buffer::EMPTY))
            .unwrap();
        b.ep.submit().unwrap();
        next_ok(&mut [&mut a, &mut b], 0);
        a.ep.close_handle(to);
    };
    cycle();
    let before = descriptors();
    (0..20).for_each(|_| cycle());
    // Other tests of this program open and close meanwhile: what leaks grows with every cycle.
    let after = descriptors();
    assert!(after < before + 20, "{before} descriptors before, {after} after");
    let names = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(!names.contains(&fabric), "a socket of the fabric is left");
}

#[test]
fn a_device_of_its_own_for_each_thread() {
    let spec = format!("soft:{}", fabric("threads"));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let spec = spec.clone();
            std::thread::spawn(move || {
                let device = Device::open(&spec).unwrap();
                let mut host = Host::with(device, &EndpointConfig::default());
                let to = host.ep.address_handle(&host.ep.address()).unwrap();
                for _ in 0..1000 {
                    host.ep.post_recv(1, usb4_ring::Buffer::EMPTY).unwrap();
                    host.ep
                        .post(&WorkRequest::send(to, usb4_ring::Buffer::EMPTY).unsignaled())
                        .unwrap();
                    host.ep.submit().unwrap();
                    next_ok(&mut [&mut host], 0);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
