//! Addresses: the kernel says which host one is of. The ring API's handles, which are for a queue pair there, are made when
//! the first datagram goes to it (`handles`).

use std::ffi::c_int;

use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or};

use crate::abi::{AhResponse, usb4_ib_create_ah_resp};
use crate::context::shared;
use crate::errno;
use crate::init::PANICKED;
use crate::object::Object;

/// An address, and the host.
pub(crate) type Ah = Object<ibv_ah, usb4_ib_create_ah_resp>;

pub(crate) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    let create = || {
        let mut resp = AhResponse::default();
        // SAFETY: libibverbs gives a protection domain of ours and attributes; the rest is memory of this function's.
        unsafe {
            let shared = shared((*pd).context)?;
            let object = Ah::alloc();
            let ah = Ah::verbs(object);
            let resp_size = size_of_val(&resp);
            let made = (shared.library.create_ah)(pd, ah, attr, (&raw mut resp).cast(), resp_size);
            errno::check(made).inspect_err(|_| Ah::free(ah))?;
            Ah::complete(object, resp.ours);
            Ok(ah)
        }
    };
    boundary(|| errno::pointer(create()))
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    let destroy = || {
        // SAFETY: libibverbs gives back what `create_ah` has made.
        unsafe {
            let shared = shared((*ah).context)?;
            errno::check((shared.library.destroy_ah)(ah))?;
            Ah::free(ah);
        }
        Ok(())
    };
    boundary_or(PANICKED, || errno::status(destroy()))
}
