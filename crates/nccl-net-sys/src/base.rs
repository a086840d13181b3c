//! Results, the logger, and what is the same in every version.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// How a call ended: one of the constants below.
pub type ncclResult_t = c_int;

/// It worked.
pub const ncclSuccess: ncclResult_t = 0;
/// CUDA failed.
pub const ncclUnhandledCudaError: ncclResult_t = 1;
/// The operating system or the link failed.
pub const ncclSystemError: ncclResult_t = 2;
/// NCCL or the plugin is wrong.
pub const ncclInternalError: ncclResult_t = 3;
/// An argument is wrong.
pub const ncclInvalidArgument: ncclResult_t = 4;
/// The user is wrong: sizes or environments differ between ranks.
pub const ncclInvalidUsage: ncclResult_t = 5;
/// The peer has failed.
pub const ncclRemoteError: ncclResult_t = 6;
/// It goes on.
pub const ncclInProgress: ncclResult_t = 7;

/// How grave a line of the log is.
pub type ncclDebugLogLevel = c_int;

/// Nothing is logged.
pub const NCCL_LOG_NONE: ncclDebugLogLevel = 0;
/// The version line.
pub const NCCL_LOG_VERSION: ncclDebugLogLevel = 1;
/// What fails; NCCL keeps the last one for `ncclGetLastError`.
pub const NCCL_LOG_WARN: ncclDebugLogLevel = 2;
/// What a user who asks wants to know.
pub const NCCL_LOG_INFO: ncclDebugLogLevel = 3;
/// As [`NCCL_LOG_WARN`], before the process aborts.
pub const NCCL_LOG_ABORT: ncclDebugLogLevel = 4;
/// What a developer who asks wants to know.
pub const NCCL_LOG_TRACE: ncclDebugLogLevel = 5;

/// Part of the log (`NCCL_DEBUG_SUBSYS`): initialisation.
pub const NCCL_INIT: c_ulong = 0x1;
/// Part of the log: the network.
pub const NCCL_NET: c_ulong = 0x10;
/// Part of the log: all.
pub const NCCL_ALL: c_ulong = !0;

/// NCCL's logger: level, parts of the log, file or function, line, a format of `printf` and its arguments.
pub type ncclDebugLogger_t = Option<
    unsafe extern "C" fn(
        level: ncclDebugLogLevel,
        flags: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        ...
    ),
>;

/// The profiler's callback; opaque here.
pub type ncclProfilerCallback_t = Option<
    unsafe extern "C" fn(
        event: *mut *mut c_void,
        kind: c_int,
        parent: *mut c_void,
        plugin: i64,
        data: *mut c_void,
    ) -> ncclResult_t,
>;

/// Bytes of the handle `listen` fills and `connect` gets.
pub const NCCL_NET_HANDLE_MAXSIZE: usize = 128;

/// Requests that may be in flight on a communicator, from v7 on (v6: 8).
pub const NCCL_NET_MAX_REQUESTS: usize = 32;

/// What *request holds before `irecv` where the caller does without the completion.
pub const NCCL_NET_OPTIONAL_RECV_COMPLETION: usize = 1;

/// Memory of the host.
pub const NCCL_PTR_HOST: c_int = 1;
/// Memory of a GPU.
pub const NCCL_PTR_CUDA: c_int = 2;
/// Memory of a GPU behind a dma-buf.
pub const NCCL_PTR_DMABUF: c_int = 4;

/// `netDeviceType` of a network without code on the GPU.
pub const NCCL_NET_DEVICE_HOST: c_int = 0;
/// `netDeviceVersion` of such a one.
pub const NCCL_NET_DEVICE_INVALID_VERSION: c_int = 0;

/// `railId` and `planeId` where there are none.
pub const NCCL_NET_ID_UNDEF: i16 = -1;

/// Longest `maxP2pBytes` and `maxCollBytes` NCCL accepts.
pub const NCCL_MAX_NET_SIZE_BYTES: usize = 1 << 40;

/// What a communicator's network is configured with (v10 on).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ncclNetCommConfig_t {
    /// Traffic class; -1 = undefined.
    pub trafficClass: c_int,
}
layout!(ncclNetCommConfig_t, 4, { trafficClass @ 0 });

/// How much one direction of a communicator will be used; -1 = undefined (v11 on).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ncclNetCommAttr_t {
    /// Most peers at a time.
    pub maxConcurrentPeers: i32,
    /// Fewest peers at a time.
    pub minConcurrentPeers: i32,
    /// Most flows per peer.
    pub maxFlowsPerPeer: i32,
    /// Fewest flows per peer.
    pub minFlowsPerPeer: i32,
}
layout!(ncclNetCommAttr_t, 16, {
    maxConcurrentPeers @ 0, minConcurrentPeers @ 4, maxFlowsPerPeer @ 8, minFlowsPerPeer @ 12,
});

/// What the next operations are (v11 on).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ncclNetAttr_t {
    /// Sends.
    pub sendCommAttr: ncclNetCommAttr_t,
    /// Receives.
    pub recvCommAttr: ncclNetCommAttr_t,
    /// Bit per collective.
    pub op: u32,
    /// Bit per algorithm.
    pub algo: u32,
    /// Bit per protocol.
    pub proto: u32,
}
layout!(ncclNetAttr_t, 44, { sendCommAttr @ 0, recvCommAttr @ 16, op @ 32, algo @ 36, proto @ 40 });
