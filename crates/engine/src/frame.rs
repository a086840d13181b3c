//! Composing a frame: chunk headers and payload pieces, into the home's [`Staged`].

use usb4_wire::{CHUNK_HEADER_MIN, Chunk, FRAME_HEADER_LEN, PAYLOAD_CRC_LEN, Request, Seq};

use crate::list::NONE;
use crate::{MAX_CHUNKS, Seg, Source, Staged};

/// Length of the frame header.
pub(crate) const HEADER: u16 = 40;

/// Length of the payload CRC.
const TRAILER: u16 = 4;

/// Length of the shortest chunk header.
pub(crate) const CHUNK_HEADER: u16 = 16;

const _: () = assert!(
    HEADER as usize == FRAME_HEADER_LEN
        && TRAILER as usize == PAYLOAD_CRC_LEN
        && CHUNK_HEADER as usize == CHUNK_HEADER_MIN
);

/// Length of what follows the payload.
#[inline]
pub(crate) const fn trailer(payload_crc: bool) -> u16 {
    if payload_crc { TRAILER } else { 0 }
}

/// What has become of the attempt to add a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// One has been added.
    Added,
    /// It does not fit into what is left of the frame.
    Full,
    /// There is none to add.
    Nothing,
}

/// A frame being composed.
#[derive(Debug)]
pub(crate) struct Composer<'a> {
    out: &'a mut Staged,
    /// Bytes left for chunk headers and payload.
    room: u16,
    /// Bytes of payload so far.
    payload: u16,
    chunks: u16,
    /// Number of this staging: what its gather reads must stay until it is over.
    pub(crate) gather: u64,
    /// It has chunks other than requests.
    pub(crate) responses: bool,
    /// It has requests.
    pub(crate) requests: bool,
    /// It has a refusal, which must not depend on the fate of requests.
    pub(crate) nak: bool,
    /// The flow of all its requests, with its epoch; [`NONE`] if there are several.
    pub(crate) flow: u32,
    pub(crate) epoch: u8,
    /// It ends an operation that took several frames.
    pub(crate) ends_bulk: bool,
}

impl<'a> Composer<'a> {
    #[inline(always)]
    pub(crate) fn new(out: &'a mut Staged, frame_size: u16, payload_crc: bool, gather: u64) -> Self {
        out.head_len = 0;
        out.seg_count = 0;
        Self {
            out,
            room: frame_size
                .saturating_sub(HEADER)
                .saturating_sub(trailer(payload_crc)),
            payload: 0,
            chunks: 0,
            gather,
            responses: false,
            requests: false,
            nak: false,
            flow: NONE,
            epoch: 0,
            ends_bulk: false,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// Whether no chunk fits any more, not even the shortest.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.room < CHUNK_HEADER || usize::from(self.chunks) >= MAX_CHUNKS
    }

    /// Chunks so far.
    #[inline]
    pub(crate) fn chunks(&self) -> u32 {
        u32::from(self.chunks)
    }

    /// Payload that fits behind one more chunk header of `header` bytes; `None` if not even that fits.
    #[inline]
    pub(crate) fn room_for(&self, header: u16) -> Option<u16> {
        if usize::from(self.chunks) < MAX_CHUNKS {
            self.room.checked_sub(header)
        } else {
            None
        }
    }

    /// How much of `rest` bytes goes behind a chunk header of `header` bytes: all that fits, but no sliver.
    #[inline]
    pub(crate) fn share(&self, header: u16, rest: u32) -> Option<u16> {
        /// A smaller piece of a message is not worth a chunk of its own.
        const SLIVER: u16 = 512;
        let fits = self.room_for(header)?;
        match u16::try_from(rest) {
            Ok(rest) if rest <= fits => Some(rest),
            _ if fits >= SLIVER => Some(fits),
            _ => None,
        }
    }

    /// Adds a request. Always inlined: where the kind is known, only its own bytes are written.
    #[inline(always)]
    pub(crate) fn request(&mut self, seq: Seq, request: Request) -> Step {
        if !self.requests {
            self.flow = seq.flow;
            self.epoch = seq.epoch;
        } else if self.flow != seq.flow || self.epoch != seq.epoch {
            self.flow = NONE;
        }
        self.requests = true;
        self.push(&Chunk::Request(seq, request))
    }

    /// Adds a response.
    #[inline(always)]
    pub(crate) fn response(&mut self, chunk: &Chunk) -> Step {
        self.responses = true;
        self.push(chunk)
    }

    #[inline(always)]
    fn push(&mut self, chunk: &Chunk) -> Step {
        let at = usize::from(self.out.head_len);
        let header = self.out.head.get_mut(at..).and_then(|head| chunk.emit(head));
        let Some(header) = header.and_then(|len| u16::try_from(len).ok()) else {
            return Step::Full;
        };
        self.out.head_len = self.out.head_len.wrapping_add(header);
        self.payload = self.payload.wrapping_add(chunk.payload_len());
        self.room = self
            .room
            .saturating_sub(header)
            .saturating_sub(chunk.payload_len());
        self.chunks = self.chunks.wrapping_add(1);
        Step::Added
    }

    /// Adds a piece of the payload of the chunk that is added next. Its place is relative to the payload's
    /// start until the frame is complete.
    #[inline(always)]
    pub(crate) fn piece(&mut self, before: u16, source: Source, len: u16) {
        if len == 0 {
            return;
        }
        if let Some(seg) = self.out.segs.get_mut(usize::from(self.out.seg_count)) {
            *seg = Seg {
                source,
                at: self.payload.wrapping_add(before),
                len,
            };
            self.out.seg_count = self.out.seg_count.wrapping_add(1);
        }
    }

    /// Completes the frame; returns the length of its head, frame header included.
    #[inline(always)]
    pub(crate) fn finish(self, payload_crc: bool) -> u16 {
        let head_len = self.out.head_len.wrapping_add(HEADER);
        match self.out.segs.get_mut(..usize::from(self.out.seg_count)) {
            // The common case, without the set-up of an unrolled loop.
            Some([seg]) => seg.at = seg.at.wrapping_add(head_len),
            Some(segs) => {
                for seg in segs {
                    seg.at = seg.at.wrapping_add(head_len);
                }
            }
            None => {}
        }
        self.out.len = head_len
            .wrapping_add(self.payload)
            .wrapping_add(trailer(payload_crc));
        head_len
    }
}
