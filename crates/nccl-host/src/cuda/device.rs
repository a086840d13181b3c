//! Devices: there is one, of compute capability 8.0.

#![allow(non_snake_case, reason = "CUDA's names")]

use super::{
    INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, PEER_ACCESS_UNSUPPORTED, SUCCESS, Status, put, table,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

table! {
    cudaGetDevice cudaSetDevice cudaGetDeviceCount cudaDriverGetVersion cudaRuntimeGetVersion cudaGetLastError
    cudaPeekAtLastError cudaGetErrorString cudaGetErrorName cudaDeviceGetAttribute cudaDeviceGetPCIBusId
    cudaDeviceGetByPCIBusId cudaGetDeviceProperties_v2 cudaFuncGetAttributes cudaFuncSetAttribute cudaDeviceSetLimit
    cudaDeviceCanAccessPeer cudaDeviceEnablePeerAccess cudaIpcGetMemHandle cudaIpcOpenMemHandle cudaIpcCloseMemHandle
}

/// CUDA 12.9, what the wheels are built with or older.
const VERSION: c_int = 12_090;

/// Where the topology file has the GPU: NCCL looks at what is really there first, so where hardly a machine has anything.
const BUS_ID: &CStr = c"0000:fe:00.0";

const SHARED_MEMORY: c_int = 160 * 1024;

unsafe extern "C" fn cudaGetDevice(device: *mut c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(device, 0) }
}

extern "C" fn cudaSetDevice(device: c_int) -> Status {
    if device == 0 { SUCCESS } else { INVALID_DEVICE }
}

unsafe extern "C" fn cudaGetDeviceCount(count: *mut c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(count, 1) }
}

unsafe extern "C" fn cudaDriverGetVersion(version: *mut c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(version, VERSION) }
}

unsafe extern "C" fn cudaRuntimeGetVersion(version: *mut c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(version, VERSION) }
}

extern "C" fn cudaGetLastError() -> Status {
    SUCCESS
}

extern "C" fn cudaPeekAtLastError() -> Status {
    SUCCESS
}

extern "C" fn cudaGetErrorString(error: Status) -> *const c_char {
    let text = match error {
        SUCCESS => c"no error",
        NOT_SUPPORTED => c"not supported by nccl-host",
        _ => c"an error of nccl-host",
    };
    text.as_ptr()
}

extern "C" fn cudaGetErrorName(error: Status) -> *const c_char {
    cudaGetErrorString(error)
}

unsafe extern "C" fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> Status {
    // Values of cudaDeviceAttr; what the GPU does not have, VMM and IPC among it, is 0.
    let has = match attribute {
        1 => 1024,
        16 => 16,
        75 => 8,
        97 => SHARED_MEMORY,
        _ => 0,
    };
    // SAFETY: a result of the caller's.
    unsafe { put(value, has) }
}

unsafe extern "C" fn cudaDeviceGetPCIBusId(text: *mut c_char, len: c_int, _device: c_int) -> Status {
    let id = BUS_ID.to_bytes_with_nul();
    if usize::try_from(len).is_ok_and(|len| len >= id.len()) {
        // SAFETY: the caller's buffer has `len` bytes.
        unsafe { ptr::copy_nonoverlapping(id.as_ptr(), text.cast(), id.len()) };
        return SUCCESS;
    }
    INVALID_VALUE
}

unsafe extern "C" fn cudaDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char) -> Status {
    // SAFETY: a C string of the caller's.
    let id = unsafe { CStr::from_ptr(id) };
    if id.to_bytes().eq_ignore_ascii_case(BUS_ID.to_bytes()) {
        // SAFETY: a result of the caller's.
        return unsafe { put(device, 0) };
    }
    INVALID_VALUE
}

/// Fields of `cudaDeviceProp` and their offsets in CUDA 12.
const PROPERTIES: usize = 1032;
const PROPERTY_INTS: &[(usize, c_int)] = &[
    (308, 32),            // warpSize
    (320, 1024),          // maxThreadsPerBlock
    (360, 8),             // major
    (388, 16),            // multiProcessorCount
    (400, 1),             // canMapHostMemory
    (584, 0xfe),          // pciBusID
    (604, 1),             // unifiedAddressing
    (696, SHARED_MEMORY), // sharedMemPerBlockOptin
];
const TOTAL_MEMORY: usize = 288;

unsafe extern "C" fn cudaGetDeviceProperties_v2(properties: *mut u8, _device: c_int) -> Status {
    let name = c"Host memory".to_bytes();
    // SAFETY: the caller's structure has PROPERTIES bytes, and every field lies in it.
    unsafe {
        ptr::write_bytes(properties, 0, PROPERTIES);
        ptr::copy_nonoverlapping(name.as_ptr(), properties, name.len());
        properties
            .add(TOTAL_MEMORY)
            .cast::<usize>()
            .write_unaligned(8 << 30);
        for &(offset, value) in PROPERTY_INTS {
            properties.add(offset).cast::<c_int>().write_unaligned(value);
        }
    }
    SUCCESS
}

/// Of `cudaFuncAttributes` in CUDA 12: what is there without the reserved words, and four fields.
const FUNCTION_ATTRIBUTES: usize = 76;
const FUNCTION_INTS: &[(usize, c_int)] = &[
    (24, 640),           // maxThreadsPerBlock
    (32, 80),            // ptxVersion
    (36, 80),            // binaryVersion
    (44, SHARED_MEMORY), // maxDynamicSharedSizeBytes
];

unsafe extern "C" fn cudaFuncGetAttributes(attributes: *mut u8, _function: *const c_void) -> Status {
    // SAFETY: the caller's structure has at least FUNCTION_ATTRIBUTES bytes, and every field lies in it.
    unsafe {
        ptr::write_bytes(attributes, 0, FUNCTION_ATTRIBUTES);
        for &(offset, value) in FUNCTION_INTS {
            attributes.add(offset).cast::<c_int>().write_unaligned(value);
        }
    }
    SUCCESS
}

extern "C" fn cudaFuncSetAttribute(_function: *const c_void, _attribute: c_int, _value: c_int) -> Status {
    SUCCESS
}

extern "C" fn cudaDeviceSetLimit(_limit: c_int, _value: usize) -> Status {
    SUCCESS
}

unsafe extern "C" fn cudaDeviceCanAccessPeer(can: *mut c_int, _device: c_int, _peer: c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(can, 0) }
}

extern "C" fn cudaDeviceEnablePeerAccess(_peer: c_int, _flags: c_uint) -> Status {
    PEER_ACCESS_UNSUPPORTED
}

extern "C" fn cudaIpcGetMemHandle(_handle: *mut c_void, _memory: *mut c_void) -> Status {
    NOT_SUPPORTED
}

/// `cudaIpcMemHandle_t`: 64 bytes, passed by value.
#[repr(C)]
struct IpcHandle([u8; 64]);

extern "C" fn cudaIpcOpenMemHandle(_memory: *mut *mut c_void, _handle: IpcHandle, _flags: c_uint) -> Status {
    NOT_SUPPORTED
}

extern "C" fn cudaIpcCloseMemHandle(_memory: *mut c_void) -> Status {
    SUCCESS
}
