//! Formats of the USB4 RDMA transport: frames, chunks and control messages.
//!
//! Every byte a peer sends is read here first, so this crate is the border of trust: it is safe Rust, it does
//! not allocate, it cannot panic, and what it accepts it re-emits byte for byte. It holds no protocol state:
//! what to do with a chunk is decided by `usb4-engine`. The rules are numbered in `docs/spec/wire.md`.
//!
//! Where to start: [`FrameView::parse`] for what arrives on a rail, [`Chunk::emit`] and [`FrameHeader::emit`]
//! for what leaves, [`Control`] for the messages that bring a rail up and down.
//!
//! All integers are little endian. Lengths are in bytes.
#![no_std]
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used
)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::panic)
)]

#[cfg(test)]
extern crate std;

mod bytes;
mod chunk;
mod chunk_decode;
mod chunk_emit;
mod control;
mod error;
mod frame;
mod ids;

pub use chunk::{Chunk, Request, Response, SendFirst, Seq, csn_before, kind};
pub use control::{Control, ControlBody, ControlKind, Reason};
pub use error::{ChunkError, ControlError, FrameError};
pub use frame::{AckBlock, ChunkRef, Chunks, FrameHeader, FrameView, SendRef};
pub use ids::{EP_ADDR_LEN, EpAddr, NakCode, NodeId, ParseNodeIdError};

/// Version of the frame format, in the first byte of every frame.
pub const FRAME_VERSION: u8 = if cfg!(usb4_next_version) { 2 } else { 1 };

/// Largest frame: what one NHI descriptor carries.
pub const FRAME_MAX: usize = 4096;

/// Length of the frame header, in front of the chunk headers.
pub const FRAME_HEADER_LEN: usize = 40;

/// Length of the common part of a chunk header; a frame holds at most 253 chunks.
pub const CHUNK_HEADER_MIN: usize = 16;

/// Longest chunk header (an atomic request).
pub const CHUNK_HEADER_MAX: usize = 48;

/// Length of the payload CRC at a frame's end, where the frame has one.
pub const PAYLOAD_CRC_LEN: usize = 4;

/// Longest message and longest read.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// Flow ids have 24 bits; this one is the first that does not exist.
pub const FLOW_ID_LIMIT: u32 = 1 << 24;

/// Packets an acknowledgement bitmap covers below the largest.
pub const ACK_BITMAP_LEN: u64 = 64;

/// Slots of a receive ring that only pure acknowledgements and probes may use.
pub const RING_RESERVE: u32 = 32;

/// Version of the control message format; frozen, so that peers of any version can refuse each other.
pub const CONTROL_VERSION: u8 = 1;

/// Length of a control message.
pub const CONTROL_LEN: usize = 96;

/// First bytes of a control message.
pub const CONTROL_MAGIC: [u8; 4] = *b"U4RD";

/// Longest acknowledgement delay a peer may announce, in microseconds.
pub const MAX_ACK_DELAY_LIMIT_US: u32 = 1_000_000;

/// Feature bit: frames carry a CRC over their payload. In force when both sides set it.
pub const FEATURE_PAYLOAD_CRC: u32 = 1;
