//! Objects that go while they are in use.

use std::sync::Arc;

use usb4_device::{Access, DeviceError, EndpointKind};
use usb4_ring_abi::{CqeStatus, Op, Sqe, sqe_flags};

use crate::home::Memory;
use crate::world::{User, World, pattern, rma, send};

const BASE: u64 = 0x10_0000;

#[test]
fn a_region_deregistered_under_traffic_lives_until_its_last_use() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let (from, to) = (Memory::of(&pattern(50_000)), Memory::zeroed(50_000));
    let from_keys = world.register(&a, &from, Access::LOCAL);
    let to_keys = world.register(&b, &to, Access::REMOTE_WRITE);
    let weak = Arc::downgrade(&from.0);
    drop(from);
    a.post(rma(Op::Write, 1, from_keys, BASE, 50_000, (BASE, to_keys.remote)));
    world.submit(&mut a);
    world.turn();
    let device = world.device(&a);
    assert_eq!(device.deregister(a.client, from_keys.local), Ok(false));
    assert_eq!(
        device.deregister(a.client, from_keys.local),
        Err(DeviceError::NoRegion)
    );
    assert_eq!(device.reclaim(a.client, from_keys.local, false), Ok(false));
    // The key is dead at once, what is under way is not.
    a.post(rma(Op::Write, 2, from_keys, BASE, 8, (BASE, to_keys.remote)));
    world.submit(&mut a);
    assert_eq!(a.outcomes(), [(2, CqeStatus::Invalid)]);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Ok)]);
    assert_eq!(to.bytes(), pattern(50_000));
    let device = world.device(&a);
    assert_eq!(device.home().idle.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert!(weak.upgrade().is_some(), "the owner has not taken it yet");
    assert_eq!(device.reclaim(a.client, from_keys.local, false), Ok(true));
    assert!(weak.upgrade().is_none());
    assert_eq!(
        device.reclaim(a.client, from_keys.local, false),
        Err(DeviceError::NoRegion)
    );
    drop(b.poll());
}

#[test]
fn a_remote_key_is_dead_as_soon_as_its_region_is_deregistered() {
    let mut world = World::new();
    let (mut a, b) = world.pair();
    let (from, to) = (Memory::of(&pattern(50_000)), Memory::zeroed(50_000));
    let from_keys = world.register(&a, &from, Access::LOCAL);
    let to_keys = world.register(&b, &to, Access::REMOTE_WRITE);
    a.post(rma(Op::Write, 1, from_keys, BASE, 50_000, (BASE, to_keys.remote)));
    world.submit(&mut a);
    world.turn();
    let _ = world.device(&b).deregister(b.client, to_keys.local).unwrap();
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Access)]);
    assert!(
        world.device(&b).reclaim(b.client, to_keys.local, false) != Ok(false),
        "a reference was leaked"
    );
}

#[test]
fn a_revoked_region_is_gone_at_once_and_nothing_touches_it_again() {
    let mut world = World::new();
    let (mut a, b) = world.pair();
    let (from, to) = (Memory::of(&pattern(50_000)), Memory::zeroed(50_000));
    let from_keys = world.register(&a, &from, Access::LOCAL);
    let to_keys = world.register(&b, &to, Access::REMOTE_WRITE);
    a.post(rma(Op::Write, 1, from_keys, BASE, 50_000, (BASE, to_keys.remote)));
    world.submit(&mut a);
    world.turn();
    let weak = Arc::downgrade(&from.0);
    drop(from);
    assert_eq!(world.device(&a).deregister(a.client, from_keys.local), Ok(false));
    assert_eq!(
        world.device(&a).reclaim(a.client, from_keys.local, true),
        Ok(true)
    );
    assert!(weak.upgrade().is_none());
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Flushed)]);
    // The place can be used again: all references came back.
    for _ in 0..200 {
        let keys = world.register(&a, &Memory::zeroed(1), Access::LOCAL);
        assert_eq!(world.device(&a).deregister(a.client, keys.local), Ok(true));
    }
}

/// Both directions of every operation, large enough to be under way for a while.
pub(crate) fn mixed_traffic(world: &mut World, a: &mut User, b: &mut User, memory: [&Memory; 2]) {
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let (ka, kb) = (
        world.register(a, memory[0], all),
        world.register(b, memory[1], all),
    );
    for (me, mine, theirs) in [(&mut *a, ka, kb), (&mut *b, kb, ka)] {
        me.receive(1, mine, BASE, 40_000);
        me.post(rma(Op::Write, 2, mine, BASE, 40_000, (BASE, theirs.remote)));
        me.post(rma(Op::Read, 3, mine, BASE, 40_000, (BASE, theirs.remote)));
        me.post(rma(Op::FetchAdd, 4, mine, BASE, 8, (BASE, theirs.remote)));
        me.post(send(5, mine, BASE, 40_000));
        me.post(send(6, mine, BASE, 40_000));
        world.submit(me);
    }
}

