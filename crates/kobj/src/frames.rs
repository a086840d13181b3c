//! Rails, frames and turns of a link.

use crate::{Device, KernelPort};
use usb4_device::{Expired, Leave, LinkId, Notified, Owner, Scratch, Serviced};
use usb4_engine::{Fate, LinkConfig, LinkStorage, RailConfig, RailId, RxToken, TxSlot};

/// See [`usb4_device::Device::add_link`]. Returns the link, or a negative number.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_add_link(device: &Device, config: &LinkConfig, storage: &mut LinkStorage) -> i64 {
    let storage = core::mem::take(storage);
    device
        .add_link(*config, storage)
        .map_or(-1, |link| i64::from(link.raw()))
}

/// See [`usb4_device::Device::attach_rail`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_attach_rail(
    device: &Device,
    link: u32,
    now: u64,
    rail: u8,
    config: &RailConfig,
) -> bool {
    device
        .attach_rail(LinkId::from_raw(link), now, RailId(rail), config)
        .is_ok()
}

/// See [`usb4_device::Device::detach_rail`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_detach_rail(
    device: &Device,
    link: u32,
    port: &KernelPort,
    now: u64,
    rail: u8,
) -> bool {
    device
        .detach_rail(LinkId::from_raw(link), port, now, RailId(rail))
        .is_ok()
}

/// See [`usb4_device::Device::fail_link`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_fail_link(device: &Device, link: u32, port: &KernelPort, now: u64) -> bool {
    device.fail_link(LinkId::from_raw(link), port, now).is_ok()
}

/// See [`usb4_device::Device::remove_link`]. The link's memory goes to `storage`.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_remove_link(
    device: &Device,
    link: u32,
    port: &KernelPort,
    now: u64,
    storage: &mut LinkStorage,
) -> bool {
    match device.remove_link(LinkId::from_raw(link), port, now) {
        Ok(gone) => {
            *storage = gone;
            true
        }
        Err(_) => false,
    }
}

/// See [`usb4_device::Device::receive_frame`]. True if the buffer is free again.
///
/// # Safety
/// `head` is valid for reads of `len` bytes and does not change meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_receive_frame(
    device: &Device,
    link: u32,
    now: u64,
    rail: u8,
    token: u32,
    head: *const u8,
    len: usize,
    frame_len: u16,
) -> bool {
    // SAFETY: the caller promises `len` readable bytes at `head`.
    let head = unsafe { core::slice::from_raw_parts(head, len) };
    device.receive_frame(
        LinkId::from_raw(link),
        now,
        RailId(rail),
        RxToken(token),
        head,
        frame_len,
    ) == Fate::Done
}

/// See [`usb4_device::Device::tx_completed`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_tx_completed(device: &Device, link: u32, now: u64, rail: u8, slot: u16) {
    device.tx_completed(LinkId::from_raw(link), now, RailId(rail), TxSlot(slot));
}

/// See [`usb4_device::Device::payload_corrupt`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_payload_corrupt(device: &Device, link: u32) {
    device.payload_corrupt(LinkId::from_raw(link));
}

/// See [`usb4_device::Device::service`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_service(
    device: &Device,
    link: u32,
    port: &KernelPort,
    now: u64,
    scratch: &mut Scratch,
    done: &mut Serviced,
) {
    *done = device.service(LinkId::from_raw(link), port, now, scratch);
}

/// See [`usb4_device::Device::offer_join`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_offer_join(device: &Device, link: u32, nonce: u64) {
    device.offer_join(LinkId::from_raw(link), nonce);
}

/// See [`usb4_device::Device::take_join`]; 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_take_join(device: &Device, link: u32) -> u64 {
    device.take_join(LinkId::from_raw(link)).unwrap_or(0)
}

/// A spinner or the link's thread wants to drive the link.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_owner_try(owner: &Owner, thread: bool) -> bool {
    if thread {
        owner.try_thread()
    } else {
        owner.try_spin()
    }
}

/// A spinner leaves. 0: it still owns, there is new work; 1: it has left; 2: and the hand-over timer must be started.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_owner_leave(owner: &Owner, force: bool) -> u32 {
    match owner.leave_spin(force) {
        Leave::Work => 0,
        Leave::Watched => 1,
        Leave::StartTimer => 2,
    }
}

/// The hand-over timer has run out. 0: start it again; 1: the thread owns now, wake it; 2: not needed any more.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_owner_expired(owner: &Owner) -> u32 {
    match owner.expired() {
        Expired::Again => 0,
        Expired::Taken => 1,
        Expired::Stop => 2,
    }
}

/// An interrupt or a doorbell: true if the thread must be woken.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_owner_notify(owner: &Owner) -> bool {
    owner.notify() == Notified::Idle
}

/// The thread wants to sleep.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_owner_sleep(owner: &Owner) -> bool {
    owner.try_sleep()
}
