//! Seeded random work under loss, repetition, slow copies and slow gathers: bytes, order, exactly once, and
//! nothing left behind.

use core::cell::Cell;
use core::hash::{Hash, Hasher};
use core::ops::Range;
use std::boxed::Box;
use std::collections::VecDeque;
use std::hash::DefaultHasher;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use super::world::*;
use crate::*;

pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What one posted operation must have done when it completes.
enum Expect {
    Message { len: usize },
    Write { len: usize },
    Read(Read),
    Add,
}

/// A read sees every write before it, and may see those behind it.
struct Read {
    into: MemRef,
    before: Vec<u8>,
    at: usize,
    later: Vec<Range<usize>>,
}

struct FlowLog {
    side: usize,
    flow: FlowId,
    ep: u32,
    /// A region of the peer written by this flow only.
    target: MemRef,
    /// What the region holds once everything posted has been executed.
    shadow: Vec<u8>,
    posted: VecDeque<(u64, Expect)>,
    /// Immediates and lengths of what takes a receive, in order.
    taking: VecDeque<(u64, usize, Option<u64>, bool)>,
    receives: VecDeque<(u64, MemRef)>,
}

const REGION: usize = 120_000;

struct Soak {
    pair: Pair,
    rng: Rng,
    flows: Vec<FlowLog>,
    counters: [MemRef; 2],
    /// Values the atomics have returned, by side.
    adds: [Vec<u64>; 2],
    next: u64,
    churns: bool,
    /// What has been posted, in a number.
    trace: Option<Rc<Cell<u64>>>,
}

impl Soak {
    fn new(seed: u64, config: LinkConfig, rails: usize) -> Self {
        let mut pair = Pair::with(config, rails);
        let mut flows = Vec::new();
        for side in 0..2 {
            for ep in 0..3 {
                let flow = pair.open_to(side, ep);
                let target = pair.sides[1 - side].share(vec![0; REGION], true);
                flows.push(FlowLog {
                    side,
                    flow,
                    ep,
                    target,
                    shadow: vec![0; REGION],
                    posted: VecDeque::new(),
                    taking: VecDeque::new(),
                    receives: VecDeque::new(),
                });
            }
        }
        let counters = [0, 1].map(|side: usize| pair.sides[side].share(vec![0; 8], true));
        Self {
            pair,
            rng: Rng::new(seed),
            flows,
            counters,
            adds: [Vec::new(), Vec::new()],
            next: 1,
            churns: false,
            trace: None,
        }
    }

    fn post_one(&mut self) {
        let index = self.rng.below(self.flows.len() as u64) as usize;
        let log = &mut self.flows[index];
        let side = log.side;
        let cookie = self.next;
        self.next += 1;
        let len = match self.rng.below(8) {
            0 => 0,
            1..=4 => self.rng.below(200) as usize,
            5 | 6 => self.rng.below(9_000) as usize,
            _ => self.rng.below(60_000) as usize,
        };
        let imm = (self.rng.below(3) == 0).then_some(cookie ^ 0x5555);
        let at = self.rng.below((REGION - len) as u64) as usize;
        let home = &self.pair.sides[side];
        let bytes = pattern(len, cookie as u8);
        let (work, expect) = match self.rng.below(10) {
            0..=4 => (home.message(cookie, &bytes, imm), Expect::Message { len }),
            5 | 6 => (
                home.write(cookie, &bytes, log.target, at as u64, imm),
                Expect::Write { len },
            ),
            7 | 8 => {
                let into = home.host.region(vec![0; len]);
                let before = log.shadow[at..at + len].to_vec();
                let work = home.read(cookie, into, len as u32, log.target, at as u64);
                (
                    work,
                    Expect::Read(Read {
                        into,
                        before,
                        at,
                        later: Vec::new(),
                    }),
                )
            }
            _ => {
                let key = self.counters[1 - side];
                let op = Operation::FetchAdd {
                    remote_addr: 0,
                    remote_key: key.0,
                    add: 1,
                };
                (
                    Work {
                        cookie,
                        op,
                        local: None,
                        len: 0,
                    },
                    Expect::Add,
                )
            }
        };
        let local = work.local;
        let now = self.pair.now;
        match self.pair.sides[side].link.post(now, log.flow, work) {
            Ok(()) => {}
            Err(PostError::Full) => {
                if let Some(at) = local {
                    self.pair.sides[side].host.release(at.mem);
                }
                return;
            }
            Err(error) => panic!("{error}"),
        }
        match (&expect, imm) {
            (Expect::Message { .. }, _) => log.taking.push_back((cookie, len, imm, false)),
            (Expect::Write { .. }, Some(_)) => log.taking.push_back((cookie, len, imm, true)),
            _ => {}
        }
        if let Expect::Write { .. } = expect {
            log.shadow[at..at + len].copy_from_slice(&bytes);
            for (_, earlier) in &mut log.posted {
                if let Expect::Read(read) = earlier {
                    read.later.push(at..at + len);
                }
            }
        }
        log.posted.push_back((cookie, expect));
    }

