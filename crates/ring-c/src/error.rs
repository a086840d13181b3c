//! Errors: an errno for the program, a sentence for its user.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use usb4_ffi::boundary_or;
use usb4_ring::Error;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What a function of this library came to.
pub(crate) enum Failure {
    /// The ring API's error.
    Ring(Error),
    /// One that is the C interface's own.
    Own(c_int, &'static str),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ring(error)
    }
}

impl Failure {
    fn number(&self) -> c_int {
        match self {
            Self::Ring(error) => number(error),
            Self::Own(number, _) => *number,
        }
    }
}

/// An argument that may not be NULL.
#[inline]
pub(crate) fn given<T>(argument: Option<T>) -> Result<T, Failure> {
    argument.ok_or(Failure::Own(
        libc::EINVAL,
        "NULL was given for what may not be NULL",
    ))
}

/// The errno of an error.
fn number(error: &Error) -> c_int {
    match error {
        Error::NoDevice => libc::ENODEV,
        Error::Permission { .. } => libc::EACCES,
        Error::NotADevice(_) => libc::ENOTTY,
        Error::AbiVersion { .. } => libc::EPROTO,
        Error::Pin { .. } => libc::ENOMEM,
        Error::BadSpec { .. } | Error::Invalid(_) => libc::EINVAL,
        Error::Unsupported(_) => libc::EOPNOTSUPP,
        Error::Limit(_) => libc::ENOSPC,
        Error::Unreachable(_) | Error::RefusedPeer(..) => libc::EHOSTUNREACH,
        Error::ConnectTimeout(_) => libc::ETIMEDOUT,
        Error::QueueFull => libc::EAGAIN,
        Error::Forked => libc::ECHILD,
        Error::Gone => libc::ESHUTDOWN,
        Error::OpenDevice { source, .. } | Error::Os { source, .. } => {
            source.raw_os_error().unwrap_or(libc::EIO)
        }
        _ => libc::EIO,
    }
}

/// Runs a function's body: what it returns for C, negative if it failed.
#[inline]
pub(crate) fn run(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    boundary_or(-libc::EIO, || match body() {
        Ok(value) => value,
        Err(failure) => -tell(&failure),
    })
}

/// Keeps the sentence; the errno. A full queue is part of the game and has no sentence: to make one allocates.
#[cold]
fn tell(failure: &Failure) -> c_int {
    let text = match failure {
        Failure::Ring(Error::QueueFull) => return libc::EAGAIN,
        Failure::Ring(error) => error.to_string(),
        Failure::Own(_, text) => (*text).to_string(),
    };
    LAST.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
    failure.number()
}

/// The sentence about the last failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn usb4ring_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn usb4ring_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
