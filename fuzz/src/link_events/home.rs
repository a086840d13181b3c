//! What surrounds the link: slots, descriptors, tokens, the air, the clock. It notes what it was told and panics
//! when the link contradicts itself.

use std::collections::VecDeque;

use usb4_engine::{
    EpAddr, Fate, FlowId, Limits, Link, LinkConfig, LinkStorage, MemAt, Nanos, NodeId, Operation, Plan,
    RailConfig, RailId, RxToken, Source, Staged, TxSlot, Work,
};
use usb4_wire::{FRAME_HEADER_LEN, FrameView};

use super::frames::{Facts, Frame};
use super::host::{ENDPOINTS, KEY, READ_KEY, TinyHost};
use crate::input::Input;

const TOKENS: u32 = 96;
const SLOTS: u16 = 32;
const RAILS: u8 = 2;
/// Descriptors of a TX ring.
const DEPTH: usize = 16;
/// Frames in the air; more are lost.
const AIR: usize = 64;
/// Rounds in which all work must finish on a good cable.
const PATIENCE: usize = 4000;

/// A frame that has left.
struct Flying {
    frame: Frame,
    /// It left before the last change of its rail.
    stale: bool,
}

/// What a slot holds.
#[derive(Clone, Default)]
struct Slot {
    head: Vec<u8>,
    len: u16,
}

pub struct Home {
    link: Link,
    host: TinyHost,
    now: Nanos,
    free_tokens: Vec<u32>,
    /// Lengths of the frames behind tokens that the link holds.
    held: Vec<Option<u16>>,
    slots: Vec<Slot>,
    gathering: VecDeque<Staged>,
    plans: VecDeque<Plan>,
    posted: [VecDeque<TxSlot>; RAILS as usize],
    attached: [bool; RAILS as usize],
    /// Sessions each rail has had, and the last packet number sent in this one.
    sessions: [u64; RAILS as usize],
    packets: [u64; RAILS as usize],
    air: VecDeque<Flying>,
    cookie: u64,
    /// Flows that were opened, each under a number of its own; the link may have closed them.
    flows: [Option<(u32, FlowId)>; 4],
    opened: u32,
    /// A frame that no link has sent has been delivered: the peer is not to be trusted.
    hostile: bool,
    /// It sees first to what a frame brings.
    puts_off: bool,
}

impl Home {
    pub fn new(setup: u8) -> Self {
        let config = LinkConfig {
            frame_size: if setup & 1 == 0 { 4096 } else { 1024 },
            tx_slots: SLOTS,
            rx_tokens: TOKENS,
            max_tx_flows: 3,
            max_rx_flows: 3,
            max_ops: 16,
            max_parked: if setup & 2 == 0 { 64 } else { 20 },
            max_reads: 4,
            peer_max_reads: 4,
            max_plans: if setup & 4 == 0 { 32 } else { 16 },
            max_ready: 8,
            max_rails: RAILS,
            rail_window: 128,
            payload_crc: setup & 8 != 0,
            ..LinkConfig::new(NodeId(1), NodeId(1))
        };
        let mut home = Self {
            link: Link::new(config, LinkStorage::boxed(&config)),
            host: TinyHost::default(),
            now: 0,
            free_tokens: (0..TOKENS).collect(),
            held: vec![None; TOKENS as usize],
            slots: vec![Slot::default(); usize::from(SLOTS)],
            gathering: VecDeque::new(),
            plans: VecDeque::new(),
            posted: Default::default(),
            attached: [false; RAILS as usize],
            sessions: [0; RAILS as usize],
            packets: [0; RAILS as usize],
            air: VecDeque::new(),
            cookie: 0,
            flows: [None; 4],
            opened: 0,
            hostile: false,
            puts_off: setup & 32 != 0,
        };
        home.attach(0);
        if setup & 16 != 0 {
            home.attach(1);
        }
        home
    }

    /// What a made-up frame needs to be taken for a good one.
    pub fn frame_facts(&self) -> Facts {
        Facts {
            tags: [self.tag(0), self.tag(1)],
            packets: self.packets,
            payload_crc: self.link.payload_crc(),
        }
    }

    fn tag(&self, rail: u8) -> u64 {
        self.sessions[usize::from(rail)] << 8 | u64::from(rail)
    }

    fn attach(&mut self, rail: u8) {
        let index = usize::from(rail);
        self.sessions[index] += 1;
        let config = RailConfig {
            tx_tag: self.tag(rail),
            rx_tag: self.tag(rail),
            peer_ring: 64,
            tx_depth: DEPTH as u16,
            peer_max_ack_delay: 25_000,
            rate_bps: 12_000_000_000,
            latency: 3_000,
        };
        if self.link.attach_rail(self.now, RailId(rail), &config).is_ok() {
            self.attached[index] = true;
            self.packets[index] = 0;
            for flying in self.air.iter_mut().filter(|flying| flying.frame.rail == rail) {
                flying.stale = true;
            }
        }
    }

