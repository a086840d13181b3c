//! `getProperties`.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use nccl_net_sys::*;

use super::entry;
use crate::core::{Facts, Fault, World};

/// The device's name in the log.
const DEVICE: *mut c_char = c"usb4_0".as_ptr().cast_mut();

/// Asks for the facts and lets `fill` write them.
///
/// # Safety
/// NULL, or a place for a `P`.
unsafe fn answer<P>(device: c_int, place: *mut P, fill: impl FnOnce(&mut P, Facts)) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise; all bits 0 are such a structure, and none of them is left from before.
        let properties = unsafe {
            if !place.is_null() {
                place.write_bytes(0, 1);
            }
            place.as_mut()
        };
        let properties = properties.ok_or_else(|| Fault::internal("getProperties() into NULL"))?;
        fill(properties, World::facts(device)?);
        Ok(())
    })
}

/// What every version has.
macro_rules! base {
    ($properties:ident, $facts:ident) => {
        $properties.name = DEVICE;
        // NCCL takes it for a device beside the PCI tree.
        $properties.pciPath = null_mut();
        $properties.guid = $facts.guid;
        $properties.ptrSupport = $facts.memory;
        $properties.speed = $facts.speed;
        $properties.port = 1;
        $properties.latency = $facts.latency;
        $properties.maxComms = $facts.max_comms;
        $properties.maxRecvs = 1;
    };
}

/// What there is from v7 on.
macro_rules! device {
    ($properties:ident) => {
        $properties.netDeviceType = NCCL_NET_DEVICE_HOST;
        $properties.netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
    };
}

/// What there is from v9 on; `regIsGlobal` and `forceFlush` stay 0: memory is registered for one communicator, and what is
/// received is there.
macro_rules! sizes {
    ($properties:ident, $device:ident) => {
        $properties.vProps.ndevs = 1;
        $properties.vProps.devs[0] = $device;
        $properties.maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES;
        $properties.maxCollBytes = NCCL_MAX_NET_SIZE_BYTES;
    };
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn v6(device: c_int, place: *mut ncclNetProperties_v6_t) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe {
        answer(device, place, |properties, facts| {
            base!(properties, facts);
        })
    }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn v7(device: c_int, place: *mut ncclNetProperties_v7_t) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe {
        answer(device, place, |properties, facts| {
            base!(properties, facts);
            device!(properties);
        })
    }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn v8(device: c_int, place: *mut ncclNetProperties_v8_t) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe {
        answer(device, place, |properties, facts| {
            base!(properties, facts);
            device!(properties);
        })
    }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn v9(device: c_int, place: *mut ncclNetProperties_v9_t) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe {
        answer(device, place, |properties, facts| {
            base!(properties, facts);
            device!(properties);
            sizes!(properties, device);
        })
    }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn v11(device: c_int, place: *mut ncclNetProperties_v11_t) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe {
        answer(device, place, |properties, facts| {
            base!(properties, facts);
            device!(properties);
            sizes!(properties, device);
            properties.maxMultiRequestSize = 1;
        })
    }
}

/// # Safety
/// NCCL's contract.
pub(super) unsafe extern "C" fn v12(device: c_int, place: *mut ncclNetProperties_v12_t) -> ncclResult_t {
    // SAFETY: NCCL's contract.
    unsafe {
        answer(device, place, |properties, facts| {
            base!(properties, facts);
            device!(properties);
            sizes!(properties, device);
            properties.maxMultiRequestSize = 1;
            properties.railId = NCCL_NET_ID_UNDEF;
            properties.planeId = NCCL_NET_ID_UNDEF;
        })
    }
}
