//! Queue pairs: errors, on both sides of a connection.

use std::sync::Arc;
use std::time::Duration;

use usb4_device::{Access, EndpointState, Keys, QpAttr, QpEvent, QpKind, QpState, RegionConfig};
use usb4_ring_abi::{CqeStatus, FLAGS_WORD, NEED_WAKEUP, Op, PRODUCER_WORD};

use crate::home::Memory;
use crate::world::{User, World, rma, send};

const BASE: u64 = 0x10_0000;
const MS: u64 = 1_000_000;

fn keys(world: &World, qp: &User) -> Keys {
    world.register_pd(qp, &Memory::zeroed(64), Access::REMOTE_ALL)
}

fn write(name: u64, mine: Keys, key: u64) -> usb4_ring_abi::Sqe {
    rma(Op::Write, name, mine, BASE, 8, (BASE, key))
}

#[test]
fn an_error_flushes_what_is_posted_and_what_is_posted_later() {
    let mut world = World::new();
    let (mut a, b) = world.qp_pair(QpKind::Rc);
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    a.receive(50, ka, BASE, 8);
    a.post(write(1, ka, kb.remote));
    a.post(write(2, ka, kb.remote ^ 1 << 20));
    a.post(write(3, ka, kb.remote));
    world.submit(&mut a);
    world.settle();
    let flushed = CqeStatus::Flushed;
    let mut outcomes = a.outcomes();
    outcomes.sort_unstable_by_key(|(name, _)| *name);
    let access = (2, CqeStatus::Access);
    assert_eq!(
        outcomes,
        [(1, CqeStatus::Ok), access, (3, flushed), (50, flushed)]
    );
    assert_eq!(world.qp_state(&a), QpState::Err);

    // The client is asked to tell of receives, too.
    let flags = a.rq_words[FLAGS_WORD].load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(flags, NEED_WAKEUP);
    for round in 0..2 {
        a.receive(60 + round, ka, BASE, 8);
        world.submit(&mut a);
        let cqe = a.poll()[0];
        assert_eq!(
            (cqe.user_data, cqe.status(), cqe.ep),
            (60 + round, Some(flushed), a.addr.ep)
        );
    }
    a.post(write(4, ka, kb.remote));
    world.submit(&mut a);
    assert_eq!(a.outcomes(), [(4, flushed)]);
}

#[test]
fn a_peer_without_a_right_stops_both_ends_and_the_target_is_told() {
    for (op, key, right, event, status) in [
        (
            Op::Write,
            1 << 20,
            Access::REMOTE_ALL,
            QpEvent::Access,
            CqeStatus::Access,
        ),
        (
            Op::Write,
            0,
            Access::REMOTE_READ,
            QpEvent::Access,
            CqeStatus::Access,
        ),
        (
            Op::Read,
            0,
            Access::REMOTE_WRITE,
            QpEvent::Access,
            CqeStatus::Access,
        ),
        // It serves no reads at all.
        (
            Op::Read,
            0,
            Access::REMOTE_ALL,
            QpEvent::Request,
            CqeStatus::Unsupported,
        ),
    ] {
        let mut world = World::new();
        let (mut a, mut b) = world.qp_pair(QpKind::Rc);
        let (ka, kb) = (keys(&world, &a), keys(&world, &b));
        if event == QpEvent::Request {
            world.to(&b, QpState::Reset);
            world.connect_qp(&b, &a);
            let none = QpAttr {
                max_dest_rd_atomic: Some(0),
                ..QpAttr::default()
            };
            world.modify(&b, &none).unwrap();
        }
        let rights = QpAttr {
            access: Some(right),
            ..QpAttr::default()
        };
        world.modify(&b, &rights).unwrap();
        b.receive(50, kb, BASE, 8);
        world.submit(&mut b);
        a.post(rma(op, 1, ka, BASE, 8, (BASE, kb.remote ^ key)));
        world.submit(&mut a);
        world.settle();
        assert_eq!(a.outcomes(), [(1, status)], "{op:?}");
        assert_eq!(world.events(&b), [event]);
        assert!(world.events(&a).is_empty(), "its completion says it");
        assert_eq!(b.outcomes(), [(50, CqeStatus::Flushed)]);
        assert_eq!(
            (world.qp_state(&a), world.qp_state(&b)),
            (QpState::Err, QpState::Err)
        );
    }
}