    pub fn change_rail(&mut self, detail: u8) {
        let rail = detail & 1;
        let index = usize::from(rail);
        if !self.attached[index] {
            return self.attach(rail);
        }
        if detail & 0xf0 == 0x80 {
            self.link.fail(self.now, &self.host);
            self.attached = [false; RAILS as usize];
            self.posted = Default::default();
        } else if self.attached[1 - index] {
            self.link.detach_rail(self.now, RailId(rail), &self.host);
            self.attached[index] = false;
            self.posted[index].clear();
        }
    }

    pub fn change_endpoint(&mut self, detail: u8) {
        let ep = usize::from(detail >> 2) % ENDPOINTS;
        self.host.set_gone(ep, detail & 1 != 0);
        self.host.refuse_flows(detail & 2 != 0);
        self.host.set_admission(detail >> 4 & 3);
        self.link.receive_posted(self.now, ep as u32);
    }

    pub fn open_flow(&mut self, detail: u8) {
        let dst = EpAddr {
            node: NodeId(1),
            ep: u32::from(detail & 3),
            incarnation: 1,
        };
        if let (true, Some((_, flow))) = (detail & 0x20 != 0, self.flows[usize::from(detail >> 2 & 3)]) {
            self.link.drain_flow(flow);
        }
        if let Ok(flow) = self.link.open_flow(self.now, 0, 1, &dst) {
            if detail & 0x10 != 0 {
                let limits = Limits {
                    ready: 1 << 24,
                    receive: 1 << 22,
                    reads: 1,
                };
                self.link.limit_flow(flow, limits);
            }
            self.opened += 1;
            self.flows[usize::from(detail >> 2 & 3)] = Some((self.opened, flow));
        }
    }

    pub fn close_flow(&mut self, detail: u8) {
        if let Some((_, flow)) = self.flows[usize::from(detail & 3)] {
            self.link.close_flow(self.now, flow, &self.host);
        }
    }

    pub fn post(&mut self, detail: u8, input: &mut Input<'_>) {
        let choice = input.byte();
        let (flow, fenced) = (self.flows[usize::from(choice & 3)], choice & 4 != 0);
        let len = u32::from(input.u16());
        let remote_key = match input.byte() % 9 {
            7 => KEY,
            8 => READ_KEY,
            other => u64::from(other),
        };
        let remote_addr = u64::from(input.byte()) << 7;
        let imm = (detail & 0x40 != 0).then_some(u64::from(detail));
        let op = match detail & 7 {
            0 | 1 => Operation::Send {
                imm,
                prefix: [detail; 24],
                prefix_len: detail >> 3 & 31,
            },
            2 | 3 => Operation::Write {
                remote_addr,
                remote_key,
                imm,
            },
            4 | 5 => Operation::Read {
                remote_addr,
                remote_key,
            },
            6 => Operation::FetchAdd {
                remote_addr,
                remote_key,
                add: 1,
            },
            _ => Operation::CompareSwap {
                remote_addr,
                remote_key,
                compare: 1,
                swap: 2,
            },
        };
        let atomic = matches!(op, Operation::FetchAdd { .. } | Operation::CompareSwap { .. });
        let len = if atomic { 8 } else { len };
        let wanted = len != 0 && !(atomic && detail & 0x80 != 0);
        let local = wanted.then(|| self.host.lend(len));
        self.cookie += 1;
        let work = Work {
            cookie: self.cookie,
            op,
            local,
            len,
        };
        let accepted = flow.is_some_and(|(name, flow)| {
            self.host.posted(name, self.cookie);
            let accepted = self.link.post_fenced(self.now, flow, work, fenced).is_ok();
            if !accepted {
                self.host.unpost(name, self.cookie);
            }
            accepted
        });
        if let Some(at) = local.filter(|_| !accepted) {
            self.host.take_back(at);
        }
    }

    pub fn post_receive(&mut self, detail: u8, input: &mut Input<'_>) {
        let ep = usize::from(detail) % ENDPOINTS;
        self.host.post_receive(ep, u32::from(input.u16()) << 2);
        self.link.receive_posted(self.now, ep as u32);
    }

