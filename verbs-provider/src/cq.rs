//! Completion queues.

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or};
use usb4_ring::raw::{Cqe, Errno, Hostile, QueueMemory};

use crate::abi::CqResponse;
use crate::context::{Shared, shared};
use crate::errno;
use crate::init::PANICKED;
use crate::object::Object;
use crate::queue::{self, Completions};

/// A completion queue.
pub(crate) type Cq = Object<verbs_cq, Parts>;

pub(crate) struct Parts {
    pub(crate) shared: Arc<Shared>,
    memory: QueueMemory,
    pub(crate) completions: Mutex<Completions>,
}

/// Makes a completion queue.
///
/// # Safety
/// `context` is null or a context of ours; `channel` is null or one of its channels.
pub(crate) unsafe fn make(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> Result<*mut verbs_cq, c_int> {
    let mut cmd = ibv_create_cq::default();
    let mut resp = CqResponse::default();
    let (cmd_size, resp_size) = (size_of_val(&cmd), size_of_val(&resp));
    // SAFETY: the caller's promise; a queue just made, and memory of this function's.
    unsafe {
        let shared = shared(context)?;
        let library = shared.library;
        let object = Cq::alloc();
        let cq = Cq::verbs(object);
        let ibv = &raw mut (*cq).cq_ex.base;
        errno::check((library.create_cq)(
            context,
            cqe,
            channel,
            comp_vector,
            ibv,
            &mut cmd,
            cmd_size,
            (&raw mut resp).cast(),
            resp_size,
        ))
        .inspect_err(|_| Cq::free(cq))?;
        match parts(shared, &resp) {
            Ok(parts) => {
                Cq::complete(object, parts);
                Ok(cq)
            }
            Err(error) => {
                // Should it stay, the kernel's number of it is lost until the context closes.
                if (library.destroy_cq)(ibv) == 0 {
                    Cq::free(cq);
                }
                Err(error)
            }
        }
    }
}

fn parts(shared: Arc<Shared>, resp: &CqResponse) -> Result<Parts, c_int> {
    let ours = resp.ours;
    let memory = shared
        .ring
        .map::<Cqe>(ours.depth, ours.offset, ours.bytes)
        .map_err(|error| errno::of(&error))?;
    let completions =
        Completions::new(memory.clone(), ours.depth, Arc::clone(&shared.failures)).ok_or(libc::EPROTO)?;
    Ok(Parts {
        shared,
        memory,
        completions: Mutex::new(completions),
    })
}

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    boundary(|| {
        // SAFETY: libibverbs gives a context of ours and a channel of it.
        let cq = unsafe { make(context, cqe, channel, comp_vector) };
        errno::pointer(cq.map(<*mut verbs_cq>::cast))
    })
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let destroy = || {
        // SAFETY: libibverbs gives back what `make` has made.
        unsafe {
            let shared = shared((*cq).context)?;
            errno::check((shared.library.destroy_cq)(cq))?;
            Cq::free(cq);
        }
        Ok(())
    };
    boundary_or(PANICKED, || errno::status(destroy()))
}

impl Parts {
    /// Drives the device, because there is nothing in the queue.
    ///
    /// # Errors
    /// The device has gone, or this is not the process whose device it is.
    #[inline]
    pub(crate) fn progress(&self) -> Result<(), c_int> {
        match self.shared.ring.progress() {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.raw_os_error()),
        }
    }

    /// Takes up to `count` completions to `out`; how many.
    ///
    /// # Safety
    /// `out` has room for `count`.
    #[inline]
    unsafe fn take(&self, count: usize, out: *mut ibv_wc) -> Result<usize, Hostile> {
        let mut completions = self.completions.lock();
        let mut taken = 0;
        while taken < count {
            let Some(wc) = completions.take()? else { break };
            // SAFETY: the caller's promise.
            unsafe { out.add(taken).write(wc) };
            taken += 1;
        }
        completions.release();
        Ok(taken)
    }

    /// # Safety
    /// As [`Parts::take`].
    #[inline]
    unsafe fn poll(&self, count: usize, out: *mut ibv_wc) -> Result<usize, c_int> {
        let broken = |_| libc::EIO;
        // SAFETY: the caller's promise.
        let taken = unsafe { self.take(count, out) }.map_err(broken)?;
        if taken != 0 || count == 0 {
            return Ok(taken);
        }
        self.progress()?;
        // SAFETY: as above.
        unsafe { self.take(count, out) }.map_err(broken)
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    boundary_or(-PANICKED, || {
        // SAFETY: libibverbs gives a completion queue of ours, which is not destroyed meanwhile.
        let Some(parts) = (unsafe { Cq::parts(cq) }) else {
            return -libc::EINVAL;
        };
        let Ok(count) = usize::try_from(count) else {
            return -libc::EINVAL;
        };
        // SAFETY: there is room for as many as it says.
        match unsafe { parts.poll(count, wc) } {
            // No more than `count`, which was a `c_int`.
            Ok(taken) => c_int::try_from(taken).unwrap_or(c_int::MAX),
            Err(error) => -error,
        }
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: libibverbs gives a completion queue of ours, which is not destroyed meanwhile.
        let Some(parts) = (unsafe { Cq::parts(cq) }) else {
            return libc::EINVAL;
        };
        // Nothing more is to be done: who asks for an event polls once more before sleeping, and links that nobody drives
        // are driven by the kernel.
        queue::arm(&parts.memory, solicited_only != 0);
        0
    })
}

/// Has completions of queue pair `qpn` not be seen any more.
///
/// # Safety
/// `cq` is null or one of ours that is not destroyed meanwhile.
pub(crate) unsafe fn forget(cq: *mut ibv_cq, qpn: u32) {
    // SAFETY: the caller's promise.
    if let Some(parts) = unsafe { Cq::parts(cq) } {
        parts.completions.lock().forget(qpn);
    }
}
