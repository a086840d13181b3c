//! Two devices wired back to back in one thread: every frame arrives, in order, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use usb4_device::{
    Access, Arrivals, ClientId, CqConfig, CqId, Device, DeviceConfig, DeviceError, DeviceStorage,
    EndpointConfig, EndpointId, EndpointKind, Keys, LinkId, Port, QpAttr, QpConfig, QpEvent, QpKind, QpState,
    Quota, RegionConfig, Scratch, Serviced, list_words,
};
use usb4_engine::{
    EpAddr, Fate, LinkConfig, LinkStorage, Nanos, NodeId, RailConfig, RailId, Slab, payload_span,
};
use usb4_ring_abi::{Consumer, Cqe, CqeStatus, Op, Producer, QueueGeometry, Rqe, Slots, Sqe};

use crate::home::{Memory, TestHome, TestPort, Words};

pub(crate) const RAIL: RailId = RailId(0);

/// The key of datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1122_3344;

/// A host: a device, and its side of one link.
pub(crate) struct Side {
    pub(crate) device: Arc<Device<TestHome>>,
    pub(crate) port: TestPort,
    pub(crate) link: LinkId,
    scratch: Scratch,
}

impl Side {
    /// A host with a link to `peer`, which may be itself.
    pub(crate) fn new(node: u128, peer: u128, change: impl Fn(&mut LinkConfig)) -> Self {
        let config = DeviceConfig {
            max_clients: 8,
            max_endpoints: 16,
            max_cqs: 16,
            max_regions: 64,
            max_links: 4,
            max_sources: 32,
            ..DeviceConfig::new(NodeId(node))
        };
        let home = TestHome::new(node as u64 ^ 77);
        let storage = DeviceStorage {
            lists: Slab::boxed(config.max_endpoints),
            ..DeviceStorage::boxed(&config)
        };
        let device = Device::new(home, &config, storage).unwrap();
        let (port, link) = add_link(&device, node, peer, 0, change);
        Self {
            device: Arc::new(device),
            port,
            link,
            scratch: Scratch::boxed(),
        }
    }

    /// The same host, with a link to another peer.
    pub(crate) fn beside(&self, peer: u128) -> Self {
        let (port, link) = add_link(&self.device, self.device.node().0, peer, 0, |_| ());
        Self {
            device: Arc::clone(&self.device),
            port,
            link,
            scratch: Scratch::boxed(),
        }
    }

    pub(crate) fn service(&mut self, now: Nanos) -> Serviced {
        self.device.service(self.link, &self.port, now, &mut self.scratch)
    }

    /// A turn that takes in what `sender` has posted; it ends with the first completions.
    pub(crate) fn hurry(&mut self, sender: &Side, now: Nanos) -> Serviced {
        let port = &self.port;
        let arrive = |arrivals: &mut Arrivals<'_, TestHome>| {
            while let Some((slot, frame)) = sender.port.sent.lock().unwrap().pop_front() {
                sender.device.tx_completed(sender.link, now, RAIL, slot);
                let token = port.free.lock().unwrap().pop();
                let token = token.expect("the RX pool covers what a link holds");
                port.received.lock().unwrap()[token.0 as usize] = frame.clone();
                if arrivals.frame(RAIL, token, &frame, frame.len() as u16) == Fate::Done {
                    port.release(token);
                }
            }
        };
        let (device, link, scratch) = (&self.device, self.link, &mut self.scratch);
        device.turn(link, None, port, now, scratch, true, arrive, |_| ())
    }

    pub(crate) fn fail(&mut self, now: Nanos) {
        self.device.fail_link(self.link, &self.port, now).unwrap();
    }

    /// Removes the link and adds a fresh one to the same peer.
    pub(crate) fn relink(&mut self, peer: u128, now: Nanos) {
        self.device.remove_link(self.link, &self.port, now).unwrap();
        assert_eq!(
            self.port.free_tokens(),
            self.port.received.lock().unwrap().len(),
            "a buffer is missing"
        );
        let node = self.device.node().0;
        (self.port, self.link) = add_link(&self.device, node, peer, now, |_| ());
    }
}

