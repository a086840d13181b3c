//! Endpoints and their data operations (`rdma/fi_endpoint.h`, `fi_tagged.h`, `fi_rma.h`, `fi_atomic.h`,
//! `fi_cm.h`).

use core::ffi::{c_int, c_void};

use libc::iovec;

use crate::{fi_addr_t, fi_rx_attr, fi_tx_attr, fid};

/// Option level: endpoint.
pub const FI_OPT_ENDPOINT: c_int = 0;
/// `size_t`: room left in a multi-receive buffer at which it is given back.
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;
/// `size_t`: bytes of connection data.
pub const FI_OPT_CM_DATA_SIZE: c_int = 1;
/// `int`: device memory peer to peer.
pub const FI_OPT_FI_HMEM_P2P: c_int = 8;
/// `bool`: CUDA calls permitted.
pub const FI_OPT_CUDA_API_PERMITTED: c_int = 10;
/// `bool`: the provider may use shared memory (1.20).
pub const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
/// `size_t`: largest untagged message (1.20).
pub const FI_OPT_MAX_MSG_SIZE: c_int = 12;
/// `size_t`: largest tagged message (1.20).
pub const FI_OPT_MAX_TAGGED_SIZE: c_int = 13;
/// `size_t`: largest injected untagged message (1.20).
pub const FI_OPT_INJECT_MSG_SIZE: c_int = 16;
/// `size_t`: largest injected tagged message (1.20).
pub const FI_OPT_INJECT_TAGGED_SIZE: c_int = 17;

/// A passive endpoint; this crate never looks inside.
#[repr(C)]
pub struct fid_pep {
    /// The object.
    pub fid: fid,
    /// Endpoint operations.
    pub ops: *const fi_ops_ep,
    /// Connection operations.
    pub cm: *const fi_ops_cm,
}

/// A shared transmit context.
#[repr(C)]
pub struct fid_stx {
    /// The object.
    pub fid: fid,
    /// Endpoint operations.
    pub ops: *const fi_ops_ep,
}

/// A multicast group.
#[repr(C)]
pub struct fid_mc {
    /// The object.
    pub fid: fid,
    /// Its address.
    pub fi_addr: fi_addr_t,
}

/// An untagged message.
#[repr(C)]
pub struct fi_msg {
    /// Buffers.
    pub msg_iov: *const iovec,
    /// Descriptors of the buffers.
    pub desc: *mut *mut c_void,
    /// Number of buffers.
    pub iov_count: usize,
    /// Peer.
    pub addr: fi_addr_t,
    /// The application's context.
    pub context: *mut c_void,
    /// Remote completion data.
    pub data: u64,
}

/// A tagged message.
#[repr(C)]
pub struct fi_msg_tagged {
    /// Buffers.
    pub msg_iov: *const iovec,
    /// Descriptors of the buffers.
    pub desc: *mut *mut c_void,
    /// Number of buffers.
    pub iov_count: usize,
    /// Peer.
    pub addr: fi_addr_t,
    /// Tag.
    pub tag: u64,
    /// Bits of the tag that do not count.
    pub ignore: u64,
    /// The application's context.
    pub context: *mut c_void,
    /// Remote completion data.
    pub data: u64,
}

/// Remote memory.
#[repr(C)]
pub struct fi_rma_iov {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// Key.
    pub key: u64,
}

/// A remote memory access.
#[repr(C)]
pub struct fi_msg_rma {
    /// Buffers.
    pub msg_iov: *const iovec,
    /// Descriptors of the buffers.
    pub desc: *mut *mut c_void,
    /// Number of buffers.
    pub iov_count: usize,
    /// Peer.
    pub addr: fi_addr_t,
    /// Remote buffers.
    pub rma_iov: *const fi_rma_iov,
    /// Number of remote buffers.
    pub rma_iov_count: usize,
    /// The application's context.
    pub context: *mut c_void,
    /// Remote completion data.
    pub data: u64,
}

/// Endpoint operations.
#[repr(C)]
pub struct fi_ops_ep {
    /// Bytes of this table.
    pub size: usize,
    /// Cancels the operation of a context.
    pub cancel: unsafe extern "C" fn(*mut fid, *mut c_void) -> isize,
    /// Reads an option.
    pub getopt: unsafe extern "C" fn(*mut fid, c_int, c_int, *mut c_void, *mut usize) -> c_int,
    /// Sets an option.
    pub setopt: unsafe extern "C" fn(*mut fid, c_int, c_int, *const c_void, usize) -> c_int,
    /// Transmit context of a scalable endpoint.
    pub tx_ctx:
        unsafe extern "C" fn(*mut fid_ep, c_int, *mut fi_tx_attr, *mut *mut fid_ep, *mut c_void) -> c_int,
    /// Receive context of a scalable endpoint.
    pub rx_ctx:
        unsafe extern "C" fn(*mut fid_ep, c_int, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int,
    /// Receives that can still be posted.
    pub rx_size_left: unsafe extern "C" fn(*mut fid_ep) -> isize,
    /// Sends that can still be posted.
    pub tx_size_left: unsafe extern "C" fn(*mut fid_ep) -> isize,
}

/// `(ep, iov, desc, count, addr, context)`.
pub type msg_vector_fn =
    unsafe extern "C" fn(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, *mut c_void) -> isize;

/// Untagged message operations.
#[repr(C)]
pub struct fi_ops_msg {
    /// Bytes of this table.
    pub size: usize,
    /// Posts a receive.
    pub recv:
        unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize,
    /// Posts a receive of several buffers.
    pub recvv: msg_vector_fn,
    /// Posts a receive with flags.
    pub recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
    /// Sends.
    pub send:
        unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize,
    /// Sends several buffers.
    pub sendv: msg_vector_fn,
    /// Sends with flags.
    pub sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
    /// Sends without completion; the buffer is free on return.
    pub inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t) -> isize,
    /// Sends with completion data.
    pub senddata: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        fi_addr_t,
        *mut c_void,
    ) -> isize,
    /// As inject, with completion data.
    pub injectdata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t) -> isize,
}

