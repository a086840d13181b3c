//! Flows, rails and links that end.

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::soak::Rng;
use super::world::*;
use crate::*;

#[test]
fn a_closed_flow_flushes_its_work_and_its_id_comes_back() {
    let mut pair = Pair::with(
        LinkConfig {
            max_tx_flows: 1,
            max_rx_flows: 1,
            ..config()
        },
        1,
    );
    for round in 0..5 {
        let flow = pair.open(0);
        pair.receive(1, round, 100);
        pair.send(0, flow, 1, &[1; 10]);
        pair.run();
        pair.send(0, flow, 2, &pattern(10_000, 1));
        pair.run_for(1_000);
        let now = pair.now;
        let side = &mut pair.sides[0];
        side.link.close_flow(now, flow, &side.host);
        assert_eq!(
            pair.sides[0].link.post(
                now,
                flow,
                Work {
                    local: None,
                    len: 0,
                    ..message()
                }
            ),
            Err(PostError::Closed)
        );
        pair.run();
        assert_eq!(
            pair.done(0)[2 * round as usize..],
            [(1, Status::Ok), (2, Status::Flushed)]
        );
        assert_eq!(pair.sides[1].host.0.borrow().flows, 0);
    }
    assert_eq!(pair.sides[1].host.0.borrow().opened, 5);
    pair.assert_clean();
    pair.assert_no_violations();
}

pub(super) fn message() -> Work {
    let op = Operation::Send {
        imm: None,
        prefix: [0; 24],
        prefix_len: 0,
    };
    Work {
        cookie: 0,
        op,
        local: None,
        len: 0,
    }
}

#[test]
fn an_id_is_not_used_again_before_the_peer_has_closed() {
    let mut pair = Pair::with(
        LinkConfig {
            max_tx_flows: 1,
            ..config()
        },
        1,
    );
    let flow = pair.open(0);
    pair.receive(1, 5, 100);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run();
    let now = pair.now;
    let side = &mut pair.sides[0];
    side.link.close_flow(now, flow, &side.host);
    let dst = EpAddr {
        node: NodeId(2),
        ep: 7,
        incarnation: 9,
    };
    assert_eq!(side.link.open_flow(now, 1, 1, &dst), Err(OpenError::Full));
    pair.run();
    assert!(pair.sides[0].link.open_flow(now, 1, 1, &dst).is_ok());
}

#[test]
fn a_flow_that_never_sent_is_free_at_once() {
    let mut pair = Pair::with(
        LinkConfig {
            max_tx_flows: 1,
            ..config()
        },
        1,
    );
    for _ in 0..3 {
        let flow = pair.open(0);
        let side = &mut pair.sides[0];
        side.link.close_flow(pair.now, flow, &side.host);
    }
    pair.run();
    assert_eq!(pair.frames, [0, 0]);
}

