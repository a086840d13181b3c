//! What the peer has asked for and has not been answered in full: reads being streamed, results of atomics.

use crate::list::{Linked, List, NONE, OUT, at, at_mut};
use crate::{MemAt, Slab};

/// What a stream answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `len` bytes at `from`, whose reference it owns.
    Read { from: MemAt, len: u32 },
    /// The value before an atomic.
    Atomic { value: u64 },
}

/// An answer in progress.
#[derive(Debug)]
pub struct Stream {
    link: u32,
    pub(crate) req_id: u32,
    pub(crate) answer: Answer,
    /// Bytes staged.
    pub(crate) sent: u32,
    /// The latest staging whose gather reads the memory.
    pub(crate) gather: u64,
}

impl Linked<0> for Stream {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.link
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            link: OUT,
            req_id: 0,
            answer: Answer::Atomic { value: 0 },
            sent: 0,
            gather: 0,
        }
    }
}

/// All streams of a link.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) slab: Slab<Stream>,
    free: List<0>,
    used: u32,
    /// Sent in full (or cut off), but a gather may still read the memory.
    pub(crate) ending: List<0>,
}

impl Streams {
    pub(crate) fn new(mut slab: Slab<Stream>) -> Self {
        let mut free = List::default();
        for stream in slab.iter_mut() {
            *stream = Stream::default();
        }
        for index in (0..NONE).take(slab.len()).rev() {
            free.push_front(&mut slab, index);
        }
        Self {
            slab,
            free,
            used: 0,
            ending: List::default(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Stream> {
        at(&self.slab, index)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Stream> {
        at_mut(&mut self.slab, index)
    }

    /// All are in use, some only because a gather has not been reported: a peer that keeps the limit may ask for more.
    #[inline]
    pub(crate) fn is_jammed(&self) -> bool {
        self.free.is_empty() && !self.ending.is_empty()
    }

    /// Streams in use.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// A new stream; the peer has more requests outstanding than this side allows if there is none.
    pub(crate) fn alloc(&mut self, req_id: u32, answer: Answer) -> Option<u32> {
        let index = self.free.pop(&mut self.slab)?;
        let stream = at_mut(&mut self.slab, index)?;
        stream.req_id = req_id;
        stream.answer = answer;
        stream.sent = 0;
        stream.gather = 0;
        self.used = self.used.wrapping_add(1);
        Some(index)
    }

    /// Gives a stream back that is in no list.
    pub(crate) fn free(&mut self, index: u32) {
        self.used = self.used.wrapping_sub(1);
        self.free.push_front(&mut self.slab, index);
    }
}
