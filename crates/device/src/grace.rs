//! How long a spinner that has left may stay away before the thread takes over.

use crate::sync::{AtomicU32, Ordering};

/// On a processor whose timers are in time, in nanoseconds: longer than a client takes from one `ENTER` to the next.
const LEAST: u32 = 50_000;

/// Whatever timers do: a peer waits for twice this, and for as long as the timers are late, when a client that has polled
/// no longer does.
const MOST: u32 = 400_000;

/// How many times as long as its timer is late. Where that takes as long as a few dozen `ENTER`s (a guest, above all an
/// emulated one: 50 us), a client would else be interrupted most of the time, and never be back before the next time.
const TIMES_LATE: u32 = 8;

/// One timer that is late says little: what it changes is divided by this.
const SMOOTHING: u32 = 4;

/// What a link's hand-over timer runs for.
#[derive(Debug)]
pub struct Grace {
    nanos: AtomicU32,
}

impl Grace {
    /// The least.
    pub fn new() -> Self {
        Self {
            nanos: AtomicU32::new(LEAST),
        }
    }

    /// The shortest, for clients that are not expected back in time: nanoseconds.
    pub const AWAY: u32 = LEAST;

    /// Nanoseconds.
    pub fn get(&self) -> u32 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// The timer has interrupted a processor on which clients poll, `late` nanoseconds after it should have. Called by one
    /// at a time.
    pub fn adapt(&self, late: u64) {
        let late = u32::try_from(late).unwrap_or(u32::MAX);
        let wanted = late.saturating_mul(TIMES_LATE).clamp(LEAST, MOST);
        let now = self.get();
        let next = if wanted > now {
            now.saturating_add(wanted.saturating_sub(now).div_ceil(SMOOTHING))
        } else {
            now.saturating_sub(now.saturating_sub(wanted).div_ceil(SMOOTHING))
        };
        self.nanos.store(next, Ordering::Relaxed);
    }
}

impl Default for Grace {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn after(late: u64, times: usize) -> Grace {
        let grace = Grace::new();
        for _ in 0..times {
            grace.adapt(late);
        }
        grace
    }

    #[test]
    fn timers_in_time_leave_it_as_it_is() {
        assert_eq!(after(2_000, 100).get(), LEAST);
    }

    #[test]
    fn an_emulated_processor_gets_longer_within_a_few_expiries() {
        assert!(after(40_000, 8).get() > 280_000);
        assert_eq!(after(40_000, 100).get(), 320_000);
    }

    #[test]
    fn however_late_it_has_a_limit() {
        assert_eq!(after(u64::MAX, 100).get(), MOST);
    }

    #[test]
    fn one_that_was_late_is_soon_forgotten() {
        let grace = after(5_000_000, 1);
        assert!(grace.get() < 150_000);
        for _ in 0..10 {
            grace.adapt(1_000);
        }
        assert!(grace.get() < LEAST + LEAST / 10);
    }
}
