//! Completion queues: what goes where, in which order, and that nobody goes short.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call here hands valid objects to the provider"
)]

mod common;

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use common::*;
use libfabric_sys::*;

fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    soft("fi-queues");
    guard
}

/// Up to `count` entries of a queue (tagged format), or the error number.
fn read(cq: *mut fid_cq, count: usize) -> Result<Vec<fi_cq_tagged_entry>, isize> {
    let mut entries = vec![empty(); count];
    match unsafe { ((*(*cq).ops).read)(cq, entries.as_mut_ptr().cast(), count) } {
        rc if rc < 0 => Err(rc),
        taken => {
            entries.truncate(taken as usize);
            Ok(entries)
        }
    }
}

/// As [`read`], until there is something.
fn wait(cq: *mut fid_cq, count: usize) -> Result<Vec<fi_cq_tagged_entry>, isize> {
    let start = Instant::now();
    loop {
        match read(cq, count) {
            Err(rc) if rc == -(FI_EAGAIN as isize) => {}
            other => return other,
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nothing completes");
    }
}

#[test]
fn sends_and_receives_go_to_their_own_queues_whichever_is_read() {
    let _alone = alone();
    let mut world = Opened::new();
    let queue = |world: &Opened| world.cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE);
    let (sends, receives) = (queue(&world), queue(&world));
    let a = world.endpoint_on(sends, FI_SEND);
    unsafe {
        let fid = a.ep.cast::<fid>();
        assert_eq!(((*(*fid).ops).bind)(fid, receives.cast(), FI_RECV), 0);
    }
    let mut buffers = [[0u8; 64]; 4];
    for round in 0..200 {
        for (n, buffer) in buffers.iter_mut().enumerate() {
            a.trecv(FI_ADDR_UNSPEC, buffer, n as u64, 0, 10 + n);
        }
        for n in 0..4 {
            assert_eq!(a.tsend(&a, &[round; 64], n, 20 + n as usize), 0);
        }
        let first = [receives, sends][usize::from(round) % 2];
        let second = [sends, receives][usize::from(round) % 2];
        for cq in [first, second] {
            let mut seen = Vec::new();
            while seen.len() < 4 {
                let room = 1 + usize::from(round) % 3;
                seen.extend(wait(cq, room).unwrap().iter().map(|e| e.op_context as usize));
            }
            let base = if cq == receives { 10 } else { 20 };
            assert_eq!(seen, [base, base + 1, base + 2, base + 3], "round {round}");
            assert_eq!(read(cq, 1).err(), Some(-(FI_EAGAIN as isize)));
        }
        assert!(buffers.iter().all(|buffer| *buffer == [round; 64]));
    }
}

#[test]
fn an_error_ends_a_batch_and_what_follows_it_waits() {
    let _alone = alone();
    let mut world = Opened::new();
    let (a, b) = (world.endpoint(), world.endpoint());
    let mut buffers = [[0u8; 8]; 4];
    for (n, buffer) in buffers.iter_mut().enumerate() {
        b.trecv(FI_ADDR_UNSPEC, buffer, n as u64, 0, n);
    }
    for n in 0..4 {
        let message = &[n as u8; 9][..if n == 2 { 9 } else { 8 }];
        assert_eq!(a.tsend(&b, message, n, 0), 0);
        a.next(&[]);
    }
    // All four are there: one more call would bring nothing else.
    let batch = wait(b.cq, 8).unwrap();
    let contexts: Vec<_> = batch.iter().map(|e| e.op_context as usize).collect();
    assert_eq!(contexts, [0, 1]);
    assert_eq!(read(b.cq, 8).err(), Some(-(FI_EAVAIL as isize)));
    assert_eq!(b.error().op_context as usize, 2);
    assert_eq!(read(b.cq, 8).unwrap()[0].op_context as usize, 3);
}

#[test]
fn a_busy_endpoint_does_not_keep_another_one_of_its_queue_waiting() {
    let _alone = alone();
    let mut world = Opened::new();
    let sender = world.endpoint();
    let cq = world.cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE);
    let busy = world.endpoint_on(cq, FI_SEND | FI_RECV);
    let quiet = world.endpoint_on(cq, FI_SEND | FI_RECV);
    let mut buffers = vec![[0u8; 8]; 100];
    for buffer in &mut buffers {
        busy.trecv(FI_ADDR_UNSPEC, buffer, 1, 0, 1);
    }
    let mut buffer = [0u8; 8];
    quiet.trecv(FI_ADDR_UNSPEC, &mut buffer, 1, 0, 2);
    for _ in 0..100 {
        assert_eq!(sender.tsend(&busy, &[1; 8], 1, 0), 0);
    }
    assert_eq!(sender.tsend(&quiet, &[2; 8], 1, 0), 0);
    for _ in 0..101 {
        sender.next(&[]);
    }
    let first = (0..4).map(|_| wait(cq, 1).unwrap()[0].op_context as usize);
    assert!(first.collect::<Vec<_>>().contains(&2));
}