    /// Begins to gather a frame. False if there is none.
    pub fn stage(&mut self) -> bool {
        let mut staged = Staged::new();
        if self.gathering.len() >= 4 || !self.link.stage(self.now, &self.host, &mut staged) {
            return false;
        }
        let body = usize::from(staged.len) - FRAME_HEADER_LEN - staged.head().len();
        let trailer = if self.link.payload_crc() { 4 } else { 0 };
        let pieces: usize = staged.segs().iter().map(|seg| usize::from(seg.len)).sum();
        assert_eq!(pieces + trailer, body, "pieces do not fill the frame");
        self.check_gather(&staged);
        let slot = &mut self.slots[usize::from(staged.slot.0)];
        slot.head = staged.head().to_vec();
        slot.len = staged.len;
        self.gathering.push_back(staged);
        true
    }

    fn check_gather(&self, staged: &Staged) {
        let mut at = FRAME_HEADER_LEN + staged.head().len();
        for seg in staged.segs() {
            assert_eq!(usize::from(seg.at), at, "pieces out of order");
            at += usize::from(seg.len);
            if let Source::Mem(from) = seg.source {
                self.host.check_access(from, u64::from(seg.len));
            }
        }
    }

    /// Ends the oldest gather.
    pub fn gathered(&mut self) {
        if let Some(staged) = self.gathering.pop_front() {
            // The memory was read until now.
            self.check_gather(&staged);
            self.link.staged(self.now, staged.slot, &self.host);
        }
    }

    /// Posts that many frames and one more. False if there were not as many.
    pub fn post_frames(&mut self, limit: u8) -> bool {
        for _ in 0..=limit {
            let mut header = [0; FRAME_HEADER_LEN];
            let Some(post) = self.link.next_post(self.now, &self.host, &mut header) else {
                return false;
            };
            let rail = usize::from(post.rail.0);
            assert!(self.attached[rail], "posts to a rail that is gone");
            assert!(self.posted[rail].len() < DEPTH, "more posts than descriptors");
            assert!(
                !self.posted.iter().flatten().any(|slot| *slot == post.slot),
                "a slot posted twice at once"
            );
            assert!(
                !self.gathering.iter().any(|staged| staged.slot == post.slot),
                "posted before it is gathered"
            );
            self.posted[rail].push_back(post.slot);
            let slot = &self.slots[usize::from(post.slot.0)];
            let mut head = header.to_vec();
            if FrameView::parse(&head, FRAME_HEADER_LEN).is_err() {
                head.extend_from_slice(&slot.head);
                assert_eq!(slot.len, post.len);
            }
            let view = FrameView::parse(&head, usize::from(post.len)).expect("sends a frame nobody can read");
            assert!(
                view.crc_ok(crc32c::crc32c_append),
                "sends a frame with a wrong CRC"
            );
            let packet = view.header().packet;
            assert_eq!(
                packet,
                self.packets[rail] + 1,
                "packet numbers have a gap or repeat"
            );
            self.packets[rail] = packet;
            if self.air.len() < AIR {
                let frame = Frame {
                    rail: post.rail.0,
                    head,
                    len: post.len,
                };
                self.air.push_back(Flying { frame, stale: false });
            }
        }
        true
    }

    /// The oldest descriptor of a rail is consumed.
    pub fn complete(&mut self, detail: u8) {
        let rail = detail & 1;
        if let Some(slot) = self.posted[usize::from(rail)].pop_front() {
            self.link.tx_completed(self.now, RailId(rail), slot);
        }
    }

    /// Some frame of those in the air arrives, perhaps not for the last time, perhaps damaged.
    pub fn deliver(&mut self, detail: u8, input: &mut Input<'_>) {
        let at = usize::from(detail >> 2) % self.air.len().max(1);
        let Some(flying) = self.air.get(at) else { return };
        let mut frame = flying.frame.clone();
        if detail & 1 == 0 {
            self.air.remove(at);
        }
        if detail & 2 != 0 {
            let hit = usize::from(input.byte()) % frame.head.len();
            frame.head[hit] ^= input.byte();
        }
        self.arrive(&frame);
    }

    /// A made-up frame arrives.
    pub fn receive(&mut self, frame: Frame) {
        self.hostile = true;
        self.arrive(&frame);
    }

    fn arrive(&mut self, frame: &Frame) {
        let Some(token) = self.free_tokens.pop() else {
            return;
        };
        let index = token as usize;
        self.held[index] = Some(frame.len);
        let rail = RailId(frame.rail);
        let (now, token_id, len) = (self.now, RxToken(token), frame.len);
        let fate = if self.puts_off {
            self.link
                .on_frame_first(now, rail, token_id, &frame.head, len, &self.host)
        } else {
            self.link
                .on_frame(now, rail, token_id, &frame.head, len, &self.host)
        };
        match fate {
            Fate::Held => {}
            Fate::Done => {
                self.held[index] = None;
                self.free_tokens.push(token);
            }
        }
        let _ = self.link.take_reset();
        let _ = self.link.take_join();
        self.take_released();
    }

