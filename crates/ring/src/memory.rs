//! Memory regions.

use std::ops::BitOr;

use crate::{Buffer, Error, Result};

/// What peers may do to a memory region. Its owner may always use it locally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// Local use only.
    pub const LOCAL: Self = Self(0);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: Self = Self(4);
    /// Peers may do everything.
    pub const REMOTE_ALL: Self = Self(7);

    /// Whether it includes all of `other`.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Registered memory. A clone is another handle of the same region; dropping the last one deregisters it,
/// after which no operation touches the memory any more. Work that still names it completes with an error.
///
/// `MemoryRegion` is `Send + Sync`: its bytes are only ever copied in and out, as the device and peers may
/// change them at any time.
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    _private: (),
}

impl MemoryRegion {
    /// Its address, as peers name it in [`crate::Remote::addr`].
    pub fn addr(&self) -> u64 {
        0
    }

    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        0
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key for local use.
    #[inline]
    pub fn local_key(&self) -> u32 {
        0
    }

    /// The key for peers: random, 64 bits.
    pub fn remote_key(&self) -> u64 {
        0
    }

    /// Where this process has it mapped.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::null_mut()
    }

    /// `len` bytes from `offset`, for a request.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when they are not within the region.
    #[inline]
    pub fn buffer(&self, _offset: usize, _len: usize) -> Result<Buffer> {
        Err(Error::Invalid("the range is not within the memory region"))
    }

    /// Copies bytes from `offset` out of the region.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when they are not within the region.
    pub fn read(&self, _offset: usize, _out: &mut [u8]) -> Result<()> {
        Err(Error::Invalid("the range is not within the memory region"))
    }

    /// Copies `bytes` to `offset` in the region.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when they do not fit.
    pub fn write(&self, _offset: usize, _bytes: &[u8]) -> Result<()> {
        Err(Error::Invalid("the range is not within the memory region"))
    }
}
