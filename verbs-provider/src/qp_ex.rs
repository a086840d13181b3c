//! Queue pairs whose sends are built call by call (`ibv_create_qp_ex`, `ibv_wr_start` and so on).
//!
//! The sending half's lock is held from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`, as libibverbs has it.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ops::Range;

use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or};
use usb4_ring::raw::{Slots, Sqe};

use crate::errno;
use crate::init::PANICKED;
use crate::qp::{self, Parts, Qp, Sends};
use crate::qp_post::refused;
use crate::send::{self, Kind};
use crate::slot::{Inline, Words, set_list};

/// Operations that can be built.
const OPERATIONS: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_SEND_WITH_INV;

/// Those of a kind.
fn operations(kind: Kind) -> u64 {
    let messages = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    match kind {
        Kind::Rc => OPERATIONS,
        Kind::Uc => {
            messages
                | IBV_QP_EX_WITH_RDMA_WRITE
                | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
                | IBV_QP_EX_WITH_LOCAL_INV
        }
        Kind::Ud => messages,
    }
}

/// Requests that are being built.
#[derive(Debug, Default)]
pub(crate) struct Build {
    requests: Vec<Request>,
    /// What goes into their slots.
    words: Vec<u64>,
    /// What was wrong first: then none is posted.
    error: Option<c_int>,
}

/// One of them.
#[derive(Debug)]
struct Request {
    sqe: Sqe,
    /// Where in [`Build::words`] its own are.
    words: Range<usize>,
}

impl Build {
    fn clear(&mut self) {
        self.requests.clear();
        self.words.clear();
        self.error = None;
    }

    fn note(&mut self, result: Result<(), c_int>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }

    /// Changes the request begun last.
    #[inline]
    fn last(&mut self, change: impl FnOnce(&mut Sqe) -> Result<(), c_int>) {
        let changed = self
            .requests
            .last_mut()
            .map_or(Err(libc::EINVAL), |request| change(&mut request.sqe));
        self.note(changed);
    }

    /// The same, with what goes into its slot.
    fn last_with(&mut self, change: impl FnOnce(&mut Sqe) -> Result<Words, c_int>) {
        let Self { requests, words, .. } = self;
        let changed = match requests.last_mut() {
            Some(request) => change(&mut request.sqe).map(|its| {
                let from = words.len();
                words.extend_from_slice(its.as_slice());
                request.words = from..words.len();
            }),
            None => Err(libc::EINVAL),
        };
        self.note(changed);
    }
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    boundary(|| {
        // SAFETY: libibverbs gives a context of ours and attributes.
        errno::pointer(unsafe { create(context, attr) })
    })
}

/// # Safety
/// As for the operation.
unsafe fn create(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let (mask, kind) = ((*attr).comp_mask, Kind::of((*attr).qp_type));
        let builds = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let known = kind.map_or(0, operations);
        if mask & !(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0
            || builds && (*attr).send_ops_flags & !known != 0
        {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(libc::EINVAL);
        }
        let qp = qp::make(
            context,
            ibv_qp_init_attr_ex::base(attr),
            |library, qp, cmd, resp| {
                // The library clears the mask, and so shows where it has it.
                QP_COMP_MASK
                    .iter()
                    .for_each(|at| qp.byte_add(*at).cast::<u32>().write(u32::MAX));
                let (cmd_size, resp_size) = (size_of_val(cmd), size_of_val(resp));
                let resp = std::ptr::from_mut(resp).cast();
                (library.create_qp_ex)(context, qp, attr, cmd, cmd_size, resp, resp_size)
            },
        )?;
        let cleared = clear(qp);
        if builds {
            fill(&mut (*qp).qp_ex);
            if let Some(comp_mask) = cleared {
                comp_mask.write(VERBS_QP_EX);
            }
        }
        Ok(qp.cast())
    }
}

/// Where this library has `verbs_qp.comp_mask`; the other places are cleared.
///
/// # Safety
/// `qp` was marked at each of them before the library made it.
unsafe fn clear(qp: *mut verbs_qp) -> Option<*mut u32> {
    let mut found = None;
    for at in QP_COMP_MASK {
        // SAFETY: within the structure, and aligned: a word follows there in any release.
        unsafe {
            let place = qp.byte_add(at).cast::<u32>();
            if place.read() == 0 {
                found = Some(place);
            }
            place.write(0);
        }
    }
    found
}

fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    boundary_or((), || {
        // SAFETY: an application gives a queue pair of ours, which is not destroyed meanwhile.
        if let Some(parts) = unsafe { Qp::parts(qp) } {
            let mut sends = parts.sends.lock();
            sends.build.clear();
            // Until `wr_complete` or `wr_abort`.
            mem::forget(sends);
        }
    });
}

/// Calls `f` with what the caller has locked with `wr_start`.
///
/// # Safety
/// `qp` is a queue pair of ours for which the caller builds.
#[inline]
unsafe fn with<T>(qp: *mut ibv_qp_ex, f: impl FnOnce(&Parts, &mut Sends) -> T) -> Option<T> {
    // SAFETY: the caller's promise: it has the lock.
    unsafe {
        let parts = Qp::parts(qp)?;
        Some(f(parts, &mut *parts.sends.data_ptr()))
    }
}

/// Begins a request.
///
/// # Safety
/// As [`with`].
#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: c_int, fill: impl FnOnce(&mut Sqe)) {
    boundary_or((), || {
        // SAFETY: the caller's promise; the application has set number and flags.
        unsafe {
            let (wr_id, flags) = ((*qp).wr_id, (*qp).wr_flags);
            with(qp, |parts, sends| {
                match send::begin(&parts.rules, opcode, flags, wr_id) {
                    Ok(mut sqe) => {
                        fill(&mut sqe);
                        sends.build.requests.push(Request { sqe, words: 0..0 });
                    }
                    Err(error) => sends.build.note(Err(error)),
                }
            });
        }
    });
}

/// Changes the request begun last.
///
/// # Safety
/// As [`with`].
#[inline]
unsafe fn last(qp: *mut ibv_qp_ex, change: impl FnOnce(&Parts, &mut Sqe) -> Result<(), c_int>) {
    boundary_or((), || {
        // SAFETY: the caller's promise.
        unsafe { with(qp, |parts, sends| sends.build.last(|sqe| change(parts, sqe))) };
    });
}

