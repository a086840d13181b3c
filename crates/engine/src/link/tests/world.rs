//! Two links back to back in virtual time, with a home of their own each.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;
use std::{boxed::Box, vec};

use usb4_wire::{Chunk, EpAddr, FrameView, NakCode, NodeId, Request, Response};

use crate::*;

/// Memory, receives and completions of one side.
#[derive(Default)]
pub(super) struct Home {
    pub(super) regions: Vec<Vec<u8>>,
    pub(super) refs: BTreeMap<u64, i64>,
    pub(super) receives: BTreeMap<u32, VecDeque<Receive>>,
    pub(super) wants_receive: Vec<u32>,
    pub(super) received: Vec<ReceiveDone>,
    pub(super) done: Vec<WorkDone>,
    /// Regions the peer may use; the key is the region's index, the address starts at 0.
    pub(super) open: BTreeMap<u64, bool>,
    pub(super) gone: bool,
    /// What is said of requests for flows that have not taken any; all are taken if there is nothing.
    pub(super) admits: Option<Result<Admission, NakCode>>,
    pub(super) flows: i64,
    pub(super) opened: u32,
}

#[derive(Default)]
pub(super) struct TestHost(pub(super) RefCell<Home>);

impl TestHost {
    pub(super) fn region(&self, bytes: Vec<u8>) -> MemRef {
        let mut home = self.0.borrow_mut();
        home.regions.push(bytes);
        MemRef(home.regions.len() as u64 - 1)
    }

    pub(super) fn bytes(&self, mem: MemRef) -> Vec<u8> {
        self.0.borrow().regions[mem.0 as usize].clone()
    }

    pub(super) fn hold(&self, mem: MemRef) -> MemRef {
        *self.0.borrow_mut().refs.entry(mem.0).or_default() += 1;
        mem
    }

    fn copy_out(&self, at: MemAt, len: usize) -> Vec<u8> {
        let home = self.0.borrow();
        assert!(
            home.refs.get(&at.mem.0).is_some_and(|&n| n > 0),
            "memory read without a reference"
        );
        home.regions[at.mem.0 as usize][at.offset as usize..][..len].to_vec()
    }

    fn copy_in(&self, at: MemAt, bytes: &[u8]) {
        let mut home = self.0.borrow_mut();
        assert!(
            home.refs.get(&at.mem.0).is_some_and(|&n| n > 0),
            "memory written without a reference"
        );
        home.regions[at.mem.0 as usize][at.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn swap(&self, at: MemAt, new: impl Fn(u64) -> u64) -> u64 {
        let old = u64::from_le_bytes(self.copy_out(at, 8).try_into().expect("8 bytes"));
        self.copy_in(at, &new(old).to_le_bytes());
        old
    }

    pub(super) fn outstanding(&self) -> i64 {
        self.0.borrow().refs.values().sum()
    }
}

impl Host for TestHost {
    fn open_flow(&self, src: &EpAddr, dst_ep: u32, _dst_inc: u32) -> Result<Target, NakCode> {
        let mut home = self.0.borrow_mut();
        if home.gone {
            return Err(NakCode::Gone);
        }
        home.flows += 1;
        home.opened += 1;
        Ok(Target {
            ep: dst_ep,
            src: src.ep,
        })
    }

    fn admit(&self, _target: Target) -> Result<Admission, NakCode> {
        self.0.borrow().admits.unwrap_or(Ok(Admission::Reads(u32::MAX)))
    }

    fn close_flow(&self, _target: Target) {
        self.0.borrow_mut().flows -= 1;
    }

    fn remote_access(
        &self,
        _target: Target,
        key: u64,
        addr: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<MemAt, NakCode> {
        let mut home = self.0.borrow_mut();
        let writable = *home.open.get(&key).ok_or(NakCode::Access)?;
        let size = home.regions[key as usize].len() as u64;
        if addr.checked_add(u64::from(len)).is_none_or(|end| end > size)
            || (access != RemoteAccess::Read && !writable)
        {
            return Err(NakCode::Access);
        }
        *home.refs.entry(key).or_default() += 1;
        Ok(MemAt {
            mem: MemRef(key),
            offset: addr,
        })
    }

    fn take_receive(&self, target: Target, _len: u32) -> Result<Receive, NakCode> {
        let mut home = self.0.borrow_mut();
        if home.gone {
            return Err(NakCode::Gone);
        }
        match home.receives.entry(target.ep).or_default().pop_front() {
            Some(receive) => Ok(receive),
            None => {
                home.wants_receive.push(target.ep);
                Err(NakCode::Rnr)
            }
        }
    }

    fn lives(&self, _: MemRef) -> bool {
        true
    }

    fn release(&self, mem: MemRef) {
        let mut home = self.0.borrow_mut();
        let count = home.refs.entry(mem.0).or_default();
        *count -= 1;
        assert!(*count >= 0, "reference released twice");
    }

    fn complete_receive(&self, _target: Target, done: ReceiveDone) {
        self.0.borrow_mut().received.push(done);
    }

    fn complete_work(&self, done: WorkDone) {
        self.0.borrow_mut().done.push(done);
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(crc, |crc, &b| {
            (crc ^ u32::from(b)).wrapping_mul(0x0100_0193).rotate_left(5)
        })
    }
}

/// One direction of one rail.
pub(super) struct Cable {
    pub(super) latency: Nanos,
    pub(super) ns_per_frame: Nanos,
    busy_until: Nanos,
    frames: VecDeque<(Nanos, Vec<u8>)>,
    completions: VecDeque<(Nanos, TxSlot)>,
    pub(super) up: bool,
}

impl Cable {
    fn new() -> Self {
        Self {
            latency: 2_000,
            ns_per_frame: 800,
            busy_until: 0,
            frames: VecDeque::new(),
            completions: VecDeque::new(),
            up: false,
        }
    }
}

/// A frame under way, for scripts of loss.
pub(super) struct Sent<'a> {
    /// 0: from side 0 to side 1.
    pub(super) from: usize,
    pub(super) rail: usize,
    pub(super) frame: &'a [u8],
}

impl Sent<'_> {
    pub(super) fn view(&self) -> FrameView<'_> {
        FrameView::parse(self.frame, self.frame.len()).expect("links send valid frames")
    }

