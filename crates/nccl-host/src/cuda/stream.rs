//! Streams and events.

#![allow(non_snake_case, reason = "CUDA's names")]

use super::{NOT_READY, SUCCESS, Status, put, table};
use crate::runtime::{Event, Stream};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

table! {
    cudaStreamCreateWithFlags cudaStreamCreateWithPriority cudaStreamCreate cudaStreamDestroy cudaStreamSynchronize
    cudaStreamQuery cudaDeviceSynchronize cudaEventCreateWithFlags cudaEventCreate cudaEventDestroy cudaEventRecord
    cudaStreamWaitEvent cudaEventQuery cudaEventSynchronize cudaLaunchHostFunc cudaThreadExchangeStreamCaptureMode
    cudaStreamIsCapturing cudaStreamGetCaptureInfo_v2 cudaStreamGetCaptureInfo_v3 cudaStreamGetId
}

/// The stream behind a `cudaStream_t`: null and the constants 1 and 2 are the default stream.
///
/// # Safety
/// Any other handle is of a stream created here and not destroyed.
pub(crate) unsafe fn stream(handle: *mut c_void) -> Stream {
    static DEFAULT: OnceLock<Stream> = OnceLock::new();
    if handle.addr() <= 2 {
        return DEFAULT.get_or_init(Stream::new).clone();
    }
    // SAFETY: handles are boxed streams (caller).
    unsafe { &*handle.cast::<Stream>() }.clone()
}

unsafe fn event(handle: *mut c_void) -> Event {
    // SAFETY: handles are boxed events that live until they are destroyed, which ends their use.
    unsafe { &*handle.cast::<Event>() }.clone()
}

unsafe fn new_stream(handle: *mut *mut c_void) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(handle, Box::into_raw(Box::new(Stream::new())).cast()) }
}

unsafe extern "C" fn cudaStreamCreateWithFlags(handle: *mut *mut c_void, _flags: c_uint) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { new_stream(handle) }
}

unsafe extern "C" fn cudaStreamCreateWithPriority(
    handle: *mut *mut c_void,
    _flags: c_uint,
    _priority: c_int,
) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { new_stream(handle) }
}

unsafe extern "C" fn cudaStreamCreate(handle: *mut *mut c_void) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { new_stream(handle) }
}

unsafe extern "C" fn cudaStreamDestroy(handle: *mut c_void) -> Status {
    if handle.addr() > 2 {
        // SAFETY: a boxed stream, whose use ends here.
        unsafe { Box::from_raw(handle.cast::<Stream>()) }.close();
    }
    SUCCESS
}

unsafe extern "C" fn cudaStreamSynchronize(handle: *mut c_void) -> Status {
    // SAFETY: a stream of ours.
    unsafe { stream(handle) }.synchronize();
    SUCCESS
}

unsafe extern "C" fn cudaStreamQuery(handle: *mut c_void) -> Status {
    // SAFETY: a stream of ours.
    if unsafe { stream(handle) }.is_idle() {
        SUCCESS
    } else {
        NOT_READY
    }
}

extern "C" fn cudaDeviceSynchronize() -> Status {
    // SAFETY: null is the default stream.
    unsafe { stream(ptr::null_mut()) }.synchronize();
    SUCCESS
}

unsafe fn new_event(handle: *mut *mut c_void) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(handle, Box::into_raw(Box::new(Event::new())).cast()) }
}

unsafe extern "C" fn cudaEventCreateWithFlags(handle: *mut *mut c_void, _flags: c_uint) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { new_event(handle) }
}

unsafe extern "C" fn cudaEventCreate(handle: *mut *mut c_void) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { new_event(handle) }
}

unsafe extern "C" fn cudaEventDestroy(handle: *mut c_void) -> Status {
    // SAFETY: a boxed event, whose use ends here; what is pushed has clones.
    drop(unsafe { Box::from_raw(handle.cast::<Event>()) });
    SUCCESS
}

unsafe extern "C" fn cudaEventRecord(handle: *mut c_void, on: *mut c_void) -> Status {
    // SAFETY: an event and a stream of ours.
    unsafe { event(handle).record(&stream(on)) };
    SUCCESS
}

unsafe extern "C" fn cudaStreamWaitEvent(on: *mut c_void, handle: *mut c_void, _flags: c_uint) -> Status {
    // SAFETY: an event and a stream of ours.
    unsafe { event(handle).hold_up(&stream(on)) };
    SUCCESS
}

unsafe extern "C" fn cudaEventQuery(handle: *mut c_void) -> Status {
    // SAFETY: an event of ours.
    if unsafe { event(handle) }.is_done() {
        SUCCESS
    } else {
        NOT_READY
    }
}

unsafe extern "C" fn cudaEventSynchronize(handle: *mut c_void) -> Status {
    // SAFETY: an event of ours.
    unsafe { event(handle) }.synchronize();
    SUCCESS
}

unsafe extern "C" fn cudaLaunchHostFunc(
    on: *mut c_void,
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> Status {
    let data = data.expose_provenance();
    // SAFETY: a stream of ours.
    unsafe { stream(on) }.push(move || {
        // SAFETY: the caller's function with the caller's argument, in its turn.
        unsafe { function(ptr::with_exposed_provenance_mut(data)) };
    });
    SUCCESS
}

extern "C" fn cudaThreadExchangeStreamCaptureMode(_mode: *mut c_int) -> Status {
    SUCCESS
}

/// Nothing is captured: `cudaStreamCaptureStatusNone`.
const NOT_CAPTURING: c_int = 0;

unsafe extern "C" fn cudaStreamIsCapturing(_stream: *mut c_void, status: *mut c_int) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(status, NOT_CAPTURING) }
}

unsafe extern "C" fn cudaStreamGetCaptureInfo_v2(
    _stream: *mut c_void,
    status: *mut c_int,
    _id: *mut u64,
    _graph: *mut c_void,
    _dependencies: *mut c_void,
    _count: *mut usize,
) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(status, NOT_CAPTURING) }
}

unsafe extern "C" fn cudaStreamGetCaptureInfo_v3(
    _stream: *mut c_void,
    status: *mut c_int,
    _id: *mut u64,
    _graph: *mut c_void,
    _dependencies: *mut c_void,
    _edges: *mut c_void,
    _count: *mut usize,
) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(status, NOT_CAPTURING) }
}

unsafe extern "C" fn cudaStreamGetId(handle: *mut c_void, id: *mut u64) -> Status {
    // SAFETY: a result of the caller's.
    unsafe { put(id, handle.addr() as u64) }
}
