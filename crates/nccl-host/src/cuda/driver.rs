//! The driver's functions that NCCL asks the run time for, the launch of kernels among them.

#![allow(non_snake_case, reason = "CUDA's names")]

use super::{Function, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, Status, Table, put, stream, table};
use crate::kernel;
use crate::runtime::find;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::slice;
use std::sync::OnceLock;

table! {
    cudaGetFuncBySymbol cudaGetDriverEntryPoint cudaGetDriverEntryPointByVersion
}

const ENTRIES: Table = &[
    ("cuGetErrorString", Function(cuGetErrorString as *const ())),
    ("cuGetErrorName", Function(cuGetErrorString as *const ())),
    ("cuDeviceGet", Function(cuDeviceGet as *const ())),
    (
        "cuDeviceGetAttribute",
        Function(cuDeviceGetAttribute as *const ()),
    ),
    ("cuDeviceGetUuid", Function(cuDeviceGetUuid as *const ())),
    (
        "cuMemGetAddressRange",
        Function(cuMemGetAddressRange as *const ()),
    ),
    (
        "cuMemGetAllocationGranularity",
        Function(cuMemGetAllocationGranularity as *const ()),
    ),
    ("cuCtxGetCurrent", Function(cuCtxGetCurrent as *const ())),
    ("cuCtxSetCurrent", Function(cuCtxSetCurrent as *const ())),
    ("cuCtxGetDevice", Function(cuCtxGetDevice as *const ())),
    ("cuCtxCreate", Function(cuCtxCreate as *const ())),
    ("cuCtxDestroy", Function(cuCtxSetCurrent as *const ())),
    (
        "cuPointerGetAttribute",
        Function(cuPointerGetAttribute as *const ()),
    ),
    ("cuLaunchKernelEx", Function(cuLaunchKernelEx as *const ())),
    ("cuLaunchKernel", Function(cuLaunchKernel as *const ())),
];

/// Names of kernels by the address of what stands for them on the host's side.
static KERNELS: OnceLock<HashMap<usize, String>> = OnceLock::new();

/// Tells which kernels there are; only the first library loaded counts.
pub(crate) fn set_kernels(kernels: HashMap<usize, String>) {
    let _ = KERNELS.set(kernels);
}

unsafe extern "C" fn cudaGetFuncBySymbol(function: *mut *const c_void, symbol: *const c_void) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(function, symbol) }
}

unsafe extern "C" fn cudaGetDriverEntryPoint(
    name: *const c_char,
    function: *mut *const (),
    _flags: u64,
    result: *mut c_int,
) -> Status {
    // SAFETY: a C string of the caller's.
    let name = unsafe { CStr::from_ptr(name) };
    let found = ENTRIES
        .iter()
        .find(|(known, _)| known.as_bytes() == name.to_bytes());
    // cudaDriverEntryPointSuccess 0, SymbolNotFound 1.
    // SAFETY: results of the caller's.
    unsafe {
        put(result, c_int::from(found.is_none()));
        put(function, found.map_or(ptr::null(), |(_, function)| function.0))
    }
}

unsafe extern "C" fn cudaGetDriverEntryPointByVersion(
    name: *const c_char,
    function: *mut *const (),
    _version: c_uint,
    flags: u64,
    result: *mut c_int,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe { cudaGetDriverEntryPoint(name, function, flags, result) }
}

unsafe extern "C" fn cuGetErrorString(_error: Status, text: *mut *const c_char) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(text, c"an error of nccl-host".as_ptr()) }
}

unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(device, ordinal) }
}

unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, _attribute: c_int, _device: c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(value, 0) }
}

unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], _device: c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(uuid, [1; 16]) }
}

unsafe extern "C" fn cuMemGetAddressRange(start: *mut usize, len: *mut usize, address: usize) -> Status {
    let Some(found) = find(address) else {
        return INVALID_VALUE;
    };
    // SAFETY: results of the caller's, either of which may be null.
    unsafe {
        put(start, found.start);
        put(len, found.len);
    }
    SUCCESS
}

unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    _properties: *const c_void,
    _option: c_int,
) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(granularity, 2 << 20) }
}

unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(context, ptr::dangling_mut()) }
}

extern "C" fn cuCtxSetCurrent(_context: *mut c_void) -> Status {
    SUCCESS
}

unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(device, 0) }
}

unsafe extern "C" fn cuCtxCreate(context: *mut *mut c_void, _flags: c_uint, _device: c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(context, ptr::dangling_mut()) }
}

unsafe extern "C" fn cuPointerGetAttribute(value: *mut c_int, _attribute: c_int, address: usize) -> Status {
    if find(address).is_none() {
        return INVALID_VALUE;
    }
    // Device ordinal and everything else: 0.
    // SAFETY: a result of the caller's.
    unsafe { put(value, 0) }
}

/// The beginning of `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_memory: c_uint,
    stream: *mut c_void,
}

unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: *const c_void,
    _arguments: *mut *mut c_void,
    extra: *const *const c_void,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe { launch(function, (*config).grid[0], (*config).stream, extra) }
}

unsafe extern "C" fn cuLaunchKernel(
    function: *const c_void,
    grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared_memory: c_uint,
    on: *mut c_void,
    _arguments: *mut *mut c_void,
    extra: *const *const c_void,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe { launch(function, grid_x, on, extra) }
}

/// Pushes a kernel with a copy of its argument block.
unsafe fn launch(
    function: *const c_void,
    blocks: c_uint,
    on: *mut c_void,
    extra: *const *const c_void,
) -> Status {
    let Some(name) = KERNELS
        .get()
        .and_then(|kernels| kernels.get(&function.addr()))
        .cloned()
    else {
        eprintln!("nccl-host: launch of a function that is no kernel");
        return NOT_SUPPORTED;
    };
    // SAFETY: the list is the caller's.
    let Some(block) = (unsafe { argument_block(extra) }) else {
        eprintln!("nccl-host: launch of {name} without an argument block");
        return NOT_SUPPORTED;
    };
    let arguments = kernel::Arguments::new(block);
    // SAFETY: a stream of ours.
    let stream = unsafe { stream(on) };
    let mut kernel = kernel::Kernel::new(name, blocks, arguments);
    stream.push_task(move || kernel.advance());
    SUCCESS
}

/// The bytes that `extra` names: pairs of a tag and a value, tags being CU_LAUNCH_PARAM_END 0, BUFFER_POINTER 1 and
/// BUFFER_SIZE 2.
unsafe fn argument_block<'a>(mut extra: *const *const c_void) -> Option<&'a [u8]> {
    let (mut start, mut len) = (ptr::null::<u8>(), 0);
    if extra.is_null() {
        return None;
    }
    loop {
        // SAFETY: the list goes on until its end tag, and a size is passed by its address.
        unsafe {
            match (*extra).addr() {
                0 => break,
                1 => start = (*extra.add(1)).cast(),
                2 => len = (*extra.add(1)).cast::<usize>().read(),
                _ => return None,
            }
            extra = extra.add(2);
        }
    }
    // SAFETY: the caller's block, which it keeps until the launch has returned.
    (!start.is_null()).then(|| unsafe { slice::from_raw_parts(start, len) })
}
