//! Chunks: the units a frame carries, numbered per flow and executed in that order.

use crate::{CHUNK_HEADER_MIN, FRAME_HEADER_LEN, FRAME_MAX, MAX_MESSAGE, NakCode};

/// Numbers of the chunk types, the first byte of a chunk header.
pub mod kind {
    /// [`crate::Request::Send`].
    pub const SEND: u8 = 0x01;
    /// [`crate::Request::Write`].
    pub const WRITE: u8 = 0x02;
    /// [`crate::Request::Read`].
    pub const READ_REQ: u8 = 0x03;
    /// [`crate::Request::FetchAdd`].
    pub const FETCH_ADD: u8 = 0x04;
    /// [`crate::Request::CompareSwap`].
    pub const CMP_SWAP: u8 = 0x05;
    /// [`crate::Request::FlowOpen`].
    pub const FLOW_OPEN: u8 = 0x06;
    /// [`crate::Request::FlowClose`].
    pub const FLOW_CLOSE: u8 = 0x07;
    /// [`crate::Request::Cut`].
    pub const CUT: u8 = 0x08;
    /// [`crate::Response::ReadData`].
    pub const READ_DATA: u8 = 0x11;
    /// [`crate::Response::Atomic`].
    pub const ATOMIC_RSP: u8 = 0x12;
    /// [`crate::Response::ExecAck`].
    pub const EXEC_ACK: u8 = 0x13;
    /// [`crate::Response::Nak`].
    pub const NAK: u8 = 0x14;
    /// [`crate::Response::Ready`].
    pub const READY: u8 = 0x15;
    /// [`crate::Response::ReadCut`].
    pub const READ_CUT: u8 = 0x16;
    /// [`crate::Chunk::Ping`].
    pub const PING: u8 = 0x21;
    /// [`crate::Chunk::Join`].
    pub const JOIN: u8 = 0x22;
}

/// Chunk flag: the first chunk of a message.
pub(crate) const FIRST: u8 = 0x01;
/// Chunk flag: the last chunk of a message or read.
pub(crate) const LAST: u8 = 0x02;
/// Chunk flag: carries immediate data.
pub(crate) const IMM: u8 = 0x04;

/// Longest payload a chunk can have: a frame that carries nothing but one shortest chunk header.
const PAYLOAD_MAX: u16 = 4040;
const _: () = assert!(PAYLOAD_MAX as usize == FRAME_MAX - FRAME_HEADER_LEN - CHUNK_HEADER_MIN);

/// Whether `a` comes before `b` in a sequence space; right as long as they are less than 2^31 apart (serial
/// number arithmetic, RFC 1982).
#[inline]
pub const fn csn_before(a: u32, b: u32) -> bool {
    let ahead = b.wrapping_sub(a);
    ahead != 0 && ahead < 1 << 31
}

/// Where a sequenced chunk belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq {
    /// The flow, by the index the sender of its *requests* gave it; below [`crate::FLOW_ID_LIMIT`].
    pub flow: u32,
    /// Replay epoch: a request of an older epoch was sent before a READY and is stale.
    pub epoch: u8,
    /// Chunk sequence number within the flow's request or response space.
    pub csn: u32,
}

/// What the first chunk of a SEND tells beyond the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendFirst {
    /// Length of the whole message; at most [`MAX_MESSAGE`].
    pub total: u32,
    /// Immediate data.
    pub imm: Option<u64>,
}

/// A chunk of a flow's request space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Part of a message for the target's next receive.
    Send {
        /// Where in the message this payload belongs; 0 exactly in the first chunk.
        offset: u32,
        /// Payload in this chunk; 0 only if the whole message is empty.
        len: u16,
        /// Given by the first chunk.
        first: Option<SendFirst>,
        /// The message ends with this chunk.
        last: bool,
    },
    /// Part of an RDMA write.
    Write {
        /// Length of the whole write; at most [`MAX_MESSAGE`].
        total: u32,
        /// Payload in this chunk; 0 only if the whole write is empty.
        len: u16,
        /// Where this chunk's payload goes.
        remote_addr: u64,
        /// Remote key.
        remote_key: u64,
        /// The write begins with this chunk.
        first: bool,
        /// The write ends with this chunk.
        last: bool,
        /// Immediate data; only in the last chunk.
        imm: Option<u64>,
    },
    /// An RDMA read.
    Read {
        /// Names the read in its [`Response::ReadData`].
        req_id: u32,
        /// Bytes wanted; at most [`MAX_MESSAGE`].
        len: u32,
        /// Where they are.
        remote_addr: u64,
        /// Remote key.
        remote_key: u64,
    },
    /// Adds to 8 aligned bytes.
    FetchAdd {
        /// Names the request in its [`Response::Atomic`].
        req_id: u32,
        /// Where.
        remote_addr: u64,
        /// Remote key.
        remote_key: u64,
        /// The addend; wraps.
        add: u64,
    },
    /// Replaces 8 aligned bytes if they have an expected value.
    CompareSwap {
        /// Names the request in its [`Response::Atomic`].
        req_id: u32,
        /// Where.
        remote_addr: u64,
        /// Remote key.
        remote_key: u64,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Opens the flow; always its chunk 0.
    FlowOpen {
        /// Number of the sending endpoint.
        src_ep: u32,
        /// Its incarnation.
        src_incarnation: u32,
        /// Number of the receiving endpoint.
        dst_ep: u32,
        /// Its incarnation.
        dst_incarnation: u32,
    },
    /// The last chunk of the flow.
    FlowClose,
    /// Ends the message that has begun, if one has: its sender has taken back the memory it came from.
    Cut,
}

