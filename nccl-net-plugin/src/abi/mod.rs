//! The tables NCCL looks for: data symbols `ncclNetPlugin_v6` to `ncclNetPlugin_v12`.
//!
//! A function is named after its member and the version it came with. Each catches panics, turns C's arguments into
//! `core`'s, and a failure into a code and one warning.

mod data;
mod properties;
mod setup;
mod tables;

use std::ffi::c_int;

use nccl_net_sys::{ncclInternalError, ncclSuccess};
use usb4_ffi::boundary_or;

use crate::core::Fault;

pub use tables::{
    ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10,
    ncclNetPlugin_v11, ncclNetPlugin_v12,
};

/// Runs a call. What a panic says goes to the log.
#[inline(always)]
fn entry(body: impl FnOnce() -> Result<(), Fault>) -> c_int {
    boundary_or(ncclInternalError, || match body() {
        Ok(()) => ncclSuccess,
        Err(fault) => fault.report(),
    })
}

/// Stores a result where C wants it.
///
/// # Safety
/// NULL, or a place for a `T`.
#[inline]
unsafe fn give<T>(place: *mut T, value: T) -> Result<(), Fault> {
    if place.is_null() {
        return Err(Fault::internal("called with NULL for a result"));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_at_the_boundary() {
        assert_eq!(entry(|| panic!("in a call")), ncclInternalError);
        assert_eq!(entry(|| Ok(())), ncclSuccess);
    }

    #[test]
    fn a_result_without_a_place_is_an_error() {
        // SAFETY: NULL is allowed.
        assert!(unsafe { give(std::ptr::null_mut::<u8>(), 1) }.is_err());
    }
}
