//! Little-endian words in and out of byte slices, without a path that could panic.

/// The low half of a word.
#[inline(always)]
pub(crate) const fn lo(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// The high half of a word.
#[inline(always)]
pub(crate) const fn hi(word: u64) -> u32 {
    (word >> 32) as u32
}

/// A word of two halves.
#[inline(always)]
pub(crate) fn join(lo: u32, hi: u32) -> u64 {
    u64::from(lo) | u64::from(hi) << 32
}

/// The first `N` words of `bytes`.
#[inline(always)]
pub(crate) fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    // One comparison here lets the compiler drop the one in each step.
    if bytes.len() < N.saturating_mul(8) {
        return None;
    }
    let mut out = [0; N];
    let mut rest = bytes;
    for word in &mut out {
        let (head, tail) = rest.split_first_chunk::<8>()?;
        *word = u64::from_le_bytes(*head);
        rest = tail;
    }
    Some(out)
}

/// Writes `words` at the start of `out` and returns how many bytes that took.
#[inline(always)]
pub(crate) fn put<const N: usize>(out: &mut [u8], words: [u64; N]) -> Option<usize> {
    let len = N.saturating_mul(8);
    // Of a known length, which lets the compiler drop the comparison in each step.
    let mut rest = out.get_mut(..len)?;
    for word in words {
        let (head, tail) = rest.split_first_chunk_mut::<8>()?;
        *head = word.to_le_bytes();
        rest = tail;
    }
    Some(len)
}
