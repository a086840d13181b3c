//! What does not fit into an entry: lists of buffers, and inline data.
//!
//! Behind the entries of a queue pair's queue there may be slots, as many as entries and all of one size. An entry's slot is
//! the one with its number, and belongs to whom the entry belongs to.

/// Most pieces of a list.
pub const MAX_PIECES: u32 = 16;
/// Most bytes of inline data.
pub const MAX_INLINE: u32 = 256;
/// A slot's size is a multiple of this many bytes.
pub const SLOT_ALIGN: u32 = 64;
/// Bytes of the largest slot.
pub const SLOT_MAX: u32 = 256;
/// Words of a piece in a list.
pub const PIECE_WORDS: usize = 2;

const PIECE_BYTES: u32 = 16;

/// A slot of every entry of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    bytes: u32,
}

impl Slots {
    /// No slots: an entry has one buffer.
    pub const NONE: Self = Self { bytes: 0 };

    /// Slots of so many bytes. `None` if there are no slots of that size.
    pub const fn of(bytes: u32) -> Option<Self> {
        if bytes % SLOT_ALIGN == 0 && bytes <= SLOT_MAX {
            Some(Self { bytes })
        } else {
            None
        }
    }

    /// Slots for entries with as many pieces, or as many bytes of inline data; none for one piece, which is in the entry.
    /// `None` if that is more than there may be.
    pub const fn holding(pieces: u32, inline: u32) -> Option<Self> {
        if pieces > MAX_PIECES || inline > MAX_INLINE {
            return None;
        }
        let list = if pieces > 1 {
            pieces.saturating_mul(PIECE_BYTES)
        } else {
            0
        };
        let bytes = if list > inline { list } else { inline };
        match bytes.checked_next_multiple_of(SLOT_ALIGN) {
            Some(bytes) => Self::of(bytes),
            None => None,
        }
    }

    /// Bytes of a slot.
    pub const fn bytes(self) -> u32 {
        self.bytes
    }

    /// Words of a slot.
    #[inline]
    pub const fn words(self) -> usize {
        (self.bytes / 8) as usize
    }

    /// Pieces an entry may have.
    pub const fn pieces(self) -> u32 {
        match self.bytes / PIECE_BYTES {
            0 => 1,
            pieces if pieces > MAX_PIECES => MAX_PIECES,
            pieces => pieces,
        }
    }

    /// Bytes of inline data an entry may have in its slot.
    pub const fn inline(self) -> u32 {
        if self.bytes > MAX_INLINE {
            MAX_INLINE
        } else {
            self.bytes
        }
    }
}

/// One buffer of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Its address, in the address space of its region.
    pub addr: u64,
    /// Local key of its region, or [`crate::LOCAL_PROCESS`]; means nothing if there are no bytes.
    pub local_key: u32,
    /// Bytes.
    pub len: u32,
}

impl Piece {
    /// As words: the address, then the key in the lower half and the length in the upper half.
    #[inline]
    pub fn to_words(self) -> [u64; PIECE_WORDS] {
        [self.addr, u64::from(self.local_key) | u64::from(self.len) << 32]
    }

    /// The piece in `words`.
    #[inline]
    pub fn from_words(words: [u64; PIECE_WORDS]) -> Self {
        let [addr, rest] = words;
        let [a, b, c, d, e, f, g, h] = rest.to_le_bytes();
        Self {
            addr,
            local_key: u32::from_le_bytes([a, b, c, d]),
            len: u32::from_le_bytes([e, f, g, h]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_what_was_asked_for_and_say_all_that_they_hold() {
        let bytes = |pieces, inline| Slots::holding(pieces, inline).map(Slots::bytes);
        assert_eq!(bytes(0, 0), Some(0));
        assert_eq!(bytes(1, 0), Some(0));
        assert_eq!(bytes(1, 1), Some(64));
        assert_eq!(bytes(2, 0), Some(64));
        assert_eq!(bytes(5, 64), Some(128));
        assert_eq!(bytes(16, 220), Some(256));
        assert_eq!(bytes(17, 0), None);
        assert_eq!(bytes(1, 257), None);
        assert_eq!(bytes(1, u32::MAX), None);
        for pieces in 1..=MAX_PIECES {
            for inline in 0..=MAX_INLINE {
                let slots = Slots::holding(pieces, inline).unwrap();
                assert!(slots.pieces() >= pieces && slots.inline() >= inline);
                assert!(slots.words() * 8 >= slots.inline() as usize);
                assert!(slots.bytes() == 0 || slots.words() >= slots.pieces() as usize * PIECE_WORDS);
            }
        }
    }

    #[test]
    fn there_are_no_slots_of_other_sizes() {
        for bytes in [1, 8, 63, 96, 320, 512, u32::MAX] {
            assert_eq!(Slots::of(bytes), None);
        }
    }

    #[test]
    fn pieces_survive_their_words() {
        let piece = Piece {
            addr: u64::MAX - 1,
            local_key: 0xdead_beef,
            len: 0x1234_5678,
        };
        assert_eq!(Piece::from_words(piece.to_words()), piece);
    }
}
