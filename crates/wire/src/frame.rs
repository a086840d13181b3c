//! Frames: a 40-byte header, chunk headers, then the chunks' payloads and perhaps their CRC.

use core::ops::Range;

use crate::bytes::{hi, join, lo, put, words};
use crate::chunk_decode::{Common, Decoded, payload_of, payload_of_plain};
use crate::{
    Chunk, ChunkError, FRAME_HEADER_LEN, FRAME_MAX, FRAME_VERSION, FrameError, PAYLOAD_CRC_LEN, Seq, kind,
};

/// Frame flag: the acknowledgement block is valid.
const ACK: u8 = 0x01;
/// Frame flag: carries chunks and wants an acknowledgement.
const ELICIT: u8 = 0x02;
/// Frame flag: wants it without delay.
const ACK_NOW: u8 = 0x04;
/// Frame flag: ends with a CRC of the payload.
const PAYLOAD_CRC: u8 = 0x08;

/// Offset of the first chunk header in a frame.
const CHUNKS_AT: u16 = 40;
/// Length of the payload CRC.
const TRAILER_LEN: u16 = 4;
const _: () = assert!(CHUNKS_AT as usize == FRAME_HEADER_LEN && TRAILER_LEN as usize == PAYLOAD_CRC_LEN);

/// What has been received on a rail, as its receiver tells the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AckBlock {
    /// Largest packet number received; at least 1.
    pub largest: u64,
    /// Bit `i`: packet `largest - 1 - i` has been received.
    pub bitmap: u64,
}

impl AckBlock {
    /// Whether every packet it names can exist: numbers begin at 1.
    #[inline(always)]
    const fn is_possible(self) -> bool {
        match self.largest {
            0 => false,
            // Bits from `largest - 1` on would stand for packet 0 and below.
            largest @ 1..=64 => self.bitmap.wrapping_shr((largest.wrapping_sub(1) & 63) as u32) == 0,
            _ => true,
        }
    }
}

/// The 40 bytes a frame begins with, apart from the head CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameHeader {
    /// Bytes of this header and all chunk headers: at least 40, a multiple of 8. A frame with more than 40 has
    /// chunks and asks to be acknowledged; one with 40 is a pure acknowledgement.
    pub head_len: u16,
    /// The tag the *receiver* drew for this session.
    pub tag: u64,
    /// Packet number on this rail, from 1, never used twice in a session.
    pub packet: u64,
    /// What the sender of this frame has received on this rail.
    pub ack: Option<AckBlock>,
    /// The acknowledgement is wanted without delay. Only a frame with chunks can ask for that; without them it
    /// is not emitted.
    pub ack_now: bool,
    /// The frame ends with 4 bytes of CRC over the payload.
    pub payload_crc: bool,
}

impl FrameHeader {
    /// Whether the frame carries chunks and so wants an acknowledgement.
    #[inline]
    pub const fn elicits_ack(&self) -> bool {
        self.head_len as usize > FRAME_HEADER_LEN
    }

    /// Writes the header with a head CRC of zero; [`FrameHeader::seal`] puts the CRC in.
    #[inline]
    pub fn emit(&self, out: &mut [u8; FRAME_HEADER_LEN]) {
        self.emit_with_crc(0, out);
    }

    /// Writes the header with its head CRC, which covers the chunk headers through `chunks_crc`: their CRC, kept
    /// from staging, so that a retransmission under a new packet number reads 40 bytes only.
    #[inline(always)]
    pub fn seal(
        &self,
        chunks_crc: u32,
        crc32c: impl Fn(u32, &[u8]) -> u32,
        out: &mut [u8; FRAME_HEADER_LEN],
    ) {
        self.emit_with_crc(0, out);
        let crc = crc32c(chunks_crc, out);
        self.emit_with_crc(crc, out);
    }

    #[inline(always)]
    fn emit_with_crc(&self, crc: u32, out: &mut [u8; FRAME_HEADER_LEN]) {
        let mut flags = 0;
        if self.ack.is_some() {
            flags |= ACK;
        }
        if self.elicits_ack() {
            flags |= if self.ack_now { ELICIT | ACK_NOW } else { ELICIT };
        }
        if self.payload_crc {
            flags |= PAYLOAD_CRC;
        }
        let AckBlock { largest, bitmap } = self.ack.unwrap_or_default();
        let [len_lo, len_hi] = self.head_len.to_le_bytes();
        let first = u32::from_le_bytes([FRAME_VERSION, flags, len_lo, len_hi]);
        // Cannot fail: the array has room for exactly these words.
        let _ = put(out, [join(first, crc), self.tag, self.packet, largest, bitmap]);
    }