/// Tagged message operations.
#[repr(C)]
pub struct fi_ops_tagged {
    /// Bytes of this table.
    pub size: usize,
    /// Posts a receive: `(ep, buf, len, desc, src, tag, ignore, context)`.
    pub recv: unsafe extern "C" fn(
        *mut fid_ep,
        *mut c_void,
        usize,
        *mut c_void,
        fi_addr_t,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    /// Posts a receive of several buffers.
    pub recvv: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        usize,
        fi_addr_t,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    /// Posts a receive with flags.
    pub recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize,
    /// Sends: `(ep, buf, len, desc, dest, tag, context)`.
    pub send: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        usize,
        *mut c_void,
        fi_addr_t,
        u64,
        *mut c_void,
    ) -> isize,
    /// Sends several buffers.
    pub sendv: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        usize,
        fi_addr_t,
        u64,
        *mut c_void,
    ) -> isize,
    /// Sends with flags.
    pub sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize,
    /// Sends without completion; the buffer is free on return.
    pub inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t, u64) -> isize,
    /// Sends with completion data: `(ep, buf, len, desc, data, dest, tag, context)`.
    pub senddata: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        fi_addr_t,
        u64,
        *mut c_void,
    ) -> isize,
    /// As inject, with completion data.
    pub injectdata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64) -> isize,
}

/// Remote memory operations.
#[repr(C)]
pub struct fi_ops_rma {
    /// Bytes of this table.
    pub size: usize,
    /// Reads: `(ep, buf, len, desc, src, addr, key, context)`.
    pub read: unsafe extern "C" fn(
        *mut fid_ep,
        *mut c_void,
        usize,
        *mut c_void,
        fi_addr_t,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    /// Reads into several buffers.
    pub readv: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        usize,
        fi_addr_t,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    /// Reads with flags.
    pub readmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
    /// Writes: `(ep, buf, len, desc, dest, addr, key, context)`.
    pub write: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        usize,
        *mut c_void,
        fi_addr_t,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    /// Writes from several buffers.
    pub writev: unsafe extern "C" fn(
        *mut fid_ep,
        *const iovec,
        *mut *mut c_void,
        usize,
        fi_addr_t,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    /// Writes with flags.
    pub writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
    /// Writes without completion.
    pub inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64) -> isize,
    /// Writes with completion data.
    pub writedata: unsafe extern "C" fn(
        *mut fid_ep,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        fi_addr_t,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    /// As inject, with completion data.
    pub injectdata:
        unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64, u64) -> isize,
}

/// Atomic operations: slots only, of which this crate knows no more than the number (13 after `size`). The
/// argument lists of the unused slots do not matter to a stub that reads none of them.
#[repr(C)]
pub struct fi_ops_atomic {
    /// Bytes of this table.
    pub size: usize,
    /// `write` to `compwritemsg`, which return `ssize_t`.
    pub transfers: [unsafe extern "C" fn() -> isize; 10],
    /// `writevalid`, `readwritevalid`, `compwritevalid`, which return `int`.
    pub valid: [unsafe extern "C" fn() -> c_int; 3],
}

/// Connection operations.
#[repr(C)]
pub struct fi_ops_cm {
    /// Bytes of this table.
    pub size: usize,
    /// Sets the endpoint's address.
    pub setname: unsafe extern "C" fn(*mut fid, *mut c_void, usize) -> c_int,
    /// Reads the endpoint's address.
    pub getname: unsafe extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int,
    /// Reads the peer's address.
    pub getpeer: unsafe extern "C" fn(*mut fid_ep, *mut c_void, *mut usize) -> c_int,
    /// Connects.
    pub connect: unsafe extern "C" fn(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int,
    /// Listens.
    pub listen: unsafe extern "C" fn(*mut fid_pep) -> c_int,
    /// Accepts.
    pub accept: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize) -> c_int,
    /// Rejects.
    pub reject: unsafe extern "C" fn(*mut fid_pep, *mut fid, *const c_void, usize) -> c_int,
    /// Disconnects.
    pub shutdown: unsafe extern "C" fn(*mut fid_ep, u64) -> c_int,
    /// Joins a group (checked by size).
    pub join:
        Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, u64, *mut *mut fid_mc, *mut c_void) -> c_int>,
}

/// An endpoint.
#[repr(C)]
pub struct fid_ep {
    /// The object.
    pub fid: fid,
    /// Endpoint operations.
    pub ops: *const fi_ops_ep,
    /// Connection operations.
    pub cm: *const fi_ops_cm,
    /// Untagged messages.
    pub msg: *const fi_ops_msg,
    /// Remote memory.
    pub rma: *const fi_ops_rma,
    /// Tagged messages.
    pub tagged: *const fi_ops_tagged,
    /// Atomics.
    pub atomic: *const fi_ops_atomic,
    /// Collectives.
    pub collective: *const c_void,
}