#[test]
fn a_flow_that_waits_for_a_receive_can_be_closed() {
    for loss in [0, 3, 4, 5] {
        let mut pair = Pair::with(
            LinkConfig {
                max_tx_flows: 1,
                ..config()
            },
            1,
        );
        let flow = pair.open(0);
        let mut n = 0;
        pair.script = Box::new(move |_| {
            n += 1;
            if loss != 0 && n % loss == 0 {
                Fault::Drop
            } else {
                Fault::Deliver
            }
        });
        pair.send(0, flow, 1, &[1; 10]);
        if loss % 2 == 0 {
            pair.run();
        }
        let now = pair.now;
        let side = &mut pair.sides[0];
        side.link.close_flow(now, flow, &side.host);
        pair.run();
        assert_eq!(pair.done(0), [(1, Status::Flushed)]);
        assert_eq!(pair.sides[1].host.0.borrow().flows, 0);
        pair.open(0);
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn a_close_crosses_the_receive_it_did_not_wait_for() {
    let mut pair = Pair::with(
        LinkConfig {
            max_tx_flows: 1,
            ..config()
        },
        1,
    );
    let flow = pair.open(0);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run();
    pair.receive(1, 5, 100);
    let now = pair.now;
    let side = &mut pair.sides[0];
    side.link.close_flow(now, flow, &side.host);
    pair.run();
    assert_eq!(pair.sides[1].host.0.borrow().flows, 0);
    pair.open(0);
    pair.assert_no_violations();
    pair.drop_receives(1);
    pair.assert_clean();
}

#[test]
fn a_message_cut_off_by_a_close_gives_its_receive_back() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.receive(1, 5, 1_000_000);
    pair.send(0, flow, 1, &pattern(1_000_000, 1));
    pair.run_for(50_000);
    let now = pair.now;
    let side = &mut pair.sides[0];
    side.link.close_flow(now, flow, &side.host);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Flushed)]);
    assert_eq!(pair.received(1), [(5, Status::Flushed, 0)]);
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn reads_cut_off_by_a_close_return_their_slots() {
    let mut pair = Pair::with(
        LinkConfig {
            max_reads: 2,
            peer_max_reads: 2,
            ..config()
        },
        1,
    );
    for _ in 0..4 {
        let flow = pair.open(0);
        let source = pair.sides[1].share(pattern(500_000, 3), true);
        let into = pair.sides[0].host.region(vec![0; 500_000]);
        for cookie in 0..4 {
            let work = pair.sides[0].read(cookie, into, 500_000, source, 0);
            pair.post(0, flow, work);
        }
        pair.run_for(60_000);
        let now = pair.now;
        let side = &mut pair.sides[0];
        side.link.close_flow(now, flow, &side.host);
        pair.run();
        pair.assert_clean();
    }
    pair.assert_no_violations();
}

#[test]
fn a_missing_endpoint_fails_all_work() {
    let mut pair = Pair::new();
    pair.sides[1].host.0.borrow_mut().gone = true;
    let flow = pair.open(0);
    for cookie in 0..5 {
        pair.send(0, flow, cookie, &pattern(3_000, 1));
    }
    pair.run();
    let done = pair.done(0);
    assert_eq!(done.len(), 5);
    assert!(
        done.iter()
            .all(|&(_, status)| status == Status::Refused(NakCode::Gone))
    );
    assert!(!pair.sides[0].link.is_open(flow));
    let now = pair.now;
    let side = &mut pair.sides[0];
    side.link.close_flow(now, flow, &side.host);
    pair.run();
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn reads_of_a_missing_endpoint_leave_room_for_those_of_others() {
    let limits = LinkConfig {
        peer_max_reads: 2,
        ..config()
    };
    let mut pair = Pair::with(limits, 1);
    let shared = pair.sides[1].share(vec![7; 64], true);
    let into = pair.sides[0].host.region(vec![0; 64]);
    pair.sides[1].host.0.borrow_mut().gone = true;
    let refused = pair.open(0);
    for cookie in 0..2 {
        let read = pair.sides[0].read(cookie, into, 64, shared, 0);
        pair.post(0, refused, read);
    }
    pair.run();
    pair.sides[1].host.0.borrow_mut().gone = false;
    let good = pair.open(0);
    let read = pair.sides[0].read(2, into, 64, shared, 0);
    pair.post(0, good, read);
    pair.run();
    let gone = Status::Refused(NakCode::Gone);
    assert_eq!(pair.done(0), [(0, gone), (1, gone), (2, Status::Ok)]);
    assert_eq!(pair.sides[0].link.usage().reads, 0);
    pair.assert_no_violations();
}

#[test]
fn an_endpoint_that_goes_away_fails_what_waits_for_it() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.send(0, flow, 1, &[1; 10]);
    pair.send(0, flow, 2, &[1; 10]);
    pair.run();
    pair.sides[1].host.0.borrow_mut().gone = true;
    pair.sides[1].link.receive_posted(pair.now, 7);
    pair.run();
    let gone = Status::Refused(NakCode::Gone);
    assert_eq!(pair.done(0), [(1, gone), (2, gone)]);
    let now = pair.now;
    let side = &mut pair.sides[0];
    side.link.close_flow(now, flow, &side.host);
    pair.run();
    assert_eq!(pair.sides[1].host.0.borrow().flows, 0);
    pair.assert_clean();
}

