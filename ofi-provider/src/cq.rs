//! Completion queues. Reading one drives the endpoints bound to it.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys::*;
use usb4_ffi::{Handle, boundary_or};

use crate::av::size;
use crate::domain::{DomainHandle, Shared, State};
use crate::fork::FORKED;
use crate::init::PANICKED;
use crate::nosys;
use crate::sink::{CqState, Direct};
use crate::wait::Wait;

/// How often who sleeps is woken to ask the peers that a rendezvous waits for: their loss shows only then.
const PROBE_EVERY: Duration = Duration::from_millis(50);

/// A completion queue, as C sees it.
#[repr(C)]
pub(crate) struct Cq {
    fid: fid_cq,
    pub(crate) domain: Arc<Shared>,
    pub(crate) index: u32,
    format: c_int,
    wait: Option<Arc<Wait>>,
}

pub(crate) type CqHandle = Handle<Cq, fid_cq>;

static OPS: fi_ops = nosys::ops(close, nosys::bind, control);

static CQ_OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read,
    readfrom,
    readerr,
    sread,
    sreadfrom,
    signal,
    strerror,
};

/// `fi_cq_open`.
///
/// # Safety
/// Called with a domain of ours and valid arguments.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: promised by the caller.
        let (Some(domain), Some(attr)) = (unsafe { (DomainHandle::get(domain), attr.as_mut()) }) else {
            return -FI_EINVAL;
        };
        let format = match attr.format {
            FI_CQ_FORMAT_UNSPEC => FI_CQ_FORMAT_TAGGED,
            format @ FI_CQ_FORMAT_CONTEXT..=FI_CQ_FORMAT_TAGGED => format,
            _ => return -FI_ENOSYS,
        };
        attr.format = format;
        let wait = match attr.wait_obj {
            FI_WAIT_NONE => None,
            FI_WAIT_UNSPEC | FI_WAIT_FD => match Wait::new() {
                Ok(wait) => Some(Arc::new(wait)),
                Err(_) => return -FI_ENOMEM,
            },
            _ => return -FI_ENOSYS,
        };
        let shared = domain.open_child();
        let queue = CqState::new(attr.size.clamp(256, 65536), wait.clone());
        let Some(mut state) = shared.lock() else {
            shared.close_child();
            return FORKED;
        };
        let index = state.cqs.insert(queue);
        drop(state);
        let object = Cq {
            fid: fid_cq {
                fid: fid {
                    fclass: FI_CLASS_CQ,
                    context,
                    ops: &OPS,
                },
                ops: &CQ_OPS,
            },
            domain: shared,
            index,
            format,
            wait,
        };
        // SAFETY: promised by the caller.
        unsafe { *cq = CqHandle::into_raw(Box::new(object)) };
        0
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: a queue of ours.
        let Some(cq) = (unsafe { CqHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        let Some(mut state) = cq.domain.lock() else {
            return FORKED;
        };
        if state.cqs.get(cq.index).is_some_and(|cq| !cq.endpoints.is_empty()) {
            return -FI_EBUSY;
        }
        state.cqs.remove(cq.index);
        drop(state);
        // SAFETY: as above, closed once.
        if let Some(cq) = unsafe { CqHandle::free(fid.cast()) } {
            cq.domain.close_child();
        }
        0
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: a queue of ours.
        let Some(cq) = (unsafe { CqHandle::get(fid.cast()) }) else {
            return -FI_EINVAL;
        };
        let Some(wait) = &cq.wait else { return -FI_ENODATA };
        let value = match command {
            FI_GETWAIT => wait.fd(),
            FI_GETWAITOBJ => FI_WAIT_FD,
            _ => return -FI_ENOSYS,
        };
        // SAFETY: both commands take an `int`.
        unsafe { arg.cast::<c_int>().write(value) };
        0
    })
}

/// Drives the endpoints bound to a queue until `direct` is full.
#[inline(always)]
fn progress(state: &mut State, cq: u32, direct: &mut Direct) {
    match state.cqs.get(cq).map(|cq| cq.endpoints.as_slice()) {
        Some(&[ep]) => crate::ep::progress(state, ep, direct),
        Some(&[_, _, ..]) => progress_all(state, cq, direct),
        _ => {}
    }
}

