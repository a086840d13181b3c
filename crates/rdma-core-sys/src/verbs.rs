//! What `infiniband/verbs.h` has of interest to a provider. It is public, so it grows at the end only.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::ibv_sge;

/// Bytes of a name in sysfs (`IBV_SYSFS_NAME_MAX`).
pub const IBV_SYSFS_NAME_MAX: usize = 64;
/// Bytes of a path in sysfs (`IBV_SYSFS_PATH_MAX`).
pub const IBV_SYSFS_PATH_MAX: usize = 256;

/// A shared receive queue.
#[repr(C)]
pub struct ibv_srq {
    /// The context.
    pub context: *mut ibv_context,
    /// The application's.
    pub srq_context: *mut c_void,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// The kernel's number.
    pub handle: u32,
    /// The library's.
    pub mutex: pthread_mutex_t,
    /// The library's.
    pub cond: pthread_cond_t,
    /// The library's.
    pub events_completed: u32,
}

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_srq_attr {
    /// Receives.
    pub max_wr: u32,
    /// Buffers of a receive.
    pub max_sge: u32,
    /// With fewer receives than that there is an event.
    pub srq_limit: u32,
}

/// What `ibv_create_srq` is asked for.
#[repr(C)]
pub struct ibv_srq_init_attr {
    /// The application's.
    pub srq_context: *mut c_void,
    /// Sizes; those given are written.
    pub attr: ibv_srq_attr,
}

/// Only pointed to here.
#[repr(C)]
pub struct ibv_mw {
    _opaque: [u8; 0],
}

/// A device in the list that `ibv_get_device_list` returns.
#[repr(C)]
pub struct ibv_device {
    /// Must be null.
    pub _ops: [*mut c_void; 2],
    /// `ibv_node_type`.
    pub node_type: c_int,
    /// `ibv_transport_type`.
    pub transport_type: c_int,
    /// Name of the kernel's device.
    pub name: [c_char; IBV_SYSFS_NAME_MAX],
    /// Name of the uverbs device.
    pub dev_name: [c_char; IBV_SYSFS_NAME_MAX],
    /// Path of the uverbs device in sysfs.
    pub dev_path: [c_char; IBV_SYSFS_PATH_MAX],
    /// Path of the kernel's device in sysfs.
    pub ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
}

/// Operations that an application calls without the library: `verbs_set_ops` fills them in.
#[repr(C)]
pub struct ibv_context_ops {
    /// `query_device` to `dereg_mr`.
    pub _compat_1: [*mut c_void; 7],
    /// `alloc_mw`.
    pub alloc_mw: *mut c_void,
    /// `bind_mw`.
    pub bind_mw: *mut c_void,
    /// `dealloc_mw`.
    pub dealloc_mw: *mut c_void,
    /// `create_cq`.
    pub _compat_create_cq: *mut c_void,
    /// `poll_cq`.
    pub poll_cq: *mut c_void,
    /// `req_notify_cq`.
    pub req_notify_cq: *mut c_void,
    /// `cq_event` to `destroy_srq`.
    pub _compat_2: [*mut c_void; 7],
    /// `post_srq_recv`.
    pub post_srq_recv: *mut c_void,
    /// `create_qp` to `destroy_qp`.
    pub _compat_3: [*mut c_void; 4],
    /// `post_send`.
    pub post_send: *mut c_void,
    /// `post_recv`.
    pub post_recv: *mut c_void,
    /// `create_ah` to `async_event`.
    pub _compat_4: [*mut c_void; 5],
}

/// An open device.
#[repr(C)]
pub struct ibv_context {
    /// The device.
    pub device: *mut ibv_device,
    /// Operations.
    pub ops: ibv_context_ops,
    /// The uverbs device.
    pub cmd_fd: c_int,
    /// Asynchronous events.
    pub async_fd: c_int,
    /// Completion vectors.
    pub num_comp_vectors: c_int,
    /// The library's.
    pub mutex: pthread_mutex_t,
    /// The library's.
    pub abi_compat: *mut c_void,
}

/// A protection domain.
#[repr(C)]
pub struct ibv_pd {
    /// Its device.
    pub context: *mut ibv_context,
    /// The kernel's number.
    pub handle: u32,
}

/// A memory region.
#[repr(C)]
pub struct ibv_mr {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// Where it begins.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// The kernel's number.
    pub handle: u32,
    /// Key for its owner.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
}

/// A channel of completion events.
#[repr(C)]
pub struct ibv_comp_channel {
    /// Its device.
    pub context: *mut ibv_context,
    /// What is read from.
    pub fd: c_int,
    /// Completion queues on it.
    pub refcnt: c_int,
}

/// An address.
#[repr(C)]
pub struct ibv_ah {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// The kernel's number.
    pub handle: u32,
}

