//! What is run: a transport, operations, how many queue pairs and how; and what follows from that for both sides alike.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    Rc,
    Uc,
    Ud,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    Write,
    WriteImm,
    Send,
    SendImm,
    Read,
    FetchAdd,
    CompareSwap,
}

impl Op {
    /// Whether it takes a receive of the other side's.
    pub(crate) fn takes_receive(self) -> bool {
        matches!(self, Op::WriteImm | Op::Send | Op::SendImm)
    }

    /// Whether it has immediate data.
    pub(crate) fn has_immediate(self) -> bool {
        matches!(self, Op::WriteImm | Op::SendImm)
    }

    /// Whether it is on a word.
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Op::FetchAdd | Op::CompareSwap)
    }

    /// Whether its data may be inline.
    fn may_be_inline(self) -> bool {
        !self.is_atomic() && self != Op::Read
    }
}

/// Messages of each queue pair that are under way at a time.
const WINDOW: u32 = 4;

/// Lengths of messages: a prime number of them, so that every operation has each.
const LENGTHS: [u32; 13] = [0, 1, 63, 64, 65, 255, 256, 4095, 4096, 4097, 12289, 65536, 70001];

/// What a case asks for of inline data.
pub(crate) const INLINE: u32 = 200;

/// Bytes of the longest message.
pub(crate) const LONGEST: u32 = 70001;

/// Most queue pairs.
pub(crate) const QUEUES: u32 = 32;

/// A message of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Which of its queue pair's.
    pub(crate) number: u32,
    pub(crate) op: Op,
    pub(crate) len: u32,
}

/// One case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) transport: Transport,
    /// In turn.
    pub(crate) ops: Vec<Op>,
    pub(crate) queues: u32,
    /// Queue pairs draw from one shared receive queue.
    pub(crate) shared: bool,
    /// Data is inline where it fits.
    pub(crate) inline: bool,
    pub(crate) rounds: u32,
    /// Bytes of the longest datagram.
    pub(crate) mtu: u32,
}

impl Case {
    /// Messages of each queue pair in a round.
    pub(crate) fn window(&self) -> u32 {
        if self.queues < QUEUES { 2 * WINDOW } else { WINDOW }
    }

    /// The message of that number; `queue` lets others have other lengths at the same time.
    pub(crate) fn message(&self, queue: u32, number: u32) -> Message {
        let lengths: Vec<u32> = match self.transport {
            Transport::Ud => LENGTHS.into_iter().filter(|len| *len <= self.mtu).collect(),
            _ => LENGTHS.to_vec(),
        };
        let pick = |count: usize, at: u32| at as usize % count.max(1);
        let op = pick(self.ops.len(), queue + number);
        let op = self.ops.get(op).copied().unwrap_or(Op::Send);
        let len = pick(lengths.len(), 5 * queue + number);
        let len = lengths.get(len).copied().unwrap_or(0);
        Message {
            number,
            op,
            len: if op.is_atomic() { 8 } else { len },
        }
    }

    /// A message of each queue pair's end of a round: where a WRITE is not acknowledged, what follows it says that it is there.
    pub(crate) fn has_fence(&self) -> bool {
        self.transport == Transport::Uc && self.ops.contains(&Op::Write)
    }

    /// A queue pair's messages of a round, in order.
    pub(crate) fn round(&self, queue: u32, round: u32) -> Vec<Message> {
        let first = round * self.window();
        let mut messages: Vec<Message> = (first..first + self.window())
            .map(|number| self.message(queue, number))
            .collect();
        if self.has_fence() {
            messages.push(Message {
                number: first + self.window(),
                op: Op::SendImm,
                len: 0,
            });
        }
        messages
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = format!("{:?}", self.transport).to_uppercase();
        let ops: Vec<String> = self.ops.iter().map(|op| format!("{op:?}")).collect();
        write!(f, "{transport} {} on {}", ops.join("+"), self.queues)?;
        if self.shared {
            write!(f, ", shared receives")?;
        }
        if self.inline {
            write!(f, ", inline")?;
        }
        Ok(())
    }
}

/// Transports and what each is to do.
const WORK: &[(Transport, &[Op])] = &[
    (Transport::Rc, &[Op::Write]),
    (Transport::Rc, &[Op::WriteImm]),
    (Transport::Rc, &[Op::Send]),
    (Transport::Rc, &[Op::SendImm]),
    (Transport::Rc, &[Op::Read]),
    (Transport::Rc, &[Op::FetchAdd]),
    (Transport::Rc, &[Op::CompareSwap]),
    (
        Transport::Rc,
        &[
            Op::Write,
            Op::WriteImm,
            Op::Send,
            Op::SendImm,
            Op::Read,
            Op::FetchAdd,
            Op::CompareSwap,
        ],
    ),
    (Transport::Uc, &[Op::Write]),
    (Transport::Uc, &[Op::Send]),
    (Transport::Uc, &[Op::WriteImm, Op::SendImm]),
    (Transport::Ud, &[Op::Send]),
    (Transport::Ud, &[Op::SendImm]),
];

/// All of them; `times` as many rounds as it takes for every length with one queue pair.
pub(crate) fn all(times: u32, mtu: u32) -> Vec<Case> {
    let mut cases = vec![];
    for (transport, ops) in WORK {
        for queues in [1, 4, QUEUES] {
            for (shared, inline) in [(false, false), (true, false), (false, true), (true, true)] {
                let takes = ops.iter().any(|op| op.takes_receive());
                let fits = ops.iter().any(|op| op.may_be_inline());
                if shared && !takes || inline && !fits {
                    continue;
                }
                cases.push(Case {
                    transport: *transport,
                    ops: ops.to_vec(),
                    queues,
                    shared,
                    inline,
                    rounds: 2 * times,
                    mtu,
                });
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_operation_has_every_length() {
        for case in all(1, 4096) {
            let mut seen = BTreeSet::new();
            for number in 0..13 * 7 {
                let Message { op, len, .. } = case.message(3, number);
                seen.insert((format!("{op:?}"), len));
            }
            let atomics = case.ops.iter().filter(|op| op.is_atomic()).count();
            let lengths = if case.transport == Transport::Ud { 9 } else { 13 };
            let expected = (case.ops.len() - atomics) * lengths + atomics;
            assert_eq!(seen.len(), expected, "{case}");
        }
    }

    #[test]
    fn every_length_is_in_every_case() {
        for case in all(1, 4096) {
            if case.ops.iter().all(|op| op.is_atomic()) || case.ops.len() > 1 {
                continue;
            }
            let rounds = (0..case.rounds).flat_map(|round| (0..case.queues).map(move |queue| (queue, round)));
            let lens: BTreeSet<u32> = rounds
                .flat_map(|(queue, round)| case.round(queue, round))
                .map(|message| message.len)
                .collect();
            let lengths = if case.transport == Transport::Ud { 9 } else { 13 };
            assert_eq!(lens.len(), lengths, "{case}");
        }
    }

    #[test]
    fn lengths_are_a_prime_number_and_the_longest_is_known() {
        assert_eq!(LENGTHS.iter().max(), Some(&LONGEST));
        assert_eq!(LENGTHS.len(), 13);
    }
}
