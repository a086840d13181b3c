//! Two machines, their homes and the control channel between them, in virtual time.

use std::vec::Vec;

use super::*;

mod chaos;
mod hostile;
mod session;

const MS: Nanos = 1_000_000;
const SEC: Nanos = 1_000 * MS;

/// xorshift64*.
pub(super) struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// How the control channel treats messages.
#[derive(Clone, Copy)]
struct Channel {
    loss: u64,
    dup: u64,
    delay: Nanos,
    /// Added to one message in ten.
    late: Nanos,
    /// Replays of recorded messages, per mille of messages sent.
    replay: u64,
}

const CLEAN: Channel = Channel {
    loss: 0,
    dup: 0,
    delay: MS,
    late: 0,
    replay: 0,
};

struct Side {
    fsm: RailFsm,
    on: bool,
    order: Option<(Nanos, Action)>,
    up: Option<PeerInfo>,
    ups: u32,
    downs: Vec<DownReason>,
}

fn local(side: usize) -> LocalInfo {
    LocalInfo {
        node: NodeId::from_halves(side as u64 + 1, 7),
        ver_min: 1,
        ver_max: 1,
        tx_hop: 8 + side as u32,
        ring_size: 1024,
        max_ack_delay_us: 20,
        features: 0,
        max_flows: 256,
        max_reads: 16,
    }
}

struct Pair {
    now: Nanos,
    rng: Rng,
    channel: Channel,
    /// How long the home takes to switch paths, at most.
    home: Nanos,
    /// The home does nothing else in that time.
    blocking: bool,
    sides: [Side; 2],
    wire: Vec<(Nanos, usize, Control)>,
    record: Vec<(usize, Control)>,
    sent: usize,
    /// A side that may send while its peer's paths are off, other than by a crash, is an error.
    strict: bool,
}

impl Pair {
    fn new(seed: u64, channel: Channel) -> Self {
        Self::with(seed, channel, [local(0), local(1)])
    }

    fn with(seed: u64, channel: Channel, locals: [LocalInfo; 2]) -> Self {
        let mut rng = Rng::new(seed);
        let sides = locals.map(|local| Side::new(0, local, &mut rng));
        let mut pair = Self {
            now: 0,
            rng,
            channel,
            home: 0,
            blocking: false,
            sides,
            wire: Vec::new(),
            record: Vec::new(),
            sent: 0,
            strict: true,
        };
        pair.drain(0);
        pair.drain(1);
        pair
    }

    /// Carries out what side `at` wants.
    fn drain(&mut self, at: usize) {
        while !self.blocking || self.sides[at].order.is_none() {
            let Some(action) = self.sides[at].fsm.poll_output() else {
                break;
            };
            match action {
                Action::Send(message) => self.transmit(1 - at, message),
                Action::EnablePaths { .. } | Action::DisablePaths => {
                    if action == Action::DisablePaths {
                        assert!(self.sides[at].up.is_none(), "paths off while up");
                        self.sides[at].on = false;
                    }
                    assert!(self.sides[at].order.is_none(), "two path orders at once");
                    let delay = self.rng.below(self.home + 1);
                    self.sides[at].order = Some((self.now + delay, action));
                }
                Action::Up(info) => {
                    let side = &mut self.sides[at];
                    assert!(side.on && side.up.is_none(), "up without paths, or twice");
                    side.up = Some(info);
                    side.ups += 1;
                }
                Action::Down(reason) => {
                    let side = &mut self.sides[at];
                    assert!(side.up.take().is_some(), "down without having been up");
                    side.downs.push(reason);
                }
            }
        }
        if self.strict {
            for side in 0..2 {
                assert!(
                    self.sides[side].up.is_none() || self.sides[1 - side].on,
                    "side {side} sends into a path that is off at {}",
                    self.now
                );
            }
        }
    }