pub(crate) fn add_link(
    device: &Device<TestHome>,
    node: u128,
    peer: u128,
    now: Nanos,
    change: impl Fn(&mut LinkConfig),
) -> (TestPort, LinkId) {
    let mut config = LinkConfig {
        tx_slots: 64,
        rx_tokens: 512,
        max_tx_flows: 32,
        max_rx_flows: 32,
        max_ops: 64,
        max_parked: 128,
        max_plans: 128,
        rail_window: 128,
        ..LinkConfig::new(NodeId(node), NodeId(peer))
    };
    change(&mut config);
    let port = TestPort::new(&config);
    let link = device.add_link(config, LinkStorage::boxed(&config)).unwrap();
    let rail = RailConfig {
        tx_tag: peer as u64,
        rx_tag: node as u64,
        peer_ring: 256,
        tx_depth: 64,
        peer_max_ack_delay: 25_000,
        rate_bps: 10_000_000_000,
        latency: 1_000,
    };
    device.attach_rail(link, now, RAIL, &rail).unwrap();
    (port, link)
}

/// Hands over what one side has posted; `damage` may change a frame on its way.
pub(crate) fn deliver(
    sender: &Side,
    receiver: &Side,
    now: Nanos,
    damage: &mut dyn FnMut(&mut Vec<u8>),
) -> bool {
    let mut any = false;
    loop {
        let Some((slot, mut frame)) = sender.port.sent.lock().unwrap().pop_front() else {
            return any;
        };
        any = true;
        sender.device.tx_completed(sender.link, now, RAIL, slot);
        damage(&mut frame);
        let len = u16::try_from(frame.len()).unwrap();
        if let Some(payload) = payload_span(&frame, len) {
            let (from, to) = (usize::from(payload.start), usize::from(payload.end));
            if crc32c::crc32c(&frame[from..to]).to_le_bytes() != frame[to..to + 4] {
                receiver.device.payload_corrupt(receiver.link);
                continue;
            }
        }
        let token = receiver.port.free.lock().unwrap().pop();
        let token = token.expect("the RX pool covers what a link holds");
        receiver.port.received.lock().unwrap()[token.0 as usize] = frame.clone();
        let fate = receiver
            .device
            .receive_frame(receiver.link, now, RAIL, token, &frame, len);
        if fate == Fate::Done {
            receiver.port.release(token);
        }
    }
}

/// What happens to frames on their way.
pub(crate) type Damage = Box<dyn FnMut(&mut Vec<u8>) + Send>;

/// Both hosts and the time.
pub(crate) struct World {
    pub(crate) sides: [Side; 2],
    pub(crate) now: Nanos,
    /// May change frames on their way.
    pub(crate) damage: Damage,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    /// With changes to the links' configuration.
    pub(crate) fn with(change: impl Fn(&mut LinkConfig)) -> Self {
        Self {
            sides: [Side::new(1, 2, &change), Side::new(2, 1, &change)],
            now: 0,
            damage: Box::new(|_| ()),
        }
    }

    /// One turn of both hosts: service, then deliver what was posted.
    pub(crate) fn turn(&mut self) -> bool {
        self.now += 1_000;
        let mut progress = false;
        for index in 0..2 {
            progress |= self.sides[index].service(self.now).progress;
            progress |= deliver(
                &self.sides[index],
                &self.sides[1 - index],
                self.now,
                &mut *self.damage,
            );
        }
        progress
    }

