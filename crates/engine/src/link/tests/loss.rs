//! Frames that are lost, repeated or late.

use std::boxed::Box;
use std::cell::RefCell;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use usb4_wire::{Request, Response};

use super::soak::Rng;
use super::world::*;
use crate::*;

/// Sends one long message with a script of faults and checks that it arrives exactly once.
fn deliver(script: Script) -> Pair {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let mem = pair.receive(1, 5, 100_000);
    pair.script = script;
    pair.send(0, flow, 1, &pattern(90_000, 7));
    pair.run();
    assert_eq!(pair.received(1), [(5, Status::Ok, 90_000)]);
    assert!(pair.sides[1].host.bytes(mem)[..90_000] == pattern(90_000, 7)[..]);
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    pair.assert_clean();
    pair.assert_no_violations();
    pair
}

/// Drops the n-th frame with chunks, from 0, that a side sends.
fn drop_nth(side: usize, n: u64) -> Script {
    let mut seen = 0;
    Box::new(move |sent| {
        if sent.from != side || sent.is_pure_ack() {
            return Fault::Deliver;
        }
        seen += 1;
        if seen == n + 1 {
            Fault::Drop
        } else {
            Fault::Deliver
        }
    })
}

#[test]
fn the_first_middle_or_last_frame_is_lost() {
    for n in [0, 1, 11, 21, 22] {
        let pair = deliver(drop_nth(0, n));
        let counters = pair.sides[0].link.counters();
        assert_eq!((counters.tx_lost, counters.tx_resent), (1, 1), "frame {n}");
        let rail = pair.sides[0].link.rail_status(RailId(0));
        assert_eq!(rail.map(|rail| rail.lost), Some(1), "frame {n}");
    }
}

#[test]
fn one_lost_frame_is_recovered_within_two_milliseconds() {
    for n in [0, 11, 22] {
        let mut pair = Pair::new();
        let flow = pair.open(0);
        pair.receive(1, 5, 100_000);
        pair.script = drop_nth(0, n);
        pair.send(0, flow, 1, &pattern(90_000, 7));
        pair.run_for(2_000_000);
        assert_eq!(pair.done(0), [(1, Status::Ok)], "frame {n}");
    }
}

#[test]
fn messages_take_the_short_way_again_once_a_probe_is_answered() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.receive(1, 5, 100);
    pair.script = drop_nth(0, 0);
    pair.send(0, flow, 1, b"hello");
    while pair.sides[0].link.counters().tx_lost == 0 {
        pair.run_for(100);
    }
    // No timer has expired since: who sends all the time may not see another for long.
    assert!(!pair.sides[0].link.has_seldom());
}

#[test]
fn half_of_all_frames_are_lost() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        deliver(Box::new(move |_| {
            if rng.below(2) == 0 {
                Fault::Drop
            } else {
                Fault::Deliver
            }
        }));
    }
}

#[test]
fn every_frame_comes_twice() {
    let pair = deliver(Box::new(|_| Fault::Twice));
    assert_eq!(pair.sides[0].link.counters().tx_resent, 0);
}

#[test]
fn only_acknowledgements_are_lost() {
    let mut lost = 0;
    let pair = deliver(Box::new(move |sent| {
        if sent.from == 1 && lost < 10 {
            lost += 1;
            return Fault::Drop;
        }
        Fault::Deliver
    }));
    assert_eq!(pair.sides[1].host.0.borrow().received.len(), 1);
}

#[test]
fn a_read_survives_loss_in_both_directions() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let source = pair.sides[1].share(pattern(100_000, 9), false);
    let into = pair.sides[0].host.region(vec![0; 100_000]);
    let mut n = [0; 2];
    pair.script = Box::new(move |sent| {
        n[sent.from] += 1;
        if n[sent.from] % 3 == 1 {
            Fault::Drop
        } else {
            Fault::Deliver
        }
    });
    let work = pair.sides[0].read(1, into, 100_000, source, 0);
    pair.post(0, flow, work);
    pair.run();
    assert!(pair.sides[0].host.bytes(into) == pattern(100_000, 9));
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn an_atomic_is_executed_once_whatever_is_lost_or_repeated() {
    for period in 2..6 {
        let mut pair = Pair::with(config(), 2);
        let flow = pair.open(0);
        let counter = pair.sides[1].share(vec![0; 8], true);
        let mut n = 0;
        pair.script = Box::new(move |_| {
            n += 1;
            match n % period {
                0 => Fault::Drop,
                1 => Fault::Twice,
                _ => Fault::Deliver,
            }
        });
        let op = Operation::FetchAdd {
            remote_addr: 0,
            remote_key: counter.0,
            add: 1,
        };
        for cookie in 0..40 {
            pair.post(
                0,
                flow,
                Work {
                    cookie,
                    op,
                    local: None,
                    len: 0,
                },
            );
            pair.run_for(30_000);
        }
        pair.script = Box::new(|_| Fault::Deliver);
        pair.run();
        assert_eq!(pair.sides[1].host.bytes(counter), 40u64.to_le_bytes());
        let values: Vec<_> = pair.sides[0]
            .host
            .0
            .borrow()
            .done
            .iter()
            .map(|done| done.value)
            .collect();
        assert!(values.iter().copied().eq(0..40), "{values:?}");
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn a_read_sees_the_write_before_it_even_if_that_is_lost_first() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let target = pair.sides[1].share(vec![0; 100], true);
    let into = pair.sides[0].host.region(vec![0; 100]);
    let mut lost = false;
    pair.script = Box::new(move |sent| {
        if !lost && sent.has_request(|request| matches!(request, Request::Write { .. })) {
            lost = true;
            return Fault::Drop;
        }
        Fault::Deliver
    });
    let work = pair.sides[0].write(1, &[7; 100], target, 0, None);
    pair.post(0, flow, work);
    pair.settle();
    let work = pair.sides[0].read(2, into, 100, target, 0);
    pair.post(0, flow, work);
    pair.run();
    assert_eq!(pair.sides[0].host.bytes(into), [7; 100]);
    assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok)]);
    pair.assert_clean();
}

