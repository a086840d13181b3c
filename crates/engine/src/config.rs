//! What a link and a rail are created with.

use usb4_wire::{FRAME_MAX, NodeId};

use crate::Nanos;

/// Most rails a link can have: two cables with four rings each.
pub const MAX_RAILS: usize = 8;

/// Chunks a sender may rely on its peer to park: it sends no more than this after its oldest unacknowledged frame.
pub const PEER_PARKS: u32 = 1024;

/// Limits of one link. They bound everything a peer can make this side hold.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// This host.
    pub local: NodeId,
    /// The host at the other end; equal to `local` for a loopback link.
    pub peer: NodeId,
    /// Longest frame sent, in bytes: 1024 to 4096.
    pub frame_size: u16,
    /// Frame buffers of the home's TX pool; [`crate::TxSlot`]s are below this. At least 16.
    pub tx_slots: u16,
    /// Frame buffers of the home's RX pool; [`crate::RxToken`]s are below this. The pool must cover the receive
    /// rings of all rails plus `max_parked` plus `max_plans`, or a rail cannot replace a descriptor before it
    /// hands the frame over.
    pub rx_tokens: u32,
    /// Flows this side may have open at once; also below what the peer announced as its `max_rx_flows`.
    pub max_tx_flows: u32,
    /// Flows the peer may have open towards this side; announced to the peer.
    pub max_rx_flows: u32,
    /// Posted operations of all flows together.
    pub max_ops: u32,
    /// Chunks that may wait for an earlier one, over all flows: at least [`PEER_PARKS`], if the peer is to send at
    /// its best. The peer is taken to have as many, up to that.
    pub max_parked: u32,
    /// Reads and atomics of the peer this side serves at once; announced to the peer.
    pub max_reads: u32,
    /// The peer's `max_reads`: reads and atomics this side may have outstanding.
    pub peer_max_reads: u32,
    /// Plans handed out and not yet done. At least 16.
    pub max_plans: u32,
    /// Frames that may be staged ahead of what the rails have taken. Small keeps latency low under load.
    pub max_ready: u16,
    /// Rails that may be attached at once; at most [`MAX_RAILS`].
    pub max_rails: u8,
    /// Frames in flight per rail this side keeps account of; a power of two of at least 128. Bounds the window
    /// where the peer's ring is larger.
    pub rail_window: u16,
    /// Frames carry a CRC over their payload; negotiated.
    pub payload_crc: bool,
    /// How long this side may hold back an acknowledgement; announced to the peer.
    pub max_ack_delay: Nanos,
}

impl LinkConfig {
    /// A configuration for one pair of hosts with the defaults of the software cable: 2048 TX slots, 256 flows,
    /// 4096 operations.
    pub const fn new(local: NodeId, peer: NodeId) -> Self {
        Self {
            local,
            peer,
            #[expect(clippy::cast_possible_truncation, reason = "4096")]
            frame_size: FRAME_MAX as u16,
            tx_slots: 2048,
            rx_tokens: 4096,
            max_tx_flows: 256,
            max_rx_flows: 256,
            max_ops: 4096,
            max_parked: 1024,
            max_reads: 128,
            peer_max_reads: 128,
            max_plans: 1024,
            max_ready: 16,
            max_rails: 4,
            rail_window: 1024,
            payload_crc: false,
            max_ack_delay: 25_000,
        }
    }
}

/// What bring-up has agreed for one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailConfig {
    /// The tag the peer drew: goes into every frame sent.
    pub tx_tag: u64,
    /// The tag this side drew: every frame received must carry it.
    pub rx_tag: u64,
    /// Descriptors of the peer's receive ring.
    pub peer_ring: u16,
    /// Descriptors that may be posted to the TX ring and not yet completed.
    pub tx_depth: u16,
    /// How long the peer may hold back an acknowledgement.
    pub peer_max_ack_delay: Nanos,
    /// Expected bit rate, for the choice of the rail and for first timeouts; corrected by measurement.
    pub rate_bps: u64,
    /// Expected one-way latency of an empty rail.
    pub latency: Nanos,
}
