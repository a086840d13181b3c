//! Error numbers, as verbs wants them: returned by what returns an `int`, in `errno` for what returns a pointer.

use std::ffi::c_int;
use std::io;
use std::ptr;

/// Puts `error` into `errno`.
pub(crate) fn set(error: c_int) {
    // SAFETY: the C library's own place for it, of this thread.
    unsafe { *libc::__errno_location() = error };
}

/// What `errno` says; something, even if whoever failed has said nothing.
pub(crate) fn last() -> c_int {
    // SAFETY: as above.
    match unsafe { *libc::__errno_location() } {
        0 => libc::EIO,
        error => error,
    }
}

/// The number in an error of the system's.
pub(crate) fn of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A pointer for C, or null and `errno`.
pub(crate) fn pointer<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|error| {
        set(error);
        ptr::null_mut()
    })
}

/// A status for C: 0, or an error number, which goes into `errno` as well.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set(error);
            error
        }
    }
}

/// What a function of libibverbs that returns 0 or an error number has returned.
pub(crate) fn check(status: c_int) -> Result<(), c_int> {
    match status {
        0 => Ok(()),
        // Some return -1 and leave the number in `errno`.
        error if error < 0 => Err(last()),
        error => Err(error),
    }
}
