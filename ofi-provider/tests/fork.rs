//! Children of `fork` that use what they have inherited get errors, whatever threads of their parent were doing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call here hands valid objects to the provider"
)]

mod common;

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use libfabric_sys::*;

/// Runs `body` in a child; what it returns is the child's exit status, which must be 0. One that hangs is ended.
fn in_child(body: impl FnOnce() -> c_int) {
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(10);
            libc::_exit(body());
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "how the child ended");
    }
}

/// Which call of a child did not fail, if any.
fn use_all(world: &Opened, ep: &Endpoint) -> c_int {
    let error = -FI_EIO;
    let (mut buffer, mut entry) = ([0u8; 8], empty());
    let (buf, at) = (buffer.as_mut_ptr().cast(), (&raw mut entry).cast());
    let null = std::ptr::null_mut();
    let calls = unsafe {
        [
            ((*(*ep.ep).tagged).inject)(ep.ep, buf, 8, ep.address, 1) as c_int,
            ((*(*ep.ep).tagged).recv)(ep.ep, buf, 8, null, FI_ADDR_UNSPEC, 1, 0, null) as c_int,
            ((*(*ep.cq).ops).read)(ep.cq, at, 1) as c_int,
            ((*(*ep.cq).ops).sread)(ep.cq, at, 1, std::ptr::null(), -1) as c_int,
            close(ep.ep.cast()),
            close(ep.cq.cast()),
            close(world.av.cast()),
        ]
    };
    let wrong = calls.iter().position(|rc| *rc != error);
    wrong.map_or(0, |n| n as c_int + 1)
}

struct Shared<'a>(&'a Endpoint);

// SAFETY: the provider's objects may be used from several threads.
unsafe impl Sync for Shared<'_> {}

#[test]
fn a_child_gets_errors_though_threads_of_its_parent_were_in_calls() {
    soft("fi-fork");
    let mut world = Opened::new();
    let ep = world.endpoint();
    let stop = AtomicBool::new(false);
    let shared = Shared(&ep);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let Shared(ep) = &shared;
            let mut buffer = [0u8; 64];
            while !stop.load(Ordering::Relaxed) {
                ep.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 1);
                assert_eq!(ep.tsend(ep, &[1; 64], 1, 2), 0);
                ep.next(&[]);
                ep.next(&[]);
            }
        });
        for _ in 0..50 {
            in_child(|| use_all(&world, &ep));
        }
        stop.store(true, Ordering::Relaxed);
    });
    // The parent's objects are as they were.
    ep.close();
}
