//! Cursors of the one-way rings of a cable.
//!
//! An entry is one 64-bit word: a lap-dependent sequence number in the upper half, a value in the lower. The
//! consumer finds out from the entry itself whether it is there, so a hand-over moves one cache line and no
//! index is shared. The sequence number of the entry at position `p` is `p + 1`, truncated to 32 bits: a
//! zeroed ring is empty, and the word a lap earlier differs by the ring's depth.
//!
//! The rings cannot overflow between honest sides, which is why the producer looks at no consumer index: a
//! TX ring and a completion ring each have at least as many entries as there are frame slots, a slot is
//! posted again only after its completion has been consumed, and completed only after it was posted. A
//! dishonest producer can overwrite what has not been consumed; the consumer then sees a sequence number
//! that is neither the one it waits for nor the one a lap earlier, reports [`Hostile`], and the cable is cut.

use super::sync::{AtomicU64, Ordering};

/// The other side of the ring broke its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hostile;

/// The place of a position.
#[inline]
fn entry<const N: usize>(ring: &[AtomicU64; N], position: u32) -> &AtomicU64 {
    &ring[position as usize % N]
}

/// The depth of a ring, which must be a power of two for positions to wrap.
#[expect(clippy::cast_possible_truncation, reason = "checked")]
const fn depth<const N: usize>() -> u32 {
    assert!(N.is_power_of_two() && N <= 1 << 16);
    N as u32
}

#[inline]
fn word(position: u32, value: u32) -> u64 {
    u64::from(position.wrapping_add(1)) << 32 | u64::from(value)
}

/// The writing half of a ring. Its depth is a power of two.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    position: u32,
}

impl Producer {
    /// Writes `value` and publishes it together with everything written before it.
    #[inline]
    pub(crate) fn push<const N: usize>(&mut self, ring: &[AtomicU64; N], value: u32) {
        // Release: the frame (or, for a completion, the end of our reads of it) comes before its entry. Pairs
        // with the acquire in `Consumer::pop`.
        entry(ring, self.position).store(word(self.position, value), Ordering::Release);
        self.position = self.position.wrapping_add(1);
    }
}

/// The reading half of a ring. Its depth is a power of two.
#[derive(Debug, Default)]
pub(crate) struct Consumer {
    position: u32,
}

impl Consumer {
    /// Takes the next value, if there is one.
    #[inline]
    pub(crate) fn pop<const N: usize>(&mut self, ring: &[AtomicU64; N]) -> Result<Option<u32>, Hostile> {
        // Acquire: pairs with the release in `Producer::push`.
        let seen = entry(ring, self.position).load(Ordering::Acquire);
        let (sequence, value) = ((seen >> 32) as u32, (seen & 0xffff_ffff) as u32);
        let wanted = self.position.wrapping_add(1);
        if sequence == wanted {
            self.position = wanted;
            return Ok(Some(value));
        }
        // A word of an earlier lap, or of none yet.
        let depth = const { depth::<N>() };
        if sequence == wanted.wrapping_sub(depth) || (seen == 0 && self.position < depth) {
            return Ok(None);
        }
        Err(Hostile)
    }

    /// What the next [`Self::pop`] may give; some value or other if there is none yet.
    #[inline]
    pub(crate) fn hint<const N: usize>(&self, ring: &[AtomicU64; N]) -> u32 {
        (entry(ring, self.position).load(Ordering::Relaxed) & 0xffff_ffff) as u32
    }

    /// Whether a value is there, or a broken ring, of which `pop` tells.
    #[inline]
    pub(crate) fn ready<const N: usize>(&self, ring: &[AtomicU64; N]) -> bool {
        let seen = entry(ring, self.position).load(Ordering::Relaxed);
        // Nothing new: a word of the lap before, or of none.
        let before = self.position.wrapping_add(1).wrapping_sub(const { depth::<N>() });
        (seen >> 32) as u32 != before && seen != 0
    }
}
