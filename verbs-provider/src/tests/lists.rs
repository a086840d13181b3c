//! Requests with several buffers, and inline data.

use std::ptr;

use rdma_core_sys::*;
use usb4_ring::raw::{Op as RingOp, Piece, Slots, Sqe};

use super::{World, buffer, request};
use crate::qp_post;
use crate::send::{self, Kind, Rules};
use crate::slot::Inline;

const LIST: u8 = 16;
const INLINE: u8 = 32;

fn element(addr: u64, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}

fn with_list(opcode: i32, list: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr = request(opcode, &mut list[0]);
    wr.sg_list = list.as_mut_ptr();
    wr.num_sge = i32::try_from(list.len()).unwrap();
    wr
}

/// Takes the one entry that was posted, and its slot.
fn taken(world: &World) -> (Sqe, Vec<u64>) {
    let mut sq = world.open.sq(world.qp);
    let mut last = None;
    while let Some(sqe) = sq.peek().unwrap() {
        last = Some((sqe, world.open.slot(&sq, world.qp)));
        sq.advance();
    }
    last.unwrap()
}

fn pieces(slot: &[u64], count: usize) -> Vec<(u64, u32, u32)> {
    let words = slot.chunks_exact(2).take(count);
    words
        .map(|words| Piece::from_words([words[0], words[1]]))
        .map(|piece| (piece.addr, piece.len, piece.local_key))
        .collect()
}

#[test]
fn a_list_is_in_the_slot_of_its_entry() {
    let world = World::with(IBV_QPT_RC, |attr| attr.cap.max_send_sge = 3);
    let mut list = [
        element(0x1000, 3, 11),
        element(7, 0, 0),
        element(0x2001, 1000, 12),
    ];
    for (opcode, op) in [
        (IBV_WR_SEND, RingOp::Send),
        (IBV_WR_RDMA_WRITE, RingOp::Write),
        (IBV_WR_RDMA_READ, RingOp::Read),
    ] {
        assert_eq!(world.post(&mut with_list(opcode, &mut list)), 0);
        let (sqe, slot) = taken(&world);
        assert_eq!((sqe.op, sqe.flags, sqe.local_addr), (op.code(), LIST, 0));
        assert_eq!((sqe.local_key, sqe.len), (3, 1003));
        assert_eq!(sqe.check_verbs(), Ok(op));
        assert_eq!(pieces(&slot, 3), [(0x1000, 3, 11), (7, 0, 0), (0x2001, 1000, 12)]);
    }
    // One needs none, and has none.
    assert_eq!(world.post(&mut with_list(IBV_WR_SEND, &mut list[..1])), 0);
    let (sqe, _) = taken(&world);
    assert_eq!(
        (sqe.flags, sqe.local_addr, sqe.local_key, sqe.len),
        (0, 0x1000, 11, 3)
    );
}

#[test]
fn lengths_that_are_more_than_any_message_stay_so() {
    let world = World::with(IBV_QPT_RC, |attr| attr.cap.max_send_sge = 2);
    let mut list = [element(0, u32::MAX, 11), element(0, 3, 11)];
    assert_eq!(world.post(&mut with_list(IBV_WR_SEND, &mut list)), 0);
    let (sqe, _) = taken(&world);
    assert_eq!(sqe.len, u32::MAX);
    assert!(sqe.check_verbs().is_err());
}

#[test]
fn inline_data_is_copied_when_it_is_posted() {
    for kind in [IBV_QPT_RC, IBV_QPT_UC] {
        let world = World::with(kind, |attr| attr.cap.max_inline_data = 60);
        let mut bytes: Vec<u8> = (0..64).collect();
        let addr = bytes.as_mut_ptr().expose_provenance() as u64;
        // Keys are not looked at.
        let mut list = [
            element(addr, 30, 99),
            element(1, 0, 0),
            element(addr + 30, 31, 98),
        ];
        let mut wr = with_list(IBV_WR_RDMA_WRITE_WITH_IMM, &mut list);
        wr.send_flags |= IBV_SEND_INLINE;
        assert_eq!(world.post(&mut wr), 0);
        bytes.fill(0xff);
        let (sqe, slot) = taken(&world);
        assert_eq!((sqe.flags, sqe.local_key, sqe.len), (INLINE | 1, 0, 61));
        assert_eq!(sqe.check_verbs(), Ok(RingOp::Write));
        let seen: Vec<u8> = slot.iter().flat_map(|word| word.to_le_bytes()).collect();
        let expected: Vec<u8> = (0..61).collect();
        assert_eq!(seen[..61], expected);
    }
}

#[test]
fn short_inline_data_of_a_send_is_in_the_entry_itself() {
    let world = World::with(IBV_QPT_RC, |attr| attr.cap.max_inline_data = 1);
    let bytes = *b"twenty-four bytes, whole!";
    let addr = bytes.as_ptr().expose_provenance() as u64;
    for (len, flags, prefix) in [(0, 0, 0), (1, 0, 1), (24, 0, 24), (25, INLINE, 0)] {
        let mut sge = element(addr, len, 0);
        let mut wr = request(IBV_WR_SEND, &mut sge);
        wr.send_flags |= IBV_SEND_INLINE;
        assert_eq!(world.post(&mut wr), 0);
        let (sqe, _) = taken(&world);
        assert_eq!((sqe.flags, sqe.prefix_len), (flags, prefix), "{len} bytes");
        assert_eq!(sqe.check_verbs(), Ok(RingOp::Send));
        assert_eq!(sqe.prefix()[..usize::from(prefix)], bytes[..usize::from(prefix)]);
    }
}