    fn transmit(&mut self, to: usize, message: Control) {
        self.sent += 1;
        assert!(
            message.kind != ControlKind::PathsUp || self.sides[1 - to].on,
            "PATHS_UP before the paths are up"
        );
        let bytes = message.emit(|_, _| 0);
        assert_eq!(
            Control::parse(&bytes, |_, _| 0),
            Ok(message),
            "not valid on the wire"
        );
        self.record.push((to, message));
        let channel = self.channel;
        let copies = 1 + u32::from(self.rng.chance(channel.dup));
        for _ in 0..copies {
            if !self.rng.chance(channel.loss) {
                let late = if self.rng.chance(100) { channel.late } else { 0 };
                let delay = 1 + self.rng.below(channel.delay) + self.rng.below(late + 1);
                self.wire.push((self.now + delay, to, message));
            }
        }
        if self.rng.chance(channel.replay) {
            let old = self.rng.below(self.record.len() as u64) as usize;
            let (to, message) = self.record[old];
            self.wire.push((self.now + MS, to, message));
        }
    }

    /// Delivers `message` to side `to` now.
    fn inject(&mut self, to: usize, message: &Control) {
        let rng = &mut self.rng;
        self.sides[to]
            .fsm
            .on_control(self.now, message, &mut || rng.next());
        self.drain(to);
    }

    /// Handles the earliest event up to `until`; false if there is none.
    fn step(&mut self, until: Nanos) -> bool {
        let message = (0..self.wire.len()).min_by_key(|&i| self.wire[i].0);
        let at = |i: usize| self.wire[i].0;
        let mut next = message.map_or(Nanos::MAX, at);
        for side in &self.sides {
            let timer = side.fsm.deadline().unwrap_or(Nanos::MAX);
            let order = side.order.map_or(Nanos::MAX, |(at, _)| at);
            next = next.min(timer).min(order);
        }
        if next > until {
            self.now = until;
            return false;
        }
        self.now = self.now.max(next);
        for side in 0..2 {
            if self.sides[side].order.is_some_and(|(at, _)| at <= self.now) {
                let (_, action) = self.sides[side].order.take().unwrap();
                if action == Action::DisablePaths {
                    self.sides[side].fsm.paths_disabled(self.now);
                } else {
                    self.sides[side].on = true;
                    self.sides[side].fsm.paths_enabled(self.now);
                }
                self.drain(side);
            }
            if self.sides[side].fsm.deadline().is_some_and(|at| at <= self.now) {
                self.sides[side].fsm.on_timer(self.now);
                self.drain(side);
            }
        }
        if let Some(i) = message.filter(|&i| self.wire[i].0 <= self.now) {
            let (_, to, message) = self.wire.swap_remove(i);
            self.inject(to, &message);
        }
        true
    }

    fn run(&mut self, time: Nanos) {
        let until = self.now + time;
        let mut steps = 0;
        while self.step(until) {
            steps += 1;
            assert!(steps < 200_000, "livelock");
        }
    }

    /// Side `at` crashes and starts again: nothing of it is left, and its paths are gone.
    fn restart(&mut self, at: usize) {
        let info = self.sides[at].fsm.local;
        let rng = &mut self.rng;
        self.sides[at] = Side::new(self.now, info, rng);
        self.drain(at);
    }

    fn both_up(&self) -> bool {
        match (&self.sides[0].up, &self.sides[1].up) {
            (Some(a), Some(b)) => {
                assert!(a.tx_tag != b.rx_tag || (a.join, a.shown) == (b.shown, b.join));
                a.tx_tag == b.rx_tag && a.rx_tag == b.tx_tag
            }
            _ => false,
        }
    }

    fn set_join(&mut self, at: usize, nonce: u64) {
        let rng = &mut self.rng;
        self.sides[at].fsm.set_join(self.now, nonce, &mut || rng.next());
        self.drain(at);
    }

    fn close(&mut self, at: usize) {
        self.sides[at].fsm.close(self.now);
        self.drain(at);
    }

    /// The last message of a kind sent to side `to`.
    fn last(&self, to: usize, kind: ControlKind) -> Control {
        let found = self
            .record
            .iter()
            .rev()
            .find(|(side, message)| *side == to && message.kind == kind);
        found.expect("no such message was sent").1
    }
}

impl Side {
    fn new(now: Nanos, local: LocalInfo, rng: &mut Rng) -> Self {
        Self {
            fsm: RailFsm::new(now, local, &mut || rng.next()),
            on: false,
            order: None,
            up: None,
            ups: 0,
            downs: Vec::new(),
        }
    }
}
