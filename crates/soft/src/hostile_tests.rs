//! A neighbour that joins a cable properly and then scribbles over it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use usb4_engine::{Action, RailFsm};
use usb4_wire::{Control, NodeId};

use crate::cable::CableEnd;
use crate::clock::now;
use crate::crc::crc32c;
use crate::device::{Drivers, SoftDevice};
use crate::greeting::{Greeting, Kind};
use crate::home::random;
use crate::keeper::{link_config, local_info};
use crate::names::Fabric;
use crate::socket;

const HANG: Duration = Duration::from_secs(30);

fn fabric(test: &str) -> Fabric {
    Fabric::new(&format!("{test}-{}", std::process::id())).unwrap()
}

/// Receives a message, waiting for it.
fn receive(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let start = Instant::now();
    loop {
        let mut bytes = [0; 128];
        match socket::receive(socket.as_fd(), &mut bytes) {
            Ok(message) => return (bytes[..message.len].to_vec(), message.fds),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < HANG, "no message");
    }
}

/// Calls `device` as `node` and brings a rail up, as a neighbour does.
fn join(fabric: &Fabric, device: &SoftDevice, node: NodeId) -> (OwnedFd, CableEnd) {
    let socket = socket::connect(&fabric.device_socket(device.node())).unwrap();
    let (end, bell) = (CableEnd::new().unwrap(), socket::doorbell().unwrap());
    let hello = Greeting {
        kind: Kind::Hello,
        from: node,
        to: device.node(),
    };
    socket::send(socket.as_fd(), &hello.to_bytes(), &[end.fd(), bell.as_fd()]).unwrap();
    let (welcome, fds) = receive(&socket);
    assert_eq!(
        (Greeting::parse(&welcome).unwrap().kind, fds.len()),
        (Kind::Welcome, 2)
    );
    let mut fsm = RailFsm::new(now(), local_info(&link_config(node, device.node())), &mut random);
    loop {
        while let Some(action) = fsm.poll_output() {
            match action {
                Action::Send(control) => socket::send(socket.as_fd(), &control.emit(crc32c), &[]).unwrap(),
                Action::EnablePaths { .. } => fsm.paths_enabled(now()),
                Action::Up(_) => return (socket, end),
                Action::DisablePaths | Action::Down(_) => panic!("{action:?}"),
            }
        }
        let (bytes, _) = receive(&socket);
        fsm.on_control(now(), &Control::parse(&bytes, crc32c).unwrap(), &mut random);
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < HANG, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_neighbour_that_scribbles_over_its_region_ends_its_own_link_only() {
    let fabric = fabric("scribble");
    let device = SoftDevice::start(fabric.clone(), Drivers::Anybody).unwrap();
    for round in 0..40u128 {
        let (socket, end) = join(&fabric, &device, NodeId(1 + round));
        wait_until("the link does not come up", || device.core.ports().len() == 2);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Half of the rounds the device is polled, half it is left to its keeper.
            if round % 2 == 0 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        device.core.progress();
                    }
                });
            }
            let words = end.words();
            for step in 0..20_000u64 {
                let (at, value) = (random(), random());
                // Rings, with numbers that look right half of the time; frames; head lengths.
                let (at, value) = match step % 4 {
                    0 => (32 + at % 1024, value),
                    1 => (
                        32 + at % 64,
                        ((at % 64 + 1) << 32) | ((value % 4400) << 16) | (value % 300),
                    ),
                    2 => (1024 + at % 512, value),
                    _ => (1024 + at % 256 * 512, ((value % 5000) << 16) | 1),
                };
                let at = usize::try_from(at).unwrap() % words.len();
                words[at].store(value, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop(socket);
        wait_until("the link stays", || device.core.ports().len() == 1);
    }
}

#[test]
fn callers_that_say_nonsense_are_hung_up_on() {
    let fabric = fabric("nonsense");
    let device = SoftDevice::start(fabric.clone(), Drivers::Anybody).unwrap();
    let hello = Greeting {
        kind: Kind::Hello,
        from: NodeId(7),
        to: device.node(),
    };
    let good = hello.to_bytes();
    let mut other_version = good;
    other_version[4] ^= 1;
    let bell = socket::doorbell().unwrap();
    let end = CableEnd::new().unwrap();
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let cases: [(&[u8], Vec<_>); 6] = [
        (b"hello", vec![]),
        (&good, vec![]),
        (&good, vec![end.fd()]),
        (&good, vec![bell.as_fd(), end.fd()]),
        (&good, vec![end.fd(), reader.as_fd()]),
        (&good[..63], vec![end.fd(), bell.as_fd()]),
    ];
    for (case, (bytes, fds)) in cases.iter().enumerate() {
        let socket = socket::connect(&fabric.device_socket(device.node())).unwrap();
        socket::send(socket.as_fd(), bytes, fds).unwrap();
        // A WELCOME may come before the region is looked at.
        while !receive(&socket).0.is_empty() {}
        assert_eq!(device.core.ports().len(), 1, "case {case}");
    }
    let socket = socket::connect(&fabric.device_socket(device.node())).unwrap();
    socket::send(socket.as_fd(), &other_version, &[end.fd(), bell.as_fd()]).unwrap();
    assert!(matches!(
        Greeting::parse(&receive(&socket).0).unwrap().kind,
        Kind::Refuse(_)
    ));
    // And a proper one is welcome.
    let _joined = join(&fabric, &device, NodeId(8));
}
