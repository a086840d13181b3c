//! Queue pairs: who reaches them, what connections carry, states.

use usb4_device::{Access, DeviceError, EndpointKind, QpAttr, QpEvent, QpKind, QpState};
use usb4_ring_abi::{ARMED, ARMED_SOLICITED, CqeStatus, FLAGS_WORD, Op, Sqe, cqe_flags, sqe_flags};

use crate::home::Memory;
use crate::world::{User, World, pattern, rma, send};

const BASE: u64 = 0x10_0000;

/// A client's memory of 64 bytes that peers may use, and its keys.
fn memory(world: &World, qp: &User) -> (Memory, usb4_device::Keys) {
    let memory = Memory::zeroed(64);
    let keys = world.register_pd(qp, &memory, Access::REMOTE_ALL);
    (memory, keys)
}

#[test]
fn a_connection_carries_every_kind_of_work() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let (mine, ka) = memory(&world, &a);
    let (theirs, kb) = memory(&world, &b);
    mine.0.lock().unwrap().copy_from_slice(&pattern(64));
    b.receive(50, kb, BASE + 32, 16);
    b.receive(51, kb, BASE + 48, 8);
    let imm = |sqe: Sqe, imm: u64| Sqe {
        flags: sqe_flags::IMM,
        args: [sqe.args[0], sqe.args[1], 0, imm],
        ..sqe
    };
    a.post(send(1, ka, BASE, 16));
    a.post(rma(Op::Write, 2, ka, BASE, 8, (BASE, kb.remote)));
    a.post(imm(
        rma(Op::Write, 3, ka, BASE, 0, (BASE, kb.remote)),
        0xffff_ffff_1234_5678,
    ));
    a.post(rma(Op::Read, 4, ka, BASE + 24, 8, (BASE, kb.remote)));
    let add = rma(Op::FetchAdd, 5, ka, BASE + 56, 8, (BASE + 16, kb.remote));
    a.post(Sqe {
        args: [add.args[0], add.args[1], 7, 0],
        ..add
    });
    world.submit(&mut b);
    world.submit(&mut a);
    world.settle();
    let done = a.outcomes();
    assert_eq!(done, (1..6).map(|n| (n, CqeStatus::Ok)).collect::<Vec<_>>());
    let received = b.poll();
    assert_eq!(
        (received[0].user_data, received[0].len, received[0].src),
        (50, 16, 0)
    );
    assert!(received.iter().all(|cqe| cqe.ep == b.addr.ep));
    assert_eq!(received[0].flags, cqe_flags::RECV);
    let with_imm = cqe_flags::RECV | cqe_flags::WRITE_IMM | cqe_flags::IMM;
    assert_eq!((received[1].flags, received[1].value), (with_imm, 0x1234_5678));
    assert_eq!(theirs.bytes()[..8], pattern(64)[..8]);
    assert_eq!(theirs.bytes()[32..48], pattern(64)[..16]);
    assert_eq!(theirs.bytes()[16], 7);
    assert_eq!(mine.bytes()[24..32], pattern(64)[..8]);
}

#[test]
fn a_queue_pair_is_reached_by_number_and_nothing_else_is() {
    let mut world = World::new();
    let ring = world.user(1, EndpointKind::Datagram);
    let (mut a, b) = (world.qp(0, QpKind::Rc), world.qp(1, QpKind::Ud));
    let (_, keys) = memory(&world, &a);
    // The number that the ring endpoint would have.
    let ring_as_qp = usb4_engine::EpAddr {
        ep: ring.addr.ep & 0xff_ffff,
        incarnation: 0,
        ..ring.addr
    };
    let nobody = User {
        addr: ring_as_qp,
        ..ring
    };
    world.connect_qp(&a, &nobody);
    a.post(send(1, keys, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::RetryExceeded)]);

    let mut c = world.user(0, EndpointKind::Datagram);
    let device = world.device(&c);
    c.ah = device.create_ah(c.client, c.ep, &b.addr).unwrap();
    let keys = world.register(&c, &Memory::zeroed(8), Access::LOCAL);
    c.post(send(2, keys, BASE, 8));
    world.submit(&mut c);
    world.settle();
    assert_eq!(c.outcomes(), [(2, CqeStatus::Gone)]);
    let other = usb4_engine::EpAddr {
        incarnation: 1,
        ..b.addr
    };
    let d = world.qp(0, QpKind::Ud);
    let refused = world.device(&d).create_ah(d.client, d.ep, &other);
    assert_eq!(refused, Err(DeviceError::Range));
    assert!(b.addr.ep > 1 && b.addr.ep < 1 << 24);
}