#[test]
fn two_rails_of_different_speed_share_a_message() {
    let mut pair = Pair::with(config(), 2);
    pair.detach(0, 1);
    pair.detach(1, 1);
    for cables in &mut pair.cables {
        cables[1].ns_per_frame = 4_000;
        cables[1].latency = 9_000;
    }
    pair.attach(1);
    let flow = pair.open(0);
    let mem = pair.receive(1, 5, 2_000_000);
    let shares = Rc::new(RefCell::new([0; 2]));
    let counts = Rc::clone(&shares);
    pair.script = Box::new(move |sent| {
        counts.borrow_mut()[sent.rail] += usize::from(sent.from == 0 && !sent.is_pure_ack());
        Fault::Deliver
    });
    pair.send(0, flow, 1, &pattern(2_000_000, 7));
    pair.run_for(1_000_000);
    assert_eq!(pair.received(1), [(5, Status::Ok, 2_000_000)]);
    pair.run();
    assert!(pair.sides[1].host.bytes(mem) == pattern(2_000_000, 7));
    // 495 frames and a few more; the fast rail takes five of six.
    let [fast, slow] = *shares.borrow();
    assert!(fast > 3 * slow && slow > 40, "{fast} and {slow} frames");
    assert_eq!(pair.sides[0].link.counters().tx_resent, 0);
    assert!(
        pair.sides[1].link.counters().rx_parked > 0,
        "the slow rail was not used"
    );
    pair.assert_clean();
}

#[test]
fn more_chunks_than_the_park_holds_are_lost_and_come_again() {
    let small = LinkConfig {
        max_parked: 8,
        ..config()
    };
    // The sender takes it to have more.
    let mut pair = Pair::with_each([config(), small], 1);
    let flow = pair.open(0);
    let mem = pair.receive(1, 5, 200_000);
    pair.script = drop_nth(0, 0);
    pair.send(0, flow, 1, &pattern(200_000, 7));
    pair.run();
    assert!(pair.sides[1].link.counters().rx_no_room > 0);
    assert!(pair.sides[1].host.bytes(mem) == pattern(200_000, 7));
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    pair.assert_clean();
}

#[test]
fn no_more_is_sent_after_a_lost_frame_than_the_peer_parks() {
    let small = LinkConfig {
        max_parked: 64,
        ..config()
    };
    let mut pair = Pair::with(small, 1);
    let flow = pair.open(0);
    let mem = pair.receive(1, 5, 900_000);
    pair.script = drop_nth(0, 0);
    pair.send(0, flow, 1, &pattern(900_000, 7));
    pair.run();
    let receiver = pair.sides[1].link.counters();
    assert!(receiver.rx_parked > 0 && receiver.rx_no_room == 0, "{receiver:?}");
    assert!(pair.sides[1].host.bytes(mem) == pattern(900_000, 7));
    assert_eq!(pair.sides[0].link.counters().tx_resent, 1);
    pair.assert_clean();
}

#[test]
fn execution_is_not_confirmed_before_the_copy_is_done() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.receive(1, 5, 100);
    pair.sides[1].hold_plans = true;
    pair.send(0, flow, 1, &[1; 100]);
    pair.run_for(10_000_000);
    assert!(pair.received(1).is_empty());
    assert!(pair.done(0).is_empty(), "confirmed too early");
    pair.sides[1].hold_plans = false;
    pair.run();
    assert_eq!(pair.received(1).len(), 1);
    assert_eq!(pair.done(0).len(), 1);
    pair.assert_clean();
}

