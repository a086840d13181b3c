//! Children of `fork`: what was open before belongs to the parent.
//!
//! A thread that does not exist in the child may hold any lock there. So a handler in the child counts the fork, and
//! calls on what is older return an error before they take a lock.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use libfabric_sys::FI_EIO;

/// What calls on a parent's objects return in its child.
pub(crate) const FORKED: c_int = -FI_EIO;

/// Forks behind this process since the handler was installed.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process something was opened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// This one, from now on noticing forks.
    pub(crate) fn current() -> Self {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            // SAFETY: `in_child` is async-signal-safe, and this object stays loaded. Should there be no memory for the
            // handler, forks go unnoticed.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is still that process.
    #[inline(always)]
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}
