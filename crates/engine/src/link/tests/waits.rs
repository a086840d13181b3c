//! Targets that are not ready, patience, fences and limits on reads.

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use usb4_wire::Request;

use super::world::*;
use crate::*;

const MS: Nanos = 1_000_000;

fn limit(pair: &mut Pair, flow: FlowId, limits: Limits) {
    pair.sides[0].link.limit_flow(flow, limits);
}

fn add(key: MemRef, cookie: u64) -> Work {
    let op = Operation::FetchAdd {
        remote_addr: 0,
        remote_key: key.0,
        add: 1,
    };
    Work {
        cookie,
        op,
        local: None,
        len: 0,
    }
}

/// One of each kind of work: a SEND, a WRITE, one with immediate data, a READ, an atomic.
fn work(pair: &mut Pair, kind: usize, key: MemRef) -> Work {
    let into = pair.sides[0].host.region(vec![0; 64]);
    let side = &pair.sides[0];
    match kind {
        0 => side.message(1, &[1; 8], None),
        1 => side.write(1, &[1; 8], key, 8, None),
        2 => side.write(1, &[1; 8], key, 8, Some(9)),
        3 => side.read(1, into, 8, key, 0),
        _ => add(key, 1),
    }
}

#[test]
fn a_target_that_is_not_ready_is_waited_for_and_says_when_it_is() {
    for kind in 0..5 {
        let mut pair = Pair::new();
        pair.admit(1, Ok(Admission::Later));
        let key = pair.sides[1].share(vec![0; 64], true);
        let flow = pair.open(0);
        let first = work(&mut pair, kind, key);
        pair.post(0, flow, first);
        pair.send(0, flow, 2, &pattern(9_000, 2));
        pair.receive(1, 5, 9_000);
        pair.receive(1, 6, 9_000);
        pair.run();
        let before = pair.frames;
        pair.run_for(10_000 * MS);
        assert_eq!((pair.frames, pair.done(0).len()), (before, 0), "kind {kind}");
        pair.admit(1, Ok(Admission::Reads(8)));
        pair.run();
        assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok)], "kind {kind}");
        pair.drop_receives(1);
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn a_target_that_goes_before_it_is_ready_fails_the_work() {
    let mut pair = Pair::new();
    pair.admit(1, Ok(Admission::Later));
    let flow = pair.open(0);
    pair.send(0, flow, 1, &[1; 8]);
    pair.run();
    let Side { link, host, .. } = &mut pair.sides[1];
    link.close_target(pair.now, 7, host);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Refused(NakCode::Gone))]);
    pair.close(0, flow);
    pair.run();
    assert_eq!(pair.sides[1].host.0.borrow().flows, 0);
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn a_target_that_turns_out_to_be_somebody_elses_refuses() {
    let mut pair = Pair::new();
    pair.admit(1, Ok(Admission::Later));
    let flow = pair.open(0);
    pair.send(0, flow, 1, &pattern(9_000, 1));
    pair.run();
    pair.admit(1, Err(NakCode::Gone));
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Refused(NakCode::Gone))]);
    assert_eq!(
        pair.sides[0].link.post(pair.now, flow, super::life::message()),
        Err(PostError::Gone)
    );
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn a_flow_gives_up_on_a_target_that_never_gets_ready_and_others_go_on() {
    let mut pair = Pair::new();
    pair.admit(1, Ok(Admission::Later));
    let flow = pair.open(0);
    let patience = Limits {
        ready: 5 * MS,
        ..Limits::NONE
    };
    limit(&mut pair, flow, patience);
    pair.send(0, flow, 1, &pattern(9_000, 1));
    pair.send(0, flow, 2, &[2; 8]);
    pair.run_for(4 * MS);
    assert!(pair.done(0).is_empty(), "too early");
    pair.run_for(2 * MS);
    let expired = Status::Expired(NakCode::NotReady);
    assert_eq!(pair.done(0), [(1, expired), (2, Status::Flushed)]);
    assert_eq!(
        pair.sides[0].link.post(pair.now, flow, super::life::message()),
        Err(PostError::Gone)
    );
    pair.close(0, flow);
    pair.admit(1, Ok(Admission::Reads(8)));
    let other = pair.open(0);
    pair.send(0, other, 3, &[3; 8]);
    pair.receive(1, 5, 100);
    pair.run();
    assert_eq!(pair.done(0).last(), Some(&(3, Status::Ok)));
    assert_eq!(pair.sides[1].host.0.borrow().flows, 1, "the other flow is left");
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn a_flow_gives_up_for_want_of_a_receive_when_it_was_told_to() {
    for (receive, after) in [(0, MS), (3 * MS, 4 * MS)] {
        let mut pair = Pair::new();
        let flow = pair.open(0);
        let patience = Limits {
            receive,
            ..Limits::NONE
        };
        limit(&mut pair, flow, patience);
        pair.send(0, flow, 1, &[1; 8]);
        pair.run_for(receive);
        assert!(pair.done(0).is_empty(), "too early");
        pair.run_for(after);
        assert_eq!(pair.done(0), [(1, Status::Expired(NakCode::Rnr))]);
        pair.close(0, flow);
        pair.run();
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn a_receive_that_another_flow_takes_does_not_begin_the_wait_anew() {
    let mut pair = Pair::new();
    let (waits, takes) = (pair.open(0), pair.open(0));
    let patience = Limits {
        receive: 10 * MS,
        ..Limits::NONE
    };
    limit(&mut pair, waits, patience);
    pair.send(0, waits, 1, &[1; 8]);
    pair.run_for(MS);
    for cookie in 10..20 {
        // Told of a receive, the flow finds it taken.
        pair.sides[1].link.receive_posted(pair.now, 7);
        pair.run_for(MS);
        pair.receive(1, cookie, 100);
        pair.send(0, takes, cookie, &[2; 8]);
        pair.run_for(1_000);
    }
    pair.run_for(5 * MS);
    let expired = (1, Status::Expired(NakCode::Rnr));
    assert!(pair.done(0).contains(&expired), "{:?}", pair.done(0));
}

#[test]
fn what_was_sent_before_a_wait_that_ends_still_completes() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let patience = Limits {
        receive: 0,
        ..Limits::NONE
    };
    limit(&mut pair, flow, patience);
    let source = pair.sides[1].share(pattern(60_000, 3), true);
    let into = pair.sides[0].host.region(vec![0; 60_000]);
    let read = pair.sides[0].read(1, into, 60_000, source, 0);
    pair.post(0, flow, read);
    pair.send(0, flow, 2, &[1; 8]);
    pair.send(0, flow, 3, &[1; 8]);
    pair.run();
    let expired = Status::Expired(NakCode::Rnr);
    assert_eq!(
        pair.done(0),
        [(1, Status::Ok), (2, expired), (3, Status::Flushed)]
    );
    assert!(pair.sides[0].host.bytes(into) == pattern(60_000, 3));
    pair.close(0, flow);
    pair.run();
    pair.assert_clean();
}

/// Sends what a read has brought; returns what arrives.
fn read_and_send(fenced: bool, lost: u64) -> Vec<u8> {
    let mut pair = Pair::new();
    let mut frames = 0;
    pair.script = Box::new(move |_| {
        frames += 1;
        if frames == lost {
            Fault::Drop
        } else {
            Fault::Deliver
        }
    });
    let flow = pair.open(0);
    let source = pair.sides[1].share(pattern(5_000, 3), true);
    let buffer = pair.sides[0].host.region(vec![0; 5_000]);
    let read = pair.sides[0].read(1, buffer, 5_000, source, 0);
    let mem = pair.sides[0].host.hold(buffer);
    let send = Work {
        local: Some(MemAt { mem, offset: 0 }),
        len: 5_000,
        cookie: 2,
        ..super::life::message()
    };
    let received = pair.receive(1, 5, 5_000);
    pair.post(0, flow, read);
    let now = pair.now;
    let posted = pair.sides[0].link.post_fenced(now, flow, send, fenced);
    assert_eq!(posted, Ok(()));
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok)]);
    pair.assert_clean();
    pair.assert_no_violations();
    pair.sides[1].host.bytes(received)
}

