//! Posting: work requests become entries, and the device is told if it does not look by itself.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rdma_core_sys::*;
use usb4_ffi::boundary_or;
use usb4_ring::raw::{Errno, Producer, PushError, QueueMemory, Rqe, Slots};

use crate::ah::Ah;
use crate::context::Shared;
use crate::handles;
use crate::init::PANICKED;
use crate::qp::{Parts, Qp, Sends};
use crate::send::{self, target};
use crate::slot;

impl Sends {
    /// The ring API's handle for a queue pair behind an address.
    ///
    /// # Safety
    /// `ah` is null or an address of ours that is not destroyed meanwhile.
    pub(crate) unsafe fn handle(&mut self, parts: &Parts, ah: *mut ibv_ah, qpn: u32) -> Result<u32, c_int> {
        // SAFETY: the caller's promise.
        let node = unsafe { Ah::parts(ah) }.ok_or(libc::EINVAL)?;
        let failures = parts.shared.failures.load(Ordering::Relaxed);
        self.handles.get(&target(node, qpn), failures, &parts.device())
    }
}

/// What posting returns when a queue does not take an entry.
#[cold]
pub(crate) fn refused(error: PushError) -> c_int {
    match error {
        PushError::Full => libc::ENOMEM,
        // In a child of `fork`, too, which does not have its parent's queues.
        PushError::Hostile(_) => libc::EIO,
    }
}

impl Parts {
    /// What makes address handles.
    pub(crate) fn device(&self) -> handles::Device<'_> {
        handles::Device {
            ring: &self.shared.ring,
            ep: self.ep,
        }
    }

    /// The device takes what was published.
    ///
    /// # Errors
    /// It has gone, or is another process's.
    #[inline]
    pub(crate) fn submit(&self) -> Result<(), c_int> {
        submit(&self.shared, self.ep)
    }

    /// # Safety
    /// `wr` is null or a chain of requests as verbs wants them.
    #[inline]
    unsafe fn post_send(&self, wr: *mut ibv_send_wr) -> Result<(), (c_int, *mut ibv_send_wr)> {
        if !self.may_send() {
            return Err((libc::EINVAL, wr));
        }
        let mut sends = self.sends.lock();
        let mut next = wr;
        let mut result = Ok(());
        // SAFETY: the caller's promise.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: as above.
            let entry = unsafe { send::entry(&self.rules, request, |ah, qpn| sends.handle(self, ah, qpn)) };
            let pushed = entry.and_then(|mut sqe| {
                if slot::is_needed(request) {
                    let slots = self.rules.sends;
                    // SAFETY: as above.
                    let words = unsafe { slot::send(&self.rules, &mut sqe, request)? };
                    send::check(&sqe)?;
                    let pushed = sends.queue.push_with(&sqe, slots, words.as_slice());
                    return pushed.map_err(refused);
                }
                send::check(&sqe)?;
                sends.queue.push(&sqe).map_err(refused)
            });
            if let Err(error) = pushed {
                result = Err((error, next));
                break;
            }
            next = request.next;
        }
        let (count, end) = (sends.queue.publish(), sends.queue.pushed());
        let asleep = count != 0 && sends.queue.needs_wakeup();
        drop(sends);
        if asleep {
            if let Err(error) = self.submit() {
                let left = self.sends.lock().queue.left(end, count);
                // SAFETY: the caller's promise; there are as many requests as entries.
                return match unsafe { nth(wr, count - left, |wr| wr.next) } {
                    _ if left == 0 => result,
                    first => Err((error, first)),
                };
            }
        }
        result
    }

    /// # Safety
    /// As [`Parts::post_send`].
    #[inline]
    unsafe fn post_recv(&self, wr: *mut ibv_recv_wr) -> Result<(), (c_int, *mut ibv_recv_wr)> {
        match &self.receives {
            // SAFETY: the caller's promise.
            Some(receives) if self.may_receive() => unsafe {
                post_receives(receives, self.rules.receives, wr, &self.shared, self.ep)
            },
            _ => Err((libc::EINVAL, wr)),
        }
    }
}

/// The device takes what was published on the queues it calls `name`.
///
/// # Errors
/// It has gone, or is another process's.
#[inline]
fn submit(shared: &Shared, name: u32) -> Result<(), c_int> {
    shared.ring.submit(name).or_else(|error| {
        if error == Errno::INTR {
            Ok(())
        } else {
            Err(error.raw_os_error())
        }
    })
}

/// Posts a chain of receives to a queue that is the device's `name`'s.
///
/// # Safety
/// `wr` is null or a chain of requests as verbs wants them.
#[inline]
pub(crate) unsafe fn post_receives(
    receives: &Mutex<Producer<QueueMemory, Rqe>>,
    slots: Slots,
    wr: *mut ibv_recv_wr,
    shared: &Shared,
    name: u32,
) -> Result<(), (c_int, *mut ibv_recv_wr)> {
    let mut guard = receives.lock();
    let mut next = wr;
    let mut result = Ok(());
    // SAFETY: the caller's promise.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        let mut rqe = unsafe { send::receive(request) };
        let pushed = if matches!(request.num_sge, 0 | 1) {
            guard.push(&rqe).map_err(refused)
        } else {
            // SAFETY: as above.
            unsafe { slot::receive(slots, &mut rqe, request) }
                .and_then(|words| guard.push_with(&rqe, slots, words.as_slice()).map_err(refused))
        };
        if let Err(error) = pushed {
            result = Err((error, next));
            break;
        }
        next = request.next;
    }
    // The device finds receives when it needs them, unless it has needed one already.
    let (count, end) = (guard.publish(), guard.pushed());
    let asleep = count != 0 && guard.needs_wakeup();
    drop(guard);
    if asleep {
        if let Err(error) = submit(shared, name) {
            let left = receives.lock().left(end, count);
            // SAFETY: the caller's promise; there are as many requests as entries.
            return match unsafe { nth(wr, count - left, |wr| wr.next) } {
                _ if left == 0 => result,
                first => Err((error, first)),
            };
        }
    }
    result
}

/// The request of a chain that `count` others come before: the first that the device has not taken. It is still there for the
/// device, should it come back.
///
/// # Safety
/// The chain is that long.
#[cold]
unsafe fn nth<W>(mut wr: *mut W, count: u64, next: impl Fn(&W) -> *mut W) -> *mut W {
    for _ in 0..count {
        // SAFETY: the caller's promise.
        match unsafe { wr.as_ref() } {
            Some(request) => wr = next(request),
            None => break,
        }
    }
    wr
}

/// Tells C which request was not posted, and why.
#[inline]
pub(crate) unsafe fn answer<W>(result: Result<(), (c_int, *mut W)>, bad_wr: *mut *mut W) -> c_int {
    match result {
        Ok(()) => 0,
        Err((error, wr)) => {
            if !bad_wr.is_null() {
                // SAFETY: libibverbs gives a place for it.
                unsafe { bad_wr.write(wr) };
            }
            error
        }
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an application gives a queue pair of ours, which is not destroyed meanwhile, and requests.
        unsafe {
            let result = Qp::parts(qp).map_or(Err((libc::EINVAL, wr)), |parts| parts.post_send(wr));
            answer(result, bad_wr)
        }
    })
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: an application gives a queue pair of ours, which is not destroyed meanwhile, and requests.
        unsafe {
            let result = Qp::parts(qp).map_or(Err((libc::EINVAL, wr)), |parts| parts.post_recv(wr));
            answer(result, bad_wr)
        }
    })
}
