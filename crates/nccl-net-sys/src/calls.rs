//! The functions of the tables, by what they take. All return an [`ncclResult_t`].

use std::ffi::{c_int, c_void};

use crate::{
    ncclDebugLogger_t, ncclNetAttr_t, ncclNetCommConfig_t, ncclNetVDeviceProps_v9_t,
    ncclNetVDeviceProps_v12_t, ncclProfilerCallback_t, ncclResult_t,
};

/// `init` of v6 to v9: (logger).
pub type Init_v6 = unsafe extern "C" fn(ncclDebugLogger_t) -> ncclResult_t;
/// `init` of v10: (logger, profiler).
pub type Init_v10 = unsafe extern "C" fn(ncclDebugLogger_t, ncclProfilerCallback_t) -> ncclResult_t;
/// `init` from v11 on, once per communicator: (context, communicator id, configuration, logger, profiler).
pub type Init_v11 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut ncclNetCommConfig_t,
    ncclDebugLogger_t,
    ncclProfilerCallback_t,
) -> ncclResult_t;
/// `devices`: how many there are.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> ncclResult_t;
/// `getProperties`: (device, properties).
pub type GetProperties<P> = unsafe extern "C" fn(c_int, *mut P) -> ncclResult_t;
/// `listen` up to v10: (device, handle, listening communicator).
pub type Listen_v6 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `listen` from v11 on: (context, device, handle, listening communicator).
pub type Listen_v11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `connect` of v6: (device, handle, sending communicator).
pub type Connect_v6 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `connect` of v7 to v9: (device, handle, sending communicator, device handle).
pub type Connect_v7 =
    unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `connect` of v10: (device, configuration, handle, sending communicator, device handle).
pub type Connect_v10 = unsafe extern "C" fn(
    c_int,
    *mut ncclNetCommConfig_t,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `connect` from v11 on: (context, device, handle, sending communicator, device handle).
pub type Connect_v11 =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `accept` of v6: (listening communicator, receiving communicator).
pub type Accept_v6 = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `accept` from v7 on: (listening communicator, receiving communicator, device handle).
pub type Accept_v7 = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `regMr` of v6 and v7: (communicator, data, size, kind, memory handle).
pub type RegMr_v6 =
    unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, c_int, *mut *mut c_void) -> ncclResult_t;
/// `regMr` from v8 on.
pub type RegMr_v8 =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> ncclResult_t;
/// `regMrDmaBuf`: (communicator, data, size, kind, offset, descriptor, memory handle).
pub type RegMrDmaBuf = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    *mut *mut c_void,
) -> ncclResult_t;
/// `deregMr`: (communicator, memory handle).
pub type DeregMr = unsafe extern "C" fn(*mut c_void, *mut c_void) -> ncclResult_t;
/// `isend` of v6 to v8: (communicator, data, size, tag, memory handle, request).
pub type Isend_v6 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `isend` of v9.
pub type Isend_v9 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `isend` from v10 on: with the profiler's handle before the request.
pub type Isend_v10 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `irecv` of v6 to v8 (`S` = int) and v9 (`S` = size_t): (communicator, n, data, sizes, tags, memory handles, request).
pub type Irecv_v6<S> = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut S,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `irecv` from v10 on: with the profiler's handles before the request.
pub type Irecv_v10 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `iflush`: (communicator, n, data, sizes, memory handles, request).
pub type Iflush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `test`: (request, done, sizes).
pub type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> ncclResult_t;
/// `closeSend`, `closeRecv`, `closeListen`, `finalize`: of a communicator, or a context.
pub type Close = unsafe extern "C" fn(*mut c_void) -> ncclResult_t;
/// `getDeviceMr`: (communicator, memory handle, pointer for the GPU).
pub type GetDeviceMr = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `irecvConsumed`: (communicator, n, request).
pub type IrecvConsumed = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> ncclResult_t;
/// `makeVDevice` of v9 to v11: (device, properties).
pub type MakeVDevice_v9 = unsafe extern "C" fn(*mut c_int, *mut ncclNetVDeviceProps_v9_t) -> ncclResult_t;
/// `makeVDevice` of v12.
pub type MakeVDevice_v12 = unsafe extern "C" fn(*mut c_int, *mut ncclNetVDeviceProps_v12_t) -> ncclResult_t;
/// `setNetAttr`: (context, attributes).
pub type SetNetAttr = unsafe extern "C" fn(*mut c_void, *mut ncclNetAttr_t) -> ncclResult_t;
