//! Memory: queues that the kernel shares, and buffers to be registered.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Mapped memory, which others may write to, too.
pub(crate) struct Map {
    start: *mut c_void,
    len: usize,
}

// SAFETY: it owns its pages like a box of atomics; the pointer is not its thread's.
unsafe impl Send for Map {}

// SAFETY: what it lends is atomics; the pages stay until it is dropped.
unsafe impl Sync for Map {}

impl Map {
    /// A queue.
    pub(crate) fn new(fd: impl AsFd, offset: u64, bytes: u64) -> Result<Self, Errno> {
        Self::with(fd, offset, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    pub(crate) fn with(fd: impl AsFd, offset: u64, bytes: u64, rights: ProtFlags) -> Result<Self, Errno> {
        let len = usize::try_from(bytes).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(ptr::null_mut(), len, rights, MapFlags::SHARED, fd, offset)? };
        Ok(Self { start, len })
    }

    /// A buffer.
    pub(crate) fn buffer(len: usize, rights: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: as above.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE)? };
        Ok(Self { start, len })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped until `self` goes, from the start of a page; others write to it as to atomics.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / 8) }
    }

    pub(crate) fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len) }
    }

    /// What the kernel is told.
    pub(crate) fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// Fills bytes with what follows from `seed`.
    pub(crate) fn fill(&self, at: usize, len: usize, seed: u64) {
        for (place, byte) in self.bytes().iter().skip(at).zip(pattern(seed).take(len)) {
            place.store(byte, Ordering::Relaxed);
        }
    }

    /// The first byte that is not what follows from `seed`.
    pub(crate) fn differs(&self, at: usize, len: usize, seed: u64) -> Option<usize> {
        let pairs = self.bytes().iter().skip(at).zip(pattern(seed).take(len));
        pairs
            .into_iter()
            .position(|(place, byte)| place.load(Ordering::Relaxed) != byte)
    }
}

/// Bytes without end, another sequence for each seed.
fn pattern(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let [.., last] = state.to_le_bytes();
        last
    })
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody holds a reference into it any more.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_was_not_written_is_found() {
        let map = Map::buffer(4096, ProtFlags::READ | ProtFlags::WRITE).unwrap();
        map.fill(40, 1000, 7);
        assert_eq!(map.differs(40, 1000, 7), None);
        assert!(map.differs(40, 1000, 8).is_some());
        let place = &map.bytes()[40 + 999];
        place.store(!place.load(Ordering::Relaxed), Ordering::Relaxed);
        assert_eq!(map.differs(40, 1000, 7), Some(999));
    }
}