#[test]
fn an_endpoint_that_is_cut_off_refuses_its_flows_in_every_state() {
    for case in 0..120 {
        let (wait, loss) = ((case % 30) * 3_000, case / 30);
        let mut pair = Pair::with(
            LinkConfig {
                max_tx_flows: 1,
                max_plans: 16,
                ..config()
            },
            1,
        );
        let mut rng = Rng::new(case);
        pair.script = Box::new(move |_| {
            if rng.below(10) < loss {
                Fault::Drop
            } else {
                Fault::Deliver
            }
        });
        let flow = pair.open(0);
        let source = pair.sides[1].share(pattern(100_000, 3), true);
        let into = pair.sides[0].host.region(vec![0; 100_000]);
        pair.receive(1, 50, 100_000);
        pair.send(0, flow, 1, &[1; 10]);
        let work = pair.sides[0].read(2, into, 100_000, source, 0);
        pair.post(0, flow, work);
        let work = pair.sides[0].write(3, &[1; 8], MemRef(999), 0, None);
        pair.post(0, flow, work);
        if case % 2 == 0 {
            pair.receive(1, 51, 100_000);
        }
        pair.send(0, flow, 4, &pattern(100_000, 1));
        pair.send(0, flow, 5, &[1; 10]);
        pair.sides[1].hold_plans = case % 4 == 1;
        pair.run_for(wait);
        pair.sides[1].host.0.borrow_mut().gone = true;
        let now = pair.now;
        let side = &mut pair.sides[1];
        side.link.close_target(now, 7, &side.host);
        side.hold_plans = false;
        pair.run();
        let order: Vec<_> = pair.done(0).iter().map(|done| done.0).collect();
        assert_eq!(order, [1, 2, 3, 4, 5], "case {case}");
        let now = pair.now;
        let side = &mut pair.sides[0];
        side.link.close_flow(now, flow, &side.host);
        pair.run();
        assert_eq!(pair.sides[1].host.0.borrow().flows, 0, "case {case}");
        pair.drop_receives(1);
        pair.assert_clean();
        pair.assert_no_violations();
        pair.open(0);
    }
}

