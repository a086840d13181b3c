//! Shared memory between processes: sealed memfds and their mappings, and those of what the kernel shares.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A mapping whose size can no longer change, so that no access within it can fault: of a sealed memfd, of anonymous
/// memory, or of a device of the kernel that vouches for it.
///
/// Another process may write to it at any time: its bytes are reached by atomics and raw copies, never by
/// references.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Mapping` owns its pages like a box of atomics; every access through `&self` is an atomic or a raw
// copy whose callers deal with concurrent writers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Who may write to a new region besides its creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody: others can only map it for reading.
    ReadOnly,
    /// Whoever gets the descriptor.
    ReadWrite,
}

impl Mapping {
    /// Creates `len` zeroed bytes (rounded up to whole pages), mapped for reading and writing.
    pub(crate) fn create(name: &str, len: usize, sharing: Sharing) -> io::Result<(Self, OwnedFd)> {
        let len = len
            .max(1)
            .checked_next_multiple_of(PAGE)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        let mapping = Self::map(
            fd.as_fd(),
            0,
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::POPULATE,
        )?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if sharing == Sharing::ReadOnly {
            seals |= SealFlags::FUTURE_WRITE;
        }
        fcntl_add_seals(&fd, seals | SealFlags::SEAL)?;
        Ok((mapping, fd))
    }

    /// Maps a region another process has created. Refuses one that is not `len` bytes long or could still be
    /// shrunk under us.
    pub(crate) fn open(fd: BorrowedFd<'_>, len: usize, sharing: Sharing) -> io::Result<Self> {
        Self::open_with(fd, len, sharing, MapFlags::POPULATE)
    }

    /// As [`Mapping::open`], but pages are mapped as they are touched: what the other process has not filled, however
    /// large, takes no memory and no time.
    pub(crate) fn open_lazily(fd: BorrowedFd<'_>, len: usize, sharing: Sharing) -> io::Result<Self> {
        Self::open_with(fd, len, sharing, MapFlags::empty())
    }

