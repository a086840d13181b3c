//! From `init` to `connect` and `accept`, memory, and the way back.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use nccl_net_sys::*;

use super::{entry, give};
use crate::core::{self, Fault, Raw, World};

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn init_v6(logger: ncclDebugLogger_t) -> ncclResult_t {
    entry(|| World::init(logger))
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn init_v10(
    logger: ncclDebugLogger_t,
    _: ncclProfilerCallback_t,
) -> ncclResult_t {
    entry(|| World::init(logger))
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    _: u64,
    _: *mut ncclNetCommConfig_t,
    logger: ncclDebugLogger_t,
    _: ncclProfilerCallback_t,
) -> ncclResult_t {
    entry(|| {
        // SAFETY: NCCL's contract.
        unsafe { give(context, null_mut())? };
        let made = World::init_context(logger)?;
        // SAFETY: NCCL's contract.
        unsafe { give(context, made.to_pointer()) }
    })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn finalize(context: *mut c_void) -> ncclResult_t {
    entry(|| match context.is_null() {
        true => Ok(()),
        false => World::finalize(context),
    })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn devices(count: *mut c_int) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe { give(count, World::devices()?) })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn listen_v6(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe {
        let (listener, raw) = core::listen(World::legacy()?, device)?;
        give(handle.cast::<Raw>(), raw)?;
        give(comm, listener)
    })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn listen_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe {
        let (listener, raw) = core::listen(World::context(context)?, device)?;
        give(handle.cast::<Raw>(), raw)?;
        give(comm, listener)
    })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn connect_v6(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe { connect_v7(device, handle, comm, null_mut()) }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn connect_v7(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe { connect(None, device, handle, comm, device_handle) })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn connect_v10(
    device: c_int,
    _: *mut ncclNetCommConfig_t,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe { connect(None, device, handle, comm, device_handle) })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn connect_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe { connect(Some(context), device, handle, comm, device_handle) })
}

/// # Safety
/// NCCL's contract.
unsafe fn connect(
    context: Option<*mut c_void>,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> Result<(), Fault> {
    let handle = handle.cast::<Raw>();
    // SAFETY: NCCL's contract: 128 bytes, ours to change between calls.
    unsafe {
        give(comm, null_mut())?;
        no_device_handle(device_handle);
        if handle.is_null() {
            return Err(Fault::internal("connect() with NULL for a handle"));
        }
        let place = match context {
            Some(context) => World::context(context)?,
            None => World::legacy()?,
        };
        let mut raw = handle.read();
        let connected = core::connect(place, device, &mut raw);
        handle.write(raw);
        give(comm, connected?)
    }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn accept_v6(listener: *mut c_void, comm: *mut *mut c_void) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe { accept_v7(listener, comm, null_mut()) }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn accept_v7(
    listener: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe {
        give(comm, null_mut())?;
        no_device_handle(device_handle);
        give(comm, core::accept(listener)?)
    })
}

/// There is nothing for the GPU to call.
///
/// # Safety
/// NULL, or a place for a pointer.
unsafe fn no_device_handle(device_handle: *mut *mut c_void) {
    if !device_handle.is_null() {
        // SAFETY: the caller's promise.
        unsafe { device_handle.write(null_mut()) };
    }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn reg_mr_v6(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    kind: c_int,
    memory: *mut *mut c_void,
) -> ncclResult_t {
    match usize::try_from(size) {
        // SAFETY: NCCL's contract.
        Ok(size) => unsafe { reg_mr_v8(comm, data, size, kind, memory) },
        Err(_) => entry(|| Err(Fault::internal(format_args!("regMr() of {size} bytes")))),
    }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn reg_mr_v8(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe {
        give(memory, null_mut())?;
        give(memory, core::reg_mr(comm, data, size, kind)?)
    })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn dereg_mr(comm: *mut c_void, memory: *mut c_void) -> ncclResult_t {
    entry(|| core::dereg_mr(comm, memory))
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn close(comm: *mut c_void) -> ncclResult_t {
    entry(|| core::close(comm))
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn close_listen(listener: *mut c_void) -> ncclResult_t {
    entry(|| core::close_listen(listener))
}