/// A completion queue.
#[repr(C)]
pub struct ibv_cq {
    /// Its device.
    pub context: *mut ibv_context,
    /// Its channel, or null.
    pub channel: *mut ibv_comp_channel,
    /// The application's.
    pub cq_context: *mut c_void,
    /// The kernel's number.
    pub handle: u32,
    /// Entries.
    pub cqe: c_int,
    /// The library's.
    pub mutex: pthread_mutex_t,
    /// The library's.
    pub cond: pthread_cond_t,
    /// The library's.
    pub comp_events_completed: u32,
    /// The library's.
    pub async_events_completed: u32,
}

/// What `start_poll` is asked for.
#[repr(C)]
pub struct ibv_poll_cq_attr {
    /// 0.
    pub comp_mask: u32,
}

/// A completion queue that is read field by field. It begins as an [`ibv_cq`] does.
#[repr(C)]
pub struct ibv_cq_ex {
    /// What it has in common with others.
    pub base: ibv_cq,
    /// The library's.
    pub comp_mask: u32,
    /// Status of the current completion.
    pub status: c_int,
    /// Number of the current completion's work request.
    pub wr_id: u64,
    /// Begins to poll.
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    /// Goes on to the next completion.
    pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    /// Ends polling.
    pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    /// Of the current completion.
    pub read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    /// Of the current completion.
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    /// Of the current completion.
    pub read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    /// Of the current completion, in network order.
    pub read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    /// Of the current completion.
    pub read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    /// Of the current completion.
    pub read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    /// Of the current completion.
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
    /// Of the current completion.
    pub read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    /// Of the current completion.
    pub read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    /// Of the current completion.
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    /// Of the current completion.
    pub read_completion_ts: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
    /// Of the current completion.
    pub read_cvlan: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u16>,
    /// Of the current completion.
    pub read_flow_tag: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    /// Of the current completion.
    pub read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void)>,
    /// Of the current completion.
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
}

/// What `ibv_create_cq_ex` is asked for.
#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    /// Entries at least.
    pub cqe: u32,
    /// The application's.
    pub cq_context: *mut c_void,
    /// Its channel, or null.
    pub channel: *mut ibv_comp_channel,
    /// Its vector.
    pub comp_vector: u32,
    /// `IBV_WC_EX_WITH_*`: what is going to be read.
    pub wc_flags: u64,
    /// `IBV_CQ_INIT_ATTR_MASK_*`: which of the fields that follow count.
    pub comp_mask: u32,
    /// `IBV_CREATE_CQ_ATTR_*`.
    pub flags: u32,
    /// A parent domain.
    pub parent_domain: *mut ibv_pd,
}

/// Most that a queue pair does at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_qp_cap {
    /// Sends.
    pub max_send_wr: u32,
    /// Receives.
    pub max_recv_wr: u32,
    /// Buffers of a send.
    pub max_send_sge: u32,
    /// Buffers of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// What `ibv_create_qp` is asked for.
#[repr(C)]
pub struct ibv_qp_init_attr {
    /// The application's.
    pub qp_context: *mut c_void,
    /// Completion queue of sends.
    pub send_cq: *mut ibv_cq,
    /// Completion queue of receives.
    pub recv_cq: *mut ibv_cq,
    /// Shared receive queue, or null.
    pub srq: *mut ibv_srq,
    /// Sizes; those given are written.
    pub cap: ibv_qp_cap,
    /// `ibv_qp_type`.
    pub qp_type: c_int,
    /// Whether every send is signalled.
    pub sq_sig_all: c_int,
}

/// What `ibv_create_qp_ex` is asked for. It begins as an [`ibv_qp_init_attr`] does, but for the padding at its end: see
/// [`ibv_qp_init_attr_ex::base`].
#[repr(C)]
pub struct ibv_qp_init_attr_ex {
    /// The application's.
    pub qp_context: *mut c_void,
    /// Completion queue of sends.
    pub send_cq: *mut ibv_cq,
    /// Completion queue of receives.
    pub recv_cq: *mut ibv_cq,
    /// Shared receive queue, or null.
    pub srq: *mut ibv_srq,
    /// Sizes; those given are written.
    pub cap: ibv_qp_cap,
    /// `ibv_qp_type`.
    pub qp_type: c_int,
    /// Whether every send is signalled.
    pub sq_sig_all: c_int,
    /// `IBV_QP_INIT_ATTR_*`: which of the fields that follow count.
    pub comp_mask: u32,
    /// Protection domain.
    pub pd: *mut ibv_pd,
    /// XRC domain.
    pub xrcd: *mut c_void,
    /// Flags.
    pub create_flags: u32,
    /// Of TSO.
    pub max_tso_header: u16,
    /// Of RSS.
    pub rwq_ind_tbl: *mut c_void,
    /// `ibv_rx_hash_conf`.
    pub rx_hash_conf: ibv_rx_hash_conf,
    /// Source queue pair.
    pub source_qpn: u32,
    /// `IBV_QP_EX_WITH_*`: which operations are going to be built.
    pub send_ops_flags: u64,
}

