//! The extended calls.

use std::mem;
use std::ptr;

use rdma_core_sys::*;
use usb4_ring::raw::{Cqe, CqeStatus, Op as RingOp, Piece, cqe_flags, sqe_flags};

use super::{World, attr};
use crate::fake::{Open, library, of};
use crate::{cq, cq_ex, pd, qp, qp_ex};

#[test]
fn a_queue_is_read_field_by_field() {
    let world = World::new(IBV_QPT_RC);
    let mut init = ibv_cq_init_attr_ex {
        cqe: 8,
        cq_context: ptr::null_mut(),
        channel: ptr::null_mut(),
        comp_vector: 0,
        wc_flags: IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM,
        comp_mask: 0,
        flags: 0,
        parent_domain: ptr::null_mut(),
    };
    // SAFETY: objects of an open context; `start_poll` and the like as libibverbs has it.
    unsafe {
        let cq = cq_ex::create_cq_ex(world.open.0, &mut init);
        let mut device = world.open.cq(cq.cast());
        let mut poll = ibv_poll_cq_attr { comp_mask: 0 };
        let start = (*cq).start_poll.unwrap();
        assert_eq!(start(cq, &mut poll), libc::ENOENT);
        for (user_data, status) in [(1, CqeStatus::Ok), (2, CqeStatus::Access)] {
            let entry = Cqe {
                user_data,
                op: RingOp::Send.code(),
                status: status.code(),
                flags: cqe_flags::RECV | cqe_flags::IMM,
                len: 50,
                value: 0x0102_0304,
                ..Cqe::default()
            };
            device.push(&of(77, &entry)).unwrap();
        }
        device.publish();
        assert_eq!(start(cq, &mut poll), 0);
        assert_eq!(((*cq).wr_id, (*cq).status), (1, IBV_WC_SUCCESS));
        assert_eq!((*cq).read_opcode.unwrap()(cq), IBV_WC_RECV);
        assert_eq!((*cq).read_byte_len.unwrap()(cq), 50);
        assert_eq!((*cq).read_imm_data.unwrap()(cq), 0x0102_0304_u32.to_be());
        assert_eq!((*cq).read_qp_num.unwrap()(cq), 77);
        assert_eq!((*cq).read_wc_flags.unwrap()(cq), IBV_WC_WITH_IMM);
        assert_eq!((*cq).next_poll.unwrap()(cq), 0);
        assert_eq!(((*cq).wr_id, (*cq).status), (2, IBV_WC_LOC_ACCESS_ERR));
        assert_eq!((*cq).next_poll.unwrap()(cq), libc::ENOENT);
        // Places are free when polling ends, not before.
        assert_eq!(device.free(8), Ok(6));
        (*cq).end_poll.unwrap()(cq);
        assert_eq!(device.free(8), Ok(8));
        assert_eq!(start(cq, &mut poll), libc::ENOENT);
        assert_eq!(cq::destroy_cq(cq.cast()), 0);
        // What is not there is not promised.
        init.wc_flags = 1 << 7;
        assert!(cq_ex::create_cq_ex(world.open.0, &mut init).is_null());
        assert_eq!(crate::errno::last(), libc::EOPNOTSUPP);
    }
}

#[test]
fn sends_are_built_call_by_call_wherever_the_library_keeps_its_mask() {
    for (layout, place) in [(Layout::Abi34, 0), (Layout::Abi57, 1), (Layout::Abi65, 2)] {
        let open = Open::new(library(layout));
        // SAFETY: objects of an open context; the calls in the order in which libibverbs has them.
        unsafe {
            let pd = pd::alloc_pd(open.0);
            let cq = cq::create_cq(open.0, 8, ptr::null_mut(), 0);
            let mut init: ibv_qp_init_attr_ex = mem::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
            init.cap = attr(cq, IBV_QPT_RC).cap;
            init.cap.max_inline_data = 8;
            init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            init.pd = pd;
            init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
            let qp = qp_ex::create_qp_ex(open.0, &mut init);
            let mask = |at: usize| qp.byte_add(QP_COMP_MASK[at]).cast::<u32>().read();
            for at in 0..3 {
                assert_eq!(mask(at), if at == place { VERBS_QP_EX } else { 0 });
            }
            let mut state: ibv_qp_attr = mem::zeroed();
            state.qp_state = IBV_QPS_RTS;
            assert_eq!(qp::modify_qp(qp, &mut state, IBV_QP_STATE), 0);
            build(&open, qp.cast());
            assert_eq!(qp::destroy_qp(qp), 0);
            assert_eq!(cq::destroy_cq(cq), 0);
            assert_eq!(pd::dealloc_pd(pd), 0);
        }
    }
}