#[test]
fn a_connection_takes_messages_from_its_peer_only() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let mut stranger = world.qp(0, QpKind::Rc);
    world.connect_qp(&stranger, &b);
    let (ka, kb) = (memory(&world, &a).1, memory(&world, &b).1);
    let ks = memory(&world, &stranger).1;
    b.receive(50, kb, BASE, 8);
    world.submit(&mut b);
    stranger.post(send(1, ks, BASE, 8));
    stranger.post(rma(Op::Write, 2, ks, BASE, 8, (BASE, kb.remote)));
    world.submit(&mut stranger);
    world.settle();
    let refused = [(1, CqeStatus::RetryExceeded), (2, CqeStatus::Flushed)];
    assert_eq!(stranger.outcomes(), refused);
    a.post(send(3, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(3, CqeStatus::Ok)]);
    assert_eq!(b.outcomes(), [(50, CqeStatus::Ok)]);
}

#[test]
fn a_stranger_who_was_early_is_refused_when_the_peer_is_known() {
    let mut world = World::new();
    let (mut a, b) = (world.qp(0, QpKind::Rc), world.qp(1, QpKind::Rc));
    let mut stranger = world.qp(0, QpKind::Rc);
    let (ka, ks) = (memory(&world, &a).1, memory(&world, &stranger).1);
    let kb = memory(&world, &b).1;
    world.connect_qp(&a, &b);
    world.connect_qp(&stranger, &b);
    for (qp, keys) in [(&mut a, ka), (&mut stranger, ks)] {
        qp.post(rma(Op::Write, 1, keys, BASE, 8, (BASE, kb.remote)));
        world.submit(qp);
    }
    world.settle();
    assert!(a.poll().is_empty() && stranger.poll().is_empty(), "both wait");
    world.to_rtr(&b, &a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Ok)]);
    assert_eq!(stranger.outcomes(), [(1, CqeStatus::RetryExceeded)]);
    assert_eq!(world.events(&b), [QpEvent::Established]);
}

#[test]
fn a_peer_that_comes_again_and_again_is_told_of_once() {
    let mut world = World::new();
    let (mut a, b) = (world.qp(0, QpKind::Rc), world.qp(1, QpKind::Rc));
    let (ka, kb) = (memory(&world, &a).1, memory(&world, &b).1);
    for life in 0..2 {
        world.to_rtr(&b, &a);
        for name in 0..3 {
            world.connect_qp(&a, &b);
            a.post(rma(Op::Write, name, ka, BASE, 8, (BASE, kb.remote)));
            world.submit(&mut a);
            world.settle();
            assert_eq!(a.outcomes(), [(name, CqeStatus::Ok)]);
            world.to(&a, QpState::Reset);
            world.settle();
        }
        assert_eq!(world.events(&b), [QpEvent::Established], "life {life}");
        world.to(&b, QpState::Reset);
        world.settle();
    }
}

