//! What crosses the border to C: the structures of `kmod/usb4_core.h`, field by field.

use core::mem::offset_of;

use usb4_engine::{Counters, NodeId, PeerInfo};
use usb4_wire::{EpAddr, FRAME_VERSION};

/// Frames, and completed descriptors, taken off the rings at a time: what [`usb4_device::Arrivals`] allows.
pub const BATCH: usize = 64;

/// A node id in two halves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Node {
    /// Lower 64 bits.
    pub low: u64,
    /// Upper 64 bits.
    pub high: u64,
}

impl From<NodeId> for Node {
    #[expect(clippy::cast_possible_truncation, reason = "halves")]
    fn from(node: NodeId) -> Self {
        Self {
            low: node.0 as u64,
            high: (node.0 >> 64) as u64,
        }
    }
}

impl From<Node> for NodeId {
    fn from(node: Node) -> Self {
        Self(u128::from(node.low) | u128::from(node.high) << 64)
    }
}

/// `struct usb4_ring_addr` of the user interface.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Addr {
    /// Its host.
    pub node: Node,
    /// Its number.
    pub ep: u32,
    /// Its incarnation.
    pub incarnation: u32,
}

impl From<EpAddr> for Addr {
    fn from(addr: EpAddr) -> Self {
        Self {
            node: addr.node.into(),
            ep: addr.ep,
            incarnation: addr.incarnation,
        }
    }
}

impl From<Addr> for EpAddr {
    fn from(addr: Addr) -> Self {
        Self {
            node: addr.node.into(),
            ep: addr.ep,
            incarnation: addr.incarnation,
        }
    }
}

/// Sizes the C side has to know: what a device and a rail are made of.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Limits {
    /// Links, the loopback link included.
    pub max_links: u32,
    /// Descriptors of a receive ring.
    pub rx_ring: u32,
    /// Descriptors of a transmit ring.
    pub tx_ring: u32,
    /// Transmit frame buffers of a link.
    pub tx_slots: u32,
    /// Receive frame buffers of a rail: those of its rail `r` begin with `r` times this.
    pub rx_tokens: u32,
    /// Rails, of all links together.
    pub max_rails: u32,
    /// Most entries of a queue.
    pub max_depth: u32,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Completion queues of a client.
    pub max_cqs: u32,
    /// Entries of these together.
    pub max_cq_entries: u32,
    /// Endpoints of a client.
    pub max_eps: u32,
    /// Address handles of these together.
    pub max_ahs: u32,
    /// Memory regions of a client.
    pub max_mrs: u32,
    /// Address handles of an endpoint whose creator did not say.
    pub default_ahs: u32,
    /// Bytes of a client's regions together.
    pub max_mr_bytes: u64,
    /// Rails of a link.
    pub link_rails: u32,
    /// Version of frames ([`FRAME_VERSION`]).
    pub frame_version: u32,
    /// Version of the ring interface ([`usb4_ring_abi::ABI_VERSION`]).
    pub abi_version: u32,
}

/// What a rail's session was agreed with: [`PeerInfo`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Peer {
    /// The host at the other end.
    pub node: Node,
    /// Tag of frames sent.
    pub tx_tag: u64,
    /// Tag of frames received.
    pub rx_tag: u64,
    /// How long it holds an acknowledgement back, in nanoseconds.
    pub max_ack_delay: u64,
    /// HopID of its frames.
    pub tx_hop: u32,
    /// Features in force.
    pub features: u32,
    /// Incoming flows it holds.
    pub max_flows: u32,
    /// Reads and atomics it answers at a time.
    pub max_reads: u32,
    /// Slots of its receive ring.
    pub ring: u32,
    /// Megabits per second the rail is taken to carry until that is measured; filled in by C.
    pub rate_mbps: u32,
    /// The join nonce the peer shows.
    pub join: u64,
    /// The one this side shows.
    pub shown: u64,
}

impl From<&PeerInfo> for Peer {
    fn from(info: &PeerInfo) -> Self {
        Self {
            node: info.node.into(),
            tx_tag: info.tx_tag,
            rx_tag: info.rx_tag,
            max_ack_delay: info.max_ack_delay,
            tx_hop: info.tx_hop,
            features: info.features,
            max_flows: info.max_flows,
            max_reads: info.max_reads,
            ring: u32::from(info.ring_size),
            rate_mbps: 0,
            join: info.join,
            shown: info.shown,
        }
    }
}

