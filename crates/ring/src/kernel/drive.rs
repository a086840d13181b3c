//! `ENTER`: submitting, driving, sleeping.

use std::time::Duration;

use rustix::io::Errno;
use usb4_ring_abi::uapi;
use usb4_soft::CqParts;

use super::errors::Request;
use super::{Client, nanos};
use crate::Result;

impl Client {
    /// The client has published entries on this endpoint's queues. `asleep` tells whether one of them says that the
    /// device does not look at it by itself.
    #[inline]
    pub(crate) fn submit(&self, endpoint: u32, asleep: impl FnOnce() -> bool) -> Result<()> {
        self.check()?;
        if asleep() {
            self.ring
                .submit(endpoint)
                .map_err(|errno| self.refused(Request::Enter, errno))?;
        }
        Ok(())
    }

    /// Drives the device once, unless others drive all of it.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        if self.check().is_err() {
            return false;
        }
        match self.ring.progress() {
            Ok(done) => done,
            Err(errno) => {
                self.refused(Request::Enter, errno);
                false
            }
        }
    }

    /// Drives the device once, then sleeps until the completion queue, which the caller has armed, is not empty, or
    /// `left` is over, or a signal comes.
    pub(crate) fn sleep(&self, cq: &CqParts, left: Option<Duration>) -> Result<()> {
        self.check()?;
        let what = uapi::Enter {
            flags: uapi::ENTER_PROGRESS | uapi::ENTER_WAIT,
            cq: cq.id,
            timeout_ns: left.map_or(uapi::FOREVER, nanos),
            ..uapi::Enter::new()
        };
        match self.ring.enter(what) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(self.refused(Request::Enter, errno)),
        }
    }
}
