//! A completion queue's wait object: one descriptor that is readable when any of its endpoints has work, when
//! another thread has put something into the queue, when somebody signals, or when it is time to look again.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An epoll instance over the endpoints' descriptors, event descriptors and a timer.
pub(crate) struct Wait {
    epoll: OwnedFd,
    event: OwnedFd,
    news: OwnedFd,
    timer: OwnedFd,
    /// The timer runs, or has run out and nobody has been told.
    timed: AtomicBool,
}

impl Wait {
    /// # Errors
    /// The system is out of descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: plain system calls; the results are checked and owned.
        let (epoll, event, news, timer) = unsafe {
            (
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?,
                owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
                owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
                owned(libc::timerfd_create(
                    libc::CLOCK_MONOTONIC,
                    libc::TFD_CLOEXEC | libc::TFD_NONBLOCK,
                ))?,
            )
        };
        let wait = Self {
            epoll,
            event,
            news,
            timer,
            timed: AtomicBool::new(false),
        };
        for fd in [&wait.event, &wait.news, &wait.timer] {
            wait.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd())?;
        }
        Ok(wait)
    }

    /// The descriptor to wait on.
    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Adds an endpoint's descriptor.
    ///
    /// # Errors
    /// The system refuses it.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other,
        }
    }

    /// Forgets an endpoint's descriptor.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // It may be gone already.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd());
    }

    fn control(&self, operation: libc::c_int, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: a valid epoll descriptor and event.
        let rc = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Sleeps until the descriptor is readable or the time is over.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) {
        let ms = timeout.map_or(-1, |t| i32::try_from(t.as_millis().max(1)).unwrap_or(i32::MAX));
        let mut poll = libc::pollfd {
            fd: self.epoll.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, ms) };
    }

    /// Wakes a sleeper, who is told so.
    pub(crate) fn signal(&self) {
        ring(&self.event);
    }

    /// Whether somebody has signalled since the last call.
    pub(crate) fn take_signal(&self) -> bool {
        silence(&self.event)
    }

    /// Wakes a sleeper to look again.
    pub(crate) fn notify(&self) {
        ring(&self.news);
    }

    /// Wakes a sleeper `delay` from now, unless that is due anyway.
    pub(crate) fn look_again_in(&self, delay: Duration) {
        if self.timed.swap(true, Ordering::Relaxed) {
            return;
        }
        let once = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: delay.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: delay.subsec_nanos().into(),
            },
        };
        // SAFETY: a timer descriptor and a valid time.
        unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const once, std::ptr::null_mut()) };
    }

    /// Whether that time has come since the last call.
    pub(crate) fn is_time_to_look(&self) -> bool {
        let due = self.timed.load(Ordering::Relaxed) && silence(&self.timer);
        if due {
            self.timed.store(false, Ordering::Relaxed);
        }
        due
    }

    /// Whatever was to be looked at is looked at after this.
    pub(crate) fn take_news(&self) {
        silence(&self.news);
    }
}

fn ring(event: &OwnedFd) {
    let one: u64 = 1;
    // SAFETY: eight bytes to an event descriptor.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Whether it had been rung, or had run out.
fn silence(event: &OwnedFd) -> bool {
    let mut count: u64 = 0;
    // SAFETY: eight bytes from an event or timer descriptor that does not block.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
}

/// # Safety
/// `fd` is a fresh descriptor or negative.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_set_again_before_it_comes_is_not_put_off() {
        let wait = Wait::new().unwrap();
        wait.look_again_in(Duration::from_millis(1));
        wait.look_again_in(Duration::from_secs(3600));
        wait.sleep(None);
        assert!(wait.is_time_to_look());
        assert!(!wait.is_time_to_look());
    }

    #[test]
    fn a_signal_wakes_and_is_seen_once() {
        let wait = Wait::new().unwrap();
        assert!(!wait.take_signal());
        wait.signal();
        wait.sleep(None);
        assert!(wait.take_signal());
        assert!(!wait.take_signal());
    }
}