impl From<&Peer> for PeerInfo {
    fn from(peer: &Peer) -> Self {
        Self {
            node: peer.node.into(),
            version: FRAME_VERSION,
            tx_tag: peer.tx_tag,
            rx_tag: peer.rx_tag,
            tx_hop: peer.tx_hop,
            ring_size: u16::try_from(peer.ring).unwrap_or(u16::MAX),
            max_ack_delay: peer.max_ack_delay,
            features: peer.features,
            max_flows: peer.max_flows,
            max_reads: peer.max_reads,
            join: peer.join,
            shown: peer.shown,
        }
    }
}

/// [`Order::kind`]: nothing to do.
pub const ORDER_NONE: u32 = 0;
/// [`Order::kind`]: send `message` to the peer.
pub const ORDER_SEND: u32 = 1;
/// [`Order::kind`]: start rings, prime the receive ring, enable the paths for the peer's HopID `value`.
pub const ORDER_ENABLE: u32 = 2;
/// [`Order::kind`]: disable the paths, stop the rings.
pub const ORDER_DISABLE: u32 = 3;
/// [`Order::kind`]: the session with `peer` is up.
pub const ORDER_UP: u32 = 4;
/// [`Order::kind`]: it is not any more; `value` is why.
pub const ORDER_DOWN: u32 = 5;

/// What a rail's state machine wants done.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Order {
    /// One of `ORDER_*`.
    pub kind: u32,
    /// See there.
    pub value: u32,
    /// A control message.
    pub message: [u8; 96],
    /// The peer.
    pub peer: Peer,
}

/// A received frame whose descriptor has been replaced.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Frame {
    /// Its bytes, which do not change any more.
    pub bytes: *const u8,
    /// Its buffer.
    pub token: u32,
    /// Bytes, at most 4096.
    pub len: u16,
    /// The rail it came on.
    pub rail: u8,
    /// 0.
    pub reserved: u8,
}

/// A transmit descriptor that has been consumed.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sent {
    /// Its buffer.
    pub slot: u16,
    /// The rail it was posted to.
    pub rail: u8,
    /// 0.
    pub reserved: u8,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            bytes: core::ptr::null(),
            token: 0,
            len: 0,
            rail: 0,
            reserved: 0,
        }
    }
}

/// What was found on a link's rings.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arrived {
    /// [`BATCH`] frames; the first `frame_count` count.
    pub frames: *mut Frame,
    /// [`BATCH`] descriptors; the first `sent_count` count.
    pub sent: *mut Sent,
    /// See `frames`.
    pub frame_count: u32,
    /// See `sent`.
    pub sent_count: u32,
}

/// A completion queue to be created.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CqParams {
    /// The client's.
    pub client: u32,
    /// Entries.
    pub depth: u32,
    /// Queue memory.
    pub queue: Queue,
    /// What [`usb4_device::Home::wake`] is called with.
    pub waker: usize,
    /// A block of `usb4_core_cq_size` bytes.
    pub memory: *mut u8,
    /// Bytes of it.
    pub size: usize,
}

/// A queue's words and the C side's handle of them, a reference on which goes with it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Queue {
    /// The words.
    pub words: *mut u64,
    /// How many.
    pub count: usize,
    /// The handle.
    pub handle: usize,
}

/// An endpoint to be created.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EpParams {
    /// The client's.
    pub client: u32,
    /// 0 datagram, 1 connected; of a queue pair [`crate::qp::QP_RC`] and so on.
    pub kind: u32,
    /// Completion queue of its submissions.
    pub send_cq: u32,
    /// Completion queue of its receives.
    pub recv_cq: u32,
    /// Entries of the submission queue.
    pub sq_depth: u32,
    /// Entries of the receive queue.
    pub rq_depth: u32,
    /// Memory of the submission queue.
    pub sq: Queue,
    /// Memory of the receive queue.
    pub rq: Queue,
    /// Address handles.
    pub handles: u32,
    /// Protection domain of a queue pair; else 0.
    pub pd: u32,
    /// A block of `usb4_core_ep_size` bytes.
    pub memory: *mut u8,
    /// Bytes of it.
    pub size: usize,
    /// Shared receive queue that a queue pair draws from; else 0.
    pub srq: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes of the slots behind a queue pair's submission queue; else 0.
    pub sq_slot: u32,
    /// Bytes of those behind its receive queue; else 0.
    pub rq_slot: u32,
}

