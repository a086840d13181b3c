//! A link and the thread that runs it: takes frames in, carries plans out, gathers and posts.

use crate::cable::{Buffer, FRAME, Frame, HEADER};
use crate::nic::Descriptor;
use crate::profile::Costs;
use crate::queue::Event;
use crate::rng::Rng;
use crate::world::{HostId, World};
use std::collections::VecDeque;
use usb4_engine::{Fate, Link, LinkConfig, Nanos, Plan, RxToken, Source, Staged, TxSlot, payload_span};
use usb4_wire::NodeId;

/// Frames one run of the thread takes in before it lets others have their turn (the design's limit per lock hold).
const BATCH: usize = 64;

/// A link with its buffers and its thread.
pub(crate) struct LinkHome {
    pub(crate) host: HostId,
    pub(crate) peer: NodeId,
    pub(crate) link: Link,
    /// Ports whose rails are attached.
    pub(crate) ports: Vec<usize>,
    /// Its host has died; kept for its counters.
    pub(crate) dead: bool,
    /// The thread polls until this instant, then sleeps and waits for interrupts.
    pub(crate) polling_until: Nanos,
    /// What its host's [`usb4_engine::Joins`] know it by.
    pub(crate) number: usize,
    slots: Vec<Option<Buffer>>,
    tokens: Vec<Option<Frame>>,
    free_tokens: Vec<RxToken>,
    /// Plans taken and not yet carried out, oldest first, with the instant at which each may be.
    plans: VecDeque<(Nanos, Plan)>,
    /// Frames being gathered, oldest first.
    gathers: VecDeque<(Nanos, Box<Staged>)>,
    scratch: Box<Staged>,
    cpu_free: Nanos,
    service_at: Option<Nanos>,
    next_port: usize,
    rng: Rng,
}

impl LinkHome {
    pub(crate) fn new(host: HostId, config: &LinkConfig, link: Link, number: usize, rng: Rng) -> Self {
        let (slots, tokens) = (config.tx_slots, config.rx_tokens);
        Self {
            host,
            peer: config.peer,
            link,
            ports: Vec::new(),
            dead: false,
            polling_until: 0,
            number,
            slots: (0..slots).map(|_| None).collect(),
            tokens: (0..tokens).map(|_| None).collect(),
            free_tokens: (0..tokens).rev().map(RxToken).collect(),
            plans: VecDeque::new(),
            gathers: VecDeque::new(),
            scratch: Box::default(),
            cpu_free: 0,
            service_at: None,
            next_port: 0,
            rng,
        }
    }

    /// The bytes of a TX slot.
    pub(crate) fn slot(&mut self, slot: TxSlot) -> &mut [u8; FRAME] {
        self.slots[usize::from(slot.0)].get_or_insert_with(|| Box::new([0; FRAME]))
    }

    /// RX buffers the link holds.
    pub(crate) fn held(&self) -> usize {
        self.tokens.len() - self.free_tokens.len()
    }

    /// Plans and gathers not yet carried out.
    pub(crate) fn unfinished(&self) -> usize {
        self.plans.len() + self.gathers.len()
    }

    /// Copies lag behind: frames wait in the ring, and the peer's window closes.
    fn lags(&self) -> bool {
        self.plans.len() >= self.link.config().max_plans as usize / 2
    }

    /// Whatever was scheduled for the thread will not happen.
    pub(crate) fn forget_service(&mut self) {
        self.service_at = None;
    }

    /// Charges the thread for something its owner does on its behalf.
    pub(crate) fn charge(&mut self, now: Nanos, cost: Nanos) {
        self.cpu_free = self.cpu_free.max(now) + cost;
    }
}

impl World {
    /// Has the link's thread run at `when`, or as soon after as it is free.
    pub(crate) fn request_service(&mut self, link: usize, when: Nanos) {
        let home = &mut self.links[link];
        let when = when.max(home.cpu_free);
        if !home.dead && home.service_at.is_none_or(|due| when < due) {
            home.service_at = Some(when);
            self.queue.at(when, Event::Service { link });
        }
    }

