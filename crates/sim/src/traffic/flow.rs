//! One flow: what is outstanding on it and what its target must see.

use super::plan::{Kind, Mix};
use super::{PATTERN, Party};
use crate::apps::{Buf, Flow};
use crate::host::Endpoint;
use crate::memory::{Access, Region};
use crate::rng::Rng;
use crate::world::World;
use std::collections::VecDeque;
use usb4_engine::Operation;

/// An operation from its draw to its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    pub(super) seq: u64,
    pub(super) kind: Kind,
    pub(super) len: u32,
    /// Where in the sender's pattern (READ: the target's) the bytes are.
    pub(super) at: u64,
    /// Bytes that go in front as a prefix, out of the pattern too.
    pub(super) prefix: u8,
    pub(super) imm: Option<u64>,
    /// Offset in the flow's window (WRITE) or read buffer (READ).
    pub(super) place: u64,
    /// Bytes of the window and of the read buffer this operation's completion frees.
    pub(super) frees_window: u64,
    pub(super) frees_reads: u64,
    /// READ back: the offset in the window it reads; WRITE: the next operation reads it back.
    pub(super) source: u64,
    pub(super) followed: bool,
    /// Compare-swap: the value expected at the target, and whether the comparison is meant to succeed.
    pub(super) word: u64,
    pub(super) hit: bool,
    /// The target has been looked at.
    pub(super) checked: bool,
}

impl Op {
    /// Whether the target's receive queue gives a receive for it.
    pub(super) fn takes_receive(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::WriteImm)
    }
}

/// A ring of bytes, given out and freed in the same order.
pub(super) struct Space {
    pub(super) region: Region,
    size: u64,
    /// Where the next piece begins; equal to `size` or below.
    head: u64,
    used: u64,
}

impl Space {
    fn new(region: Region, size: u64) -> Self {
        Self {
            region,
            size,
            head: 0,
            used: 0,
        }
    }

    /// Room for `len` bytes in one piece: its offset, and what must be freed later.
    fn take(&mut self, len: u64) -> Option<(u64, u64)> {
        let skip = if self.head + len > self.size {
            self.size - self.head
        } else {
            0
        };
        if self.used + skip + len > self.size {
            return None;
        }
        let at = (self.head + skip) % self.size;
        self.used += skip + len;
        self.head = at + len;
        Some((at, skip + len))
    }

    /// Frees the oldest piece, of which `take` said that it needs `len`.
    pub(super) fn free(&mut self, len: u64) {
        self.used -= len;
    }

    /// Undoes the latest `take`.
    fn give_back(&mut self, len: u64) {
        self.used -= len;
        self.head = (self.head + self.size - len % self.size) % self.size;
    }
}

/// A flow and its oracle.
pub(super) struct FlowState {
    pub(super) flow: Flow,
    pub(super) from: usize,
    pub(super) to: usize,
    /// In the target's memory: written by WRITEs.
    pub(super) window: Space,
    /// In the source's memory: filled by READs and by the old values of atomics.
    pub(super) reads: Space,
    /// In the target's memory: the word of compare-swap.
    pub(super) word: Region,
    next_word: u64,
    pub(super) ops: VecDeque<Op>,
    /// Operations that will take a receive and have not, oldest first.
    pub(super) expected: VecDeque<Op>,
    /// A write has just been drawn whose bytes the next operation reads back.
    read_back: Option<Op>,
    /// Drawn, but there was no room for it yet.
    drawn: Option<Op>,
    seq: u64,
    rng: Rng,
}

