//! Calls this provider does not offer: explicit, so that every slot of every table is filled.

use std::ffi::{c_char, c_int, c_void};

use libfabric_sys::*;

const NO: c_int = -FI_ENOSYS;
const NO_SIZE: isize = -(FI_ENOSYS as isize);

pub(crate) unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    NO
}

unsafe extern "C" fn ops_open(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    NO
}

unsafe extern "C" fn tostr(_: *const fid, _: *mut c_char, _: usize) -> c_int {
    NO
}

unsafe extern "C" fn ops_set(_: *mut fid, _: *const c_char, _: u64, _: *mut c_void, _: *mut c_void) -> c_int {
    NO
}

/// The common table of an object.
pub(crate) const fn ops(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close,
        bind,
        control,
        ops_open,
        tostr,
        ops_set,
    }
}

pub(crate) unsafe extern "C" fn passive_ep(
    _: *mut fid_fabric,
    _: *mut fi_info,
    _: *mut *mut fid_pep,
    _: *mut c_void,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn wait_open(
    _: *mut fid_fabric,
    _: *mut fi_wait_attr,
    _: *mut *mut fid_wait,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn scalable_ep(
    _: *mut fid_domain,
    _: *mut fi_info,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn poll_open(
    _: *mut fid_domain,
    _: *mut fi_poll_attr,
    _: *mut *mut fid_poll,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn stx_ctx(
    _: *mut fid_domain,
    _: *mut fi_tx_attr,
    _: *mut *mut fid_stx,
    _: *mut c_void,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn srx_ctx(
    _: *mut fid_domain,
    _: *mut fi_rx_attr,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn insertsvc(
    _: *mut fid_av,
    _: *const c_char,
    _: *const c_char,
    _: *mut fi_addr_t,
    _: u64,
    _: *mut c_void,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn insertsym(
    _: *mut fid_av,
    _: *const c_char,
    _: usize,
    _: *const c_char,
    _: usize,
    _: *mut fi_addr_t,
    _: u64,
    _: *mut c_void,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn tx_ctx(
    _: *mut fid_ep,
    _: c_int,
    _: *mut fi_tx_attr,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn rx_ctx(
    _: *mut fid_ep,
    _: c_int,
    _: *mut fi_rx_attr,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn getpeer(_: *mut fid_ep, _: *mut c_void, _: *mut usize) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn connect(
    _: *mut fid_ep,
    _: *const c_void,
    _: *const c_void,
    _: usize,
) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn listen(_: *mut fid_pep) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn accept(_: *mut fid_ep, _: *const c_void, _: usize) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn reject(_: *mut fid_pep, _: *mut fid, _: *const c_void, _: usize) -> c_int {
    NO
}

pub(crate) unsafe extern "C" fn shutdown(_: *mut fid_ep, _: u64) -> c_int {
    NO
}

/// Remote memory access, which comes later.
pub(crate) static RMA: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: rma_read,
    readv: rma_vector,
    readmsg: rma_message,
    write: rma_write,
    writev: rma_vector,
    writemsg: rma_message,
    inject: rma_inject,
    writedata: rma_data,
    injectdata: rma_inject_data,
};

unsafe extern "C" fn rma_read(
    _: *mut fid_ep,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    NO_SIZE
}

unsafe extern "C" fn rma_write(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    NO_SIZE
}

unsafe extern "C" fn rma_vector(
    _: *mut fid_ep,
    _: *const libc::iovec,
    _: *mut *mut c_void,
    _: usize,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    NO_SIZE
}

unsafe extern "C" fn rma_message(_: *mut fid_ep, _: *const fi_msg_rma, _: u64) -> isize {
    NO_SIZE
}

unsafe extern "C" fn rma_inject(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: fi_addr_t,
    _: u64,
    _: u64,
) -> isize {
    NO_SIZE
}

unsafe extern "C" fn rma_data(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: *mut c_void,
    _: u64,
    _: fi_addr_t,
    _: u64,
    _: u64,
    _: *mut c_void,
) -> isize {
    NO_SIZE
}

unsafe extern "C" fn rma_inject_data(
    _: *mut fid_ep,
    _: *const c_void,
    _: usize,
    _: u64,
    _: fi_addr_t,
    _: u64,
    _: u64,
) -> isize {
    NO_SIZE
}

/// Atomics, which come later. The stubs read no argument, so the C calling convention lets one stub stand for
/// every argument list.
pub(crate) static ATOMIC: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    transfers: [atomic; 10],
    valid: [atomic_valid; 3],
};

unsafe extern "C" fn atomic() -> isize {
    NO_SIZE
}

unsafe extern "C" fn atomic_valid() -> c_int {
    NO
}