    /// One run of the link's thread. `clock` is its own time: it runs ahead of the world's by what its work costs.
    pub(crate) fn service(&mut self, link: usize) {
        let now = self.queue.now();
        let home = &mut self.links[link];
        if home.service_at != Some(now) || home.dead || self.hosts[home.host].stopped {
            return;
        }
        home.service_at = None;
        let mut clock = now;
        let mut busy = self.reap(link, &mut clock);
        let taken = self.take_frames(link, &mut clock);
        busy |= taken > 0;
        self.take_join(link);
        let home = &mut self.links[link];
        if home.link.deadline().is_some_and(|due| due <= clock) {
            home.link.on_timer(clock, &self.hosts[home.host].host);
        }
        busy |= self.run_plans(link, &mut clock);
        busy |= self.gather(link, &mut clock);
        busy |= self.post_frames(link, &mut clock);
        let home = &mut self.links[link];
        if home.link.catch_up(&self.hosts[home.host].host) {
            busy |= self.gather(link, &mut clock);
            busy |= self.post_frames(link, &mut clock);
        }
        self.finish_service(link, clock, busy);
    }

    fn finish_service(&mut self, link: usize, clock: Nanos, busy: bool) {
        let linger = self.profile.costs.linger;
        let home = &mut self.links[link];
        home.cpu_free = clock;
        if busy {
            home.polling_until = clock + linger;
        }
        let waiting = !home.lags() && home.ports.iter().any(|&p| !self.ports[p].rx.ready.is_empty());
        let next = [
            waiting.then_some(clock),
            home.link.deadline(),
            home.plans.front().map(|(due, _)| *due),
            home.gathers.front().map(|(due, _)| *due),
        ];
        if let Some(when) = next.into_iter().flatten().min() {
            self.request_service(link, when.max(clock));
        }
    }

    fn reap(&mut self, link: usize, clock: &mut Nanos) -> bool {
        let home = &mut self.links[link];
        let mut busy = false;
        for &port in &home.ports {
            let port = &mut self.ports[port];
            port.irq_pending = false;
            while let Some(slot) = port.tx.done.pop_front() {
                *clock += self.profile.costs.reap;
                home.link.tx_completed(*clock, port.rail, slot);
                busy = true;
            }
        }
        busy
    }

    /// Takes frames from the RX rings in turn, up to [`BATCH`]; returns how many.
    fn take_frames(&mut self, link: usize, clock: &mut Nanos) -> usize {
        let mut taken = 0;
        let rails = self.links[link].ports.len();
        let mut idle = 0;
        while taken < BATCH && idle < rails {
            let home = &mut self.links[link];
            if home.lags() {
                break;
            }
            home.next_port = (home.next_port + 1) % rails;
            let port = home.ports[home.next_port];
            match self.ports[port].rx.ready.pop_front() {
                None => idle += 1,
                Some((_, frame)) => {
                    idle = 0;
                    taken += 1;
                    *clock += self.profile.costs.rx_frame;
                    self.take_frame(link, port, frame, *clock);
                }
            }
        }
        taken
    }

    fn take_frame(&mut self, link: usize, index: usize, frame: Frame, clock: Nanos) {
        let home = &mut self.links[link];
        let port = &mut self.ports[index];
        let rail = port.rail;
        // The descriptor is replaced before the engine sees the frame: an acknowledgement promises room.
        port.rx.free += 1;
        port.counters.received += 1;
        if frame.broken {
            port.counters.crc_errors += 1;
            self.pool.give(frame.bytes);
            return;
        }
        if home.link.payload_crc() && !payload_intact(&frame) {
            home.link.payload_corrupt();
            self.pool.give(frame.bytes);
            return;
        }
        let Some(token) = home.free_tokens.pop() else {
            self.violations
                .push(format!("link {link}: the engine holds more than its RX pool"));
            self.pool.give(frame.bytes);
            return;
        };
        let host = &self.hosts[home.host].host;
        let bytes = &frame.bytes[..usize::from(frame.len)];
        let fate = home
            .link
            .on_frame_first(clock, rail, token, bytes, frame.len, host);
        let strange = home.link.take_reset().map(|_| tag_of(&frame));
        match fate {
            Fate::Done => {
                home.free_tokens.push(token);
                self.pool.give(frame.bytes);
            }
            Fate::Held => home.tokens[token.0 as usize] = Some(frame),
        }
        if let Some(tag) = strange {
            self.unknown_tag(index, tag);
        }
    }

