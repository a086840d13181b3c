//! What atomics have to give. A queue pair's own word is known at each step; of those that all use, the sum is in the end.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::case::{Message, Op};
use crate::memory::mix;
use crate::places::{ADDED, SWAPPED, own};

/// An operation, and what its result has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Atomic {
    /// Where.
    pub(crate) at: usize,
    /// What is added or compared.
    pub(crate) operand: u64,
    pub(crate) swap: u64,
    /// The old value, where nobody else changes it.
    expected: Option<u64>,
}

/// What the other side's words are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub(crate) own: Vec<u64>,
    pub(crate) added: u64,
    pub(crate) swapped: u64,
}

/// What one side does to the other's words.
pub(crate) struct Atomics {
    sums: Sums,
    /// Old values of the word that all add to.
    seen: Vec<u64>,
    /// What each queue pair believes that the word that all swap is.
    guesses: Vec<u64>,
}

impl Atomics {
    pub(crate) fn new(queues: u32) -> Self {
        let zeros = vec![0; queues as usize];
        Self {
            sums: Sums {
                own: zeros.clone(),
                ..Sums::default()
            },
            seen: vec![],
            guesses: zeros,
        }
    }

    /// The next operation of a queue pair.
    pub(crate) fn next(&mut self, queue: u32, message: Message) -> Atomic {
        let value = mix([7, queue, message.number]);
        let place = queue as usize;
        // Words of all and of one, of which a third is not swapped.
        let kind = value >> 60;
        if message.op == Op::FetchAdd && kind % 2 == 0 {
            let operand = 1 + (value & 0xffff);
            self.sums.added += operand;
            return Atomic {
                at: ADDED,
                operand,
                swap: 0,
                expected: None,
            };
        }
        if message.op == Op::CompareSwap && kind % 2 == 0 {
            let guess = self.guesses.get_mut(place);
            let operand = guess.as_ref().map_or(0, |guess| **guess);
            if let Some(guess) = guess {
                *guess += 1;
            }
            return Atomic {
                at: SWAPPED,
                operand,
                swap: operand + 1,
                expected: None,
            };
        }
        let mut spare = 0;
        let word = self.sums.own.get_mut(place).unwrap_or(&mut spare);
        let old = *word;
        let (operand, swap) = match message.op {
            Op::FetchAdd => (value, 0),
            _ if kind % 3 == 0 => (!old, value),
            _ => (old, value),
        };
        *word = match message.op {
            Op::FetchAdd => old.wrapping_add(value),
            _ if operand == old => swap,
            _ => old,
        };
        Atomic {
            at: own(queue),
            operand,
            swap,
            expected: Some(old),
        }
    }

    /// The value that was there before.
    pub(crate) fn gave(&mut self, queue: u32, atomic: Atomic, old: u64) -> Result<()> {
        if let Some(expected) = atomic.expected {
            ensure!(
                old == expected,
                "{atomic:x?} of queue pair {queue} gave {old:#x}, not {expected:#x}"
            );
        } else if atomic.at == ADDED {
            self.seen.push(old);
        } else {
            self.sums.swapped += u64::from(old == atomic.operand);
            if let Some(guess) = self.guesses.get_mut(queue as usize) {
                *guess = (*guess).max(old + u64::from(old == atomic.operand));
            }
        }
        Ok(())
    }

    /// What the other side has in the end. No two additions saw the same.
    pub(crate) fn end(mut self) -> Result<Sums> {
        self.seen.sort_unstable();
        let twice = self.seen.windows(2).find(|pair| pair.first() == pair.last());
        ensure!(twice.is_none(), "two additions saw {twice:?}");
        let last = self.seen.last().copied();
        ensure!(
            last.is_none_or(|last| last < self.sums.added),
            "an addition saw {last:?} of {}",
            self.sums.added
        );
        Ok(self.sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words as a device has them.
    fn carry_out(words: &mut std::collections::BTreeMap<usize, u64>, op: Op, atomic: &Atomic) -> u64 {
        let word = words.entry(atomic.at).or_insert(0);
        let old = *word;
        match op {
            Op::FetchAdd => *word = old.wrapping_add(atomic.operand),
            _ if old == atomic.operand => *word = atomic.swap,
            _ => {}
        }
        old
    }

    #[test]
    fn sums_are_what_words_become() {
        let mut words = std::collections::BTreeMap::new();
        let mut atomics = Atomics::new(3);
        for number in 0..200 {
            for queue in 0..3 {
                let op = if number % 3 == 0 {
                    Op::FetchAdd
                } else {
                    Op::CompareSwap
                };
                let message = Message { number, op, len: 8 };
                let atomic = atomics.next(queue, message);
                let old = carry_out(&mut words, op, &atomic);
                atomics.gave(queue, atomic, old).unwrap();
            }
        }
        let sums = atomics.end().unwrap();
        assert_eq!((words[&ADDED], words[&SWAPPED]), (sums.added, sums.swapped));
        assert!(sums.added > 0 && sums.swapped > 10);
        for queue in 0..3 {
            assert_eq!(words[&own(queue)], sums.own[queue as usize]);
        }
    }

    #[test]
    fn an_operation_that_was_done_twice_is_found() {
        let mut words = std::collections::BTreeMap::new();
        let mut atomics = Atomics::new(1);
        let wrong = (0..50).any(|number| {
            let message = Message {
                number,
                op: Op::FetchAdd,
                len: 8,
            };
            let atomic = atomics.next(0, message);
            carry_out(&mut words, Op::FetchAdd, &atomic);
            let old = carry_out(&mut words, Op::FetchAdd, &atomic);
            atomics.gave(0, atomic, old).is_err()
        });
        assert!(wrong);
    }
}
