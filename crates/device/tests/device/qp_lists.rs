//! Lists of buffers and inline data: what arrives where.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use usb4_device::{Access, Keys, QpAttr, QpKind, QpState};
use usb4_ring_abi::{CqeStatus, Op, Slots, Sqe, cqe_flags, sqe_flags};

use crate::home::Memory;
use crate::slots::pieces_of;
use crate::world::{QKEY, User, World, pattern, rma, send};

const BASE: u64 = 0x10_0000;

pub(crate) const SLOTS: Slots = Slots::of(128).unwrap();

/// Memory of that many bytes that peers may use, zeroed or of a pattern.
pub(crate) fn memory(world: &World, qp: &User, bytes: &[u8]) -> (Memory, Keys) {
    let memory = Memory::of(bytes);
    let keys = world.register_pd(qp, &memory, Access::REMOTE_ALL);
    (memory, keys)
}

const ANY: Keys = Keys { local: 0, remote: 0 };

#[test]
fn bytes_keep_their_order_from_list_to_list() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut world = World::new();
        let (mut a, mut b) = world.qp_pair_with(kind, SLOTS);
        let bytes = pattern(20_000);
        let ((_, ka), (theirs, kb)) = (memory(&world, &a, &bytes), memory(&world, &b, &[0; 20_000]));
        // Cuts at other places, within frames and across them.
        b.receive_list(50, &pieces_of(kb, BASE, &[1, 4095, 4097, 7, 0, 3000]));
        world.submit(&mut b);
        a.post_list(
            send(1, ANY, 0, 0),
            &pieces_of(ka, BASE, &[3, 0, 1000, 4096, 1, 5001]),
        );
        world.submit(&mut a);
        a.spoil_slots();
        world.settle();
        assert_eq!(a.outcomes(), [(1, CqeStatus::Ok)]);
        let cqe = b.poll()[0];
        assert_eq!(
            (cqe.user_data, cqe.status(), cqe.len),
            (50, Some(CqeStatus::Ok), 10_101)
        );
        assert!(theirs.bytes()[..10_101] == bytes[..10_101]);
        assert_eq!(theirs.bytes()[10_101..], [0; 9_899]);
    }
}

#[test]
fn pieces_of_several_regions_are_written_and_read_as_one() {
    let mut world = World::new();
    let (mut a, b) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let bytes = pattern(9_000);
    let (first, second) = (memory(&world, &a, &bytes), memory(&world, &a, &[7; 100]));
    let (theirs, kb) = memory(&world, &b, &[0; 9_100]);
    let mut list = pieces_of(first.1, BASE, &[5_001]);
    list.extend(pieces_of(second.1, BASE + 3, &[97]));
    list.extend(pieces_of(first.1, BASE + 5_001, &[3_999]));
    a.post_list(rma(Op::Write, 1, ANY, 0, 0, (BASE, kb.remote)), &list);
    world.submit(&mut a);
    world.settle();
    let written = [&bytes[..5_001], &[7; 97], &bytes[5_001..]].concat();
    assert!(theirs.bytes()[..9_097] == written[..]);
    // Back into other pieces.
    let into = memory(&world, &a, &[0; 9_200]);
    let mut list = pieces_of(second.1, BASE + 1, &[13]);
    list.extend(pieces_of(into.1, BASE + 50, &[4_083, 1, 5_000]));
    a.post_list(rma(Op::Read, 2, ANY, 0, 0, (BASE, kb.remote)), &list);
    world.submit(&mut a);
    a.spoil_slots();
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Ok), (2, CqeStatus::Ok)]);
    assert_eq!(second.0.bytes()[..15], [&[7][..], &written[..13], &[7]].concat());
    assert!(into.0.bytes()[50..9_134] == written[13..]);
    assert_eq!((into.0.bytes()[49], into.0.bytes()[9_134]), (0, 0));
}

