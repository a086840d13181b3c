//! The two ends of a queue.
//!
//! # Ordering
//!
//! An entry's words are stored relaxed, then the producer's index with Release; the consumer loads that index
//! with Acquire before it reads the entry. The consumer's index goes back the same way, so a slot is not
//! rewritten before its reader is done.
//!
//! # Sleeping: why no wakeup is lost
//!
//! One side (the sleeper, always the consumer) stores the flag, then loads the producer index and sleeps only
//! if the queue is empty. The other (the waker, always the producer) stores the index, then loads the flag and
//! wakes only if it is set. Store-then-load of two different words is what x86 and everybody else may reorder,
//! so both sides put a sequentially consistent fence between their store and their load. The two fences are
//! ordered one way or the other: if the sleeper's comes first, its flag store is visible to the waker's load,
//! and the waker wakes it; if the waker's comes first, its index store is visible to the sleeper's load, and
//! the sleeper does not sleep. (The argument is the one in io-uring's `squeue.rs` for `need_wakeup`.)
//! `tests/loom.rs` checks it. The flag itself is stored with Release and loaded with Acquire, so that what the
//! sleeper did before it asked to be woken is visible to the call that wakes it.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;

use crate::entry::Entry;
use crate::geometry::{
    ARMED, ARMED_SOLICITED, CONSUMER_WORD, ENTRIES_WORD, FLAGS_WORD, GeometryError, PRODUCER_WORD,
    QueueGeometry,
};
use crate::slot::Slots;
use crate::sync::{AtomicU64, Ordering, fence};

/// The end that writes entries.
///
/// `M` is the queue's memory: a borrowed slice, an `Arc<[AtomicU64]>`, a mapping. Fresh queue memory is zero.
#[derive(Debug)]
pub struct Producer<M, E> {
    queue: Queue<M, E>,
    /// Next entry to write.
    next: u64,
    /// What the peer has been shown.
    published: u64,
    /// The consumer's index as last seen; valid, at most `published`.
    consumed: u64,
}

impl<M: Deref<Target = [AtomicU64]>, E: Entry> Producer<M, E> {
    /// The producing end of a fresh (zeroed) queue of `depth` entries.
    ///
    /// # Errors
    /// The depth is not allowed, or `memory` is too small for it.
    pub fn new(memory: M, depth: u32) -> Result<Self, GeometryError> {
        Ok(Self {
            queue: Queue::new(memory, depth)?,
            next: 0,
            published: 0,
            consumed: 0,
        })
    }

    /// Entries the queue holds.
    pub fn depth(&self) -> u32 {
        self.queue.depth
    }

    /// Entries that can be pushed now. Looks at the peer's index only if fewer than `want` were known free.
    ///
    /// # Errors
    /// The peer's index moved back or beyond what was published.
    #[inline]
    pub fn free(&mut self, want: u32) -> Result<u32, Hostile> {
        let mut free = self.known_free();
        if free < want {
            let index = self.queue.word(CONSUMER_WORD)?.load(Ordering::Acquire);
            let moved = index.wrapping_sub(self.consumed);
            if moved > self.published.wrapping_sub(self.consumed) {
                return Err(Hostile {
                    index,
                    expected: self.consumed,
                    limit: self.published,
                });
            }
            self.consumed = index;
            free = self.known_free();
        }
        Ok(free)
    }

