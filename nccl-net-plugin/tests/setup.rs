//! Making connections and ending them, in one process.
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

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use common::*;
use nccl_net_sys::*;
use usb4_nccl::ncclNetPlugin_v12 as NET;

fn exchange((tx, rx): (Comm, Comm)) {
    let (source, target) = (Memory::new(tx, pattern(5000, 1)), Memory::new(rx, vec![0; 5000]));
    for len in [5, 5000] {
        assert_eq!(
            wait_all(&[send(&source, 0, len), recv(&target, 0, len)]),
            [len, len]
        );
    }
    assert!(source.dereg() == target.dereg());
}

#[test]
fn the_properties_are_those_of_one_device_of_host_memory() {
    let _alone = alone();
    let context = Context::new();
    let mut count = -1;
    ok(unsafe { (NET.devices)(&mut count) });
    assert_eq!(count, 1);
    let mut seen: ncclNetProperties_v12_t = unsafe { std::mem::zeroed() };
    unsafe { std::ptr::from_mut(&mut seen).write_bytes(0xff, 1) };
    ok(unsafe { (NET.getProperties)(0, &mut seen) });
    assert_eq!(
        (seen.ptrSupport, seen.regIsGlobal, seen.forceFlush),
        (NCCL_PTR_HOST, 0, 0)
    );
    assert_eq!(
        (seen.maxComms, seen.maxRecvs, seen.maxMultiRequestSize),
        (65536, 1, 1)
    );
    assert_eq!((seen.maxP2pBytes, seen.maxCollBytes), (1 << 40, 1 << 40));
    assert_eq!((seen.railId, seen.planeId, seen.netDeviceType), (-1, -1, 0));
    assert_eq!(seen.vProps.ndevs, 1);
    assert_eq!(seen.vProps.devs, [0; 8]);
    assert!(seen.guid != 0 && seen.speed > 0 && seen.latency > 0.0 && seen.pciPath.is_null());
    assert_eq!(unsafe { (NET.getProperties)(1, &mut seen) }, ncclInternalError);
    assert_eq!(warnings("no device 1").len(), 1);
    ok(context.finalize());
}

#[test]
fn a_handle_of_another_kind_or_version_is_refused_with_its_reason() {
    let _alone = alone();
    let context = Context::new();
    let (listener, good) = context.listen();
    assert!(
        good[56..].iter().all(|byte| *byte == 0),
        "the rest is the connecting side's"
    );
    for (at, code, why) in [
        (0, ncclInvalidUsage, "was not made by the USB4 plugin"),
        (8, ncclInvalidUsage, "is of version"),
        (20, ncclInvalidUsage, "damaged"),
    ] {
        let mut bad = good;
        bad[at] ^= 0x80;
        assert_eq!(context.try_connect(&mut bad), Err(code));
        assert_eq!(warnings(why).len(), 1, "{:?}", log());
    }
    // A state that no call has left.
    for state in [1_u64, u64::MAX, 3 << 60] {
        let mut bad = good;
        bad[56..64].copy_from_slice(&state.to_le_bytes());
        assert_eq!(context.try_connect(&mut bad), Err(ncclInternalError));
        warnings("connect()");
    }
    let mut good = good;
    let tx = context.connect(&mut good);
    exchange((tx, until("accept", || try_accept(listener))));
    ok(context.finalize());
}