/// As [`progress`], for several endpoints: none goes short because another always has something.
#[inline(never)]
fn progress_all(state: &mut State, cq: u32, direct: &mut Direct) {
    let mut n = 0;
    while let Some(queue) = state.cqs.get_mut(cq)
        && n < queue.endpoints.len()
        && !direct.is_full()
    {
        queue.turn = if queue.turn + 1 < queue.endpoints.len() {
            queue.turn + 1
        } else {
            0
        };
        let ep = queue.endpoints[queue.turn];
        crate::ep::progress(state, ep, direct);
        n += 1;
    }
}

impl Cq {
    /// Takes up to `count` completions; negative is an error number.
    ///
    /// # Safety
    /// `buf` has room for `count` entries of the queue's format, `sources` is null or has room for as many.
    #[inline]
    unsafe fn take(&self, buf: *mut c_void, count: usize, sources: *mut fi_addr_t) -> isize {
        let Some(mut state) = self.domain.lock() else {
            return FORKED as isize;
        };
        let state = &mut *state;
        let Some(cq) = state.cqs.get(self.index) else {
            return -(FI_EINVAL as isize);
        };
        // SAFETY: promised by the caller.
        let mut direct = unsafe { Direct::new(self.index, self.format, buf, count, sources) };
        if cq.is_empty() || count == 0 {
            if !state.sleepers {
                direct.stop_when_full();
            }
            progress(state, self.index, &mut direct);
            if direct.taken() == count && count > 0 {
                return isize::try_from(count).unwrap_or(isize::MAX);
            }
        }
        match state.cqs.get_mut(self.index) {
            Some(cq) if !cq.is_empty() => cq.take(&mut direct),
            _ if direct.taken() > 0 => isize::try_from(direct.taken()).unwrap_or(isize::MAX),
            _ => -(FI_EAGAIN as isize),
        }
    }

