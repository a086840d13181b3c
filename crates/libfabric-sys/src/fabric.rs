//! Fabric-wide structures: flags, `fi_info` and its attributes, `fid` (`rdma/fabric.h`).

use core::ffi::{c_char, c_int, c_void};

use crate::{fi_eq_attr, fi_wait_attr, fid_domain, fid_eq, fid_pep, fid_wait};

/// Packs an interface version.
pub const fn fi_version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// A peer's address in an address vector.
pub type fi_addr_t = u64;

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:expr;)*) => {
        $($(#[$doc])* pub const $name: u64 = 1 << $bit;)*
    };
}

flags! {
    /// Untagged messages.
    FI_MSG = 1;
    /// Remote memory access.
    FI_RMA = 2;
    /// Tagged messages.
    FI_TAGGED = 3;
    /// Atomics.
    FI_ATOMIC = 4;
    /// Multicast.
    FI_MULTICAST = 5;
    /// Collectives.
    FI_COLLECTIVE = 6;
    /// Initiates reads.
    FI_READ = 8;
    /// Initiates writes.
    FI_WRITE = 9;
    /// Receives.
    FI_RECV = 10;
    /// Sends (also named `FI_TRANSMIT`).
    FI_SEND = 11;
    /// Target of reads.
    FI_REMOTE_READ = 12;
    /// Target of writes.
    FI_REMOTE_WRITE = 13;
    /// One buffer takes several messages.
    FI_MULTI_RECV = 16;
    /// Completion carries remote data.
    FI_REMOTE_CQ_DATA = 17;
    /// More operations follow at once.
    FI_MORE = 18;
    /// Looks for an unexpected message.
    FI_PEEK = 19;
    /// Triggered operation.
    FI_TRIGGER = 20;
    /// Fence.
    FI_FENCE = 21;
    /// Asks for a completion (also named `FI_EVENT`).
    FI_COMPLETION = 24;
    /// The buffer may be reused on return.
    FI_INJECT = 25;
    /// Complete when the buffer may be reused.
    FI_INJECT_COMPLETE = 26;
    /// Complete when the peer is sure to get it.
    FI_TRANSMIT_COMPLETE = 27;
    /// Complete when it is in the peer's memory.
    FI_DELIVERY_COMPLETE = 28;
    /// Affinity hint.
    FI_AFFINITY = 29;
    /// Complete when the peer has committed it.
    FI_COMMIT_COMPLETE = 30;
    /// Complete when the peer has matched it.
    FI_MATCH_COMPLETE = 31;
    /// Peer provider interface.
    FI_PEER = 43;
    /// Device memory.
    FI_HMEM = 47;
    /// Persistent memory.
    FI_RMA_PMEM = 49;
    /// Reports addresses of unknown senders.
    FI_SOURCE_ERR = 50;
    /// Reaches endpoints of this host.
    FI_LOCAL_COMM = 51;
    /// Reaches endpoints of other hosts.
    FI_REMOTE_COMM = 52;
    /// Shared address vectors.
    FI_SHARED_AV = 53;
    /// `fi_getinfo`: only the provider's attributes.
    FI_PROV_ATTR_ONLY = 54;
    /// `fi_getinfo`: the node is a numeric address.
    FI_NUMERICHOST = 55;
    /// Completions at a memory region.
    FI_RMA_EVENT = 56;
    /// Reports the sender; in `fi_getinfo`, node and service are local.
    FI_SOURCE = 57;
    /// Named receive contexts.
    FI_NAMED_RX_CTX = 58;
    /// Receives may name a sender.
    FI_DIRECTED_RECV = 59;
    /// Receive of a message found by `FI_PEEK` and kept.
    FI_CLAIM = 59;
    /// Drops the message found.
    FI_DISCARD = 58;
    /// `fi_ep_bind`: only operations that ask for it complete.
    FI_SELECTIVE_COMPLETION = 59;
    /// Mode: the application gives a `fi_context` per operation.
    FI_CONTEXT = 59;
    /// Mode: the application leaves room for a prefix.
    FI_MSG_PREFIX = 58;
    /// Mode: iovec arrays stay valid until completion.
    FI_ASYNC_IOV = 57;
    /// Mode: completion data takes a receive.
    FI_RX_CQ_DATA = 56;
    /// Mode: as `FI_CONTEXT`, eight pointers.
    FI_CONTEXT2 = 52;
    /// Order: read after read.
    FI_ORDER_RAR = 0;
    /// Order: read after write.
    FI_ORDER_RAW = 1;
    /// Order: read after send.
    FI_ORDER_RAS = 2;
    /// Order: write after read.
    FI_ORDER_WAR = 3;
    /// Order: write after write.
    FI_ORDER_WAW = 4;
    /// Order: write after send.
    FI_ORDER_WAS = 5;
    /// Order: send after read.
    FI_ORDER_SAR = 6;
    /// Order: send after write.
    FI_ORDER_SAW = 7;
    /// Order: send after send.
    FI_ORDER_SAS = 8;
}

/// No address, or any source.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
/// The source is not known.
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
/// No key.
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
/// Bit of values a provider defines itself.
pub const FI_PROV_SPECIFIC: u32 = 1 << 31;
/// Any address format.
pub const FI_FORMAT_UNSPEC: u32 = 0;
/// `usb4://...` style strings.
pub const FI_ADDR_STR: u32 = 9;

macro_rules! ints {
    ($ty:ty: $($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $ty = $value;)*
    };
}

ints! { c_int:
    /// `fi_av_type`: any.
    FI_AV_UNSPEC = 0;
    /// `fi_av_type`: opaque addresses.
    FI_AV_MAP = 1;
    /// `fi_av_type`: indices in order of insertion.
    FI_AV_TABLE = 2;
    /// `mr_mode`: all scalable bits clear, version 1 name.
    FI_MR_BASIC = 1;
    /// `mr_mode`: deprecated scalable mode.
    FI_MR_SCALABLE = 2;
    /// `mr_mode`: local buffers need registration.
    FI_MR_LOCAL = 1 << 2;
    /// `mr_mode`: raw keys.
    FI_MR_RAW = 1 << 3;
    /// `mr_mode`: remote addresses are virtual addresses.
    FI_MR_VIRT_ADDR = 1 << 4;
    /// `mr_mode`: memory must be backed when registered.
    FI_MR_ALLOCATED = 1 << 5;
    /// `mr_mode`: the provider chooses the key.
    FI_MR_PROV_KEY = 1 << 6;
    /// `mr_mode`: the application tells of mapping changes.
    FI_MR_MMU_NOTIFY = 1 << 7;
    /// `mr_mode`: regions bound to counters.
    FI_MR_RMA_EVENT = 1 << 8;
    /// `mr_mode`: regions bound to endpoints.
    FI_MR_ENDPOINT = 1 << 9;
    /// `mr_mode`: device memory needs registration.
    FI_MR_HMEM = 1 << 10;
    /// `fi_progress`: any.
    FI_PROGRESS_UNSPEC = 0;
    /// `fi_progress`: without the application's calls.
    FI_PROGRESS_AUTO = 1;
    /// `fi_progress`: in the application's calls.
    FI_PROGRESS_MANUAL = 2;
    /// `fi_progress` (from 2.0): control progress as data progress.
    FI_PROGRESS_CONTROL_UNIFIED = 3;
    /// `fi_threading`: any.
    FI_THREAD_UNSPEC = 0;
    /// `fi_threading`: any thread, any object.
    FI_THREAD_SAFE = 1;
    /// `fi_threading`: one thread per object.
    FI_THREAD_FID = 2;
    /// `fi_threading`: one thread per domain.
    FI_THREAD_DOMAIN = 3;
    /// `fi_threading`: one thread per completion queue.
    FI_THREAD_COMPLETION = 4;
    /// `fi_threading`: one thread per endpoint.
    FI_THREAD_ENDPOINT = 5;
    /// `fi_resource_mgmt`: any.
    FI_RM_UNSPEC = 0;
    /// `fi_resource_mgmt`: the application avoids overruns.
    FI_RM_DISABLED = 1;
    /// `fi_resource_mgmt`: the provider avoids overruns.
    FI_RM_ENABLED = 2;
    /// `fi_ep_type`: any.
    FI_EP_UNSPEC = 0;
    /// `fi_ep_type`: connected.
    FI_EP_MSG = 1;
    /// `fi_ep_type`: unreliable datagrams.
    FI_EP_DGRAM = 2;
    /// `fi_ep_type`: reliable, unconnected.
    FI_EP_RDM = 3;
    /// `fi_link_state`: unknown.
    FI_LINK_UNKNOWN = 0;
    /// `fi_link_state`: down.
    FI_LINK_DOWN = 1;
    /// `fi_link_state`: up.
    FI_LINK_UP = 2;
    /// `fi_control`: reads operation flags.
    FI_GETOPSFLAG = 2;
    /// `fi_control`: sets operation flags.
    FI_SETOPSFLAG = 3;
    /// `fi_control`: a second handle of an endpoint.
    FI_ALIAS = 4;
    /// `fi_control`: the wait object.
    FI_GETWAIT = 5;
    /// `fi_control`: enables an endpoint or region.
    FI_ENABLE = 6;
    /// `fi_control`: the kind of wait object.
    FI_GETWAITOBJ = 16;
}

ints! { u32:
    /// Protocol not told.
    FI_PROTO_UNSPEC = 0;
    /// Traffic class not told.
    FI_TC_UNSPEC = 0;
}

ints! { usize:
    /// Class of `fid_fabric`.
    FI_CLASS_FABRIC = 1;
    /// Class of `fid_domain`.
    FI_CLASS_DOMAIN = 2;
    /// Class of `fid_ep`.
    FI_CLASS_EP = 3;
    /// Class of `fid_av`.
    FI_CLASS_AV = 11;
    /// Class of `fid_mr`.
    FI_CLASS_MR = 12;
    /// Class of `fid_eq`.
    FI_CLASS_EQ = 13;
    /// Class of `fid_cq`.
    FI_CLASS_CQ = 14;
    /// Class of `fid_cntr`.
    FI_CLASS_CNTR = 15;
}

/// Room the application gives per operation in mode `FI_CONTEXT`.
#[repr(C)]
pub struct fi_context {
    /// The provider's own.
    pub internal: [*mut c_void; 4],
}

/// Room the application gives per operation in mode `FI_CONTEXT2`.
#[repr(C)]
pub struct fi_context2 {
    /// The provider's own.
    pub internal: [*mut c_void; 8],
}

/// Transmit attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_tx_attr {
    /// Capabilities.
    pub caps: u64,
    /// Mode bits.
    pub mode: u64,
    /// Default operation flags.
    pub op_flags: u64,
    /// Message order.
    pub msg_order: u64,
    /// Completion order.
    pub comp_order: u64,
    /// Bytes that can be injected.
    pub inject_size: usize,
    /// Operations outstanding.
    pub size: usize,
    /// Elements of an iovec.
    pub iov_limit: usize,
    /// Elements of a remote iovec.
    pub rma_iov_limit: usize,
    /// Traffic class.
    pub tclass: u32,
}

