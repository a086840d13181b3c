//! What costs how much. A program of its own: it counts the process's allocations.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use nccl_net_sys::ncclSystemError;

struct Counting;

thread_local! {
    /// Of this thread: the test harness has others, which allocate when they like.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator, and counters.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Messages of three lengths, with the receive first and with the message first.
fn round(source: &Memory, target: &Memory) {
    for len in [0, 64, 2000, 100_000] {
        let mut requests = [recv(target, 0, len), send(source, 0, len)];
        finish(&mut requests, len);
        requests = [send(source, 0, len), recv(target, 0, len)];
        finish(&mut requests, len);
    }
}

fn finish(requests: &mut [Request; 2], len: usize) {
    for request in requests {
        until("test", || {
            request.test().unwrap().map(|size| assert_eq!(size, len))
        });
    }
}

#[test]
fn messages_allocate_nothing() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (tx, rx) = pair(a, b);
    let source = Memory::new(tx, pattern(100_000, 1));
    let target = Memory::new(rx, vec![0; 100_000]);
    // Caches fill.
    (0..50).for_each(|_| round(&source, &target));
    let before = ALLOCATIONS.get();
    (0..200).for_each(|_| round(&source, &target));
    assert_eq!(ALLOCATIONS.get() - before, 0);
    drop((source.dereg(), target.dereg()));
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn an_idle_connection_costs_four_kibibytes_on_either_side() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (listener, handle) = b.listen();
    let connect = || {
        (
            a.connect(&mut handle.clone()),
            until("accept", || try_accept(listener)),
        )
    };
    for _ in 0..10 {
        connect();
    }
    let before = BYTES.load(Ordering::Relaxed);
    for _ in 0..1000 {
        connect();
    }
    let each = (BYTES.load(Ordering::Relaxed) - before) / 2000;
    assert!(each <= 4096, "{each} bytes");
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn as_many_connections_as_promised_and_the_next_is_refused() {
    const PROMISED: usize = 65536;
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (listener, handle) = b.listen();
    let mut last = None;
    for _ in 0..PROMISED {
        let tx = a.connect(&mut handle.clone());
        last = Some((tx, until("accept", || try_accept(listener))));
    }
    assert_eq!(a.try_connect(&mut handle.clone()), Err(ncclSystemError));
    assert_eq!(warnings("too many connections").len(), 1);
    let (tx, rx) = last.unwrap();
    let source = Memory::new(tx, pattern(100_000, 1));
    let target = Memory::new(rx, vec![0; 100_000]);
    round(&source, &target);
    // One goes, and there is room for one.
    drop((source.dereg(), target.dereg()));
    close_send(tx);
    close_recv(rx);
    let tx = a.connect(&mut handle.clone());
    assert_ne!(tx, until("accept", || try_accept(listener)));
    ok(a.finalize());
    ok(b.finalize());
}
