//! Two rail state machines, a control channel the input rules over, and messages of the input's own.
//!
//! Whatever happens, a rail is up only while its paths are on; orders to the home alternate; a machine asks for a
//! bounded number of things at a time. And once the channel behaves, both sides come up and agree.

use std::collections::VecDeque;

use usb4_engine::{Action, LocalInfo, Nanos, NodeId, PeerInfo, RailFsm};
use usb4_wire::{Control, ControlBody, ControlKind};

use crate::input::{Input, Rng};

/// Messages under way to one side; more are lost.
const CHANNEL: usize = 16;
/// Things a machine may ask for before it is quiet.
const BURST: usize = 32;
/// Virtual time in which both sides must find each other on a good channel.
const PATIENCE: Nanos = 120_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Paths {
    Off,
    Enabling,
    On,
    Disabling,
}

struct Side {
    fsm: RailFsm,
    paths: Paths,
    up: Option<PeerInfo>,
    inbox: VecDeque<Control>,
    /// It crashed, or was told to close: its end of the rail promises nothing.
    closing: bool,
}

struct World {
    now: Nanos,
    rng: Rng,
    sides: [Side; 2],
    /// Nonces and tags that have been seen, for messages made up from them.
    seen: Vec<u64>,
}

/// Interprets the input as events.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(input.u64());
    while !input.is_empty() {
        world.event(&mut input);
    }
    world.settle();
}

fn local(side: usize) -> LocalInfo {
    LocalInfo {
        node: NodeId(side as u128 + 1),
        ver_min: 1,
        ver_max: 1,
        tx_hop: 8 + side as u32,
        ring_size: 256,
        max_ack_delay_us: 20,
        features: 1,
        max_flows: 64,
        max_reads: 16,
    }
}

