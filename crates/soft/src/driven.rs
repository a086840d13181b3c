//! State of whoever drives the device.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicBool, Ordering};

/// A value only the owner of [`crate::core::Core::owner`] touches: the owner word is its lock, so it needs none
/// of its own. Builds with debug assertions check that.
pub(crate) struct Driven<T> {
    value: UnsafeCell<T>,
    #[cfg(debug_assertions)]
    borrowed: AtomicBool,
}

// SAFETY: `borrow`'s contract lets one thread at a time reach the value, and the owner word orders one after the
// other.
unsafe impl<T: Send> Sync for Driven<T> {}

impl<T> Driven<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: UnsafeCell::new(value),
            #[cfg(debug_assertions)]
            borrowed: AtomicBool::new(false),
        }
    }

    /// The value.
    ///
    /// # Safety
    /// The calling thread drives the device (or nobody else knows this value yet), and no other borrow exists.
    #[inline]
    pub(crate) unsafe fn borrow(&self) -> Borrowed<'_, T> {
        #[cfg(debug_assertions)]
        assert!(
            !self.borrowed.swap(true, Ordering::Acquire),
            "two threads drive the device"
        );
        Borrowed { cell: self }
    }
}

impl<T> fmt::Debug for Driven<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven").finish_non_exhaustive()
    }
}

/// Access to what a [`Driven`] holds.
pub(crate) struct Borrowed<'a, T> {
    cell: &'a Driven<T>,
}

impl<T> Deref for Borrowed<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the only borrow, see `Driven::borrow`.
        unsafe { &*self.cell.value.get() }
    }
}

impl<T> DerefMut for Borrowed<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the only borrow, see `Driven::borrow`.
        unsafe { &mut *self.cell.value.get() }
    }
}

#[cfg(debug_assertions)]
impl<T> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        self.cell.borrowed.store(false, Ordering::Release);
    }
}
