//! One host: a device, a loopback link, and a home without threads whose memory checks every range.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use usb4_device::{
    ClientId, CqConfig, Device, DeviceConfig, DeviceStorage, EndpointConfig, EndpointId, EndpointKind, Home,
    Keys, LinkId, Port, Quota, RegionConfig, Scratch, SpinLock,
};
use usb4_engine::{
    EpAddr, Fate, LinkConfig, LinkStorage, Nanos, NodeId, Post, RailConfig, RailId, RxToken, Slab, TxSlot,
};
use usb4_ring_abi::{Cqe, Entry, QueueGeometry, Rqe, Sqe};

/// Queue memory shared between a client and the device.
pub type Words = Arc<[AtomicU64]>;
/// Registered memory.
pub type Memory = Arc<Mutex<Vec<u8>>>;

const NODE: NodeId = NodeId(1);
const RAIL: RailId = RailId(0);
/// Where a frame's tag ends.
const TAG_END: usize = 16;
/// Turns in which a host must come to rest.
const PATIENCE: usize = 20_000;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct FuzzHome {
    random: AtomicU64,
}

impl FuzzHome {
    fn at(mem: &Memory, offset: u64, change: impl FnOnce(u64) -> Option<u64>) -> u64 {
        let mut bytes = lock(mem);
        let place = &mut bytes[offset as usize..][..8];
        let old = u64::from_le_bytes(place.try_into().expect("8 bytes"));
        if let Some(new) = change(old) {
            place.copy_from_slice(&new.to_le_bytes());
        }
        old
    }
}

impl Home for FuzzHome {
    type Lock = SpinLock;
    type Queue = Words;
    type Mem = Memory;
    type Waker = ();
    type Port = FuzzPort;