/// A shared receive queue to be created.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SrqParams {
    /// The client's.
    pub client: u32,
    /// Its protection domain, not 0.
    pub pd: u32,
    /// Entries.
    pub depth: u32,
    /// Bytes of the slots behind its entries.
    pub slot: u32,
    /// Its memory.
    pub rq: Queue,
    /// A block of `usb4_core_ep_size` bytes, without handles or a submission queue.
    pub memory: *mut u8,
    /// Bytes of it.
    pub size: usize,
}

/// Memory to be registered.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MrParams {
    /// The client's.
    pub client: u32,
    /// Rights of peers: 1 read, 2 write, 4 atomics.
    pub access: u32,
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The C side's handle, which goes with it: `usb4_home_unpin` gives it back.
    pub mem: usize,
    /// If not 0, `peer` is the only host that may use it.
    pub bound: u32,
    /// If not 0, it is for queue pairs, and the key for peers has 32 bits.
    pub narrow: u32,
    /// See `bound`.
    pub peer: Node,
    /// Written: key for the client's own entries.
    pub local_key: u32,
    /// With `narrow`: the protection domain, not 0; else 0.
    pub pd: u32,
    /// Written: key for peers.
    pub remote_key: u64,
}

/// Attributes of a queue pair, as `struct ib_qp_attr` has them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QpAttr {
    /// To modify: which of these count, [`crate::qp::QP_STATE`] and so on.
    pub mask: u32,
    /// [`crate::qp::QPS_RESET`] and so on.
    pub state: u32,
    /// The peer's host.
    pub node: Node,
    /// The peer's number.
    pub dest_qpn: u32,
    /// Datagrams: the key messages must show.
    pub qkey: u32,
    /// What peers may do: as of a memory region.
    pub access: u32,
    /// Code of the time to wait for a peer to be ready.
    pub timeout: u8,
    /// How many times more.
    pub retry_cnt: u8,
    /// How many times to wait for a receive.
    pub rnr_retry: u8,
    /// Code of the time each.
    pub min_rnr_timer: u8,
    /// Reads and atomics outstanding.
    pub max_rd_atomic: u8,
    /// The peer's reads and atomics outstanding.
    pub max_dest_rd_atomic: u8,
    /// Queried: in SQD, and something sent is not finished.
    pub sq_draining: u8,
    /// 0.
    pub reserved: u8,
    /// Queried: its number.
    pub qpn: u32,
    /// 0.
    pub reserved2: u64,
}

/// What has happened on a link, for people: [`Counters`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LinkStatus {
    /// Frames with chunks posted, retransmissions included.
    pub tx_frames: u64,
    /// Bytes of all posted frames.
    pub tx_bytes: u64,
    /// Pure acknowledgements posted.
    pub tx_acks: u64,
    /// Probes posted.
    pub tx_probes: u64,
    /// Frames posted again.
    pub tx_resent: u64,
    /// Frames declared lost.
    pub tx_lost: u64,
    /// Frames accepted.
    pub rx_frames: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Frames dropped: their head was not valid.
    pub rx_malformed: u64,
    /// Frames dropped: a checksum was wrong.
    pub rx_corrupt: u64,
    /// Frames dropped: of another session.
    pub rx_wrong_tag: u64,
    /// Frames dropped: received before.
    pub rx_duplicate: u64,
    /// Frames dropped: no room to hold them.
    pub rx_no_room: u64,
    /// Chunks that waited for an earlier one.
    pub parked: u64,
    /// What a peer that keeps the protocol does not do.
    pub violations: u64,
    /// Requests of the peer executed, in chunks.
    pub executed: u64,
    /// Operations of this side completed without error.
    pub completed: u64,
    /// Operations of this side completed with an error.
    pub failed: u64,
    /// Receiver-not-ready refusals sent.
    pub rnr_sent: u64,
    /// Receiver-not-ready refusals received.
    pub rnr_received: u64,
    /// Other refusals sent.
    pub nak_sent: u64,
    /// Other refusals received.
    pub nak_received: u64,
}

impl From<&Counters> for LinkStatus {
    fn from(counters: &Counters) -> Self {
        Self {
            tx_frames: counters.tx_frames,
            tx_bytes: counters.tx_bytes,
            tx_acks: counters.tx_acks,
            tx_probes: counters.tx_pings,
            tx_resent: counters.tx_resent,
            tx_lost: counters.tx_lost,
            rx_frames: counters.rx_frames,
            rx_bytes: counters.rx_bytes,
            rx_malformed: counters.rx_malformed,
            rx_corrupt: counters.rx_corrupt,
            rx_wrong_tag: counters.rx_wrong_tag,
            rx_duplicate: counters.rx_duplicate,
            rx_no_room: counters.rx_no_room,
            parked: counters.rx_parked,
            violations: counters.violations,
            executed: counters.executed,
            completed: counters.completed,
            failed: counters.failed,
            rnr_sent: counters.rnr_sent,
            rnr_received: counters.rnr_received,
            nak_sent: counters.nak_sent,
            nak_received: counters.nak_received,
        }
    }
}

