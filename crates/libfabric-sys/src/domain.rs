//! Domains, address vectors and memory regions (`rdma/fi_domain.h`).

use core::ffi::{c_char, c_int, c_void};

use crate::{
    fi_addr_t, fi_cntr_attr, fi_cq_attr, fi_info, fi_poll_attr, fi_rx_attr, fi_tx_attr, fid, fid_cntr,
    fid_cq, fid_ep, fid_poll, fid_stx,
};

/// `iface`: host memory.
pub const FI_HMEM_SYSTEM: c_int = 0;
/// `fi_av_insert`: the errors of single addresses go to an array (`context`).
pub const FI_SYNC_ERR: u64 = 1 << 58;
/// Registration of a dma-buf (`mr_iov` is one).
pub const FI_MR_DMABUF: u64 = 1 << 40;

/// Address vector attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_av_attr {
    /// `fi_av_type`.
    pub type_: c_int,
    /// Bits of a receive context index.
    pub rx_ctx_bits: c_int,
    /// Expected entries.
    pub count: usize,
    /// Expected endpoints per node.
    pub ep_per_node: usize,
    /// Name of a shared one.
    pub name: *const c_char,
    /// Where a shared one is mapped.
    pub map_addr: *mut c_void,
    /// Flags.
    pub flags: u64,
}

/// Operations of an address vector.
#[repr(C)]
pub struct fi_ops_av {
    /// Bytes of this table.
    pub size: usize,
    /// Inserts addresses.
    pub insert:
        unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64, *mut c_void) -> c_int,
    /// Inserts a node and service.
    pub insertsvc: unsafe extern "C" fn(
        *mut fid_av,
        *const c_char,
        *const c_char,
        *mut fi_addr_t,
        u64,
        *mut c_void,
    ) -> c_int,
    /// Inserts ranges of nodes and services.
    pub insertsym: unsafe extern "C" fn(
        *mut fid_av,
        *const c_char,
        usize,
        *const c_char,
        usize,
        *mut fi_addr_t,
        u64,
        *mut c_void,
    ) -> c_int,
    /// Removes addresses.
    pub remove: unsafe extern "C" fn(*mut fid_av, *mut fi_addr_t, usize, u64) -> c_int,
    /// The address behind an entry.
    pub lookup: unsafe extern "C" fn(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int,
    /// An address as text.
    pub straddr: unsafe extern "C" fn(*mut fid_av, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    /// Opens a set (checked by size).
    pub av_set:
        Option<unsafe extern "C" fn(*mut fid_av, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int>,
    /// Inserts a key (1.20, checked by size).
    pub insert_auth_key:
        Option<unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64) -> c_int>,
    /// Looks up a key (1.20, checked by size).
    pub lookup_auth_key:
        Option<unsafe extern "C" fn(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int>,
    /// Names an entry (1.20, checked by size).
    pub set_user_id: Option<unsafe extern "C" fn(*mut fid_av, fi_addr_t, fi_addr_t, u64) -> c_int>,
}

/// An address vector.
#[repr(C)]
pub struct fid_av {
    /// The object.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_av,
}

/// Registration attributes. Fields after `device` exist for an application only from the version noted.
#[repr(C)]
pub struct fi_mr_attr {
    /// The memory.
    pub mr_iov: *const libc::iovec,
    /// Elements of it.
    pub iov_count: usize,
    /// `FI_SEND`, `FI_REMOTE_READ` and so on.
    pub access: u64,
    /// Offset of remote addresses.
    pub offset: u64,
    /// Key asked for.
    pub requested_key: u64,
    /// The application's context.
    pub context: *mut c_void,
    /// Bytes of the key.
    pub auth_key_size: usize,
    /// Key.
    pub auth_key: *mut u8,
    /// `fi_hmem_iface`.
    pub iface: c_int,
    /// Device number.
    pub device: u64,
    /// Handle of device memory (1.20).
    pub hmem_data: *mut c_void,
    /// Page size (2.0).
    pub page_size: usize,
    /// Region this is a part of (2.0).
    pub base_mr: *const fid_mr,
    /// Number of such parts (2.0).
    pub sub_mr_cnt: usize,
}

/// A memory region.
#[repr(C)]
pub struct fid_mr {
    /// The object.
    pub fid: fid,
    /// Local descriptor.
    pub mem_desc: *mut c_void,
    /// Remote key.
    pub key: u64,
}

/// Registration operations.
#[repr(C)]
pub struct fi_ops_mr {
    /// Bytes of this table.
    pub size: usize,
    /// Registers a buffer.
    pub reg: unsafe extern "C" fn(
        *mut fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut fid_mr,
        *mut c_void,
    ) -> c_int,
    /// Registers several buffers.
    pub regv: unsafe extern "C" fn(
        *mut fid,
        *const libc::iovec,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut fid_mr,
        *mut c_void,
    ) -> c_int,
    /// Registers by attributes.
    pub regattr: unsafe extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int,
}

/// Operations of a domain.
#[repr(C)]
pub struct fi_ops_domain {
    /// Bytes of this table.
    pub size: usize,
    /// Opens an address vector.
    pub av_open:
        unsafe extern "C" fn(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av, *mut c_void) -> c_int,
    /// Opens a completion queue.
    pub cq_open:
        unsafe extern "C" fn(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int,
    /// Opens an endpoint.
    pub endpoint: unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
    /// Opens a scalable endpoint.
    pub scalable_ep:
        unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int,
    /// Opens a counter.
    pub cntr_open:
        unsafe extern "C" fn(*mut fid_domain, *mut fi_cntr_attr, *mut *mut fid_cntr, *mut c_void) -> c_int,
    /// Opens a poll set.
    pub poll_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_poll_attr, *mut *mut fid_poll) -> c_int,
    /// Opens a shared transmit context.
    pub stx_ctx:
        unsafe extern "C" fn(*mut fid_domain, *mut fi_tx_attr, *mut *mut fid_stx, *mut c_void) -> c_int,
    /// Opens a shared receive context.
    pub srx_ctx:
        unsafe extern "C" fn(*mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int,
    /// Says whether an atomic is offered (checked by size).
    pub query_atomic: Option<unsafe extern "C" fn(*mut fid_domain, c_int, c_int, *mut c_void, u64) -> c_int>,
    /// Says whether a collective is offered (checked by size).
    pub query_collective: Option<unsafe extern "C" fn(*mut fid_domain, c_int, *mut c_void, u64) -> c_int>,
    /// Opens an endpoint with flags (1.17, checked by size).
    pub endpoint2: Option<
        unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, u64, *mut c_void) -> c_int,
    >,
}

/// A domain.
#[repr(C)]
pub struct fid_domain {
    /// The object.
    pub fid: fid,
    /// Its operations.
    pub ops: *const fi_ops_domain,
    /// Registration.
    pub mr: *const fi_ops_mr,
}
