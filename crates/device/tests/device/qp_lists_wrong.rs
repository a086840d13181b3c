//! Lists of buffers and inline data: what is wrong with them, when there are too many, and what ends under way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use usb4_device::{Access, EndpointKind, Keys, QpKind, QpState};
use usb4_ring_abi::{CqeStatus, Op, Piece, Slots, Sqe, sqe_flags};

use crate::home::Memory;
use crate::qp_lists::{SLOTS, datagram, datagrams, memory};
use crate::slots::pieces_of;
use crate::world::{World, pattern, rma, send};

const BASE: u64 = 0x10_0000;
const ANY: Keys = Keys { local: 0, remote: 0 };

#[test]
fn a_bad_key_in_the_third_piece_is_a_protection_error_and_holds_nothing() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let ((_, ka), (_, kb)) = (memory(&world, &a, &[1; 64]), memory(&world, &b, &[0; 64]));
    let mut list = pieces_of(ka, BASE, &[8, 8, 8]);
    list[2].local_key ^= 1 << 20;
    a.post_list(send(1, ANY, 0, 0), &list);
    a.post(send(2, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(
        a.outcomes(),
        [(1, CqeStatus::Protection), (2, CqeStatus::Flushed)]
    );
    assert_eq!(world.qp_state(&a), QpState::Err);
    assert_eq!(world.device(&a).deregister(a.client, ka.local), Ok(true));
    // The same of a receive; and a range that ends outside.
    let (mut c, mut d) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let ((_, kc), (_, kd)) = (memory(&world, &c, &[1; 64]), memory(&world, &d, &[0; 64]));
    d.receive_list(
        50,
        &[pieces_of(kd, BASE, &[8, 8]), pieces_of(kd, BASE + 60, &[8])].concat(),
    );
    world.submit(&mut d);
    c.post(send(3, kc, BASE, 8));
    world.submit(&mut c);
    world.settle();
    assert_eq!(c.outcomes(), [(3, CqeStatus::Resource)]);
    assert_eq!(d.outcomes(), [(50, CqeStatus::Protection)]);
    assert_eq!(world.device(&d).deregister(d.client, kd.local), Ok(true));
    drop((b.poll(), kb));
}

#[test]
fn a_list_read_into_needs_the_right_to_write_in_every_piece() {
    let mut world = World::new();
    let (mut a, b) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let ((_, ka), (_, kb)) = (memory(&world, &a, &[0; 64]), memory(&world, &b, &[2; 64]));
    let constant = Memory::of(&[3; 64]);
    let kc = world.register_pd(&a, &constant, Access::READ_ONLY);
    let list = [pieces_of(ka, BASE, &[8]), pieces_of(kc, BASE, &[8])].concat();
    a.post_list(rma(Op::Write, 1, ANY, 0, 0, (BASE, kb.remote)), &list);
    a.post_list(rma(Op::Read, 2, ANY, 0, 0, (BASE, kb.remote)), &list);
    world.submit(&mut a);
    world.settle();
    let mut done = a.outcomes();
    done.sort_by_key(|(name, _)| *name);
    assert_eq!(done[1], (2, CqeStatus::Protection));
    assert_eq!(constant.bytes(), [3; 64]);
}

#[test]
fn entries_whose_slots_say_something_else_are_refused() {
    type Case = (&'static str, Slots, u8, u32, u32, &'static [u32]);
    let cases: [Case; 7] = [
        ("no slots", Slots::NONE, sqe_flags::LIST, 1, 8, &[8]),
        ("no slots for inline", Slots::NONE, sqe_flags::INLINE, 0, 8, &[8]),
        ("more pieces than a slot has", SLOTS, sqe_flags::LIST, 9, 8, &[8]),
        ("pieces without end", SLOTS, sqe_flags::LIST, u32::MAX, 8, &[8]),
        (
            "more inline than a slot has",
            SLOTS,
            sqe_flags::INLINE,
            0,
            129,
            &[8],
        ),
        ("pieces are shorter", SLOTS, sqe_flags::LIST, 2, 17, &[8, 8]),
        ("lengths wrap", SLOTS, sqe_flags::LIST, 3, 16, &[16, u32::MAX, 1]),
    ];
    for (what, slots, flag, count, len, lens) in cases {
        let mut world = World::new();
        let (mut a, _b) = world.qp_pair_with(QpKind::Uc, slots);
        let (_, keys) = memory(&world, &a, &[0; 64]);
        let words: Vec<u64> = pieces_of(keys, BASE, lens)
            .iter()
            .flat_map(|piece| Piece { addr: BASE, ..*piece }.to_words())
            .collect();
        let sqe = Sqe {
            flags: flag,
            local_addr: 0,
            local_key: count,
            len,
            ..send(1, ANY, 0, 0)
        };
        let room = words.len().min(slots.words());
        a.sq.push_with(&sqe, slots, &words[..room]).unwrap();
        world.submit(&mut a);
        world.settle();
        let [(1, status)] = a.outcomes()[..] else {
            panic!("{what}: no answer")
        };
        let wrong = matches!(status, CqeStatus::Invalid | CqeStatus::Protection);
        assert!(wrong, "{what}: {status:?}");
        assert_eq!(
            world.device(&a).deregister(a.client, keys.local),
            Ok(true),
            "{what}"
        );
    }
}

#[test]
fn endpoints_of_the_ring_api_have_neither() {
    for flag in [sqe_flags::LIST, sqe_flags::INLINE] {
        let mut world = World::new();
        let mut a = world.user(0, EndpointKind::Datagram);
        a.post(Sqe {
            flags: flag,
            ..send(1, ANY, 0, 0)
        });
        world.submit(&mut a);
        world.settle();
        assert_eq!(a.outcomes(), [(1, CqeStatus::Invalid)]);
    }
}

#[test]
fn a_message_or_datagram_that_is_too_long_is_so_here() {
    let mut world = World::new();
    let (mut a, _b) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let (_, keys) = memory(&world, &a, &[0; 64]);
    a.post_list(send(1, ANY, 0, 0), &pieces_of(keys, BASE, &[1 << 30, 1]));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::TooLong)]);
    let (mut c, _d) = datagrams(&world);
    let (_, keys) = memory(&world, &c, &[0; 8192]);
    c.post_list(datagram(2), &pieces_of(keys, BASE, &[4000, 97]));
    world.submit(&mut c);
    world.settle();
    assert_eq!(c.outcomes(), [(2, CqeStatus::TooLong)]);
    assert_eq!(world.qp_state(&c), QpState::Sqe);
}

