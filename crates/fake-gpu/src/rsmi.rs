//! The functions of ROCm SMI that RCCL calls: one device, without neighbours.
//!
//! Signatures are those of ROCm SMI's documentation, 5.7.

#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "C's signatures; RCCL passes pointers to its own variables"
)]

use crate::put;
use std::ffi::{c_char, c_int};

/// An `rsmi_status_t`.
pub type Status = c_int;

const SUCCESS: Status = 0;
const NOT_SUPPORTED: Status = 2;

/// Bus 1 of domain 0, as the topology file has it.
const PCI_ID: u64 = 1 << 8;

/// See ROCm SMI.
#[unsafe(no_mangle)]
pub extern "C" fn rsmi_init(_flags: u64) -> Status {
    SUCCESS
}

/// See ROCm SMI.
#[unsafe(no_mangle)]
pub extern "C" fn rsmi_num_monitor_devices(count: *mut u32) -> Status {
    put(count, 1)
}

/// See ROCm SMI.
#[unsafe(no_mangle)]
pub extern "C" fn rsmi_dev_pci_id_get(_device: u32, id: *mut u64) -> Status {
    put(id, PCI_ID)
}

/// `rsmi_version_t`.
#[repr(C)]
pub struct Version {
    numbers: [u32; 3],
    build: *const c_char,
}

/// See ROCm SMI.
#[unsafe(no_mangle)]
pub extern "C" fn rsmi_version_get(version: *mut Version) -> Status {
    put(
        version,
        Version {
            numbers: [5, 7, 0],
            build: c"fake-gpu".as_ptr(),
        },
    )
}

/// See ROCm SMI.
#[unsafe(no_mangle)]
pub extern "C" fn rsmi_status_string(_status: Status, text: *mut *const c_char) -> Status {
    put(text, c"an error of fake-gpu".as_ptr())
}

/// See ROCm SMI.
#[unsafe(no_mangle)]
pub extern "C" fn rsmi_topo_get_link_type(
    _source: u32,
    _target: u32,
    hops: *mut u64,
    kind: *mut c_int,
) -> Status {
    put(hops, 0);
    put(kind, 0);
    NOT_SUPPORTED
}

/// See ROCm SMI.
#[unsafe(no_mangle)]
pub extern "C" fn rsmi_topo_get_link_weight(_source: u32, _target: u32, weight: *mut u64) -> Status {
    put(weight, 0);
    NOT_SUPPORTED
}

/// See ROCm SMI.
#[unsafe(no_mangle)]
pub extern "C" fn rsmi_minmax_bandwidth_get(
    _source: u32,
    _target: u32,
    least: *mut u64,
    most: *mut u64,
) -> Status {
    put(least, 0);
    put(most, 0);
    NOT_SUPPORTED
}
