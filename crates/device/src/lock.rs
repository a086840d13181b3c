//! Leaf locks over whatever lock the home has.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, Ordering, UnsafeCell, spin_loop};

/// A mutual exclusion lock without data: a kernel spinlock, a futex, a test's.
///
/// # Safety
/// Between a return of `lock` and the matching `unlock` no other `lock` on the same value returns, and what
/// happened before that `unlock` is visible after the next `lock`.
pub unsafe trait RawLock: Send + Sync {
    /// An unlocked lock.
    fn new() -> Self;
    /// Waits until the lock is free and takes it.
    fn lock(&self);
    /// Gives it back.
    ///
    /// # Safety
    /// The caller holds it.
    unsafe fn unlock(&self);
}

/// Data behind a [`RawLock`].
pub struct Lock<R, T> {
    raw: R,
    value: UnsafeCell<T>,
}

// SAFETY: the raw lock lets one thread at a time reach the value; that thread may move it out, hence `T: Send`.
unsafe impl<R: RawLock, T: Send> Sync for Lock<R, T> {}
// SAFETY: a lock owns its value and can go where the value can.
unsafe impl<R: RawLock, T: Send> Send for Lock<R, T> {}

impl<R: RawLock, T> Lock<R, T> {
    /// An unlocked lock around `value`.
    pub fn new(value: T) -> Self {
        Self {
            raw: R::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock; it is given back when the guard is dropped.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, R, T> {
        self.raw.lock();
        LockGuard {
            lock: self,
            not_send: PhantomData,
        }
    }
}

impl<R: RawLock, T: Default> Default for Lock<R, T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<R, T> fmt::Debug for Lock<R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}

/// Access to what a [`Lock`] protects.
pub struct LockGuard<'a, R: RawLock, T> {
    lock: &'a Lock<R, T>,
    /// Whoever took the lock gives it back: some raw locks insist.
    not_send: PhantomData<*const ()>,
}

impl<R: RawLock, T> Deref for LockGuard<'_, R, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while the raw lock is held, so nobody else has a reference; the borrow
        // ends with the guard's.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<R: RawLock, T> DerefMut for LockGuard<'_, R, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; the guard is borrowed mutably, so it has given out no other reference.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<R: RawLock, T> Drop for LockGuard<'_, R, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this guard took the lock and is gone after this.
        unsafe { self.lock.raw.unlock() }
    }
}

impl<R: RawLock, T> fmt::Debug for LockGuard<'_, R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard").finish_non_exhaustive()
    }
}

/// A lock that spins: for tests, and for homes that cannot be preempted while they hold it.
#[derive(Debug)]
pub struct SpinLock {
    taken: AtomicBool,
}

// SAFETY: the flag goes from false to true in one atomic step, so one `lock` returns per `unlock`; Acquire and
// Release order what happens in between.
unsafe impl RawLock for SpinLock {
    fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
        }
    }

    #[inline]
    fn lock(&self) {
        while self
            .taken
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            spin_loop();
        }
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.taken.store(false, Ordering::Release);
    }
}