#[test]
fn a_fenced_send_carries_what_the_read_before_it_has_brought() {
    for lost in 0..8 {
        assert!(
            read_and_send(true, lost) == pattern(5_000, 3),
            "frame {lost} lost"
        );
    }
    assert!(
        read_and_send(false, 0) != pattern(5_000, 3),
        "without a fence nothing is waited for"
    );
}

#[test]
fn a_fence_behind_a_refused_read_and_an_empty_one_opens() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let key = pair.sides[1].share(vec![0; 8], true);
    let into = pair.sides[0].host.region(vec![0; 8]);
    let refused = pair.sides[0].read(1, into, 8, MemRef(77), 0);
    pair.post(0, flow, refused);
    let empty = Work {
        local: None,
        ..pair.sides[0].read(2, into, 0, key, 0)
    };
    pair.sides[0].host.release(into);
    pair.post(0, flow, empty);
    let now = pair.now;
    let posted = pair.sides[0].link.post_fenced(now, flow, add(key, 3), true);
    assert_eq!(posted, Ok(()));
    pair.run();
    let access = Status::Refused(NakCode::Access);
    assert_eq!(pair.done(0), [(1, access), (2, Status::Ok), (3, Status::Ok)]);
    pair.assert_clean();
}

#[test]
fn a_flow_has_no_more_reads_outstanding_than_it_may() {
    let mut pair = Pair::new();
    pair.admit(1, Ok(Admission::Reads(2)));
    let flow = pair.open(0);
    let limits = Limits {
        reads: 2,
        ..Limits::NONE
    };
    limit(&mut pair, flow, limits);
    let key = pair.sides[1].share(vec![0; 8], true);
    for cookie in 0..20 {
        pair.post(0, flow, add(key, cookie));
    }
    for _ in 0..200 {
        pair.run_for(500);
        assert!(pair.sides[0].link.usage().reads <= 2);
    }
    pair.run();
    assert_eq!(pair.done(0).len(), 20);
    assert!(pair.done(0).iter().all(|&(_, status)| status == Status::Ok));
    assert_eq!(pair.sides[1].host.bytes(key)[0], 20);
    pair.assert_clean();
}

