//! Protection domains.

use std::ffi::c_int;

use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or};

use crate::context::shared;
use crate::errno;
use crate::init::PANICKED;
use crate::object::Object;

type Pd = Object<ibv_pd, ()>;

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let alloc = || {
        let mut cmd = ibv_alloc_pd::default();
        let mut resp = ib_uverbs_alloc_pd_resp::default();
        let (cmd_size, resp_size) = (size_of_val(&cmd), size_of_val(&resp));
        // SAFETY: libibverbs gives a context of ours; the rest is memory of this function's.
        unsafe {
            let shared = shared(context)?;
            let pd = Pd::verbs(Pd::alloc());
            let made = (shared.library.alloc_pd)(context, pd, &mut cmd, cmd_size, &mut resp, resp_size);
            errno::check(made).inspect_err(|_| Pd::free(pd))?;
            Ok(pd)
        }
    };
    boundary(|| errno::pointer(alloc()))
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let dealloc = || {
        // SAFETY: libibverbs gives back what `alloc_pd` has made.
        unsafe {
            let shared = shared((*pd).context)?;
            errno::check((shared.library.dealloc_pd)(pd))?;
            Pd::free(pd);
        }
        Ok(())
    };
    boundary_or(PANICKED, || errno::status(dealloc()))
}
