//! Memory regions. No remote access is offered yet, and local buffers need none; registration exists for
//! applications that register anyway.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys::*;
use usb4_ffi::{Handle, Level, boundary_or, log};
use usb4_ring::{Access, MemoryRegion};

use crate::domain::{DomainHandle, Shared};
use crate::init::PANICKED;
use crate::nosys;

/// A region, as C sees it.
#[repr(C)]
struct Mr {
    fid: fid_mr,
    _region: Option<MemoryRegion>,
    domain: Arc<Shared>,
}

type MrHandle = Handle<Mr, fid_mr>;

static OPS: fi_ops = nosys::ops(close, bind, control);

/// Registration operations of a domain.
pub(crate) static MR_OPS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg,
    regv,
    regattr,
};

unsafe extern "C" fn reg(
    domain: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    _flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application's arguments are handed on.
    boundary_or(PANICKED, || unsafe {
        register(domain, buf, len, access, mr, context)
    })
}

unsafe extern "C" fn regv(
    domain: *mut fid,
    iov: *const libc::iovec,
    count: usize,
    access: u64,
    _offset: u64,
    _requested_key: u64,
    _flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: the application gives `count` elements.
        match unsafe { iov.as_ref() } {
            // SAFETY: the application's arguments are handed on.
            Some(one) if count == 1 => unsafe {
                register(domain, one.iov_base, one.iov_len, access, mr, context)
            },
            _ => -FI_EINVAL,
        }
    })
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: the application gives attributes; only fields that every version has are read.
        unsafe {
            let (iov, count, access, context, iface) = (
                (*attr).mr_iov,
                (*attr).iov_count,
                (*attr).access,
                (*attr).context,
                (*attr).iface,
            );
            if flags & FI_MR_DMABUF != 0 || iface != FI_HMEM_SYSTEM {
                return -FI_ENOSYS;
            }
            if count != 1 || iov.is_null() {
                return -FI_EINVAL;
            }
            register(domain, (*iov).iov_base, (*iov).iov_len, access, mr, context)
        }
    })
}

/// # Safety
/// `domain` is a domain of ours; the memory stays mapped until the region is closed.
unsafe fn register(
    domain: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: promised by the caller.
    let Some(domain) = (unsafe { DomainHandle::get(domain.cast()) }) else {
        return -FI_EINVAL;
    };
    let shared = domain.open_child();
    let mut rights = Access::LOCAL;
    if access & FI_REMOTE_READ != 0 {
        rights = rights | Access::REMOTE_READ;
    }
    if access & FI_REMOTE_WRITE != 0 {
        rights = rights | Access::REMOTE_WRITE;
    }
    let region = if len == 0 {
        None
    } else {
        // SAFETY: promised by the caller.
        match unsafe { shared.device.register(buf.cast_mut().cast(), len, rights) } {
            Ok(region) => Some(region),
            Err(error) => {
                log(Level::Warn, format_args!("cannot register {len} bytes: {error}"));
                shared.close_child();
                return if matches!(error, usb4_ring::Error::Limit(_)) {
                    -FI_ENOSPC
                } else {
                    -FI_EINVAL
                };
            }
        }
    };
    let key = region.as_ref().map_or(0, MemoryRegion::remote_key);
    let object = Mr {
        fid: fid_mr {
            fid: fid {
                fclass: FI_CLASS_MR,
                context,
                ops: &OPS,
            },
            mem_desc: std::ptr::null_mut(),
            key,
        },
        _region: region,
        domain: shared,
    };
    // SAFETY: promised by the caller.
    unsafe { *mr = MrHandle::into_raw(Box::new(object)) };
    0
}

/// Binding to endpoints (`FI_MR_ENDPOINT`) is accepted and means nothing: a region is the domain's.
unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn control(_: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    if command == FI_ENABLE { 0 } else { -FI_ENOSYS }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: the application closes a region of ours, once.
        if let Some(mr) = unsafe { MrHandle::free(fid.cast()) } {
            mr.domain.close_child();
        }
        0
    })
}