#[test]
fn a_client_killed_mid_message_leaves_nothing_and_its_peer_gets_an_answer() {
    for turns in 0..40 {
        let mut world = World::new();
        let (mut a, mut b) = world.pair();
        let (ma, mb) = (Memory::of(&pattern(40_000)), Memory::of(&pattern(40_000)));
        mixed_traffic(&mut world, &mut a, &mut b, [&ma, &mb]);
        for _ in 0..turns {
            world.turn();
        }
        let weak = Arc::downgrade(&mb.0);
        drop(mb);
        world.device(&b).remove_client(b.client, world.now).unwrap();
        assert!(
            weak.upgrade().is_none(),
            "the memory of a dead process is still held"
        );
        assert_eq!(
            Arc::strong_count(&b.sq_words),
            2,
            "its submission queue is still mapped"
        );
        assert_eq!(
            Arc::strong_count(&b.rq_words),
            2,
            "its receive queue is still mapped"
        );
        assert_eq!(
            Arc::strong_count(&b.cq_words),
            2,
            "its completion queue is still mapped"
        );
        world.settle();
        let mut seen: Vec<u64> = a
            .outcomes()
            .iter()
            .map(|(name, _)| *name)
            .filter(|n| *n != 1)
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, [2, 3, 4, 5, 6], "after {turns} turns");
        assert_eq!(
            world.device(&b).remove_client(b.client, world.now),
            Err(DeviceError::NoClient)
        );
        // The survivor and the device go on.
        let mut c = world.user(1, EndpointKind::Datagram);
        a.ah = world.device(&a).create_ah(a.client, a.ep, &c.addr).unwrap();
        let keys = world.register(&a, &ma, Access::LOCAL);
        let into = world.register(&c, &Memory::zeroed(64), Access::LOCAL);
        c.receive(1, into, BASE, 64);
        world.submit(&mut c);
        a.post(send(7, keys, BASE, 64));
        world.submit(&mut a);
        world.settle();
        assert!(a.outcomes().contains(&(7, CqeStatus::Ok)), "after {turns} turns");
    }
}

#[test]
fn a_peer_never_reads_zeros_from_a_process_that_died() {
    for turns in 0..30 {
        let mut world = World::new();
        let (mut a, b) = world.pair();
        let (into, from) = (Memory::zeroed(100_000), Memory::of(&vec![0xaa; 100_000]));
        let ka = world.register(&a, &into, Access::LOCAL);
        let kb = world.register(&b, &from, Access::REMOTE_READ);
        a.post(rma(Op::Read, 1, ka, BASE, 100_000, (BASE, kb.remote)));
        world.submit(&mut a);
        for _ in 0..turns {
            world.turn();
        }
        world.device(&b).remove_client(b.client, world.now).unwrap();
        world.settle();
        let [(1, status)] = a.outcomes()[..] else {
            panic!("no answer after {turns} turns")
        };
        if status == CqeStatus::Ok {
            assert!(
                into.bytes().iter().all(|byte| *byte == 0xaa),
                "zeros were read after {turns} turns"
            );
        }
    }
}

#[test]
fn memory_taken_back_while_it_is_sent_or_read_never_arrives_as_zeros() {
    const LEN: u32 = 100_000;
    for (turns, op) in (0..30).flat_map(|turns| [Op::Send, Op::Write, Op::Read].map(|op| (turns, op))) {
        let mut world = World::new();
        let (mut a, mut b) = world.pair();
        let (from, into) = (Memory::of(&vec![0xaa; 100_000]), Memory::zeroed(100_000));
        let (source, target) = if op == Op::Read { (&b, &a) } else { (&a, &b) };
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let keys = world.register(source, &from, remote);
        let dest = world.register(target, &into, remote);
        let lender = source.client;
        if op != Op::Read {
            b.receive(2, dest, BASE, LEN);
            world.submit(&mut b);
        }
        a.post(match op {
            Op::Send => send(1, keys, BASE, LEN),
            Op::Read => rma(op, 1, dest, BASE, LEN, (BASE, keys.remote)),
            _ => Sqe {
                flags: sqe_flags::IMM,
                ..rma(op, 1, keys, BASE, LEN, (BASE, dest.remote))
            },
        });
        world.submit(&mut a);
        for _ in 0..turns {
            world.turn();
        }
        let side = usize::from(op == Op::Read);
        let _ = world.sides[side].device.deregister(lender, keys.local);
        let _ = world.sides[side].device.reclaim(lender, keys.local, true);
        world.settle();
        let what = format!("{op:?} after {turns} turns");
        let whole = into.bytes().iter().all(|byte| *byte == 0xaa);
        let [(1, sent)] = a.outcomes()[..] else {
            panic!("{what}: no answer")
        };
        assert!(sent != CqeStatus::Ok || whole, "{what}: sent");
        let received = b.outcomes().contains(&(2, CqeStatus::Ok));
        assert!(!received || whole, "{what}: received");
        // The flow goes on.
        let keys = world.register(&a, &Memory::of(&[1; 64]), Access::LOCAL);
        let spare = world.register(&b, &Memory::zeroed(64), Access::LOCAL);
        b.receive(3, spare, BASE, 64);
        b.receive(4, spare, BASE, 64);
        world.submit(&mut b);
        a.post(send(5, keys, BASE, 64));
        world.submit(&mut a);
        world.settle();
        assert!(a.outcomes().contains(&(5, CqeStatus::Ok)), "{what}: stuck");
    }
}