#[test]
fn a_queue_pair_that_may_have_no_reads_outstanding_says_so() {
    let mut world = World::new();
    let (mut a, b) = world.qp_pair(QpKind::Rc);
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    let none = QpAttr {
        max_rd_atomic: Some(0),
        ..QpAttr::default()
    };
    world.modify(&a, &none).unwrap();
    a.post(rma(Op::Read, 1, ka, BASE, 8, (BASE, kb.remote)));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Invalid)]);
    assert!(world.events(&b).is_empty());
}

#[test]
fn keys_are_good_in_their_protection_domain_only() {
    let mut world = World::new();
    let (mut a, b) = world.qp_pair(QpKind::Rc);
    let in_pd = |qp: &User, pd| {
        let config = RegionConfig {
            addr: BASE,
            len: 64,
            access: Access::REMOTE_ALL,
            peer: None,
            mem: Memory::zeroed(64),
        };
        world.device(qp).register_in_pd(qp.client, pd, config).unwrap()
    };
    let (ka, other, foreign) = (keys(&world, &a), in_pd(&a, 2), in_pd(&b, 2));
    let ring = world.register(&b, &Memory::zeroed(64), Access::REMOTE_ALL);
    assert!([ka, other, foreign].iter().all(|keys| keys.remote >> 32 == 0));
    a.post(send(1, other, BASE, 8));
    world.submit(&mut a);
    assert_eq!(a.outcomes(), [(1, CqeStatus::Protection)]);
    for key in [foreign.remote, ring.remote] {
        world.to(&a, QpState::Reset);
        world.to(&b, QpState::Reset);
        world.connect_qp(&a, &b);
        world.connect_qp(&b, &a);
        a.post(write(2, ka, key));
        world.submit(&mut a);
        world.settle();
        assert_eq!(a.outcomes(), [(2, CqeStatus::Access)]);
    }
}

#[test]
fn patience_ends_with_the_status_that_says_what_it_waited_for() {
    for (ready, status) in [
        (false, CqeStatus::RetryExceeded),
        (true, CqeStatus::RnrRetryExceeded),
    ] {
        let mut world = World::new();
        let (mut a, b) = (world.qp(0, QpKind::Rc), world.qp(1, QpKind::Rc));
        let ka = keys(&world, &a);
        world.connect_qp(&a, &b);
        if ready {
            world.connect_qp(&b, &a);
        }
        // 2 times 8.4 ms, and 3 times 5.12 ms.
        let patience = QpAttr {
            timeout: Some(11),
            retry_cnt: Some(1),
            rnr_retry: Some(3),
            min_rnr_timer: Some(18),
            ..QpAttr::default()
        };
        world.modify(&a, &patience).unwrap();
        a.receive(50, ka, BASE, 8);
        a.post(send(1, ka, BASE, 8));
        a.post(send(2, ka, BASE, 8));
        world.submit(&mut a);
        world.wait(14 * MS);
        assert!(a.poll().is_empty());
        world.wait(4 * MS);
        let flushed = CqeStatus::Flushed;
        assert_eq!(a.outcomes(), [(1, status), (2, flushed), (50, flushed)]);
        assert_eq!(world.qp_state(&a), QpState::Err);
        // It can be used again.
        world.to(&a, QpState::Reset);
        world.to(&b, QpState::Reset);
        world.connect_qp(&a, &b);
        world.connect_qp(&b, &a);
        let kb = keys(&world, &b);
        a.post(write(3, ka, kb.remote));
        world.submit(&mut a);
        world.settle();
        assert_eq!(a.outcomes(), [(3, CqeStatus::Ok)]);
    }
}

#[test]
fn a_message_longer_than_its_receive_stops_both_ends() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    b.receive(50, kb, BASE, 8);
    b.receive(51, kb, BASE, 8);
    world.submit(&mut b);
    a.post(send(1, ka, BASE, 16));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Length)]);
    assert_eq!(b.outcomes(), [(50, CqeStatus::Length), (51, CqeStatus::Flushed)]);
    assert_eq!(
        (world.qp_state(&a), world.qp_state(&b)),
        (QpState::Err, QpState::Err)
    );
}

