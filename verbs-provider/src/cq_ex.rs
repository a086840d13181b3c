//! Completion queues that are read field by field (`ibv_create_cq_ex`).
//!
//! The queue's lock is held from `ibv_start_poll` to `ibv_end_poll`, as libibverbs has it. So a thread that in between destroys
//! a queue pair that completes there, or resets it, waits for itself, as it does with other providers (`mlx5_destroy_qp` takes
//! the locks of both completion queues).

use std::ffi::{c_int, c_uint};
use std::mem;

use parking_lot::MutexGuard;
use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or};

use crate::cq::{self, Cq};
use crate::errno;
use crate::init::PANICKED;
use crate::queue::Completions;

/// What can be read of a completion.
const READABLE: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS;

/// Neither is of consequence: there is a lock all the same, and no overrun.
const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    boundary(|| {
        // SAFETY: libibverbs gives a context of ours and attributes.
        errno::pointer(unsafe { create(context, &*attr) })
    })
}

/// # Safety
/// As for the operation.
unsafe fn create(context: *mut ibv_context, attr: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex, c_int> {
    let has_flags = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
    if attr.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
        || has_flags && attr.flags & !FLAGS != 0
        || attr.wc_flags & !READABLE != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    let number = |number: u32| c_int::try_from(number).map_err(|_| libc::EINVAL);
    // SAFETY: the caller's promise.
    unsafe {
        let cq = cq::make(
            context,
            number(attr.cqe)?,
            attr.channel,
            number(attr.comp_vector)?,
        )?;
        let cq_ex = &raw mut (*cq).cq_ex;
        fill(&mut *cq_ex);
        Ok(cq_ex)
    }
}

fn fill(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
}

/// Makes the next completion the current one.
///
/// # Safety
/// `cq` is that of `completions`, whose lock the caller has.
#[inline]
unsafe fn advance(cq: *mut ibv_cq_ex, completions: &mut Completions) -> Result<(), c_int> {
    match completions.take() {
        Ok(Some(wc)) => {
            completions.current = wc;
            // SAFETY: the caller's promise; nobody else polls.
            unsafe {
                (*cq).status = wc.status;
                (*cq).wr_id = wc.wr_id;
            }
            Ok(())
        }
        Ok(None) => Err(libc::ENOENT),
        Err(_) => Err(libc::EIO),
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let start = || {
        // SAFETY: an application gives a queue of ours, which is not destroyed meanwhile, and attributes.
        unsafe {
            let parts = Cq::parts(cq).ok_or(libc::EINVAL)?;
            if (*attr).comp_mask != 0 {
                return Err(libc::EINVAL);
            }
            let mut completions = parts.completions.lock();
            if advance(cq, &mut completions) == Err(libc::ENOENT) {
                MutexGuard::unlocked(&mut completions, || parts.progress())?;
                advance(cq, &mut completions).inspect_err(|_| completions.release())?;
            }
            // Until `end_poll`.
            mem::forget(completions);
        }
        Ok(())
    };
    boundary_or(PANICKED, || start().err().unwrap_or(0))
}

/// Calls `f` with what the caller has locked with `start_poll`.
///
/// # Safety
/// `cq` is a queue of ours that the caller polls.
#[inline]
unsafe fn with<T>(cq: *mut ibv_cq_ex, f: impl FnOnce(&mut Completions) -> T) -> Option<T> {
    // SAFETY: the caller's promise: it has the lock.
    unsafe {
        let parts = Cq::parts(cq)?;
        Some(f(&mut *parts.completions.data_ptr()))
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: the application polls.
        let next = unsafe { with(cq, |completions| advance(cq, completions)) };
        next.unwrap_or(Err(libc::EINVAL)).err().unwrap_or(0)
    })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    boundary_or((), || {
        // SAFETY: the application polls, and has the lock since `start_poll`.
        unsafe {
            with(cq, Completions::release);
            if let Some(parts) = Cq::parts(cq) {
                parts.completions.force_unlock();
            }
        }
    });
}

macro_rules! readers {
    ($($name:ident -> $ret:ty: $field:ident;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ret {
            boundary_or(<$ret>::default(), || {
                // SAFETY: the application polls.
                unsafe { with(cq, |completions| completions.current.$field) }.unwrap_or_default()
            })
        }
    )*};
}

readers! {
    read_opcode -> c_int: opcode;
    read_vendor_err -> u32: vendor_err;
    read_byte_len -> u32: byte_len;
    read_imm_data -> u32: imm_data;
    read_qp_num -> u32: qp_num;
    read_src_qp -> u32: src_qp;
    read_wc_flags -> c_uint: wc_flags;
    read_sl -> u8: sl;
    read_dlid_path_bits -> u8: dlid_path_bits;
}

unsafe extern "C" fn read_slid(_: *mut ibv_cq_ex) -> u32 {
    0
}