    fn open_with(fd: BorrowedFd<'_>, len: usize, sharing: Sharing, populate: MapFlags) -> io::Result<Self> {
        let size = fstat(fd)?.st_size;
        if len == 0 || u64::try_from(size).ok() != Some(len as u64) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "shared memory of another size than said",
            ));
        }
        if !fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "shared memory whose size is not sealed",
            ));
        }
        let write = if sharing == Sharing::ReadWrite {
            ProtFlags::WRITE
        } else {
            ProtFlags::empty()
        };
        Self::map(fd, 0, len, ProtFlags::READ | write, populate)
    }

    /// `len` zeroed bytes of this process alone.
    ///
    /// # Errors
    /// There is no memory.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let len = len
            .max(1)
            .checked_next_multiple_of(PAGE)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// `len` bytes, whole pages, of what a device of the kernel has at `offset`.
    pub(crate) fn device(fd: BorrowedFd<'_>, offset: u64, len: usize, sharing: Sharing) -> io::Result<Self> {
        let write = match sharing {
            Sharing::ReadWrite => ProtFlags::WRITE,
            Sharing::ReadOnly => ProtFlags::empty(),
        };
        Self::map(fd, offset, len, ProtFlags::READ | write, MapFlags::POPULATE)
    }

    /// `populate`: at once, so that there is no page fault later in the data path.
    fn map(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        prot: ProtFlags,
        populate: MapFlags,
    ) -> io::Result<Self> {
        let flags = MapFlags::SHARED | populate;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, fd, offset)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Keeps the pages out of child processes, which have no business with a device of their parent.
    pub(crate) fn dont_fork(self) -> io::Result<Self> {
        // SAFETY: our own mapping; the advice changes nothing in this process.
        unsafe {
            madvise(
                self.start.as_ptr().cast::<c_void>(),
                self.len,
                Advice::LinuxDontFork,
            )?
        };
        Ok(self)
    }

    /// Its first byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// `count` words from byte `offset`; none where they are not within the mapping or not aligned. A
    /// mapping for reading takes loads only.
    #[inline]
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let fits = count
            .checked_mul(8)
            .and_then(|bytes| bytes.checked_add(offset))
            .is_some_and(|end| end <= self.len);
        if !fits || offset % 8 != 0 {
            return &[];
        }
        // SAFETY: within the mapping, which lives as long as `self`, and aligned: a mapping starts at a page.
        // Atomics may be shared with writers in other processes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast::<AtomicU64>(), count) }
    }

    /// The address of `len` bytes from `offset`, if they are within the mapping.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: within the mapping.
        Some(unsafe { self.start.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody can hold a pointer into it that outlives `self`. A failure would
        // leave the pages mapped, which harms nobody.
        let _ = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// Faults in the pages of memory of this process for reading, or for writing too, as whoever pins them does.
///
/// # Errors
/// `EFAULT`: there is no memory, or none that can be written.
pub(crate) fn populate(start: *mut u8, len: usize, writable: bool) -> io::Result<()> {
    let first = start.map_addr(|addr| addr & !(PAGE - 1));
    let len = len + (start.addr() - first.addr());
    let advice = if writable {
        Advice::LinuxPopulateWrite
    } else {
        Advice::LinuxPopulateRead
    };
    // SAFETY: reads and writes nothing; what is not mapped is refused.
    let populated = unsafe { madvise(first.cast::<c_void>(), len, advice) };
    // What is not writable is an argument to be refused here, and a fault to `pin_user_pages`.
    populated.map_err(|errno| match errno {
        Errno::INVAL | Errno::NOMEM => Errno::FAULT.into(),
        errno => errno.into(),
    })
}

/// Size of a page on x86-64.
pub(crate) const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn only_memory_that_can_be_written_is_populated() {
        static WORDS: [u64; 512] = [1; 512];
        let ours = Mapping::anonymous(3 * PAGE).unwrap();
        populate(ours.as_ptr().wrapping_add(100), 2 * PAGE, true).unwrap();
        populate(WORDS.as_ptr().cast_mut().cast(), 1, false).unwrap();
        for start in [
            WORDS.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(PAGE),
        ] {
            let refused = populate(start, 1, true).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(Errno::FAULT.raw_os_error()));
        }
    }

    #[test]
    fn what_one_mapping_stores_the_other_loads() {
        let (ours, fd) = Mapping::create("test", 100, Sharing::ReadOnly).unwrap();
        assert_eq!(ours.len, PAGE);
        let theirs = Mapping::open(fd.as_fd(), PAGE, Sharing::ReadOnly).unwrap();
        ours.words(8, 1)[0].store(7, Ordering::Relaxed);
        assert_eq!(theirs.words(8, 1)[0].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_read_only_region_cannot_be_mapped_for_writing() {
        let (_ours, fd) = Mapping::create("test", PAGE, Sharing::ReadOnly).unwrap();
        assert!(Mapping::open(fd.as_fd(), PAGE, Sharing::ReadWrite).is_err());
    }

    #[test]
    fn a_region_that_could_shrink_or_lies_about_its_size_is_refused() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, PAGE as u64).unwrap();
        assert!(Mapping::open(fd.as_fd(), PAGE, Sharing::ReadOnly).is_err());
        let (_ours, fd) = Mapping::create("test", PAGE, Sharing::ReadOnly).unwrap();
        assert!(ftruncate(&fd, 0).is_err());
        assert!(Mapping::open(fd.as_fd(), 2 * PAGE, Sharing::ReadOnly).is_err());
        assert!(Mapping::open(fd.as_fd(), 0, Sharing::ReadOnly).is_err());
    }

    #[test]
    fn memory_its_owner_has_not_filled_takes_none_when_it_is_mapped_lazily() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let len = 1 << 26;
        ftruncate(&fd, len as u64).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let lazy = Mapping::open_lazily(fd.as_fd(), len, Sharing::ReadWrite).unwrap();
        assert_eq!(fstat(&fd).unwrap().st_blocks, 0);
        lazy.words(8 * PAGE, 1)[0].store(7, Ordering::Relaxed);
        assert_eq!(fstat(&fd).unwrap().st_blocks, 8);
    }

    #[test]
    fn ranges_outside_the_mapping_are_none() {
        let (ours, _fd) = Mapping::create("test", PAGE, Sharing::ReadOnly).unwrap();
        assert!(ours.at(PAGE - 8, 8).is_some());
        assert!(ours.at(PAGE - 7, 8).is_none());
        assert!(ours.at(usize::MAX, 8).is_none());
        assert!(ours.words(PAGE - 8, 2).is_empty());
        assert!(ours.words(4, 1).is_empty());
        assert!(ours.words(0, usize::MAX).is_empty());
    }
}