#[test]
fn several_connections_come_to_one_listener_and_it_may_be_closed_before_they_are_used() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (listener, handle) = b.listen();
    assert_eq!(try_accept(listener), None);
    let sends: Vec<_> = (0..20).map(|_| a.connect(&mut handle.clone())).collect();
    let recvs: Vec<_> = sends
        .iter()
        .map(|_| until("accept", || try_accept(listener)))
        .collect();
    ok(unsafe { (NET.closeListen)(listener.0) });
    // Which is whose, the bytes tell.
    let sources: Vec<_> = (0..20)
        .map(|i| Memory::new(sends[i], vec![i as u8; 100]))
        .collect();
    let targets: Vec<_> = recvs.iter().map(|rx| Memory::new(*rx, vec![0xff; 100])).collect();
    let mut requests: Vec<_> = targets.iter().map(|target| recv(target, 0, 100)).collect();
    requests.extend(sources.iter().map(|source| send(source, 0, 100)));
    wait_all(&requests);
    let mut seen: Vec<_> = targets.iter().map(|target| target.bytes[0]).collect();
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..20));
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn messages_posted_before_the_connection_is_accepted_go_when_it_is() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (listener, mut handle) = b.listen();
    let tx = a.connect(&mut handle);
    let source = Memory::new(tx, pattern(5000, 1));
    let sends = [send(&source, 0, 0), send(&source, 0, 10), send(&source, 0, 5000)];
    assert!(sends.iter().all(|request| request.test() == Ok(None)));
    let rx = until("accept", || try_accept(listener));
    let target = Memory::new(rx, vec![0; 5000]);
    let recvs = [recv(&target, 0, 0), recv(&target, 0, 10), recv(&target, 0, 5000)];
    assert_eq!(wait_all(&recvs), [0, 10, 5000]);
    assert_eq!(wait_all(&sends), [0, 10, 5000]);
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn a_listener_that_is_closed_refuses_whoever_waits_and_whoever_comes() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let (listener, handle) = b.listen();
    let waiting = a.connect(&mut handle.clone());
    let source = Memory::new(waiting, vec![0; 10]);
    let request = send(&source, 0, 10);
    ok(unsafe { (NET.closeListen)(listener.0) });
    let code = until("the refusal", || request.test().err());
    assert_eq!(code, ncclRemoteError);
    let told = warnings("nobody listens");
    assert_eq!(told.len(), 1, "{told:?}");
    let mut late = handle;
    // It hears of it before or after the connection is there.
    let code = match until("connect", || a.try_connect(&mut late).transpose()) {
        Err(code) => code,
        Ok(late) => {
            let source = Memory::new(late, vec![0; 10]);
            let request = send(&source, 0, 10);
            until("the refusal", || request.test().err())
        }
    };
    assert_eq!(code, ncclRemoteError);
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn setups_abandoned_at_any_point_leave_nothing_behind() {
    let _alone = alone();
    for round in 0..6 {
        let (a, b) = (Context::new(), Context::new());
        let (listener, mut handle) = b.listen();
        if round > 0 {
            // Perhaps it is through, perhaps not: nobody asks again.
            let _ = a.try_connect(&mut handle).unwrap();
        }
        if round > 1 {
            let tx = a.connect(&mut handle);
            if round > 2 {
                close_send(tx);
            }
        }
        if round > 3 {
            until("accept", || try_accept(listener));
        }
        if round > 4 {
            let (listener, mut handle) = a.listen();
            b.try_connect(&mut handle).unwrap();
            ok(unsafe { (NET.closeListen)(listener.0) });
        }
        let start = Instant::now();
        ok(a.finalize());
        ok(b.finalize());
        assert!(start.elapsed() < Duration::from_millis(500));
        // And again.
        let context = Context::new();
        exchange(pair(context, context));
        ok(context.finalize());
    }
    assert_eq!(warnings(""), Vec::<String>::new());
}

