//! Fabrics.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libfabric_sys::*;
use parking_lot::Mutex;
use usb4_ffi::{Handle, Level, Process, boundary_or, log};
use usb4_ring::Device;

use crate::init::{NAME, PANICKED};
use crate::{cq, domain, eq, exit, nosys};

/// A fabric, as C sees it.
#[repr(C)]
pub(crate) struct Fabric {
    fid: fid_fabric,
    shared: Arc<Shared>,
}

/// What a fabric's domains share.
pub(crate) struct Shared {
    /// The process that opened it.
    pub(crate) process: Process,
    /// The device, once a domain needed it.
    device: Mutex<Option<Device>>,
    /// Objects opened on the fabric.
    pub(crate) children: AtomicU32,
}

pub(crate) type FabricHandle = Handle<Fabric, fid_fabric>;

impl Shared {
    /// The device `USB4_DEVICE` names; opened once.
    pub(crate) fn device(&self) -> Result<Device, usb4_ring::Error> {
        if !self.process.is_current() {
            return Err(usb4_ring::Error::Forked);
        }
        let mut device = self.device.lock();
        if let Some(device) = &*device {
            return Ok(device.clone());
        }
        Ok(device.insert(Device::open_env()?).clone())
    }

    /// The device, if it is open and no other thread is just opening it.
    pub(crate) fn try_device(&self) -> Option<Device> {
        self.device.try_lock()?.clone()
    }
}

impl Fabric {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The interface version the application asked for; the core wrote it after `open`.
    pub(crate) fn api_version(&self) -> u32 {
        self.fid.api_version
    }
}

static OPS: fi_ops = nosys::ops(close, nosys::bind, nosys::control);

static FABRIC_OPS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: domain::open,
    passive_ep: nosys::passive_ep,
    eq_open: eq::open,
    wait_open: nosys::wait_open,
    trywait: cq::trywait,
    domain2: domain::open2,
};

/// `fi_fabric`.
///
/// # Safety
/// Called by the core with valid arguments.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: promised by the caller.
        let Some(attr) = (unsafe { attr.as_ref() }) else {
            return -FI_EINVAL;
        };
        // SAFETY: the name is null or a C string.
        if !attr.name.is_null() && unsafe { CStr::from_ptr(attr.name) } != NAME {
            return -FI_ENODATA;
        }
        let shared = Arc::new(Shared {
            process: Process::current(),
            device: Mutex::new(None),
            children: AtomicU32::new(0),
        });
        exit::watch(&shared);
        let object = Fabric {
            fid: fid_fabric {
                fid: fid {
                    fclass: FI_CLASS_FABRIC,
                    context,
                    ops: &OPS,
                },
                ops: &FABRIC_OPS,
                api_version: attr.api_version,
            },
            shared,
        };
        log(Level::Info, format_args!("fabric opened"));
        // SAFETY: promised by the caller.
        unsafe { *fabric = FabricHandle::into_raw(Box::new(object)) };
        0
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: the core passes a fabric of ours.
        let Some(fabric) = (unsafe { FabricHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        if fabric.shared.children.load(Ordering::Acquire) > 0 {
            return -FI_EBUSY;
        }
        // SAFETY: as above, and nothing refers to it any more.
        drop(unsafe { FabricHandle::free(fid.cast()) });
        0
    })
}