/// Receive attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_rx_attr {
    /// Capabilities.
    pub caps: u64,
    /// Mode bits.
    pub mode: u64,
    /// Default operation flags.
    pub op_flags: u64,
    /// Message order.
    pub msg_order: u64,
    /// Completion order.
    pub comp_order: u64,
    /// Bytes of unexpected messages kept.
    pub total_buffered_recv: usize,
    /// Receives outstanding.
    pub size: usize,
    /// Elements of an iovec.
    pub iov_limit: usize,
}

/// Endpoint attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ep_attr {
    /// `fi_ep_type`.
    pub type_: c_int,
    /// Wire protocol.
    pub protocol: u32,
    /// Version of the wire protocol.
    pub protocol_version: u32,
    /// Bytes of the largest message.
    pub max_msg_size: usize,
    /// Bytes of a message prefix.
    pub msg_prefix_size: usize,
    /// Read after write order holds up to here.
    pub max_order_raw_size: usize,
    /// Write after read order holds up to here.
    pub max_order_war_size: usize,
    /// Write after write order holds up to here.
    pub max_order_waw_size: usize,
    /// Format of tags.
    pub mem_tag_format: u64,
    /// Transmit contexts.
    pub tx_ctx_cnt: usize,
    /// Receive contexts.
    pub rx_ctx_cnt: usize,
    /// Bytes of the key.
    pub auth_key_size: usize,
    /// Key.
    pub auth_key: *mut u8,
}