#[test]
fn an_endpoint_that_goes_away_confirms_what_it_has_executed() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let into = pair.receive(1, 50, 100);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run_for(10_000);
    assert_eq!(pair.received(1), [(50, Status::Ok, 10)]);
    assert_eq!(pair.done(0), [], "the confirmation is to be late");
    pair.sides[1].host.0.borrow_mut().gone = true;
    let now = pair.now;
    let side = &mut pair.sides[1];
    side.link.close_target(now, 7, &side.host);
    pair.send(0, flow, 2, &[2; 10]);
    pair.run();
    assert_eq!(pair.sides[1].host.bytes(into)[..10], [1; 10]);
    assert_eq!(
        pair.done(0),
        [(1, Status::Ok), (2, Status::Refused(NakCode::Gone))]
    );
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn an_endpoint_that_goes_away_does_not_confirm_what_is_being_copied() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.receive(1, 50, 100);
    pair.receive(1, 51, 100);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run_for(10_000);
    pair.sides[1].hold_plans = true;
    pair.send(0, flow, 2, &[2; 10]);
    pair.run_for(10_000);
    let now = pair.now;
    let side = &mut pair.sides[1];
    side.link.close_target(now, 7, &side.host);
    pair.run();
    assert_eq!(
        pair.done(0),
        [(1, Status::Ok), (2, Status::Refused(NakCode::Gone))]
    );
    pair.sides[1].hold_plans = false;
    pair.run();
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn work_known_to_be_executed_is_not_flushed() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let source = pair.sides[1].share(pattern(100, 3), true);
    let into = pair.sides[0].host.region(vec![0; 100]);
    pair.receive(1, 50, 100);
    pair.sides[0].hold_plans = true;
    let work = pair.sides[0].read(1, into, 100, source, 0);
    pair.post(0, flow, work);
    pair.send(0, flow, 2, &[1; 10]);
    pair.send(0, flow, 3, &[1; 10]);
    pair.run_for(200_000);
    assert_eq!(pair.done(0), [], "the read is to be in the way");
    let now = pair.now;
    let side = &mut pair.sides[0];
    side.link.close_flow(now, flow, &side.host);
    side.hold_plans = false;
    pair.run();
    assert_eq!(
        pair.done(0),
        [(1, Status::Flushed), (2, Status::Ok), (3, Status::Flushed)]
    );
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn an_idle_flow_learns_that_its_endpoint_is_gone() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.receive(1, 50, 100);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run();
    let now = pair.now;
    let side = &mut pair.sides[1];
    side.link.close_target(now, 7, &side.host);
    pair.run();
    assert!(!pair.sides[0].link.is_open(flow));
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn a_rail_that_goes_away_in_the_middle_loses_nothing() {
    for wait in [3_000, 20_000, 60_000, 150_000] {
        let mut pair = Pair::with(config(), 2);
        let flow = pair.open(0);
        let mem = pair.receive(1, 5, 1_000_000);
        pair.send(0, flow, 1, &pattern(1_000_000, 1));
        let source = pair.sides[1].share(pattern(500_000, 3), true);
        let into = pair.sides[0].host.region(vec![0; 500_000]);
        let work = pair.sides[0].read(2, into, 500_000, source, 0);
        pair.post(0, flow, work);
        pair.run_for(wait);
        pair.detach(0, 0);
        pair.run_for(30_000);
        pair.detach(1, 0);
        pair.run();
        assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok)]);
        assert!(pair.sides[1].host.bytes(mem) == pattern(1_000_000, 1));
        assert!(pair.sides[0].host.bytes(into) == pattern(500_000, 3));
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn a_failing_link_completes_everything_exactly_once() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new();
        let flows: Vec<_> = (0..3).map(|ep| pair.open_to(0, ep)).collect();
        let shared = pair.sides[1].share(vec![0; 50_000], true);
        let mut receives = 0;
        for cookie in 0..60 {
            let flow = flows[rng.below(3) as usize];
            let len = rng.below(40_000) as usize;
            let home = &pair.sides[0];
            let work = match rng.below(4) {
                0 => {
                    let into = home.host.region(vec![0; len]);
                    home.read(cookie, into, len as u32, shared, 0)
                }
                1 => home.write(cookie, &pattern(len, 1), shared, 0, Some(1)),
                _ => home.message(cookie, &pattern(len, 1), None),
            };
            pair.post(0, flow, work);
            if rng.below(2) == 0 {
                pair.receive_at(1, rng.below(3) as u32, 1_000 + cookie, 50_000);
                receives += 1;
            }
        }
        for side in &mut pair.sides {
            side.hold_plans = rng.below(2) == 0;
            side.hold_gather = rng.below(2) == 0;
            side.under_lock = rng.below(2) == 0;
            side.hold_late = rng.below(2) == 0;
        }
        pair.run_for(rng.below(120_000));
        for side in [0, 1] {
            pair.detach(side, 0);
        }
        for side in &mut pair.sides {
            side.hold_plans = false;
            side.hold_gather = false;
            side.hold_late = false;
        }
        pair.run();
        let mut done: Vec<_> = pair.done(0).iter().map(|done| done.0).collect();
        done.sort_unstable();
        assert!(done.iter().copied().eq(0..60), "seed {seed}: {done:?}");
        let home = pair.sides[1].host.0.borrow();
        let waiting: usize = home.receives.values().map(|queue| queue.len()).sum();
        assert_eq!(
            home.received.len() + waiting,
            receives,
            "a receive was lost or completed twice"
        );
        assert_eq!(home.flows, 0);
        drop(home);
        let unused: Vec<_> = {
            let home = pair.sides[1].host.0.borrow();
            home.receives
                .values()
                .flatten()
                .map(|receive| receive.at.mem)
                .collect()
        };
        for mem in unused {
            pair.sides[1].host.release(mem);
        }
        pair.assert_clean();
        let dst = EpAddr::default();
        assert_eq!(pair.sides[0].link.open_flow(0, 1, 1, &dst), Err(OpenError::Down));
        assert_eq!(
            pair.sides[0].link.post(0, flows[0], message()),
            Err(PostError::Down)
        );
    }
}

