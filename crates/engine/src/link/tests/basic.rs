//! What works when nothing goes wrong.

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::world::*;
use crate::*;

#[test]
fn a_message_arrives_byte_for_byte() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let mem = pair.receive(1, 50, 100);
    pair.send(0, flow, 1, b"hello");
    pair.run();
    assert_eq!(pair.received(1), [(50, Status::Ok, 5)]);
    assert_eq!(&pair.sides[1].host.bytes(mem)[..5], b"hello");
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn a_lone_message_costs_three_frames() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    pair.receive(1, 0, 100);
    pair.send(0, flow, 0, b"x");
    pair.run();
    let before = pair.frames;
    pair.receive(1, 50, 100);
    pair.send(0, flow, 1, b"hello");
    pair.run();
    // The message and the acknowledgement of its confirmation; the confirmation, which acknowledges.
    assert_eq!([pair.frames[0] - before[0], pair.frames[1] - before[1]], [2, 1]);
}

#[test]
fn what_a_message_confirms_is_not_lost_when_it_is_put_off() {
    for end in 0..5 {
        let mut pair = Pair::new();
        let flows = [pair.open(0), pair.open(1)];
        for (side, flow) in flows.into_iter().enumerate() {
            pair.receive(1 - side, 0, 100);
            pair.send(side, flow, 0, b"x");
        }
        pair.run();
        pair.sides[0].under_lock = true;
        pair.sides[0].hold_late = true;
        for (side, flow) in flows.into_iter().enumerate() {
            pair.receive(1 - side, 50, 100);
            pair.send(side, flow, 1, b"hello");
            pair.run_for(5_000);
        }
        assert_eq!(pair.received(0), [(0, Status::Ok, 1), (50, Status::Ok, 5)]);
        assert_eq!(pair.done(0), [(0, Status::Ok)]);
        let Side { link, host, .. } = &mut pair.sides[0];
        match end {
            0 => link.close_flow(0, flows[0], host),
            1 => link.fail(0, host),
            2 => link.detach_rail(0, RailId(0), host),
            3 => {
                pair.receive(0, 51, 100);
                pair.send(1, flows[1], 2, b"again");
                pair.run_for(5_000);
            }
            _ => pair.sides[0].hold_late = false,
        }
        pair.settle();
        assert_eq!(pair.done(0), [(0, Status::Ok), (1, Status::Ok)], "end {end}");
        assert!(pair.sides[0].link.counters().violations == 0);
    }
}

#[test]
fn a_report_that_had_no_slot_is_sent_once_what_was_put_off_has_freed_one() {
    let small = LinkConfig {
        tx_slots: 16,
        ..config()
    };
    // The second one is soon short of operations, and asks for answers without delay.
    let short = LinkConfig {
        max_ops: 8,
        ..config()
    };
    let mut pair = Pair::with_each([small, short], 1);
    let flows = [pair.open(0), pair.open(1)];
    for (side, flow) in flows.into_iter().enumerate() {
        pair.receive(1 - side, 0, 100);
        pair.send(side, flow, 0, b"x");
    }
    let waits = pair.open_to(1, 8);
    for cookie in 10..16 {
        pair.send(1, waits, cookie, b"nobody receives this");
    }
    pair.run();
    pair.sides[0].under_lock = true;
    pair.script = Box::new(|sent| {
        if sent.from == 1 && sent.is_pure_ack() {
            Fault::Drop
        } else {
            Fault::Deliver
        }
    });
    // Requests, and then answers, take all the slots they may.
    pair.receive(1, 1, 48_000);
    pair.send(0, flows[0], 1, &pattern(48_000, 1));
    let key = pair.sides[0].share(pattern(6_000, 2), false);
    let into = pair.sides[1].host.region(vec![0; 6_000]);
    let read = pair.sides[1].read(1, into, 6_000, key, 0);
    pair.post(1, flows[1], read);
    pair.sides[1].hold_plans = true;
    pair.run_for(30_000);
    assert_eq!(pair.sides[0].link.usage().slots, 14);
    // This acknowledges all of them.
    pair.sides[1].hold_plans = false;
    pair.receive(0, 2, 100);
    pair.sides[0].hold_late = true;
    pair.send(1, flows[1], 2, b"hello");
    pair.run_for(5_000);
    assert_eq!(pair.received(0).last(), Some(&(2, Status::Ok, 5)));
    let Side { link, host, .. } = &mut pair.sides[0];
    let more = link.catch_up(host);
    assert_eq!(link.deadline(), None);
    assert!(more, "and nothing else makes the home ask again");
    pair.sides[0].hold_late = false;
    pair.run();
    assert_eq!(pair.done(1), [(0, Status::Ok), (1, Status::Ok), (2, Status::Ok)]);
}

