//! Memory regions.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use usb4_ring::{Access, MemoryRegion, Registration};

use crate::device::usb4ring_device;
use crate::error::{Failure, given, run};
use crate::object::{give, take_back};
use crate::types::usb4ring_region;

/// A memory region.
#[derive(Debug)]
pub struct usb4ring_mr(Memory);

#[derive(Debug)]
enum Memory {
    Process(MemoryRegion),
    DmaBuf(Registration),
}

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
    let alloc = || {
        let region = given(device)?.0.get()?.alloc(len, rights(access)?)?;
        Ok(usb4ring_mr(Memory::Process(region)))
    };
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
        Ok(usb4ring_mr(Memory::Process(region)))
    };
    // SAFETY: a place for a pointer, says the caller.
    run(|| unsafe { give(out, register) })
}

/// Registers memory of a dma-buf.
///
/// # Safety
/// The device is open, `out` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_register_dmabuf(
    device: Option<&usb4ring_device>,
    fd: c_int,
    offset: u64,
    len: usize,
    start: *mut c_void,
    access: u32,
    out: *mut *mut usb4ring_mr,
) -> c_int {
    let register = || {
        let device = given(device)?.0.get()?;
        if fd < 0 {
            return Err(Failure::Own(libc::EBADF, "there is no descriptor below 0"));
        }
        // SAFETY: not -1. Whether it is open the device finds out; nothing else is done with it.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let region = device.register_dmabuf(fd, offset, len, start.addr() as u64, rights(access)?)?;
        Ok(usb4ring_mr(Memory::DmaBuf(region)))
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
    let (start, len, remote_key, local_key) = match &mr.0 {
        Memory::Process(mr) => (mr.addr(), mr.len(), mr.remote_key(), mr.local_key()),
        Memory::DmaBuf(mr) => (mr.addr(), mr.len(), mr.remote_key(), mr.local_key()),
    };
    let it = usb4ring_region {
        start: start as *mut c_void,
        len: len as u64,
        remote_key,
        local_key,
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