    /// Waits until there is something to take.
    ///
    /// # Safety
    /// As [`Cq::take`].
    unsafe fn wait_take(
        &self,
        buf: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
        timeout: c_int,
    ) -> isize {
        let Some(wait) = &self.wait else {
            return -(FI_ENOSYS as isize);
        };
        let deadline = u64::try_from(timeout)
            .ok()
            .map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            // SAFETY: promised by the caller.
            let taken = unsafe { self.take(buf, count, sources) };
            if taken != -(FI_EAGAIN as isize) {
                return taken;
            }
            if wait.take_signal() {
                return -(FI_ECANCELED as isize);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return -(FI_EAGAIN as isize);
            }
            if self.arm() {
                wait.sleep(left);
            }
        }
    }

    /// Whether it is safe to sleep on the wait object.
    fn arm(&self) -> bool {
        let Some(mut state) = self.domain.lock() else {
            return false;
        };
        let state = &mut *state;
        if self.wait.as_ref().is_some_and(|wait| wait.is_time_to_look()) {
            self.probe(state);
        }
        progress_all(state, self.index, &mut Direct::none());
        let Some(cq) = state.cqs.get_mut(self.index) else {
            return false;
        };
        if !cq.watch() {
            return false;
        }
        state.sleepers = true;
        let mut asking = false;
        for ep in &cq.endpoints {
            let Some(messenger) = state.eps.get_mut(*ep).and_then(|ep| ep.messenger.as_mut()) else {
                continue;
            };
            asking |= messenger.rendezvous_outstanding() > 0;
            for ring in messenger.transport().cqs() {
                if !ring.arm().unwrap_or(false) {
                    return false;
                }
            }
        }
        if let Some(wait) = self.wait.as_ref().filter(|_| asking) {
            wait.look_again_in(PROBE_EVERY);
        }
        true
    }

    /// Asks the peers that rendezvous wait for.
    fn probe(&self, state: &mut State) {
        let mut n = 0;
        while let Some(&ep) = state.cqs.get(self.index).and_then(|cq| cq.endpoints.get(n)) {
            crate::ep::probe(state, ep);
            n += 1;
        }
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the application's arguments are handed on.
    unsafe { readfrom(cq, buf, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    boundary_or(PANICKED as isize, || {
        // SAFETY: a queue of ours.
        let Some(cq) = (unsafe { CqHandle::get(cq) }) else {
            return -(FI_EINVAL as isize);
        };
        // SAFETY: the application gives room for `count` entries.
        unsafe { cq.take(buf, count, sources) }
    })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the application's arguments are handed on.
    unsafe { sreadfrom(cq, buf, count, std::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    boundary_or(PANICKED as isize, || {
        // SAFETY: a queue of ours.
        let Some(cq) = (unsafe { CqHandle::get(cq) }) else {
            return -(FI_EINVAL as isize);
        };
        // SAFETY: the application gives room for `count` entries.
        unsafe { cq.wait_take(buf, count, sources, timeout) }
    })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    boundary_or(PANICKED as isize, || {
        // SAFETY: a queue of ours.
        let Some(cq) = (unsafe { CqHandle::get(cq) }) else {
            return -(FI_EINVAL as isize);
        };
        let Some(mut state) = cq.domain.lock() else {
            return FORKED as isize;
        };
        let Some(queue) = state.cqs.get_mut(cq.index) else {
            return -(FI_EINVAL as isize);
        };
        let Some(failed) = queue.take_failed() else {
            return -(FI_EAGAIN as isize);
        };
        let entry = failed.entry;
        // SAFETY: the application gives an entry of its version: its newest field is written only if the
        // version has it. Error data is never given, so the application's buffer stays as it is.
        unsafe {
            (*buf).op_context = entry.context as *mut c_void;
            (*buf).flags = entry.flags;
            (*buf).len = size(entry.len);
            (*buf).buf = entry.buf as *mut c_void;
            (*buf).data = entry.data;
            (*buf).tag = entry.tag;
            (*buf).olen = size(failed.truncated);
            (*buf).err = failed.error;
            (*buf).prov_errno = failed.error;
            (*buf).err_data_size = 0;
            if cq.domain.api_version >= fi_version(1, 20) {
                (*buf).src_addr = entry.source;
            }
        }
        1
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: a queue of ours.
        match unsafe { CqHandle::get(cq) }.and_then(|cq| cq.wait.as_ref()) {
            Some(wait) => {
                wait.signal();
                0
            }
            None => -FI_ENOSYS,
        }
    })
}

unsafe extern "C" fn strerror(
    _: *mut fid_cq,
    error: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = match error {
        FI_ECONNRESET => c"the peer or the link to it is gone",
        FI_EACCES => c"the peer refused access to its memory",
        FI_ETRUNC => c"the message is longer than the receive buffer",
        FI_ENOBUFS => c"the peer is out of resources",
        FI_ECANCELED => c"cancelled",
        FI_ECONNABORTED => c"the endpoint was closed or is in error",
        FI_ENOMSG => c"no matching message",
        FI_EPROTO => c"the peer does not follow the protocol",
        _ => c"unspecified error",
    };
    if !buf.is_null() && len > 0 {
        let bytes = text.to_bytes();
        let count = bytes.len().min(len - 1);
        // SAFETY: the application gives `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buf, count);
            *buf.add(count) = 0;
        }
    }
    text.as_ptr()
}

/// `fi_trywait`: whether it is safe to block on the descriptors of these objects.
///
/// # Safety
/// Called with `count` objects of ours.
pub(crate) unsafe extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    boundary_or(PANICKED, || {
        for n in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: promised by the caller.
            let fid = unsafe { *fids.add(n) };
            // SAFETY: as above.
            match unsafe { fid.as_ref() }.map(|fid| fid.fclass) {
                Some(FI_CLASS_CQ) => {
                    // SAFETY: a completion queue of ours, by its class.
                    let Some(cq) = (unsafe { CqHandle::get(fid.cast()) }) else {
                        return -FI_EINVAL;
                    };
                    if !cq.arm() {
                        return -FI_EAGAIN;
                    }
                }
                Some(FI_CLASS_EQ) => {}
                _ => return -FI_ENOSYS,
            }
        }
        0
    })
}
