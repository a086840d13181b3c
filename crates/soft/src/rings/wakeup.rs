//! How one side of a cable sleeps and the other wakes it.
//!
//! The sleeper makes its word odd, fences, looks at the rings once more, and blocks if they are empty. The
//! waker writes to the rings, fences, and looks at the word. Store-then-load of different words may be
//! reordered by the processor; with a sequentially consistent fence between them on both sides, one fence
//! comes first: if the sleeper's, the waker sees the odd word and rings the doorbell; if the waker's, the
//! sleeper sees the entry and stays awake. The word counts, so that a waker rings once per sleep.

use super::sync::{AtomicU64, Ordering, fence};

/// The side that sleeps: the writer of the word.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    count: u64,
}

impl Sleeper {
    /// Announces the sleep. The caller looks at the rings after it.
    pub(crate) fn arm(&mut self, word: &AtomicU64) {
        if self.count % 2 == 0 {
            self.count = self.count.wrapping_add(1);
        }
        word.store(self.count, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back.
    pub(crate) fn disarm(&mut self, word: &AtomicU64) {
        if self.count % 2 == 1 {
            self.count = self.count.wrapping_add(1);
            word.store(self.count, Ordering::Relaxed);
        }
    }
}

/// The side that wakes. May be used by several threads: at worst the doorbell is rung twice.
#[derive(Debug)]
pub(crate) struct Waker {
    /// The count last rung for.
    rung: AtomicU64,
}

impl Default for Waker {
    fn default() -> Self {
        Self {
            rung: AtomicU64::new(0),
        }
    }
}

impl Waker {
    /// After writing to the rings and a sequentially consistent fence: whether the sleeper must be woken.
    #[inline]
    pub(crate) fn must_wake(&self, word: &AtomicU64) -> bool {
        let count = word.load(Ordering::Relaxed);
        if count % 2 == 0 || count == self.rung.load(Ordering::Relaxed) {
            return false;
        }
        self.rung.store(count, Ordering::Relaxed);
        true
    }
}
