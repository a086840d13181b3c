//! The functions of NVML that NCCL calls. One device, at the bus address of the topology file, without NVLink or peers.
//!
//! Signatures and constants are those of NVML's documentation.

#![allow(non_snake_case, reason = "NVML's names")]
#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "C's signatures; NCCL passes pointers to its own variables"
)]

use crate::put;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// An `nvmlReturn_t`.
pub type Status = c_int;

const SUCCESS: Status = 0;
const NOT_SUPPORTED: Status = 3;

/// `NVML_P2P_STATUS_NOT_SUPPORTED`.
const NO_PEER_ACCESS: c_int = 5;

/// The handle of the only device.
const DEVICE: usize = 1;

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> Status {
    SUCCESS
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Status {
    SUCCESS
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Status {
    SUCCESS
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount(count: *mut c_uint) -> Status {
    put(count, 1)
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Status {
    put(count, 1)
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex(_index: c_uint, device: *mut usize) -> Status {
    put(device, DEVICE)
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(_index: c_uint, device: *mut usize) -> Status {
    put(device, DEVICE)
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId(_bus_id: *const c_char, device: *mut usize) -> Status {
    put(device, DEVICE)
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(_bus_id: *const c_char, device: *mut usize) -> Status {
    put(device, DEVICE)
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetIndex(_device: usize, index: *mut c_uint) -> Status {
    put(index, 0)
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(_error: Status) -> *const c_char {
    c"an error of fake-gpu".as_ptr()
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkState(_device: usize, _link: c_uint, state: *mut c_uint) -> Status {
    put(state, 0);
    NOT_SUPPORTED
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo(
    _device: usize,
    _link: c_uint,
    _info: *mut c_void,
) -> Status {
    NOT_SUPPORTED
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    _device: usize,
    _link: c_uint,
    _info: *mut c_void,
) -> Status {
    NOT_SUPPORTED
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNvLinkCapability(
    _device: usize,
    _link: c_uint,
    _capability: c_int,
    result: *mut c_uint,
) -> Status {
    put(result, 0);
    NOT_SUPPORTED
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCudaComputeCapability(
    _device: usize,
    major: *mut c_int,
    minor: *mut c_int,
) -> Status {
    put(major, 8);
    put(minor, 0)
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetP2PStatus(
    _device: usize,
    _peer: usize,
    _which: c_int,
    status: *mut c_int,
) -> Status {
    put(status, NO_PEER_ACCESS)
}

/// See NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetFieldValues(_device: usize, _count: c_int, _values: *mut c_void) -> Status {
    NOT_SUPPORTED
}
