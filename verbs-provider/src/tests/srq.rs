//! Shared receive queues, and invalidation.

use std::mem;
use std::ptr;

use rdma_core_sys::*;
use usb4_ring::raw::{OP_INVALIDATE, Op as RingOp, Piece, Rqe, Sqe, sqe_flags};

use super::{World, attr, buffer, request};
use crate::{qp, qp_ex, qp_post, srq};

fn receive(sge: &mut ibv_sge, wr_id: u64) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: sge,
        num_sge: 1,
    }
}

#[test]
fn a_shared_receive_queue_takes_receives_for_queue_pairs_without_one() {
    let world = World::new(IBV_QPT_RC);
    let mut init = ibv_srq_init_attr {
        srq_context: ptr::null_mut(),
        attr: ibv_srq_attr {
            max_wr: 3,
            max_sge: 1,
            srq_limit: 0,
        },
    };
    let mut sge = buffer();
    let mut bad = ptr::null_mut();
    // SAFETY: objects of an open context, and requests.
    unsafe {
        let shared = srq::create_srq(world.pd, &mut init);
        assert!(!shared.is_null());
        assert_eq!(init.attr.max_wr, 4);
        let mut wanted = attr(world.cq, IBV_QPT_RC);
        // What is asked of a queue that there is not to be does not matter.
        (wanted.srq, wanted.cap.max_recv_sge) = (shared, 99);
        let pair = qp::create_qp(world.pd, &mut wanted);
        assert!(!pair.is_null());
        let mut state: ibv_qp_attr = mem::zeroed();
        state.qp_state = IBV_QPS_RTS;
        assert_eq!(qp::modify_qp(pair, &mut state, IBV_QP_STATE), 0);
        let mut one = receive(&mut sge, 3);
        assert_eq!(qp_post::post_recv(pair, &mut one, &mut bad), libc::EINVAL);
        assert_eq!(bad, &raw mut one);

        let mut chain: Vec<_> = (0..6).map(|id| receive(&mut sge, id)).collect();
        for at in 0..5 {
            chain[at].next = &raw mut chain[at + 1];
        }
        // There is room for four; the file the queues are in would not take an ENTER.
        assert_eq!(srq::post_srq_recv(shared, &mut chain[0], &mut bad), libc::ENOMEM);
        assert_eq!(bad, &raw mut chain[4]);
        let mut queue = world.open.srq(shared);
        let expected = Rqe {
            user_data: 0,
            addr: 0x1000,
            local_key: 11,
            len: 100,
            reserved: 0,
        };
        assert_eq!(queue.pop().unwrap(), Some(expected));
        assert_eq!(queue.available(), Ok(3));

        let mut limit = ibv_srq_attr {
            srq_limit: 2,
            ..ibv_srq_attr::default()
        };
        assert_eq!(
            srq::modify_srq(shared, &mut limit, IBV_SRQ_MAX_WR),
            libc::EOPNOTSUPP
        );
        assert_eq!(srq::modify_srq(shared, &mut limit, IBV_SRQ_LIMIT), 0);
        let mut now = ibv_srq_attr::default();
        assert_eq!(srq::query_srq(shared, &mut now), 0);
        assert_eq!(now.srq_limit, 2);
        assert_eq!(qp::destroy_qp(pair), 0);
        assert_eq!(srq::destroy_srq(shared), 0);
        init.attr.max_wr = 0;
        assert!(srq::create_srq(world.pd, &mut init).is_null());
        assert_eq!(crate::errno::last(), libc::EINVAL);
    }
}