#[test]
fn a_datagrams_inline_data_is_in_the_slot_however_short() {
    let rules = Rules {
        kind: Kind::Ud,
        all_signalled: false,
        sends: Slots::holding(1, 1).unwrap(),
        receives: Slots::NONE,
    };
    let bytes = [7u8; 2];
    let mut sqe = send::begin(&rules, IBV_WR_SEND, IBV_SEND_SIGNALED, 1).unwrap();
    send::set_target(&mut sqe, 3, 0x1122_3344);
    let mut inline = Inline::new(&rules);
    // SAFETY: they are there.
    unsafe { inline.add(bytes.as_ptr().expose_provenance() as u64, 2) }.unwrap();
    let words = inline.set(&rules, &mut sqe).unwrap();
    assert_eq!((sqe.flags, sqe.len, sqe.prefix_len), (INLINE, 2, 0));
    assert_eq!((sqe.ah, sqe.args[0]), (3, 0x1122_3344));
    assert_eq!(words.as_slice(), [0x0707]);
}

#[test]
fn more_than_a_request_may_have_is_refused() {
    let world = World::with(IBV_QPT_RC, |attr| attr.cap.max_send_sge = 3);
    // What was asked for is rounded up.
    let mut five = [buffer(); 5];
    assert_eq!(world.post(&mut with_list(IBV_WR_SEND, &mut five[..4])), 0);
    let mut chain = [
        with_list(IBV_WR_SEND, &mut five[..4]),
        with_list(IBV_WR_SEND, &mut five),
    ];
    chain[0].next = &raw mut chain[1];
    let (result, bad) = world.post_chain(&mut chain[0]);
    assert_eq!((result, bad), (libc::ENOMEM, &raw mut chain[1]));
    let mut none = with_list(IBV_WR_SEND, &mut five);
    none.num_sge = -1;
    assert_eq!(world.post(&mut none), libc::EINVAL);
    // An atomic has one buffer; nothing but sends and writes has inline data.
    let mut words = [element(0, 4, 11), element(8, 4, 11)];
    let mut atomic = with_list(IBV_WR_ATOMIC_FETCH_AND_ADD, &mut words);
    assert_eq!(world.post(&mut atomic), libc::EINVAL);
    let bytes = [0u8; 65];
    let mut sge = element(bytes.as_ptr().expose_provenance() as u64, 8, 11);
    for opcode in [IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD] {
        let mut wr = request(opcode, &mut sge);
        wr.send_flags |= IBV_SEND_INLINE;
        assert_eq!(world.post(&mut wr), libc::EINVAL);
    }
    sge.length = 65;
    let mut long = request(IBV_WR_SEND, &mut sge);
    long.send_flags |= IBV_SEND_INLINE;
    assert_eq!(world.post(&mut long), libc::ENOMEM);
    // Who has not asked for any has none.
    let world = World::new(IBV_QPT_RC);
    sge.length = 1;
    let mut short = request(IBV_WR_SEND, &mut sge);
    short.send_flags |= IBV_SEND_INLINE;
    assert_eq!(world.post(&mut short), libc::ENOMEM);
}

#[test]
fn a_receive_may_have_a_list() {
    let world = World::with(IBV_QPT_RC, |attr| attr.cap.max_recv_sge = 2);
    let mut list = [element(0x1000, 40, 11), element(0x2000, 60, 12)];
    let receive = |count: i32, list: &mut [ibv_sge]| {
        let mut wr = ibv_recv_wr {
            wr_id: 3,
            next: ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: count,
        };
        // SAFETY: a queue pair of ours, and a request.
        unsafe { qp_post::post_recv(world.qp, &mut wr, &mut ptr::null_mut()) }
    };
    assert_eq!(receive(2, &mut list), 0);
    let mut rq = world.open.rq(world.qp);
    let rqe = rq.peek().unwrap().unwrap();
    assert_eq!((rqe.user_data, rqe.len, rqe.pieces()), (3, 100, 2));
    assert_eq!((rqe.addr, rqe.local_key), (0, 0));
    let slot = world.open.slot(&rq, world.qp);
    assert_eq!(pieces(&slot, 2), [(0x1000, 40, 11), (0x2000, 60, 12)]);
    assert_eq!(receive(5, &mut [buffer(); 5]), libc::EINVAL);
    assert_eq!(receive(-1, &mut list), libc::EINVAL);
    let mut huge = [element(0, u32::MAX, 11), element(0, 1, 11)];
    assert_eq!(receive(2, &mut huge), libc::EINVAL);
}

#[test]
fn a_queue_pair_says_what_its_requests_may_have() {
    let world = World::new(IBV_QPT_RC);
    let caps = |send: u32, receive: u32, inline: u32| {
        let mut attr = super::attr(world.cq, IBV_QPT_UD);
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (send, receive);
        attr.cap.max_inline_data = inline;
        // SAFETY: objects of ours.
        unsafe {
            let qp = crate::qp::create_qp(world.pd, &mut attr);
            assert!(!qp.is_null());
            assert_eq!(crate::qp::destroy_qp(qp), 0);
        }
        (
            attr.cap.max_send_sge,
            attr.cap.max_recv_sge,
            attr.cap.max_inline_data,
        )
    };
    assert_eq!(caps(1, 1, 0), (1, 1, 0));
    assert_eq!(caps(0, 2, 1), (4, 4, 64));
    assert_eq!(caps(5, 16, 0), (8, 16, 128));
    assert_eq!(caps(1, 1, 220), (16, 1, 256));
}
