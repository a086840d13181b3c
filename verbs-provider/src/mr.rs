//! Memory regions: the kernel pins them, and gives keys of 32 bits that entries name as they are.

use std::ffi::{c_int, c_void};
use std::ptr;

use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or};

use crate::context::shared;
use crate::errno;
use crate::init::PANICKED;
use crate::object::Object;

type Mr = Object<verbs_mr, ()>;

/// A region that `register` registers.
///
/// # Safety
/// `pd` is of a context of ours.
unsafe fn make(
    pd: *mut ibv_pd,
    register: impl FnOnce(&Library, *mut verbs_mr) -> c_int,
) -> Result<*mut ibv_mr, c_int> {
    // SAFETY: the caller's promise; a region just made.
    unsafe {
        let shared = shared((*pd).context)?;
        let mr = Mr::verbs(Mr::alloc());
        errno::check(register(shared.library, mr)).inspect_err(|_| Mr::free(mr))?;
        Ok(&raw mut (*mr).ibv_mr)
    }
}

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    let register = |library: &Library, mr| {
        let mut cmd = ibv_reg_mr::default();
        let mut resp = ib_uverbs_reg_mr_resp::default();
        let (cmd_size, resp_size) = (size_of_val(&cmd), size_of_val(&resp));
        // SAFETY: what libibverbs has given, and memory of this function's.
        unsafe {
            (library.reg_mr)(
                pd, addr, length, hca_va, access, mr, &mut cmd, cmd_size, &mut resp, resp_size,
            )
        }
    };
    // SAFETY: libibverbs gives a protection domain of ours.
    boundary(|| errno::pointer(unsafe { make(pd, register) }))
}

pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let register = |library: &Library, mr| {
        // SAFETY: what libibverbs has given; there are no attributes of the driver's.
        unsafe { (library.reg_dmabuf_mr)(pd, offset, length, iova, fd, access, mr, ptr::null_mut()) }
    };
    // SAFETY: libibverbs gives a protection domain of ours.
    boundary(|| errno::pointer(unsafe { make(pd, register) }))
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    let deregister = || {
        // SAFETY: libibverbs gives back what was registered.
        unsafe {
            let shared = shared((*mr).ibv_mr.context)?;
            errno::check((shared.library.dereg_mr)(mr))?;
            Mr::free(mr);
        }
        Ok(())
    };
    boundary_or(PANICKED, || errno::status(deregister()))
}