/// Domain attributes. Fields after `tclass` exist for an application only from the interface version noted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_domain_attr {
    /// Open domain, or null.
    pub domain: *mut fid_domain,
    /// Name.
    pub name: *mut c_char,
    /// `fi_threading`.
    pub threading: c_int,
    /// `fi_progress` of control operations.
    pub control_progress: c_int,
    /// `fi_progress` of data operations.
    pub data_progress: c_int,
    /// `fi_resource_mgmt`.
    pub resource_mgmt: c_int,
    /// `fi_av_type`.
    pub av_type: c_int,
    /// Registration mode bits.
    pub mr_mode: c_int,
    /// Bytes of a key.
    pub mr_key_size: usize,
    /// Bytes of remote completion data.
    pub cq_data_size: usize,
    /// Completion queues.
    pub cq_cnt: usize,
    /// Endpoints.
    pub ep_cnt: usize,
    /// Transmit contexts.
    pub tx_ctx_cnt: usize,
    /// Receive contexts.
    pub rx_ctx_cnt: usize,
    /// Transmit contexts per endpoint.
    pub max_ep_tx_ctx: usize,
    /// Receive contexts per endpoint.
    pub max_ep_rx_ctx: usize,
    /// Shared transmit contexts per endpoint.
    pub max_ep_stx_ctx: usize,
    /// Shared receive contexts per endpoint.
    pub max_ep_srx_ctx: usize,
    /// Counters.
    pub cntr_cnt: usize,
    /// Elements of a registration.
    pub mr_iov_limit: usize,
    /// Domain capabilities.
    pub caps: u64,
    /// Mode bits.
    pub mode: u64,
    /// Key.
    pub auth_key: *mut u8,
    /// Bytes of the key.
    pub auth_key_size: usize,
    /// Bytes of error data.
    pub max_err_data: usize,
    /// Regions.
    pub mr_cnt: usize,
    /// Traffic class.
    pub tclass: u32,
    /// Keys per endpoint (1.20).
    pub max_ep_auth_key: usize,
    /// Largest group (2.0).
    pub max_group_id: u32,
    /// Largest counter value (2.5).
    pub max_cntr_value: u64,
    /// Largest counter error value (2.5).
    pub max_err_cntr_value: u64,
}

