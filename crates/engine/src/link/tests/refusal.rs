//! Work the peer refuses, and what goes on behind it.

use std::boxed::Box;
use std::vec;

use usb4_wire::{Request, Response};

use super::world::*;
use crate::*;

#[test]
fn a_message_waits_for_a_receive_and_is_replayed() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.send(0, flow, 1, &pattern(20_000, 1));
    pair.send(0, flow, 2, &pattern(100, 2));
    pair.run();
    assert!(pair.done(0).is_empty());
    assert_eq!(pair.sides[0].link.counters().rnr_received, 1);
    let first = pair.receive(1, 5, 30_000);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    let second = pair.receive(1, 6, 30_000);
    pair.run();
    assert_eq!(pair.received(1), [(5, Status::Ok, 20_000), (6, Status::Ok, 100)]);
    assert!(pair.sides[1].host.bytes(first)[..20_000] == pattern(20_000, 1)[..]);
    assert!(pair.sides[1].host.bytes(second)[..100] == pattern(100, 2)[..]);
    assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok)]);
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn an_idle_refusal_costs_nothing() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.send(0, flow, 1, &pattern(20_000, 1));
    pair.run();
    let before = pair.frames;
    pair.run_for(10_000_000_000);
    assert_eq!(pair.frames, before, "something polls for a receive");
}

#[test]
fn refusal_and_resumption_survive_loss() {
    for lost in [1, 2] {
        let mut pair = Pair::new();
        let flow = pair.open(0);
        let mut left = lost;
        pair.script = Box::new(move |sent| {
            let answer = sent.has_response(|r| matches!(r, Response::Nak { .. } | Response::Ready { .. }));
            if answer && left > 0 {
                left -= 1;
                return Fault::Drop;
            }
            Fault::Deliver
        });
        pair.send(0, flow, 1, &pattern(20_000, 1));
        pair.run_for(lost * 3_000);
        pair.receive(1, 5, 30_000);
        pair.run();
        assert_eq!(pair.received(1), [(5, Status::Ok, 20_000)]);
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn ready_is_lost() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run();
    let mut lost = false;
    pair.script = Box::new(move |sent| {
        if !lost && sent.has_response(|r| matches!(r, Response::Ready { .. })) {
            lost = true;
            return Fault::Drop;
        }
        Fault::Deliver
    });
    pair.receive(1, 5, 30);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    pair.assert_clean();
}

#[test]
fn a_write_with_immediate_resumes_at_its_last_chunk() {
    for len in [0, 100, 20_000] {
        let mut pair = Pair::new();
        let flow = pair.open(0);
        let target = pair.sides[1].share(vec![0; 20_000], true);
        let work = pair.sides[0].write(1, &pattern(len, 1), target, 0, Some(9));
        pair.post(0, flow, work);
        pair.send(0, flow, 2, &[2; 10]);
        pair.run();
        assert_eq!(pair.sides[0].link.counters().rnr_received, 1);
        pair.receive(1, 5, 100);
        pair.receive(1, 6, 100);
        pair.run();
        assert_eq!(
            pair.received(1),
            [(5, Status::Ok, len as u32), (6, Status::Ok, 10)]
        );
        assert!(pair.sides[1].host.bytes(target)[..len] == pattern(len, 1)[..]);
        // 5 chunks, one of them twice.
        let sent = pair.sides[0].link.counters().tx_bytes;
        assert!(
            len < 10_000 || sent < 30_000,
            "{sent} bytes: the whole write was replayed"
        );
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn reads_behind_a_refusal_are_asked_again() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let source = pair.sides[1].share(pattern(10_000, 3), true);
    let into = pair.sides[0].host.region(vec![0; 10_000]);
    pair.send(0, flow, 1, &[1; 10]);
    let work = pair.sides[0].read(2, into, 10_000, source, 0);
    pair.post(0, flow, work);
    pair.run();
    assert!(pair.done(0).is_empty());
    assert_eq!(
        pair.sides[0].link.usage().reads,
        0,
        "a discarded read holds a read slot"
    );
    pair.receive(1, 5, 30);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok)]);
    assert!(pair.sides[0].host.bytes(into) == pattern(10_000, 3));
    pair.assert_clean();
}