/// Programs post receives of one length, however near their memory's end.
#[test]
fn of_a_receive_only_what_a_message_has_needs_memory() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut world = World::new();
        let (mut a, mut b) = world.qp_pair(kind);
        let ka = keys(&world, &a);
        let memory = Memory::zeroed(64);
        let config = RegionConfig {
            addr: BASE,
            len: 64,
            access: Access::LOCAL,
            peer: None,
            mem: memory.clone(),
        };
        let kb = world.device(&b).register_in_pd(b.client, 1, config).unwrap();
        for (number, len) in [(50, 32), (51, 0), (52, 33)] {
            b.receive(number, kb, BASE + 32, 4096);
            world.submit(&mut b);
            a.post(send(1, ka, BASE, len));
            world.submit(&mut a);
            world.settle();
            let sent = if len == 33 && kind == QpKind::Rc {
                CqeStatus::Resource
            } else {
                CqeStatus::Ok
            };
            assert_eq!(a.outcomes(), [(1, sent)], "{kind:?} {len}");
            let received = if len == 33 {
                CqeStatus::Protection
            } else {
                CqeStatus::Ok
            };
            assert_eq!(b.outcomes(), [(number, received)], "{kind:?} {len}");
        }
    }
}

#[test]
fn a_receive_with_a_wrong_key_stops_both_ends() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let ka = keys(&world, &a);
    let wrong = Keys { local: 77, remote: 0 };
    b.receive(50, wrong, BASE, 8);
    world.submit(&mut b);
    a.post(send(1, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Resource)]);
    assert_eq!(b.outcomes(), [(50, CqeStatus::Protection)]);
    assert_eq!(world.qp_state(&b), QpState::Err);
}

#[test]
fn a_connection_whose_link_goes_is_in_error_even_if_it_was_idle() {
    let mut world = World::new();
    let (mut busy, _) = world.qp_pair(QpKind::Rc);
    let (mut idle, _) = world.qp_pair(QpKind::Rc);
    let mut lossy = world.qp(0, QpKind::Uc);
    world.connect_qp(&lossy, &idle);
    let (kb, ki, kl) = (keys(&world, &busy), keys(&world, &idle), keys(&world, &lossy));
    busy.post(send(1, kb, BASE, 8));
    idle.receive(50, ki, BASE, 8);
    world.submit(&mut busy);
    world.submit(&mut idle);
    world.settle();
    let now = world.now;
    world.sides[0].fail(now);
    world.sides[0].service(now);
    assert_eq!(busy.outcomes(), [(1, CqeStatus::LinkDown)]);
    assert_eq!(idle.outcomes(), [(50, CqeStatus::Flushed)]);
    assert_eq!(world.events(&idle), [QpEvent::Fatal]);
    assert!(world.events(&busy).is_empty());
    assert_eq!(world.qp_state(&idle), QpState::Err);
    lossy.post(send(2, kl, BASE, 8));
    world.submit(&mut lossy);
    assert_eq!(lossy.outcomes(), [(2, CqeStatus::Ok)], "sent, and lost");
    assert_eq!(world.qp_state(&lossy), QpState::Rts);
}

#[test]
fn a_destroyed_queue_pair_completes_nothing_and_its_peer_is_in_error() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair(QpKind::Rc);
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    a.post(send(1, ka, BASE, 8));
    b.post(send(2, kb, BASE, 8));
    world.submit(&mut a);
    world.submit(&mut b);
    world.settle();
    let now = world.now;
    world.device(&a).destroy_endpoint(a.client, a.ep, now).unwrap();
    world.settle();
    assert!(a.poll().is_empty());
    assert_eq!(b.outcomes(), [(2, CqeStatus::RetryExceeded)]);
}

