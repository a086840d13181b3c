//! What C sees. Sizes and places of fields are asserted here and, with the same numbers, by `tests/c/layout.c`.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

use usb4_ring::{EpAddr, NodeId};

/// A host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct usb4ring_node {
    /// The lower half of its node id.
    pub low: u64,
    /// The higher half.
    pub high: u64,
}

/// An endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct usb4ring_addr {
    /// Its host.
    pub node: usb4ring_node,
    /// Its number.
    pub ep: u32,
    /// Which of those that had the number.
    pub incarnation: u32,
}

/// What a device is and can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct usb4ring_info {
    /// This host.
    pub node: usb4ring_node,
    /// `USB4RING_PROCESS_MEMORY`.
    pub flags: u32,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Most entries of any queue.
    pub max_queue_depth: u32,
    /// Most endpoints.
    pub max_endpoints: u32,
    /// Most completion queues.
    pub max_cqs: u32,
    /// Most memory regions.
    pub max_regions: u32,
}

/// Another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct usb4ring_peer {
    /// Which.
    pub node: usb4ring_node,
    /// `USB4RING_PEER_`.
    pub state: u32,
    /// Rails that are up.
    pub rails: u32,
    /// Megabits per second of these together; 0: not known.
    pub rate_mbps: u32,
    /// 0.
    pub reserved: u32,
}

/// What requests and peers name a memory region by.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct usb4ring_region {
    /// Its first byte.
    pub start: *mut c_void,
    /// Bytes.
    pub len: u64,
    /// Key for peers.
    pub remote_key: u64,
    /// Key for requests.
    pub local_key: u32,
    /// 0.
    pub reserved: u32,
}

/// A completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct usb4ring_completion {
    /// As given with the request or receive.
    pub user_data: u64,
    /// Immediate; of an atomic: the value before.
    pub value: u64,
    /// Bytes.
    pub len: u32,
    /// Receives: whose.
    pub source: u32,
    /// What.
    pub op: u8,
    /// How it ended.
    pub status: u8,
    /// `USB4RING_HAS_IMM`.
    pub flags: u16,
    /// 0.
    pub reserved: u32,
}

/// What an endpoint is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct usb4ring_ep_config {
    /// `USB4RING_DATAGRAM` or `USB4RING_CONNECTED`.
    pub kind: u32,
    /// Entries of the submission queue; 0: as the library likes.
    pub sq_depth: u32,
    /// Entries of the receive queue; 0: as the library likes.
    pub rq_depth: u32,
    /// 0.
    pub reserved: u32,
}

/// A request.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct usb4ring_request {
    /// What.
    pub op: u8,
    /// `USB4RING_IMM`, `USB4RING_UNSIGNALED`.
    pub flags: u8,
    /// Bytes of the prefix.
    pub prefix_len: u8,
    /// 0.
    pub reserved: u8,
    /// Whom to.
    pub handle: u32,
    /// For the completion.
    pub user_data: u64,
    /// Local buffer.
    pub addr: *const c_void,
    /// Key of its region; 0: plain memory.
    pub local_key: u32,
    /// Bytes.
    pub len: u32,
    /// Place in the peer's memory.
    pub remote_addr: u64,
    /// Key of its region.
    pub remote_key: u64,
    /// Immediate.
    pub imm: u64,
    /// COMPARE_SWAP: what has to be there.
    pub compare: u64,
    /// What is added, or put in place.
    pub operand: u64,
    /// Sends: bytes that go first.
    pub prefix: [u8; 24],
}

const _: () = {
    assert!(size_of::<usb4ring_node>() == 16);
    assert!(size_of::<usb4ring_addr>() == 24 && offset_of!(usb4ring_addr, incarnation) == 20);
    assert!(size_of::<usb4ring_info>() == 40 && offset_of!(usb4ring_info, max_regions) == 36);
    assert!(size_of::<usb4ring_peer>() == 32 && offset_of!(usb4ring_peer, rate_mbps) == 24);
    assert!(size_of::<usb4ring_region>() == 32 && offset_of!(usb4ring_region, local_key) == 24);
    assert!(size_of::<usb4ring_completion>() == 32 && offset_of!(usb4ring_completion, flags) == 26);
    assert!(size_of::<usb4ring_ep_config>() == 16 && offset_of!(usb4ring_ep_config, rq_depth) == 8);
    assert!(size_of::<usb4ring_request>() == 96 && offset_of!(usb4ring_request, prefix) == 72);
};

impl From<NodeId> for usb4ring_node {
    fn from(node: NodeId) -> Self {
        let (low, high) = node.halves();
        Self { low, high }
    }
}

impl From<EpAddr> for usb4ring_addr {
    fn from(addr: EpAddr) -> Self {
        Self {
            node: addr.node.into(),
            ep: addr.ep,
            incarnation: addr.incarnation,
        }
    }
}

impl From<usb4ring_addr> for EpAddr {
    fn from(addr: usb4ring_addr) -> Self {
        Self {
            node: NodeId::from_halves(addr.node.low, addr.node.high),
            ep: addr.ep,
            incarnation: addr.incarnation,
        }
    }
}