    /// The length of the head that starts with these bytes: how much of a frame a receiver must fetch before it
    /// can parse. Not validated beyond its own limits.
    #[inline]
    pub fn peek_head_len(bytes: &[u8; FRAME_HEADER_LEN]) -> Option<u16> {
        let [_, _, len_lo, len_hi, ..] = *bytes;
        let len = u16::from_le_bytes([len_lo, len_hi]);
        let valid = FRAME_HEADER_LEN..=FRAME_MAX;
        (valid.contains(&usize::from(len)) && len % 8 == 0).then_some(len)
    }
}

/// A frame whose head has been validated. The payload is not looked at; the head CRC is checked separately, by
/// [`FrameView::crc_ok`].
#[derive(Clone, Copy, Debug)]
pub struct FrameView<'a> {
    header: FrameHeader,
    head_crc: u32,
    frame_len: u16,
    payload_end: u16,
    raw_header: &'a [u8; FRAME_HEADER_LEN],
    chunks: &'a [u8],
}

/// A chunk of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRef {
    /// The chunk header.
    pub chunk: Chunk,
    /// Offset of its payload in the frame; the payload has [`Chunk::payload_len`] bytes.
    pub at: u16,
    /// Offset of its header in the frame.
    pub header_at: u16,
}

/// A SEND chunk without immediate data; see [`Chunks::next_send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRef {
    /// Where it belongs.
    pub seq: Seq,
    /// Where in the message its payload belongs.
    pub offset: u32,
    /// Payload in this chunk.
    pub len: u16,
    /// Length of the whole message; given by the first chunk.
    pub total: Option<u32>,
    /// The message ends with this chunk.
    pub last: bool,
    /// Offset of its payload in the frame.
    pub at: u16,
}

impl<'a> FrameView<'a> {
    /// Reads the head of a frame of `frame_len` bytes. `head` is the whole frame, or at least its first
    /// `head_len` bytes. Everything the format demands of the head holds afterwards: known types and flags,
    /// zero reserved bits, chunk headers that fill the head exactly, payload lengths that add up.
    ///
    /// # Errors
    /// What is wrong with it; the frame is to be dropped before it is acknowledged.
    #[inline]
    pub fn parse(head: &'a [u8], frame_len: usize) -> Result<Self, FrameError> {
        let (raw_header, rest) = head
            .split_first_chunk::<FRAME_HEADER_LEN>()
            .ok_or(FrameError::TooShort)?;
        let [first, tag, packet, largest, bitmap] = words::<5>(raw_header).ok_or(FrameError::TooShort)?;
        let [version, flags, len_lo, len_hi, ..] = first.to_le_bytes();
        let head_len = u16::from_le_bytes([len_lo, len_hi]);

        let frame_len = match u16::try_from(frame_len) {
            Ok(len) if usize::from(len) <= FRAME_MAX => len,
            _ => return Err(FrameError::TooLong),
        };
        if version != FRAME_VERSION {
            return Err(FrameError::Version(version));
        }
        if flags & !(ACK | ELICIT | ACK_NOW | PAYLOAD_CRC) != 0 {
            return Err(FrameError::Flags(flags));
        }
        let chunks_len = usize::from(head_len).wrapping_sub(FRAME_HEADER_LEN);
        let chunks = match rest.get(..chunks_len) {
            Some(chunks) if head_len <= frame_len && head_len % 8 == 0 => chunks,
            _ => return Err(FrameError::HeadLength(head_len)),
        };
        let ack_now = flags & ACK_NOW != 0;
        let fits = if chunks.is_empty() {
            flags & (ELICIT | ACK_NOW) == 0
        } else {
            flags & ELICIT != 0
        };
        if !fits {
            return Err(FrameError::Flags(flags));
        }
        if packet == 0 {
            return Err(FrameError::PacketNumber);
        }
        let block = AckBlock { largest, bitmap };
        let ack = if flags & ACK != 0 {
            if !block.is_possible() {
                return Err(FrameError::AckBlock);
            }
            Some(block)
        } else {
            if largest | bitmap != 0 {
                return Err(FrameError::AckBlock);
            }
            None
        };
        let payload_crc = flags & PAYLOAD_CRC != 0;
        let header = FrameHeader {
            head_len,
            tag,
            packet,
            ack,
            ack_now,
            payload_crc,
        };
        let trailer = if payload_crc { TRAILER_LEN } else { 0 };
        let payload_end = match frame_len.checked_sub(trailer) {
            Some(end) if u32::from(head_len).wrapping_add(validate_chunks(chunks)?) == u32::from(end) => end,
            _ => return Err(FrameError::PayloadLength),
        };
        Ok(Self {
            header,
            head_crc: hi(first),
            frame_len,
            payload_end,
            raw_header,
            chunks,
        })
    }

