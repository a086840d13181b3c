//! Completion queues.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::time::Duration;

use usb4_ffi::boundary_or;
use usb4_ring::{Completion, Cq, Op, Status};

use crate::device::usb4ring_device;
use crate::error::{given, run};
use crate::object::{Owned, give, take_back};
use crate::types::usb4ring_completion;

/// A completion queue.
#[derive(Debug)]
pub struct usb4ring_cq(pub(crate) Owned<Cq>);

const HAS_IMM: u16 = 1;
const FOREVER: u64 = u64::MAX;

/// Creates a completion queue.
///
/// # Safety
/// The device is open, `out` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_create_cq(
    device: Option<&usb4ring_device>,
    depth: u32,
    out: *mut *mut usb4ring_cq,
) -> c_int {
    let create = || Ok(usb4ring_cq(Owned::new(given(device)?.0.get()?.create_cq(depth)?)));
    // SAFETY: a place for a pointer, says the caller.
    run(|| unsafe { give(out, create) })
}

/// Gives a queue back; NULL is none.
///
/// # Safety
/// It is there, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_destroy_cq(cq: *mut usb4ring_cq) {
    // SAFETY: the caller's promise.
    unsafe { take_back(cq) };
}

/// Takes completions.
///
/// # Safety
/// The queue is there and no other thread uses it; `out` has room for `room` completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_poll(
    cq: Option<&mut usb4ring_cq>,
    out: *mut usb4ring_completion,
    room: usize,
) -> usize {
    boundary_or(0, || {
        let Some(cq) = cq.and_then(|cq| cq.0.get_mut().ok()) else {
            return 0;
        };
        let mut taken = 0;
        while taken < room
            && let Some(done) = cq.take()
        {
            // SAFETY: within the room there is, says the caller.
            unsafe { out.add(taken).write(completion(&done)) };
            taken += 1;
        }
        // The device learns that the places are free.
        if taken != 0 && taken == room {
            cq.is_empty();
        }
        taken
    })
}

fn completion(done: &Completion) -> usb4ring_completion {
    usb4ring_completion {
        user_data: done.user_data,
        value: done.imm.unwrap_or(done.value),
        len: done.len,
        source: done.source.0,
        op: match done.op {
            Op::Write => 2,
            Op::Read => 3,
            Op::FetchAdd => 4,
            Op::CompareSwap => 5,
            Op::Receive => 16,
            Op::ReceiveWrite => 17,
            _ => 1,
        },
        status: status(done.status),
        flags: if done.imm.is_some() { HAS_IMM } else { 0 },
        reserved: 0,
    }
}

fn status(status: Status) -> u8 {
    match status {
        Status::Ok => 0,
        Status::NotReady => 1,
        Status::Access => 2,
        Status::Length => 3,
        Status::Unsupported => 4,
        Status::Resource => 5,
        Status::Gone => 6,
        Status::LinkDown => 7,
        Status::Flushed => 8,
        Status::Unreachable => 10,
        Status::Unknown(code) => code,
        _ => 9,
    }
}

/// The queue's descriptor.
///
/// # Safety
/// The queue is there and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_wait_fd(cq: Option<&mut usb4ring_cq>) -> c_int {
    run(|| Ok(given(cq)?.0.get_mut()?.wait_fd()?.as_raw_fd()))
}

/// Arms the queue's descriptor.
///
/// # Safety
/// The queue is there and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_arm(cq: Option<&mut usb4ring_cq>) -> c_int {
    run(|| Ok(c_int::from(given(cq)?.0.get_mut()?.arm()?)))
}

/// Sleeps until a completion is there.
///
/// # Safety
/// The queue is there and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_wait(cq: Option<&mut usb4ring_cq>, timeout_ns: u64) -> c_int {
    run(|| {
        let timeout = (timeout_ns != FOREVER).then(|| Duration::from_nanos(timeout_ns));
        Ok(c_int::from(given(cq)?.0.get_mut()?.wait(timeout)?))
    })
}
