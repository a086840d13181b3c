//! Children of `fork`: what was open before belongs to the parent.
//!
//! A thread that does not exist in the child may hold any lock there. So a handler in the child counts the fork, and a
//! plugin asks here before it takes a lock.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks behind this process since the handler was installed.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process something was opened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This one, from now on noticing forks.
    pub fn current() -> Self {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            // SAFETY: `in_child` is async-signal-safe, and the plugins are linked so that they stay loaded. Should there be
            // no memory for the handler, forks go unnoticed.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is still that process.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}
