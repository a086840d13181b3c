//! One lock per domain: it covers the domain's endpoints, completion queues and address vectors. An
//! application that promises one thread per domain (`FI_THREAD_DOMAIN`) gets none. A child of `fork` gets no access.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use usb4_ffi::Process;

/// State behind a lock that may be off.
pub(crate) struct DomainLock<T> {
    raw: RawMutex,
    on: bool,
    process: Process,
    state: UnsafeCell<T>,
}

// SAFETY: with the lock on this is a mutex. With the lock off the application has promised that only one
// thread at a time is in the domain's calls (`FI_THREAD_DOMAIN`).
unsafe impl<T: Send> Sync for DomainLock<T> {}

impl<T> DomainLock<T> {
    /// `on`: whether several threads may call at a time.
    pub(crate) fn new(state: T, on: bool) -> Self {
        Self {
            raw: RawMutex::INIT,
            on,
            process: Process::current(),
            state: UnsafeCell::new(state),
        }
    }

    /// Takes the lock; `None` in a child of the process that made it. No caller takes it twice: nothing in this library
    /// calls back into the application.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Guard<'_, T>> {
        if !self.process.is_current() {
            return None;
        }
        if self.on {
            self.raw.lock();
        }
        Some(Guard { lock: self })
    }
}

/// Access to the state.
pub(crate) struct Guard<'a, T> {
    lock: &'a DomainLock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only access, by the lock or by the application's promise.
        unsafe { &*self.lock.state.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.state.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.on {
            // SAFETY: this guard took it.
            unsafe { self.lock.raw.unlock() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_when_the_lock_is_on() {
        let lock = DomainLock::new(0u32, true);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock().unwrap() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock().unwrap(), 40_000);
    }

    #[test]
    fn a_child_is_refused_a_lock_that_a_thread_of_its_parent_holds() {
        let lock = DomainLock::new((), true);
        let guard = lock.lock();
        // SAFETY: the child makes only async-signal-safe calls beside the one tested.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; were the child to hang, the signal ends it.
            unsafe {
                libc::alarm(10);
                libc::_exit(libc::c_int::from(lock.lock().is_some()));
            }
        }
        drop(guard);
        let mut status = -1;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(lock.lock().is_some(), "the parent goes on");
    }
}
