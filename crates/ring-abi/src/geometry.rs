//! Where things are in a queue's memory.

use core::fmt;

use crate::entry::Entry;
use crate::slot::Slots;

/// Word of the producer's index: `u64`, counts entries ever produced, written by the producer only.
pub const PRODUCER_WORD: usize = 0;
/// Word of the consumer's index: `u64`, counts entries ever consumed, written by the consumer only.
/// One cache line after the producer's.
pub const CONSUMER_WORD: usize = 8;
/// Word of the flags ([`NEED_WAKEUP`], [`ARMED`], [`ARMED_SOLICITED`]).
pub const FLAGS_WORD: usize = 16;
/// First word of the entries (byte 256).
pub const ENTRIES_WORD: usize = 32;
/// Most entries a queue may have.
pub const MAX_DEPTH: u32 = 65536;

/// Submission and receive queues, set and cleared by the device: nobody polls this queue; after publishing,
/// the client must call `ENTER` (or the soft device's equivalent).
pub const NEED_WAKEUP: u64 = 1;
/// Completion queues, set by the client, cleared by whichever side acts on it: the client is about to sleep;
/// after publishing, the device must wake it once.
pub const ARMED: u64 = 1;
/// As [`ARMED`], for a solicited completion or one with an error only. With [`ARMED`] it says nothing more.
pub const ARMED_SOLICITED: u64 = 2;

/// Depth and entry size of a queue, and what follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueGeometry {
    depth: u32,
    words: usize,
}

impl QueueGeometry {
    /// Geometry of a queue of `depth` entries of type `E`.
    ///
    /// # Errors
    /// `depth` must be a power of two, 1 to [`MAX_DEPTH`].
    pub fn of<E: Entry>(depth: u32) -> Result<Self, GeometryError> {
        if !depth.is_power_of_two() || depth > MAX_DEPTH {
            return Err(GeometryError::Depth(depth));
        }
        let entries = (depth as usize).saturating_mul(E::WORDS);
        Ok(Self {
            depth,
            words: entries.saturating_add(ENTRIES_WORD),
        })
    }

    /// The same with a slot for each entry behind them.
    #[must_use]
    pub fn with_slots(self, slots: Slots) -> Self {
        let more = (self.depth as usize).saturating_mul(slots.words());
        Self {
            words: self.words.saturating_add(more),
            ..self
        }
    }

    /// Entries.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// `u64` words of memory the queue takes.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Bytes of memory the queue takes.
    pub fn bytes(&self) -> usize {
        self.words.saturating_mul(8)
    }
}

/// A queue that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// The depth is not a power of two between 1 and [`MAX_DEPTH`].
    Depth(u32),
    /// The memory is smaller than the queue: words needed, words given.
    Memory(usize, usize),
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Depth(depth) => {
                write!(
                    f,
                    "queue depth {depth} is not a power of two between 1 and {MAX_DEPTH}"
                )
            }
            Self::Memory(need, have) => {
                write!(f, "the queue needs {need} words of memory but was given {have}")
            }
        }
    }
}

impl core::error::Error for GeometryError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cqe, Rqe, Sqe};

    #[test]
    fn sizes_match_the_layout() {
        let sq = QueueGeometry::of::<Sqe>(64).unwrap();
        assert_eq!((sq.depth(), sq.bytes()), (64, 256 + 64 * 64));
        assert_eq!(QueueGeometry::of::<Rqe>(1).unwrap().bytes(), 256 + 32);
        assert_eq!(
            QueueGeometry::of::<Cqe>(MAX_DEPTH).unwrap().bytes(),
            256 + 65536 * 32
        );
    }

    #[test]
    fn slots_come_behind_the_entries() {
        let sq = QueueGeometry::of::<Sqe>(64).unwrap();
        let slots = Slots::of(128).unwrap();
        assert_eq!(sq.with_slots(slots).bytes(), 256 + 64 * 64 + 64 * 128);
        assert_eq!(sq.with_slots(Slots::NONE), sq);
    }

    #[test]
    fn a_depth_that_is_no_power_of_two_or_too_large_is_refused() {
        for depth in [0, 3, 100, 65535, MAX_DEPTH * 2, u32::MAX] {
            assert_eq!(QueueGeometry::of::<Sqe>(depth), Err(GeometryError::Depth(depth)));
        }
    }
}
