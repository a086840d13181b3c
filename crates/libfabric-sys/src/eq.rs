//! Event queues, completion queues, counters, wait objects (`rdma/fi_eq.h`).

use core::ffi::{c_char, c_int, c_void};

use crate::{fi_addr_t, fid};

/// `fi_wait_obj`: no waiting.
pub const FI_WAIT_NONE: c_int = 0;
/// `fi_wait_obj`: waiting by `sread` only.
pub const FI_WAIT_UNSPEC: c_int = 1;
/// `fi_wait_obj`: a wait set.
pub const FI_WAIT_SET: c_int = 2;
/// `fi_wait_obj`: a file descriptor.
pub const FI_WAIT_FD: c_int = 3;
/// `fi_wait_obj`: a mutex and condition variable.
pub const FI_WAIT_MUTEX_COND: c_int = 4;
/// `fi_wait_obj`: yields while waiting.
pub const FI_WAIT_YIELD: c_int = 5;
/// `fi_wait_obj`: an array of file descriptors.
pub const FI_WAIT_POLLFD: c_int = 6;

/// `fi_cq_format`: the provider's choice.
pub const FI_CQ_FORMAT_UNSPEC: c_int = 0;
/// `fi_cq_format`: [`fi_cq_entry`].
pub const FI_CQ_FORMAT_CONTEXT: c_int = 1;
/// `fi_cq_format`: [`fi_cq_msg_entry`].
pub const FI_CQ_FORMAT_MSG: c_int = 2;
/// `fi_cq_format`: [`fi_cq_data_entry`].
pub const FI_CQ_FORMAT_DATA: c_int = 3;
/// `fi_cq_format`: [`fi_cq_tagged_entry`].
pub const FI_CQ_FORMAT_TAGGED: c_int = 4;

/// `fi_cntr_events`: completions.
pub const FI_CNTR_EVENTS_COMP: c_int = 0;

/// `fi_cq_wait_cond`: none.
pub const FI_CQ_COND_NONE: c_int = 0;
/// `fi_cq_wait_cond`: a number of entries.
pub const FI_CQ_COND_THRESHOLD: c_int = 1;

/// Wait set attributes.
#[repr(C)]
pub struct fi_wait_attr {
    /// `fi_wait_obj`.
    pub wait_obj: c_int,
    /// Flags.
    pub flags: u64,
}

/// A wait set; never opened by this provider.
#[repr(C)]
pub struct fid_wait {
    /// The object.
    pub fid: fid,
    /// Its operations.
    pub ops: *const c_void,
}

/// Poll set attributes.
#[repr(C)]
pub struct fi_poll_attr {
    /// Flags.
    pub flags: u64,
}

/// A poll set; never opened by this provider.
#[repr(C)]
pub struct fid_poll {
    /// The object.
    pub fid: fid,
    /// Its operations.
    pub ops: *const c_void,
}

/// Event queue attributes.
#[repr(C)]
pub struct fi_eq_attr {
    /// Entries.
    pub size: usize,
    /// Flags.
    pub flags: u64,
    /// `fi_wait_obj`.
    pub wait_obj: c_int,
    /// Interrupt vector.
    pub signaling_vector: c_int,
    /// Wait set.
    pub wait_set: *mut fid_wait,
}

/// An event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_entry {
    /// Object it is about.
    pub fid: *mut fid,
    /// That object's context.
    pub context: *mut c_void,
    /// Data.
    pub data: u64,
}

/// A failed event.
#[repr(C)]
pub struct fi_eq_err_entry {
    /// Object it is about.
    pub fid: *mut fid,
    /// That object's context.
    pub context: *mut c_void,
    /// Data.
    pub data: u64,
    /// Error number.
    pub err: c_int,
    /// The provider's error number.
    pub prov_errno: c_int,
    /// Error data.
    pub err_data: *mut c_void,
    /// Bytes of it.
    pub err_data_size: usize,
}

