//! CRC32C: of payload by the `crc32c` crate; of the heads of frames, a few dozen bytes each, without its
//! preparations for long input.

/// Longest input that goes without them.
const SHORT: usize = 256;

/// CRC32C of `bytes` continued from `crc`, 0 to begin.
#[inline]
pub(crate) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() <= SHORT && std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction.
        return unsafe { short(crc, bytes) };
    }
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
unsafe fn short(crc: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let mut state = u64::from(!crc);
    let mut rest = bytes;
    while let Some(([a, b, c, d, e, f, g, h, tail @ ..], more)) = rest.split_first_chunk::<16>() {
        state = _mm_crc32_u64(state, u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]));
        state = _mm_crc32_u64(state, u64::from_le_bytes(*tail));
        rest = more;
    }
    if let Some((word, more)) = rest.split_first_chunk::<8>() {
        state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
        rest = more;
    }
    let mut state = (state & 0xffff_ffff) as u32;
    for byte in rest {
        state = _mm_crc32_u8(state, *byte);
    }
    !state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_standard() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    }

    #[test]
    fn short_and_long_input_give_what_the_crate_gives() {
        let bytes: Vec<u8> = (0..600u32)
            .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8)
            .collect();
        for len in 0..bytes.len() {
            for crc in [0, 1, 0xdead_beef] {
                assert_eq!(
                    crc32c(crc, &bytes[..len]),
                    crc32c::crc32c_append(crc, &bytes[..len]),
                    "{len} bytes"
                );
            }
        }
    }
}
