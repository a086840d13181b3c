//! Memory that devices write to, and bytes that tell where they belong.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is where nothing has been written.
const UNTOUCHED: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Words after a message that are to stay untouched.
const GUARD: usize = 8;

/// A number that no other of `parts` has.
pub(crate) fn mix(parts: [u32; 3]) -> u64 {
    let mut state = 0_u64;
    for part in parts {
        state = state
            .wrapping_add(u64::from(part))
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    state
}

/// Eight bytes of a message: they follow from whose and which message it is, and from where in it they are.
fn pattern(key: u64, index: usize) -> u64 {
    let at = index as u64 + 1;
    key.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .rotate_left(23)
}

/// Registered memory.
pub(crate) struct Memory {
    words: Box<[AtomicU64]>,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        let words = std::iter::repeat_with(|| AtomicU64::new(UNTOUCHED)).take(bytes.div_ceil(8));
        Self {
            words: words.collect(),
        }
    }

    /// What it is called.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        8 * self.words.len()
    }

    /// Words from byte `at` on.
    fn from(&self, at: usize) -> impl Iterator<Item = &AtomicU64> {
        self.words.iter().skip(at / 8)
    }

    /// Fills `len` bytes with a message, and some more.
    pub(crate) fn fill(&self, at: usize, len: usize, key: u64) {
        for (index, place) in self.from(at).take(len.div_ceil(8)).enumerate() {
            place.store(pattern(key, index).to_le(), Ordering::Relaxed);
        }
    }

    /// Makes room for `len` bytes, untouched.
    pub(crate) fn clear(&self, at: usize, len: usize) {
        for place in self.from(at).take(len.div_ceil(8) + GUARD) {
            place.store(UNTOUCHED, Ordering::Relaxed);
        }
    }

    /// The first byte that is not what it has to be: `len` of a message, and then untouched ones.
    pub(crate) fn differs(&self, at: usize, len: usize, key: u64) -> Option<usize> {
        let words = self.from(at).take(len.div_ceil(8) + GUARD);
        words.enumerate().find_map(|(index, place)| {
            let expected = match len.saturating_sub(8 * index) {
                0 => UNTOUCHED,
                left @ 1..8 => {
                    let mask = (1_u64 << (8 * left)) - 1;
                    pattern(key, index) & mask | UNTOUCHED & !mask
                }
                _ => pattern(key, index),
            };
            let wrong = expected ^ u64::from_le(place.load(Ordering::Relaxed));
            (wrong != 0).then(|| 8 * index + wrong.trailing_zeros() as usize / 8)
        })
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        let word = self.from(at).next();
        word.map_or(UNTOUCHED, |word| word.load(Ordering::Relaxed))
    }

    /// Whether nobody has ever written to a word.
    pub(crate) fn is_untouched(&self, at: usize) -> bool {
        self.word(at) == UNTOUCHED
    }

    pub(crate) fn set_word(&self, at: usize, value: u64) {
        if let Some(word) = self.from(at).next() {
            word.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_wrong_or_beyond_the_end_is_found() {
        let memory = Memory::new(4096);
        for len in [0, 1, 7, 8, 9, 1001] {
            memory.clear(64, len);
            let whole: Vec<u8> = (0..len.div_ceil(8))
                .flat_map(|i| pattern(5, i).to_le_bytes())
                .collect();
            for (index, chunk) in whole[..len].chunks(8).enumerate() {
                let mut bytes = UNTOUCHED.to_le_bytes();
                bytes[..chunk.len()].copy_from_slice(chunk);
                memory.set_word(64 + 8 * index, u64::from_le_bytes(bytes));
            }
            assert_eq!(memory.differs(64, len, 5), None);
            for byte in [len, len.saturating_sub(1)] {
                let at = 64 + byte / 8 * 8;
                let old = memory.word(at);
                memory.set_word(at, old ^ 1 << (8 * (byte % 8)));
                assert_eq!(memory.differs(64, len, 5), Some(byte));
                memory.set_word(at, old);
            }
        }
    }

    #[test]
    fn messages_differ_from_each_other_and_from_themselves_elsewhere() {
        let memory = Memory::new(1 << 16);
        memory.clear(0, 4096);
        memory.fill(0, 4096, mix([0, 1, 2]));
        assert_eq!(memory.differs(0, 4096, mix([0, 1, 2])), None);
        for other in [[1, 1, 2], [0, 2, 2], [0, 1, 3], [0, 2, 1]] {
            assert_eq!(memory.differs(0, 4096, mix(other)), Some(0));
        }
        // A frame in the place of the next one.
        assert_ne!(pattern(9, 0), pattern(9, 512));
    }
}