#[test]
fn memory_is_not_released_while_it_is_gathered() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.sides[0].hold_gather = true;
    pair.send(0, flow, 1, &[1; 10]);
    pair.settle();
    let now = pair.now;
    let side = &mut pair.sides[0];
    side.link.close_flow(now, flow, &side.host);
    assert!(pair.done(0).is_empty(), "completed under the gather");
    pair.sides[0].hold_gather = false;
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Flushed)]);
    pair.assert_clean();
}

#[test]
fn storage_can_be_used_again() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run();
    for side in [0, 1] {
        pair.detach(side, 0);
        let config = *pair.sides[side].link.config();
        let spare = Link::new(config, LinkStorage::boxed(&config));
        let old = core::mem::replace(&mut pair.sides[side].link, spare);
        pair.sides[side].link = Link::new(config, old.into_storage());
        pair.sides[side].host.0.borrow_mut().done.clear();
    }
    pair.attach(0);
    pair.receive(1, 5, 100);
    let flow = pair.open(0);
    pair.send(0, flow, 2, &[1; 10]);
    pair.run();
    assert_eq!(pair.done(0), [(2, Status::Ok)]);
    pair.assert_clean();
}

#[test]
fn a_join_nonce_reaches_the_peer_even_if_it_is_lost_once() {
    let mut pair = Pair::new();
    let mut lost = false;
    pair.script = Box::new(move |_| {
        if lost {
            return Fault::Deliver;
        }
        lost = true;
        Fault::Drop
    });
    pair.sides[0].link.offer_join(77);
    pair.run();
    assert_eq!(pair.sides[1].link.take_join(), Some(77));
    assert_eq!(pair.sides[1].link.take_join(), None);
    pair.assert_clean();
}

#[test]
fn a_silent_peer_is_not_a_dead_one() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.receive(1, 5, 100);
    pair.script = Box::new(|_| Fault::Drop);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run_for(60_000_000_000);
    let frames = pair.frames[0];
    assert!(frames < 100, "{frames} frames into silence");
    pair.script = Box::new(|_| Fault::Deliver);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
}

#[test]
fn an_id_outlives_lives_the_peer_never_hears_of() {
    let one_flow = LinkConfig {
        max_tx_flows: 1,
        max_rx_flows: 1,
        ..config()
    };
    let mut pair = Pair::with(one_flow, 1);
    let close = |pair: &mut Pair, flow| {
        let side = &mut pair.sides[0];
        side.link.close_flow(pair.now, flow, &side.host);
    };
    pair.receive(1, 1, 100);
    pair.receive(1, 2, 100);
    let flow = pair.open(0);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run();
    close(&mut pair, flow);
    pair.run();
    // The peer takes epochs up to 127 beyond the last it saw.
    for _ in 0..127 {
        let flow = pair.open(0);
        close(&mut pair, flow);
    }
    let flow = pair.open(0);
    pair.send(0, flow, 2, &[2; 10]);
    pair.run_for(10_000_000_000);
    assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok)]);
}
