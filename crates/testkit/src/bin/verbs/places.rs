//! Where a case has what in registered memory.

use crate::case::{Case, LONGEST, QUEUES};

/// Bytes of a message's place: the longest, what a datagram begins with, and what is to stay untouched.
const STRIDE: usize = 72 << 10;

const _: () = assert!(LONGEST as usize + 40 + 72 <= STRIDE);

/// Bytes in front of a datagram.
pub(crate) const GRH: u32 = 40;

/// Places of a kind.
const PLACES: usize = 4 * QUEUES as usize;

/// Words at the end: one of each queue pair's, one that all add to, one that all swap.
const WORDS: usize = 3 * PLACES * STRIDE;

/// Bytes of all.
pub(crate) const BYTES: usize = WORDS + 4096;

/// A message's place in its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) queue: u32,
    pub(crate) index: u32,
}

impl Place {
    fn number(self, case: &Case) -> usize {
        (self.queue * case.window() + self.index) as usize
    }

    /// What is sent, and read by the other side.
    pub(crate) fn outgoing(self, case: &Case) -> usize {
        self.number(case) * STRIDE
    }

    /// What is written by the other side or read from it, and what atomics give.
    pub(crate) fn incoming(self, case: &Case) -> usize {
        (PLACES + self.number(case)) * STRIDE
    }
}

/// What receive `number` has for a buffer.
pub(crate) fn received(number: usize) -> usize {
    (2 * PLACES + number) * STRIDE
}

/// A queue pair's own word; that after it is nobody's.
pub(crate) fn own(queue: u32) -> usize {
    WORDS + 16 * queue as usize
}

/// The word that all queue pairs add to.
pub(crate) const ADDED: usize = WORDS + 2048;

/// The word that all queue pairs swap.
pub(crate) const SWAPPED: usize = WORDS + 2064;
