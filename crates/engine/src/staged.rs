//! Values with which frames leave the link.

use crate::types::{MemAt, RailId, TxSlot};

/// Most chunks this side puts into a frame.
pub const MAX_CHUNKS: usize = 16;

/// Most payload pieces of a frame: a prefix and a memory range per chunk.
pub const MAX_SEGS: usize = 32;

/// Most bytes of chunk headers in a frame this side sends.
pub const HEAD_MAX: usize = MAX_CHUNKS * usb4_wire::CHUNK_HEADER_MAX;

/// Where the bytes of a [`Seg`] come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The first `len` of these bytes (a message prefix).
    Bytes([u8; 24]),
    /// Local memory.
    Mem(MemAt),
}

/// A piece of payload to be gathered into a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seg {
    /// Where from.
    pub source: Source,
    /// Where to: byte offset in the frame.
    pub at: u16,
    /// Bytes.
    pub len: u16,
}

impl Seg {
    const EMPTY: Self = Self {
        source: Source::Bytes([0; 24]),
        at: 0,
        len: 0,
    };
}

/// A frame to be written into a TX slot, without the link lock. About 2 KiB: the home keeps one and lends it.
///
/// The home writes `head[..head_len]` at frame offset 40 and every segment at its offset; if
/// [`crate::Link::payload_crc`], also the CRC32C of the payload (frame offsets `40 + head_len .. len - 4`) into
/// the last 4 bytes, little endian. Then it calls [`crate::Link::staged`].
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    /// The slot the frame goes to.
    pub slot: TxSlot,
    /// Chunk headers.
    pub head: [u8; HEAD_MAX],
    /// Bytes of `head` in use.
    pub head_len: u16,
    /// Payload pieces, in frame order.
    pub segs: [Seg; MAX_SEGS],
    /// Pieces in use.
    pub seg_count: u16,
    /// Length of the whole frame.
    pub len: u16,
}

impl Staged {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            slot: TxSlot(0),
            head: [0; HEAD_MAX],
            head_len: 0,
            segs: [Seg::EMPTY; MAX_SEGS],
            seg_count: 0,
            len: 0,
        }
    }

    /// The chunk headers.
    pub fn head(&self) -> &[u8] {
        self.head.get(..usize::from(self.head_len)).unwrap_or_default()
    }

    /// The payload pieces.
    pub fn segs(&self) -> &[Seg] {
        self.segs.get(..usize::from(self.seg_count)).unwrap_or_default()
    }
}

impl Default for Staged {
    fn default() -> Self {
        Self::new()
    }
}

/// A frame to be posted: the home writes the 40 header bytes at the slot's start and queues the slot on the rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// The rail whose TX ring takes it.
    pub rail: RailId,
    /// The slot.
    pub slot: TxSlot,
    /// Length of the frame.
    pub len: u16,
}

/// What has become of a received frame's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Fate {
    /// It is free again.
    Done,
    /// The link keeps it; it comes back through [`crate::Link::next_released`].
    Held,
}