/// Operations of an event queue.
#[repr(C)]
pub struct fi_ops_eq {
    /// Bytes of this table.
    pub size: usize,
    /// Takes an event.
    pub read: unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize,
    /// Takes a failed event.
    pub readerr: unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize,
    /// Adds an event.
    pub write: unsafe extern "C" fn(*mut fid_eq, u32, *const c_void, usize, u64) -> isize,
    /// Waits for an event.
    pub sread: unsafe extern "C" fn(*mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> isize,
    /// A provider error as text.
    pub strerror:
        unsafe extern "C" fn(*mut fid_eq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// An event queue.
#[repr(C)]
pub struct fid_eq {
    /// The object.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_eq,
}

/// Entry of format `FI_CQ_FORMAT_CONTEXT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_entry {
    /// The operation's context.
    pub op_context: *mut c_void,
}

/// Entry of format `FI_CQ_FORMAT_MSG`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_msg_entry {
    /// The operation's context.
    pub op_context: *mut c_void,
    /// What completed.
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
}

/// Entry of format `FI_CQ_FORMAT_DATA`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_data_entry {
    /// The operation's context.
    pub op_context: *mut c_void,
    /// What completed.
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
    /// Where (multi-receive).
    pub buf: *mut c_void,
    /// Remote completion data.
    pub data: u64,
}

/// Entry of format `FI_CQ_FORMAT_TAGGED`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_tagged_entry {
    /// The operation's context.
    pub op_context: *mut c_void,
    /// What completed.
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
    /// Where (multi-receive).
    pub buf: *mut c_void,
    /// Remote completion data.
    pub data: u64,
    /// Tag.
    pub tag: u64,
}

/// A failed completion. `src_addr` exists for an application only from version 1.20.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_err_entry {
    /// The operation's context.
    pub op_context: *mut c_void,
    /// What completed.
    pub flags: u64,
    /// Bytes received.
    pub len: usize,
    /// Where.
    pub buf: *mut c_void,
    /// Remote completion data.
    pub data: u64,
    /// Tag.
    pub tag: u64,
    /// Bytes that did not fit.
    pub olen: usize,
    /// Error number, positive.
    pub err: c_int,
    /// The provider's error number.
    pub prov_errno: c_int,
    /// Error data.
    pub err_data: *mut c_void,
    /// Bytes of it.
    pub err_data_size: usize,
    /// Sender (1.20).
    pub src_addr: fi_addr_t,
}

/// Completion queue attributes.
#[repr(C)]
pub struct fi_cq_attr {
    /// Entries.
    pub size: usize,
    /// Flags.
    pub flags: u64,
    /// `fi_cq_format`.
    pub format: c_int,
    /// `fi_wait_obj`.
    pub wait_obj: c_int,
    /// Interrupt vector.
    pub signaling_vector: c_int,
    /// `fi_cq_wait_cond`.
    pub wait_cond: c_int,
    /// Wait set.
    pub wait_set: *mut fid_wait,
}

/// Operations of a completion queue.
#[repr(C)]
pub struct fi_ops_cq {
    /// Bytes of this table.
    pub size: usize,
    /// Takes completions.
    pub read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
    /// Takes completions and their senders.
    pub readfrom: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t) -> isize,
    /// Takes a failed completion.
    pub readerr: unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize,
    /// Waits for completions.
    pub sread: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> isize,
    /// Waits for completions and their senders.
    pub sreadfrom:
        unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t, *const c_void, c_int) -> isize,
    /// Ends a wait.
    pub signal: unsafe extern "C" fn(*mut fid_cq) -> c_int,
    /// A provider error as text.
    pub strerror:
        unsafe extern "C" fn(*mut fid_cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// A completion queue.
#[repr(C)]
pub struct fid_cq {
    /// The object.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_cq,
}

/// Counter attributes.
#[repr(C)]
pub struct fi_cntr_attr {
    /// `fi_cntr_events`.
    pub events: c_int,
    /// `fi_wait_obj`.
    pub wait_obj: c_int,
    /// Wait set.
    pub wait_set: *mut fid_wait,
    /// Flags.
    pub flags: u64,
}

/// Operations of a counter.
#[repr(C)]
pub struct fi_ops_cntr {
    /// Bytes of this table.
    pub size: usize,
    /// The count of successes.
    pub read: unsafe extern "C" fn(*mut fid_cntr) -> u64,
    /// The count of failures.
    pub readerr: unsafe extern "C" fn(*mut fid_cntr) -> u64,
    /// Adds to the count.
    pub add: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
    /// Sets the count.
    pub set: unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int,
    /// Waits for a count.
    pub wait: unsafe extern "C" fn(*mut fid_cntr, u64, c_int) -> c_int,
    /// Adds to the count of failures (checked by size).
    pub adderr: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
    /// Sets the count of failures (checked by size).
    pub seterr: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
}

/// A counter.
#[repr(C)]
pub struct fid_cntr {
    /// The object.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_cntr,
}