/// A rail of a link, for people: [`usb4_engine::RailStatus`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RailStatus {
    /// Smoothed round-trip time in nanoseconds.
    pub rtt: u64,
    /// Delivery rate in bits per second: as configured until measured.
    pub rate: u64,
    /// Frames declared lost in this session.
    pub lost: u64,
    /// Frames whose fate is not known.
    pub in_flight: u64,
}

/// What was counted since the last turn of a link; see [`LinkStatus`] for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Turn {
    /// Frames declared lost.
    pub lost: u64,
    /// Frames posted again.
    pub resent: u64,
    /// Probes posted.
    pub probes: u64,
    /// Frames dropped: their head was not valid.
    pub malformed: u64,
    /// Frames dropped: a checksum was wrong.
    pub corrupt: u64,
    /// Frames dropped: of another session.
    pub wrong_tag: u64,
    /// Frames dropped: received before.
    pub duplicate: u64,
    /// Frames dropped: no room to hold them.
    pub no_room: u64,
    /// Chunks that wait for an earlier one.
    pub parked: u64,
    /// Operations completed without error.
    pub completed: u64,
    /// Operations completed with an error.
    pub failed: u64,
    /// Requests of the peer executed, in chunks.
    pub executed: u64,
}

impl Turn {
    /// What was counted between two looks.
    pub(crate) fn between(earlier: &Counters, now: &Counters) -> Self {
        Self {
            lost: now.tx_lost.wrapping_sub(earlier.tx_lost),
            resent: now.tx_resent.wrapping_sub(earlier.tx_resent),
            probes: now.tx_pings.wrapping_sub(earlier.tx_pings),
            malformed: now.rx_malformed.wrapping_sub(earlier.rx_malformed),
            corrupt: now.rx_corrupt.wrapping_sub(earlier.rx_corrupt),
            wrong_tag: now.rx_wrong_tag.wrapping_sub(earlier.rx_wrong_tag),
            duplicate: now.rx_duplicate.wrapping_sub(earlier.rx_duplicate),
            no_room: now.rx_no_room.wrapping_sub(earlier.rx_no_room),
            parked: now.rx_parked.wrapping_sub(earlier.rx_parked),
            completed: now.completed.wrapping_sub(earlier.completed),
            failed: now.failed.wrapping_sub(earlier.failed),
            executed: now.executed.wrapping_sub(earlier.executed),
        }
    }
}

macro_rules! layout {
    ($($name:ident $bytes:literal $($field:ident $at:literal)*;)*) => {
        $(const _: () = assert!(size_of::<$name>() == $bytes);
        $(const _: () = assert!(offset_of!($name, $field) == $at);)*)*
    };
}

// The same numbers are asserted in `kmod/usb4_core.h`.
layout! {
    Node 16 high 8;
    Addr 24 ep 16 incarnation 20;
    Limits 80 max_mr_bytes 56 abi_version 72;
    Peer 80 tx_tag 16 max_ack_delay 32 tx_hop 40 rate_mbps 60 shown 72;
    Order 184 message 8 peer 104;
    Frame 16 token 8 len 12 rail 14;
    Sent 4 rail 2;
    Arrived 24 sent 8 frame_count 16 sent_count 20;
    Queue 24 count 8 handle 16;
    CqParams 56 queue 8 waker 32 memory 40 size 48;
    EpParams 112 sq 24 rq 48 handles 72 pd 76 memory 80 size 88 srq 96 rq_slot 108;
    SrqParams 56 rq 16 memory 40 size 48;
    MrParams 72 addr 8 mem 24 bound 32 narrow 36 peer 40 local_key 56 pd 60 remote_key 64;
    QpAttr 56 node 8 dest_qpn 24 access 32 timeout 36 sq_draining 42 qpn 44 reserved2 48;
    LinkStatus 176 rx_frames 48 parked 104 nak_received 168;
    RailStatus 32 in_flight 24;
    Turn 96 parked 64 executed 88;
}
