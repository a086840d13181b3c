//! Clients and what they own.

use crate::{Device, KernelHome, Pinned};
use usb4_device::{
    ClientId, CqConfig, CqId, DeviceConfig, DeviceStorage, EndpointConfig, EndpointId, Keys, Quota,
    RegionConfig,
};
use usb4_wire::EpAddr;

/// A new device in `device`. False, with nothing written, if its tables do not fit together.
///
/// # Safety
/// `device` points to uninitialised memory for a [`Device`]; `storage` is read once and must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_device_new(
    device: *mut Device,
    config: &DeviceConfig,
    storage: *const DeviceStorage<KernelHome>,
) -> bool {
    // SAFETY: the caller gives the storage away.
    let storage = unsafe { storage.read() };
    match Device::new(KernelHome, config, storage) {
        Ok(made) => {
            // SAFETY: the caller promises room for it.
            unsafe { device.write(made) };
            true
        }
        Err(_) => false,
    }
}

/// See [`usb4_device::Device::add_client`]. Returns the client, or a negative number.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_add_client(device: &Device, quota: &Quota, process: usize) -> i64 {
    let process = (process != 0).then_some(Pinned(process));
    device
        .add_client(*quota, process)
        .map_or(-1, |client| i64::from(client.raw()))
}

/// See [`usb4_device::Device::remove_client`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_remove_client(device: &Device, client: u32, now: u64) -> bool {
    device.remove_client(ClientId::from_raw(client), now).is_ok()
}

/// See [`usb4_device::Device::create_cq`]. Returns the queue, or a negative number.
///
/// # Safety
/// `config` is read once and must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_create_cq(
    device: &Device,
    client: u32,
    config: *const CqConfig<KernelHome>,
) -> i64 {
    // SAFETY: the caller gives the configuration away.
    let config = unsafe { config.read() };
    device
        .create_cq(ClientId::from_raw(client), config)
        .map_or(-1, |cq| i64::from(cq.raw()))
}

/// See [`usb4_device::Device::destroy_cq`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_destroy_cq(device: &Device, client: u32, cq: u32) -> bool {
    device
        .destroy_cq(ClientId::from_raw(client), CqId::from_raw(cq))
        .is_ok()
}

/// See [`usb4_device::Device::create_endpoint`]. Returns the endpoint, or a negative number.
///
/// # Safety
/// `config` is read once and must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_create_endpoint(
    device: &Device,
    client: u32,
    config: *const EndpointConfig<KernelHome>,
    addr: &mut EpAddr,
) -> i64 {
    // SAFETY: the caller gives the configuration away.
    let config = unsafe { config.read() };
    match device.create_endpoint(ClientId::from_raw(client), config) {
        Ok((ep, at)) => {
            *addr = at;
            i64::from(ep.raw())
        }
        Err(_) => -1,
    }
}

/// See [`usb4_device::Device::destroy_endpoint`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_destroy_endpoint(device: &Device, client: u32, ep: u32, now: u64) -> bool {
    device
        .destroy_endpoint(ClientId::from_raw(client), EndpointId::from_raw(ep), now)
        .is_ok()
}

/// See [`usb4_device::Device::connect`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_connect(device: &Device, client: u32, ep: u32, peer: &EpAddr) -> bool {
    device
        .connect(ClientId::from_raw(client), EndpointId::from_raw(ep), peer)
        .is_ok()
}

/// See [`usb4_device::Device::reset_endpoint`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_reset_endpoint(
    device: &Device,
    client: u32,
    ep: u32,
    now: u64,
    addr: &mut EpAddr,
) -> bool {
    match device.reset_endpoint(ClientId::from_raw(client), EndpointId::from_raw(ep), now) {
        Ok(at) => {
            *addr = at;
            true
        }
        Err(_) => false,
    }
}

/// See [`usb4_device::Device::create_ah`]. Returns the handle, or a negative number.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_create_ah(device: &Device, client: u32, ep: u32, dst: &EpAddr) -> i64 {
    device
        .create_ah(ClientId::from_raw(client), EndpointId::from_raw(ep), dst)
        .map_or(-1, i64::from)
}

/// See [`usb4_device::Device::destroy_ah`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_destroy_ah(device: &Device, client: u32, ep: u32, ah: u32, now: u64) -> bool {
    device
        .destroy_ah(ClientId::from_raw(client), EndpointId::from_raw(ep), ah, now)
        .is_ok()
}

/// See [`usb4_device::Device::source`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_source(device: &Device, src: u32, addr: &mut EpAddr) -> bool {
    device.source(src).map(|at| *addr = at).is_some()
}

/// See [`usb4_device::Device::register`].
///
/// # Safety
/// `config` is read once and must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4_core_register(
    device: &Device,
    client: u32,
    config: *const RegionConfig<Pinned>,
    keys: &mut Keys,
) -> bool {
    // SAFETY: the caller gives the configuration away.
    let config = unsafe { config.read() };
    match device.register(ClientId::from_raw(client), config) {
        Ok(made) => {
            *keys = made;
            true
        }
        Err(_) => false,
    }
}

/// See [`usb4_device::Device::deregister`]. 1: gone, 0: still in use, negative: no such region.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_deregister(device: &Device, client: u32, key: u32) -> i32 {
    device
        .deregister(ClientId::from_raw(client), key)
        .map_or(-1, i32::from)
}

/// See [`usb4_device::Device::reclaim`]. 1: gone, 0: still in use, negative: no such region.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_reclaim(device: &Device, client: u32, key: u32, force: bool) -> i32 {
    device
        .reclaim(ClientId::from_raw(client), key, force)
        .map_or(-1, i32::from)
}

/// See [`usb4_device::Device::submit`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_submit(device: &Device, ep: u32, now: u64) -> bool {
    device.submit(EndpointId::from_raw(ep), now)
}

/// See [`usb4_device::Device::submit_all`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_submit_all(device: &Device, now: u64) -> bool {
    device.submit_all(now)
}

/// See [`usb4_device::Device::arm_all`] and [`usb4_device::Device::disarm_all`].
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_arm(device: &Device, armed: bool) -> bool {
    if armed {
        device.arm_all()
    } else {
        device.disarm_all();
        false
    }
}