    /// Writes an entry; the peer sees it after [`Self::publish`].
    ///
    /// # Errors
    /// The queue is full, or the peer's index is hostile.
    #[inline(always)]
    pub fn push(&mut self, entry: &E) -> Result<(), PushError> {
        if self.free(1)? == 0 {
            return Err(PushError::Full);
        }
        entry
            .store(self.queue.entry(self.next)?)
            .ok_or_else(Hostile::memory)?;
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// As [`Self::push`], of an entry for which `words` are put into its slot.
    ///
    /// # Errors
    /// The same; and there is no room for them.
    pub fn push_with(&mut self, entry: &E, slots: Slots, words: &[u64]) -> Result<(), PushError> {
        if self.free(1)? == 0 {
            return Err(PushError::Full);
        }
        let slot = self.queue.slot(self.next, slots)?;
        if slot.len() < words.len() {
            return Err(Hostile::memory().into());
        }
        for (place, word) in slot.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
        self.push(entry)
    }

    /// Shows the peer everything pushed so far. Returns the number of entries newly shown.
    #[inline]
    pub fn publish(&mut self) -> u64 {
        let fresh = self.next.wrapping_sub(self.published);
        if fresh != 0 {
            if let Ok(word) = self.queue.word(PRODUCER_WORD) {
                word.store(self.next, Ordering::Release);
            }
            self.published = self.next;
        }
        fresh
    }

    /// After [`Self::publish`]: whether the consumer asked to be told ([`crate::NEED_WAKEUP`]). See the module
    /// documentation for the fence.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        fence(Ordering::SeqCst);
        self.flags().is_some_and(is_armed)
    }

    /// The word in which the consumer asks, for [`is_armed`].
    #[inline]
    pub fn flags(&self) -> Option<&AtomicU64> {
        self.queue.word(FLAGS_WORD).ok()
    }

    /// After [`Self::publish`]: whether the consumer armed the queue ([`crate::ARMED`]); disarms it, so that it
    /// is woken once. See the module documentation for the fence.
    #[inline]
    pub fn take_armed(&self) -> bool {
        if !self.needs_wakeup() {
            return false;
        }
        self.queue
            .word(FLAGS_WORD)
            .is_ok_and(|word| word.swap(0, Ordering::Relaxed) & ARMED != 0)
    }

    /// After [`Self::publish`] of a solicited completion, or one with an error: a consumer that has asked for these only
    /// ([`crate::ARMED_SOLICITED`]) counts as one that has armed. See the module documentation for the fence.
    pub fn solicit(&self) {
        fence(Ordering::SeqCst);
        if let Some(flags) = self.flags() {
            if flags.load(Ordering::Acquire) & ARMED_SOLICITED != 0 {
                flags.fetch_or(ARMED, Ordering::Relaxed);
            }
        }
    }

    /// How many entries have been pushed so far; begins again at 0 after the last number.
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.next
    }

    /// How many of the `count` entries before `end`, which [`Self::pushed`] has returned, the consumer has not released yet.
    pub fn left(&self, end: u64, count: u64) -> u64 {
        let Ok(word) = self.queue.word(CONSUMER_WORD) else {
            return count;
        };
        match end.wrapping_sub(word.load(Ordering::Acquire)) {
            // Later ones are gone, too.
            beyond if beyond > u64::MAX / 2 => 0,
            left => left.min(count),
        }
    }

    /// The queue's memory back.
    pub fn into_memory(self) -> M {
        self.queue.memory
    }

    #[inline]
    fn known_free(&self) -> u32 {
        let used = self.next.wrapping_sub(self.consumed);
        // `used` never exceeds the depth: push checks.
        self.queue
            .depth
            .saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }
}

/// Whether a queue's flags ([`Producer::flags`]) say that its consumer wants to be woken. For a producer of several
/// queues: a sequentially consistent fence, one for all of them, comes between the last [`Producer::publish`] and this.
#[inline]
pub fn is_armed(flags: &AtomicU64) -> bool {
    flags.load(Ordering::Acquire) & ARMED != 0
}

/// The end that reads entries.
#[derive(Debug)]
pub struct Consumer<M, E> {
    queue: Queue<M, E>,
    /// Next entry to read.
    next: u64,
    /// What the peer has been told is free again.
    released: u64,
    /// The producer's index as last seen; valid, at most `released + depth`.
    produced: u64,
}

