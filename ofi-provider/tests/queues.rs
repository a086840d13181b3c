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
        let message = [round; 64];
        for n in 0..4 {
            assert_eq!(a.tsend(&a, &message, n, 20 + n as usize), 0);
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
        assert!(buffers.iter().all(|buffer| *buffer == message));
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

/// An endpoint of the world's, bound to nothing.
fn bare(world: &mut Opened) -> *mut fid {
    let mut ep = std::ptr::null_mut();
    let rc =
        unsafe { ((*(*world.domain).ops).endpoint)(world.domain, world.info, &mut ep, std::ptr::null_mut()) };
    assert_eq!(rc, 0);
    ep.cast()
}

fn bind(ep: *mut fid, object: *mut fid, flags: u64) -> i32 {
    unsafe { ((*(*ep).ops).bind)(ep, object, flags) }
}

fn counter(world: &Opened) -> *mut fid {
    let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
    attr.events = FI_CNTR_EVENTS_COMP;
    let mut cntr = std::ptr::null_mut();
    let rc = unsafe {
        ((*(*world.domain).ops).cntr_open)(world.domain, &mut attr, &mut cntr, std::ptr::null_mut())
    };
    assert_eq!(rc, 0);
    cntr.cast()
}

#[test]
fn a_direction_takes_one_queue_and_one_counter() {
    let _alone = alone();
    let mut world = Opened::new();
    let queue = |world: &Opened| world.cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE).cast::<fid>();
    let (first, second) = (queue(&world), queue(&world));
    let (counts, others) = (counter(&world), counter(&world));
    let ep = bare(&mut world);
    for (object, other) in [(first, second), (counts, others)] {
        assert_eq!(bind(ep, object, FI_RECV), 0);
        assert_eq!(bind(ep, other, FI_RECV), -FI_EINVAL);
        assert_eq!(bind(ep, object, FI_RECV), -FI_EINVAL);
        assert_eq!(bind(ep, other, FI_SEND | FI_RECV), -FI_EINVAL, "all or nothing");
        assert_eq!(bind(ep, other, FI_SEND), 0);
    }
    for object in [ep, first, second, counts, others] {
        assert_eq!(close(object), 0, "nothing is left bound");
    }
}

#[test]
fn objects_of_another_domain_are_refused() {
    let _alone = alone();
    let (mut here, there) = (Opened::new(), Opened::new());
    let cq = there.cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE).cast::<fid>();
    let cntr = counter(&there);
    // What has the same index here.
    let (mine, counts) = (
        here.cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE).cast::<fid>(),
        counter(&here),
    );
    let ep = bare(&mut here);
    assert_eq!(bind(ep, cq, FI_SEND | FI_RECV), -FI_EINVAL);
    assert_eq!(bind(ep, there.av.cast(), 0), -FI_EINVAL);
    assert_eq!(bind(ep, cntr, FI_SEND), -FI_EINVAL);
    for object in [ep, cq, cntr, mine, counts, there.av.cast(), here.av.cast()] {
        assert_eq!(close(object), 0);
    }
}

#[test]
fn a_multi_receive_buffer_is_given_back_though_its_completions_are_not_selected() {
    let _alone = alone();
    let mut world = Opened::new();
    let sender = world.endpoint();
    for (counted, other) in [(false, false), (true, false), (false, true)] {
        let cq = world.cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE);
        let sends = world.cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_NONE);
        let ep = bare(&mut world);
        assert_eq!(bind(ep, world.av.cast(), 0), 0);
        assert_eq!(bind(ep, cq.cast(), FI_RECV | FI_SELECTIVE_COMPLETION), 0);
        assert_eq!(bind(ep, sends.cast(), FI_SEND), 0);
        if counted {
            assert_eq!(bind(ep, counter(&world), FI_RECV), 0);
        }
        assert_eq!(
            unsafe { ((*(*ep).ops).control)(ep, FI_ENABLE, std::ptr::null_mut()) },
            0
        );
        let mut receiver = Endpoint {
            ep: ep.cast(),
            cq,
            address: 0,
        };
        receiver.address = world.insert(&receiver.name());
        let mut buffer = [0u8; 1000];
        let iov = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut msg: fi_msg = unsafe { std::mem::zeroed() };
        (msg.msg_iov, msg.iov_count) = (&iov, 1);
        (msg.addr, msg.context) = (FI_ADDR_UNSPEC, 7 as *mut _);
        let rc = unsafe { ((*(*receiver.ep).msg).recvmsg)(receiver.ep, &msg, FI_MULTI_RECV) };
        assert_eq!(rc, 0);
        for _ in 0..4 {
            let (buf, to) = ([1u8; 240].as_ptr().cast(), receiver.address);
            assert_eq!(
                unsafe { ((*(*sender.ep).msg).inject)(sender.ep, buf, 240, to) },
                0
            );
        }
        if other {
            // Somebody else's call meets it.
            for _ in 0..10_000 {
                sender.drive();
                let _ = read(sends, 1);
            }
        }
        let done = wait(cq, 4).unwrap();
        assert_eq!(done.len(), 1, "only that the buffer is free");
        assert_eq!(
            (done[0].op_context as usize, done[0].flags & FI_MULTI_RECV),
            (7, FI_MULTI_RECV)
        );
    }
}