impl Side {
    fn new(now: Nanos, side: usize, rng: &mut Rng) -> Self {
        Self {
            fsm: RailFsm::new(now, local(side), &mut || rng.next()),
            paths: Paths::Off,
            up: None,
            inbox: VecDeque::new(),
            closing: false,
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let sides = [Side::new(0, 0, &mut rng), Side::new(0, 1, &mut rng)];
        let mut world = Self {
            now: 0,
            rng,
            sides,
            seen: vec![0, u64::MAX],
        };
        world.drain(0);
        world.drain(1);
        world
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let side = usize::from(choice & 1);
        match choice >> 1 & 15 {
            0..=4 => self.deliver(side, input.below(CHANNEL), false),
            5 => self.deliver(side, input.below(CHANNEL), true),
            6 => {
                let at = input.below(CHANNEL);
                self.sides[side].inbox.remove(at);
            }
            7 | 8 => self.switch_paths(side, input.byte() & 7 != 0),
            9 => self.pass(Nanos::from(input.u16()) << 20),
            10 => self.pass(Nanos::from(input.byte()) << 10),
            11 => {
                let message = self.invent(input);
                self.receive(side, &message);
            }
            12 => self.restart(side),
            13 => {
                let nonce = self.pick(input);
                let rng = &mut self.rng;
                self.sides[side].fsm.set_join(self.now, nonce, &mut || rng.next());
            }
            14 => {
                let tag = self.pick(input);
                self.sides[side].fsm.unknown_tag(self.now, tag);
            }
            _ => {
                let farewell = input.byte();
                let side = &mut self.sides[side];
                side.closing = true;
                if farewell & 1 == 0 {
                    side.fsm.close(self.now);
                } else {
                    side.fsm.abort(self.now);
                }
            }
        }
        self.drain(side);
    }

    /// A value that has been seen, or one of the input's.
    fn pick(&mut self, input: &mut Input<'_>) -> u64 {
        let at = usize::from(input.byte());
        self.seen.get(at).copied().unwrap_or_else(|| input.u64())
    }

    fn invent(&mut self, input: &mut Input<'_>) -> Control {
        let kind = ControlKind::from_code(1 + input.byte() % 8).expect("kinds are 1 to 8");
        let shape = input.byte();
        let mut body = ControlBody {
            ver_min: 1,
            ver_max: 1,
            node_id: NodeId(u128::from(shape & 3)),
            tag: self.pick(input),
            nonce: self.pick(input),
            echo: self.pick(input),
            ring_size: 256,
            max_ack_delay_us: 20,
            max_flows: 64,
            max_reads: 16,
            ..ControlBody::default()
        };
        if shape & 4 != 0 {
            body.ver_min = input.byte();
            body.ver_max = input.byte();
            body.join = input.u64();
            body.tx_hop = input.u32();
            body.ring_size = input.u32();
            body.max_ack_delay_us = input.u32();
            body.features = input.u32();
            body.max_flows = input.u32();
            body.max_reads = input.u32();
            body.reason = input.u32();
        }
        Control { kind, body }
    }

    fn deliver(&mut self, side: usize, at: usize, keep: bool) {
        let inbox = &mut self.sides[side].inbox;
        let at = at % inbox.len().max(1);
        let message = if keep {
            inbox.get(at).copied()
        } else {
            inbox.remove(at)
        };
        if let Some(message) = message {
            self.receive(side, &message);
        }
    }

    fn receive(&mut self, side: usize, message: &Control) {
        let rng = &mut self.rng;
        self.sides[side]
            .fsm
            .on_control(self.now, message, &mut || rng.next());
        self.drain(side);
    }

    /// The home of a side has done what it was told; or could not.
    fn switch_paths(&mut self, side: usize, works: bool) {
        let now = self.now;
        let side_ref = &mut self.sides[side];
        match side_ref.paths {
            Paths::Enabling if works => {
                side_ref.paths = Paths::On;
                side_ref.fsm.paths_enabled(now);
            }
            Paths::Enabling | Paths::Disabling => {
                side_ref.paths = Paths::Off;
                side_ref.fsm.paths_disabled(now);
            }
            Paths::Off | Paths::On => {}
        }
        self.drain(side);
    }

    fn restart(&mut self, side: usize) {
        let inbox = std::mem::take(&mut self.sides[side].inbox);
        self.sides[side] = Side::new(self.now, side, &mut self.rng);
        self.sides[side].inbox = inbox;
        self.drain(side);
    }

    fn pass(&mut self, time: Nanos) {
        self.now += time;
        for side in 0..2 {
            let fsm = &mut self.sides[side].fsm;
            if fsm.deadline().is_some_and(|at| at <= self.now) {
                fsm.on_timer(self.now);
                self.drain(side);
                let next = self.sides[side].fsm.deadline();
                assert!(
                    next.is_none_or(|at| at > self.now),
                    "a timer that has expired stays expired"
                );
            }
        }
    }

    /// Takes everything a machine wants.
    fn drain(&mut self, side: usize) {
        for _ in 0..BURST {
            let Some(action) = self.sides[side].fsm.poll_output() else {
                return;
            };
            match action {
                Action::Send(message) => self.send(1 - side, &message),
                Action::EnablePaths { .. } => {
                    assert_eq!(self.sides[side].paths, Paths::Off);
                    self.sides[side].paths = Paths::Enabling;
                }
                Action::DisablePaths => {
                    assert_eq!(self.sides[side].paths, Paths::On);
                    assert!(self.sides[side].up.is_none(), "paths off while the rail is up");
                    self.sides[side].paths = Paths::Disabling;
                }
                Action::Up(info) => {
                    assert_eq!(self.sides[side].paths, Paths::On, "up without paths");
                    assert!(self.sides[side].up.is_none(), "up twice");
                    assert!(info.tx_tag != 0 && info.rx_tag != 0 && info.ring_size > 32);
                    self.sides[side].up = Some(info);
                }
                Action::Down(_) => {
                    assert!(
                        self.sides[side].up.take().is_some(),
                        "down without having been up"
                    );
                }
            }
        }
        panic!("a machine that never stops asking");
    }

    fn send(&mut self, to: usize, message: &Control) {
        let bytes = message.emit(crc32c::crc32c_append);
        assert_eq!(
            Control::parse(&bytes, crc32c::crc32c_append),
            Ok(*message),
            "not valid on the wire"
        );
        for value in [message.body.tag, message.body.nonce] {
            if self.seen.len() < 250 && !self.seen.contains(&value) {
                self.seen.push(value);
            }
        }
        let inbox = &mut self.sides[to].inbox;
        if inbox.len() < CHANNEL {
            inbox.push_back(*message);
        }
    }

    /// From now on the channel behaves: whoever was closed is closed, and starts again; then both come up.
    fn settle(&mut self) {
        let until = self.now + PATIENCE;
        while self.now < until {
            for side in 0..2 {
                while let Some(message) = self.sides[side].inbox.pop_front() {
                    self.receive(side, &message);
                }
                self.switch_paths(side, true);
                if self.sides[side].closing && self.sides[side].fsm.is_closed() {
                    self.restart(side);
                }
            }
            if self.agreed() {
                return;
            }
            self.exchange_frames();
            let next = self.sides.iter().filter_map(|side| side.fsm.deadline()).min();
            let step = next.map_or(1_000_000, |at| {
                at.saturating_sub(self.now).clamp(1_000_000, 50_000_000)
            });
            self.pass(step);
        }
        let states = [self.sides[0].fsm.state(), self.sides[1].fsm.state()];
        panic!("no session on a good channel: {states:?}");
    }

    /// A side that is up sends frames: the other one notices if it does not know their tag.
    fn exchange_frames(&mut self) {
        for side in 0..2 {
            let Some(info) = self.sides[side].up else { continue };
            let other = &mut self.sides[1 - side];
            if other.up.is_none_or(|up| up.rx_tag != info.tx_tag) && other.paths == Paths::On {
                other.fsm.unknown_tag(self.now, info.tx_tag);
                self.drain(1 - side);
            }
        }
    }

    fn agreed(&self) -> bool {
        let quiet = self.sides.iter().all(|side| side.inbox.is_empty());
        match [&self.sides[0].up, &self.sides[1].up] {
            [Some(a), Some(b)] => quiet && a.tx_tag == b.rx_tag && a.rx_tag == b.tx_tag,
            _ => false,
        }
    }
}

/// Events that bring both up, restart one, lose and repeat messages, say goodbye.
pub fn seeds() -> Vec<Vec<u8>> {
    let deliver = |side: u8| vec![side, 0];
    let paths = |side: u8| vec![7 << 1 | side, 1];
    let wait = [9 << 1, 200, 0].to_vec();
    let up: Vec<u8> = (0..6)
        .flat_map(|_| [deliver(0), deliver(1), paths(0), paths(1), deliver(1), deliver(0)].concat())
        .collect();
    let with = |events: &[&[u8]]| [&[1; 8][..], &events.concat()].concat();
    vec![
        with(&[&up]),
        with(&[&up, &[12 << 1], &up, &wait, &up]),
        with(&[&up, &[15 << 1, 0], &up, &wait, &up]),
        with(&[&up, &[15 << 1 | 1, 1], &wait, &up]),
        with(&[&up, &[13 << 1, 4], &up, &wait, &up]),
        with(&[&up, &[14 << 1, 3], &up, &[14 << 1 | 1, 4], &up]),
        with(&[
            &up,
            &[11 << 1, 6, 1, 2, 3, 4],
            &up,
            &[11 << 1 | 1, 4, 2, 3, 4, 5],
            &up,
        ]),
        with(&[&[5 << 1, 0, 5 << 1 | 1, 0], &up, &[6 << 1, 0], &wait, &up]),
    ]
}