    /// Takes the link's plans and carries out, in order, those that are due.
    fn run_plans(&mut self, link: usize, clock: &mut Nanos) -> bool {
        let delay = self.plan_delay;
        let home = &mut self.links[link];
        let host = &self.hosts[home.host].host;
        let mut busy = false;
        loop {
            while let Some(plan) = home.link.next_plan() {
                let earliest = home.plans.back().map_or(0, |(due, _)| *due);
                let wait = if delay == 0 { 0 } else { home.rng.below(delay) };
                home.plans.push_back((earliest.max(*clock + wait), plan));
            }
            let Some(&(due, plan)) = home.plans.front() else {
                break;
            };
            if due > *clock {
                break;
            }
            home.plans.pop_front();
            let frame = match plan {
                Plan::Copy { from, len, .. } => {
                    *clock += self.profile.costs.copy(usize::from(len));
                    home.tokens[from.0 as usize]
                        .as_ref()
                        .map(|frame| &frame.bytes[..usize::from(frame.len)])
                }
                _ => None,
            };
            let value = host.run(&plan, frame);
            home.link.plan_done(*clock, value, host);
            busy = true;
        }
        while let Some(token) = home.link.next_released() {
            match home.tokens[token.0 as usize].take() {
                Some(frame) => self.pool.give(frame.bytes),
                None => self
                    .violations
                    .push(format!("link {link}: {token:?} released, but not held")),
            }
            home.free_tokens.push(token);
        }
        busy
    }

    /// Fills frames with what is to be sent.
    fn gather(&mut self, link: usize, clock: &mut Nanos) -> bool {
        let delay = self.plan_delay;
        let home = &mut self.links[link];
        let host = &self.hosts[home.host].host;
        let mut busy = false;
        while home.link.stage(*clock, host, &mut home.scratch) {
            busy = true;
            if delay > 0 {
                let earliest = home.gathers.back().map_or(0, |(due, _)| *due);
                let due = earliest.max(*clock + home.rng.below(delay));
                home.gathers.push_back((due, home.scratch.clone()));
            } else {
                let scratch = std::mem::take(&mut home.scratch);
                home.write(host, &scratch, clock, &self.profile.costs);
                home.scratch = scratch;
            }
        }
        while home.gathers.front().is_some_and(|(due, _)| *due <= *clock) {
            if let Some((_, staged)) = home.gathers.pop_front() {
                home.write(host, &staged, clock, &self.profile.costs);
            }
        }
        busy
    }

    /// Hands frames to the rails.
    fn post_frames(&mut self, link: usize, clock: &mut Nanos) -> bool {
        let mut busy = false;
        loop {
            let home = &mut self.links[link];
            let host = &self.hosts[home.host].host;
            let mut header = [0; HEADER];
            let Some(post) = home.link.next_post(*clock, host, &mut header) else {
                return busy;
            };
            busy = true;
            *clock += self.profile.costs.tx_frame;
            home.slot(post.slot)[..HEADER].copy_from_slice(&header);
            let port = home
                .ports
                .iter()
                .copied()
                .find(|&p| self.ports[p].rail == post.rail);
            match port {
                Some(port) => {
                    self.post_tx(
                        port,
                        Descriptor {
                            slot: post.slot,
                            len: post.len,
                            posted: *clock,
                        },
                    );
                }
                None => self.violations.push(format!(
                    "link {link}: post to {:?}, which is not attached",
                    post.rail
                )),
            }
        }
    }
}

impl LinkHome {
    /// Writes a staged frame into its slot and tells the link.
    fn write(&mut self, host: &crate::host::SimHost, staged: &Staged, clock: &mut Nanos, costs: &Costs) {
        let payload_crc = self.link.payload_crc();
        let slot = self.slot(staged.slot);
        let head = staged.head();
        slot[HEADER..HEADER + head.len()].copy_from_slice(head);
        for seg in staged.segs() {
            let (at, len) = (usize::from(seg.at), usize::from(seg.len));
            let out = &mut slot[at..at + len];
            match seg.source {
                Source::Bytes(bytes) => out.copy_from_slice(&bytes[..len]),
                Source::Mem(from) => host.gather(from, out),
            }
            *clock += costs.copy(len);
        }
        if payload_crc {
            let end = usize::from(staged.len) - 4;
            let crc = crc32c::crc32c(&slot[HEADER + head.len()..end]);
            slot[end..end + 4].copy_from_slice(&crc.to_le_bytes());
        }
        self.link.staged(*clock, staged.slot, host);
    }
}

/// The session tag of a frame; of one too short to have a tag, anything.
pub(crate) fn tag_of(frame: &Frame) -> u64 {
    let mut tag = [0; 8];
    tag.copy_from_slice(&frame.bytes[8..16]);
    u64::from_le_bytes(tag)
}

/// Checks the payload CRC of a frame; one the link will drop anyway passes.
fn payload_intact(frame: &Frame) -> bool {
    let bytes = &frame.bytes[..usize::from(frame.len)];
    payload_span(bytes, frame.len).is_none_or(|span| {
        let end = usize::from(span.end);
        let word = bytes
            .get(end..end + 4)
            .and_then(|word| word.try_into().ok())
            .map(u32::from_le_bytes);
        word == Some(crc32c::crc32c(&bytes[usize::from(span.start)..end]))
    })
}
