//! Messages between communicators of one process.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails"
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call here hands the plugin what its contract asks for"
)]

mod common;

use common::*;
use nccl_net_sys::*;
use usb4_nccl::ncclNetPlugin_v12 as NET;

#[test]
fn bytes_of_every_size_arrive_whether_the_receive_or_the_message_is_first() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (tx, rx) = pair(a, b);
    for len in [0, 1, 7, 64, 2047, 2048, 2049, 4096, 65537, 1 << 20] {
        for recv_first in [true, false] {
            let source = Memory::new(tx, pattern(len + 3, len as u8));
            let target = Memory::new(rx, vec![0; len + 100]);
            let requests = if recv_first {
                let request = recv(&target, 1, len + 99);
                [send(&source, 3, len), request]
            } else {
                let request = send(&source, 3, len);
                [request, recv(&target, 1, len + 99)]
            };
            assert_eq!(wait_all(&requests), [len, len]);
            let (source, target) = (source.dereg(), target.dereg());
            assert!(target[1..=len] == source[3..], "{len}");
            assert!(target[0] == 0 && target[len + 1..].iter().all(|byte| *byte == 0));
        }
    }
    close_send(tx);
    close_recv(rx);
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn messages_of_all_lengths_meet_receives_in_the_order_of_both() {
    let _alone = alone();
    let a = Context::new();
    // A context talks to itself, too.
    let (tx, rx) = pair(a, a);
    let mut random = 1_u64;
    let lengths: Vec<usize> = (0..500)
        .map(|_| {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            [0, 1, 100, 2048, 5000, 100_000][(random >> 60) as usize % 6]
        })
        .collect();
    let source = Memory::new(tx, pattern(200_000, 7));
    let slot = 100_000;
    let target = Memory::new(rx, vec![0; 32 * slot]);
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    let (mut sent, mut done) = (0, 0);
    until("the stream", || {
        while sent < lengths.len() && sends.len() < 32 {
            match try_send(&source, sent % 1000, lengths[sent], 5).unwrap() {
                Some(request) => sends.push(request),
                None => break,
            }
            sent += 1;
        }
        // Receives are behind in bursts, so that some messages wait for them and some do not.
        while recvs.len() < 32 && (sent % 7 != 0 || recvs.is_empty()) && done + recvs.len() < lengths.len() {
            let at = (done + recvs.len()) % 32 * slot;
            match try_recv(&target, at, slot, 5).unwrap() {
                Some(request) => recvs.push(request),
                None => break,
            }
        }
        sends.retain(|request| request.test().unwrap().is_none());
        while let Some(len) = recvs.first().and_then(|request| request.test().unwrap()) {
            recvs.remove(0);
            assert_eq!(len, lengths[done], "message {done}");
            let at = done % 32 * slot;
            let from = done % 1000;
            assert!(
                target.bytes[at..at + len] == source.bytes[from..from + len],
                "message {done}"
            );
            done += 1;
        }
        (done == lengths.len() && sends.is_empty()).then_some(())
    });
    assert_eq!(warnings("tag"), Vec::<String>::new());
    drop((source.dereg(), target.dereg()));
    close_send(tx);
    close_recv(rx);
    ok(a.finalize());
}

