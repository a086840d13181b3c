//! The values that cross the engine's border.

use usb4_wire::{EpAddr, NakCode};

/// Nanoseconds on the home's monotonic clock. The engine never reads a clock: time is an argument.
pub type Nanos = u64;

/// A rail of one link: one TX and one RX ring and the path to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RailId(pub u8);

/// A flow this side opened: source endpoint incarnation to destination endpoint incarnation. It names that flow for
/// good: places are used again, names are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    /// Its place in the link's table: the id on the wire.
    pub(crate) index: u32,
    /// Which of the flows that have been there it is.
    pub(crate) life: u32,
}

/// A frame buffer of the home's TX pool. The engine decides what is in it and when it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxSlot(pub u16);

/// A received frame's buffer, named by the home; below [`crate::LinkConfig::rx_tokens`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RxToken(pub u32);

/// A counted reference to a memory region, given out by the [`Host`] and handed back to
/// [`Host::release`]. Opaque to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemRef(pub u64);

/// A place in a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemAt {
    /// The region.
    pub mem: MemRef,
    /// Byte offset from the region's start.
    pub offset: u64,
}

/// The endpoint an incoming flow ends at, as the host names it.
///
/// When the endpoint is destroyed or its process dies the host calls [`crate::Link::close_target`] on every link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The endpoint's index at the host.
    pub ep: u32,
    /// The host's name for the sending endpoint; reported in receive completions.
    pub src: u32,
}

/// What a peer asks of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA read.
    Read,
    /// RDMA write.
    Write,
    /// Fetch-add or compare-swap on 8 aligned bytes.
    Atomic,
}

/// A posted receive the host has taken off an endpoint's receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Where the message goes; holds a reference. Ignored when `capacity` is 0.
    pub at: MemAt,
    /// Room in bytes.
    pub capacity: u32,
    /// The host's own name for this receive, handed back on completion.
    pub cookie: u64,
}

/// How a piece of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done; for work, every byte is in target memory and its completion is visible.
    Ok,
    /// The peer refused it.
    Refused(NakCode),
    /// The link died before the peer confirmed it.
    LinkDown,
    /// Flushed because its endpoint or flow was closed or is in error.
    Flushed,
    /// Its flow has waited for longer than its [`Limits`] allow: for the target to be ready
    /// ([`NakCode::NotReady`]) or for a receive ([`NakCode::Rnr`]).
    Expired(NakCode),
}

/// How long an outgoing flow waits, and for how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest wait for a target that exists and does not receive yet; [`Nanos::MAX`]: for ever.
    pub ready: Nanos,
    /// Longest wait for a receive; [`Nanos::MAX`]: for ever.
    pub receive: Nanos,
    /// Reads and atomics outstanding at a time.
    pub reads: u32,
}

impl Limits {
    /// None but the link's own.
    pub const NONE: Self = Self {
        ready: Nanos::MAX,
        receive: Nanos::MAX,
        reads: u32::MAX,
    };
}

/// What becomes of requests for a target that an incoming flow leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// They are executed, from now on: the host is not asked again. The peer may have so many reads and atomics
    /// outstanding on the flow.
    Reads(u32),
    /// They wait until [`crate::Link::receive_posted`] is called for the endpoint.
    Later,
    /// This one has no effect, and the peer need not know.
    Drop,
}

/// A receive has finished (message or WRITE with immediate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveDone {
    /// [`Receive::cookie`].
    pub cookie: u64,
    /// [`Status::Ok`], `Refused(Length)` if the message did not fit, or a flush.
    pub status: Status,
    /// Bytes of the message (for a WRITE with immediate: bytes written).
    pub len: u32,
    /// Immediate data, if the sender gave some.
    pub imm: Option<u64>,
    /// True for a WRITE with immediate.
    pub write: bool,
}

/// Posted work has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkDone {
    /// [`Work::cookie`].
    pub cookie: u64,
    /// How it ended.
    pub status: Status,
    /// The operation's length in bytes.
    pub len: u32,
    /// Atomics: the value before the operation. Else 0.
    pub value: u64,
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message into the target's next receive.
    Send {
        /// Immediate data.
        imm: Option<u64>,
        /// Bytes that go in front of the local buffer; the first `prefix_len` count.
        prefix: [u8; 24],
        /// 0 to 24.
        prefix_len: u8,
    },
    /// Local buffer to remote memory.
    Write {
        /// Remote address, as its owner registered it.
        remote_addr: u64,
        /// Remote key.
        remote_key: u64,
        /// Immediate data: takes a receive at the target and completes it.
        imm: Option<u64>,
    },
    /// Remote memory to local buffer.
    Read {
        /// Remote address.
        remote_addr: u64,
        /// Remote key.
        remote_key: u64,
    },
    /// Adds to 8 aligned bytes of remote memory; the old value goes to the local buffer (8 bytes).
    FetchAdd {
        /// Remote address.
        remote_addr: u64,
        /// Remote key.
        remote_key: u64,
        /// The addend (wrapping).
        add: u64,
    },
    /// Replaces 8 aligned bytes of remote memory if they equal `compare`.
    CompareSwap {
        /// Remote address.
        remote_addr: u64,
        /// Remote key.
        remote_key: u64,
        /// Value expected.
        compare: u64,
        /// Value put there if so.
        swap: u64,
    },
}

