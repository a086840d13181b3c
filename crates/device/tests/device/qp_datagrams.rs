//! Datagram queue pairs.

use usb4_device::{Access, DeviceError, Keys, Object, QpAttr, QpKind, QpState, Quota};
use usb4_engine::EpAddr;
use usb4_ring_abi::{CqeStatus, Op, Sqe, cqe_flags, sqe_flags};

use crate::home::Memory;
use crate::world::{QKEY, User, World, pattern, rma, send};

const BASE: u64 = 0x10_0000;

/// Two datagram queue pairs that send and receive, the first with a handle of the second.
fn pair(world: &World) -> (User, User) {
    let (mut a, b) = (world.qp(0, QpKind::Ud), world.qp(1, QpKind::Ud));
    ready(world, &a);
    ready(world, &b);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    (a, b)
}

fn ready(world: &World, qp: &User) {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let attr = QpAttr {
            state: Some(state),
            qkey: Some(QKEY),
            ..QpAttr::default()
        };
        world.modify(qp, &attr).unwrap();
    }
}

fn datagram(name: u64, keys: Keys, len: u32, qkey: u32) -> Sqe {
    Sqe {
        args: [qkey.into(), 0, 0, 0],
        ..send(name, keys, BASE, len)
    }
}

fn keys(world: &World, qp: &User) -> (Memory, Keys) {
    let memory = Memory::zeroed(8192);
    let keys = world.register_pd(qp, &memory, Access::REMOTE_ALL);
    (memory, keys)
}

fn run(world: &mut World, a: &mut User) -> Vec<(u64, CqeStatus)> {
    world.submit(a);
    world.settle();
    a.outcomes()
}

#[test]
fn a_datagram_comes_with_a_header_and_the_number_of_its_sender() {
    for len in [0, 100, 4096] {
        let mut world = World::new();
        let (mut a, mut b) = pair(&world);
        let ((mine, ka), (theirs, kb)) = (keys(&world, &a), keys(&world, &b));
        mine.0.lock().unwrap().copy_from_slice(&pattern(8192));
        b.receive(50, kb, BASE, len + 40);
        world.submit(&mut b);
        a.post(Sqe {
            flags: sqe_flags::IMM | sqe_flags::SOLICITED,
            args: [QKEY.into(), 0, 0, 5],
            ..datagram(1, ka, len, QKEY)
        });
        assert_eq!(run(&mut world, &mut a), [(1, CqeStatus::Ok)]);
        let cqe = b.poll()[0];
        assert_eq!(
            (cqe.user_data, cqe.status(), cqe.len),
            (50, Some(CqeStatus::Ok), len + 40)
        );
        assert_eq!((cqe.src, cqe.ep, cqe.value), (a.addr.ep, b.addr.ep, 5));
        let flags = cqe_flags::RECV | cqe_flags::IMM | cqe_flags::SOLICITED;
        assert_eq!(cqe.flags, flags);
        let bytes = theirs.bytes();
        assert_eq!((bytes[0] >> 4, &bytes[8..24]), (6, &a.addr.node.gid()[..]));
        assert_eq!(bytes[24..40], b.addr.node.gid());
        assert!(bytes[40..][..len as usize] == pattern(8192)[..len as usize]);
        assert_eq!(bytes[40 + len as usize], 0);
    }
}

#[test]
fn what_a_datagram_queue_pair_does_not_take_is_dropped_and_costs_no_receive() {
    let mut world = World::new();
    let (mut a, mut b) = pair(&world);
    let ((_, ka), (_, kb)) = (keys(&world, &a), keys(&world, &b));
    a.post(datagram(1, ka, 8, QKEY));
    assert_eq!(run(&mut world, &mut a), [(1, CqeStatus::Ok)], "no receive");
    b.receive(50, kb, BASE, 47);
    b.receive(51, kb, BASE, 100);
    world.submit(&mut b);
    a.post(datagram(2, ka, 8, QKEY));
    assert_eq!(run(&mut world, &mut a), [(2, CqeStatus::Ok)], "too little room");
    a.post(datagram(3, ka, 7, QKEY ^ 1));
    assert_eq!(run(&mut world, &mut a), [(3, CqeStatus::Ok)], "the wrong key");
    assert!(b.poll().is_empty());
    a.post(datagram(4, ka, 7, QKEY));
    a.post(datagram(5, ka, 8, QKEY | 1 << 31));
    assert_eq!(run(&mut world, &mut a).len(), 2);
    assert_eq!(b.outcomes(), [(50, CqeStatus::Ok), (51, CqeStatus::Ok)]);
}

