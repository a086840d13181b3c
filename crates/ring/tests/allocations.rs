//! Nothing is allocated on the data path.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Host, fabric, next_ok};
use usb4_ring::{Buffer, Remote, WorkRequest};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator, and a counter.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test in this program: the counter is everybody's.
#[test]
fn messages_and_one_sided_operations_allocate_nothing() {
    let spec = format!("soft:{}", fabric("alloc"));
    let (mut a, mut b) = (Host::open(&spec), Host::open(&spec));
    let to = a.handle(&b);
    let (mine, theirs) = (a.memory(1 << 20, 1), b.memory(1 << 20, 2));
    let remote = Remote {
        addr: theirs.addr(),
        key: theirs.remote_key(),
    };
    let round = |a: &mut Host, b: &mut Host| {
        for len in [0, 8, 64, 4096, 1 << 20] {
            b.ep.post_recv(1, theirs.buffer(0, len).unwrap()).unwrap();
            b.ep.submit().unwrap();
            let local = mine.buffer(0, len).unwrap();
            a.ep.post(&WorkRequest::send(to, local).unsignaled()).unwrap();
            a.ep.post(&WorkRequest::write(to, local, remote).unsignaled())
                .unwrap();
            a.ep.post(&WorkRequest::read(to, local, remote).unsignaled())
                .unwrap();
            a.ep.post(&WorkRequest::fetch_add(to, Buffer::EMPTY, remote, 1))
                .unwrap();
            a.ep.submit().unwrap();
            let got = next_ok(&mut [a, b], 1);
            assert_eq!(b.ep.source(got.source), Some(a.ep.address()));
            next_ok(&mut [a, b], 0);
        }
    };
    // Caches fill.
    (0..3).for_each(|_| round(&mut a, &mut b));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..200).for_each(|_| round(&mut a, &mut b));
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