#[test]
fn a_peer_that_asks_a_flow_for_more_reads_than_it_may_is_refused() {
    let mut pair = Pair::new();
    pair.admit(1, Ok(Admission::Reads(2)));
    let flow = pair.open(0);
    let source = pair.sides[1].share(pattern(50_000, 3), true);
    let into = pair.sides[0].host.region(vec![0; 50_000]);
    for cookie in 0..6 {
        let read = pair.sides[0].read(cookie, into, 50_000, source, 0);
        pair.post(0, flow, read);
    }
    pair.run();
    let refused = Status::Refused(NakCode::Unsupported);
    assert_eq!(pair.done(0)[0], (0, Status::Ok));
    assert!(pair.done(0).iter().any(|&(_, status)| status == refused));
    pair.assert_clean();
}

#[test]
fn what_a_target_drops_has_no_effect_and_does_not_fail() {
    let mut pair = Pair::new();
    pair.admit(1, Ok(Admission::Drop));
    let flow = pair.open(0);
    let key = pair.sides[1].share(vec![0; 64], true);
    pair.receive(1, 5, 40_000);
    let write = pair.sides[0].write(1, &[1; 8], key, 0, Some(1));
    pair.post(0, flow, write);
    pair.post(0, flow, add(key, 2));
    pair.send(0, flow, 3, &pattern(40_000, 1));
    // It gets ready in the middle of the message, which stays dropped.
    let mut parts = 0;
    pair.script = Box::new(move |sent| {
        parts += u32::from(sent.has_request(|request| matches!(request, Request::Send { .. })));
        if parts > 4 { Fault::Drop } else { Fault::Deliver }
    });
    pair.run_for(20_000);
    pair.admit(1, Ok(Admission::Reads(8)));
    pair.script = Box::new(|_| Fault::Deliver);
    pair.run();
    assert!(pair.received(1).is_empty());
    pair.send(0, flow, 4, &[4; 8]);
    pair.run();
    assert_eq!(pair.received(1), [(5, Status::Ok, 8)]);
    let unsupported = Status::Refused(NakCode::Unsupported);
    assert_eq!(
        pair.done(0),
        [
            (1, Status::Ok),
            (2, unsupported),
            (3, Status::Ok),
            (4, Status::Ok)
        ]
    );
    assert_eq!(pair.sides[1].host.bytes(key), [0; 64]);
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn a_drained_flow_finishes_its_work_and_takes_no_more() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.send(0, flow, 1, &[1; 8]);
    pair.sides[0].link.drain_flow(flow);
    let again = |pair: &mut Pair| pair.sides[0].link.post(pair.now, flow, super::life::message());
    assert_eq!(again(&mut pair), Err(PostError::Full));
    pair.receive(1, 5, 8);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    assert_eq!(again(&mut pair), Err(PostError::Closed));
    pair.run();
    assert_eq!(pair.sides[1].host.0.borrow().flows, 0);
    pair.assert_clean();
}
