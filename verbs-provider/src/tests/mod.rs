//! The provider between a libibverbs and a kernel that are played (`fake`): what an application posts is what the device
//! finds, and what the device completes is what the application polls.

mod extended;
mod lists;
mod objects;
mod posting;
mod srq;

use std::ffi::c_int;
use std::mem::{self, transmute};
use std::ptr;

use rdma_core_sys::*;
use usb4_ring::raw::Cqe;

use crate::fake::{Open, library, of};
use crate::{cq, pd, qp, qp_post};

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

/// A context with a protection domain, a completion queue and a queue pair.
struct World {
    open: Open,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
}

fn attr(cq: *mut ibv_cq, qp_type: c_int) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: ptr::null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        qp_type,
        sq_sig_all: 0,
    }
}

impl World {
    fn new(qp_type: c_int) -> Self {
        Self::with(qp_type, |_| ())
    }

    /// Ready to send.
    fn with(qp_type: c_int, change: impl FnOnce(&mut ibv_qp_init_attr)) -> Self {
        let open = Open::new(library(Layout::Abi34));
        // SAFETY: objects of an open context.
        unsafe {
            let pd = pd::alloc_pd(open.0);
            let cq = cq::create_cq(open.0, 8, ptr::null_mut(), 0);
            let mut attr = attr(cq, qp_type);
            change(&mut attr);
            let qp = qp::create_qp(pd, &mut attr);
            assert!(!pd.is_null() && !cq.is_null() && !qp.is_null());
            let world = Self { open, pd, cq, qp };
            world.set_state(IBV_QPS_RTS);
            world
        }
    }

    fn set_state(&self, state: c_int) {
        // SAFETY: integers.
        let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
        attr.qp_state = state;
        // SAFETY: a queue pair of ours.
        let modified = unsafe { qp::modify_qp(self.qp, &mut attr, IBV_QP_STATE) };
        assert_eq!(modified, 0);
    }

    fn post(&self, wr: &mut ibv_send_wr) -> c_int {
        self.post_chain(wr).0
    }

    fn post_chain(&self, wr: *mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
        let mut bad = ptr::null_mut();
        // SAFETY: a queue pair of ours, and requests.
        let result = unsafe { qp_post::post_send(self.qp, wr, &mut bad) };
        (result, bad)
    }

    fn poll(&self) -> Vec<ibv_wc> {
        let mut wc = [ibv_wc::default(); 8];
        // SAFETY: as the library has set it, of the type it is called with.
        let poll: PollCq = unsafe { transmute(self.open.ops().poll_cq) };
        // SAFETY: a completion queue of ours, and room.
        let count = unsafe { poll(self.cq, 8, wc.as_mut_ptr()) };
        wc[..usize::try_from(count).unwrap()].to_vec()
    }

    /// The device completes something of this queue pair's.
    fn complete(&self, entry: &Cqe) {
        // SAFETY: a queue pair of ours.
        self.complete_of(&[(unsafe { (*self.qp).qp_num }, *entry)]);
    }

    /// The device completes something of several queue pairs'.
    fn complete_of(&self, entries: &[(u32, Cqe)]) {
        let mut device = self.open.cq(self.cq);
        for (qpn, entry) in entries {
            device.push(&of(*qpn, entry)).unwrap();
        }
        device.publish();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: objects of an open context, each destroyed once, in order.
        unsafe {
            assert_eq!(qp::destroy_qp(self.qp), 0);
            assert_eq!(cq::destroy_cq(self.cq), 0);
            assert_eq!(pd::dealloc_pd(self.pd), 0);
        }
    }
}

fn request(opcode: c_int, sge: &mut ibv_sge) -> ibv_send_wr {
    // SAFETY: integers and pointers.
    let mut wr: ibv_send_wr = unsafe { mem::zeroed() };
    (wr.wr_id, wr.opcode) = (7, opcode);
    (wr.sg_list, wr.num_sge) = (sge, 1);
    wr.send_flags = IBV_SEND_SIGNALED;
    wr
}

fn buffer() -> ibv_sge {
    ibv_sge {
        addr: 0x1000,
        length: 100,
        lkey: 11,
    }
}