impl ibv_qp_init_attr_ex {
    /// What it has in common with others. Nothing may be written to it as a whole, since its padding is a field here.
    pub fn base(attr: *mut Self) -> *mut ibv_qp_init_attr {
        attr.cast()
    }
}

/// How received packets are spread.
#[repr(C)]
pub struct ibv_rx_hash_conf {
    /// Function.
    pub rx_hash_function: u8,
    /// Bytes of the key.
    pub rx_hash_key_len: u8,
    /// The key.
    pub rx_hash_key: *mut u8,
    /// Fields.
    pub rx_hash_fields_mask: u64,
}

/// A queue pair.
#[repr(C)]
pub struct ibv_qp {
    /// Its device.
    pub context: *mut ibv_context,
    /// The application's.
    pub qp_context: *mut c_void,
    /// Its protection domain.
    pub pd: *mut ibv_pd,
    /// Completion queue of sends.
    pub send_cq: *mut ibv_cq,
    /// Completion queue of receives.
    pub recv_cq: *mut ibv_cq,
    /// Its shared receive queue, or null.
    pub srq: *mut ibv_srq,
    /// The kernel's number.
    pub handle: u32,
    /// Its number for peers.
    pub qp_num: u32,
    /// `ibv_qp_state`, as the library last heard of it.
    pub state: c_int,
    /// `ibv_qp_type`.
    pub qp_type: c_int,
    /// The library's.
    pub mutex: pthread_mutex_t,
    /// The library's.
    pub cond: pthread_cond_t,
    /// The library's.
    pub events_completed: u32,
}

/// Several buffers of inline data.
#[repr(C)]
pub struct ibv_data_buf {
    /// Where it begins.
    pub addr: *mut c_void,
    /// Bytes.
    pub length: usize,
}

/// A queue pair whose sends are built call by call. Its last two fields came with rdma-core 44 and 45.
#[repr(C)]
pub struct ibv_qp_ex {
    /// What it has in common with others.
    pub qp_base: ibv_qp,
    /// 0.
    pub comp_mask: u64,
    /// Number of the next request.
    pub wr_id: u64,
    /// `ibv_send_flags` of the next request.
    pub wr_flags: c_uint,
    /// Begins a request.
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    /// Begins a request.
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    /// Begins a request.
    pub wr_bind_mw: *mut c_void,
    /// Begins a request.
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    /// Begins a request.
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    /// Begins a request.
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    /// Begins a request; immediate data in network order.
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    /// Begins a request.
    pub wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    /// Begins a request; immediate data in network order.
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    /// Begins a request.
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    /// Begins a request.
    pub wr_send_tso: *mut c_void,
    /// Gives it an address.
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    /// Gives it a shared receive queue.
    pub wr_set_xrc_srqn: *mut c_void,
    /// Gives it inline data.
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
    /// Gives it inline data.
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
    /// Gives it a buffer.
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    /// Gives it buffers.
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    /// Begins to build.
    pub wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    /// Posts what was built.
    pub wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    /// Gives it up.
    pub wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    /// Begins a request.
    pub wr_atomic_write: *mut c_void,
    /// Begins a request.
    pub wr_flush: *mut c_void,
}

/// What a queue pair is made of: its beginning, as far as a provider looks at it.
#[repr(C)]
pub struct ibv_qp_attr {
    /// `ibv_qp_state`.
    pub qp_state: c_int,
    /// `ibv_qp_state`.
    pub cur_qp_state: c_int,
    /// `ibv_mtu`.
    pub path_mtu: c_int,
    /// `ibv_mig_state`.
    pub path_mig_state: c_int,
    /// Key of datagrams.
    pub qkey: u32,
    /// First packet received.
    pub rq_psn: u32,
    /// First packet sent.
    pub sq_psn: u32,
    /// The peer's number.
    pub dest_qp_num: u32,
    /// `ibv_access_flags`.
    pub qp_access_flags: c_uint,
    /// Sizes.
    pub cap: ibv_qp_cap,
}

/// `ibv_qp_attr_mask`: `qp_state` counts.
pub const IBV_QP_STATE: c_int = 1;

/// Only its first field is ours: the text of the firmware's version.
#[repr(C)]
pub struct ibv_device_attr_ex {
    /// Text that ends with a zero.
    pub fw_ver: [c_char; 64],
}

/// Only passed on.
#[repr(C)]
pub struct ibv_port_attr {
    _opaque: [u8; 0],
}

/// Only passed on.
#[repr(C)]
pub struct ibv_ah_attr {
    _opaque: [u8; 0],
}