#[test]
fn lists_and_messages_without_bytes_are_messages() {
    let mut world = World::new();
    let (mut a, mut b) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let nowhere = Keys {
        local: 0xdead,
        remote: 0,
    };
    b.receive_list(50, &pieces_of(nowhere, 1, &[0, 0, 0]));
    b.receive_list(51, &[]);
    world.submit(&mut b);
    a.post_list(send(1, ANY, 0, 0), &pieces_of(nowhere, 1, &[0, 0]));
    a.post_inline(send(2, ANY, 0, 0), &[]);
    a.post_list(
        rma(Op::Read, 3, ANY, 0, 0, (0, 0)),
        &pieces_of(nowhere, 1, &[0, 0]),
    );
    world.submit(&mut a);
    world.settle();
    let done = a.outcomes();
    assert_eq!(done[..2], [(1, CqeStatus::Ok), (2, CqeStatus::Ok)]);
    assert_eq!(b.outcomes()[..2], [(50, CqeStatus::Ok), (51, CqeStatus::Ok)]);
}

#[test]
fn inline_data_is_the_senders_to_change_once_it_is_taken_and_survives_loss() {
    for lost in 0..3 {
        let mut world = World::new();
        let (mut a, mut b) = world.qp_pair_with(QpKind::Rc, SLOTS);
        let (theirs, kb) = memory(&world, &b, &[0; 512]);
        b.receive(50, kb, BASE, 128);
        world.submit(&mut b);
        let bytes = pattern(128);
        a.post_inline(send(1, ANY, 0, 0), &bytes[..125]);
        a.post_inline(rma(Op::Write, 2, ANY, 0, 0, (BASE + 128, kb.remote)), &bytes);
        a.post_inline(rma(Op::Write, 3, ANY, 0, 0, (BASE + 256, kb.remote)), &bytes[..1]);
        world.submit(&mut a);
        a.spoil_slots();
        for _ in 0..lost {
            world.sides[0].service(world.now);
            world.drop_frames();
            world.wait(100_000_000);
        }
        world.settle();
        let done: Vec<_> = (1..4).map(|n| (n, CqeStatus::Ok)).collect();
        assert_eq!(a.outcomes(), done, "lost {lost} times");
        assert_eq!(b.outcomes(), [(50, CqeStatus::Ok)]);
        let seen = theirs.bytes();
        assert_eq!((&seen[..125], &seen[125..128]), (&bytes[..125], &[0; 3][..]));
        assert_eq!(
            (&seen[128..256], &seen[256..258]),
            (&bytes[..], &[bytes[0], 0][..])
        );
    }
}

#[test]
fn a_list_is_sent_again_after_loss_as_it_was_posted() {
    let mut world = World::with(|config| config.payload_crc = true);
    let (mut a, mut b) = world.qp_pair_with(QpKind::Rc, SLOTS);
    let bytes = pattern(60_000);
    let ((_, ka), (theirs, kb)) = (memory(&world, &a, &bytes), memory(&world, &b, &[0; 60_000]));
    b.receive_list(50, &pieces_of(kb, BASE, &[20_001, 20_001, 19_998]));
    world.submit(&mut b);
    let count = Arc::new(AtomicU32::new(0));
    let frames = Arc::clone(&count);
    world.damage = Box::new(move |frame| {
        // A byte of every fifth frame with payload.
        if frame.len() > 2_000 && frames.fetch_add(1, Ordering::Relaxed) % 5 == 1 {
            frame[1_000] ^= 1;
        }
    });
    a.post_list(send(1, ANY, 0, 0), &pieces_of(ka, BASE, &[7, 29_993, 1, 29_999]));
    world.submit(&mut a);
    a.spoil_slots();
    while world.turn() && count.load(Ordering::Relaxed) < 2 {}
    b.spoil_slots();
    world.settle();
    assert!(count.load(Ordering::Relaxed) > 16, "nothing was sent again");
    assert_eq!(a.outcomes(), [(1, CqeStatus::Ok)]);
    assert_eq!(b.poll()[0].len, 60_000);
    assert!(theirs.bytes() == bytes);
}

