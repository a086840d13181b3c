//! Guest memory, as the vfio-user client announces it.
//!
//! Each range comes with a file that we map. What is outside a range, or in one without a file (ROMs, memory that is
//! not shared), cannot be reached and any access to it fails; the model counts it as a DMA fault.
//!
//! A client that shortens such a file later kills this process with SIGBUS. QEMU's `memory-backend-memfd` is sealed
//! against that; a range of a file that is not is taken with a warning.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Ranges and files are whole pages. QEMU announces nothing smaller.
const PAGE: u64 = 4096;
/// Most ranges at a time, the protocol's default for `max_dma_maps`.
const RANGES_MAX: usize = 65535;

/// The memory of one guest.
#[derive(Debug, Default)]
pub(crate) struct GuestMemory {
    /// In order of address, none overlapping.
    ranges: Vec<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    address: u64,
    size: u64,
    readable: bool,
    writable: bool,
    region: Option<MmapRegion>,
    /// Device and inode of the file.
    identity: Option<(u64, u64)>,
}

/// A range the client announces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Of its first byte in the file.
    pub(crate) offset: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl GuestMemory {
    /// Adds a range. Refused: one that is empty, not whole pages, overlaps another, or reaches past its file's end.
    pub(crate) fn map(&mut self, range: Announced, file: Option<OwnedFd>) -> Result<(), Errno> {
        let Announced { address, size, .. } = range;
        let end = address.checked_add(size).ok_or(Errno::INVAL)?;
        if size == 0 || [address, size, range.offset].iter().any(|n| n % PAGE != 0) {
            return Err(Errno::INVAL);
        }
        let at = self.first_from(address);
        let before = at.checked_sub(1).and_then(|index| self.ranges.get(index));
        let overlaps = before.is_some_and(|before| before.end() > address)
            || self.ranges.get(at).is_some_and(|after| after.address < end);
        if overlaps {
            return Err(Errno::EXIST);
        }
        if self.ranges.len() >= RANGES_MAX {
            return Err(Errno::NOSPC);
        }
        let mut mapped = Mapped {
            address,
            size,
            readable: range.readable,
            writable: range.writable,
            region: None,
            identity: None,
        };
        if let Some(file) = file {
            self.back(&mut mapped, range, file)?;
        }
        self.ranges.insert(at, mapped);
        Ok(())
    }

    /// Maps the file behind a range.
    fn back(&self, mapped: &mut Mapped, range: Announced, file: OwnedFd) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&file)?;
        let length = u64::try_from(stat.st_size).map_err(|_| Errno::INVAL)?;
        let end = range.offset.checked_add(range.size).ok_or(Errno::INVAL)?;
        if end > length {
            return Err(Errno::INVAL);
        }
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !sealed {
            tracing::warn!(
                "guest memory at {:#x} is in a file that may be shortened",
                range.address
            );
        }
        let identity = (stat.st_dev, stat.st_ino);
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, range.writable);
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let [protection, flags] =
            [protection.bits(), flags.bits()].map(|bits| i32::try_from(bits).unwrap_or(0));
        let size = usize::try_from(range.size).map_err(|_| Errno::INVAL)?;
        let start = FileOffset::from_arc(self.same_file(identity, file), range.offset);
        let region = MmapRegion::build(Some(start), size, protection, flags).map_err(|error| {
            tracing::warn!("guest memory at {:#x}: {error}", range.address);
            Errno::NOMEM
        })?;
        (mapped.region, mapped.identity) = (Some(region), Some(identity));
        Ok(())
    }

    /// One open file is enough for all ranges in it: with an IOMMU they are as small as pages.
    fn same_file(&self, identity: (u64, u64), file: OwnedFd) -> Arc<File> {
        let same = |range: &&Mapped| range.identity == Some(identity);
        let known = self.ranges.iter().find(same).and_then(|range| {
            let offset = range.region.as_ref()?.file_offset()?;
            Some(Arc::clone(offset.arc()))
        });
        known.unwrap_or_else(|| Arc::new(File::from(file)))
    }

    /// Removes every range from `address` on for `size` bytes. Refused: cutting a range in two.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> Result<(), Errno> {
        let end = address.checked_add(size).ok_or(Errno::INVAL)?;
        let first = self.first_from(address);
        let last = self.first_from(end);
        let before = first.checked_sub(1).and_then(|index| self.ranges.get(index));
        let cut_before = before.is_some_and(|before| before.end() > address);
        let inside = self.ranges.get(first..last).unwrap_or_default();
        if cut_before || inside.is_empty() || inside.last().is_some_and(|range| range.end() > end) {
            return Err(Errno::INVAL);
        }
        self.ranges.drain(first..last);
        Ok(())
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Copies guest memory at `address` into `buf`; false if any of it may not be read.
    pub(crate) fn read(&self, address: u64, buf: &mut [u8]) -> bool {
        let len = buf.len();
        self.pieces(
            address,
            len,
            |range| range.readable,
            |slice, part| {
                if let Some(part) = buf.get_mut(part) {
                    slice.copy_to(part);
                }
            },
        )
    }

    /// Copies `bytes` into guest memory at `address`; false if any of it may not be written. Four bytes at a multiple of
    /// four are one store that no earlier write of this thread is seen after.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.pieces(
            address,
            bytes.len(),
            |range| range.writable,
            |slice, part| {
                let Some(part) = bytes.get(part) else {
                    return;
                };
                let word = <[u8; 4]>::try_from(part).ok();
                match word.and_then(|word| Some((word, slice.get_atomic_ref::<AtomicU32>(0).ok()?))) {
                    Some((word, place)) => place.store(u32::from_ne_bytes(word), Ordering::Release),
                    None => slice.copy_from(part),
                }
            },
        )
    }

    /// Calls `copy` for each part of `len` bytes at `address` that is in one range, with what of the whole it is.
    fn pieces(
        &self,
        mut address: u64,
        len: usize,
        allowed: impl Fn(&Mapped) -> bool,
        mut copy: impl FnMut(VolatileSlice<'_>, Range<usize>),
    ) -> bool {
        let mut done = 0usize;
        while done < len {
            let Some((slice, part)) = self.piece(address, len.saturating_sub(done), &allowed) else {
                return false;
            };
            let next = done.saturating_add(part);
            copy(slice, done..next);
            // Ranges end before the last address does, so this does not wrap around.
            address = address.wrapping_add(part as u64);
            done = next;
        }
        true
    }

    /// As much of `len` bytes at `address` as is in one range, at least one byte.
    fn piece(
        &self,
        address: u64,
        len: usize,
        allowed: impl Fn(&Mapped) -> bool,
    ) -> Option<(VolatileSlice<'_>, usize)> {
        let index = self
            .ranges
            .partition_point(|range| range.address <= address)
            .checked_sub(1)?;
        let range = self.ranges.get(index).filter(|range| allowed(range))?;
        let offset = address.checked_sub(range.address)?;
        let left = usize::try_from(range.size.checked_sub(offset)?).ok()?;
        let part = len.min(left);
        let region = range.region.as_ref().filter(|_| part > 0)?;
        let slice = region.get_slice(usize::try_from(offset).ok()?, part).ok()?;
        Some((slice, part))
    }

    /// Index of the first range that begins at `address` or later.
    fn first_from(&self, address: u64) -> usize {
        self.ranges.partition_point(|range| range.address < address)
    }
}

