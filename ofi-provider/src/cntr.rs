//! Counters: how many of an endpoint's operations have completed. Reading one drives the endpoints bound to
//! it.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys::*;
use usb4_ffi::{Handle, boundary_or};

use crate::domain::{DomainHandle, Shared, State};
use crate::fork::FORKED;
use crate::init::PANICKED;
use crate::nosys;

/// A counter's state, under the domain's lock.
#[derive(Default)]
pub(crate) struct CntrState {
    pub(crate) value: u64,
    pub(crate) errors: u64,
    /// Endpoints bound to it.
    pub(crate) endpoints: Vec<u32>,
}

/// A counter, as C sees it.
#[repr(C)]
pub(crate) struct Cntr {
    fid: fid_cntr,
    pub(crate) domain: Arc<Shared>,
    pub(crate) index: u32,
}

pub(crate) type CntrHandle = Handle<Cntr, fid_cntr>;

static OPS: fi_ops = nosys::ops(close, nosys::bind, nosys::control);

static CNTR_OPS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read,
    readerr,
    add,
    set,
    wait,
    adderr: Some(adderr),
    seterr: Some(seterr),
};

/// `fi_cntr_open`.
///
/// # Safety
/// Called with a domain of ours and valid arguments.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: promised by the caller.
        let (Some(domain), Some(attr)) = (unsafe { (DomainHandle::get(domain), attr.as_ref()) }) else {
            return -FI_EINVAL;
        };
        if attr.events != FI_CNTR_EVENTS_COMP || !matches!(attr.wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC) {
            return -FI_ENOSYS;
        }
        let shared = domain.open_child();
        let Some(mut state) = shared.lock() else {
            shared.close_child();
            return FORKED;
        };
        let index = state.cntrs.insert(CntrState::default());
        drop(state);
        let object = Cntr {
            fid: fid_cntr {
                fid: fid {
                    fclass: FI_CLASS_CNTR,
                    context,
                    ops: &OPS,
                },
                ops: &CNTR_OPS,
            },
            domain: shared,
            index,
        };
        // SAFETY: promised by the caller.
        unsafe { *cntr = CntrHandle::into_raw(Box::new(object)) };
        0
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: a counter of ours.
        let Some(cntr) = (unsafe { CntrHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        let Some(mut state) = cntr.domain.lock() else {
            return FORKED;
        };
        if state
            .cntrs
            .get(cntr.index)
            .is_some_and(|cntr| !cntr.endpoints.is_empty())
        {
            return -FI_EBUSY;
        }
        state.cntrs.remove(cntr.index);
        drop(state);
        // SAFETY: as above, closed once.
        if let Some(cntr) = unsafe { CntrHandle::free(fid.cast()) } {
            cntr.domain.close_child();
        }
        0
    })
}

/// Drives the endpoints bound to a counter.
fn progress(state: &mut State, cntr: u32) {
    let mut n = 0;
    while let Some(&ep) = state.cntrs.get(cntr).and_then(|cntr| cntr.endpoints.get(n)) {
        crate::ep::drive(state, ep);
        n += 1;
    }
}

/// Runs `body` on a counter from C, after progress if `drive`.
///
/// # Safety
/// `cntr` is null or a counter of ours.
unsafe fn with<T: Copy>(
    cntr: *mut fid_cntr,
    failed: T,
    drive: bool,
    body: impl FnOnce(&mut CntrState) -> T,
) -> T {
    boundary_or(failed, || {
        // SAFETY: promised by the caller.
        let Some(cntr) = (unsafe { CntrHandle::get(cntr) }) else {
            return failed;
        };
        let Some(mut state) = cntr.domain.lock() else {
            return failed;
        };
        if drive {
            progress(&mut state, cntr.index);
        }
        state.cntrs.get_mut(cntr.index).map_or(failed, body)
    })
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: a counter of ours.
    unsafe { with(cntr, 0, true, |cntr| cntr.value) }
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: a counter of ours.
    unsafe { with(cntr, 0, true, |cntr| cntr.errors) }
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    let body = |cntr: &mut CntrState| {
        cntr.value = cntr.value.wrapping_add(value);
        0
    };
    // SAFETY: a counter of ours.
    unsafe { with(cntr, -FI_EINVAL, false, body) }
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    let body = |cntr: &mut CntrState| {
        cntr.value = value;
        0
    };
    // SAFETY: a counter of ours.
    unsafe { with(cntr, -FI_EINVAL, false, body) }
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    let body = |cntr: &mut CntrState| {
        cntr.errors = cntr.errors.wrapping_add(value);
        0
    };
    // SAFETY: a counter of ours.
    unsafe { with(cntr, -FI_EINVAL, false, body) }
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    let body = |cntr: &mut CntrState| {
        cntr.errors = value;
        0
    };
    // SAFETY: a counter of ours.
    unsafe { with(cntr, -FI_EINVAL, false, body) }
}

/// Waits by polling, since what is waited for needs our progress.
unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    let deadline = u64::try_from(timeout)
        .ok()
        .map(|ms| Instant::now() + Duration::from_millis(ms));
    // SAFETY: a counter of ours.
    let errors = unsafe { with(cntr, None, true, |cntr| Some(cntr.errors)) };
    let Some(errors) = errors else { return -FI_EINVAL };
    loop {
        // SAFETY: as above.
        let (value, now) = unsafe { with(cntr, (u64::MAX, errors), true, |cntr| (cntr.value, cntr.errors)) };
        if value >= threshold {
            return 0;
        }
        if now != errors {
            return -FI_EAVAIL;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return -FI_ETIMEDOUT;
        }
        std::thread::yield_now();
    }
}