#[test]
fn a_key_that_changes_from_message_to_message_is_the_one_that_is_checked() {
    let mut world = World::new();
    let (mut a, mut b) = pair(&world);
    let ((_, ka), (_, kb)) = (keys(&world, &a), keys(&world, &b));
    for n in 0..8 {
        b.receive(50 + n, kb, BASE, 100);
    }
    world.submit(&mut b);
    for n in 0..12 {
        a.post(datagram(n, ka, 8, QKEY ^ u32::from(n % 3 == 1)));
    }
    let mut done = run(&mut world, &mut a);
    done.sort_unstable_by_key(|(name, _)| *name);
    assert_eq!(done, (0..12).map(|n| (n, CqeStatus::Ok)).collect::<Vec<_>>());
    assert_eq!(b.poll().len(), 8, "a third had the wrong one");
    // The target's own key counts now, not that of then.
    let other = QpAttr {
        qkey: Some(QKEY ^ 1),
        ..QpAttr::default()
    };
    world.modify(&b, &other).unwrap();
    b.receive(60, kb, BASE, 100);
    world.submit(&mut b);
    a.post(datagram(20, ka, 8, QKEY));
    a.post(datagram(21, ka, 16, QKEY ^ 1));
    run(&mut world, &mut a);
    let received = b.poll();
    assert_eq!((received.len(), received[0].len), (1, 56));
}

#[test]
fn datagrams_to_nobody_are_sent_and_lost() {
    let mut world = World::new();
    let (mut a, mut b) = pair(&world);
    let ((_, ka), (_, kb)) = (keys(&world, &a), keys(&world, &b));
    let nobody = EpAddr {
        ep: 0x77_0003,
        ..b.addr
    };
    let lost = world.device(&a).create_ah(a.client, a.ep, &nobody).unwrap();
    let good = a.ah;
    b.receive(50, kb, BASE, 100);
    world.submit(&mut b);
    for n in 0..4 {
        a.ah = lost;
        a.post(datagram(n, ka, 8, QKEY));
    }
    assert_eq!(run(&mut world, &mut a).len(), 4);
    a.ah = good;
    a.post(datagram(9, ka, 8, QKEY));
    assert_eq!(run(&mut world, &mut a), [(9, CqeStatus::Ok)]);
    assert_eq!(b.outcomes(), [(50, CqeStatus::Ok)]);
    let now = world.now;
    world.sides[0].fail(now);
    a.post(datagram(10, ka, 8, QKEY));
    assert_eq!(run(&mut world, &mut a), [(10, CqeStatus::Ok)]);
    assert_eq!(world.qp_state(&a), QpState::Rts);
}

#[test]
fn a_datagram_that_cannot_be_stops_sending_but_not_receiving() {
    let mut world = World::new();
    let (mut a, mut b) = pair(&world);
    let ((_, ka), (_, kb)) = (keys(&world, &a), keys(&world, &b));
    let status = |world: &mut World, a: &mut User, sqe: Sqe| {
        a.post(sqe);
        a.post(datagram(2, ka, 8, QKEY));
        let done = run(world, a);
        assert_eq!(done[1], (2, CqeStatus::Flushed));
        assert_eq!(world.qp_state(a), QpState::Sqe);
        world.to(a, QpState::Rts);
        done[0].1
    };
    let long = datagram(1, ka, 4097, QKEY);
    assert_eq!(status(&mut world, &mut a, long), CqeStatus::TooLong);
    let foreign = Keys {
        local: kb.local ^ 1 << 20,
        ..ka
    };
    let wrong = datagram(1, foreign, 8, QKEY);
    assert_eq!(status(&mut world, &mut a, wrong), CqeStatus::Protection);
    let write = rma(Op::Write, 1, ka, BASE, 8, (BASE, kb.remote));
    assert_eq!(status(&mut world, &mut a, write), CqeStatus::Invalid);

    let back = world.device(&b).create_ah(b.client, b.ep, &a.addr).unwrap();
    a.post(datagram(3, ka, 4097, QKEY));
    run(&mut world, &mut a);
    a.receive(50, ka, BASE, 100);
    world.submit(&mut a);
    b.ah = back;
    b.post(datagram(4, kb, 8, QKEY));
    run(&mut world, &mut b);
    assert_eq!(a.outcomes(), [(50, CqeStatus::Ok)]);
}

