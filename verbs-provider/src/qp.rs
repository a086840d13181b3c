//! Queue pairs: their making, states and end.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;
use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or};
use usb4_ring::raw::{Producer, QueueMemory, Rqe, Slots, Sqe};

use crate::abi::QpResponse;
use crate::context::{Shared, shared};
use crate::handles::Handles;
use crate::init::PANICKED;
use crate::object::Object;
use crate::qp_ex::Build;
use crate::send::{Kind, Rules};
use crate::{cq, errno};

/// A queue pair.
pub(crate) type Qp = Object<verbs_qp, Parts>;

pub(crate) struct Parts {
    pub(crate) shared: Arc<Shared>,
    /// The ring API's name for it.
    pub(crate) ep: u32,
    pub(crate) rules: Rules,
    /// `ibv_qp_state`, as the application has set it; the device alone knows of errors.
    state: AtomicI32,
    pub(crate) sends: Mutex<Sends>,
    /// None if it draws from a shared receive queue.
    pub(crate) receives: Option<Mutex<Producer<QueueMemory, Rqe>>>,
}

/// The sending half.
pub(crate) struct Sends {
    pub(crate) queue: Producer<QueueMemory, Sqe>,
    pub(crate) handles: Handles,
    pub(crate) build: Build,
}

impl Parts {
    /// Whether something can be sent now. What is posted to one in error is flushed.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        matches!(
            self.state.load(Ordering::Relaxed),
            IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE | IBV_QPS_ERR
        )
    }

    /// Whether receives can be posted now.
    #[inline]
    pub(crate) fn may_receive(&self) -> bool {
        self.state.load(Ordering::Relaxed) != IBV_QPS_RESET
    }
}

/// What is asked of a queue pair, as far as it is for the provider to say.
///
/// # Errors
/// It is more than there is.
pub(crate) fn rules(attr: &ibv_qp_init_attr) -> Result<Rules, c_int> {
    let kind = Kind::of(attr.qp_type).ok_or(libc::EOPNOTSUPP)?;
    let cap = &attr.cap;
    if attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    Ok(Rules {
        kind,
        all_signalled: attr.sq_sig_all != 0,
        sends: Slots::holding(cap.max_send_sge, cap.max_inline_data).ok_or(libc::EINVAL)?,
        // With a shared receive queue it has none of its own, whatever is asked.
        receives: if attr.srq.is_null() {
            Slots::holding(cap.max_recv_sge, 0).ok_or(libc::EINVAL)?
        } else {
            Slots::NONE
        },
    })
}

/// Makes a queue pair; `create` has the kernel make it.
///
/// # Safety
/// `context` is null or a context of ours; `create` calls libibverbs with `attr`.
pub(crate) unsafe fn make(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr,
    create: impl FnOnce(&Library, *mut verbs_qp, &mut ibv_create_qp, &mut QpResponse) -> c_int,
) -> Result<*mut verbs_qp, c_int> {
    let mut cmd = ibv_create_qp::default();
    let mut resp = QpResponse::default();
    // SAFETY: the caller's promise; a queue pair just made, and memory of this function's.
    unsafe {
        let shared = shared(context)?;
        let library = shared.library;
        let rules = rules(&*attr)?;
        let object = Qp::alloc();
        let qp = Qp::verbs(object);
        errno::check(create(library, qp, &mut cmd, &mut resp)).inspect_err(|_| Qp::free(qp))?;
        match parts(shared, rules, &resp) {
            Ok(parts) => {
                Qp::complete(object, parts);
                Ok(qp)
            }
            Err(error) => {
                // Should it stay, it goes when the context closes.
                if (library.destroy_qp)(qp.cast()) == 0 {
                    Qp::free(qp);
                }
                Err(error)
            }
        }
    }
}