#[test]
fn a_slow_copy_holds_back_no_more_than_the_plans_allow() {
    let mut pair = Pair::with(
        LinkConfig {
            max_plans: 16,
            ..config()
        },
        1,
    );
    let flow = pair.open(0);
    for n in 0..100 {
        pair.receive(1, n, 64);
        pair.send(0, flow, n, &[n as u8; 64]);
    }
    pair.sides[1].hold_plans = true;
    pair.run_for(10_000_000);
    assert!(pair.sides[1].link.usage().plans <= 16);
    pair.sides[1].hold_plans = false;
    pair.run();
    let order: Vec<_> = pair.received(1).iter().map(|done| done.0).collect();
    assert!(order.iter().copied().eq(0..100));
    pair.assert_clean();
}

#[test]
fn work_completes_in_order_although_a_read_is_slower() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let source = pair.sides[1].share(pattern(60_000, 9), true);
    let into = pair.sides[0].host.region(vec![0; 60_000]);
    let read = pair.sides[0].read(1, into, 60_000, source, 0);
    pair.post(0, flow, read);
    pair.receive(1, 5, 100);
    pair.send(0, flow, 2, &[1]);
    let write = pair.sides[0].write(3, &[1; 8], source, 0, None);
    pair.post(0, flow, write);
    let mut n = 0;
    pair.script = Box::new(move |sent| {
        n += u32::from(sent.has_response(|response| matches!(response, Response::ReadData { .. })));
        if n == 3 { Fault::Drop } else { Fault::Deliver }
    });
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok), (3, Status::Ok)]);
    pair.assert_clean();
}

#[test]
fn numbers_wrap_around_unnoticed() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.receive(1, 0, 10);
    pair.send(0, flow, 0, &[0]);
    pair.run();
    let last = u32::MAX - 20;
    {
        let tx = &mut pair.sides[0].link.tx_flows[0];
        (tx.next_csn, tx.acked_csn, tx.response_csn) = (last, last, last);
        let rx = &mut pair.sides[1].link.rx_flows[0];
        (rx.next_csn, rx.executed, rx.response_csn) = (last, last, last);
    }
    let mut n = 0;
    pair.script = Box::new(move |_| {
        n += 1;
        if n % 5 == 0 { Fault::Drop } else { Fault::Deliver }
    });
    for cookie in 1..=60 {
        pair.receive(1, cookie, 5_000);
        pair.send(0, flow, cookie, &pattern(cookie as usize * 80, 1));
        pair.run_for(5_000);
    }
    pair.run();
    let order: Vec<_> = pair.received(1).iter().map(|done| done.0).collect();
    assert!(order.iter().copied().eq(0..=60), "{order:?}");
    assert_eq!(pair.done(0).len(), 61);
    assert!(pair.sides[0].link.tx_flows[0].next_csn < 1_000);
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn execution_is_confirmed_after_sixteen_chunks_or_the_delay() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.receive(1, 0, 64);
    pair.send(0, flow, 0, &[0; 64]);
    let there_and_back = 2 * (pair.cables[0][0].latency + 2 * pair.cables[0][0].ns_per_frame);
    pair.run_for(there_and_back + config().max_ack_delay);
    assert_eq!(
        pair.done(0).len(),
        1,
        "a lone message is confirmed within the delay"
    );

    // With a delay of a millisecond, only the number of chunks brings the confirmation.
    let patient = LinkConfig {
        max_ack_delay: 1_000_000,
        ..config()
    };
    let mut pair = Pair::with(patient, 1);
    let flow = pair.open(0);
    for n in 0..32 {
        pair.receive(1, n, 64);
        pair.send(0, flow, n, &[0; 64]);
    }
    pair.run_for(there_and_back);
    let confirmed = pair.done(0).len();
    assert!(confirmed > 32 - 16, "{confirmed} of 32 are confirmed");
}

#[test]
fn a_read_within_the_limit_is_not_refused_because_a_gather_is_slow() {
    let one_read = LinkConfig {
        max_reads: 1,
        peer_max_reads: 1,
        ..config()
    };
    let mut pair = Pair::with(one_read, 1);
    let source = pair.sides[1].share(vec![7; 100], true);
    let sink = pair.sides[0].share(vec![0; 4_000], true);
    let (flow, back) = (pair.open(0), pair.open(1));
    for cookie in 1..=2 {
        let into = pair.sides[0].host.region(vec![0; 100]);
        let work = pair.sides[0].read(cookie, into, 100, source, 0);
        pair.post(0, flow, work);
    }
    // The second read comes while the answer to the first, sent already, was staged after what is still gathered.
    pair.sides[1].hold_gather = true;
    let slow = pair.sides[1].write(9, &[1; 3_000], sink, 0, None);
    pair.post(1, back, slow);
    for _ in 0..100 {
        pair.run_for(1_000);
        pair.sides[1].gather_all_but_one(pair.now);
    }
    pair.sides[1].hold_gather = false;
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok)]);
    pair.assert_clean();
}