#[test]
fn what_is_read_is_not_placed_once_the_endpoint_is_destroyed() {
    let mut world = World::new();
    let (mut a, b) = world.pair();
    let (into, from) = (Memory::zeroed(100_000), Memory::of(&vec![0xaa; 100_000]));
    let ka = world.register(&a, &into, Access::LOCAL);
    let kb = world.register(&b, &from, Access::REMOTE_READ);
    a.post(rma(Op::Read, 1, ka, BASE, 100_000, (BASE, kb.remote)));
    world.submit(&mut a);
    // Ends with frames handed over whose payload has not been placed yet.
    while into.bytes().iter().all(|byte| *byte == 0) {
        world.turn();
    }
    world
        .device(&a)
        .destroy_endpoint(a.client, a.ep, world.now)
        .unwrap();
    let before = into.bytes();
    world.settle();
    assert!(before == into.bytes(), "the buffer was written to afterwards");
    assert_eq!(a.outcomes(), [(1, CqeStatus::Flushed)]);
}

#[test]
fn a_destroyed_endpoint_flushes_its_work_and_refuses_its_peers() {
    let mut world = World::new();
    let (mut a, b) = world.pair();
    let memory = Memory::zeroed(64);
    let keys = world.register(&a, &memory, Access::LOCAL);
    a.post(send(1, keys, BASE, 64));
    world.submit(&mut a);
    world.settle();
    world
        .device(&a)
        .destroy_endpoint(a.client, a.ep, world.now)
        .unwrap();
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Flushed)]);
    assert_eq!(
        world.device(&a).destroy_endpoint(a.client, a.ep, world.now),
        Err(DeviceError::NoEndpoint)
    );

    let mut c = world.user(0, EndpointKind::Datagram);
    c.ah = world.device(&c).create_ah(c.client, c.ep, &b.addr).unwrap();
    let keys = world.register(&c, &memory, Access::LOCAL);
    c.post(send(2, keys, BASE, 64));
    world.submit(&mut c);
    world.settle();
    world
        .device(&b)
        .destroy_endpoint(b.client, b.ep, world.now)
        .unwrap();
    world.settle();
    assert_eq!(c.outcomes(), [(2, CqeStatus::Gone)]);
    c.post(send(3, keys, BASE, 64));
    world.submit(&mut c);
    world.settle();
    assert_eq!(c.outcomes(), [(3, CqeStatus::Gone)]);
}

#[test]
fn reads_refused_by_a_peer_that_went_give_their_place_on_the_link_back() {
    let mut world = World::new();
    let mut users: Vec<_> = (0..3).map(|_| world.pair()).collect();
    for (a, b) in &mut users {
        let memory = Memory::zeroed(100_000);
        let ka = world.register(a, &memory, Access::LOCAL);
        let kb = world.register(b, &memory, Access::REMOTE_READ);
        for n in 0..8 {
            a.post(rma(Op::Read, n, ka, BASE, 100_000, (BASE, kb.remote)));
        }
        world.submit(a);
        world.turn();
        world.turn();
        world.device(b).remove_client(b.client, world.now).unwrap();
        world.settle();
        assert_eq!(a.poll().len(), 8);
    }
    for side in &world.sides {
        let usage = side.device.usage(side.link).unwrap();
        assert_eq!((usage.reads, usage.streams, usage.ops), (0, 0, 0));
    }
}

#[test]
fn a_destroyed_address_handle_flushes_what_went_through_it() {
    let mut world = World::new();
    let (mut a, b) = world.pair();
    let keys = world.register(&a, &Memory::zeroed(64), Access::LOCAL);
    a.post(send(1, keys, BASE, 64));
    world.submit(&mut a);
    world.settle();
    world
        .device(&a)
        .destroy_ah(a.client, a.ep, a.ah, world.now)
        .unwrap();
    assert_eq!(
        world.device(&a).destroy_ah(a.client, a.ep, a.ah, world.now),
        Err(DeviceError::NoHandle)
    );
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Flushed)]);
    a.post(send(2, keys, BASE, 64));
    world.submit(&mut a);
    assert_eq!(a.outcomes(), [(2, CqeStatus::Invalid)]);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    a.post(send(3, keys, BASE, 64));
    world.submit(&mut a);
    world.settle();
    assert!(a.poll().is_empty(), "it waits for a receive, as the first did");
}
