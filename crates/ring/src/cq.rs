//! Completion queues.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use crate::{Completion, Error, Result};

/// A completion queue. It cannot overflow: a request is taken from its queue only when there is room for its
/// completion.
///
/// `Cq` is `Send`; polling takes `&mut self`.
#[derive(Debug)]
pub struct Cq {
    _private: (),
}

impl Cq {
    /// Takes completions into `out`; returns how many. Does not drive the device: see
    /// [`crate::Device::progress`].
    #[inline]
    pub fn poll(&mut self, _out: &mut [Completion]) -> usize {
        0
    }

    /// A descriptor that becomes readable when a completion arrives after [`Cq::arm`]. For `poll(2)` and
    /// `epoll(7)` only; never read it.
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn wait_fd(&mut self) -> Result<BorrowedFd<'_>> {
        // SAFETY: replaced with the backend.
        Ok(unsafe { BorrowedFd::borrow_raw(RawFd::from(0u8)) })
    }

    /// Asks for [`Cq::wait_fd`] to become readable at the next completion, and lets the device's own thread
    /// drive it while the caller sleeps. Returns false if completions are there already: poll instead of
    /// sleeping.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`], [`Error::Forked`].
    pub fn arm(&mut self) -> Result<bool> {
        Err(Error::Gone)
    }

    /// Sleeps until a completion is there or `timeout` is over. Returns whether one is there.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`], [`Error::Forked`], [`Error::Os`].
    pub fn wait(&mut self, _timeout: Option<Duration>) -> Result<bool> {
        Err(Error::Gone)
    }
}
