//! `isend`, `irecv`, `iflush` and `test`.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use nccl_net_sys::*;

use super::{entry, give};
use crate::core::{self, Buffer, Fault};

/// # Safety
/// NCCL's contract.
#[inline(always)]
unsafe fn isend(comm: *mut c_void, buffer: Result<Buffer, Fault>, request: *mut *mut c_void) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe {
        give(request, null_mut())?;
        give(request, core::isend(comm, &buffer?)?)
    })
}

/// A size of the older versions.
#[inline]
fn size(size: c_int) -> Result<u64, Fault> {
    u64::try_from(size).map_err(|_| Fault::internal(format_args!("a message of {size} bytes")))
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn isend_v6(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    let buffer = size(bytes).map(|size| Buffer {
        data,
        size,
        tag,
        memory,
    });
    // SAFETY: NCCL's contract.
    unsafe { isend(comm, buffer, request) }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn isend_v9(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    let buffer = Buffer {
        data,
        size: bytes as u64,
        tag,
        memory,
    };
    // SAFETY: NCCL's contract.
    unsafe { isend(comm, Ok(buffer), request) }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn isend_v10(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe { isend_v9(comm, data, bytes, tag, memory, request) }
}

/// The one buffer of a receive.
///
/// # Safety
/// Arrays of `n` elements.
#[inline(always)]
unsafe fn irecv<S: Copy>(
    comm: *mut c_void,
    n: c_int,
    (data, sizes, tags, memory): (*mut *mut c_void, *mut S, *mut c_int, *mut *mut c_void),
    size: impl FnOnce(S) -> Result<u64, Fault>,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe {
        // What it holds before, NCCL_NET_OPTIONAL_RECV_COMPLETION, is a permission that is not needed.
        give(request, null_mut())?;
        if n != 1 || data.is_null() || sizes.is_null() || tags.is_null() {
            return Err(Fault::internal(format_args!(
                "a receive of {n} buffers; maxRecvs is 1"
            )));
        }
        let buffer = Buffer {
            data: data.read(),
            size: size(sizes.read())?,
            tag: tags.read(),
            memory: if memory.is_null() {
                null_mut()
            } else {
                memory.read()
            },
        };
        give(request, core::irecv(comm, &buffer)?)
    })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn irecv_v6(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe { irecv(comm, n, (data, sizes, tags, memory), size, request) }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn irecv_v9(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe {
        irecv(
            comm,
            n,
            (data, sizes, tags, memory),
            |size| Ok(size as u64),
            request,
        )
    }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn irecv_v10(
    comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    memory: *mut *mut c_void,
    _: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe { irecv_v9(comm, n, data, sizes, tags, memory, request) }
}

/// Memory of the host needs none: there is nothing to wait for.
///
/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn iflush(
    _: *mut c_void,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut c_int,
    _: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe { give(request, null_mut()) })
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    entry(|| unsafe {
        give(done, 0)?;
        if let Some(size) = core::test(request)? {
            if !sizes.is_null() {
                // Sizes of the newer versions, too, come back as ints.
                sizes.write(c_int::try_from(size).unwrap_or(c_int::MAX));
            }
            give(done, 1)?;
        }
        Ok(())
    })
}
