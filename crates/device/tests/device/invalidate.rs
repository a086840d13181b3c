//! Regions that are invalidated, by a message of a peer's and by their owner.

use usb4_device::{Access, Keys, QpEvent, QpKind, QpState, RegionConfig};
use usb4_ring_abi::{CqeStatus, OP_INVALIDATE, Op, Sqe, cqe_flags, sqe_flags};

use crate::home::Memory;
use crate::world::{User, World, rma, send};

const BASE: u64 = 0x10_0000;

fn keys(world: &World, qp: &User) -> Keys {
    world.register_pd(qp, &Memory::zeroed(1 << 16), Access::REMOTE_ALL)
}

/// A message that has the peer's region invalidated.
fn send_inv(name: u64, mine: Keys, len: u32, key: u64) -> Sqe {
    Sqe {
        flags: sqe_flags::INVALIDATE,
        args: [0, 0, 0, key],
        ..send(name, mine, BASE, len)
    }
}

fn local_inv(name: u64, key: u64) -> Sqe {
    Sqe {
        op: OP_INVALIDATE,
        user_data: name,
        args: [0, key, 0, 0],
        ..Sqe::default()
    }
}

fn write(name: u64, mine: Keys, key: u64) -> Sqe {
    rma(Op::Write, name, mine, BASE, 8, (BASE, key))
}

#[test]
fn a_message_takes_a_region_from_peers_and_leaves_it_to_its_owner() {
    // In one frame, and in several.
    for len in [8, 1 << 15] {
        let mut world = World::new();
        let (mut a, mut b) = world.qp_pair(QpKind::Rc);
        let (ka, kb) = (keys(&world, &a), keys(&world, &b));
        let room = keys(&world, &b);
        for name in 0..2 {
            b.receive(50 + name, room, BASE, len);
        }
        world.submit(&mut b);
        a.post(write(1, ka, kb.remote));
        a.post(send_inv(2, ka, len, kb.remote));
        world.submit(&mut a);
        world.settle();
        let ok = CqeStatus::Ok;
        assert_eq!(a.outcomes(), [(1, ok), (2, ok)]);
        let got = b.poll();
        let flags = cqe_flags::RECV | cqe_flags::INVALIDATED;
        assert_eq!(
            (got[0].status(), got[0].flags, got[0].value),
            (Some(ok), flags, kb.remote)
        );
        a.post(write(3, ka, kb.remote));
        world.submit(&mut a);
        world.settle();
        assert_eq!(a.outcomes(), [(3, CqeStatus::Access)]);
        assert_eq!(world.events(&b), [QpEvent::Access]);
        // It still sends from it, and gives it back.
        let (mut c, mut d) = (world.qp(0, QpKind::Rc), b);
        d.poll();
        world.to(&d, QpState::Reset);
        world.connect_qp(&d, &c);
        world.connect_qp(&c, &d);
        let kc = keys(&world, &c);
        c.receive(60, kc, BASE, 8);
        world.submit(&mut c);
        d.post(send(4, kb, BASE, 8));
        world.submit(&mut d);
        world.settle();
        assert_eq!(d.outcomes(), [(4, ok)]);
        let device = world.device(&d);
        assert_eq!(device.deregister(d.client, kb.local), Ok(true));
    }
}

#[test]
fn a_message_that_names_no_region_of_the_peers_is_refused() {
    type Key<'a> = &'a dyn Fn(&World, &User, Keys) -> u64;
    let unknown: Key<'_> = &|_, _, keys| keys.remote ^ 1 << 20;
    let gone: Key<'_> = &|world, b, keys| {
        world.device(b).deregister(b.client, keys.local).unwrap();
        keys.remote
    };
    let in_another_pd: Key<'_> = &|world, b, _| {
        let config = RegionConfig {
            addr: BASE,
            len: 64,
            access: Access::REMOTE_ALL,
            peer: None,
            mem: Memory::zeroed(64),
        };
        world
            .device(b)
            .register_in_pd(b.client, 2, config)
            .unwrap()
            .remote
    };
    for (key, len) in [(unknown, 8), (gone, 8), (in_another_pd, 8), (unknown, 1 << 15)] {
        let mut world = World::new();
        let (mut a, mut b) = world.qp_pair(QpKind::Rc);
        let (ka, kb) = (keys(&world, &a), keys(&world, &b));
        let room = keys(&world, &b);
        b.receive(50, room, BASE, len);
        b.receive(51, room, BASE, len);
        world.submit(&mut b);
        let key = key(&world, &b, kb);
        a.post(send_inv(1, ka, len, key));
        a.post(send(2, ka, BASE, 8));
        world.submit(&mut a);
        world.settle();
        assert_eq!(a.outcomes(), [(1, CqeStatus::Access), (2, CqeStatus::Flushed)]);
        assert_eq!(world.events(&b), [QpEvent::Access]);
        assert_eq!(world.qp_state(&b), QpState::Err);
        let got = b.outcomes();
        assert_eq!(got, [(50, CqeStatus::Flushed), (51, CqeStatus::Flushed)]);
    }
}

