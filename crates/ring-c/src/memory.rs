//! Memory regions.

use std::ffi::{c_int, c_void};

use usb4_ring::{Access, MemoryRegion};

use crate::device::usb4ring_device;
use crate::error::{Failure, given, run};
use crate::object::{give, take_back};
use crate::types::usb4ring_region;

/// A memory region.
#[derive(Debug)]
pub struct usb4ring_mr(MemoryRegion);

/// The rights of `USB4RING_REMOTE_` bits and `USB4RING_READ_ONLY`.
fn rights(access: u32) -> Result<Access, Failure> {
    let all = [
        (1, Access::REMOTE_READ),
        (2, Access::REMOTE_WRITE),
        (4, Access::REMOTE_ATOMIC),
        (8, Access::READ_ONLY),
    ];
    if access > 15 {
        return Err(Failure::Own(
            libc::EINVAL,
            "an access right that does not exist: use USB4RING_REMOTE_READ, _WRITE, _ATOMIC and USB4RING_READ_ONLY",
        ));
    }
    let granted = all.into_iter().filter(|(bit, _)| access & bit != 0);
    Ok(granted.fold(Access::LOCAL, |rights, (_, right)| rights | right))
}

/// Allocates and registers memory.
///
/// # Safety
/// The device is open, `out` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_alloc(
    device: Option<&usb4ring_device>,
    len: usize,
    access: u32,
    out: *mut *mut usb4ring_mr,
) -> c_int {
    let alloc = || Ok(usb4ring_mr(given(device)?.0.get()?.alloc(len, rights(access)?)?));
    // SAFETY: a place for a pointer, says the caller.
    run(|| unsafe { give(out, alloc) })
}

/// Registers memory.
///
/// # Safety
/// The device is open, `out` a place for a pointer. The memory stays mapped, and may be read and written by local and
/// remote operations at any time, until it is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_register(
    device: Option<&usb4ring_device>,
    start: *mut c_void,
    len: usize,
    access: u32,
    out: *mut *mut usb4ring_mr,
) -> c_int {
    let register = || {
        let device = given(device)?.0.get()?;
        // SAFETY: the caller's promise.
        let region = unsafe { device.register(start.cast(), len, rights(access)?)? };
        Ok(usb4ring_mr(region))
    };
    // SAFETY: a place for a pointer, says the caller.
    run(|| unsafe { give(out, register) })
}

/// What requests and peers name it by.
///
/// # Safety
/// The region is registered, `region` a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_get_region(mr: Option<&usb4ring_mr>, region: *mut usb4ring_region) {
    let Some(mr) = mr else { return };
    let it = usb4ring_region {
        start: mr.0.as_ptr().cast(),
        len: mr.0.len() as u64,
        remote_key: mr.0.remote_key(),
        local_key: mr.0.local_key(),
        reserved: 0,
    };
    // SAFETY: a place for it, says the caller.
    unsafe { region.write(it) };
}

/// Gives a region back; NULL is none.
///
/// # Safety
/// It is registered, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_deregister(mr: *mut usb4ring_mr) {
    // SAFETY: the caller's promise.
    unsafe { take_back(mr) };
}
