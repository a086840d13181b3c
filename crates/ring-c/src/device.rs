//! Devices.

use std::ffi::{CStr, c_char, c_int};

use usb4_ffi::boundary_or;
use usb4_ring::{Device, PeerState};

use crate::error::{Failure, given, run};
use crate::object::{Owned, give, take_back};
use crate::types::{usb4ring_info, usb4ring_peer};

/// An open device.
#[derive(Debug)]
pub struct usb4ring_device(pub(crate) Owned<Device>);

const PROCESS_MEMORY: u32 = 1;

/// Opens a device.
///
/// # Safety
/// `name` is NULL or a string, `out` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_open(name: *const c_char, out: *mut *mut usb4ring_device) -> c_int {
    let open = || {
        if name.is_null() {
            return Ok(usb4ring_device(Owned::new(Device::open_env()?)));
        }
        // SAFETY: a string, says the caller.
        let name = unsafe { CStr::from_ptr(name) };
        let name = name
            .to_str()
            .map_err(|_| Failure::Own(libc::EINVAL, "the device's name is not UTF-8"))?;
        Ok(usb4ring_device(Owned::new(Device::open(name)?)))
    };
    // SAFETY: a place for a pointer, says the caller.
    run(|| unsafe { give(out, open) })
}

/// Closes a device; NULL is none.
///
/// # Safety
/// It is open, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_close(device: *mut usb4ring_device) {
    // SAFETY: the caller's promise.
    unsafe { take_back(device) };
}

/// What a device is and can do.
///
/// # Safety
/// The device is open, `info` a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_get_info(device: Option<&usb4ring_device>, info: *mut usb4ring_info) {
    let Some(device) = device else { return };
    let from = device.0.anywhere().info();
    let info_now = usb4ring_info {
        node: from.node.into(),
        flags: if from.process_memory { PROCESS_MEMORY } else { 0 },
        max_message: from.max_message,
        max_queue_depth: from.max_queue_depth.min(from.max_cq_depth),
        max_endpoints: from.max_endpoints,
        max_cqs: from.max_cqs,
        max_regions: from.max_regions,
    };
    // SAFETY: a place for it, says the caller.
    unsafe { info.write(info_now) };
}

/// The other hosts: how many there are.
///
/// # Safety
/// The device is open; `peers` has room for `room` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_get_peers(
    device: Option<&usb4ring_device>,
    peers: *mut usb4ring_peer,
    room: usize,
) -> usize {
    boundary_or(0, || {
        let Some(device) = device.and_then(|device| device.0.get().ok()) else {
            return 0;
        };
        let known = device.peers();
        for (at, peer) in known.iter().take(room).enumerate() {
            let entry = usb4ring_peer {
                node: peer.node.into(),
                state: match peer.state {
                    PeerState::Up => 2,
                    PeerState::Connecting => 1,
                    _ => 0,
                },
                rails: u32::from(peer.rails),
                rate_mbps: peer.rate_mbps,
                reserved: 0,
            };
            // SAFETY: within the room there is, says the caller.
            unsafe { peers.add(at).write(entry) };
        }
        known.len()
    })
}

/// Drives the device.
///
/// # Safety
/// The device is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_progress(device: Option<&usb4ring_device>) -> c_int {
    boundary_or(0, || {
        let device = device.and_then(|device| device.0.get().ok());
        c_int::from(device.is_some_and(Device::progress))
    })
}

/// Whether the device is there.
///
/// # Safety
/// The device is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_check(device: Option<&usb4ring_device>) -> c_int {
    run(|| {
        given(device)?.0.get()?.check()?;
        Ok(0)
    })
}
