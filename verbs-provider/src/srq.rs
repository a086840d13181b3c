//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or};
use usb4_ring::raw::{Producer, QueueMemory, Rqe, Slots};

use crate::abi::SrqResponse;
use crate::context::{Shared, shared};
use crate::errno;
use crate::init::PANICKED;
use crate::object::Object;
use crate::qp_post::{answer, post_receives};

/// A shared receive queue.
type Srq = Object<ibv_srq, Parts>;

struct Parts {
    shared: Arc<Shared>,
    /// The ring API's name for it.
    name: u32,
    slots: Slots,
    receives: Mutex<Producer<QueueMemory, Rqe>>,
}

/// # Safety
/// As for the operation.
unsafe fn make(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> Result<*mut ibv_srq, c_int> {
    let mut cmd = ibv_create_srq::default();
    let mut resp = SrqResponse::default();
    let (cmd_size, resp_size) = (size_of_val(&cmd), size_of_val(&resp));
    // SAFETY: the caller's promise; a queue just made, and memory of this function's.
    unsafe {
        let shared = shared((*pd).context)?;
        let library = shared.library;
        let asked = Slots::holding((*attr).attr.max_sge, 0).ok_or(libc::EINVAL)?;
        let object = Srq::alloc();
        let srq = Srq::verbs(object);
        errno::check((library.create_srq)(
            pd,
            srq,
            attr,
            &mut cmd,
            cmd_size,
            (&raw mut resp).cast(),
            resp_size,
        ))
        .inspect_err(|_| Srq::free(srq))?;
        match parts(shared, asked, &resp) {
            Ok(parts) => {
                Srq::complete(object, parts);
                Ok(srq)
            }
            Err(error) => {
                // Should it stay, it goes when the context closes.
                if (library.destroy_srq)(srq) == 0 {
                    Srq::free(srq);
                }
                Err(error)
            }
        }
    }
}

fn parts(shared: Arc<Shared>, asked: Slots, resp: &SrqResponse) -> Result<Parts, c_int> {
    let ours = resp.ours;
    let slots = Slots::of(ours.slot)
        .filter(|slots| slots.bytes() >= asked.bytes())
        .ok_or(libc::EPROTO)?;
    let memory = shared
        .ring
        .map_with::<Rqe>(ours.depth, slots, ours.offset, ours.bytes)
        .map_err(|error| errno::of(&error))?;
    Ok(Parts {
        // The depth is one that could be mapped.
        receives: Mutex::new(Producer::new(memory, ours.depth).map_err(|_| libc::EPROTO)?),
        name: ours.srq,
        slots,
        shared,
    })
}

pub(crate) unsafe extern "C" fn create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    boundary(|| {
        // SAFETY: libibverbs gives a protection domain of ours and attributes.
        errno::pointer(unsafe { make(pd, attr) })
    })
}

pub(crate) unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    let modify = || {
        let mut cmd = ibv_modify_srq::default();
        let cmd_size = size_of_val(&cmd);
        // SAFETY: libibverbs gives a queue of ours, which is not destroyed meanwhile, and attributes.
        unsafe {
            let shared = shared((*srq).context)?;
            errno::check((shared.library.modify_srq)(srq, attr, mask, &mut cmd, cmd_size))
        }
    };
    boundary_or(PANICKED, || errno::status(modify()))
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let query = || {
        let mut cmd = ibv_query_srq::default();
        let cmd_size = size_of_val(&cmd);
        // SAFETY: libibverbs gives a queue of ours, which is not destroyed meanwhile, and room.
        unsafe {
            let shared = shared((*srq).context)?;
            errno::check((shared.library.query_srq)(srq, attr, &mut cmd, cmd_size))
        }
    };
    boundary_or(PANICKED, || errno::status(query()))
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let destroy = || {
        // SAFETY: libibverbs gives back what `make` has made.
        unsafe {
            let shared = shared((*srq).context)?;
            errno::check((shared.library.destroy_srq)(srq))?;
            Srq::free(srq);
        }
        Ok(())
    };
    boundary_or(PANICKED, || errno::status(destroy()))
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an application gives a queue of ours, which is not destroyed meanwhile, and requests.
        unsafe {
            let result = Srq::parts(srq).map_or(Err((libc::EINVAL, wr)), |parts| {
                post_receives(&parts.receives, parts.slots, wr, &parts.shared, parts.name)
            });
            answer(result, bad_wr)
        }
    })
}