#[test]
fn entries_that_find_no_place_for_their_list_wait_for_one() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let ((_, ka), (_, kb)) = (memory(&world, &a, &pattern(64)), memory(&world, &b, &[0; 64]));
    // The queue has 16 entries, so there are 16 places. Nothing can be finished without receives.
    for name in 0..24 {
        a.post_list(send(name, ANY, 0, 0), &pieces_of(ka, BASE, &[3, 5]));
        world.submit(&mut a);
    }
    world.wait(10_000_000);
    assert_eq!(a.outcomes(), []);
    assert_eq!(a.sq.free(16).unwrap(), 16 - 8, "eight are not taken");
    for name in 0..24 {
        b.receive(name, kb, BASE, 64);
        if name % 8 == 7 {
            world.submit(&mut b);
            world.settle();
        }
    }
    let all = |from| {
        (from..from + 24)
            .map(|name| (name, CqeStatus::Ok))
            .collect::<Vec<_>>()
    };
    assert_eq!((a.outcomes(), b.outcomes()), (all(0), all(0)));
}

#[test]
fn places_are_used_again_for_as_long_as_there_is_work() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let (mine, theirs) = (memory(&world, &a, &[0; 64]), memory(&world, &b, &[0; 64]));
    for round in 0..200_u64 {
        mine.0.0.lock().unwrap().fill(round as u8);
        for name in 0..3 {
            b.receive_list(name, &pieces_of(theirs.1, BASE, &[5, 11]));
            a.post_list(send(name, ANY, 0, 0), &pieces_of(mine.1, BASE, &[9, 7]));
        }
        a.post_inline(
            rma(Op::Write, 3, ANY, 0, 0, (BASE + 32, theirs.1.remote)),
            &[!round as u8; 9],
        );
        world.submit(&mut b);
        world.submit(&mut a);
        world.settle();
        assert_eq!((a.outcomes().len(), b.outcomes().len()), (4, 3), "round {round}");
        assert_eq!(theirs.0.bytes()[..16], [round as u8; 16]);
        assert_eq!(theirs.0.bytes()[32..41], [!round as u8; 9]);
    }
    for (qp, keys) in [(&a, mine.1), (&b, theirs.1)] {
        assert_eq!(world.device(qp).deregister(qp.client, keys.local), Ok(true));
    }
}

#[test]
fn a_region_of_one_piece_lives_until_the_operation_is_over_unless_it_is_revoked() {
    for revoke in [false, true] {
        let mut world = World::new();
        let (mut a, b) = world.qp_pair_with(QpKind::Rc, SLOTS);
        let (_, first) = memory(&world, &a, &pattern(30_000));
        let (_, second) = memory(&world, &a, &pattern(30_000));
        let (_, kb) = memory(&world, &b, &[0; 60_000]);
        let list = [
            pieces_of(first, BASE, &[30_000]),
            pieces_of(second, BASE, &[30_000]),
        ]
        .concat();
        a.post_list(rma(Op::Write, 1, ANY, 0, 0, (BASE, kb.remote)), &list);
        world.submit(&mut a);
        world.sides[0].service(world.now);
        let device = world.device(&a);
        assert_eq!(device.deregister(a.client, second.local), Ok(false));
        if revoke {
            assert_eq!(device.reclaim(a.client, second.local, true), Ok(true));
        }
        world.settle();
        let status = if revoke { CqeStatus::Flushed } else { CqeStatus::Ok };
        assert_eq!(a.outcomes(), [(1, status)]);
        let device = world.device(&a);
        let idle = device.home().idle.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(idle, u32::from(!revoke), "the owner is told when it waits");
        if !revoke {
            assert_eq!(device.reclaim(a.client, second.local, false), Ok(true));
        }
        assert_eq!(device.deregister(a.client, first.local), Ok(true));
    }
}

