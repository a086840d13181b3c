//! Messages allocate nothing once the queues have their size.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the allocator hands on what it is asked for"
)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::*;
use libfabric_sys::*;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Threads that end may allocate after their counter is gone.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn exchange(a: &Endpoint, b: &Endpoint, message: &[u8], buffer: &mut [u8], expected: bool) {
    if expected {
        b.trecv(a.address, buffer, 1, 0, 1);
    }
    assert_eq!(a.tsend(b, message, 1, 2), 0);
    if !expected {
        for _ in 0..100 {
            b.drive();
        }
        b.trecv(a.address, buffer, 1, 0, 1);
    }
    b.next(&[a]);
    a.next(&[b]);
}

#[test]
fn messages_allocate_nothing() {
    soft("fi-allocations");
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    for len in [0, 64, 4096, 16384, 100_000] {
        let message = bytes(len, 1);
        let mut buffer = vec![0; len];
        for expected in [true, false] {
            for _ in 0..600 {
                exchange(&a, &b, &message, &mut buffer, expected);
            }
            let before = ALLOCATIONS.get();
            for _ in 0..600 {
                exchange(&a, &b, &message, &mut buffer, expected);
            }
            assert_eq!(ALLOCATIONS.get() - before, 0, "{len} bytes, expected: {expected}");
        }
    }
    let mut buffer = [0u8; 8];
    let mut inject = || {
        b.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 1);
        let tagged = unsafe { &*(*a.ep).tagged };
        assert_eq!(
            unsafe { (tagged.inject)(a.ep, [1u8; 8].as_ptr().cast(), 8, b.address, 1) },
            0
        );
        b.next(&[&a]);
        a.drive();
    };
    (0..1000).for_each(|_| inject());
    let before = ALLOCATIONS.get();
    (0..1000).for_each(|_| inject());
    assert_eq!(ALLOCATIONS.get() - before, 0, "injected");
}
