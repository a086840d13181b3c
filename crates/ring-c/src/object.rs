//! Objects on their way to C and back.

use std::ffi::c_int;

use usb4_ffi::{Process, boundary};
use usb4_ring::Error;

use crate::error::{Failure, given};

/// What a device has given to this process, and not to its children.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    of: Process,
    it: T,
}

impl<T> Owned<T> {
    pub(crate) fn new(it: T) -> Self {
        Self {
            of: Process::current(),
            it,
        }
    }

    /// # Errors
    /// This is a child of the process it is of.
    #[inline]
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        if self.of.is_current() {
            Ok(&self.it)
        } else {
            Err(Error::Forked.into())
        }
    }

    /// As [`Self::get`], for what one thread uses at a time.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> Result<&mut T, Failure> {
        if self.of.is_current() {
            Ok(&mut self.it)
        } else {
            Err(Error::Forked.into())
        }
    }

    /// What of it is plain memory.
    #[inline]
    pub(crate) fn anywhere(&self) -> &T {
        &self.it
    }
}

/// Gives an object to C.
///
/// # Safety
/// `out` is NULL, which is refused, or a place for a pointer.
pub(crate) unsafe fn give<T>(
    out: *mut *mut T,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<c_int, Failure> {
    // SAFETY: the caller's promise. What is there may be anything: it is only written to.
    let out = given(unsafe { out.cast::<std::mem::MaybeUninit<*mut T>>().as_mut() })?;
    out.write(Box::into_raw(Box::new(make()?)));
    Ok(0)
}

/// Takes an object back from C; NULL is none.
///
/// # Safety
/// It was given by [`give`], is taken back once, and nobody uses it any more.
pub(crate) unsafe fn take_back<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: `give` made it of a box, and the caller gives it back.
        boundary(|| drop(unsafe { Box::from_raw(object) }));
    }
}