#[test]
fn what_a_list_receives_after_a_piece_was_revoked_goes_to_the_others() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let (_, ka) = memory(&world, &a, &pattern(3_000));
    let (first, k1) = memory(&world, &b, &[0; 1_000]);
    let (_, k2) = memory(&world, &b, &[0; 1_000]);
    let (third, k3) = memory(&world, &b, &[0; 1_000]);
    let list = [k1, k2, k3].map(|keys| pieces_of(keys, BASE, &[1_000])[0]);
    b.receive_list(50, &list);
    world.submit(&mut b);
    a.post(send(1, ka, BASE, 3_000));
    world.submit(&mut a);
    world.sides[0].service(world.now);
    // It arrives, which takes the receive, and is not copied yet.
    let now = world.now;
    crate::world::deliver(&world.sides[0], &world.sides[1], now, &mut |_| ());
    let device = world.device(&b);
    assert_eq!(device.deregister(b.client, k2.local), Ok(false));
    assert_eq!(device.reclaim(b.client, k2.local, true), Ok(true));
    world.settle();
    assert_eq!(first.bytes(), pattern(3_000)[..1_000]);
    assert_eq!(third.bytes(), pattern(3_000)[2_000..]);
    drop(b.poll());
    for keys in [k1, k3] {
        assert_eq!(world.device(&b).deregister(b.client, keys.local), Ok(true));
    }
}

#[test]
fn a_queue_pair_that_goes_gives_back_what_its_lists_held() {
    for reset in [false, true] {
        let mut world = World::new();
        let (mut a, mut b) = world.qp_pair_with(QpKind::Rc, SLOTS);
        let (_, ka) = memory(&world, &a, &pattern(50_000));
        let (_, kb) = memory(&world, &b, &[0; 50_000]);
        b.receive_list(50, &pieces_of(kb, BASE, &[25_000, 25_000]));
        world.submit(&mut b);
        for name in 0..4 {
            a.post_list(send(name, ANY, 0, 0), &pieces_of(ka, BASE, &[25_000, 25_000]));
        }
        world.submit(&mut a);
        world.turn();
        for (qp, keys) in [(&a, ka), (&b, kb)] {
            if reset {
                world.to(qp, QpState::Reset);
            } else {
                let device = world.device(qp);
                device.destroy_endpoint(qp.client, qp.ep, world.now).unwrap();
                assert_eq!(device.deregister(qp.client, keys.local), Ok(true));
            }
        }
        world.settle();
        if reset {
            for (qp, keys) in [(&a, ka), (&b, kb)] {
                assert_eq!(world.device(qp).deregister(qp.client, keys.local), Ok(true));
            }
        }
    }
}

#[test]
fn a_frame_that_is_being_filled_when_its_queue_pair_goes_is_filled_with_what_was_posted() {
    for inline in [false, true] {
        let mut world = World::new();
        let (mut a, b) = world.qp_pair_with(QpKind::Rc, SLOTS);
        let bytes = pattern(3_000);
        let ((_, ka), (theirs, kb)) = (memory(&world, &a, &bytes), memory(&world, &b, &[0xaa; 3_000]));
        if inline {
            // Behind enough of others for the link's lock to be given up.
            for at in 0..15 {
                let to = (BASE + 100 * at, kb.remote);
                let from = 100 * at as usize;
                a.post_inline(rma(Op::Write, at, ANY, 0, 0, to), &bytes[from..from + 100]);
            }
        } else {
            let list = pieces_of(ka, BASE, &[1_000, 2_000]);
            a.post_list(rma(Op::Write, 1, ANY, 0, 0, (BASE, kb.remote)), &list);
        }
        let device = Arc::clone(&world.sides[0].device);
        let (client, ep) = (a.client, a.ep);
        let (send, destroyed) = std::sync::mpsc::channel();
        let go = move || {
            let its = Arc::clone(&device);
            let destroy = move || send.send(its.destroy_endpoint(client, ep, 0)).unwrap();
            std::thread::spawn(destroy);
            // It waits for this turn, and has done all that it does before.
            while device.home().relaxed.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
        };
        *world.sides[0].port.at_head.lock().unwrap() = Some(Box::new(go));
        world.submit(&mut a);
        world.settle();
        let happened = world.sides[0].port.at_head.lock().unwrap().is_none();
        assert!(happened, "no frame was filled without the lock");
        assert_eq!(destroyed.recv(), Ok(Ok(())));
        world.settle();
        let seen = theirs.bytes();
        let wrong = (0..3_000).find(|at| seen[*at] != 0xaa && seen[*at] != bytes[*at]);
        assert_eq!(wrong, None, "inline: {inline}");
        assert_eq!(world.device(&a).deregister(a.client, ka.local), Ok(true));
    }
}