#[test]
fn thirty_two_requests_are_taken_and_the_next_one_is_not_now() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (tx, rx) = pair(a, b);
    let (source, target) = (
        Memory::new(tx, pattern(100_000, 1)),
        Memory::new(rx, vec![0; 100_000]),
    );
    let sends: Vec<_> = (0..32).map(|_| send(&source, 0, 100_000)).collect();
    assert_eq!(try_send(&source, 0, 1, 0), Ok(None));
    assert!(sends.iter().all(|request| request.test() == Ok(None)));
    let recvs: Vec<_> = (0..32).map(|_| recv(&target, 0, 100_000)).collect();
    assert_eq!(try_recv(&target, 0, 1, 0), Ok(None));
    assert_eq!(wait_all(&recvs), [100_000; 32]);
    // The newest first.
    let newest = until("a send", || sends[31].test().unwrap());
    assert_eq!(newest, 100_000);
    let another = send(&source, 0, 1);
    assert_eq!(try_send(&source, 0, 1, 0), Ok(None));
    assert_eq!(wait_all(&sends[..31]), [100_000; 31]);
    let last = recv(&target, 0, 1);
    assert_eq!(wait_all(&[another, last]), [1, 1]);
    close_send(tx);
    close_recv(rx);
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn messages_that_are_always_first_never_run_out_of_credit() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (tx, rx) = pair(a, b);
    let (source, target) = (Memory::new(tx, pattern(100, 1)), Memory::new(rx, vec![0; 100]));
    for round in 0..200 {
        // Done without a receive: it went ahead.
        let ahead = 1 + round % 4;
        let sends: Vec<_> = (0..ahead).map(|_| send(&source, 0, 100)).collect();
        assert_eq!(wait_all(&sends), vec![100; ahead]);
        let recvs: Vec<_> = (0..ahead).map(|_| recv(&target, 0, 100)).collect();
        assert_eq!(wait_all(&recvs), vec![100; ahead]);
    }
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn both_sides_sending_first_is_no_deadlock() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (a_tx, b_rx) = pair(a, b);
    let (b_tx, a_rx) = pair(b, a);
    let len = 1 << 20;
    let sources = [a_tx, b_tx].map(|comm| Memory::new(comm, pattern(len, 3)));
    let targets = [a_rx, b_rx].map(|comm| Memory::new(comm, vec![0; len]));
    for _ in 0..8 {
        let mut requests: Vec<_> = sources
            .iter()
            .flat_map(|source| [0; 16].map(|_| send(source, 0, len)))
            .collect();
        requests.extend(
            targets
                .iter()
                .flat_map(|target| [0; 16].map(|_| recv(target, 0, len))),
        );
        assert_eq!(wait_all(&requests), [len; 64]);
    }
    for target in targets {
        assert!(target.dereg() == sources[0].bytes);
    }
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn a_receiver_that_never_posts_holds_up_no_other_communicator() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (stuck_tx, _stuck_rx) = pair(a, b);
    let pairs: Vec<_> = (0..17).map(|_| pair(a, b)).collect();
    let stuck = Memory::new(stuck_tx, pattern(100_000, 9));
    // Short ones, as many as may go ahead and more, and long ones.
    let waiting: Vec<_> = (0..32)
        .map(|i| send(&stuck, 0, if i < 16 { 10 } else { 100_000 }))
        .collect();
    for (tx, rx) in pairs {
        let (source, target) = (
            Memory::new(tx, pattern(50_000, 2)),
            Memory::new(rx, vec![0; 50_000]),
        );
        for len in [0, 10, 50_000] {
            let requests = [send(&source, 0, len), recv(&target, 0, len)];
            assert_eq!(wait_all(&requests), [len, len]);
        }
        assert!(source.dereg() == target.dereg());
    }
    let done = waiting
        .iter()
        .filter(|request| request.test().unwrap().is_some())
        .count();
    // What went ahead is in the receiver's buffers.
    assert!(done <= 8, "{done} sends are done without a receive");
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn a_message_longer_than_its_buffer_is_an_error_on_both_sides_and_overruns_nothing() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (good_tx, good_rx) = pair(a, b);
    // Short ones go ahead of the receive, long ones never leave.
    for (len, capacity, recv_first) in [
        (100, 99, false),
        (100, 99, true),
        (100_000, 99_999, false),
        (100_000, 0, true),
    ] {
        let (tx, rx) = pair(a, b);
        let (source, target) = (Memory::new(tx, pattern(len, 1)), Memory::new(rx, vec![0; len]));
        let (to, from) = if recv_first {
            let from = recv(&target, 0, capacity);
            // The sender knows of the buffer before it sends.
            until("a grant", || {
                let idle = Memory::new(good_tx, vec![0; 1]);
                let back = Memory::new(good_rx, vec![0; 1]);
                wait_all(&[send(&idle, 0, 1), recv(&back, 0, 1)]);
                Some(())
            });
            (try_send(&source, 0, len, 0).unwrap(), from)
        } else {
            let to = send(&source, 0, len);
            (Some(to), recv(&target, 0, capacity))
        };
        assert_eq!(failure(from), ncclInvalidUsage);
        // An eager message may be through before its receiver complains.
        let code = until("the sender's error", || {
            let tested = to.map_or(Ok(None), Request::test);
            tested.err().or_else(|| try_send(&source, 0, 1, 0).err())
        });
        assert_eq!(code, ncclInvalidUsage);
        let told = warnings(&format!("a message of {len} bytes for a receive of {capacity}"));
        assert_eq!(told.len(), 2, "{told:?} {:?}", log());
        assert!(
            told.iter()
                .all(|line| line.contains("peer ") && line.contains("rail soft:"))
        );
        assert!(target.bytes.iter().all(|byte| *byte == 0));
        // The error stays.
        assert_eq!(try_send(&source, 0, 1, 0), Err(ncclInvalidUsage));
        assert_eq!(try_recv(&target, 0, 1, 0), Err(ncclInvalidUsage));
        ok(unsafe { (NET.deregMr)(tx.0, source.handle) });
        ok(unsafe { (NET.deregMr)(rx.0, target.handle) });
        close_send(tx);
        close_recv(rx);
    }
    let (source, target) = (
        Memory::new(good_tx, pattern(9, 1)),
        Memory::new(good_rx, vec![0; 9]),
    );
    assert_eq!(wait_all(&[send(&source, 0, 9), recv(&target, 0, 9)]), [9, 9]);
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn tags_that_differ_are_told_of_once_and_change_nothing() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (tx, rx) = pair(a, b);
    let (source, target) = (Memory::new(tx, pattern(5000, 1)), Memory::new(rx, vec![0; 5000]));
    for len in [10, 5000, 10] {
        let from = try_recv(&target, 0, len, 0x77).unwrap().unwrap();
        let to = try_send(&source, 0, len, 0x78).unwrap().unwrap();
        assert_eq!(wait_all(&[from, to]), [len, len]);
    }
    let told = warnings("tag 0x78 went to a receive with tag 0x77");
    assert_eq!(told.len(), 1, "{told:?}");
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn a_request_that_is_done_or_made_up_is_an_error_and_no_crash() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (tx, rx) = pair(a, b);
    let (source, target) = (Memory::new(tx, pattern(9, 1)), Memory::new(rx, vec![0; 9]));
    let requests = [send(&source, 0, 9), recv(&target, 0, 9)];
    wait_all(&requests);
    for stale in requests {
        assert_eq!(stale.test(), Err(ncclInternalError));
    }
    for made_up in [
        PRESET,
        NET.name as *mut _,
        tx.0,
        source.handle,
        std::ptr::without_provenance_mut(usize::MAX),
    ] {
        assert_eq!(Request(made_up).test(), Err(ncclInternalError));
    }
    let pending = recv(&target, 0, 9);
    ok(unsafe { (NET.deregMr)(rx.0, target.handle) });
    close_recv(rx);
    assert_eq!(pending.test(), Err(ncclInternalError));
    assert_eq!(unsafe { (NET.closeRecv)(rx.0) }, ncclInternalError);
    assert_eq!(try_recv(&target, 0, 9, 0), Err(ncclInternalError));
    assert!(!warnings("").is_empty());
    ok(a.finalize());
    ok(b.finalize());
    assert_eq!(a.finalize(), ncclInternalError);
}

#[test]
fn bytes_outside_of_registered_memory_are_refused() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (tx, rx) = pair(a, b);
    let (source, target) = (Memory::new(tx, pattern(64, 1)), Memory::new(rx, vec![0; 64]));
    assert_eq!(try_send(&source, 1, 64, 0), Err(ncclInternalError));
    assert_eq!(try_recv(&target, 0, 65, 0), Err(ncclInternalError));
    // The memory of one communicator with another.
    let crossed = Memory {
        comm: rx,
        bytes: vec![0; 64],
        handle: source.handle,
    };
    assert_eq!(try_recv(&crossed, 0, 1, 0), Err(ncclInternalError));
    let mut handle = std::ptr::null_mut();
    let bytes = source.bytes.as_ptr().cast_mut().cast();
    assert_eq!(
        unsafe { (NET.regMr)(tx.0, bytes, 64, NCCL_PTR_CUDA, &mut handle) },
        ncclInternalError
    );
    assert!(handle.is_null());
    assert!(warnings("kind 2").len() == 1);
    ok(a.finalize());
    ok(b.finalize());
}