#[test]
fn messages_of_all_sizes_arrive_in_order() {
    let sizes = [
        0, 1, 64, 4000, 4031, 4032, 4033, 4096, 5000, 65536, 100_000, 1_000_000,
    ];
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let mut mems = Vec::new();
    for (i, &size) in sizes.iter().enumerate() {
        mems.push(pair.receive(1, i as u64, 1_000_000));
        pair.send(0, flow, i as u64, &pattern(size, i as u8));
    }
    pair.run();
    let expected: Vec<_> = (0..)
        .zip(sizes)
        .map(|(i, size)| (i, Status::Ok, size as u32))
        .collect();
    assert_eq!(pair.received(1), expected);
    for (i, &size) in sizes.iter().enumerate() {
        assert!(
            pair.sides[1].host.bytes(mems[i])[..size] == pattern(size, i as u8)[..],
            "message {i}"
        );
    }
    assert_eq!(pair.done(0).len(), sizes.len());
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn prefix_and_immediate_travel_with_the_message() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let mem = pair.receive(1, 5, 10_000);
    let mut prefix = [0; 24];
    prefix[..5].copy_from_slice(b"front");
    let mut work = pair.sides[0].message(1, &pattern(9_000, 3), None);
    work.op = Operation::Send {
        imm: Some(77),
        prefix,
        prefix_len: 5,
    };
    pair.post(0, flow, work);
    pair.run();
    let bytes = pair.sides[1].host.bytes(mem);
    assert_eq!(&bytes[..5], b"front");
    assert!(bytes[5..9_005] == pattern(9_000, 3)[..]);
    let received = pair.sides[1].host.0.borrow().received.clone();
    assert_eq!(
        (received[0].imm, received[0].len, received[0].write),
        (Some(77), 9_005, false)
    );
    pair.assert_clean();
}

#[test]
fn a_write_lands_at_its_address() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let target = pair.sides[1].share(vec![0; 50_000], true);
    let work = pair.sides[0].write(1, &pattern(40_000, 1), target, 1_234, None);
    pair.post(0, flow, work);
    pair.run();
    let bytes = pair.sides[1].host.bytes(target);
    assert!(bytes[1_234..41_234] == pattern(40_000, 1)[..]);
    assert!(bytes[..1_234].iter().chain(&bytes[41_234..]).all(|&b| b == 0));
    assert_eq!(pair.done(0), [(1, Status::Ok)]);
    assert!(pair.received(1).is_empty());
    pair.assert_clean();
}