    /// Turns until nothing happens any more, timers included.
    pub(crate) fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..100_000 {
            if self.turn() {
                idle = 0;
            } else {
                idle += 1;
                self.now += 50_000;
            }
            if idle == 8 {
                return;
            }
        }
        panic!("the devices never come to rest");
    }

    /// Forgets frames on their way, in both directions: what a cable that is pulled does.
    pub(crate) fn drop_frames(&mut self) {
        for side in &self.sides {
            for (slot, _) in side.port.sent.lock().unwrap().drain(..) {
                side.device.tx_completed(side.link, self.now, RAIL, slot);
            }
        }
    }

    /// A client with one completion queue and one endpoint on a host.
    pub(crate) fn user(&self, side: usize, kind: EndpointKind) -> User {
        User::new(&self.sides[side].device, side, kind, Shape::default())
    }

    pub(crate) fn user_of(&self, side: usize, kind: EndpointKind, shape: Shape) -> User {
        User::new(&self.sides[side].device, side, kind, shape)
    }

    /// Two datagram users that know each other, and the address handles.
    pub(crate) fn pair(&self) -> (User, User) {
        let mut a = self.user(0, EndpointKind::Datagram);
        let mut b = self.user(1, EndpointKind::Datagram);
        a.ah = self.sides[0].device.create_ah(a.client, a.ep, &b.addr).unwrap();
        b.ah = self.sides[1].device.create_ah(b.client, b.ep, &a.addr).unwrap();
        (a, b)
    }

    /// Two connected users.
    pub(crate) fn connected(&self) -> (User, User) {
        let a = self.user(0, EndpointKind::Connected);
        let b = self.user(1, EndpointKind::Connected);
        self.sides[0].device.connect(a.client, a.ep, &b.addr).unwrap();
        self.sides[1].device.connect(b.client, b.ep, &a.addr).unwrap();
        (a, b)
    }

    /// A queue pair of a client of its own, in protection domain 1.
    pub(crate) fn qp(&self, side: usize, kind: QpKind) -> User {
        let device = &self.sides[side].device;
        let client = device.add_client(Quota::UNLIMITED, None).unwrap();
        User::of_qp(device, side, client, kind, 1)
    }

    /// Two connected queue pairs that send and receive.
    pub(crate) fn qp_pair(&self, kind: QpKind) -> (User, User) {
        let (a, b) = (self.qp(0, kind), self.qp(1, kind));
        self.connect_qp(&a, &b);
        self.connect_qp(&b, &a);
        (a, b)
    }

    /// Takes a queue pair from reset to where it sends to another.
    pub(crate) fn connect_qp(&self, qp: &User, peer: &User) {
        self.to_rtr(qp, peer);
        self.to(qp, QpState::Rts);
    }

    /// Takes a queue pair from reset to where it receives.
    pub(crate) fn to_rtr(&self, qp: &User, peer: &User) {
        let access = Some(Access::REMOTE_ALL);
        let init = QpAttr {
            state: Some(QpState::Init),
            qkey: Some(QKEY),
            access,
            ..QpAttr::default()
        };
        self.modify(qp, &init).unwrap();
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            peer: Some((peer.addr.node, peer.addr.ep)),
            max_dest_rd_atomic: Some(8),
            ..QpAttr::default()
        };
        self.modify(qp, &rtr).unwrap();
    }

    pub(crate) fn to(&self, qp: &User, state: QpState) {
        let attr = QpAttr {
            state: Some(state),
            ..QpAttr::default()
        };
        self.modify(qp, &attr).unwrap();
    }

    pub(crate) fn modify(&self, qp: &User, attr: &QpAttr) -> Result<(), DeviceError> {
        self.device(qp).modify_qp(qp.client, qp.ep, attr, self.now)
    }

    pub(crate) fn qp_state(&self, qp: &User) -> QpState {
        self.device(qp).query_qp(qp.client, qp.ep).unwrap().state
    }

    /// What has happened to a queue pair since the last call.
    pub(crate) fn events(&self, qp: &User) -> Vec<QpEvent> {
        let mut all = self.device(qp).home().events.lock().unwrap();
        let (of, others) = all.drain(..).partition(|(id, _)| *id == qp.ep);
        *all = others;
        let of: Vec<_> = of;
        of.into_iter().map(|(_, event)| event).collect()
    }

    /// Memory of a queue pair's client, in protection domain 1.
    pub(crate) fn register_pd(&self, qp: &User, memory: &Memory, access: Access) -> Keys {
        let len = memory.0.lock().unwrap().len() as u64;
        let config = RegionConfig {
            addr: 0x10_0000,
            len,
            access,
            peer: None,
            mem: memory.clone(),
        };
        self.device(qp).register_in_pd(qp.client, 1, config).unwrap()
    }

    /// Lets so much time pass, in steps.
    pub(crate) fn wait(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            if !self.turn() {
                self.now += 50_000;
            }
        }
    }

    pub(crate) fn device(&self, user: &User) -> &Device<TestHome> {
        &self.sides[user.side].device
    }

    pub(crate) fn submit(&self, user: &mut User) {
        user.sq.publish();
        user.rq.publish();
        self.device(user).submit(user.ep, self.now);
    }

    pub(crate) fn register(&self, user: &User, memory: &Memory, access: Access) -> Keys {
        self.register_at(user, memory, access, 0x10_0000)
    }

    pub(crate) fn register_at(&self, user: &User, memory: &Memory, access: Access, addr: u64) -> Keys {
        let len = memory.0.lock().unwrap().len() as u64;
        let config = RegionConfig {
            addr,
            len,
            access,
            peer: None,
            mem: memory.clone(),
        };
        self.device(user).register(user.client, config).unwrap()
    }
}