/// A work request, validated by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The host's name for it.
    pub cookie: u64,
    /// What it does.
    pub op: Operation,
    /// The local buffer; the engine owns this reference from a successful `post` until it calls
    /// [`Host::release`]. `None` when `len` is 0 (or an atomic whose old value is not wanted).
    pub local: Option<MemAt>,
    /// Bytes of the local buffer (without the prefix).
    pub len: u32,
}

/// Work for the home on an incoming frame, in the order in which it must take effect. The home runs plans of
/// one link strictly first in, first out, without the link lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Copy `len` bytes at `at` of the received frame to memory.
    Copy {
        /// The frame.
        from: RxToken,
        /// Byte offset in the frame.
        at: u16,
        /// Bytes.
        len: u16,
        /// Destination.
        to: MemAt,
    },
    /// Atomically add to the 8 bytes at `at`; report the old value in `plan_done`.
    FetchAdd {
        /// Target, 8-byte aligned.
        at: MemAt,
        /// Addend.
        add: u64,
    },
    /// Atomically compare and swap the 8 bytes at `at`; report the old value in `plan_done`.
    CompareSwap {
        /// Target, 8-byte aligned.
        at: MemAt,
        /// Expected.
        compare: u64,
        /// New.
        swap: u64,
    },
    /// Store a value (the result of an atomic) to local memory.
    Store {
        /// Destination of 8 bytes (no alignment promised).
        to: MemAt,
        /// The value.
        value: u64,
    },
    /// Nothing to copy: a completion or an acknowledgement waits for its turn.
    Nothing,
}

/// What spans links: implemented by `usb4-device` (and by the simulator). All methods take `&self`; each may
/// take one leaf lock and never calls back into the engine.
pub trait Host {
    /// A peer opens a flow to endpoint `dst_ep`/`dst_inc`; refuse with `Gone` or `Resource`.
    fn open_flow(&self, src: &EpAddr, dst_ep: u32, dst_inc: u32) -> Result<Target, NakCode>;
    /// Whether a flow's requests are executed; asked when it is opened, and then with each request until they are.
    /// Refuse with anything final.
    fn admit(&self, target: Target) -> Result<Admission, NakCode> {
        let _ = target;
        Ok(Admission::Reads(u32::MAX))
    }
    /// A request for a target is refused for good: it has no right to what it asks for, or asks for what there is not.
    fn refused(&self, target: Target, code: NakCode) {
        let _ = (target, code);
    }
    /// An incoming flow is over (closed, or its link died).
    fn close_flow(&self, target: Target);
    /// Checks a peer's access of `len` bytes at `addr` under `key`; on success the engine holds a reference.
    fn remote_access(
        &self,
        target: Target,
        key: u64,
        addr: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<MemAt, NakCode>;
    /// Takes the endpoint's next receive, for a message of `len` bytes (0 for a WRITE with immediate, which places
    /// nothing there); `Err(Rnr)` when there is none (the host remembers to call `Link::receive_posted` for this
    /// endpoint), `Err(Gone)` when the endpoint is closed, anything else to refuse the message and keep the receive.
    fn take_receive(&self, target: Target, len: u32) -> Result<Receive, NakCode>;
    /// The last chunk of a message with that immediate data is about to take effect: it may say something that is to be done
    /// before. Refuse with `Access`: its receive, which has been taken, ends with that.
    fn arriving(&self, target: Target, imm: u64) -> Result<(), NakCode> {
        let _ = (target, imm);
        Ok(())
    }
    /// Gives back a reference obtained from `remote_access`, `take_receive` or with posted work.
    fn release(&self, mem: MemRef);
    /// Whether memory of which the engine holds a reference may still be read. If so it stays until what is composed in
    /// this turn has been gathered.
    fn lives(&self, mem: MemRef) -> bool;
    /// A receive completes: makes the completion visible.
    fn complete_receive(&self, target: Target, done: ReceiveDone);
    /// Posted work completes: makes the completion visible.
    fn complete_work(&self, done: WorkDone);
    /// CRC32C (Castagnoli) of `bytes` continued from `crc` (0 to begin).
    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32;
}