/// The same, with what goes into its slot.
///
/// # Safety
/// As [`with`].
unsafe fn last_with(qp: *mut ibv_qp_ex, change: impl FnOnce(&Parts, &mut Sqe) -> Result<Words, c_int>) {
    boundary_or((), || {
        // SAFETY: the caller's promise.
        unsafe { with(qp, |parts, sends| sends.build.last_with(|sqe| change(parts, sqe))) };
    });
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the application builds.
    unsafe { begin(qp, IBV_WR_SEND, |_| ()) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    // SAFETY: the application builds.
    unsafe { begin(qp, IBV_WR_SEND_WITH_IMM, |sqe| send::set_immediate(sqe, imm_data)) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the application builds.
    unsafe { begin(qp, IBV_WR_SEND_WITH_INV, |sqe| send::set_invalidated(sqe, rkey)) };
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the application builds.
    unsafe { begin(qp, IBV_WR_LOCAL_INV, |sqe| send::set_invalidated(sqe, rkey)) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the application builds.
    unsafe { begin(qp, IBV_WR_RDMA_WRITE, |sqe| send::set_remote(sqe, addr, rkey)) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm_data: u32) {
    let fill = |sqe: &mut Sqe| {
        send::set_remote(sqe, addr, rkey);
        send::set_immediate(sqe, imm_data);
    };
    // SAFETY: the application builds.
    unsafe { begin(qp, IBV_WR_RDMA_WRITE_WITH_IMM, fill) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the application builds.
    unsafe { begin(qp, IBV_WR_RDMA_READ, |sqe| send::set_remote(sqe, addr, rkey)) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    let fill = |sqe: &mut Sqe| {
        send::set_remote(sqe, addr, rkey);
        send::set_operands(sqe, swap, compare);
    };
    // SAFETY: the application builds.
    unsafe { begin(qp, IBV_WR_ATOMIC_CMP_AND_SWP, fill) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    let fill = |sqe: &mut Sqe| {
        send::set_remote(sqe, addr, rkey);
        send::set_operands(sqe, add, 0);
    };
    // SAFETY: the application builds.
    unsafe { begin(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, fill) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    boundary_or((), || {
        let set = |parts: &Parts, sends: &mut Sends| {
            if parts.rules.kind != Kind::Ud {
                sends.build.note(Err(libc::EINVAL));
                return;
            }
            // SAFETY: the application gives an address of ours, which is not destroyed meanwhile.
            match unsafe { sends.handle(parts, ah, qpn) } {
                Ok(handle) => sends.build.last(|sqe| {
                    send::set_target(sqe, handle, qkey);
                    Ok(())
                }),
                Err(error) => sends.build.note(Err(error)),
            }
        };
        // SAFETY: the application builds.
        unsafe { with(qp, set) };
    });
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let change = |_: &Parts, sqe: &mut Sqe| {
        send::set_buffer(sqe, addr, length, lkey);
        Ok(())
    };
    // SAFETY: the application builds.
    unsafe { last(qp, change) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let change = |parts: &Parts, sqe: &mut Sqe| {
        // SAFETY: the application gives `count` of them.
        unsafe { set_list(&parts.rules, sqe, list, count) }
    };
    // SAFETY: the application builds.
    unsafe { last_with(qp, change) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let change = |parts: &Parts, sqe: &mut Sqe| {
        let mut inline = Inline::new(&parts.rules);
        // SAFETY: the application gives `length` bytes.
        unsafe { inline.add(addr.expose_provenance() as u64, length)? };
        inline.set(&parts.rules, sqe)
    };
    // SAFETY: the application builds.
    unsafe { last_with(qp, change) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    let change = |parts: &Parts, sqe: &mut Sqe| {
        let mut inline = Inline::new(&parts.rules);
        for at in 0..count {
            // SAFETY: the application gives `count` of them, each of as many bytes as it says.
            unsafe {
                let one = list.add(at).read();
                inline.add(one.addr.expose_provenance() as u64, one.length)?;
            }
        }
        inline.set(&parts.rules, sqe)
    };
    // SAFETY: the application builds.
    unsafe { last_with(qp, change) };
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    boundary_or((), || {
        // SAFETY: the application builds, and has the lock since `wr_start`.
        unsafe {
            with(qp, |_, sends| sends.build.clear());
            if let Some(parts) = Qp::parts(qp) {
                parts.sends.force_unlock();
            }
        }
    });
}

impl Sends {
    /// Posts what was built, or nothing; whether the device is to be told.
    fn post_built(&mut self, may_send: bool, slots: Slots) -> Result<bool, c_int> {
        let Self { queue, build, .. } = self;
        if let Some(error) = build.error {
            return Err(error);
        }
        if !may_send {
            return Err(libc::EINVAL);
        }
        build
            .requests
            .iter()
            .try_for_each(|request| send::check(&request.sqe))?;
        let count = u32::try_from(build.requests.len()).unwrap_or(u32::MAX);
        if queue.free(count).map_err(|_| libc::EIO)? < count {
            return Err(libc::ENOMEM);
        }
        for Request { sqe, words } in &build.requests {
            let words = build.words.get(words.clone()).unwrap_or_default();
            if words.is_empty() {
                queue.push(sqe).map_err(refused)?;
            } else {
                queue.push_with(sqe, slots, words).map_err(refused)?;
            }
        }
        Ok(queue.publish() != 0 && queue.needs_wakeup())
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: the application builds, and has the lock since `wr_start`.
        unsafe {
            let Some(parts) = Qp::parts(qp) else {
                return libc::EINVAL;
            };
            let posted = (*parts.sends.data_ptr()).post_built(parts.may_send(), parts.rules.sends);
            (*parts.sends.data_ptr()).build.clear();
            parts.sends.force_unlock();
            let submitted = match posted {
                Ok(true) => parts.submit(),
                other => other.map(drop),
            };
            submitted.err().unwrap_or(0)
        }
    })
}
