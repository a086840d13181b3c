//! Event queues. Nothing in this provider makes events; what an application writes it can read back.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libfabric_sys::*;
use parking_lot::{Condvar, Mutex};
use usb4_ffi::{Handle, boundary_or};

use crate::fabric::{FabricHandle, Shared};
use crate::fork::FORKED;
use crate::init::PANICKED;
use crate::nosys;

/// An event queue, as C sees it.
#[repr(C)]
struct Eq {
    fid: fid_eq,
    events: Mutex<VecDeque<(u32, Vec<u8>)>>,
    arrived: Condvar,
    fabric: Arc<Shared>,
}

type EqHandle = Handle<Eq, fid_eq>;

static OPS: fi_ops = nosys::ops(close, nosys::bind, nosys::control);

static EQ_OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read,
    readerr,
    write,
    sread,
    strerror,
};

/// `fi_eq_open`.
///
/// # Safety
/// Called with a fabric of ours and valid arguments.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: promised by the caller.
        let (Some(fabric), Some(attr)) = (unsafe { (FabricHandle::get(fabric), attr.as_ref()) }) else {
            return -FI_EINVAL;
        };
        if !matches!(attr.wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC) {
            return -FI_ENOSYS;
        }
        let shared = fabric.shared().clone();
        shared.children.fetch_add(1, Ordering::AcqRel);
        let object = Eq {
            fid: fid_eq {
                fid: fid {
                    fclass: FI_CLASS_EQ,
                    context,
                    ops: &OPS,
                },
                ops: &EQ_OPS,
            },
            events: Mutex::new(VecDeque::new()),
            arrived: Condvar::new(),
            fabric: shared,
        };
        // SAFETY: promised by the caller.
        unsafe { *eq = EqHandle::into_raw(Box::new(object)) };
        0
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: the application closes a queue of ours, once.
        if let Some(eq) = unsafe { EqHandle::free(fid.cast()) } {
            eq.fabric.children.fetch_sub(1, Ordering::AcqRel);
        }
        0
    })
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: the application's arguments are handed on.
    unsafe { wait_read(eq, event, buf, len, flags, Some(Duration::ZERO)) }
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    // SAFETY: the application's arguments are handed on.
    unsafe { wait_read(eq, event, buf, len, flags, timeout) }
}

/// # Safety
/// `eq` is a queue of ours, `event` valid, `buf` has `len` bytes.
unsafe fn wait_read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
    timeout: Option<Duration>,
) -> isize {
    boundary_or(PANICKED as isize, || {
        // SAFETY: promised by the caller.
        let Some(eq) = (unsafe { EqHandle::get(eq) }) else {
            return -(FI_EINVAL as isize);
        };
        if !eq.fabric.process.is_current() {
            return FORKED as isize;
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut events = eq.events.lock();
        while events.is_empty() {
            let timed_out = match deadline {
                Some(deadline) => eq.arrived.wait_until(&mut events, deadline).timed_out(),
                None => {
                    eq.arrived.wait(&mut events);
                    false
                }
            };
            if timed_out && events.is_empty() {
                return -(FI_EAGAIN as isize);
            }
        }
        let Some((kind, bytes)) = events.front() else {
            return -(FI_EAGAIN as isize);
        };
        if bytes.len() > len {
            return -(FI_ETOOSMALL as isize);
        }
        // SAFETY: promised by the caller; it fits.
        unsafe {
            *event = *kind;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len());
        }
        let count = bytes.len();
        if flags & FI_PEEK == 0 {
            events.pop_front();
        }
        isize::try_from(count).unwrap_or(isize::MAX)
    })
}

unsafe extern "C" fn readerr(_: *mut fid_eq, _: *mut fi_eq_err_entry, _: u64) -> isize {
    -(FI_EAGAIN as isize)
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    boundary_or(PANICKED as isize, || {
        // SAFETY: a queue of ours.
        let Some(eq) = (unsafe { EqHandle::get(eq) }) else {
            return -(FI_EINVAL as isize);
        };
        if !eq.fabric.process.is_current() {
            return FORKED as isize;
        }
        // SAFETY: the application gives `len` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) };
        eq.events.lock().push_back((event, bytes.to_vec()));
        eq.arrived.notify_one();
        isize::try_from(len).unwrap_or(isize::MAX)
    })
}

unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    _: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    c"no provider-specific error".as_ptr()
}