impl<M: Deref<Target = [AtomicU64]>, E: Entry> Consumer<M, E> {
    /// The consuming end of a fresh (zeroed) queue of `depth` entries.
    ///
    /// # Errors
    /// The depth is not allowed, or `memory` is too small for it.
    pub fn new(memory: M, depth: u32) -> Result<Self, GeometryError> {
        Ok(Self {
            queue: Queue::new(memory, depth)?,
            next: 0,
            released: 0,
            produced: 0,
        })
    }

    /// Entries the queue holds.
    pub fn depth(&self) -> u32 {
        self.queue.depth
    }

    /// Entries that can be read now. Looks at the peer's index only if none were known.
    ///
    /// # Errors
    /// The peer's index moved back or beyond the queue.
    #[inline]
    pub fn available(&mut self) -> Result<u64, Hostile> {
        if self.produced == self.next {
            self.refresh()?;
        }
        Ok(self.produced.wrapping_sub(self.next))
    }

    /// As [`Self::available`], but looks at the peer's index in any case: what is posted by now counts.
    ///
    /// # Errors
    /// The peer's index moved back or beyond the queue.
    pub fn posted(&mut self) -> Result<u64, Hostile> {
        self.refresh()?;
        Ok(self.produced.wrapping_sub(self.next))
    }

    /// A copy of the next entry, read once, without consuming it; a later read may differ.
    ///
    /// # Errors
    /// The peer's index is hostile.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<E>, Hostile> {
        if self.available()? == 0 {
            return Ok(None);
        }
        E::load(self.queue.entry(self.next)?)
            .map(Some)
            .ok_or_else(Hostile::memory)
    }

    /// The slot of the entry last peeked. The peer can write to it at any time.
    ///
    /// # Errors
    /// The memory ends before it.
    pub fn slot(&self, slots: Slots) -> Result<&[AtomicU64], Hostile> {
        self.queue.slot(self.next, slots)
    }

    /// Consumes the entry last peeked. Does nothing on an empty queue.
    #[inline]
    pub fn advance(&mut self) {
        if self.next != self.produced {
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Takes the next entry, read once.
    ///
    /// # Errors
    /// The peer's index is hostile.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<E>, Hostile> {
        let entry = self.peek()?;
        self.advance();
        Ok(entry)
    }

    /// Tells the peer that everything consumed so far is free again.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.next {
            if let Ok(word) = self.queue.word(CONSUMER_WORD) {
                word.store(self.next, Ordering::Release);
            }
            self.released = self.next;
        }
    }

    /// Asks the producer to wake us ([`crate::NEED_WAKEUP`] or [`crate::ARMED`]), then looks once more. Returns
    /// true if the queue is empty, so that the caller may sleep; false if there is something to consume (the
    /// request stays; [`Self::disarm`] withdraws it). See the module documentation for the fence.
    ///
    /// # Errors
    /// The peer's index is hostile.
    pub fn arm(&mut self) -> Result<bool, Hostile> {
        self.queue.word(FLAGS_WORD)?.store(ARMED, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.produced != self.next {
            return Ok(false);
        }
        self.refresh()?;
        Ok(self.produced == self.next)
    }

    /// As [`Self::arm`], for solicited completions and those with an error only ([`crate::ARMED_SOLICITED`]). An earlier
    /// request for any stands.
    ///
    /// # Errors
    /// The peer's index is hostile.
    pub fn arm_solicited(&mut self) -> Result<bool, Hostile> {
        self.queue
            .word(FLAGS_WORD)?
            .fetch_or(ARMED_SOLICITED, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.produced != self.next {
            return Ok(false);
        }
        self.refresh()?;
        Ok(self.produced == self.next)
    }

    /// Withdraws [`Self::arm`]'s request.
    pub fn disarm(&mut self) {
        if let Ok(word) = self.queue.word(FLAGS_WORD) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Consumes everything there is, unread.
    ///
    /// # Errors
    /// The peer's index is hostile.
    pub fn clear(&mut self) -> Result<(), Hostile> {
        self.refresh()?;
        self.next = self.produced;
        self.release();
        Ok(())
    }

    /// The queue's memory back.
    pub fn into_memory(self) -> M {
        self.queue.memory
    }

    #[inline(always)]
    fn refresh(&mut self) -> Result<(), Hostile> {
        let index = self.queue.word(PRODUCER_WORD)?.load(Ordering::Acquire);
        if index == self.produced {
            return Ok(());
        }
        let limit = self.released.wrapping_add(u64::from(self.queue.depth));
        if index.wrapping_sub(self.produced) > limit.wrapping_sub(self.produced) {
            return Err(Hostile {
                index,
                expected: self.produced,
                limit,
            });
        }
        self.produced = index;
        Ok(())
    }
}

/// The peer wrote an index it has no right to: it moved back, or beyond the queue. Nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hostile {
    /// The index found.
    pub index: u64,
    /// The least it could be.
    pub expected: u64,
    /// The most it could be.
    pub limit: u64,
}

impl Hostile {
    /// The memory behind a cursor got shorter than it was: cannot happen with a sane `M`.
    fn memory() -> Self {
        Self {
            index: u64::MAX,
            expected: 0,
            limit: 0,
        }
    }
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            index,
            expected,
            limit,
        } = self;
        write!(
            f,
            "the peer's queue index is {index}, not within {expected} to {limit}"
        )
    }
}