#[test]
fn sends_wait_until_a_queue_pair_may_send_and_finish_where_it_may_no_longer() {
    let mut world = World::new();
    let (mut a, mut b) = (world.qp(0, QpKind::Rc), world.qp(1, QpKind::Rc));
    let (ka, kb) = (memory(&world, &a).1, memory(&world, &b).1);
    world.connect_qp(&b, &a);
    world.to_rtr(&a, &b);
    a.post(send(1, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert!(a.poll().is_empty());
    world.to(&a, QpState::Rts);
    world.settle();
    world.to(&a, QpState::Sqd);
    a.post(send(2, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    let info = world.device(&a).query_qp(a.client, a.ep).unwrap();
    assert!(
        info.draining && world.events(&a).is_empty(),
        "the first waits for a receive"
    );
    b.receive(50, kb, BASE, 8);
    b.receive(51, kb, BASE, 8);
    world.submit(&mut b);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Ok)]);
    assert_eq!(world.events(&a), [QpEvent::Drained]);
    world.to(&a, QpState::Rts);
    world.settle();
    assert_eq!(a.outcomes(), [(2, CqeStatus::Ok)]);
}

#[test]
fn transitions_and_attributes_that_do_not_exist_are_refused() {
    let world = World::new();
    let (a, b) = (world.qp(0, QpKind::Rc), world.qp(1, QpKind::Rc));
    let refused = Err(DeviceError::Attribute);
    let attr = |state| QpAttr {
        state: Some(state),
        ..QpAttr::default()
    };
    for state in [
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ] {
        assert_eq!(world.modify(&a, &attr(state)), refused, "{state:?}");
    }
    world.to(&a, QpState::Init);
    assert_eq!(world.modify(&a, &attr(QpState::Rtr)), refused, "without a peer");
    for wrong in [
        QpAttr {
            timeout: Some(32),
            ..QpAttr::default()
        },
        QpAttr {
            rnr_retry: Some(8),
            ..QpAttr::default()
        },
        QpAttr {
            access: Some(Access::READ_ONLY),
            ..QpAttr::default()
        },
        QpAttr {
            peer: Some((b.addr.node, 1 << 24)),
            ..QpAttr::default()
        },
    ] {
        assert_eq!(world.modify(&a, &wrong), refused, "{wrong:?}");
    }
    assert_eq!(world.qp_state(&a), QpState::Init);
    let ring = world.user(0, EndpointKind::Connected);
    assert_eq!(world.modify(&ring, &attr(QpState::Init)), Err(DeviceError::State));
    let device = world.device(&a);
    assert_eq!(device.connect(a.client, a.ep, &b.addr), Err(DeviceError::State));
    assert_eq!(device.create_ah(a.client, a.ep, &b.addr), Err(DeviceError::State));
}

#[test]
fn a_reset_empties_the_queues_and_what_was_under_way_is_not_heard_of_again() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let (mine, ka) = memory(&world, &a);
    let (theirs, kb) = memory(&world, &b);
    a.receive(50, ka, BASE, 8);
    a.post(send(1, ka, BASE, 8));
    a.post(rma(Op::Write, 2, ka, BASE, 8, (BASE, kb.remote)));
    world.submit(&mut a);
    world.settle();
    world.to(&a, QpState::Reset);
    world.to(&b, QpState::Reset);
    world.settle();
    assert!(a.poll().is_empty() && b.poll().is_empty());
    assert_eq!(
        theirs.bytes(),
        [0; 64],
        "the write behind the send was never executed"
    );

    mine.0.lock().unwrap()[0] = 9;
    world.connect_qp(&a, &b);
    world.connect_qp(&b, &a);
    b.receive(51, kb, BASE + 8, 8);
    world.submit(&mut b);
    a.post(send(3, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(3, CqeStatus::Ok)]);
    assert_eq!(b.outcomes(), [(51, CqeStatus::Ok)]);
    assert_eq!(theirs.bytes()[8], 9);
}

#[test]
fn a_fenced_send_waits_for_the_read_before_it() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let (_, ka) = memory(&world, &a);
    let (theirs, kb) = memory(&world, &b);
    theirs.0.lock().unwrap()[..8].copy_from_slice(&[7; 8]);
    b.receive(50, kb, BASE + 8, 8);
    world.submit(&mut b);
    a.post(rma(Op::Read, 1, ka, BASE, 8, (BASE, kb.remote)));
    a.post(Sqe {
        flags: sqe_flags::FENCE,
        ..send(2, ka, BASE, 8)
    });
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Ok), (2, CqeStatus::Ok)]);
    assert_eq!(theirs.bytes()[8..16], [7; 8]);
}

#[test]
fn flags_of_queue_pairs_are_invalid_on_ring_endpoints() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let keys = world.register(&a, &Memory::zeroed(8), Access::LOCAL);
    b.receive(50, keys, BASE, 8);
    for flags in [sqe_flags::FENCE, sqe_flags::SOLICITED] {
        a.post(Sqe {
            flags,
            ..send(1, keys, BASE, 8)
        });
        world.submit(&mut a);
        world.settle();
        assert_eq!(a.outcomes(), [(1, CqeStatus::Invalid)]);
    }
}

#[test]
fn a_client_that_waits_for_something_solicited_is_woken_for_that_and_for_errors() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let (ka, kb) = (memory(&world, &a).1, memory(&world, &b).1);
    for n in 0..4 {
        b.receive(50 + n, kb, BASE, 8);
    }
    world.submit(&mut b);
    assert!(b.cq.arm_solicited().unwrap());
    let wakes = |user: &User| user.wakes.load(std::sync::atomic::Ordering::Relaxed);
    let flags = |user: &User| user.cq_words[FLAGS_WORD].load(std::sync::atomic::Ordering::Relaxed);
    a.post(send(1, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!((b.poll().len(), wakes(&b), flags(&b)), (1, 0, ARMED_SOLICITED));
    a.post(Sqe {
        flags: sqe_flags::SOLICITED,
        ..send(2, ka, BASE, 8)
    });
    world.submit(&mut a);
    world.settle();
    let received = b.poll();
    assert_eq!(received[0].flags, cqe_flags::RECV | cqe_flags::SOLICITED);
    assert_eq!((wakes(&b), flags(&b) & ARMED), (1, 0));
    assert!(b.cq.arm_solicited().unwrap());
    world.to(&b, QpState::Err);
    world.settle();
    assert_eq!((b.poll().len(), wakes(&b)), (2, 2), "flushed");
}
