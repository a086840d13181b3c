//! The device's locks in user space.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use usb4_device::RawLock;

/// Looks at a taken lock before the processor is given away.
const SPINS: u32 = 100;

/// Times the processor is given away before the thread sleeps: its priority may keep the holder from running.
const YIELDS: u32 = 100;

/// How long it sleeps then.
const NAP: Duration = Duration::from_micros(50);

/// A lock that is free nearly always: a message takes about a dozen, all held for less than a microsecond. It is
/// given back by a plain store, where a lock with a queue of waiters needs a second atomic operation to learn whether
/// somebody waits. Who meets a holder that was preempted gives the processor away, and sleeps if that does not help.
#[derive(Debug)]
pub(crate) struct QuickLock {
    taken: AtomicBool,
}

// SAFETY: `taken` goes from false to true in one atomic step, so one `lock` returns per `unlock`; Acquire and Release
// order what happens in between.
unsafe impl RawLock for QuickLock {
    fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
        }
    }

    #[inline]
    fn lock(&self) {
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

impl QuickLock {
    #[cold]
    fn wait(&self) {
        let mut tries = 0u32;
        while self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            tries = tries.saturating_add(1);
            if tries < SPINS {
                std::hint::spin_loop();
            } else if tries < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use usb4_device::Lock;

    use super::*;

    #[test]
    fn threads_that_count_under_it_lose_nothing() {
        let count = Arc::new(Lock::<QuickLock, u64>::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let count = Arc::clone(&count);
                std::thread::spawn(move || (0..100_000).for_each(|_| *count.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*count.lock(), 400_000);
    }

    #[test]
    fn a_holder_that_sleeps_is_waited_for() {
        let lock = Arc::new(Lock::<QuickLock, u32>::new(0));
        let mut held = lock.lock();
        let waiter = {
            let lock = Arc::clone(&lock);
            std::thread::spawn(move || *lock.lock())
        };
        std::thread::sleep(Duration::from_millis(20));
        *held = 7;
        drop(held);
        assert_eq!(waiter.join().unwrap(), 7);
    }
}