#[test]
fn a_write_with_immediate_completes_a_receive() {
    for len in [0, 8, 4_024, 4_020, 8_048, 8_040, 20_000] {
        let mut pair = Pair::new();
        let flow = pair.open(0);
        pair.receive(1, 5, 0);
        let target = pair.sides[1].share(vec![0; 20_000], true);
        let work = pair.sides[0].write(1, &pattern(len, 1), target, 0, Some(99));
        pair.post(0, flow, work);
        pair.run();
        let received = pair.sides[1].host.0.borrow().received.clone();
        assert_eq!(received.len(), 1);
        assert_eq!(
            (received[0].imm, received[0].len, received[0].write),
            (Some(99), len as u32, true)
        );
        assert!(pair.sides[1].host.bytes(target)[..len] == pattern(len, 1)[..]);
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn a_read_fetches_remote_bytes() {
    for len in [0, 1, 4_032, 100_000] {
        let mut pair = Pair::new();
        let flow = pair.open(0);
        let source = pair.sides[1].share(pattern(100_010, 9), false);
        let into = pair.sides[0].host.region(vec![0; len]);
        let work = pair.sides[0].read(1, into, len as u32, source, 10);
        pair.post(0, flow, work);
        pair.run();
        assert!(pair.sides[0].host.bytes(into) == pattern(100_010, 9)[10..10 + len]);
        assert_eq!(pair.done(0), [(1, Status::Ok)]);
        pair.assert_clean();
        pair.assert_no_violations();
    }
}

#[test]
fn atomics_return_the_old_value() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    let counter = pair.sides[1].share(vec![0; 16], true);
    let result = pair.sides[0].host.region(vec![0; 8]);
    let local = Some(MemAt {
        mem: pair.sides[0].host.hold(result),
        offset: 0,
    });
    let add = Operation::FetchAdd {
        remote_addr: 8,
        remote_key: counter.0,
        add: 5,
    };
    pair.post(
        0,
        flow,
        Work {
            cookie: 1,
            op: add,
            local: None,
            len: 0,
        },
    );
    let swap = Operation::CompareSwap {
        remote_addr: 8,
        remote_key: counter.0,
        compare: 5,
        swap: 70,
    };
    pair.post(
        0,
        flow,
        Work {
            cookie: 2,
            op: swap,
            local,
            len: 8,
        },
    );
    pair.run();
    let values: Vec<_> = pair.sides[0]
        .host
        .0
        .borrow()
        .done
        .iter()
        .map(|done| (done.cookie, done.value))
        .collect();
    assert_eq!(values, [(1, 0), (2, 5)]);
    assert_eq!(pair.sides[0].host.bytes(result), 5u64.to_le_bytes());
    assert_eq!(pair.sides[1].host.bytes(counter)[8..], 70u64.to_le_bytes());
    pair.assert_clean();
}

#[test]
fn both_directions_and_many_flows_share_a_link() {
    let mut pair = Pair::new();
    let flows = [0, 1].map(|side| (0..4).map(|i| pair.open_to(side, i)).collect::<Vec<_>>());
    for n in 0..20u64 {
        for (side, flows) in flows.iter().enumerate() {
            for (i, &flow) in flows.iter().enumerate() {
                pair.receive_at(1 - side, i as u32, n, 5_000);
                pair.send(side, flow, n, &pattern(n as usize * 200, i as u8));
            }
        }
    }
    pair.run();
    for side in 0..2 {
        assert_eq!(pair.done(side).len(), 80);
        assert_eq!(pair.received(side).len(), 80);
    }
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn small_messages_share_frames_under_load() {
    let mut pair = Pair::new();
    let flow = pair.open(0);
    for n in 0..200 {
        pair.receive(1, n, 64);
        pair.send(0, flow, n, &[n as u8; 64]);
    }
    pair.run();
    assert_eq!(pair.received(1).len(), 200);
    assert!(pair.frames[0] < 60, "{} frames", pair.frames[0]);
    pair.assert_clean();
}

#[test]
fn payload_crc_is_carried_when_negotiated() {
    let mut pair = Pair::with(
        LinkConfig {
            payload_crc: true,
            ..config()
        },
        1,
    );
    let flow = pair.open(0);
    let mem = pair.receive(1, 1, 10_000);
    pair.script = std::boxed::Box::new(|sent| {
        let len = sent.frame.len() as u16;
        if let Some(span) = payload_span(sent.frame, len) {
            let (start, end) = (usize::from(span.start), usize::from(span.end));
            let crc = TestHost::default().crc32c(0, &sent.frame[start..end]);
            assert_eq!(sent.frame[end..], crc.to_le_bytes());
        } else {
            assert!(sent.is_pure_ack());
        }
        Fault::Deliver
    });
    pair.send(0, flow, 1, &pattern(9_000, 5));
    pair.run();
    assert!(pair.sides[1].host.bytes(mem)[..9_000] == pattern(9_000, 5)[..]);
    pair.assert_clean();
    pair.assert_no_violations();
}

#[test]
fn a_link_can_have_itself_as_its_peer() {
    let mut pair = Pair::loopback();
    let flow = pair.open(0);
    let mut n = 0;
    pair.script = std::boxed::Box::new(move |_| {
        n += 1;
        if n % 7 == 0 { Fault::Drop } else { Fault::Deliver }
    });
    let shared = pair.sides[0].share(vec![0; 20_000], true);
    let into = pair.sides[0].host.region(vec![0; 20_000]);
    let mem = pair.receive(0, 5, 20_000);
    pair.send(0, flow, 1, &pattern(20_000, 1));
    let work = pair.sides[0].write(2, &pattern(20_000, 2), shared, 0, None);
    pair.post(0, flow, work);
    let work = pair.sides[0].read(3, into, 20_000, shared, 0);
    pair.post(0, flow, work);
    pair.run();
    assert_eq!(pair.done(0), [(1, Status::Ok), (2, Status::Ok), (3, Status::Ok)]);
    assert!(pair.sides[0].host.bytes(mem) == pattern(20_000, 1));
    assert!(pair.sides[0].host.bytes(into) == pattern(20_000, 2));
    pair.assert_clean();
    pair.assert_no_violations();
}