    pub(super) fn has(&self, wanted: impl Fn(&Chunk) -> bool) -> bool {
        self.view().chunks().any(|item| wanted(&item.chunk))
    }

    pub(super) fn has_request(&self, wanted: impl Fn(&Request) -> bool) -> bool {
        self.has(|chunk| matches!(chunk, Chunk::Request(_, request) if wanted(request)))
    }

    pub(super) fn has_response(&self, wanted: impl Fn(&Response) -> bool) -> bool {
        self.has(|chunk| matches!(chunk, Chunk::Response(_, response) if wanted(response)))
    }

    pub(super) fn is_pure_ack(&self) -> bool {
        self.view().chunks().next().is_none()
    }
}

/// What happens to a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Deliver,
    Drop,
    Twice,
}

pub(super) struct Side {
    pub(super) link: Link,
    pub(super) host: TestHost,
    slots: Vec<Vec<u8>>,
    rx: Vec<Option<Vec<u8>>>,
    staged: Box<Staged>,
    /// Plans are taken but not done while this is set.
    pub(super) hold_plans: bool,
    /// Frames are staged but not gathered while this is set.
    pub(super) hold_gather: bool,
    /// What it puts off when it copies under the lock waits.
    pub(super) hold_late: bool,
    /// Plans are run and frames gathered under the link's lock.
    pub(super) under_lock: bool,
    taken: VecDeque<Plan>,
    gathering: VecDeque<Staged>,
}

