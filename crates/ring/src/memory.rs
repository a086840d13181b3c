//! Memory regions.

use std::ops::BitOr;
use std::ptr;
use std::sync::Arc;

use usb4_soft::RegionParts;

use crate::device::Inner;
use crate::{Buffer, Error, Result};

/// What may be done to a memory region: by peers, and by its owner, who may read, and write unless it is said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// Local use only, reading and writing.
    pub const LOCAL: Self = Self(0);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: Self = Self(4);
    /// Peers may do everything.
    pub const REMOTE_ALL: Self = Self(7);
    /// Nobody writes: to send from it, and for peers to read. The memory need not be writable. Not with rights of peers to
    /// write; the owner's receives, READs and atomics into it fail.
    pub const READ_ONLY: Self = Self(8);

    /// Whether it includes all of `other`.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn to_device(self) -> Result<usb4_soft::Access> {
        usb4_soft::Access::from_bits(self.0).ok_or(Error::Invalid(
            "access rights that do not exist, or of peers to write what is read-only",
        ))
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Registered memory. A clone is another handle of the same region; dropping the last one deregisters it.
///
/// After that no operation touches memory that was the caller's ([`crate::Device::register`]): work in flight
/// that still names it sends zeros and drops what it receives. Memory of [`crate::Device::alloc`] lives on until
/// such work is done. New work that names the region completes with an error in both cases.
///
/// `MemoryRegion` is `Send + Sync`: its bytes are only ever copied in and out, as the device and peers may
/// change them at any time.
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    shared: Arc<Registration>,
}

/// The registration of memory of this process, or of a dma-buf: a [`MemoryRegion`] with one owner, who drops it. To make
/// one allocates nothing, where a message at a time is registered.
#[derive(Debug)]
pub struct Registration {
    device: Arc<Inner>,
    parts: RegionParts,
    access: Access,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.device.client.deregister(&self.parts);
    }
}

impl Registration {
    pub(crate) fn new(device: Arc<Inner>, parts: RegionParts, access: Access) -> Self {
        Self {
            device,
            parts,
            access,
        }
    }

    /// Its address, as peers name it in [`crate::Remote::addr`].
    #[inline]
    pub fn addr(&self) -> u64 {
        self.parts.start as u64
    }

    /// The key for peers: see [`MemoryRegion::remote_key`].
    #[inline]
    pub fn remote_key(&self) -> u64 {
        self.parts.remote_key
    }

    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.parts.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key for local use.
    #[inline]
    pub fn local_key(&self) -> u32 {
        self.parts.local_key
    }

    /// `len` bytes from `offset`, for a request of its owner's.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when they are not within it.
    #[inline]
    pub fn buffer(&self, offset: usize, len: usize) -> Result<Buffer> {
        let start = self.range(offset, len)?;
        let len = u32::try_from(len).map_err(|_| Error::Invalid("a buffer has less than 4 GiB"))?;
        Ok(Buffer {
            addr: start as u64,
            key: self.parts.local_key,
            len,
        })
    }

    /// The address of `len` bytes from `offset`.
    #[inline]
    fn range(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            Some(end) if end <= self.parts.len => Ok(self.parts.start.wrapping_add(offset)),
            _ => Err(Error::Invalid("the range is not within the memory region")),
        }
    }
}

impl MemoryRegion {
    pub(crate) fn new(device: Arc<Inner>, parts: RegionParts, access: Access) -> Self {
        Self {
            shared: Arc::new(Registration::new(device, parts, access)),
        }
    }

    /// Its address, as peers name it in [`crate::Remote::addr`].
    pub fn addr(&self) -> u64 {
        self.as_ptr() as u64
    }

    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key for local use.
    #[inline]
    pub fn local_key(&self) -> u32 {
        self.shared.local_key()
    }

    /// The key for peers: 64 bits, of which 50 are random with the default table; the rest are its index there.
    pub fn remote_key(&self) -> u64 {
        self.shared.parts.remote_key
    }

    /// Where this process has it mapped.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.parts.start
    }

    /// `len` bytes from `offset`, for a request.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when they are not within the region.
    #[inline]
    pub fn buffer(&self, offset: usize, len: usize) -> Result<Buffer> {
        self.shared.buffer(offset, len)
    }

    /// Copies bytes from `offset` out of the region.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when they are not within the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let start = self.shared.range(offset, out.len())?;
        // SAFETY: within the region, which stays mapped as long as it is registered; `out` is a Rust reference,
        // so it does not overlap memory the device was given.
        unsafe { ptr::copy_nonoverlapping(start, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` to `offset` in the region.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when they do not fit, or the region is read-only.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        if self.shared.access.contains(Access::READ_ONLY) {
            return Err(Error::Invalid("the memory region is read-only"));
        }
        let start = self.shared.range(offset, bytes.len())?;
        // SAFETY: as for `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        Ok(())
    }
}