impl FlowState {
    pub(super) fn new(
        world: &mut World,
        flow: Flow,
        (from, source): (usize, Endpoint),
        (to, target): (usize, Endpoint),
        max: u32,
        rng: Rng,
    ) -> Self {
        let size = 4 * (max as usize).max(256);
        let write = Access {
            write: true,
            read: true,
            ..Access::LOCAL
        };
        let window = world.memory(target.host, vec![0; size], write);
        let reads = world.memory(source.host, vec![0; size], Access::LOCAL);
        let word = world.memory(
            target.host,
            vec![0; 8],
            Access {
                atomic: true,
                ..Access::LOCAL
            },
        );
        Self {
            flow,
            from,
            to,
            window: Space::new(window, size as u64),
            reads: Space::new(reads, size as u64),
            word,
            next_word: 0,
            ops: VecDeque::new(),
            expected: VecDeque::new(),
            read_back: None,
            drawn: None,
            seq: 0,
            rng,
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.ops.len()
    }

    /// Whether an operation must follow whatever else happens.
    pub(super) fn owes(&self) -> bool {
        self.read_back.is_some() || self.drawn.is_some()
    }

    /// Draws the next operation; `None` if the flow's memory is full for now.
    pub(super) fn next_op(&mut self, mix: &Mix) -> Option<Op> {
        let mut op = match self.drawn.take() {
            Some(op) => op,
            None => self.draw(mix),
        };
        let window = matches!(op.kind, Kind::Write | Kind::WriteImm);
        let wanted = match op.kind {
            Kind::Write | Kind::WriteImm => self.window.take(u64::from(op.len)),
            Kind::Read | Kind::ReadBack => self.reads.take(u64::from(op.len)),
            Kind::FetchAdd | Kind::CompareSwap => self.reads.take(8),
            Kind::Send => Some((0, 0)),
        };
        let Some((place, frees)) = wanted else {
            self.drawn = Some(op);
            return None;
        };
        op.place = place;
        *(if window {
            &mut op.frees_window
        } else {
            &mut op.frees_reads
        }) = frees;
        Some(op)
    }

    fn draw(&mut self, mix: &Mix) -> Op {
        let seq = self.seq;
        self.seq += 1;
        if let Some(write) = self.read_back.take() {
            return Op {
                seq,
                kind: Kind::ReadBack,
                source: write.place,
                followed: false,
                checked: false,
                ..write
            };
        }
        let mut kind = pick(&mix.kinds, &mut self.rng);
        let followed = kind == Kind::ReadBack;
        if followed {
            kind = Kind::Write;
        }
        let len = mix.sizes.draw(&mut self.rng);
        let at = self.rng.below(PATTERN as u64 - u64::from(len));
        let mut op = Op {
            seq,
            kind,
            len,
            at,
            prefix: 0,
            imm: None,
            place: 0,
            frees_window: 0,
            frees_reads: 0,
            source: 0,
            followed,
            word: self.next_word,
            hit: true,
            checked: false,
        };
        match kind {
            Kind::Send => {
                if self.rng.below(4) == 0 {
                    op.prefix = u8::try_from(self.rng.below(25).min(u64::from(len))).unwrap_or(0);
                }
                op.imm = (self.rng.below(2) == 0).then_some(seq ^ (at << 20));
            }
            Kind::WriteImm => op.imm = Some(seq ^ (at << 20)),
            Kind::CompareSwap => {
                op.hit = self.rng.below(8) != 0;
                if op.hit {
                    self.next_word = next_word(op.word);
                }
            }
            _ => (),
        }
        op
    }

    /// The engine took the operation.
    pub(super) fn posted(&mut self, mut op: Op) {
        if op.followed {
            self.read_back = Some(op);
            // The operation that reads the bytes back frees them.
            op.frees_window = 0;
        }
        if op.takes_receive() {
            self.expected.push_back(op);
        }
        self.ops.push_back(op);
    }

    /// The engine had no room; the same operation is tried again later.
    pub(super) fn unpost(&mut self, op: Op) {
        let kept = if op.kind == Kind::ReadBack {
            op.frees_window
        } else {
            0
        };
        self.window.give_back(op.frees_window - kept);
        self.reads.give_back(op.frees_reads);
        self.drawn = Some(Op {
            frees_window: kept,
            frees_reads: 0,
            ..op
        });
    }

    /// What to ask of the engine.
    pub(super) fn request(&self, op: &Op, from: &Party, to: &Party) -> (Operation, Option<Buf>) {
        let target = |region: Region, offset: u64| (region.addr + offset, region.key);
        match op.kind {
            Kind::Send => {
                let mut prefix = [0; 24];
                let front = usize::from(op.prefix);
                prefix[..front].copy_from_slice(&from.bytes(op.at, op.len)[..front]);
                let rest = from
                    .pattern
                    .at(op.at + front as u64, op.len - u32::from(op.prefix));
                (
                    Operation::Send {
                        imm: op.imm,
                        prefix,
                        prefix_len: op.prefix,
                    },
                    Some(rest),
                )
            }
            Kind::Write | Kind::WriteImm => {
                let (remote_addr, remote_key) = target(self.window.region, op.place);
                let local = from.pattern.at(op.at, op.len);
                (
                    Operation::Write {
                        remote_addr,
                        remote_key,
                        imm: op.imm,
                    },
                    Some(local),
                )
            }
            Kind::Read => {
                let (remote_addr, remote_key) = target(to.pattern, op.at);
                (
                    Operation::Read {
                        remote_addr,
                        remote_key,
                    },
                    Some(self.reads.region.at(op.place, op.len)),
                )
            }
            Kind::ReadBack => {
                let (remote_addr, remote_key) = target(self.window.region, op.source);
                (
                    Operation::Read {
                        remote_addr,
                        remote_key,
                    },
                    Some(self.reads.region.at(op.place, op.len)),
                )
            }
            Kind::FetchAdd => {
                let (remote_addr, remote_key) = target(to.counter, 0);
                let local = self.reads.region.at(op.place, 8);
                (
                    Operation::FetchAdd {
                        remote_addr,
                        remote_key,
                        add: 1,
                    },
                    Some(local),
                )
            }
            Kind::CompareSwap => {
                let (remote_addr, remote_key) = target(self.word, 0);
                let (compare, swap) = if op.hit {
                    (op.word, next_word(op.word))
                } else {
                    (!op.word, 0xdead)
                };
                let local = self.reads.region.at(op.place, 8);
                (
                    Operation::CompareSwap {
                        remote_addr,
                        remote_key,
                        compare,
                        swap,
                    },
                    Some(local),
                )
            }
        }
    }

    /// What the target's word must hold once everything posted is done.
    pub(super) fn final_word(&self) -> u64 {
        self.next_word
    }

    /// A sentence on what is outstanding, if anything is.
    pub(super) fn describe(&self, index: usize) -> Option<String> {
        let op = self.ops.front()?;
        Some(format!(
            "flow {index} has {} outstanding, the oldest {:?} {} of {} bytes",
            self.ops.len(),
            op.kind,
            op.seq,
            op.len
        ))
    }
}

fn next_word(word: u64) -> u64 {
    word.wrapping_add(0x0101_0000_0001)
}

fn pick(kinds: &[(Kind, u64)], rng: &mut Rng) -> Kind {
    let mut at = rng.below(kinds.iter().map(|(_, weight)| weight).sum());
    for &(kind, weight) in kinds {
        if at < weight {
            return kind;
        }
        at -= weight;
    }
    Kind::Send
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn space_is_given_out_in_one_piece_and_never_twice() {
        let mut world = World::new(1, &Profile::STRIX);
        let host = world.add_host();
        let region = world.memory(host, vec![0; 100], Access::LOCAL);
        let mut space = Space::new(region, 100);
        assert_eq!(space.take(60), Some((0, 60)));
        assert_eq!(space.take(60), None);
        space.free(60);
        assert_eq!(space.take(60), Some((0, 100)));
        assert_eq!(space.take(1), None);
        space.give_back(100);
        assert_eq!(space.take(40), Some((60, 40)));
    }
}
