//! Whether clients that have left a link come back in time: who polls memory that its peer writes to does not.
//!
//! A spinner that leaves is given a while to come back ([`Grace`](crate::Grace)) before the thread takes over. A client
//! that looks at its completion queue needs far less. One that waits for a byte in memory, as MPI and `ib_write_lat` do,
//! makes no call while it waits, and what it waits for would lie on the ring for the whole of the while, each time. So the
//! owner remembers, for each way to leave, whether that is what happens; then the while is as short as can be.

/// With what a spinner left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It has sent what its client had posted.
    Submitted,
    /// A completion has been shown.
    Shown,
    /// It has shown none.
    Nothing,
}

/// How often in a row the thread must have been there first for that to be expected.
const OFTEN: u8 = 3;

/// What a link's clients are used to do. The link's owner has it.
#[derive(Debug, Default)]
pub struct Habit {
    /// How often in a row the thread was there first, up to [`OFTEN`], by way to leave.
    submitted: u8,
    shown: u8,
    nothing: u8,
    /// How the last spinner has left, if nobody has driven since.
    left: Option<Left>,
}

impl Habit {
    /// A spinner is about to leave, like this. True: nobody is expected back in time.
    pub fn leaves(&mut self, how: Left) -> bool {
        self.left = Some(how);
        *self.away(how) >= OFTEN
    }

    /// A spinner has come.
    pub fn returned(&mut self) {
        if let Some(how) = self.left.take() {
            *self.away(how) = 0;
        }
    }

    /// The thread has found something that has arrived since the last spinner left.
    pub fn served(&mut self) {
        if let Some(how) = self.left.take() {
            let away = self.away(how);
            *away = away.saturating_add(1).min(OFTEN);
        }
    }

    /// Whether there are clients that stay away.
    pub fn is_away(&self) -> bool {
        [self.submitted, self.shown, self.nothing].contains(&OFTEN)
    }

    fn away(&mut self, how: Left) -> &mut u8 {
        match how {
            Left::Submitted => &mut self.submitted,
            Left::Shown => &mut self.shown,
            Left::Nothing => &mut self.nothing,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// One that leaves like this and stays away, this often.
    fn away(how: Left, times: usize) -> Habit {
        let mut habit = Habit::default();
        for _ in 0..times {
            habit.leaves(how);
            habit.served();
        }
        habit
    }

    #[test]
    fn who_stays_away_again_and_again_is_not_waited_for() {
        assert!(!away(Left::Shown, 2).leaves(Left::Shown));
        assert!(away(Left::Shown, 3).leaves(Left::Shown));
        assert!(away(Left::Shown, 1_000).is_away());
    }

    #[test]
    fn each_way_to_leave_is_a_habit_of_its_own() {
        let mut habit = away(Left::Shown, 3);
        assert!(!habit.leaves(Left::Submitted));
        habit.returned();
        assert!(!habit.leaves(Left::Nothing));
        habit.returned();
        assert!(
            habit.leaves(Left::Shown),
            "the others have come back, this has not"
        );
    }

    #[test]
    fn one_that_comes_back_after_all_is_waited_for_again() {
        let mut habit = away(Left::Shown, 100);
        assert!(habit.leaves(Left::Shown));
        habit.returned();
        assert!(!habit.leaves(Left::Shown));
        assert!(!habit.is_away());
    }

    #[test]
    fn what_arrives_while_nobody_was_there_says_nothing_of_clients() {
        let mut habit = Habit::default();
        for _ in 0..10 {
            habit.served();
        }
        assert!(!habit.is_away());
    }
}
