//! Memory: device and pinned memory are pages of the process.

#![allow(non_snake_case, reason = "CUDA's names")]

use super::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, Status, put, stream, table};
use crate::runtime::{Kind, allocate, find, free};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::slice;

table! {
    cudaFree cudaFreeHost cudaMalloc cudaHostAlloc cudaMallocHost cudaHostRegister cudaHostUnregister
    cudaHostGetDevicePointer cudaMallocAsync cudaMallocFromPoolAsync cudaFreeAsync cudaMemPoolCreate
    cudaMemPoolDestroy cudaMemPoolSetAttribute cudaMemcpy cudaMemset cudaMemcpyAsync cudaMemsetAsync
    cudaPointerGetAttributes cudaMemGetInfo
}

unsafe fn give(at: *mut *mut u8, len: usize, kind: Kind) -> Status {
    let memory = allocate(len, kind);
    if memory.is_null() {
        return OUT_OF_MEMORY;
    }
    // SAFETY: a result of the caller's.
    unsafe { put(at, memory) }
}

unsafe fn take(memory: *mut u8) -> Status {
    // SAFETY: by CUDA's rules who frees memory has stopped using it.
    if memory.is_null() || unsafe { free(memory) } {
        SUCCESS
    } else {
        INVALID_VALUE
    }
}

unsafe extern "C" fn cudaFree(memory: *mut u8) -> Status {
    // SAFETY: the caller's memory.
    unsafe { take(memory) }
}

unsafe extern "C" fn cudaFreeHost(memory: *mut u8) -> Status {
    // SAFETY: the caller's memory.
    unsafe { take(memory) }
}

unsafe extern "C" fn cudaMalloc(at: *mut *mut u8, len: usize) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { give(at, len, Kind::Device(0)) }
}

unsafe extern "C" fn cudaHostAlloc(at: *mut *mut u8, len: usize, _flags: c_uint) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { give(at, len, Kind::Host) }
}

unsafe extern "C" fn cudaMallocHost(at: *mut *mut u8, len: usize) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { give(at, len, Kind::Host) }
}

extern "C" fn cudaHostRegister(_memory: *mut c_void, _len: usize, _flags: c_uint) -> Status {
    SUCCESS
}

extern "C" fn cudaHostUnregister(_memory: *mut c_void) -> Status {
    SUCCESS
}

unsafe extern "C" fn cudaHostGetDevicePointer(device: *mut *mut u8, host: *mut u8, _flags: c_uint) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(device, host) }
}

unsafe extern "C" fn cudaMallocAsync(at: *mut *mut u8, len: usize, _stream: *mut c_void) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { give(at, len, Kind::Device(0)) }
}

unsafe extern "C" fn cudaMallocFromPoolAsync(
    at: *mut *mut u8,
    len: usize,
    _pool: *mut c_void,
    _stream: *mut c_void,
) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { give(at, len, Kind::Device(0)) }
}

unsafe extern "C" fn cudaFreeAsync(memory: *mut u8, on: *mut c_void) -> Status {
    let memory = memory.addr();
    // SAFETY: a stream of ours.
    let stream = unsafe { stream(on) };
    stream.push(move || {
        // SAFETY: what uses the memory was pushed before.
        unsafe { take(ptr::with_exposed_provenance_mut(memory)) };
    });
    SUCCESS
}

unsafe extern "C" fn cudaMemPoolCreate(pool: *mut *mut c_void, _properties: *const c_void) -> Status {
    // A handle that nobody looks behind: all pools are the process's memory.
    // SAFETY: a result of the caller's.
    unsafe { put(pool, ptr::dangling_mut()) }
}

extern "C" fn cudaMemPoolDestroy(_pool: *mut c_void) -> Status {
    SUCCESS
}

extern "C" fn cudaMemPoolSetAttribute(_pool: *mut c_void, _attribute: c_int, _value: *mut c_void) -> Status {
    SUCCESS
}

unsafe extern "C" fn cudaMemcpy(to: *mut u8, from: *const u8, len: usize, _kind: c_int) -> Status {
    // SAFETY: null is the default stream.
    unsafe { stream(ptr::null_mut()) }.synchronize();
    // SAFETY: the caller's memory; CUDA defines no copy between overlapping ranges, `copy` does.
    unsafe { ptr::copy(from, to, len) };
    SUCCESS
}

unsafe extern "C" fn cudaMemset(at: *mut u8, value: c_int, len: usize) -> Status {
    // SAFETY: null is the default stream.
    unsafe { stream(ptr::null_mut()) }.synchronize();
    // SAFETY: the caller's memory.
    unsafe { ptr::write_bytes(at, byte(value), len) };
    SUCCESS
}

unsafe extern "C" fn cudaMemcpyAsync(
    to: *mut u8,
    from: *const u8,
    len: usize,
    _kind: c_int,
    on: *mut c_void,
) -> Status {
    // SAFETY: a stream of ours.
    let stream = unsafe { stream(on) };
    let (to, source) = (to.expose_provenance(), from.expose_provenance());
    if find(source).is_some() {
        stream.push(move || {
            // SAFETY: by CUDA's rules both ranges stay as they are until the stream has come here.
            unsafe {
                ptr::copy(
                    ptr::with_exposed_provenance::<u8>(source),
                    ptr::with_exposed_provenance_mut(to),
                    len,
                );
            }
        });
        return SUCCESS;
    }
    // From pageable memory, which the caller may change at once.
    // SAFETY: the caller's memory.
    let bytes = unsafe { slice::from_raw_parts(from, len) }.to_vec();
    stream.push(move || {
        // SAFETY: by CUDA's rules the target stays until the stream has come here.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::with_exposed_provenance_mut(to), len) };
    });
    SUCCESS
}

unsafe extern "C" fn cudaMemsetAsync(at: *mut u8, value: c_int, len: usize, on: *mut c_void) -> Status {
    let at = at.expose_provenance();
    // SAFETY: a stream of ours.
    let stream = unsafe { stream(on) };
    stream.push(move || {
        // SAFETY: by CUDA's rules the target stays until the stream has come here.
        unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(at), byte(value), len) };
    });
    SUCCESS
}

/// `cudaPointerAttributes`.
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: *mut c_void,
    host_pointer: *mut c_void,
}

unsafe extern "C" fn cudaPointerGetAttributes(
    attributes: *mut PointerAttributes,
    memory: *mut c_void,
) -> Status {
    // cudaMemoryType: 0 unregistered, 1 host, 2 device.
    let (kind, device_pointer, host_pointer) = match find(memory.addr()).map(|found| found.kind) {
        None => (0, ptr::null_mut(), ptr::null_mut()),
        Some(Kind::Host) => (1, memory, memory),
        Some(Kind::Device(_)) => (2, memory, ptr::null_mut()),
    };
    let found = PointerAttributes {
        kind,
        device: 0,
        device_pointer,
        host_pointer,
    };
    // SAFETY: a result of the caller's.
    unsafe { put(attributes, found) }
}

unsafe extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> Status {
    // SAFETY: results of the caller's.
    unsafe {
        put(free, 4 << 30);
        put(total, 8 << 30)
    }
}

/// What `memset` makes of a value.
fn byte(value: c_int) -> u8 {
    value.to_le_bytes()[0]
}
