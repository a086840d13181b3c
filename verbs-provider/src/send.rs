//! From work requests of verbs to entries of the ring API.

use std::ffi::{c_int, c_uint};

use rdma_core_sys::*;
use usb4_ring::raw::{OP_INVALIDATE, Op, Rqe, Slots, Sqe, sqe_flags};

use crate::handles::Target;
use crate::slot;
use crate::wc::carried;

/// Flags of an entry that only verbs kinds of endpoints have.
mod flag {
    /// Not before this flow's earlier reads and atomics have completed.
    pub(super) const FENCE: u8 = 4;
    /// The receiver, if it waits for such only, is woken.
    pub(super) const SOLICITED: u8 = 8;
    /// The receiver has a region invalidated.
    pub(super) const INVALIDATE: u8 = 128;
}

/// Kinds of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
}

impl Kind {
    /// The kind that verbs calls so, if there is one.
    pub(crate) fn of(qp_type: c_int) -> Option<Self> {
        match qp_type {
            IBV_QPT_RC => Some(Self::Rc),
            IBV_QPT_UC => Some(Self::Uc),
            IBV_QPT_UD => Some(Self::Ud),
            _ => None,
        }
    }

    /// Whether it has the operation.
    fn has(self, op: Op) -> bool {
        match self {
            Self::Rc => true,
            Self::Uc => matches!(op, Op::Send | Op::Write),
            Self::Ud => op == Op::Send,
        }
    }
}

/// What entries of a queue pair depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) kind: Kind,
    /// Every send completes.
    pub(crate) all_signalled: bool,
    /// What requests have room for, beside one buffer.
    pub(crate) sends: Slots,
    /// What receives have room for.
    pub(crate) receives: Slots,
}

/// A request without its buffer and its target.
///
/// # Errors
/// The queue pair has no such operation.
#[inline]
pub(crate) fn begin(rules: &Rules, opcode: c_int, flags: c_uint, wr_id: u64) -> Result<Sqe, c_int> {
    let (op, immediate) = match opcode {
        IBV_WR_LOCAL_INV if rules.kind != Kind::Ud => return Ok(invalidation(rules, flags, wr_id)),
        IBV_WR_SEND_WITH_INV if rules.kind != Kind::Rc => return Err(libc::EINVAL),
        IBV_WR_SEND | IBV_WR_SEND_WITH_INV => (Op::Send, false),
        IBV_WR_SEND_WITH_IMM => (Op::Send, true),
        IBV_WR_RDMA_WRITE => (Op::Write, false),
        IBV_WR_RDMA_WRITE_WITH_IMM => (Op::Write, true),
        IBV_WR_RDMA_READ => (Op::Read, false),
        IBV_WR_ATOMIC_CMP_AND_SWP => (Op::CompareSwap, false),
        IBV_WR_ATOMIC_FETCH_AND_ADD => (Op::FetchAdd, false),
        IBV_WR_BIND_MW | IBV_WR_TSO => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::EINVAL),
    };
    if !rules.kind.has(op) {
        return Err(libc::EINVAL);
    }
    let mut sqe = Sqe {
        op: op.code(),
        user_data: wr_id,
        ..Sqe::default()
    };
    if immediate {
        sqe.flags |= sqe_flags::IMM;
    }
    if opcode == IBV_WR_SEND_WITH_INV {
        sqe.flags |= flag::INVALIDATE;
    }
    if !rules.all_signalled && flags & IBV_SEND_SIGNALED == 0 {
        sqe.flags |= sqe_flags::UNSIGNALED;
    }
    // What others do has nothing to wait for.
    if flags & IBV_SEND_FENCE != 0 && rules.kind == Kind::Rc {
        sqe.flags |= flag::FENCE;
    }
    // Others wake nobody.
    if flags & IBV_SEND_SOLICITED != 0 && (op == Op::Send || immediate) {
        sqe.flags |= flag::SOLICITED;
    }
    Ok(sqe)
}

/// A request that has a region invalidated of this side's.
fn invalidation(rules: &Rules, flags: c_uint, wr_id: u64) -> Sqe {
    let mut sqe = Sqe {
        op: OP_INVALIDATE,
        user_data: wr_id,
        ..Sqe::default()
    };
    if !rules.all_signalled && flags & IBV_SEND_SIGNALED == 0 {
        sqe.flags |= sqe_flags::UNSIGNALED;
    }
    sqe
}

/// Says which region is invalidated: of the peer's, or of this side's.
#[inline]
pub(crate) fn set_invalidated(sqe: &mut Sqe, rkey: u32) {
    let at = if sqe.op == OP_INVALIDATE { 1 } else { 3 };
    sqe.args[at] = u64::from(rkey);
}

