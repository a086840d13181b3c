//! Why bytes were not accepted. Each variant says in one sentence what is wrong.

use core::fmt;

/// A frame that is dropped, unacknowledged, as if it had been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameError {
    /// Fewer bytes than a frame header.
    TooShort,
    /// More bytes than [`crate::FRAME_MAX`].
    TooLong,
    /// Another frame version.
    Version(u8),
    /// A flag that does not exist, or one that contradicts the frame's content.
    Flags(u8),
    /// A head length that is too small, not a multiple of 8, or beyond the frame or the bytes at hand.
    HeadLength(u16),
    /// Packet number 0.
    PacketNumber,
    /// An acknowledgement of packets that cannot exist, or acknowledgement fields without the flag.
    AckBlock,
    /// Payload lengths that do not add up to the frame's length.
    PayloadLength,
    /// A chunk header that is not valid.
    Chunk(ChunkError),
}

/// A chunk header that is not valid; its whole frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkError {
    /// The head ends inside the chunk header.
    Truncated,
    /// A type that does not exist.
    Type(u8),
    /// A flag this type does not have, or a combination it does not allow.
    Flags,
    /// Reserved bits that are not zero.
    Reserved,
    /// A payload, message or read length outside its limits.
    Length,
    /// A sequence number or flow this type cannot have.
    Sequence,
    /// A NAK with a code that does not exist.
    NakCode(u32),
}

/// A control message that is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlError {
    /// Not [`crate::CONTROL_LEN`] bytes.
    Length,
    /// Not one of ours.
    Magic,
    /// Another version of the control message format.
    Version(u8),
    /// The CRC does not match.
    Crc,
    /// A kind that does not exist.
    Kind(u8),
    /// Reserved bits that are not zero.
    Reserved,
    /// A range of frame versions that is empty or starts at 0.
    VersionRange,
    /// A tag or nonce of 0 where one is needed.
    ZeroTag,
    /// A receive ring no larger than [`crate::RING_RESERVE`], or an acknowledgement delay beyond
    /// [`crate::MAX_ACK_DELAY_LIMIT_US`].
    Limits,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("the frame is shorter than its header"),
            Self::TooLong => f.write_str("the frame is longer than 4096 bytes"),
            Self::Version(version) => write!(f, "frame version {version} is not known"),
            Self::Flags(flags) => write!(f, "frame flags {flags:#04x} are not valid for this frame"),
            Self::HeadLength(len) => write!(f, "head length {len} does not fit the frame"),
            Self::PacketNumber => f.write_str("packet number 0 does not exist"),
            Self::AckBlock => f.write_str("the acknowledgement names packets that cannot exist"),
            Self::PayloadLength => f.write_str("the payload lengths do not add up to the frame's length"),
            Self::Chunk(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the head ends inside a chunk header"),
            Self::Type(kind) => write!(f, "chunk type {kind:#04x} is not known"),
            Self::Flags => f.write_str("a chunk has flags its type does not allow"),
            Self::Reserved => f.write_str("reserved bits of a chunk header are not zero"),
            Self::Length => f.write_str("a length in a chunk header is outside its limits"),
            Self::Sequence => f.write_str("a chunk has a sequence number or flow its type cannot have"),
            Self::NakCode(code) => write!(f, "NAK code {code} is not known"),
        }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("a control message has 96 bytes"),
            Self::Magic => f.write_str("the control message does not start with U4RD"),
            Self::Version(version) => write!(f, "control message version {version} is not known"),
            Self::Crc => f.write_str("the control message is damaged: its CRC does not match"),
            Self::Kind(kind) => write!(f, "control message kind {kind} is not known"),
            Self::Reserved => f.write_str("reserved bits of the control message are not zero"),
            Self::VersionRange => f.write_str("the control message offers an empty range of versions"),
            Self::ZeroTag => f.write_str("the control message lacks a tag or nonce"),
            Self::Limits => f.write_str("the control message announces a ring or delay outside the limits"),
        }
    }
}

impl core::error::Error for FrameError {}
impl core::error::Error for ChunkError {}
impl core::error::Error for ControlError {}

impl From<ChunkError> for FrameError {
    fn from(error: ChunkError) -> Self {
        Self::Chunk(error)
    }
}