impl core::error::Error for Hostile {}

/// Why an entry was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The queue is full.
    Full,
    /// The peer's index is hostile.
    Hostile(Hostile),
}

impl From<Hostile> for PushError {
    fn from(hostile: Hostile) -> Self {
        Self::Hostile(hostile)
    }
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue is full"),
            Self::Hostile(hostile) => hostile.fmt(f),
        }
    }
}

impl core::error::Error for PushError {}

/// The memory and its shape; neither end's state.
#[derive(Debug)]
struct Queue<M, E> {
    memory: M,
    depth: u32,
    entry: PhantomData<E>,
}

impl<M: Deref<Target = [AtomicU64]>, E: Entry> Queue<M, E> {
    fn new(memory: M, depth: u32) -> Result<Self, GeometryError> {
        let geometry = QueueGeometry::of::<E>(depth)?;
        if memory.len() < geometry.words() {
            return Err(GeometryError::Memory(geometry.words(), memory.len()));
        }
        Ok(Self {
            memory,
            depth,
            entry: PhantomData,
        })
    }

    #[inline]
    fn word(&self, at: usize) -> Result<&AtomicU64, Hostile> {
        self.memory.get(at).ok_or_else(Hostile::memory)
    }

    #[inline(always)]
    fn entry(&self, index: u64) -> Result<&[AtomicU64], Hostile> {
        let slot = index & u64::from(self.depth).wrapping_sub(1);
        // A masked index is below 65536, so this neither truncates nor overflows.
        let at = usize::try_from(slot)
            .unwrap_or(0)
            .wrapping_mul(E::WORDS)
            .wrapping_add(ENTRIES_WORD);
        self.memory
            .get(at..at.wrapping_add(E::WORDS))
            .ok_or_else(Hostile::memory)
    }

    fn slot(&self, index: u64, slots: Slots) -> Result<&[AtomicU64], Hostile> {
        let slot = index & u64::from(self.depth).wrapping_sub(1);
        // Below 65536, and slots are small.
        let first = (self.depth as usize)
            .wrapping_mul(E::WORDS)
            .wrapping_add(ENTRIES_WORD);
        let at = usize::try_from(slot)
            .unwrap_or(0)
            .wrapping_mul(slots.words())
            .wrapping_add(first);
        self.memory
            .get(at..at.wrapping_add(slots.words()))
            .ok_or_else(Hostile::memory)
    }
}