/// The queue pair with that number on one side, ready.
fn special(world: &World, side: usize, number: u16) -> User {
    let device = &world.sides[side].device;
    let client = device.add_client(Quota::UNLIMITED, None).unwrap();
    let qp = User::of_special(device, side, client, QpKind::Ud, 1, Some(number)).unwrap();
    ready(world, &qp);
    qp
}

#[test]
fn a_special_queue_pair_has_its_number_again_and_again_and_nobody_else_has_it() {
    let mut world = World::new();
    for round in 0..3 {
        let (mut a, mut b) = (special(&world, 0, 1), special(&world, 1, 1));
        let other = world.qp(1, QpKind::Ud);
        assert_eq!((a.addr.ep, b.addr.ep), (1, 1));
        assert!(other.addr.ep & 0xffff > 1);
        a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
        let ((_, ka), (_, kb)) = (keys(&world, &a), keys(&world, &b));
        b.receive(50, kb, BASE, 100);
        world.submit(&mut b);
        a.post(datagram(1, ka, 8, QKEY));
        assert_eq!(run(&mut world, &mut a), [(1, CqeStatus::Ok)], "round {round}");
        let cqe = b.poll()[0];
        assert_eq!((cqe.user_data, cqe.src, cqe.ep), (50, 1, 1));
        // It is taken; and there is none of that number.
        for number in [1, 2] {
            let made = User::of_special(world.device(&b), 1, b.client, QpKind::Ud, 1, Some(number));
            assert_eq!(made.err(), Some(DeviceError::Full(Object::Endpoint)), "{number}");
        }
        for qp in [a, b, other] {
            world.device(&qp).destroy_endpoint(qp.client, qp.ep, 0).unwrap();
        }
    }
}

#[test]
fn a_handle_that_goes_takes_its_datagrams_with_it_and_does_not_stop_a_special_queue_pair() {
    let mut world = World::new();
    let (mut a, mut b) = (special(&world, 0, 1), special(&world, 1, 1));
    let ((_, ka), (_, kb)) = (keys(&world, &a), keys(&world, &b));
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    a.post(datagram(1, ka, 8, QKEY));
    world.device(&a).destroy_ah(a.client, a.ep, a.ah, 0).unwrap();
    assert_eq!(run(&mut world, &mut a), [(1, CqeStatus::Flushed)]);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    b.receive(50, kb, BASE, 100);
    world.submit(&mut b);
    a.post(datagram(2, ka, 8, QKEY));
    assert_eq!(run(&mut world, &mut a), [(2, CqeStatus::Ok)]);
    assert_eq!(b.poll()[0].user_data, 50);
}

#[test]
fn a_link_without_room_does_not_keep_a_special_queue_pair_waiting() {
    let mut world = World::with(|config| config.max_ops = 4);
    let (mut a, b) = (special(&world, 0, 1), special(&world, 1, 1));
    let (_, ka) = keys(&world, &a);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    for number in 1..=4 {
        a.post(datagram(number, ka, 8, QKEY));
    }
    world.submit(&mut a);
    // An endpoint has no more than are left.
    assert_eq!(a.outcomes(), [(3, CqeStatus::Flushed), (4, CqeStatus::Flushed)]);
    assert_eq!(run(&mut world, &mut a), [(1, CqeStatus::Ok), (2, CqeStatus::Ok)]);
}