    fn receive_one(&mut self) {
        let index = self.rng.below(self.flows.len() as u64) as usize;
        let cookie = self.next;
        self.next += 1;
        let log = &mut self.flows[index];
        if log.receives.len() < log.taking.len() {
            let mem = self.pair.receive_at(1 - log.side, log.ep, cookie, 60_000);
            log.receives.push_back((cookie, mem));
        }
    }

    /// Checks what has completed since the last call.
    fn check(&mut self) {
        for side in 0..2 {
            let received = core::mem::take(&mut self.pair.sides[side].host.0.borrow_mut().received);
            for done in received {
                let log = self
                    .flows
                    .iter_mut()
                    .find(|log| {
                        log.receives
                            .front()
                            .is_some_and(|&(cookie, _)| cookie == done.cookie)
                    })
                    .expect("receives complete in order");
                let (_, mem) = log.receives.pop_front().expect("found");
                let (cookie, len, imm, write) = log.taking.pop_front().expect("a message was sent");
                assert_eq!(
                    (done.status, done.len, done.imm, done.write),
                    (Status::Ok, len as u32, imm, write)
                );
                if !write {
                    let bytes = self.pair.sides[side].host.bytes(mem);
                    assert!(bytes[..len] == pattern(len, cookie as u8)[..], "message {cookie}");
                }
                self.pair.sides[side].host.0.borrow_mut().regions[mem.0 as usize] = Vec::new();
            }
            let done = core::mem::take(&mut self.pair.sides[side].host.0.borrow_mut().done);
            for done in done {
                let log = self
                    .flows
                    .iter_mut()
                    .find(|log| {
                        log.side == side && log.posted.front().is_some_and(|(c, _)| *c == done.cookie)
                    })
                    .expect("work completes in order");
                let (_, expect) = log.posted.pop_front().expect("found");
                assert_eq!(done.status, Status::Ok);
                match expect {
                    Expect::Add => self.adds[side].push(done.value),
                    Expect::Read(read) => {
                        let home = &self.pair.sides[side].host;
                        let bytes = home.bytes(read.into);
                        assert_eq!(done.len as usize, bytes.len());
                        for (i, (got, wanted)) in bytes.iter().zip(&read.before).enumerate() {
                            let overwritten = read.later.iter().any(|range| range.contains(&(read.at + i)));
                            assert!(got == wanted || overwritten, "byte {i} of read {}", done.cookie);
                        }
                        home.0.borrow_mut().regions[read.into.0 as usize] = Vec::new();
                    }
                    Expect::Message { len } | Expect::Write { len } => assert_eq!(done.len as usize, len),
                }
            }
        }
    }

    /// One of two rails goes, for one side first, or comes back.
    fn churn(&mut self) {
        let rail = self.rng.below(2) as usize;
        let up = [0, 1].map(|rail: usize| self.pair.cables[0][rail].up);
        if !up[rail] {
            self.pair.attach(rail);
        } else if up == [true; 2] {
            let first = self.rng.below(2) as usize;
            self.pair.detach(first, rail);
            let wait = self.rng.below(20_000);
            self.pair.run_for(wait);
            self.pair.detach(1 - first, rail);
        }
    }