/// # Safety
/// `qp` is a queue pair of `open` of which sends are built.
unsafe fn build(open: &Open, qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe {
        let (start, complete) = ((*qp).wr_start.unwrap(), (*qp).wr_complete.unwrap());
        let mut sq = open.sq(qp.cast());
        start(qp);
        ((*qp).wr_id, (*qp).wr_flags) = (1, IBV_SEND_SIGNALED);
        (*qp).wr_rdma_write.unwrap()(qp, 12, 0x2000);
        (*qp).wr_set_sge.unwrap()(qp, 11, 0x1000, 100);
        ((*qp).wr_id, (*qp).wr_flags) = (2, 0);
        (*qp).wr_send.unwrap()(qp);
        let mut bytes = *b"eight by";
        (*qp).wr_set_inline_data.unwrap()(qp, bytes.as_mut_ptr().cast(), 8);
        // Lists and longer inline data, each in its own slot.
        let list = [(11, 0x1000), (12, 0x2000), (13, 0x3000)].map(|(lkey, addr)| ibv_sge {
            addr,
            length: lkey,
            lkey,
        });
        ((*qp).wr_id, (*qp).wr_flags) = (3, IBV_SEND_SIGNALED);
        (*qp).wr_send.unwrap()(qp);
        (*qp).wr_set_sge_list.unwrap()(qp, 3, list.as_ptr());
        (*qp).wr_id = 4;
        (*qp).wr_rdma_write.unwrap()(qp, 12, 0x2000);
        let parts = [3, 0, 5].map(|length| ibv_data_buf {
            addr: bytes.as_mut_ptr().cast(),
            length,
        });
        (*qp).wr_set_inline_data_list.unwrap()(qp, 3, parts.as_ptr());
        bytes.fill(0);
        assert_eq!(sq.available(), Ok(0));
        assert_eq!(complete(qp), 0);
        let write = sq.pop().unwrap().unwrap();
        assert_eq!((write.op, write.user_data), (RingOp::Write.code(), 1));
        assert_eq!((write.args, write.len), ([0x2000, 12, 0, 0], 100));
        let send = sq.pop().unwrap().unwrap();
        assert_eq!(
            (send.user_data, send.flags, send.prefix_len),
            (2, sqe_flags::UNSIGNALED, 8)
        );
        let sqe = sq.peek().unwrap().unwrap();
        assert_eq!((sqe.user_data, sqe.flags, sqe.local_key, sqe.len), (3, 16, 3, 36));
        let piece = |slot: &[u64], at: usize| Piece::from_words([slot[2 * at], slot[2 * at + 1]]);
        let slot = open.slot(&sq, qp);
        let last = Piece {
            addr: 0x3000,
            local_key: 13,
            len: 13,
        };
        assert_eq!((piece(&slot, 0).addr, piece(&slot, 2)), (0x1000, last));
        sq.advance();
        let sqe = sq.peek().unwrap().unwrap();
        assert_eq!((sqe.user_data, sqe.flags, sqe.local_key, sqe.len), (4, 32, 0, 8));
        assert_eq!(&open.slot(&sq, qp)[0].to_le_bytes(), b"eigeight");
        sq.advance();
        sq.release();
        // What is given up is not posted.
        start(qp);
        (*qp).wr_send.unwrap()(qp);
        (*qp).wr_abort.unwrap()(qp);
        // And of what has a mistake in it, nothing.
        start(qp);
        (*qp).wr_send.unwrap()(qp);
        (*qp).wr_send.unwrap()(qp);
        (*qp).wr_set_inline_data.unwrap()(qp, [0u8; 65].as_mut_ptr().cast(), 65);
        assert_eq!(complete(qp), libc::ENOMEM);
        start(qp);
        (0..5).for_each(|_| (*qp).wr_send.unwrap()(qp));
        assert_eq!(complete(qp), libc::ENOMEM);
        assert_eq!(sq.available(), Ok(0));
    }
}
