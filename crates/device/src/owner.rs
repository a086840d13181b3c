//! Who polls: the ownership word of a link (or of all links of a home).
//!
//! At most one of {the home's thread, a spinning client} drives the rails. The word says who:
//!
//! * *idle*: nobody, and wakeups are armed: an event wakes the thread;
//! * *thread*, *spinner*: that one; events are found by polling;
//! * *left*: nobody, and wakeups are not armed: a spinner has left a moment ago, or the thread has, since others want
//!   its processor. Arming costs a system call or an MMIO under a lock, and the next spinner is usually microseconds
//!   away, so who leaves starts a timer instead. When it expires and nobody has spun since, the thread takes over.
//!
//! A bit in the same word says that work is pending. Whoever produces work sets it with [`Owner::notify`]; since
//! taking, leaving and notifying are atomic steps on one word, each notification either is seen by the owner
//! before it leaves, or sees that there is no owner and does something about it. `tests/loom.rs` checks this.

use crate::sync::{AtomicU32, Ordering};

const STATE: u32 = 3;
const IDLE: u32 = 0;
const THREAD: u32 = 1;
const SPINNER: u32 = 2;
const LEFT: u32 = 3;
/// Work was announced and the owner has not looked yet.
const WORK: u32 = 4;
/// A hand-over timer is running.
const TIMER: u32 = 8;
/// A spinner has left since the timer last expired.
const SPUN: u32 = 16;

/// The ownership word. Starts idle.
#[derive(Debug)]
pub struct Owner {
    word: AtomicU32,
}

/// What [`Owner::notify`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Notified {
    /// An owner is at work and will look again before it leaves.
    Owned,
    /// Nobody owns and wakeups are armed: wake the thread, or [`Owner::try_spin`].
    Idle,
    /// Nobody owns; the hand-over timer will see to it, or [`Owner::try_spin`] to have it done now.
    Left,
}

/// What a spinner that wants to leave has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Leave {
    /// It still owns: there is new work, look again.
    Work,
    /// It has left, and a hand-over timer is running.
    Watched,
    /// It has left; start the hand-over timer: after the grace period, [`Owner::expired`] must be called.
    StartTimer,
}

/// What becomes of an expired hand-over timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Expired {
    /// Start it again.
    Again,
    /// The thread owns now: it must work, then arm and [`Owner::try_sleep`].
    Taken,
    /// Not needed any more.
    Stop,
}

impl Owner {
    /// Idle.
    pub fn new() -> Self {
        Self {
            word: AtomicU32::new(IDLE),
        }
    }

    /// A client wants to drive. False if somebody else does.
    pub fn try_spin(&self) -> bool {
        self.take(SPINNER, 0)
    }

    /// A spinner wants to stop. With `force` it leaves even if there is new work, which the thread will do when
    /// the timer expires. With `away`, nobody is expected back in time: the thread takes over at the next expiry.
    pub fn leave_spin(&self, force: bool, away: bool) -> Leave {
        self.leave(force, if away { 0 } else { SPUN })
    }

    /// The thread has not armed its wakeups, and others want its processor: whoever polls may drive. If nobody has when
    /// the timer expires, the thread takes over. With `force` it leaves even if there is new work.
    pub fn leave_thread(&self, force: bool) -> Leave {
        self.leave(force, 0)
    }

