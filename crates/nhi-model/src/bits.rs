//! Fields of registers.

/// Bit `n`, nothing past the end.
pub(crate) const fn bit(n: u32) -> u32 {
    match 1u32.checked_shl(n) {
        Some(bit) => bit,
        None => 0,
    }
}

/// Bit `n` of 64, nothing past the end.
pub(crate) fn bit64(n: usize) -> u64 {
    u32::try_from(n)
        .ok()
        .and_then(|n| 1u64.checked_shl(n))
        .unwrap_or(0)
}

/// The lowest `width` bits.
const fn ones(width: u32) -> u32 {
    bit(width).wrapping_sub(1)
}

/// The field of `width` bits whose lowest is `low`.
pub(crate) const fn get(word: u32, low: u32, width: u32) -> u32 {
    word.wrapping_shr(low) & ones(width)
}

/// `word` with that field set to `value`.
pub(crate) const fn put(word: u32, low: u32, width: u32, value: u32) -> u32 {
    let mask = ones(width).wrapping_shl(low);
    word & !mask | value.wrapping_shl(low) & mask
}

/// What a register holds after a write, if only the bits of `writable` take it.
pub(crate) const fn masked(old: u32, new: u32, writable: u32) -> u32 {
    old & !writable | new & writable
}

/// As an index. Every platform this runs on has at least 32-bit addresses.
pub(crate) fn index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// A small index as a register's value; one too large becomes all ones.
pub(crate) fn word(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Lower and upper half.
pub(crate) fn halves(value: u64) -> [u32; 2] {
    [value & u64::from(u32::MAX), value >> 32].map(|half| u32::try_from(half).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_neighbours() {
        assert_eq!(put(0xffff_ffff, 8, 6, 1), 0xffff_c1ff);
        assert_eq!(get(0xffff_c1ff, 8, 6), 1);
        assert_eq!(put(0, 31, 1, 3), 0x8000_0000);
        assert_eq!((bit(31), bit(32), bit64(40)), (0x8000_0000, 0, 1 << 40));
    }
}