pub(super) type Script = Box<dyn FnMut(&Sent<'_>) -> Fault>;

pub(super) struct Pair {
    pub(super) now: Nanos,
    pub(super) sides: [Side; 2],
    /// By sender, then by rail.
    pub(super) cables: [Vec<Cable>; 2],
    pub(super) script: Script,
    pub(super) frames: [u64; 2],
    /// Each side is its own peer.
    loopback: bool,
}

pub(super) fn config() -> LinkConfig {
    LinkConfig {
        tx_slots: 256,
        rx_tokens: 2048,
        max_tx_flows: 8,
        max_rx_flows: 8,
        max_ops: 256,
        max_parked: 1024,
        max_reads: 8,
        peer_max_reads: 8,
        max_plans: 256,
        ..LinkConfig::new(NodeId(1), NodeId(2))
    }
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(config(), 1)
    }

    pub(super) fn with(config: LinkConfig, rails: usize) -> Self {
        Self::with_each([config, config], rails)
    }

    /// With a configuration for each side.
    pub(super) fn with_each([first, second]: [LinkConfig; 2], rails: usize) -> Self {
        let side = |config, local, peer| {
            let config = LinkConfig {
                local: NodeId(local),
                peer: NodeId(peer),
                ..config
            };
            Side {
                link: Link::new(config, LinkStorage::boxed(&config)),
                host: TestHost::default(),
                slots: vec![vec![0; 4096]; usize::from(config.tx_slots)],
                rx: vec![None; config.rx_tokens as usize],
                staged: Box::new(Staged::new()),
                hold_plans: false,
                hold_gather: false,
                hold_late: false,
                under_lock: false,
                taken: VecDeque::new(),
                gathering: VecDeque::new(),
            }
        };
        let cables = || (0..rails).map(|_| Cable::new()).collect::<Vec<_>>();
        let mut pair = Self {
            now: 1_000,
            sides: [side(first, 1, 2), side(second, 2, 1)],
            cables: [cables(), cables()],
            script: Box::new(|_| Fault::Deliver),
            frames: [0; 2],
            loopback: false,
        };
        for rail in 0..rails {
            pair.attach(rail);
        }
        pair
    }

    /// Side 0 talks to itself.
    pub(super) fn loopback() -> Self {
        let mut pair = Self::with(config(), 1);
        pair.loopback = true;
        pair.detach(0, 0);
        pair.detach(1, 0);
        let config = config();
        pair.sides[0].link = Link::new(config, LinkStorage::boxed(&config));
        pair.cables[0][0].up = true;
        let rail = RailConfig {
            tx_tag: 5,
            rx_tag: 5,
            peer_ring: 512,
            tx_depth: 128,
            peer_max_ack_delay: 25_000,
            rate_bps: 40_000_000_000,
            latency: 2_000,
        };
        pair.sides[0]
            .link
            .attach_rail(pair.now, RailId(0), &rail)
            .expect("free rail");
        pair
    }

    pub(super) fn attach(&mut self, rail: usize) {
        for side in 0..2 {
            let tag = |side: usize| 100 * (side as u64 + 1) + rail as u64;
            let cable = &mut self.cables[side][rail];
            cable.up = true;
            let config = RailConfig {
                tx_tag: tag(1 - side),
                rx_tag: tag(side),
                peer_ring: 512,
                tx_depth: 128,
                peer_max_ack_delay: 25_000,
                rate_bps: 4096 * 8 * 1_000_000_000 / cable.ns_per_frame,
                latency: cable.latency,
            };
            self.sides[side]
                .link
                .attach_rail(self.now, RailId(rail as u8), &config)
                .expect("free rail");
        }
    }

    /// The rail is gone for one side, with what is under way in both directions of its cable.
    pub(super) fn detach(&mut self, side: usize, rail: usize) {
        for cables in &mut self.cables {
            cables[rail].frames.clear();
            cables[rail].completions.clear();
            cables[rail].up = false;
        }
        let Side { link, host, .. } = &mut self.sides[side];
        link.detach_rail(self.now, RailId(rail as u8), host);
    }

    /// Puts a frame on the cable to `side`, ready to be received.
    pub(super) fn inject(&mut self, side: usize, rail: usize, frame: &[u8]) {
        self.cables[1 - side][rail]
            .frames
            .push_front((self.now, frame.to_vec()));
        self.settle();
    }

    /// One turn of a side's home. True if something has happened.
    fn turn(&mut self, index: usize) -> bool {
        let now = self.now;
        let mut busy = false;
        let side = &mut self.sides[index];
        for (rail, cable) in self.cables[index].iter_mut().enumerate() {
            while let Some(&(at, slot)) = cable.completions.front().filter(|(at, _)| *at <= now) {
                let _ = at;
                cable.completions.pop_front();
                side.link.tx_completed(now, RailId(rail as u8), slot);
                busy = true;
            }
        }
        let sender = if self.loopback { index } else { 1 - index };
        for rail in 0..self.cables[sender].len() {
            let cable = &mut self.cables[sender][rail];
            while cable.frames.front().is_some_and(|(at, _)| *at <= now) {
                let (_, frame) = cable.frames.pop_front().expect("front");
                let token = side
                    .rx
                    .iter()
                    .position(Option::is_none)
                    .expect("the pool covers rings, park and plans");
                let (id, len) = (RailId(rail as u8), frame.len() as u16);
                let (link, token_id) = (&mut side.link, RxToken(token as u32));
                let fate = if side.under_lock {
                    link.on_frame_first(now, id, token_id, &frame, len, &side.host)
                } else {
                    link.on_frame(now, id, token_id, &frame, len, &side.host)
                };
                if fate == Fate::Held {
                    side.rx[token] = Some(frame);
                }
                busy = true;
            }
        }
        busy |= side.run_plans(now);
        if side.link.deadline().is_some_and(|at| at <= now) {
            side.link.on_timer(now, &side.host);
            busy = true;
        }
        if !side.hold_gather {
            while let Some(staged) = side.gathering.pop_front() {
                side.gather(now, &staged);
                busy = true;
            }
        }
        let mut header = [0; 40];
        let mut posts = VecDeque::new();
        if side.under_lock && !side.hold_gather {
            while let Some(post) = side
                .link
                .stage_post(now, 1_024, &side.host, &mut side.staged, &mut header)
            {
                let staged = *side.staged;
                side.fill(&staged);
                posts.push_back((post, header));
                busy = true;
            }
        }
        while side.link.stage(now, &side.host, &mut side.staged) {
            let staged = *side.staged;
            busy = true;
            if side.hold_gather {
                side.gathering.push_back(staged);
            } else {
                side.gather(now, &staged);
            }
        }
        while let Some(post) = side.link.next_post(now, &side.host, &mut header) {
            posts.push_back((post, header));
        }
        for (post, header) in posts {
            busy = true;
            let frame = &mut side.slots[usize::from(post.slot.0)];
            frame[..40].copy_from_slice(&header);
            let rail = usize::from(post.rail.0);
            let frame = &frame[..usize::from(post.len)];
            let cable = &mut self.cables[index][rail];
            let start = cable.busy_until.max(now);
            cable.busy_until = start + cable.ns_per_frame * frame.len() as u64 / 4096 + 1;
            cable.completions.push_back((cable.busy_until, post.slot));
            self.frames[index] += 1;
            let fault = (self.script)(&Sent {
                from: index,
                rail,
                frame,
            });
            if fault != Fault::Drop && cable.up {
                let arrival = cable.busy_until + cable.latency;
                cable.frames.push_back((arrival, frame.to_vec()));
                if fault == Fault::Twice {
                    cable.frames.push_back((arrival, frame.to_vec()));
                }
            }
        }
        let side = &mut self.sides[index];
        if !side.hold_late {
            busy |= side.link.catch_up(&side.host);
        }
        // It wants to be asked again at once.
        busy | self.sides[index].link.deadline().is_some_and(|at| at <= now)
    }

    /// Works off everything that can be done at this time.
    pub(super) fn settle(&mut self) {
        for round in 0.. {
            let busy = [self.turn(0), self.turn(1)];
            if busy == [false; 2] {
                return;
            }
            assert!(round < 100_000, "livelock at {}", self.now);
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        let cables = self.cables.iter().flatten();
        let frames = cables
            .clone()
            .filter_map(|cable| cable.frames.front().map(|(at, _)| *at));
        let completions = cables.filter_map(|cable| cable.completions.front().map(|(at, _)| *at));
        let deadlines = self.sides.iter().filter_map(|side| side.link.deadline());
        frames.chain(completions).chain(deadlines).min()
    }

    /// Runs until `limit` has passed or nothing more will happen.
    pub(super) fn run_for(&mut self, limit: Nanos) {
        let end = self.now + limit;
        self.settle();
        while let Some(at) = self.next_event().filter(|&at| at <= end) {
            assert!(at > self.now, "an event of the past at {at}");
            self.now = at;
            self.settle();
        }
        self.now = end;
    }

    /// Runs until nothing more will happen.
    pub(super) fn run(&mut self) {
        self.settle();
        for _ in 0..1_000_000 {
            let Some(at) = self.next_event() else { return };
            self.now = at.max(self.now + 1);
            self.settle();
        }
        panic!("does not come to rest");
    }

    /// Both links hold nothing, and every reference is back.
    pub(super) fn assert_clean(&self) {
        for (index, side) in self.sides.iter().enumerate() {
            assert!(side.link.is_quiet(), "side {index} holds {:?}", side.link.usage());
            assert_eq!(side.host.outstanding(), 0, "references of side {index}");
            assert!(
                side.rx.iter().all(Option::is_none),
                "receive buffers of side {index}"
            );
            assert_eq!(side.link.usage().reads, 0);
        }
    }

    pub(super) fn assert_no_violations(&self) {
        for side in &self.sides {
            assert_eq!(side.link.counters().violations, 0);
        }
    }

    /// Takes back the receives that no message has used.
    pub(super) fn drop_receives(&mut self, side: usize) {
        let receives = core::mem::take(&mut self.sides[side].host.0.borrow_mut().receives);
        for receive in receives.into_values().flatten() {
            self.sides[side].host.release(receive.at.mem);
        }
    }

    pub(super) fn open(&mut self, side: usize) -> FlowId {
        self.open_to(side, 7)
    }

    pub(super) fn open_to(&mut self, side: usize, ep: u32) -> FlowId {
        let dst = EpAddr {
            node: NodeId(2),
            ep,
            incarnation: 9,
        };
        self.sides[side]
            .link
            .open_flow(self.now, 3, 4, &dst)
            .expect("a free flow")
    }

    pub(super) fn post(&mut self, side: usize, flow: FlowId, work: Work) {
        let now = self.now;
        self.sides[side]
            .link
            .post(now, flow, work)
            .expect("work is taken");
    }

    pub(super) fn send(&mut self, side: usize, flow: FlowId, cookie: u64, bytes: &[u8]) {
        let work = self.sides[side].message(cookie, bytes, None);
        self.post(side, flow, work);
    }

    pub(super) fn done(&self, side: usize) -> Vec<(u64, Status)> {
        let home = self.sides[side].host.0.borrow();
        home.done.iter().map(|done| (done.cookie, done.status)).collect()
    }

    pub(super) fn received(&self, side: usize) -> Vec<(u64, Status, u32)> {
        let home = self.sides[side].host.0.borrow();
        home.received
            .iter()
            .map(|done| (done.cookie, done.status, done.len))
            .collect()
    }

    /// A side closes a flow of its own.
    pub(super) fn close(&mut self, side: usize, flow: FlowId) {
        let now = self.now;
        let Side { link, host, .. } = &mut self.sides[side];
        link.close_flow(now, flow, host);
    }

    /// What a side says of flows that have not taken a request, from now on.
    pub(super) fn admit(&mut self, side: usize, admits: Result<Admission, NakCode>) {
        let now = self.now;
        let Side { link, host, .. } = &mut self.sides[side];
        host.0.borrow_mut().admits = Some(admits);
        link.receive_posted(now, 7);
    }

    /// Posts a receive at endpoint 7 of a side.
    pub(super) fn receive(&mut self, side: usize, cookie: u64, capacity: u32) -> MemRef {
        self.receive_at(side, 7, cookie, capacity)
    }

    pub(super) fn receive_at(&mut self, side: usize, ep: u32, cookie: u64, capacity: u32) -> MemRef {
        let now = self.now;
        let Side { link, host, .. } = &mut self.sides[side];
        let mem = host.region(vec![0; capacity as usize]);
        if capacity != 0 {
            host.hold(mem);
        }
        let receive = Receive {
            at: MemAt { mem, offset: 0 },
            capacity,
            cookie,
        };
        let mut home = host.0.borrow_mut();
        home.receives.entry(ep).or_default().push_back(receive);
        let wanted = home.wants_receive.contains(&ep);
        home.wants_receive.retain(|&wants| wants != ep);
        drop(home);
        if wanted {
            link.receive_posted(now, ep);
        }
        mem
    }
}

impl Side {
    pub(super) fn message(&self, cookie: u64, bytes: &[u8], imm: Option<u64>) -> Work {
        let op = Operation::Send {
            imm,
            prefix: [0; 24],
            prefix_len: 0,
        };
        Work {
            cookie,
            op,
            local: self.local(bytes),
            len: bytes.len() as u32,
        }
    }

    pub(super) fn write(&self, cookie: u64, bytes: &[u8], key: MemRef, addr: u64, imm: Option<u64>) -> Work {
        let op = Operation::Write {
            remote_addr: addr,
            remote_key: key.0,
            imm,
        };
        Work {
            cookie,
            op,
            local: self.local(bytes),
            len: bytes.len() as u32,
        }
    }

    pub(super) fn read(&self, cookie: u64, into: MemRef, len: u32, key: MemRef, addr: u64) -> Work {
        let op = Operation::Read {
            remote_addr: addr,
            remote_key: key.0,
        };
        let mem = self.host.hold(into);
        Work {
            cookie,
            op,
            local: Some(MemAt { mem, offset: 0 }),
            len,
        }
    }

    fn local(&self, bytes: &[u8]) -> Option<MemAt> {
        (!bytes.is_empty()).then(|| {
            let mem = self.host.region(bytes.to_vec());
            MemAt {
                mem: self.host.hold(mem),
                offset: 0,
            }
        })
    }

    /// A region the peer may use.
    pub(super) fn share(&self, bytes: Vec<u8>, writable: bool) -> MemRef {
        let mem = self.host.region(bytes);
        self.host.0.borrow_mut().open.insert(mem.0, writable);
        mem
    }

    fn run_plans(&mut self, now: Nanos) -> bool {
        let mut busy = false;
        if self.under_lock && !self.hold_plans {
            let Self { link, host, rx, .. } = self;
            busy |= link.run_plans(now, host, |plan| Some(execute(plan, host, rx))) != 0;
        }
        while let Some(plan) = self.link.next_plan() {
            self.taken.push_back(plan);
            busy = true;
        }
        if !self.hold_plans {
            while let Some(plan) = self.taken.pop_front() {
                let old = execute(&plan, &self.host, &self.rx);
                self.link.plan_done(now, old, &self.host);
                busy = true;
            }
        }
        while let Some(token) = self.link.next_released() {
            assert!(self.rx[token.0 as usize].take().is_some(), "released twice");
            busy = true;
        }
        busy
    }

    /// Gathers all held frames but the oldest.
    pub(super) fn gather_all_but_one(&mut self, now: Nanos) {
        while self.gathering.len() > 1 {
            if let Some(staged) = self.gathering.pop_back() {
                self.gather(now, &staged);
            }
        }
    }

    fn gather(&mut self, now: Nanos, staged: &Staged) {
        self.fill(staged);
        self.link.staged(now, staged.slot, &self.host);
    }

    fn fill(&mut self, staged: &Staged) {
        let frame = &mut self.slots[usize::from(staged.slot.0)];
        frame.fill(0xee);
        frame[40..][..staged.head().len()].copy_from_slice(staged.head());
        for seg in staged.segs() {
            let bytes = match seg.source {
                Source::Bytes(bytes) => bytes[..usize::from(seg.len)].to_vec(),
                Source::Mem(at) => self.host.copy_out(at, usize::from(seg.len)),
            };
            frame[usize::from(seg.at)..][..bytes.len()].copy_from_slice(&bytes);
        }
        if self.link.payload_crc() {
            let end = usize::from(staged.len) - 4;
            let crc = self.host.crc32c(0, &frame[40 + staged.head().len()..end]);
            frame[end..][..4].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

fn execute(plan: &Plan, host: &TestHost, rx: &[Option<Vec<u8>>]) -> u64 {
    match *plan {
        Plan::Copy { from, at, len, to } => {
            let frame = rx[from.0 as usize].as_ref().expect("the frame is held");
            host.copy_in(to, &frame[usize::from(at)..][..usize::from(len)]);
            0
        }
        Plan::FetchAdd { at, add } => host.swap(at, |old| old.wrapping_add(add)),
        Plan::CompareSwap { at, compare, swap } => {
            host.swap(at, |old| if old == compare { swap } else { old })
        }
        Plan::Store { to, value } => {
            host.copy_in(to, &value.to_le_bytes());
            0
        }
        Plan::Nothing => 0,
    }
}

/// Bytes that tell their place.
pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}