#[test]
fn other_flows_go_on_while_one_waits_for_a_receive() {
    let mut pair = Pair::new();
    let waits = pair.open_to(0, 1);
    let goes = pair.open_to(0, 2);
    pair.send(0, waits, 1, &[1; 10]);
    pair.receive_at(1, 2, 5, 100);
    pair.send(0, goes, 2, &[1; 10]);
    pair.run();
    assert_eq!(pair.done(0), [(2, Status::Ok)]);
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    for len in [101, 50_000] {
        let mut pair = Pair::new();
        let flow = pair.open(0);
        pair.receive(1, 5, 100);
        pair.receive(1, 6, 100);
        pair.send(0, flow, 1, &pattern(len, 1));
        pair.send(0, flow, 2, &[2; 100]);
        pair.run();
        let length = Status::Refused(NakCode::Length);
        assert_eq!(pair.done(0), [(1, length), (2, Status::Ok)]);
        assert_eq!(pair.received(1), [(5, length, len as u32), (6, Status::Ok, 100)]);
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn a_write_that_leaves_its_region_fails_alone() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let target = pair.sides[1].share(vec![0; 100_000], true);
    pair.receive(1, 5, 100);
    let ok = pair.sides[0].write(1, &[1; 50], target, 0, None);
    let bad = pair.sides[0].write(2, &pattern(90_000, 1), target, 50_000, Some(1));
    pair.post(0, flow, ok);
    pair.post(0, flow, bad);
    pair.send(0, flow, 3, &[3; 100]);
    let read_only = pair.sides[1].share(vec![0; 100], false);
    let denied = pair.sides[0].write(4, &[1; 8], read_only, 0, None);
    pair.post(0, flow, denied);
    pair.run();
    let access = Status::Refused(NakCode::Access);
    assert_eq!(
        pair.done(0),
        [(1, Status::Ok), (2, access), (3, Status::Ok), (4, access)]
    );
    assert_eq!(
        pair.received(1),
        [(5, Status::Ok, 100)],
        "the immediate of a failed write took a receive"
    );
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn many_failures_in_a_row_are_each_reported() {
    let mut pair = Pair::with(
        LinkConfig {
            max_parked: 8,
            ..config()
        },
        1,
    );
    let flow = pair.open(0);
    for cookie in 0..60 {
        let work = pair.sides[0].write(cookie, &[1; 8], MemRef(999), 0, None);
        pair.post(0, flow, work);
    }
    pair.run();
    let done = pair.done(0);
    assert_eq!(done.len(), 60);
    assert!(
        done.iter()
            .all(|&(_, status)| status == Status::Refused(NakCode::Access))
    );
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn reads_and_atomics_without_a_right_fail_alone() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let shared = pair.sides[1].share(vec![0; 16], true);
    let into = pair.sides[0].host.region(vec![0; 100]);
    let long = pair.sides[0].read(1, into, 17, shared, 0);
    pair.post(0, flow, long);
    let unknown = pair.sides[0].read(2, into, 1, MemRef(77), 0);
    pair.post(0, flow, unknown);
    let op = Operation::FetchAdd {
        remote_addr: 4,
        remote_key: shared.0,
        add: 1,
    };
    pair.post(
        0,
        flow,
        Work {
            cookie: 3,
            op,
            local: None,
            len: 0,
        },
    );
    let good = pair.sides[0].read(4, into, 16, shared, 0);
    pair.post(0, flow, good);
    pair.run();
    let access = Status::Refused(NakCode::Access);
    assert_eq!(
        pair.done(0),
        [(1, access), (2, access), (3, access), (4, Status::Ok)]
    );
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn no_more_reads_are_outstanding_than_the_peer_serves() {
    let mut pair = Pair::with(
        LinkConfig {
            max_reads: 2,
            peer_max_reads: 2,
            ..config()
        },
        1,
    );
    let flow = pair.open(0);
    let source = pair.sides[1].share(pattern(1_000, 3), true);
    for cookie in 0..20 {
        let into = pair.sides[0].host.region(vec![0; 1_000]);
        let work = pair.sides[0].read(cookie, into, 1_000, source, 0);
        pair.post(0, flow, work);
    }
    pair.run();
    assert_eq!(pair.done(0).len(), 20);
    assert!(pair.done(0).iter().all(|&(_, status)| status == Status::Ok));
    pair.assert_clean();
}

#[test]
fn a_peer_that_asks_for_too_many_reads_is_refused() {
    let mut pair = Pair::with(
        LinkConfig {
            max_reads: 2,
            peer_max_reads: 200,
            ..config()
        },
        1,
    );
    let flow = pair.open(0);
    let source = pair.sides[1].share(pattern(50_000, 3), true);
    for cookie in 0..20 {
        let into = pair.sides[0].host.region(vec![0; 50_000]);
        let work = pair.sides[0].read(cookie, into, 50_000, source, 0);
        pair.post(0, flow, work);
    }
    pair.run();
    let refused = Status::Refused(NakCode::Resource);
    assert!(pair.done(0).iter().filter(|done| done.1 == refused).count() > 10);
    assert_eq!(pair.done(0)[0], (0, Status::Ok));
    assert!(pair.sides[1].link.usage().streams <= 2);
    pair.assert_clean();
}

#[test]
fn chunks_of_a_past_epoch_are_not_executed() {
    // The frame with the second message is late: it arrives after the peer has begun to replay both.
    let mut pair = Pair::with(config(), 2);
    for cables in &mut pair.cables {
        cables[1].latency = 300_000;
    }
    let flow = pair.open(0);
    for cookie in 1..=40 {
        pair.send(0, flow, cookie, &pattern(4_000, cookie as u8));
    }
    pair.run_for(50_000);
    for cookie in 1..=40 {
        pair.receive(1, cookie, 4_000);
    }
    pair.run();
    let order: std::vec::Vec<_> = pair.received(1).iter().map(|done| done.0).collect();
    assert!(order.iter().copied().eq(1..=40));
    assert!(pair.sides[1].link.counters().rx_chunk_stale > 0);
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn superseded_frames_are_not_resent() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let mut n = 0;
    pair.script = Box::new(move |sent| {
        n += u32::from(sent.has_request(|request| matches!(request, Request::Send { .. })));
        // The second frame of the message is lost while the first is refused.
        if n == 2 { Fault::Drop } else { Fault::Deliver }
    });
    pair.send(0, flow, 1, &pattern(60_000, 1));
    pair.run();
    let counters = *pair.sides[0].link.counters();
    assert_eq!(
        (counters.tx_lost, counters.tx_resent, counters.tx_stale > 0),
        (1, 0, true)
    );
    pair.receive(1, 5, 60_000);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    pair.assert_clean();
}

#[test]
fn a_frame_that_is_late_by_many_replays_is_not_taken_for_a_new_one() {
    let mut pair = Pair::with(config(), 2);
    let word = pair.sides[1].share(vec![0; 64], true);
    let flow = pair.open(0);
    // All that goes over the second rail is late by a second.
    pair.cables[0][1].latency = 1_000_000_000;
    // With FLOW_OPEN the message takes two chunks, without it one: CSNs name other things after a replay.
    pair.send(0, flow, 1, &pattern(4_020, 1));
    let add = Work {
        cookie: 2,
        op: Operation::FetchAdd {
            remote_addr: 0,
            remote_key: word.0,
            add: 1,
        },
        local: None,
        len: 0,
    };
    pair.sides[0].link.post(pair.now, flow, add).unwrap();
    pair.run_for(200_000);
    assert_eq!(pair.sides[1].link.counters().rnr_sent, 1);
    // Receives come and are gone before this flow is there. After 256 replays the epoch has come round.
    for _ in 0..255 {
        pair.sides[1].link.receive_posted(pair.now, 7);
        pair.run_for(60_000);
    }
    pair.receive(1, 10, 5_000);
    pair.run_for(500_000);
    // The late frames come, then the next message.
    pair.run_for(2_000_000_000);
    pair.receive(1, 11, 5_000);
    pair.send(0, flow, 3, &pattern(100, 2));
    pair.run();
    assert_eq!(pair.sides[1].host.bytes(word)[0], 1, "one FETCH_ADD was posted");
    assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok), (3, Status::Ok)]);
    assert_eq!(pair.received(1).len(), 2);
    pair.assert_clean();
}