    fn run(mut self, turns: usize, loss: u64) -> Counters {
        let mut faults = Rng::new(self.rng.next());
        let trace = self.trace.clone();
        self.pair.script = Box::new(move |sent| {
            if let Some(trace) = &trace {
                let mut hasher = DefaultHasher::new();
                (trace.get(), sent.from, sent.rail, sent.frame).hash(&mut hasher);
                trace.set(hasher.finish());
            }
            match faults.below(1_000) {
                n if n < loss => Fault::Drop,
                n if n < loss * 2 => Fault::Twice,
                _ => Fault::Deliver,
            }
        });
        for _ in 0..turns {
            for _ in 0..self.rng.below(12) {
                self.post_one();
            }
            for _ in 0..self.rng.below(10) {
                self.receive_one();
            }
            for side in &mut self.pair.sides {
                side.hold_plans = self.rng.below(4) == 0;
                side.hold_gather = self.rng.below(4) == 0;
                side.under_lock = self.rng.below(2) == 0;
                side.hold_late = self.rng.below(2) == 0;
            }
            if self.churns && self.rng.below(4) == 0 {
                self.churn();
            }
            let wait = self.rng.below(60_000);
            self.pair.run_for(wait);
            self.check();
        }
        for side in &mut self.pair.sides {
            side.hold_plans = false;
            side.hold_gather = false;
            side.hold_late = false;
        }
        for _ in 0..10_000 {
            self.pair.run_for(200_000);
            self.check();
            if self.flows.iter().all(|log| log.posted.is_empty()) {
                break;
            }
            for _ in 0..20 {
                self.receive_one();
            }
        }
        for log in &self.flows {
            let stuck = log.posted.len();
            let [a, b] = [0, 1].map(|side: usize| &self.pair.sides[side].link);
            assert!(
                stuck == 0,
                "{stuck} operations are stuck: {:#?} {:#?}",
                a.usage(),
                b.usage()
            );
        }
        for log in &self.flows {
            let target = self.pair.sides[1 - log.side].host.bytes(log.target);
            assert!(
                target == log.shadow,
                "writes were lost, misplaced or out of order"
            );
        }
        for adds in &mut self.adds {
            adds.sort_unstable();
            assert!(
                adds.iter().copied().eq(0..adds.len() as u64),
                "an atomic was lost or repeated"
            );
        }
        self.pair.script = Box::new(|_| Fault::Deliver);
        self.pair.run();
        self.pair.assert_clean();
        self.pair.assert_no_violations();
        let [a, b] = [0, 1].map(|side: usize| *self.pair.sides[side].link.counters());
        assert_eq!(
            a.completed + b.completed,
            a.completed + b.completed + a.failed + b.failed
        );
        Counters {
            tx_resent: a.tx_resent + b.tx_resent,
            rnr_sent: a.rnr_sent + b.rnr_sent,
            ..a
        }
    }
}

/// [`Counters`] and all frames of a run in which the usual frames, chunks and plans go the way of all.
fn run_by_way(seed: u64, config: LinkConfig, rails: usize, long_way: bool) -> (Counters, u64) {
    let trace = Rc::new(Cell::new(0));
    let mut soak = Soak::new(seed, config, rails);
    soak.trace = Some(trace.clone());
    for side in &mut soak.pair.sides {
        side.link.long_way = long_way;
    }
    (soak.run(100, 20), trace.get())
}

#[test]
fn the_short_ways_lead_to_the_same_frames_as_the_long_ones() {
    let short_frames = LinkConfig {
        payload_crc: true,
        frame_size: 1_024,
        ..config()
    };
    let little_room = LinkConfig {
        tx_slots: 24,
        max_plans: 16,
        max_ops: 24,
        ..config()
    };
    for seed in 500..510 {
        for config in [config(), short_frames, little_room] {
            for rails in [1, 2] {
                let [short, long] = [false, true].map(|way| run_by_way(seed, config, rails, way));
                assert_eq!(short, long, "seed {seed}, {rails} rails");
            }
        }
    }
}

#[test]
fn random_work_without_loss() {
    for seed in 0..10 {
        Soak::new(seed, config(), 1).run(100, 0);
    }
}

#[test]
fn random_work_with_loss() {
    let (mut resent, mut rnr) = (0, 0);
    for seed in 0..30 {
        let counters = Soak::new(seed, config(), 1).run(100, 20);
        resent += counters.tx_resent;
        rnr += counters.rnr_sent;
    }
    assert!(
        resent > 500 && rnr > 500,
        "{resent} resent, {rnr} refusals: too tame"
    );
}

#[test]
fn random_work_over_two_lossy_rails() {
    for seed in 100..120 {
        Soak::new(seed, config(), 2).run(100, 30);
    }
}

#[test]
fn random_work_with_little_room() {
    let config = LinkConfig {
        tx_slots: 24,
        max_parked: 40,
        max_plans: 16,
        max_reads: 2,
        peer_max_reads: 2,
        max_ops: 24,
        max_ready: 4,
        ..config()
    };
    for seed in 200..220 {
        Soak::new(seed, config, 2).run(100, 50);
    }
}

#[test]
fn random_work_while_rails_come_and_go() {
    for seed in 300..330 {
        let mut soak = Soak::new(seed, config(), 2);
        soak.churns = true;
        soak.run(100, 20);
    }
}

#[test]
fn random_work_with_payload_crc_and_short_frames() {
    let config = LinkConfig {
        payload_crc: true,
        frame_size: 1_024,
        ..config()
    };
    for seed in 400..410 {
        Soak::new(seed, config, 1).run(60, 20);
    }
}