/// Fabric attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_fabric_attr {
    /// Open fabric, or null.
    pub fabric: *mut fid_fabric,
    /// Name.
    pub name: *mut c_char,
    /// Provider's name.
    pub prov_name: *mut c_char,
    /// Provider's version.
    pub prov_version: u32,
    /// Interface version the application asked for.
    pub api_version: u32,
}

/// What a provider offers, or an application asks for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_info {
    /// Next in the list.
    pub next: *mut fi_info,
    /// Capabilities.
    pub caps: u64,
    /// Mode bits.
    pub mode: u64,
    /// Format of the addresses.
    pub addr_format: u32,
    /// Bytes of the source address.
    pub src_addrlen: usize,
    /// Bytes of the destination address.
    pub dest_addrlen: usize,
    /// Source address.
    pub src_addr: *mut c_void,
    /// Destination address.
    pub dest_addr: *mut c_void,
    /// Connection request, or null.
    pub handle: *mut fid,
    /// Transmit attributes.
    pub tx_attr: *mut fi_tx_attr,
    /// Receive attributes.
    pub rx_attr: *mut fi_rx_attr,
    /// Endpoint attributes.
    pub ep_attr: *mut fi_ep_attr,
    /// Domain attributes.
    pub domain_attr: *mut fi_domain_attr,
    /// Fabric attributes.
    pub fabric_attr: *mut fi_fabric_attr,
    /// Network interface, or null.
    pub nic: *mut fid_nic,
}

/// Operations every object has.
#[repr(C)]
pub struct fi_ops {
    /// Bytes of this table.
    pub size: usize,
    /// Closes the object.
    pub close: unsafe extern "C" fn(*mut fid) -> c_int,
    /// Binds another object to it.
    pub bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    /// Commands.
    pub control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
    /// Opens provider-specific operations.
    pub ops_open: unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int,
    /// Describes the object.
    pub tostr: unsafe extern "C" fn(*const fid, *mut c_char, usize) -> c_int,
    /// Replaces provider-specific operations.
    pub ops_set: unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int,
}

/// What every object begins with.
#[repr(C)]
pub struct fid {
    /// Class.
    pub fclass: usize,
    /// The application's context.
    pub context: *mut c_void,
    /// Common operations.
    pub ops: *const fi_ops,
}

/// Operations of a fabric.
#[repr(C)]
pub struct fi_ops_fabric {
    /// Bytes of this table.
    pub size: usize,
    /// Opens a domain.
    pub domain:
        unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int,
    /// Opens a passive endpoint.
    pub passive_ep:
        unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) -> c_int,
    /// Opens an event queue.
    pub eq_open:
        unsafe extern "C" fn(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, *mut c_void) -> c_int,
    /// Opens a wait set.
    pub wait_open: unsafe extern "C" fn(*mut fid_fabric, *mut fi_wait_attr, *mut *mut fid_wait) -> c_int,
    /// Says whether it is safe to block on the objects' descriptors.
    pub trywait: unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int,
    /// Opens a domain with flags (1.17).
    pub domain2:
        unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, u64, *mut c_void) -> c_int,
}

/// A fabric.
#[repr(C)]
pub struct fid_fabric {
    /// The object.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_fabric,
    /// Interface version the application asked for; written by the core.
    pub api_version: u32,
}

/// A network interface.
#[repr(C)]
pub struct fid_nic {
    /// The object.
    pub fid: fid,
    /// Device.
    pub device_attr: *mut c_void,
    /// Bus.
    pub bus_attr: *mut c_void,
    /// Link.
    pub link_attr: *mut c_void,
    /// The provider's own.
    pub prov_attr: *mut c_void,
}