/// Depths of a user's queues, and what else it may have.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) cq: u32,
    pub(crate) sq: u32,
    pub(crate) rq: u32,
    pub(crate) handles: usize,
    pub(crate) quota: Quota,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            cq: 64,
            sq: 16,
            rq: 16,
            handles: 4,
            quota: Quota::UNLIMITED,
        }
    }
}

/// The client's side of an endpoint with one completion queue.
pub(crate) struct User {
    pub(crate) side: usize,
    pub(crate) client: ClientId,
    pub(crate) cq_id: CqId,
    pub(crate) ep: EndpointId,
    pub(crate) addr: EpAddr,
    pub(crate) ah: u32,
    pub(crate) sq: Producer<Words, Sqe>,
    pub(crate) rq: Producer<Words, Rqe>,
    pub(crate) cq: Consumer<Words, Cqe>,
    pub(crate) sq_words: Words,
    pub(crate) rq_words: Words,
    pub(crate) cq_words: Words,
    pub(crate) wakes: Arc<AtomicU32>,
    /// Of queue pairs.
    pub(crate) slots: Slots,
}

impl User {
    fn new(device: &Device<TestHome>, side: usize, kind: EndpointKind, shape: Shape) -> Self {
        let client = device.add_client(shape.quota, None).unwrap();
        Self::of_client(device, side, client, kind, shape)
    }

    pub(crate) fn of_client(
        device: &Device<TestHome>,
        side: usize,
        client: ClientId,
        kind: EndpointKind,
        shape: Shape,
    ) -> Self {
        let wakes = Arc::new(AtomicU32::new(0));
        let (sq_words, rq_words, cq_words) = (
            words::<Sqe>(shape.sq),
            words::<Rqe>(shape.rq),
            words::<Cqe>(shape.cq),
        );
        let cq_id = device
            .create_cq(client, cq_config(shape.cq, &cq_words, &wakes))
            .unwrap();
        let config = EndpointConfig {
            kind,
            send_cq: cq_id,
            recv_cq: cq_id,
            sq_depth: shape.sq,
            sq: sq_words.clone(),
            rq_depth: shape.rq,
            rq: rq_words.clone(),
            handles: Slab::boxed(shape.handles),
        };
        let (ep, addr) = device.create_endpoint(client, config).unwrap();
        Self {
            side,
            client,
            cq_id,
            ep,
            addr,
            ah: 0,
            sq: Producer::new(sq_words.clone(), shape.sq).unwrap(),
            rq: Producer::new(rq_words.clone(), shape.rq).unwrap(),
            cq: Consumer::new(cq_words.clone(), shape.cq).unwrap(),
            sq_words,
            rq_words,
            cq_words,
            wakes,
            slots: Slots::NONE,
        }
    }

    pub(crate) fn of_qp(
        device: &Device<TestHome>,
        side: usize,
        client: ClientId,
        kind: QpKind,
        pd: u32,
    ) -> Self {
        Self::of_any(device, side, client, kind, pd, (None, None), Slots::NONE).unwrap()
    }

    /// One that draws from a shared receive queue, perhaps.
    pub(crate) fn of_qp_with(
        device: &Device<TestHome>,
        side: usize,
        client: ClientId,
        kind: QpKind,
        pd: u32,
        srq: Option<EndpointId>,
    ) -> Self {
        Self::of_any(device, side, client, kind, pd, (None, srq), Slots::NONE).unwrap()
    }

    /// The same with a number of its own.
    pub(crate) fn of_special(
        device: &Device<TestHome>,
        side: usize,
        client: ClientId,
        kind: QpKind,
        pd: u32,
        special: Option<u16>,
    ) -> Result<Self, DeviceError> {
        Self::of_any(device, side, client, kind, pd, (special, None), Slots::NONE)
    }

