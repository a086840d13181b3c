//! Bytes that show when a message is lost, repeated, shifted or torn.
//!
//! Message `n` of a run carries `n` in its first and last 8 bytes (fewer when it is shorter) around a fixed
//! pattern. The stamps of every message are checked while measuring; of every 64th one, of the last write of each flow, and
//! of what reads return, all bytes.

use anyhow::Result;
use usb4_ring::MemoryRegion;

const STAMP: usize = 8;

/// Fills `len` bytes at `offset` with the pattern.
///
/// # Errors
///
/// When the range is not within the region.
pub(super) fn fill(region: &MemoryRegion, offset: usize, len: usize) -> Result<()> {
    let bytes: Vec<u8> = (0..len).map(pattern).collect();
    Ok(region.write(offset, &bytes)?)
}

/// Stamps the message of `len` bytes at `offset` as number `n`.
///
/// # Errors
///
/// When the range is not within the region.
pub(super) fn stamp(region: &MemoryRegion, offset: usize, len: usize, n: u64) -> Result<()> {
    let stamp = n.to_le_bytes();
    let short = len.min(STAMP);
    region.write(offset, &stamp[..short])?;
    Ok(region.write(offset + len - short, &stamp[..short])?)
}

/// Whether both ends of the message of `len` bytes at `offset` are those of number `n`.
///
/// # Errors
///
/// When the range is not within the region.
pub(super) fn ends(region: &MemoryRegion, offset: usize, len: usize, n: u64) -> Result<bool> {
    let stamp = n.to_le_bytes();
    let short = len.min(STAMP);
    let mut found = [0; STAMP];
    region.read(offset + len - short, &mut found[..short])?;
    let mut right = found[..short] == stamp[..short];
    if right && len >= 2 * STAMP {
        region.read(offset, &mut found)?;
        right = found == stamp;
    }
    Ok(right)
}

/// Whether the message of `len` bytes at `offset` is number `n`, and now and then also whether it is whole. `scratch`
/// holds at least `len` bytes.
///
/// # Errors
///
/// When the range is not within the region.
pub(super) fn good(
    region: &MemoryRegion,
    offset: usize,
    len: usize,
    n: u64,
    scratch: &mut [u8],
) -> Result<bool> {
    if n % 64 == 0 {
        whole(region, offset, len, n, scratch)
    } else {
        ends(region, offset, len, n)
    }
}

/// Whether the message of `len` bytes at `offset` is whole and number `n`. `scratch` holds at least `len` bytes.
///
/// # Errors
///
/// When the range is not within the region.
pub(super) fn whole(
    region: &MemoryRegion,
    offset: usize,
    len: usize,
    n: u64,
    scratch: &mut [u8],
) -> Result<bool> {
    let mut right = ends(region, offset, len, n)?;
    if right && len > 2 * STAMP {
        let bytes = &mut scratch[..len];
        region.read(offset, bytes)?;
        let inner = bytes.iter().enumerate().take(len - STAMP).skip(STAMP);
        right = inner.into_iter().all(|(index, byte)| *byte == pattern(index));
    }
    Ok(right)
}

#[allow(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
fn pattern(index: usize) -> u8 {
    ((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}
