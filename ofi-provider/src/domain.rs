//! Domains: one device, one lock, and the tables of what is open on it.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libfabric_sys::*;
use usb4_ffi::{Handle, Level, boundary_or, log};
use usb4_ring::Device;

use crate::av::{self, AvState};
use crate::cntr::{self, CntrState};
use crate::cq;
use crate::ep::{self, EpState};
use crate::fabric::{self, FabricHandle};
use crate::init::PANICKED;
use crate::lock::{DomainLock, Guard};
use crate::sink::CqState;
use crate::{mr, nosys};

/// A domain, as C sees it.
#[repr(C)]
pub(crate) struct Domain {
    fid: fid_domain,
    shared: Arc<Shared>,
}

pub(crate) type DomainHandle = Handle<Domain, fid_domain>;

/// What a domain's objects share.
pub(crate) struct Shared {
    state: DomainLock<State>,
    pub(crate) device: Device,
    /// The interface version of the application: decides which fields of its structures exist.
    pub(crate) api_version: u32,
    fabric: Arc<fabric::Shared>,
    children: AtomicU32,
}

/// The domain's objects, under its lock.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) eps: Table<EpState>,
    pub(crate) cqs: Table<CqState>,
    pub(crate) avs: Table<AvState>,
    pub(crate) cntrs: Table<CntrState>,
    /// Somebody has slept on a completion queue.
    pub(crate) sleepers: bool,
}

/// Objects by index.
pub(crate) struct Table<T>(Vec<Option<T>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Table<T> {
    pub(crate) fn insert(&mut self, object: T) -> u32 {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free == self.0.len() {
            self.0.push(None);
        }
        self.0[free] = Some(object);
        u32::try_from(free).unwrap_or(u32::MAX)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        self.0.get_mut(index as usize)?.take()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.0.get(index as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.0.get_mut(index as usize)?.as_mut()
    }
}

impl Domain {
    /// What its objects share, with one object more counted.
    pub(crate) fn open_child(&self) -> Arc<Shared> {
        self.shared.children.fetch_add(1, Ordering::AcqRel);
        self.shared.clone()
    }
}

impl Shared {
    /// The objects; `None` in a child of `fork`.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Guard<'_, State>> {
        self.state.lock()
    }

    pub(crate) fn close_child(&self) {
        self.children.fetch_sub(1, Ordering::AcqRel);
    }
}

static OPS: fi_ops = nosys::ops(close, bind, nosys::control);

static DOMAIN_OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: av::open,
    cq_open: cq::open,
    endpoint: ep::open,
    scalable_ep: nosys::scalable_ep,
    cntr_open: cntr::open,
    poll_open: nosys::poll_open,
    stx_ctx: nosys::stx_ctx,
    srx_ctx: nosys::srx_ctx,
    query_atomic: None,
    query_collective: None,
    endpoint2: None,
};

/// `fi_domain`.
///
/// # Safety
/// Called with a fabric of ours and valid arguments.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: promised by the caller.
        let (Some(fabric), Some(info)) = (unsafe { (FabricHandle::get(fabric), info.as_ref()) }) else {
            return -FI_EINVAL;
        };
        // SAFETY: part of a valid info; only a field that every version has is read.
        let threading = unsafe { info.domain_attr.as_ref() }.map_or(FI_THREAD_UNSPEC, |attr| attr.threading);
        let device = match fabric.shared().device() {
            Ok(device) => device,
            Err(error) => {
                log(Level::Warn, format_args!("{error}"));
                return -FI_ENODEV;
            }
        };
        log(
            Level::Info,
            format_args!("domain on {}, node {}", device.info().name, device.info().node),
        );
        let shared = Shared {
            state: DomainLock::new(State::default(), threading != FI_THREAD_DOMAIN),
            device,
            api_version: fabric.api_version(),
            fabric: fabric.shared().clone(),
            children: AtomicU32::new(0),
        };
        shared.fabric.children.fetch_add(1, Ordering::AcqRel);
        let object = Domain {
            fid: fid_domain {
                fid: fid {
                    fclass: FI_CLASS_DOMAIN,
                    context,
                    ops: &OPS,
                },
                ops: &DOMAIN_OPS,
                mr: &mr::MR_OPS,
            },
            shared: Arc::new(shared),
        };
        // SAFETY: promised by the caller.
        unsafe { *domain = DomainHandle::into_raw(Box::new(object)) };
        0
    })
}

/// `fi_domain2`: no flag is known.
///
/// # Safety
/// As [`open`].
pub(crate) unsafe extern "C" fn open2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: promised by the caller.
    unsafe { open(fabric, info, domain, context) }
}

/// An event queue may be bound; no registration is asynchronous.
unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: a domain of ours.
        let Some(domain) = (unsafe { DomainHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        if domain.shared.children.load(Ordering::Acquire) > 0 {
            return -FI_EBUSY;
        }
        domain.shared.fabric.children.fetch_sub(1, Ordering::AcqRel);
        // SAFETY: as above, and nothing refers to it any more.
        drop(unsafe { DomainHandle::free(fid.cast()) });
        0
    })
}