    fn random(&self) -> u64 {
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc, bytes)
    }

    fn wake(&self, (): &()) {}

    fn relax(&self) {
        panic!("waits for another thread, and there is none");
    }

    fn fetch_add(&self, mem: &Memory, offset: u64, add: u64) -> u64 {
        assert_eq!(offset % 8, 0);
        Self::at(mem, offset, |old| Some(old.wrapping_add(add)))
    }

    fn compare_swap(&self, mem: &Memory, offset: u64, compare: u64, swap: u64) -> u64 {
        assert_eq!(offset % 8, 0);
        Self::at(mem, offset, |old| (old == compare).then_some(swap))
    }

    fn write(&self, mem: &Memory, offset: u64, bytes: &[u8]) {
        lock(mem)[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// Frames of the loopback link.
pub struct FuzzPort {
    slots: Mutex<Vec<Vec<u8>>>,
    sent: Mutex<VecDeque<(TxSlot, Vec<u8>)>>,
    received: Mutex<Vec<Vec<u8>>>,
    free: Mutex<Vec<RxToken>>,
}

impl Port<Memory> for FuzzPort {
    fn write(&self, slot: TxSlot, at: u16, bytes: &[u8]) {
        lock(&self.slots)[usize::from(slot.0)][usize::from(at)..][..bytes.len()].copy_from_slice(bytes);
    }

    fn gather(&self, slot: TxSlot, at: u16, len: u16, mem: &Memory, offset: u64) {
        let bytes = lock(mem)[offset as usize..][..usize::from(len)].to_vec();
        self.write(slot, at, &bytes);
    }

    fn seal(&self, slot: TxSlot, from: u16, to: u16) {
        let crc = crc32c::crc32c(&lock(&self.slots)[usize::from(slot.0)][usize::from(from)..usize::from(to)]);
        self.write(slot, to, &crc.to_le_bytes());
    }

    fn post(&self, post: &Post, header: &[u8; 40]) {
        self.write(post.slot, 0, header);
        let frame = lock(&self.slots)[usize::from(post.slot.0)][..usize::from(post.len)].to_vec();
        lock(&self.sent).push_back((post.slot, frame));
    }

    fn scatter(&self, token: RxToken, at: u16, len: u16, mem: &Memory, offset: u64) {
        let bytes = lock(&self.received)[token.0 as usize][usize::from(at)..][..usize::from(len)].to_vec();
        lock(mem)[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }

    fn release(&self, token: RxToken) {
        lock(&self.free).push(token);
    }
}

pub struct Machine {
    pub device: Device<FuzzHome>,
    pub now: Nanos,
    /// What a hostile peer does to the next frame: which byte behind its tag, and which bits of that.
    pub change: Option<(u8, u8)>,
    /// It has done so: the link may end up in any state that it allows.
    pub changed: bool,
    port: FuzzPort,
    link: LinkId,
    scratch: Scratch,
}

impl Machine {
    pub fn new() -> Self {
        let sizes = DeviceConfig {
            max_clients: 3,
            max_endpoints: 8,
            max_cqs: 8,
            max_regions: 8,
            max_links: 1,
            max_sources: 16,
            ..DeviceConfig::new(NODE)
        };
        let home = FuzzHome {
            random: AtomicU64::new(7),
        };
        let storage = DeviceStorage {
            lists: Slab::boxed(sizes.max_endpoints),
            ..DeviceStorage::boxed(&sizes)
        };
        let device = Device::new(home, &sizes, storage).expect("a device");
        let config = LinkConfig {
            tx_slots: 32,
            rx_tokens: 192,
            max_tx_flows: 8,
            max_rx_flows: 8,
            // More than the completion queues of all endpoints together hold: operations are shared.
            max_ops: 256,
            max_parked: 32,
            max_reads: 4,
            peer_max_reads: 4,
            max_plans: 64,
            max_rails: 1,
            rail_window: 128,
            ..LinkConfig::new(NODE, NODE)
        };
        let rail = RailConfig {
            tx_tag: 1,
            rx_tag: 1,
            peer_ring: 96,
            tx_depth: 32,
            peer_max_ack_delay: 25_000,
            rate_bps: 10_000_000_000,
            latency: 1_000,
        };
        let link = device
            .add_link(config, LinkStorage::boxed(&config))
            .expect("a link");
        device.attach_rail(link, 0, RAIL, &rail).expect("a rail");
        let port = FuzzPort {
            slots: Mutex::new(vec![vec![0; 4096]; usize::from(config.tx_slots)]),
            sent: Mutex::default(),
            received: Mutex::new(vec![Vec::new(); config.rx_tokens as usize]),
            free: Mutex::new((0..config.rx_tokens).map(RxToken).collect()),
        };
        Self {
            device,
            now: 0,
            change: None,
            changed: false,
            port,
            link,
            scratch: Scratch::boxed(),
        }
    }

    /// One turn of the link; every frame arrives.
    pub fn turn(&mut self) -> bool {
        self.now += 1_000;
        let done = self
            .device
            .service(self.link, &self.port, self.now, &mut self.scratch);
        assert!(!done.busy);
        assert!(self.changed || !done.down && done.reset.is_none());
        let mut progress = done.progress;
        loop {
            let Some((slot, mut frame)) = lock(&self.port.sent).pop_front() else {
                break;
            };
            if let Some((at, bits)) = self.change.take() {
                let places = frame.len() - TAG_END;
                frame[TAG_END + usize::from(at) % places] ^= bits;
                self.changed = true;
            }
            progress = true;
            self.device.tx_completed(self.link, self.now, RAIL, slot);
            let token = lock(&self.port.free).pop();
            if token.is_none() && self.changed {
                continue;
            }
            let token = token.expect("the RX pool covers what a link holds");
            let len = u16::try_from(frame.len()).expect("a frame");
            lock(&self.port.received)[token.0 as usize].clone_from(&frame);
            let fate = self
                .device
                .receive_frame(self.link, self.now, RAIL, token, &frame, len);
            if fate == Fate::Done {
                self.port.release(token);
            }
        }
        progress
    }

    /// Turns until nothing happens any more.
    pub fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..PATIENCE {
            idle = if self.turn() { 0 } else { idle + 1 };
            if idle == 6 {
                return;
            }
            self.now += if idle == 0 { 0 } else { 400_000 };
        }
        panic!("the device never comes to rest");
    }

    /// Checks that the link came out of everything without having been misused.
    pub fn check_link(&self) {
        let counters = self.device.counters(self.link).expect("the link is there");
        assert_eq!(
            counters.violations, 0,
            "a client made its host break the protocol"
        );
        assert_eq!(
            counters.rx_malformed, 0,
            "a client made its host send a frame nobody can read"
        );
    }
}

/// A client's side of one endpoint and its completion queue.
pub struct Queues {
    pub ep: EndpointId,
    pub addr: EpAddr,
    pub sq: Words,
    pub rq: Words,
    pub cq: Words,
}

/// Entries of each queue of an endpoint.
pub const SQ: u32 = 8;
pub const RQ: u32 = 8;
pub const CQ: u32 = 16;

fn words<E: Entry>(depth: u32) -> Words {
    let words = QueueGeometry::of::<E>(depth).expect("a power of two").words();
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

impl Queues {
    /// A new endpoint with a completion queue of its own; `None` if the device has no room.
    pub fn create(machine: &Machine, client: ClientId, kind: EndpointKind) -> Option<Self> {
        let (sq, rq, cq) = (words::<Sqe>(SQ), words::<Rqe>(RQ), words::<Cqe>(CQ));
        let config = CqConfig {
            depth: CQ,
            memory: cq.clone(),
            ops: Slab::boxed(CQ as usize),
            waker: (),
        };
        let cq_id = machine.device.create_cq(client, config).ok()?;
        let config = EndpointConfig {
            kind,
            send_cq: cq_id,
            recv_cq: cq_id,
            sq_depth: SQ,
            sq: sq.clone(),
            rq_depth: RQ,
            rq: rq.clone(),
            handles: Slab::boxed(3),
        };
        match machine.device.create_endpoint(client, config) {
            Ok((ep, addr)) => Some(Self { ep, addr, sq, rq, cq }),
            Err(_) => {
                let _ = machine.device.destroy_cq(client, cq_id);
                None
            }
        }
    }
}

/// A client without limits, which owns nothing yet.
pub fn client(machine: &Machine) -> ClientId {
    machine
        .device
        .add_client(Quota::UNLIMITED, None)
        .expect("a client")
}

/// Registers `memory` at `addr`.
pub fn register(
    machine: &Machine,
    client: ClientId,
    memory: &Memory,
    addr: u64,
    access: usb4_device::Access,
) -> Option<Keys> {
    let len = lock(memory).len() as u64;
    let config = RegionConfig {
        addr,
        len,
        access,
        peer: None,
        mem: memory.clone(),
    };
    machine.device.register(client, config).ok()
}