    fn take_released(&mut self) {
        while let Some(RxToken(token)) = self.link.next_released() {
            let was = self.held[token as usize].take();
            assert!(was.is_some(), "releases a buffer it does not hold");
            self.free_tokens.push(token);
        }
    }

    pub fn take_plan(&mut self) -> bool {
        let Some(plan) = self.link.next_plan() else {
            return false;
        };
        self.check_plan(&plan);
        self.plans.push_back(plan);
        true
    }

    fn check_plan(&self, plan: &Plan) {
        let atomic = |at: MemAt| {
            assert_eq!(at.offset % 8, 0, "an atomic across two words");
            self.host.check_access(at, 8);
        };
        match *plan {
            Plan::Copy { from, at, len, to } => {
                let held = self.held[from.0 as usize].expect("copies from a buffer it does not hold");
                let end = at.checked_add(len).expect("a copy that wraps");
                assert!(
                    usize::from(at) >= FRAME_HEADER_LEN && end <= held,
                    "copies from outside the frame"
                );
                self.host.check_access(to, u64::from(len));
            }
            Plan::FetchAdd { at, .. } | Plan::CompareSwap { at, .. } => atomic(at),
            Plan::Store { to, .. } => self.host.check_access(to, 8),
            Plan::Nothing => {}
        }
    }

    /// The oldest plan taken is done.
    pub fn plan_done(&mut self) {
        if let Some(plan) = self.plans.pop_front() {
            // The memory was in use until now.
            self.check_plan(&plan);
            self.link.plan_done(self.now, 42, &self.host);
            self.take_released();
        }
    }

    pub fn pass(&mut self, time: Nanos) {
        self.now += time;
        if self.link.deadline().is_some_and(|at| at <= self.now) {
            self.link.on_timer(self.now, &self.host);
        }
    }

    /// Composes, gathers and posts all there is.
    fn send_all(&mut self) {
        let mut more = true;
        while more {
            more = self.stage();
            self.gathered();
            more |= self.post_frames(0) || !self.gathering.is_empty();
        }
    }

    /// A home that does everything there is to do, once.
    pub fn service(&mut self) {
        while self.take_plan() {}
        while !self.plans.is_empty() {
            self.plan_done();
        }
        self.send_all();
        if self.link.is_behind() {
            // What the first round has freed is no news.
            self.send_all();
            if self.link.catch_up(&self.host) {
                self.send_all();
            } else if self.link.deadline() != Some(0) {
                // Nobody asks again.
                assert!(!self.stage() && !self.post_frames(0), "something may be sent");
            }
        }
        for rail in 0..RAILS {
            while !self.posted[usize::from(rail)].is_empty() {
                self.complete(rail);
            }
        }
    }

    /// Rounds of a home and a cable that work.
    pub fn exchange(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.service();
            let frames = self.air.len();
            for _ in 0..frames {
                if let Some(flying) = self.air.pop_front() {
                    self.arrive(&flying.frame);
                }
            }
            self.service();
            let wait = self
                .link
                .deadline()
                .map_or(1_000, |at| at.saturating_sub(self.now));
            self.pass(wait.clamp(1_000, 200_000_000));
            let late = self.link.deadline().is_some_and(|at| at <= self.now);
            assert!(!late, "a timer that has expired stays expired");
        }
    }

    /// The end: all work finishes, if only frames of the link's own were about; then the link fails, and
    /// everything it holds comes back.
    pub fn finish(mut self) {
        if !self.hostile {
            self.finish_work();
        }
        self.link.fail(self.now, &self.host);
        while !self.gathering.is_empty() {
            self.gathered();
        }
        assert!(
            self.link.next_plan().is_none() || self.hostile,
            "plans after the end"
        );
        while !self.plans.is_empty() {
            self.plan_done();
        }
        self.take_released();
        assert!(
            self.link.is_quiet(),
            "holds {:?} after the end",
            self.link.usage()
        );
        assert!(self.held.iter().all(Option::is_none), "a buffer never came back");
        self.pass(1 << 40);
        assert_eq!(self.link.deadline(), None);
        self.host.check_settled();
    }

    fn finish_work(&mut self) {
        // What left under an old session, or was overtaken, is loss; the protocol copes.
        self.air.retain(|flying| !flying.stale);
        for ep in 0..ENDPOINTS {
            self.host.set_gone(ep, false);
        }
        self.host.set_admission(0);
        for _ in 0..PATIENCE {
            if !self.link.is_up() || self.host.all_done() {
                return;
            }
            for ep in 0..ENDPOINTS {
                self.host.post_receive(ep, 1 << 18);
                self.link.receive_posted(self.now, ep as u32);
            }
            self.exchange(1);
        }
        panic!(
            "work does not finish on a good cable: {:?} {:?}",
            self.link.usage(),
            self.link.counters()
        );
    }
}