#[test]
fn a_shared_receive_may_have_a_list() {
    let world = World::new(IBV_QPT_RC);
    let mut init = ibv_srq_init_attr {
        srq_context: ptr::null_mut(),
        attr: ibv_srq_attr {
            max_wr: 4,
            max_sge: 3,
            srq_limit: 0,
        },
    };
    let element = |addr, length, lkey| ibv_sge { addr, length, lkey };
    let mut list = [
        element(0x1000, 40, 11),
        element(0x2000, 60, 12),
        element(7, 0, 0),
        element(0x3000, 1, 13),
        element(0x4000, 1, 13),
    ];
    let mut bad = ptr::null_mut();
    // SAFETY: objects of an open context, and requests.
    unsafe {
        let shared = srq::create_srq(world.pd, &mut init);
        assert!(!shared.is_null());
        // As much as there is room for.
        assert_eq!(init.attr.max_sge, 4);
        for (count, outcome) in [(3, 0), (4, 0), (1, 0), (5, libc::EINVAL)] {
            let mut wr = receive(&mut list[0], 3);
            (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), count);
            assert_eq!(srq::post_srq_recv(shared, &mut wr, &mut bad), outcome, "{count}");
            assert!(outcome == 0 || bad == &raw mut wr);
        }
        let mut queue = world.open.srq(shared);
        let rqe = queue.peek().unwrap().unwrap();
        assert_eq!((rqe.user_data, rqe.len, rqe.pieces()), (3, 100, 3));
        let slot = world.open.slot(&queue, shared);
        let pieces: Vec<_> = slot
            .chunks_exact(2)
            .map(|words| Piece::from_words([words[0], words[1]]))
            .map(|piece| (piece.addr, piece.len, piece.local_key))
            .collect();
        assert_eq!(pieces[..3], [(0x1000, 40, 11), (0x2000, 60, 12), (7, 0, 0)]);
        queue.advance();
        assert_eq!(queue.pop().unwrap().unwrap().pieces(), 4);
        let one = queue.pop().unwrap().unwrap();
        assert_eq!((one.addr, one.len, one.pieces()), (0x1000, 40, 0));
        assert_eq!(srq::destroy_srq(shared), 0);
        // More than there is.
        init.attr.max_sge = 17;
        assert!(srq::create_srq(world.pd, &mut init).is_null());
        assert_eq!(crate::errno::last(), libc::EINVAL);
    }
}

#[test]
fn invalidation_names_a_key_of_the_peers_or_of_this_side() {
    let world = World::new(IBV_QPT_RC);
    let mut sq = world.open.sq(world.qp);
    let mut sge = buffer();
    let mut wr = request(IBV_WR_SEND_WITH_INV, &mut sge);
    // A number of this host's, unlike immediate data.
    wr.imm_data = 0x0102_0304;
    assert_eq!(world.post(&mut wr), 0);
    let sent = sq.pop().unwrap().unwrap();
    assert_eq!(
        (sent.op, sent.flags),
        (RingOp::Send.code(), sqe_flags::INVALIDATE)
    );
    assert_eq!((sent.args[3], sent.len), (0x0102_0304, 100));
    assert_eq!(sent.check_verbs(), Ok(RingOp::Send));
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.send_flags = 0;
    assert_eq!(world.post(&mut wr), 0);
    let own = Sqe {
        op: OP_INVALIDATE,
        flags: sqe_flags::UNSIGNALED,
        user_data: 7,
        args: [0, 0x0102_0304, 0, 0],
        ..Sqe::default()
    };
    assert_eq!(sq.pop().unwrap(), Some(own));
    sq.release();
}

#[test]
fn invalidation_is_built_call_by_call_too() {
    let world = World::new(IBV_QPT_RC);
    // SAFETY: objects of an open context; the calls in the order in which libibverbs has them.
    unsafe {
        let mut init: ibv_qp_init_attr_ex = mem::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (world.cq, world.cq, IBV_QPT_RC);
        init.cap = attr(world.cq, IBV_QPT_RC).cap;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.pd = world.pd;
        init.send_ops_flags = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;
        let pair = qp_ex::create_qp_ex(world.open.0, &mut init);
        let mut state: ibv_qp_attr = mem::zeroed();
        state.qp_state = IBV_QPS_RTS;
        assert_eq!(qp::modify_qp(pair, &mut state, IBV_QP_STATE), 0);
        let built: *mut ibv_qp_ex = pair.cast();
        (*built).wr_start.unwrap()(built);
        ((*built).wr_id, (*built).wr_flags) = (1, IBV_SEND_SIGNALED);
        (*built).wr_send_inv.unwrap()(built, 77);
        (*built).wr_set_sge.unwrap()(built, 11, 0x1000, 100);
        (*built).wr_local_inv.unwrap()(built, 78);
        assert_eq!((*built).wr_complete.unwrap()(built), 0);
        let mut sq = world.open.sq(pair);
        let keys = |sqe: Sqe| (sqe.op, sqe.len, sqe.args[1], sqe.args[3]);
        assert_eq!(
            keys(sq.pop().unwrap().unwrap()),
            (RingOp::Send.code(), 100, 0, 77)
        );
        assert_eq!(keys(sq.pop().unwrap().unwrap()), (OP_INVALIDATE, 0, 78, 0));
        assert_eq!(qp::destroy_qp(pair), 0);
    }
}