    fn leave(&self, force: bool, spun: u32) -> Leave {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let stay = word & WORK != 0 && !force;
            let next = if stay {
                word & !WORK
            } else {
                (word & WORK) | LEFT | TIMER | spun
            };
            match self
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) if stay => return Leave::Work,
                Ok(_) if word & TIMER != 0 => return Leave::Watched,
                Ok(_) => return Leave::StartTimer,
                Err(now) => word = now,
            }
        }
    }

    /// The thread wants to drive. False if a spinner does (or the thread itself already).
    pub fn try_thread(&self) -> bool {
        self.take(THREAD, TIMER | SPUN)
    }

    /// The thread has armed its wakeups, polled once more and found nothing. True: it may sleep until woken.
    /// False: there is new work and it still owns.
    pub fn try_sleep(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let stay = word & WORK != 0;
            let next = if stay {
                word & !WORK
            } else {
                (word & !STATE) | IDLE
            };
            match self
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return !stay,
                Err(now) => word = now,
            }
        }
    }

    /// Announces work that the caller has made visible: a posted entry, an interrupt.
    pub fn notify(&self) -> Notified {
        match self.word.fetch_or(WORK, Ordering::AcqRel) & STATE {
            IDLE => Notified::Idle,
            LEFT => Notified::Left,
            _ => Notified::Owned,
        }
    }

    /// The grace period since [`Leave::StartTimer`] or [`Expired::Again`] is over.
    pub fn expired(&self) -> Expired {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let (next, result) = match word & STATE {
                SPINNER => (word & !SPUN | TIMER, Expired::Again),
                LEFT if word & SPUN != 0 && word & WORK == 0 => (word & !SPUN | TIMER, Expired::Again),
                LEFT => (THREAD, Expired::Taken),
                _ => (word & !(TIMER | SPUN), Expired::Stop),
            };
            match self
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return result,
                Err(now) => word = now,
            }
        }
    }

    /// Whether a hand-over timer is running: a thread that was woken for that sleeps for the grace period before
    /// it calls [`Self::expired`].
    pub fn is_watched(&self) -> bool {
        self.word.load(Ordering::Relaxed) & TIMER != 0
    }

    fn take(&self, who: u32, clear: u32) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if !matches!(word & STATE, IDLE | LEFT) {
                return false;
            }
            let next = (word & !(STATE | WORK | clear)) | who;
            match self
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_second_spinner_and_the_thread_are_refused() {
        let owner = Owner::new();
        assert!(owner.try_spin());
        assert!(!owner.try_spin());
        assert!(!owner.try_thread());
        assert_eq!(owner.leave_spin(false, false), Leave::StartTimer);
        assert!(owner.try_thread());
        assert!(!owner.try_spin());
    }

    #[test]
    fn work_announced_to_a_leaving_spinner_keeps_it() {
        let owner = Owner::new();
        assert!(owner.try_spin());
        assert_eq!(owner.notify(), Notified::Owned);
        assert_eq!(owner.leave_spin(false, false), Leave::Work);
        assert_eq!(owner.notify(), Notified::Owned);
        assert_eq!(owner.leave_spin(true, false), Leave::StartTimer);
        assert_eq!(
            owner.expired(),
            Expired::Taken,
            "work is not left for a second grace period"
        );
    }

    #[test]
    fn the_thread_takes_over_after_a_grace_period_without_spinners() {
        let owner = Owner::new();
        assert!(owner.try_spin());
        assert_eq!(owner.leave_spin(false, false), Leave::StartTimer);
        assert_eq!(
            owner.expired(),
            Expired::Again,
            "somebody has spun since the timer was started"
        );
        assert!(owner.try_spin());
        assert_eq!(owner.expired(), Expired::Again);
        assert_eq!(owner.leave_spin(false, false), Leave::Watched);
        assert_eq!(owner.expired(), Expired::Again);
        assert_eq!(owner.expired(), Expired::Taken);
        assert!(!owner.is_watched());
        assert!(owner.try_sleep());
        assert_eq!(owner.notify(), Notified::Idle);
    }

    #[test]
    fn who_is_not_expected_back_is_not_waited_for_twice() {
        let owner = Owner::new();
        assert!(owner.try_spin());
        assert_eq!(owner.leave_spin(false, false), Leave::StartTimer);
        assert!(owner.try_spin());
        assert_eq!(owner.leave_spin(false, true), Leave::Watched);
        assert_eq!(owner.expired(), Expired::Taken);
    }

    #[test]
    fn a_thread_that_gives_way_is_followed_by_whoever_polls() {
        let owner = Owner::new();
        assert!(owner.try_thread());
        assert_eq!(owner.leave_thread(false), Leave::StartTimer);
        assert!(owner.try_spin());
        assert_eq!(owner.leave_spin(false, false), Leave::Watched);
        assert_eq!(owner.expired(), Expired::Again);
    }

    #[test]
    fn a_thread_that_gives_way_to_nobody_takes_over_at_once() {
        let owner = Owner::new();
        assert!(owner.try_thread());
        assert_eq!(owner.notify(), Notified::Owned);
        assert_eq!(
            owner.leave_thread(false),
            Leave::Work,
            "what is announced is not left"
        );
        assert_eq!(owner.leave_thread(false), Leave::StartTimer);
        assert_eq!(owner.notify(), Notified::Left);
        assert_eq!(owner.expired(), Expired::Taken);
    }

    #[test]
    fn a_thread_gives_way_however_much_is_announced_to_it() {
        let owner = Owner::new();
        assert!(owner.try_thread());
        assert_eq!(owner.notify(), Notified::Owned);
        assert_eq!(owner.leave_thread(true), Leave::StartTimer);
        assert_eq!(
            owner.expired(),
            Expired::Taken,
            "what was announced is not left for longer"
        );
    }

    #[test]
    fn work_announced_to_a_thread_keeps_it_awake() {
        let owner = Owner::new();
        assert!(owner.try_thread());
        assert_eq!(owner.notify(), Notified::Owned);
        assert!(!owner.try_sleep());
        assert!(owner.try_sleep());
    }

    #[test]
    fn a_timer_that_expires_late_stops() {
        let owner = Owner::new();
        assert!(owner.try_spin());
        assert_eq!(owner.leave_spin(false, false), Leave::StartTimer);
        assert!(owner.try_thread());
        assert_eq!(owner.expired(), Expired::Stop);
        assert!(owner.try_sleep());
        assert_eq!(owner.expired(), Expired::Stop);
    }
}