#[test]
fn a_hostile_index_is_told_and_no_reset_helps() {
    let mut world = World::new();
    let (mut a, _b) = world.qp_pair(QpKind::Rc);
    a.sq_words[PRODUCER_WORD].store(1 << 40, std::sync::atomic::Ordering::Relaxed);
    world.device(&a).submit(a.ep, world.now);
    world.settle();
    assert_eq!(world.events(&a), [QpEvent::Fatal]);
    assert_eq!(world.qp_state(&a), QpState::Err);
    let reset = QpAttr {
        state: Some(QpState::Reset),
        ..QpAttr::default()
    };
    assert!(world.modify(&a, &reset).is_err());
    assert!(a.poll().is_empty());
}

#[test]
fn an_unreliable_connection_drops_what_the_peer_does_not_take() {
    let mut world = World::new();
    let (mut a, mut b) = (world.qp(0, QpKind::Uc), world.qp(1, QpKind::Uc));
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    world.connect_qp(&a, &b);
    a.post(send(1, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Ok)], "to one that is not ready");
    world.connect_qp(&b, &a);
    a.post(send(2, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(2, CqeStatus::Ok)], "to one without a receive");
    b.receive(50, kb, BASE, 8);
    world.submit(&mut b);
    a.post(send(3, ka, BASE, 16));
    a.post(write(4, ka, kb.remote ^ 1 << 20));
    a.post(send(5, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [3, 4, 5].map(|name| (name, CqeStatus::Ok)));
    let received = b.poll();
    assert_eq!(received.len(), 1, "what does not fit takes no receive");
    assert_eq!((received[0].user_data, received[0].len), (50, 8));
    assert_eq!(
        (world.qp_state(&a), world.qp_state(&b)),
        (QpState::Rts, QpState::Rts)
    );
    assert!(world.events(&b).is_empty());
    a.post(rma(Op::Read, 6, ka, BASE, 8, (BASE, kb.remote)));
    a.post(send(7, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(6, CqeStatus::Invalid), (7, CqeStatus::Flushed)]);
    assert_eq!(world.qp_state(&a), QpState::Sqe);
    world.to(&a, QpState::Rts);
    a.post(send(8, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(8, CqeStatus::Ok)]);
}

#[test]
fn a_queue_pair_that_is_reset_while_it_is_flushed_begins_anew() {
    let mut world = World::new();
    let (mut a, b) = world.qp_pair(QpKind::Rc);
    let (ka, kb) = (keys(&world, &a), keys(&world, &b));
    a.receive(10, ka, BASE, 8);
    let unknown = Keys {
        local: ka.local ^ 1 << 20,
        ..ka
    };
    a.post(send(1, unknown, BASE, 8));
    world.submit(&mut a);
    assert_eq!(a.outcomes(), [(1, CqeStatus::Protection)]);
    // Its owner learns of the receive's end, and has reset it before whoever flushes it gets on.
    assert_eq!(a.cq.arm(), Ok(true));
    let (device, client, ep) = (Arc::clone(&world.sides[0].device), a.client, a.ep);
    let (done, was_reset) = std::sync::mpsc::channel();
    let reset = move || {
        let its = Arc::clone(&device);
        std::thread::spawn(move || {
            let attr = QpAttr {
                state: Some(QpState::Reset),
                ..QpAttr::default()
            };
            done.send(its.modify_qp(client, ep, &attr, 0)).unwrap();
        });
        while device.endpoint_state(client, ep) != Ok(EndpointState::Reset) {
            std::thread::yield_now();
        }
        // Time for it to get to the receive queue's lock; without it the test would show less, and not fail.
        std::thread::sleep(Duration::from_millis(20));
    };
    *world.sides[0].device.home().at_wake.lock().unwrap() = Some(Box::new(reset));
    world.sides[0].service(world.now);
    assert_eq!(was_reset.recv(), Ok(Ok(())));
    assert_eq!(a.outcomes(), [(10, CqeStatus::Flushed)]);
    // What is received from then on is not flushed.
    world.to(&b, QpState::Reset);
    world.connect_qp(&a, &b);
    world.connect_qp(&b, &a);
    let mut b = b;
    a.receive(11, ka, BASE, 8);
    world.submit(&mut a);
    b.post(send(2, kb, BASE, 8));
    world.submit(&mut b);
    world.settle();
    assert_eq!(a.outcomes(), [(11, CqeStatus::Ok)]);
    assert_eq!(b.outcomes(), [(2, CqeStatus::Ok)]);
}