    /// The frame header.
    #[inline]
    pub const fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// The head CRC the frame carries.
    #[inline]
    pub const fn head_crc(&self) -> u32 {
        self.head_crc
    }

    /// Whether the head CRC is right. `crc32c` continues a CRC32C from its first argument, 0 to begin.
    #[inline]
    pub fn crc_ok(&self, crc32c: impl Fn(u32, &[u8]) -> u32) -> bool {
        let mut header = *self.raw_header;
        let [_, _, _, _, a, b, c, d, ..] = &mut header;
        (*a, *b, *c, *d) = (0, 0, 0, 0);
        crc32c(crc32c(0, self.chunks), &header) == self.head_crc
    }

    /// The chunks, in the order in which they take effect.
    #[inline]
    pub const fn chunks(&self) -> Chunks<'a> {
        Chunks {
            rest: self.chunks,
            header_at: CHUNKS_AT,
            at: self.header.head_len,
        }
    }

    /// Where the payload lies in the frame, without its CRC.
    #[inline]
    pub const fn payload(&self) -> Range<u16> {
        self.header.head_len..self.payload_end
    }

    /// Length of the frame.
    #[inline]
    pub const fn frame_len(&self) -> u16 {
        self.frame_len
    }
}

/// The chunks of a frame; see [`FrameView::chunks`].
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    rest: &'a [u8],
    header_at: u16,
    at: u16,
}

impl Chunks<'_> {
    /// Whether there are no more.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next chunk, if it is an EXEC_ACK: where it belongs and [`crate::Response::ExecAck`]'s number. For a receiver
    /// that asks for the kinds nearly all frames carry before it decodes any other.
    #[inline(always)]
    pub fn next_exec_ack(&mut self) -> Option<(Seq, u32)> {
        let common = Common::read(self.rest).ok()?;
        if common.kind() != kind::EXEC_ACK {
            return None;
        }
        self.advance(16, 0)?;
        Some((common.seq, common.arg))
    }

    /// The next chunk, if it is a SEND without immediate data.
    #[inline(always)]
    pub fn next_send(&mut self) -> Option<SendRef> {
        let common = Common::read(self.rest).ok()?;
        if !common.is_send() {
            return None;
        }
        let (total, header_len) = match common.is_first() {
            true => {
                let [_, _, ext] = words::<3>(self.rest)?;
                (Some(lo(ext)), 24)
            }
            false => (None, 16),
        };
        let send = SendRef {
            seq: common.seq,
            offset: common.arg,
            len: common.len(),
            total,
            last: common.is_last(),
            at: self.at,
        };
        self.advance(header_len, common.len())?;
        Some(send)
    }

    #[inline(always)]
    fn advance(&mut self, header_len: u16, payload_len: u16) -> Option<()> {
        self.rest = self.rest.get(usize::from(header_len)..)?;
        self.header_at = self.header_at.wrapping_add(header_len);
        self.at = self.at.wrapping_add(payload_len);
        Some(())
    }
}

impl Iterator for Chunks<'_> {
    type Item = ChunkRef;

    #[inline]
    fn next(&mut self) -> Option<ChunkRef> {
        // Parsing has decoded every chunk once, so this ends only where the head ends.
        let Decoded {
            chunk,
            header_len,
            payload_len,
        } = Decoded::read::<false>(self.rest).ok()?;
        let item = ChunkRef {
            chunk,
            at: self.at,
            header_at: self.header_at,
        };
        self.advance(header_len, payload_len)?;
        Some(item)
    }
}

impl core::iter::FusedIterator for Chunks<'_> {}

/// Checks all chunk headers and returns the sum of their payload lengths.
#[inline(always)]
fn validate_chunks(chunks: &[u8]) -> Result<u32, ChunkError> {
    match payload_of_plain(chunks) {
        Some(payload) => Ok(payload),
        None => payload_of(chunks),
    }
}
