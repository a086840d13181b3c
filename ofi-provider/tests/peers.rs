//! Two processes on one soft device: messages, and what happens when one of them is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call here hands valid objects to the provider"
)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use common::*;
use libfabric_sys::*;

const ROLE: &str = "USB4_TEST_CHILD";

fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    soft("fi-peers");
    guard
}

/// Another process with an endpoint; it runs [`child`] as `role`.
struct Peer {
    process: Child,
    name: Vec<u8>,
}

impl Peer {
    fn start(role: &str, parent: &Endpoint) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdin.as_mut().unwrap().write_all(&parent.name()).unwrap();
        let mut lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
        let name = lines
            .find_map(|line| line.unwrap().split_once("NAME ").map(|n| n.1.to_owned()))
            .unwrap();
        let name = (0..32)
            .map(|n| u8::from_str_radix(&name[2 * n..2 * n + 2], 16).unwrap())
            .collect();
        Self { process, name }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Not a test of its own: the other process of the tests below.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut world = Opened::new();
    let me = world.endpoint();
    let mut parent = [0; 32];
    std::io::stdin().read_exact(&mut parent).unwrap();
    let name: String = me.name().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\nNAME {name}");
    let parent = Endpoint {
        address: world.insert(&parent),
        ..me
    };
    match role.as_str() {
        "echo" => {
            for len in [64, 100_000] {
                let mut buffer = vec![0; len];
                me.trecv(parent.address, &mut buffer, 1, 0, 1);
                me.next(&[]);
                assert_eq!(me.tsend(&parent, &buffer, 2, 2), 0);
                me.next(&[]);
            }
            me.close();
        }
        // Leaves with its message, and closes nothing. The core's destructor calls the provider's.
        "leave" => {
            extern "C" fn destructor() {
                unsafe { (provider().cleanup)() };
            }
            unsafe { libc::atexit(destructor) };
            let mut buffer = [0; 64];
            me.trecv(parent.address, &mut buffer, 1, 0, 1);
            me.next(&[]);
            std::process::exit(0);
        }
        // Takes what arrives and receives none of it.
        _ => loop {
            me.drive();
        },
    }
}

#[test]
fn another_process_echoes() {
    let _alone = alone();
    let mut world = Opened::new();
    let a = world.endpoint();
    let mut peer = Peer::start("echo", &a);
    let b = Endpoint {
        address: world.insert(&peer.name),
        ..a
    };
    for len in [64, 100_000] {
        let message = bytes(len, 7);
        let mut buffer = vec![0; len];
        a.trecv(b.address, &mut buffer, 2, 0, 1);
        send(&a, &b, &message);
        a.next(&[]);
        a.next(&[]);
        assert_eq!(buffer, message);
    }
    assert!(peer.process.wait().unwrap().success());
}

#[test]
fn a_message_whose_receiver_leaves_without_closing_is_confirmed() {
    let _alone = alone();
    for _ in 0..10 {
        let mut world = Opened::new();
        let a = world.endpoint();
        let mut peer = Peer::start("leave", &a);
        let b = Endpoint {
            address: world.insert(&peer.name),
            ..a
        };
        send(&a, &b, &[7; 64]);
        assert_eq!(a.next(&[]).op_context as usize, 3);
        assert!(peer.process.wait().unwrap().success());
        a.close();
    }
}

/// Sends as soon as the link is up.
fn send(a: &Endpoint, b: &Endpoint, message: &[u8]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match a.tsend(b, message, 1, 3) {
            0 => return,
            rc => assert_eq!(rc, -(FI_EAGAIN as isize)),
        }
        assert!(Instant::now() < deadline, "no link");
        a.drive();
    }
}

#[test]
fn a_killed_peer_fails_the_rendezvous_it_never_finished_for_a_poller_and_for_sleepers() {
    let _alone = alone();
    for wait in [poll, sleep_in_sread, sleep_on_the_descriptor] {
        let mut world = Opened::new();
        let a = world.endpoint();
        let peer = Peer::start("idle", &a);
        let b = Endpoint {
            address: world.insert(&peer.name),
            ..a
        };
        let message = bytes(100_000, 7);
        send(&a, &b, &message);
        // A later eager message that has arrived shows that the request has, too.
        send(&a, &b, &message[..8]);
        assert_eq!(a.next(&[]).op_context as usize, 3);
        peer.kill();
        assert_eq!(wait(&world, &a), -(FI_EAVAIL as isize));
        let error = a.error();
        assert_eq!((error.op_context as usize, error.err), (3, FI_ECONNRESET));
        a.close();
    }
}

/// Polls until there is something.
fn poll(_: &Opened, a: &Endpoint) -> isize {
    a.next_or_error(&[]).err().unwrap_or(0)
}

/// Lets `fi_cq_sread` wait.
fn sleep_in_sread(_: &Opened, a: &Endpoint) -> isize {
    let mut entry = empty();
    unsafe { ((*(*a.cq).ops).sread)(a.cq, (&raw mut entry).cast(), 1, std::ptr::null(), 20_000) }
}

/// Waits on the queue's descriptor whenever `fi_trywait` allows it.
fn sleep_on_the_descriptor(world: &Opened, a: &Endpoint) -> isize {
    let mut fds = [libc::pollfd {
        fd: -1,
        events: libc::POLLIN,
        revents: 0,
    }];
    let mut fids = [a.cq.cast::<fid>()];
    let deadline = Instant::now() + Duration::from_secs(20);
    unsafe {
        let get = (*(*a.cq).fid.ops).control;
        assert_eq!(get(a.cq.cast(), FI_GETWAIT, (&raw mut fds[0].fd).cast()), 0);
        while Instant::now() < deadline {
            match a.poll() {
                Err(rc) if rc == -(FI_EAGAIN as isize) => {}
                other => return other.err().unwrap_or(0),
            }
            if ((*(*world.fabric).ops).trywait)(world.fabric, fids.as_mut_ptr(), 1) == 0 {
                libc::poll(fds.as_mut_ptr(), 1, 20_000);
            }
        }
    }
    -(FI_EAGAIN as isize)
}