impl Mapped {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    fn memfd(size: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, size).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        file
    }

    fn range(address: u64, size: u64, offset: u64) -> Announced {
        Announced {
            address,
            size,
            offset,
            readable: true,
            writable: true,
        }
    }

    #[test]
    fn what_is_written_is_in_the_file_where_the_offset_says() {
        let file = memfd(0x4000);
        let mut memory = GuestMemory::default();
        memory
            .map(range(0x10000, 0x2000, 0x1000), Some(file.try_clone().unwrap()))
            .unwrap();
        assert!(memory.write(0x10ffe, &[1, 2, 3, 4]));
        assert!(memory.write(0x11004, &[5, 6, 7, 8]));
        let mut bytes = [0; 10];
        rustix::io::pread(&file, &mut bytes, 0x1ffe).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 0, 0, 5, 6, 7, 8]);
        let mut back = [0; 4];
        assert!(memory.read(0x10ffe, &mut back));
        assert_eq!(back, [1, 2, 3, 4]);
    }

    #[test]
    fn an_access_runs_over_from_one_range_into_the_next_but_not_into_a_hole() {
        let file = memfd(0x4000);
        let mut memory = GuestMemory::default();
        memory
            .map(range(0x2000, 0x1000, 0), Some(file.try_clone().unwrap()))
            .unwrap();
        memory
            .map(range(0x1000, 0x1000, 0x3000), Some(file.try_clone().unwrap()))
            .unwrap();
        assert!(memory.write(0x1ffc, &[1, 2, 3, 4, 5, 6, 7, 8]));
        let mut bytes = [0; 4];
        rustix::io::pread(&file, &mut bytes, 0).unwrap();
        assert_eq!(bytes, [5, 6, 7, 8]);
        assert!(!memory.write(0x2ffc, &[0; 8]));
        assert!(!memory.read(0xfff, &mut [0; 2]));
        assert!(!memory.read(u64::MAX, &mut [0; 2]));
        assert!(memory.read(0x7777, &mut []));
    }

    #[test]
    fn a_range_without_a_file_or_permission_cannot_be_reached() {
        let mut memory = GuestMemory::default();
        memory.map(range(0x1000, 0x1000, 0), None).unwrap();
        assert!(!memory.read(0x1000, &mut [0]));
        let read_only = Announced {
            writable: false,
            ..range(0x2000, 0x1000, 0)
        };
        memory.map(read_only, Some(memfd(0x1000))).unwrap();
        assert!(memory.read(0x2000, &mut [0]) && !memory.write(0x2000, &[0]));
    }

    #[test]
    fn ranges_that_are_wrong_are_refused() {
        let mut memory = GuestMemory::default();
        let file = memfd(0x3000);
        let mut map = |address, size, offset| memory.map(range(address, size, offset), file.try_clone().ok());
        assert_eq!(map(0x1000, 0, 0), Err(Errno::INVAL), "empty");
        assert_eq!(map(0x1000, 0x4000, 0), Err(Errno::INVAL), "past the end");
        assert_eq!(map(0x1000, 0x1000, !0xfff), Err(Errno::INVAL), "past any end");
        assert_eq!(map(0x1004, 0x1000, 0), Err(Errno::INVAL), "part of a page");
        assert_eq!(map(!0xfff, 0x2000, 0), Err(Errno::INVAL), "wraps");
        assert_eq!(map(0x2000, 0x2000, 0), Ok(()));
        for (address, size) in [
            (0x2000, 0x1000),
            (0x3000, 0x1000),
            (0x1000, 0x2000),
            (0x1000, 0x3000),
        ] {
            assert_eq!(map(address, size, 0), Err(Errno::EXIST), "{address:#x}");
        }
        assert_eq!(map(0x1000, 0x1000, 0), Ok(()));
        assert_eq!(map(0x4000, 0x1000, 0), Ok(()));
    }

    #[test]
    fn ranges_are_removed_whole() {
        let mut memory = GuestMemory::default();
        let file = memfd(0x3000);
        for page in 1..4 {
            memory
                .map(range(page * 0x2000, 0x2000, 0), file.try_clone().ok())
                .unwrap();
        }
        for (address, size) in [
            (0x3000, 0x1000),
            (0x2000, 0x1000),
            (0x1000, 0x2000),
            (0x9000, 0x1000),
        ] {
            assert_eq!(memory.unmap(address, size), Err(Errno::INVAL), "{address:#x}");
        }
        assert_eq!(memory.unmap(0x2000, u64::MAX), Err(Errno::INVAL));
        assert_eq!(memory.unmap(0x2000, 0x4000), Ok(()));
        assert!(!memory.read(0x2000, &mut [0]) && memory.read(0x6000, &mut [0]));
        memory.clear();
        assert!(!memory.read(0x6000, &mut [0]));
    }

    #[test]
    fn ranges_of_one_file_share_one_descriptor() {
        let mut memory = GuestMemory::default();
        let file = memfd(0x1000);
        for page in 0..64 {
            memory
                .map(range(page * 0x1000, 0x1000, 0), file.try_clone().ok())
                .unwrap();
        }
        let region = memory.ranges[0].region.as_ref().unwrap();
        assert_eq!(Arc::strong_count(region.file_offset().unwrap().arc()), 64);
    }
}
