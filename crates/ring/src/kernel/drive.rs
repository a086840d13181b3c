//! `ENTER`: submitting, driving, sleeping.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use usb4_ring_abi::uapi;
use usb4_soft::CqParts;

use super::errors::Request;
use super::{Client, nanos};
use crate::Result;

/// Polls in a row that do nothing before the caller begins to give its time slice away, and how many to the next time:
/// whoever has something for it may be waiting for this processor.
const PATIENCE: u32 = 64;
const PAUSE_EVERY: u32 = 32;

impl Client {
    /// The client has published entries on this endpoint's queues. `asleep` tells whether one of them says that the
    /// device does not look at it by itself.
    #[inline]
    pub(crate) fn submit(&self, endpoint: u32, asleep: impl FnOnce() -> bool) -> Result<()> {
        self.check()?;
        if asleep() {
            self.enter(uapi::Enter {
                flags: uapi::ENTER_SUBMIT | uapi::ENTER_PROGRESS,
                ep: endpoint,
                ..uapi::Enter::new()
            })?;
        }
        Ok(())
    }

    #[inline]
    fn enter(&self, mut what: uapi::Enter) -> Result<i32> {
        self.line
            .call(uapi::IOC_ENTER, &mut what)
            .map_err(|errno| self.refused(Request::Enter, errno))
    }

    /// Drives the device once, unless others drive all of it.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        if self.check().is_err() {
            return false;
        }
        let done = self.is_undriven()
            && self
                .enter(uapi::Enter {
                    flags: uapi::ENTER_PROGRESS,
                    ..uapi::Enter::new()
                })
                .is_ok_and(|done| done & uapi::ENTERED_PROGRESS != 0);
        if done {
            self.idle.store(0, Ordering::Relaxed);
        } else {
            self.be_patient();
        }
        done
    }

    /// Whether a link may be there that nobody drives.
    #[inline]
    fn is_undriven(&self) -> bool {
        let word = self
            .notice
            .as_ref()
            .and_then(|notice| notice.get(uapi::NOTICE_UNDRIVEN_WORD));
        word.is_none_or(|undriven| undriven.load(Ordering::Relaxed) != 0)
    }

    #[inline]
    fn be_patient(&self) {
        // Not a read-modify-write: a count lost to another thread does no harm.
        let idle = self.idle.load(Ordering::Relaxed).wrapping_add(1);
        if idle < PATIENCE {
            self.idle.store(idle, Ordering::Relaxed);
        } else {
            self.idle
                .store(PATIENCE.saturating_sub(PAUSE_EVERY), Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Drives the device once, then sleeps until the completion queue, which the caller has armed, is not empty, or
    /// `left` is over, or a signal comes.
    pub(crate) fn sleep(&self, cq: &CqParts, left: Option<Duration>) -> Result<()> {
        self.check()?;
        let mut what = uapi::Enter {
            flags: uapi::ENTER_PROGRESS | uapi::ENTER_WAIT,
            cq: cq.id,
            timeout_ns: left.map_or(uapi::FOREVER, nanos),
            ..uapi::Enter::new()
        };
        match self.line.call(uapi::IOC_ENTER, &mut what) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(self.refused(Request::Enter, errno)),
        }
    }
}