    /// One with slots behind the entries of its queues.
    pub(crate) fn of_qp_with_slots(
        device: &Device<TestHome>,
        side: usize,
        client: ClientId,
        kind: QpKind,
        pd: u32,
        slots: Slots,
    ) -> Self {
        Self::of_any(device, side, client, kind, pd, (None, None), slots).unwrap()
    }

    fn of_any(
        device: &Device<TestHome>,
        side: usize,
        client: ClientId,
        kind: QpKind,
        pd: u32,
        (special, srq): (Option<u16>, Option<EndpointId>),
        slots: Slots,
    ) -> Result<Self, DeviceError> {
        let shape = Shape::default();
        let mut user = Self::of_client(device, side, client, EndpointKind::Datagram, shape);
        device.destroy_endpoint(client, user.ep, 0).unwrap();
        let (sq_words, rq_words) = (
            words_with::<Sqe>(shape.sq, slots),
            words_with::<Rqe>(shape.rq, slots),
        );
        let config = QpConfig {
            kind,
            special,
            pd,
            send_cq: user.cq_id,
            recv_cq: user.cq_id,
            sq_depth: shape.sq,
            sq: sq_words.clone(),
            rq_depth: shape.rq,
            rq: rq_words.clone(),
            handles: Slab::boxed(shape.handles),
            srq,
            sq_slots: slots,
            sq_lists: Slab::boxed(list_words(shape.sq, slots)),
            rq_slots: slots,
            rq_lists: Slab::boxed(list_words(shape.rq, slots)),
        };
        let (ep, number) = device.create_qp(client, config)?;
        user.ep = ep;
        user.addr = EpAddr {
            node: device.node(),
            ep: number,
            incarnation: 0,
        };
        user.sq = Producer::new(sq_words.clone(), shape.sq).unwrap();
        user.rq = Producer::new(rq_words.clone(), shape.rq).unwrap();
        (user.sq_words, user.rq_words) = (sq_words, rq_words);
        user.slots = slots;
        Ok(user)
    }

    pub(crate) fn post(&mut self, sqe: Sqe) {
        self.sq.push(&Sqe { ah: self.ah, ..sqe }).unwrap();
    }

    pub(crate) fn receive(&mut self, user_data: u64, keys: Keys, addr: u64, len: u32) {
        self.rq
            .push(&Rqe {
                user_data,
                addr,
                local_key: keys.local,
                len,
                reserved: 0,
            })
            .unwrap();
    }

    /// Everything on the completion queue.
    pub(crate) fn poll(&mut self) -> Vec<Cqe> {
        let mut all = Vec::new();
        while let Some(cqe) = self.cq.pop().unwrap() {
            all.push(cqe);
        }
        self.cq.release();
        all
    }

    /// The completion queue as (user data, status) pairs.
    pub(crate) fn outcomes(&mut self) -> Vec<(u64, CqeStatus)> {
        self.poll()
            .iter()
            .map(|cqe| (cqe.user_data, cqe.status().unwrap()))
            .collect()
    }
}

pub(crate) fn cq_config(depth: u32, words: &Words, wakes: &Arc<AtomicU32>) -> CqConfig<TestHome> {
    CqConfig {
        depth,
        memory: words.clone(),
        ops: Slab::boxed(depth as usize),
        waker: wakes.clone(),
    }
}

pub(crate) fn words<E: usb4_ring_abi::Entry>(depth: u32) -> Words {
    words_with::<E>(depth, Slots::NONE)
}

pub(crate) fn words_with<E: usb4_ring_abi::Entry>(depth: u32, slots: Slots) -> Words {
    let words = QueueGeometry::of::<E>(depth).unwrap().with_slots(slots).words();
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

pub(crate) fn send(user_data: u64, keys: Keys, addr: u64, len: u32) -> Sqe {
    Sqe {
        op: Op::Send.code(),
        user_data,
        local_addr: addr,
        local_key: keys.local,
        len,
        ..Sqe::default()
    }
}

pub(crate) fn rma(op: Op, user_data: u64, keys: Keys, addr: u64, len: u32, remote: (u64, u64)) -> Sqe {
    Sqe {
        op: op.code(),
        args: [remote.0, remote.1, 0, 0],
        ..send(user_data, keys, addr, len)
    }
}

/// Bytes that tell their place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 251) as u8).collect()
}