fn parts(shared: Arc<Shared>, asked: Rules, resp: &QpResponse) -> Result<Parts, c_int> {
    let ours = resp.ours;
    // Of sizes that were asked for, or larger ones.
    let rules = Rules {
        sends: Slots::of(ours.sq_slot).ok_or(libc::EPROTO)?,
        receives: Slots::of(ours.rq_slot).ok_or(libc::EPROTO)?,
        ..asked
    };
    if rules.sends.bytes() < asked.sends.bytes() || rules.receives.bytes() < asked.receives.bytes() {
        return Err(libc::EPROTO);
    }
    let failed = |error: std::io::Error| errno::of(&error);
    let ring = &shared.ring;
    let sq = ring
        .map_with::<Sqe>(ours.sq_depth, rules.sends, ours.sq_offset, ours.sq_bytes)
        .map_err(failed)?;
    // The depths are ones that could be mapped.
    let broken = |_| libc::EPROTO;
    let receives = match ours.rq_depth {
        0 => None,
        depth => {
            let rq = ring
                .map_with::<Rqe>(depth, rules.receives, ours.rq_offset, ours.rq_bytes)
                .map_err(failed)?;
            Some(Mutex::new(Producer::new(rq, depth).map_err(broken)?))
        }
    };
    Ok(Parts {
        sends: Mutex::new(Sends {
            queue: Producer::new(sq, ours.sq_depth).map_err(broken)?,
            handles: Handles::default(),
            build: Build::default(),
        }),
        receives,
        shared,
        ep: ours.ep,
        rules,
        state: AtomicI32::new(IBV_QPS_RESET),
    })
}

pub(crate) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let create = |library: &Library, qp: *mut verbs_qp, cmd: &mut ibv_create_qp, resp: &mut QpResponse| {
        let (cmd_size, resp_size) = (size_of_val(cmd), size_of_val(resp));
        // SAFETY: what libibverbs has given, and memory of the caller's.
        unsafe {
            let resp: *mut QpResponse = resp;
            (library.create_qp)(pd, qp.cast(), attr, cmd, cmd_size, resp.cast(), resp_size)
        }
    };
    boundary(|| {
        // SAFETY: libibverbs gives a protection domain of ours and attributes.
        let qp = unsafe { make((*pd).context, attr, create) };
        errno::pointer(qp.map(<*mut verbs_qp>::cast))
    })
}

pub(crate) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let modify = || {
        let mut cmd = ibv_modify_qp::default();
        let cmd_size = size_of_val(&cmd);
        // SAFETY: libibverbs gives a queue pair of ours, which is not destroyed meanwhile, and attributes.
        unsafe {
            let parts = Qp::parts(qp).ok_or(libc::EINVAL)?;
            errno::check((parts.shared.library.modify_qp)(
                qp, attr, mask, &mut cmd, cmd_size,
            ))?;
            if mask & IBV_QP_STATE != 0 {
                let state = (*attr).qp_state;
                parts.state.store(state, Ordering::Relaxed);
                if state == IBV_QPS_RESET {
                    // The device has emptied the queues. What it has completed before is not to be seen.
                    forget(qp);
                    parts.sends.lock().handles.clear(&parts.device());
                }
            }
        }
        Ok(())
    };
    boundary_or(PANICKED, || errno::status(modify()))
}

/// # Safety
/// `qp` is a queue pair of ours.
unsafe fn forget(qp: *mut ibv_qp) {
    // SAFETY: the caller's promise; a queue pair's completion queues are there as long as it is.
    unsafe {
        let (send, receive, qpn) = ((*qp).send_cq, (*qp).recv_cq, (*qp).qp_num);
        cq::forget(send, qpn);
        if receive != send {
            cq::forget(receive, qpn);
        }
    }
}

pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let query = || {
        let mut cmd = ibv_query_qp::default();
        let cmd_size = size_of_val(&cmd);
        // SAFETY: libibverbs gives a queue pair of ours, which is not destroyed meanwhile, and room.
        unsafe {
            let parts = Qp::parts(qp).ok_or(libc::EINVAL)?;
            errno::check((parts.shared.library.query_qp)(
                qp, attr, mask, init, &mut cmd, cmd_size,
            ))?;
            if mask & IBV_QP_STATE != 0 {
                parts.state.store((*attr).qp_state, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    boundary_or(PANICKED, || errno::status(query()))
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let destroy = || {
        // SAFETY: libibverbs gives back what `make` has made.
        unsafe {
            let shared = shared((*qp).context)?;
            errno::check((shared.library.destroy_qp)(qp))?;
            forget(qp);
            Qp::free(qp);
        }
        Ok(())
    };
    boundary_or(PANICKED, || errno::status(destroy()))
}
