//! An address in memory that NCCL laid out, and typed access to what is at offsets from it.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An address in NCCL's structures or in a user's buffer.
///
/// Who makes one vouches for everything that is read through it: NCCL keeps a kernel's arguments, the communicator, the
/// connections and the user's buffers until the kernel has ended, and the offsets are those of [`super::layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(usize);

impl Place {
    /// # Safety
    /// Whatever is accessed through this place, at offsets from it and behind pointers in it, is mapped and has the type
    /// it is accessed with, until the kernel that runs has ended.
    pub(crate) unsafe fn new(address: *const u8) -> Self {
        Place(address.expose_provenance())
    }

    pub(crate) fn at(self, offset: usize) -> Place {
        Place(self.0.wrapping_add(offset))
    }

    pub(crate) fn is_null(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn bytes(self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.0)
    }

    /// The place that the pointer at `offset` names.
    pub(crate) fn place(self, offset: usize) -> Place {
        Place(self.read::<usize>(offset))
    }

    pub(crate) fn u8(self, offset: usize) -> u8 {
        self.read(offset)
    }

    pub(crate) fn u32(self, offset: usize) -> u32 {
        self.read(offset)
    }

    pub(crate) fn i32(self, offset: usize) -> i32 {
        self.read(offset)
    }

    pub(crate) fn u64(self, offset: usize) -> u64 {
        self.read(offset)
    }

    /// A length or an offset.
    pub(crate) fn size(self, offset: usize) -> usize {
        self.read(offset)
    }

    /// The 8-byte word here, which another thread writes.
    pub(crate) fn load(self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    /// Sets the 8-byte word here, after everything written before.
    pub(crate) fn store(self, value: u64) {
        self.word().store(value, Ordering::Release);
    }

    /// The 4-byte word here, which another thread writes.
    pub(crate) fn load_u32(self) -> u32 {
        // SAFETY: an aligned word of NCCL's (see `new`) that is only accessed atomically while kernels run.
        unsafe { AtomicU32::from_ptr(self.bytes().cast()) }.load(Ordering::Acquire)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: an aligned word of NCCL's (see `new`) that is only accessed atomically while kernels run.
        unsafe { AtomicU64::from_ptr(self.bytes().cast()) }
    }

    fn read<T: Copy>(self, offset: usize) -> T {
        let at: *const T = self.at(offset).bytes().cast();
        // SAFETY: `new` vouches for it. Volatile, since NCCL's threads write some of these fields between kernels.
        unsafe { at.read_volatile() }
    }
}