#[test]
fn a_message_that_waits_for_a_receive_invalidates_when_it_has_one() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    let (mut c, d) = (world.qp(0, QpKind::Rc), b.client);
    let other = User::of_qp(&world.sides[1].device.clone(), 1, d, QpKind::Rc, 1);
    world.connect_qp(&c, &other);
    world.connect_qp(&other, &c);
    let kc = keys(&world, &c);
    a.post(send_inv(1, ka, 8, kb.remote));
    world.submit(&mut a);
    world.settle();
    c.post(write(2, kc, kb.remote));
    world.submit(&mut c);
    world.settle();
    assert_eq!(c.outcomes(), [(2, CqeStatus::Ok)], "nobody has been told yet");
    b.receive(50, kb, BASE, 8);
    world.submit(&mut b);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Ok)]);
    assert_eq!(b.outcomes(), [(50, CqeStatus::Ok)]);
}

#[test]
fn others_than_reliable_connections_invalidate_nothing() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Uc);
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    b.receive(50, kb, BASE, 8);
    world.submit(&mut b);
    a.post(send_inv(1, ka, 8, kb.remote));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Invalid)]);
    // And who is told so by an endpoint of the ring API is not impressed: its immediate data is its own affair.
    let (mut c, mut d) = world.pair();
    let (kc, kd) = (
        world.register(&c, &Memory::zeroed(8), Access::LOCAL),
        world.register(&d, &Memory::zeroed(8), Access::REMOTE_ALL),
    );
    d.receive(60, kd, BASE, 8);
    world.submit(&mut d);
    let imm = 1 << 34 | kd.remote;
    c.post(Sqe {
        flags: sqe_flags::IMM,
        args: [0, 0, 0, imm],
        ..send(2, kc, BASE, 8)
    });
    world.submit(&mut c);
    world.settle();
    let got = d.poll();
    assert_eq!((got[0].status(), got[0].value), (Some(CqeStatus::Ok), imm));
}

#[test]
fn an_owner_invalidates_in_the_order_of_its_queue() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    // It waits until the message before it has completed, and the one behind it waits for it.
    a.post(send(1, ka, BASE, 8));
    a.post(local_inv(2, ka.remote));
    a.post(send(3, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert!(a.poll().is_empty());
    b.post(rma(Op::Read, 4, kb, BASE, 8, (BASE, ka.remote)));
    world.submit(&mut b);
    world.settle();
    assert_eq!(b.outcomes(), [(4, CqeStatus::Ok)], "it is not done yet");
    b.receive(50, kb, BASE, 8);
    b.receive(51, kb, BASE, 8);
    world.submit(&mut b);
    world.settle();
    let done = a.poll();
    let of: Vec<_> = done.iter().map(|cqe| (cqe.user_data, cqe.op)).collect();
    assert_eq!(of, [(1, 1), (2, OP_INVALIDATE), (3, 1)]);
    assert!(
        done.iter()
            .all(|cqe| cqe.status() == Some(CqeStatus::Ok) && cqe.ep == a.addr.ep)
    );
    b.poll();
    b.post(rma(Op::Read, 5, kb, BASE, 8, (BASE, ka.remote)));
    world.submit(&mut b);
    world.settle();
    assert_eq!(b.outcomes(), [(5, CqeStatus::Access)]);
}

#[test]
fn an_owner_that_names_no_region_of_its_own_is_in_error() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut world = World::new();
        let (mut a, b) = world.qp_pair(kind);
        let (ka, kb) = (keys(&world, &a), keys(&world, &b));
        let unsignaled = sqe_flags::UNSIGNALED;
        a.post(Sqe {
            flags: unsignaled,
            ..local_inv(1, ka.remote)
        });
        a.post(Sqe {
            flags: unsignaled,
            ..local_inv(2, kb.remote ^ 1 << 20)
        });
        a.post(local_inv(3, ka.remote));
        world.submit(&mut a);
        world.settle();
        let flushed = CqeStatus::Flushed;
        assert_eq!(a.outcomes(), [(2, CqeStatus::Invalid), (3, flushed)], "{kind:?}");
    }
}

#[test]
fn an_owner_invalidates_though_its_queue_pair_has_waited_for_something_else_meanwhile() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    // A message that waits for a receive of the peer's, and what waits for it.
    a.post(send(1, ka, BASE, 8));
    a.post(local_inv(2, ka.remote));
    world.submit(&mut a);
    world.settle();
    // Messages of the peer's, until one waits for room for completions.
    for _ in 0..8 {
        for name in 0..8 {
            a.receive(100 + name, ka, BASE, 8);
            b.post(send(name, kb, BASE, 8));
        }
        world.submit(&mut a);
        world.submit(&mut b);
        world.settle();
        b.poll();
    }
    b.receive(50, kb, BASE, 8);
    world.submit(&mut b);
    world.settle();
    let mut mine = Vec::new();
    for _ in 0..4 {
        mine.extend(a.outcomes().into_iter().filter(|(name, _)| *name < 100));
        world.settle();
    }
    assert_eq!(mine, [(1, CqeStatus::Ok), (2, CqeStatus::Ok)]);
}
