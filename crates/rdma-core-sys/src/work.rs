//! Work requests and completions (`infiniband/verbs.h`).

use core::ffi::{c_int, c_uint};

use crate::{ibv_ah, ibv_mr, ibv_mw};

/// A buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_sge {
    /// Where it begins.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key of its region.
    pub lkey: u32,
}

/// Whom a datagram is for.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_ud {
    /// The host.
    pub ah: *mut ibv_ah,
    /// The queue pair.
    pub remote_qpn: u32,
    /// Its key.
    pub remote_qkey: u32,
}

/// What an atomic does where.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_atomic {
    /// Where.
    pub remote_addr: u64,
    /// What is added or compared.
    pub compare_add: u64,
    /// What is put there.
    pub swap: u64,
    /// Key of the region.
    pub rkey: u32,
}

/// Where memory is written or read.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_rdma {
    /// Where.
    pub remote_addr: u64,
    /// Key of the region.
    pub rkey: u32,
}

/// The part of a send that depends on its kind.
#[repr(C)]
pub union ibv_send_wr_wr {
    /// WRITE and READ.
    pub rdma: ibv_send_wr_rdma,
    /// Atomics.
    pub atomic: ibv_send_wr_atomic,
    /// Sends of datagrams.
    pub ud: ibv_send_wr_ud,
}

/// A work request of a send queue.
#[repr(C)]
pub struct ibv_send_wr {
    /// The application's number.
    pub wr_id: u64,
    /// The next one, or null.
    pub next: *mut ibv_send_wr,
    /// Its buffers.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
    /// `ibv_wr_opcode`.
    pub opcode: c_int,
    /// `ibv_send_flags`.
    pub send_flags: c_uint,
    /// Immediate data in network order, or a key to be invalidated.
    pub imm_data: u32,
    /// By its kind.
    pub wr: ibv_send_wr_wr,
    /// Of XRC.
    pub remote_srqn: u32,
    /// Of memory windows or TSO.
    pub bind_mw: ibv_send_wr_bind_mw,
}

/// A memory window to be bound.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_send_wr_bind_mw {
    /// The window.
    pub mw: *mut ibv_mw,
    /// Its key.
    pub rkey: u32,
    /// The region.
    pub mr: *mut ibv_mr,
    /// Where.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Rights.
    pub mw_access_flags: c_uint,
}

/// A work request of a receive queue.
#[repr(C)]
pub struct ibv_recv_wr {
    /// The application's number.
    pub wr_id: u64,
    /// The next one, or null.
    pub next: *mut ibv_recv_wr,
    /// Its buffers.
    pub sg_list: *mut ibv_sge,
    /// How many.
    pub num_sge: c_int,
}

/// A completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_wc {
    /// Of the work request.
    pub wr_id: u64,
    /// `ibv_wc_status`.
    pub status: c_int,
    /// `ibv_wc_opcode`.
    pub opcode: c_int,
    /// The provider's word for what failed.
    pub vendor_err: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate data in network order, or a key that was invalidated.
    pub imm_data: u32,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// Number of the sender's queue pair.
    pub src_qp: u32,
    /// `ibv_wc_flags`.
    pub wc_flags: c_uint,
    /// 0.
    pub pkey_index: u16,
    /// 0.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// 0.
    pub dlid_path_bits: u8,
}