#[test]
fn memory_deregistered_with_requests_in_flight_is_not_touched_any_more() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    for len in [100, 100_000] {
        let (tx, rx) = pair(a, b);
        let source = Memory::new(tx, pattern(len, 1));
        let target = Memory::new(rx, vec![0; len]);
        let recvs: Vec<_> = (0..32).map(|_| recv(&target, 0, len)).collect();
        let target = target.dereg();
        let sends: Vec<_> = (0..32).map(|_| send(&source, 0, len)).collect();
        // The sender meets a buffer that is there no more.
        let code = until("the sender's error", || {
            sends.iter().find_map(|request| request.test().err())
        });
        assert_eq!(code, ncclRemoteError);
        assert!(recvs.iter().all(|request| request.test().is_err()));
        assert!(target.iter().all(|byte| *byte == 0));
        ok(unsafe { (NET.deregMr)(tx.0, source.handle) });
        close_send(tx);
        close_recv(rx);
    }
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn everything_is_posted_deregistered_and_closed_without_a_test_and_nothing_hangs() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    for _ in 0..10 {
        let (a_tx, b_rx) = pair(a, b);
        let (b_tx, a_rx) = pair(b, a);
        let len = 10_000;
        let memory: Vec<_> = [a_tx, b_tx, a_rx, b_rx]
            .map(|comm| Memory::new(comm, vec![1; len]))
            .into();
        for i in 0..64 {
            send(&memory[i % 2], 0, len);
            recv(&memory[2 + i % 2], 0, len);
        }
        let start = Instant::now();
        for memory in memory {
            memory.dereg();
        }
        for comm in [a_tx, b_tx] {
            close_send(comm);
        }
        for comm in [b_rx, a_rx] {
            close_recv(comm);
        }
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
    exchange(pair(a, b));
    ok(a.finalize());
    ok(b.finalize());
}

#[test]
fn null_is_closed_already() {
    let _alone = alone();
    let context = Context::new();
    for close in [NET.closeSend, NET.closeRecv, NET.closeListen, NET.finalize] {
        ok(unsafe { close(null_mut()) });
    }
    let (tx, _rx) = pair(context, context);
    ok(unsafe { (NET.deregMr)(tx.0, null_mut()) });
    ok(context.finalize());
}

#[test]
fn more_contexts_than_hubs_share_them_and_end_one_by_one() {
    let _alone = alone();
    let contexts: Vec<_> = (0..40).map(|_| Context::new()).collect();
    let pairs: Vec<_> = (0..40)
        .map(|i| pair(contexts[i], contexts[(i * 7 + 1) % 40]))
        .collect();
    pairs.iter().for_each(|pair| exchange(*pair));
    for (i, context) in contexts.iter().enumerate() {
        ok(context.finalize());
        if let Some(context) = contexts.get(i + 1) {
            exchange(pair(*context, *context));
        }
    }
    assert_eq!(warnings(""), Vec::<String>::new());
}

#[test]
fn threads_with_communicators_of_their_own_and_shared_ones_do_not_disturb_each_other() {
    let _alone = alone();
    let shared = Context::new();
    std::thread::scope(|scope| {
        for i in 0..8 {
            scope.spawn(move || {
                for round in 0..10 {
                    let own = Context::new();
                    // To the context all have, from it, and to oneself.
                    let pairs = match i % 3 {
                        0 => [pair(own, own), pair(own, own)],
                        1 => [pair(own, shared), pair(shared, own)],
                        _ => [pair(shared, shared), pair(own, own)],
                    };
                    pairs.iter().for_each(|pair| exchange(*pair));
                    if round % 2 == 0 {
                        for (tx, rx) in pairs {
                            close_send(tx);
                            close_recv(rx);
                        }
                    }
                    ok(own.finalize());
                }
            });
        }
    });
    exchange(pair(shared, shared));
    ok(shared.finalize());
    assert_eq!(warnings(""), Vec::<String>::new());
}

#[test]
fn a_peer_that_closes_connections_in_use_is_warned_of_once() {
    let _alone = alone();
    let (a, b) = (Context::new(), Context::new());
    let pairs = [pair(a, b), pair(a, b), pair(a, b)];
    let sources = pairs.map(|(tx, _)| Memory::new(tx, pattern(1 << 20, 1)));
    // Too long to go without a receive.
    let sends: Vec<Request> = sources.iter().map(|source| send(source, 0, 1 << 20)).collect();
    for (_, rx) in pairs {
        close_recv(rx);
    }
    for request in sends {
        let code = until("an error", || request.test().err());
        assert_eq!(code, ncclRemoteError);
    }
    assert_eq!(warnings("it has closed the connection").len(), 1, "{:?}", log());
    ok(a.finalize());
    ok(b.finalize());
}