/// A chunk of a flow's response space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Response {
    /// Part of what a read asked for.
    ReadData {
        /// [`Request::Read`]'s.
        req_id: u32,
        /// Where in the read this payload belongs.
        offset: u32,
        /// Payload in this chunk; 0 only if the whole read is empty.
        len: u16,
        /// The read ends with this chunk.
        last: bool,
    },
    /// Result of an atomic.
    Atomic {
        /// [`Request::FetchAdd`]'s or [`Request::CompareSwap`]'s.
        req_id: u32,
        /// The 8 bytes before the operation.
        value: u64,
    },
    /// Every request chunk before `csn` has been executed.
    ExecAck {
        /// The first request chunk that is not covered.
        csn: u32,
    },
    /// The request chunk `csn` is refused.
    Nak {
        /// The first chunk of the refused request, or the chunk at which it failed.
        csn: u32,
        /// Why.
        code: NakCode,
    },
    /// Ends a read: the memory it came from has been taken back.
    ReadCut {
        /// [`Request::Read`]'s.
        req_id: u32,
    },
    /// After [`NakCode::Rnr`] or [`NakCode::NotReady`]: resume at request chunk `csn`, in the epoch this chunk carries.
    Ready {
        /// Where to resume.
        csn: u32,
    },
}

/// A chunk header, with the length of its payload but not the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chunk {
    /// From a flow's opener to its target.
    Request(Seq, Request),
    /// From a flow's target to its opener.
    Response(Seq, Response),
    /// Wants an acknowledgement, nothing else. Not sequenced.
    Ping,
    /// Gives the peer the nonce with which another rail may join this link. Not sequenced.
    Join {
        /// What the peer has to show in the control messages of that rail.
        nonce: u64,
    },
}

impl Chunk {
    /// Bytes of payload that belong to this chunk in its frame.
    #[inline]
    pub const fn payload_len(&self) -> u16 {
        match *self {
            Self::Request(_, Request::Send { len, .. } | Request::Write { len, .. })
            | Self::Response(_, Response::ReadData { len, .. }) => len,
            _ => 0,
        }
    }

    /// Bytes of its header: 16 to 48, a multiple of 8.
    #[inline]
    pub const fn header_len(&self) -> usize {
        match self {
            Self::Request(_, request) => match request {
                Request::Send { first: None, .. } | Request::FlowClose | Request::Cut => 16,
                Request::Send {
                    first: Some(SendFirst { imm: None, .. }),
                    ..
                } => 24,
                Request::Send { .. } | Request::Write { imm: None, .. } | Request::FlowOpen { .. } => 32,
                Request::Write { .. } | Request::Read { .. } => 40,
                Request::FetchAdd { .. } | Request::CompareSwap { .. } => 48,
            },
            Self::Response(_, response) => match response {
                Response::ExecAck { .. } | Response::Ready { .. } | Response::ReadCut { .. } => 16,
                Response::ReadData { .. } | Response::Atomic { .. } | Response::Nak { .. } => 24,
            },
            Self::Ping => 16,
            Self::Join { .. } => 24,
        }
    }
}

/// Whether a SEND chunk's fields agree.
#[inline(always)]
pub(crate) const fn send_fits(offset: u32, len: u16, first: Option<SendFirst>, last: bool) -> bool {
    match first {
        Some(SendFirst { total, .. }) => offset == 0 && whole_or_part(len, total, true, last),
        None => offset != 0 && len != 0 && len <= PAYLOAD_MAX && ends_within(offset, len),
    }
}

/// Whether a READ_DATA chunk's fields agree.
#[inline(always)]
pub(crate) const fn read_data_fits(offset: u32, len: u16, last: bool) -> bool {
    let empty_read = offset == 0 && last;
    len <= PAYLOAD_MAX && (len != 0 || empty_read) && ends_within(offset, len)
}

/// Whether a chunk of `len` bytes can be the whole (first and last) or a part of a message of `total` bytes.
#[inline(always)]
pub(crate) const fn whole_or_part(len: u16, total: u32, first: bool, last: bool) -> bool {
    let bytes = len as u32;
    let length_fits = if first && last {
        bytes == total
    } else {
        bytes != 0 && bytes < total
    };
    len <= PAYLOAD_MAX && total <= MAX_MESSAGE && length_fits
}

#[inline(always)]
const fn ends_within(offset: u32, len: u16) -> bool {
    offset <= MAX_MESSAGE && offset.saturating_add(len as u32) <= MAX_MESSAGE
}
