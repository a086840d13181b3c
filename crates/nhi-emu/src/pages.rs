//! The pages of BAR0 that a guest has mapped, so that its writes do not trap.
//!
//! They are in a file of BAR0's size, each at its offset, which the client maps. The model never sees them: it asks
//! through [`Pages::word`] when it is polled.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use usb4_nhi_model::{BAR0_SIZE, MappedPage};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::protocol::Area;

/// The mapped pages of one controller.
#[derive(Debug)]
pub(crate) struct Pages {
    file: OwnedFd,
    region: MmapRegion,
    which: Vec<MappedPage>,
}

impl Pages {
    pub(crate) fn new(which: Vec<MappedPage>) -> io::Result<Self> {
        let file = memfd_create("nhi-bar0", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, BAR0_SIZE)?;
        // The client must not be able to shorten what we have mapped.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let size = usize::try_from(BAR0_SIZE).map_err(io::Error::other)?;
        let start = FileOffset::new(File::from(file.try_clone()?), 0);
        let region = MmapRegion::from_file(start, size).map_err(io::Error::other)?;
        Ok(Self { file, region, which })
    }

    /// The pages, as the model knows them.
    pub(crate) fn which(&self) -> impl Iterator<Item = MappedPage> {
        self.which.iter().copied()
    }

    /// The pages, as the protocol names them.
    pub(crate) fn areas(&self) -> Vec<Area> {
        self.which()
            .map(|page| (page.offset(), MappedPage::SIZE))
            .collect()
    }

    /// The page `offset` of BAR0 is in, if it is mapped.
    pub(crate) fn holds(&self, offset: u64) -> bool {
        self.which().any(|page| {
            offset
                .checked_sub(page.offset())
                .is_some_and(|at| at < MappedPage::SIZE)
        })
    }

    /// The file the client maps.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What the guest has written at `offset` of BAR0; 0 outside it.
    pub(crate) fn word(&self, offset: u64) -> u32 {
        self.place(offset)
            .map_or(0, |word| u32::from_le(word.load(Ordering::Acquire)))
    }

    /// Writes as the guest would.
    pub(crate) fn set(&self, offset: u64, value: u32) {
        if let Some(word) = self.place(offset) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Power-on state.
    pub(crate) fn clear(&self) {
        for (start, size) in self.areas() {
            (start..start.saturating_add(size))
                .step_by(size_of::<u32>())
                .for_each(|offset| self.set(offset, 0));
        }
    }

    fn place(&self, offset: u64) -> Option<&AtomicU32> {
        self.region.get_atomic_ref(usize::try_from(offset).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_sees_the_words_where_bar0_has_them() {
        let pages = Pages::new(vec![MappedPage::RxRings]).unwrap();
        pages.set(0x8008, 0x0102_0304);
        let mut bytes = [0; 4];
        rustix::io::pread(pages.file(), &mut bytes, 0x8008).unwrap();
        assert_eq!(bytes, [4, 3, 2, 1]);
        assert!(pages.holds(0x8ffc) && !pages.holds(0x9000) && !pages.holds(0));
        pages.clear();
        assert_eq!(pages.word(0x8008), 0);
        assert_eq!((pages.word(BAR0_SIZE), pages.word(u64::MAX)), (0, 0));
    }

    #[test]
    fn the_client_cannot_shorten_the_file() {
        let pages = Pages::new(vec![]).unwrap();
        assert_eq!(ftruncate(pages.file(), 0), Err(rustix::io::Errno::PERM));
    }
}
