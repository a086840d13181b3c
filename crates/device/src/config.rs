//! What a device and its objects are created with.

use core::ops::BitOr;

use usb4_engine::{NodeId, Slab};

use crate::{AhSlot, CqId, Home, OpSlot};

/// Sizes of a device's tables; each at most 65536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// This host.
    pub node: NodeId,
    /// Clients.
    pub max_clients: usize,
    /// Endpoints of all clients.
    pub max_endpoints: usize,
    /// Completion queues of all clients.
    pub max_cqs: usize,
    /// Memory regions of all clients.
    pub max_regions: usize,
    /// Links, the loopback link included.
    pub max_links: usize,
    /// Sending endpoints remembered: at least the incoming flows of all links together.
    pub max_sources: usize,
}

impl DeviceConfig {
    /// The sizes of a soft device: one process and a few peers.
    pub const fn new(node: NodeId) -> Self {
        Self {
            node,
            max_clients: 16,
            max_endpoints: 1024,
            max_cqs: 1024,
            max_regions: 16384,
            max_links: 64,
            max_sources: 16384,
        }
    }
}

/// What one client may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Endpoints.
    pub endpoints: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Entries of all completion queues together. Each submission and receive in flight holds one, so this
    /// bounds outstanding work.
    pub cq_entries: u32,
    /// Memory regions.
    pub regions: u32,
    /// Bytes of all memory regions together.
    pub region_bytes: u64,
    /// Address handles of all endpoints together.
    pub handles: u32,
}

impl Quota {
    /// No limit but the device's own.
    pub const UNLIMITED: Self = Self {
        endpoints: u32::MAX,
        cqs: u32::MAX,
        cq_entries: u32::MAX,
        regions: u32::MAX,
        region_bytes: u64::MAX,
        handles: u32::MAX,
    };
}

/// Somebody with several clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// Tells users apart.
    pub id: u32,
    /// What all clients of the user may have together for this one to get more.
    pub quota: Quota,
}

/// What may be done to a memory region: by peers, and by its owner, who may at least read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// Local use only, reading and writing.
    pub const LOCAL: Self = Self(0);
    /// RDMA reads by peers.
    pub const REMOTE_READ: Self = Self(1);
    /// RDMA writes by peers.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Atomics by peers.
    pub const REMOTE_ATOMIC: Self = Self(4);
    /// All that peers can do.
    pub const REMOTE_ALL: Self = Self(7);
    /// Nobody writes, the owner's own entries included. Not together with rights of peers to write.
    pub const READ_ONLY: Self = Self(8);

    /// As bits: 1 remote read, 2 remote write, 4 remote atomic, 8 read only.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From bits; `None` if there are unknown ones, or some that contradict each other.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        let access = Self(bits);
        if bits & !15 == 0 && access.is_consistent() {
            Some(access)
        } else {
            None
        }
    }

    /// Whether its rights do not contradict each other.
    pub(crate) const fn is_consistent(self) -> bool {
        !self.is_read_only() || self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0) == 0
    }

    /// Whether nobody writes.
    pub const fn is_read_only(self) -> bool {
        self.contains(Self::READ_ONLY)
    }

    /// Whether all rights of `other` are there.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A memory region to be registered.
#[derive(Debug)]
pub struct RegionConfig<M> {
    /// Address of its first byte, in the address space local and remote operations use for it.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// What peers may do.
    pub access: Access,
    /// If set, the only host that may use the remote key.
    pub peer: Option<NodeId>,
    /// How the home reaches it: offset 0 is `addr`.
    pub mem: M,
}

/// The keys of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    /// For the owner's own entries. Never 0.
    pub local: u32,
    /// For peers; random.
    pub remote: u64,
}

/// A completion queue to be created.
#[derive(Debug)]
pub struct CqConfig<H: Home> {
    /// Entries, a power of two.
    pub depth: u32,
    /// The queue's memory, zeroed.
    pub memory: H::Queue,
    /// A place per entry for what is in flight; as many as `depth`.
    pub ops: Slab<OpSlot>,
    /// How to wake the client.
    pub waker: H::Waker,
}

/// What an endpoint can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointKind {
    /// Reliable datagram: any endpoint of any host, each through an address handle. An error concerns the entry
    /// it happened to.
    Datagram,
    /// Connected: the one peer given to [`crate::Device::connect`]. An error stops the endpoint: everything else
    /// is flushed until it is reset.
    Connected,
}

/// An endpoint to be created.
#[derive(Debug)]
pub struct EndpointConfig<H: Home> {
    /// What it can reach.
    pub kind: EndpointKind,
    /// Where submissions complete.
    pub send_cq: CqId,
    /// Where receives complete; may be the same.
    pub recv_cq: CqId,
    /// Entries of the submission queue, a power of two.
    pub sq_depth: u32,
    /// The submission queue's memory, zeroed.
    pub sq: H::Queue,
    /// Entries of the receive queue, a power of two.
    pub rq_depth: u32,
    /// The receive queue's memory, zeroed.
    pub rq: H::Queue,
    /// Room for address handles; one for a connected endpoint.
    pub handles: Slab<AhSlot>,
}

/// Where an endpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointState {
    /// Connected kind, before [`crate::Device::connect`].
    Unconnected,
    /// It works. Queue pairs: [`crate::QpState::Rts`].
    Ready,
    /// Connected kind and queue pairs, after an error: everything is flushed until it is reset.
    Error,
    /// Its queues were corrupted by the client: everything is flushed, for good.
    Killed,
    /// Queue pairs: [`crate::QpState::Reset`].
    Reset,
    /// Queue pairs: [`crate::QpState::Init`].
    Init,
    /// Queue pairs: [`crate::QpState::Rtr`].
    Receiving,
    /// Queue pairs: [`crate::QpState::Sqd`].
    Draining,
    /// Queue pairs: [`crate::QpState::Sqe`].
    SendError,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use usb4_engine::LinkConfig;

    use super::*;

    #[test]
    fn every_incoming_flow_of_a_device_of_usual_size_has_a_place_for_its_sender() {
        let device = DeviceConfig::new(NodeId(1));
        let link = LinkConfig::new(NodeId(1), NodeId(2));
        assert!(device.max_sources >= device.max_links * link.max_rx_flows as usize);
    }
}
