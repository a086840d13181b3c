//! Memory of the queues a client shares with its device.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use usb4_device::QueueWords;

use crate::fork::Zeroed;
use crate::memory::{Mapping, Sharing};

/// The words of a queue, in this process or shared with another. A clone is the same words.
#[derive(Clone)]
pub struct QueueMemory {
    words: NonNull<AtomicU64>,
    count: usize,
    /// What keeps `words` alive.
    _owner: Owner,
}

#[derive(Clone)]
enum Owner {
    Heap(#[expect(dead_code, reason = "keeps the words alive")] Arc<[AtomicU64]>),
    /// A client's is zeroed in its children.
    Shared(#[expect(dead_code, reason = "keeps the words alive")] Arc<(Option<Zeroed>, Mapping)>),
}

// SAFETY: like the `Arc` of atomics it is.
unsafe impl Send for QueueMemory {}
// SAFETY: as above.
unsafe impl Sync for QueueMemory {}

impl QueueMemory {
    /// `count` zeroed words of this process.
    pub(crate) fn local(count: usize) -> Self {
        let words: Arc<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            words: NonNull::from(&*words).cast(),
            count,
            _owner: Owner::Heap(words),
        }
    }

    /// `count` zeroed words to be shared by descriptor.
    pub(crate) fn shared(count: usize) -> io::Result<(Self, OwnedFd)> {
        let (mapping, fd) = Mapping::create("usb4-queue", count.saturating_mul(8), Sharing::ReadWrite)?;
        Ok((Self::mapped(mapping, None, count)?, fd))
    }

    /// `count` words another process shares with us.
    pub(crate) fn open(fd: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let len = count.saturating_mul(8).next_multiple_of(crate::memory::PAGE);
        let mapping = Mapping::open(fd, len, Sharing::ReadWrite)?.dont_fork()?;
        let zeroed = Zeroed::new(mapping.as_ptr().addr(), len)?;
        Self::mapped(mapping, Some(zeroed), count)
    }

    /// `count` words a device of the kernel has at `offset`, in memory that stays there as long as it is mapped.
    ///
    /// # Errors
    /// The device refuses.
    pub fn device(fd: BorrowedFd<'_>, offset: u64, count: usize, sharing: Sharing) -> io::Result<Self> {
        let len = count.saturating_mul(8).next_multiple_of(crate::memory::PAGE);
        let mapping = Mapping::device(fd, offset, len, sharing)?.dont_fork()?;
        let zeroed = Zeroed::new(mapping.as_ptr().addr(), len)?;
        Self::mapped(mapping, Some(zeroed), count)
    }

    fn mapped(mapping: Mapping, zeroed: Option<Zeroed>, count: usize) -> io::Result<Self> {
        let words = mapping.words(0, count);
        if words.len() != count {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            words: NonNull::from(words).cast(),
            count,
            _owner: Owner::Shared(Arc::new((zeroed, mapping))),
        })
    }
}

impl Deref for QueueMemory {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `words` are `count` atomics that `_owner` keeps alive and in place.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }
}

// SAFETY: see `deref`: `_owner` keeps them in place.
unsafe impl QueueWords for QueueMemory {}

impl fmt::Debug for QueueMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueMemory")
            .field("words", &self.count)
            .finish_non_exhaustive()
    }
}