/// Gives a request its buffer.
#[inline]
pub(crate) fn set_buffer(sqe: &mut Sqe, addr: u64, len: u32, lkey: u32) {
    // No bytes are of no region.
    let lkey = if len == 0 { 0 } else { lkey };
    (sqe.local_addr, sqe.len, sqe.local_key) = (addr, len, lkey);
}

/// Says which memory a WRITE or READ is about.
#[inline]
pub(crate) fn set_remote(sqe: &mut Sqe, addr: u64, rkey: u32) {
    (sqe.args[0], sqe.args[1]) = (addr, u64::from(rkey));
}

/// Says what an atomic does: what is added or put there, and what is compared.
#[inline]
pub(crate) fn set_operands(sqe: &mut Sqe, operand: u64, compare: u64) {
    (sqe.args[2], sqe.args[3]) = (operand, compare);
}

/// Gives a request immediate data, in network order.
#[inline]
pub(crate) fn set_immediate(sqe: &mut Sqe, imm_data: u32) {
    sqe.args[3] = carried(imm_data);
}

/// Says whom a datagram is for: by handle, and with what key.
#[inline]
pub(crate) fn set_target(sqe: &mut Sqe, handle: u32, qkey: u32) {
    sqe.ah = handle;
    sqe.args[0] = u64::from(qkey);
}

/// Whether a request is whole.
///
/// # Errors
/// It is an atomic whose buffer is not one of 8 bytes.
#[inline]
pub(crate) fn check(sqe: &Sqe) -> Result<(), c_int> {
    let atomic = sqe.op == Op::FetchAdd.code() || sqe.op == Op::CompareSwap.code();
    if atomic && (sqe.len != 8 || sqe.flags & slot::flag::LIST != 0) {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// The entry of a work request, but for what is in its slot if it [`slot::is_needed`]. `handle` gives the handle of a
/// datagram's target.
///
/// # Errors
/// The request is none for this queue pair, or its target cannot be reached.
///
/// # Safety
/// `wr` is as verbs wants it: its list has as many elements as it says, inline data is where it says, and the address
/// of a datagram is one of ours.
#[inline(always)]
pub(crate) unsafe fn entry(
    rules: &Rules,
    wr: &ibv_send_wr,
    handle: impl FnOnce(*mut ibv_ah, u32) -> Result<u32, c_int>,
) -> Result<Sqe, c_int> {
    let mut sqe = begin(rules, wr.opcode, wr.send_flags, wr.wr_id)?;
    if sqe.op == OP_INVALIDATE {
        // The key stands where others have immediate data, and that is all.
        set_invalidated(&mut sqe, wr.imm_data);
        return Ok(sqe);
    }
    if !slot::is_needed(wr) && wr.num_sge == 1 {
        // SAFETY: the caller's promise.
        let sge = unsafe { wr.sg_list.read() };
        set_buffer(&mut sqe, sge.addr, sge.length, sge.lkey);
    }
    // SAFETY (of the unions): the operation says which one it is; all of them are integers and pointers.
    match wr.opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
            // SAFETY: as above.
            let rdma = unsafe { wr.wr.rdma };
            set_remote(&mut sqe, rdma.remote_addr, rdma.rkey);
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: as above.
            let atomic = unsafe { wr.wr.atomic };
            set_remote(&mut sqe, atomic.remote_addr, atomic.rkey);
            if wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP {
                set_operands(&mut sqe, atomic.swap, atomic.compare_add);
            } else {
                set_operands(&mut sqe, atomic.compare_add, 0);
            }
        }
        _ if rules.kind == Kind::Ud => {
            // SAFETY: as above.
            let ud = unsafe { wr.wr.ud };
            set_target(&mut sqe, handle(ud.ah, ud.remote_qpn)?, ud.remote_qkey);
        }
        _ => {}
    }
    if sqe.flags & sqe_flags::IMM != 0 {
        set_immediate(&mut sqe, wr.imm_data);
    }
    if wr.opcode == IBV_WR_SEND_WITH_INV {
        set_invalidated(&mut sqe, wr.imm_data);
    }
    Ok(sqe)
}

/// The entry of a receive, but for its list if it has one.
///
/// # Safety
/// Its list has as many elements as it says.
#[inline(always)]
pub(crate) unsafe fn receive(wr: &ibv_recv_wr) -> Rqe {
    let sge = match wr.num_sge {
        // SAFETY: the caller's promise.
        1 => unsafe { wr.sg_list.read() },
        _ => ibv_sge::default(),
    };
    Rqe {
        user_data: wr.wr_id,
        addr: sge.addr,
        local_key: if sge.length == 0 { 0 } else { sge.lkey },
        len: sge.length,
        reserved: 0,
    }
}

/// The queue pair behind an address.
pub(crate) fn target(node: &crate::abi::usb4_ib_create_ah_resp, qpn: u32) -> Target {
    Target {
        node_low: node.node_low,
        node_high: node.node_high,
        qpn,
    }
}
