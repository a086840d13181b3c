//! Flows that are closed because others need one.

use std::vec::Vec;

use super::life::message;
use super::world::*;
use crate::*;

fn few_flows(max_tx_flows: u32) -> Pair {
    let config = LinkConfig {
        max_tx_flows,
        max_rx_flows: max_tx_flows,
        ..config()
    };
    Pair::with(config, 1)
}

fn try_open(pair: &mut Pair, ep: u32) -> Result<FlowId, OpenError> {
    let dst = EpAddr {
        node: NodeId(2),
        ep,
        incarnation: 9,
    };
    pair.sides[0].link.open_flow(pair.now, 3, 4, &dst)
}

fn try_post(pair: &mut Pair, flow: FlowId) -> Result<(), PostError> {
    pair.sides[0].link.post(pair.now, flow, message())
}

#[test]
fn the_longest_idle_flow_is_closed_when_all_are_in_use() {
    let mut pair = few_flows(3);
    let flows = [0, 1, 2].map(|ep| pair.open_to(0, ep));
    for n in [2, 0, 1] {
        pair.receive_at(1, n, 9, 100);
        pair.send(0, flows[n as usize], u64::from(n), &[1; 10]);
        pair.run();
        pair.now += 1_000;
    }
    assert_eq!(try_open(&mut pair, 3), Err(OpenError::Full));
    pair.run();
    let fourth = try_open(&mut pair, 3).unwrap();
    assert_eq!(try_post(&mut pair, flows[2]), Err(PostError::Closed));
    for flow in [flows[0], flows[1], fourth] {
        assert_eq!(try_post(&mut pair, flow), Ok(()));
    }
}

#[test]
fn a_flow_with_work_is_not_closed_for_others() {
    let mut pair = few_flows(2);
    let flows = [0, 1].map(|ep| pair.open_to(0, ep));
    for flow in flows {
        pair.send(0, flow, 1, &[1; 10]);
    }
    pair.run();
    for _ in 0..3 {
        assert_eq!(try_open(&mut pair, 2), Err(OpenError::Full));
        pair.run();
    }
    assert!(flows.iter().all(|flow| pair.sides[0].link.is_open(*flow)));
    pair.receive_at(1, 1, 9, 100);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    assert_eq!(try_open(&mut pair, 2), Err(OpenError::Full));
    assert!(!pair.sides[0].link.is_open(flows[1]), "it has nothing to do");
    pair.run();
    assert!(try_open(&mut pair, 2).is_ok());
    assert!(pair.sides[0].link.is_open(flows[0]));
}

#[test]
fn a_flow_that_is_never_idle_makes_room_for_another_all_the_same() {
    let mut pair = few_flows(1);
    let mut busy = Some(pair.open(0));
    let mut other = None;
    let mut posted = 0_u64;
    for n in 0..500 {
        // It has always two messages under way, as long as it may.
        pair.receive(1, 2 * n, 100);
        pair.receive(1, 2 * n + 1, 100);
        // Once it has to ask for a flow, it waits for its turn.
        while posted < pair.done(0).len() as u64 + 2 && (busy.is_some() || other.is_some()) {
            let Some(flow) = busy.or_else(|| try_open(&mut pair, 7).ok()) else {
                break;
            };
            busy = Some(flow);
            let work = pair.sides[0].message(posted, &[1; 10], None);
            match pair.sides[0].link.post(pair.now, flow, work) {
                Ok(()) => posted += 1,
                error => {
                    pair.sides[0].host.release(work.local.unwrap().mem);
                    if error == Err(PostError::Full) {
                        break;
                    }
                    assert_eq!(error, Err(PostError::Closed));
                    busy = None;
                }
            }
        }
        if other.is_none() {
            other = try_open(&mut pair, 8).ok();
        }
        pair.run_for(2_000);
    }
    assert!(other.is_some(), "it waits for ever");
    assert!(posted >= 2);
    let order: Vec<u64> = pair.done(0).iter().map(|(cookie, _)| *cookie).collect();
    assert_eq!(order, (0..order.len() as u64).collect::<Vec<_>>());
    assert!(pair.done(0).iter().all(|(_, status)| *status == Status::Ok));
}

#[test]
fn one_flow_at_a_time_is_closed_for_others_in_a_small_table() {
    let mut pair = few_flows(4);
    let flows = [0, 1, 2, 3].map(|ep| pair.open_to(0, ep));
    for (ep, flow) in (0..).zip(flows) {
        pair.receive_at(1, ep, 9, 100);
        pair.send(0, flow, 1, &[1; 10]);
        pair.run();
    }
    for _ in 0..3 {
        assert_eq!(try_open(&mut pair, 4), Err(OpenError::Full));
    }
    let open = flows.iter().filter(|flow| pair.sides[0].link.is_open(**flow));
    assert_eq!(open.count(), 3);
}

#[test]
fn the_name_of_a_flow_that_was_closed_for_others_does_not_reach_its_successor() {
    let mut pair = few_flows(1);
    let mut old: Vec<FlowId> = Vec::new();
    for round in 0..300 {
        let flow = loop {
            match try_open(&mut pair, round % 5) {
                Ok(flow) => break flow,
                Err(error) => assert_eq!(error, OpenError::Full),
            }
            pair.run();
        };
        for stale in &old {
            assert_eq!(try_post(&mut pair, *stale), Err(PostError::Closed));
            let side = &mut pair.sides[0];
            side.link.close_flow(pair.now, *stale, &side.host);
        }
        // Some are closed before the peer has heard of them.
        if round % 3 != 0 {
            pair.receive_at(1, round % 5, 9, 100);
            pair.send(0, flow, u64::from(round), &[1; 10]);
            pair.run();
        }
        assert!(pair.sides[0].link.is_open(flow));
        old.push(flow);
    }
    let done = pair.done(0);
    assert_eq!(done.len(), 200);
    assert!(done.iter().all(|(_, status)| *status == Status::Ok), "{done:?}");
    assert!(pair.sides[1].host.0.borrow().flows <= 1, "the peer keeps up");
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn a_refused_flow_is_closed_for_others_too() {
    let mut pair = few_flows(1);
    pair.sides[1].host.0.borrow_mut().gone = true;
    let flow = pair.open_to(0, 5);
    pair.send(0, flow, 1, &[1; 10]);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Refused(NakCode::Gone))]);
    assert_eq!(try_post(&mut pair, flow), Err(PostError::Gone));
    assert_eq!(try_open(&mut pair, 6), Err(OpenError::Full));
    assert_eq!(try_post(&mut pair, flow), Err(PostError::Closed));
    pair.run();
    assert!(try_open(&mut pair, 6).is_ok());
}