/// Two datagram queue pairs that send and receive, the first with a handle of the second.
pub(crate) fn datagrams(world: &World) -> (User, User) {
    let mut a = world.qp_with(0, QpKind::Ud, SLOTS);
    let b = world.qp_with(1, QpKind::Ud, SLOTS);
    for qp in [&a, &b] {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr {
                state: Some(state),
                qkey: Some(QKEY),
                ..QpAttr::default()
            };
            world.modify(qp, &attr).unwrap();
        }
    }
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    (a, b)
}

pub(crate) fn datagram(name: u64) -> Sqe {
    Sqe {
        args: [QKEY.into(), 0, 0, 0],
        ..send(name, ANY, 0, 0)
    }
}

#[test]
fn a_datagrams_header_may_lie_across_pieces() {
    let cuts: [&[u32]; 4] = [
        &[7, 1, 32, 200],
        &[40, 200],
        &[39, 2, 199],
        &[13, 13, 13, 13, 188],
    ];
    for lens in cuts {
        let mut world = World::new();
        let (mut a, mut b) = datagrams(&world);
        let bytes = pattern(200);
        let ((_, ka), (theirs, kb)) = (memory(&world, &a, &bytes), memory(&world, &b, &[0; 512]));
        // Not next to each other.
        let mut list = pieces_of(kb, BASE, lens);
        for (gap, piece) in list.iter_mut().enumerate() {
            piece.addr += gap as u64 * 16;
        }
        b.receive_list(50, &list);
        b.receive_list(51, &list);
        world.submit(&mut b);
        a.post_list(datagram(1), &pieces_of(ka, BASE, &[99, 101]));
        world.submit(&mut a);
        world.settle();
        b.spoil_slots();
        let together = || -> Vec<u8> {
            let bytes = theirs.bytes();
            let part = |piece: &usb4_ring_abi::Piece| {
                let from = (piece.addr - BASE) as usize;
                bytes[from..from + piece.len as usize].to_vec()
            };
            list.iter().flat_map(part).collect()
        };
        let cqe = b.poll()[0];
        assert_eq!((cqe.user_data, cqe.len, cqe.src), (50, 240, a.addr.ep));
        let seen = together();
        assert_eq!(
            (seen[0] >> 4, &seen[8..24]),
            (6, &a.addr.node.gid()[..]),
            "{lens:?}"
        );
        assert_eq!((&seen[24..40], &seen[40..]), (&b.addr.node.gid()[..], &bytes[..]));
        // Inline, with immediate data.
        a.post_inline(
            Sqe {
                flags: sqe_flags::IMM,
                args: [QKEY.into(), 0, 0, 5],
                ..datagram(2)
            },
            &[9; 100],
        );
        world.submit(&mut a);
        world.settle();
        assert_eq!(a.outcomes(), [(1, CqeStatus::Ok), (2, CqeStatus::Ok)]);
        // The second list had been spoilt before it was taken.
        let cqe = b.poll()[0];
        assert_eq!((cqe.user_data, cqe.status()), (51, Some(CqeStatus::Protection)));
        assert_eq!(cqe.flags & cqe_flags::RECV, cqe_flags::RECV);
    }
}

#[test]
fn a_datagram_without_bytes_leaves_nothing_held_of_a_receive_for_its_header() {
    let mut world = World::new();
    let (mut a, mut b) = datagrams(&world);
    let (theirs, kb) = memory(&world, &b, &[0; 80]);
    b.receive(50, kb, BASE, 40);
    b.receive_list(51, &pieces_of(kb, BASE + 40, &[11, 29]));
    world.submit(&mut b);
    a.post(datagram(1));
    a.post_inline(datagram(2), &[]);
    world.submit(&mut a);
    world.settle();
    let received: Vec<_> = b.poll().iter().map(|cqe| (cqe.user_data, cqe.len)).collect();
    assert_eq!(received, [(50, 40), (51, 40)]);
    assert_eq!(theirs.bytes()[..40], theirs.bytes()[40..]);
    assert_eq!(world.device(&b).deregister(b.client, kb.local), Ok(true));
}
