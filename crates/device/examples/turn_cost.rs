//! Drives two devices back to back over the leanest home there is, so that an instruction counter sees device and
//! engine, and of the home only the copies:
//!
//! ```text
//! cargo build --release -p usb4-device --features alloc --example turn_cost
//! valgrind --tool=callgrind --toggle-collect='*counted*' target/release/examples/turn_cost pingpong 10000
//! ```
//!
//! Counted is what a home calls on one side: submit, receive, service. Prints the number of messages and frames.
//! Modes: `pingpong` and `stream` (64-byte messages), `bulk` (1 MiB).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "an example"
)]

use std::cell::{RefCell, UnsafeCell};
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use usb4_device::{
    Access, Arrivals, CqConfig, Device, DeviceConfig, DeviceStorage, EndpointConfig, EndpointId,
    EndpointKind, Home, Keys, LinkId, Port, Quota, RegionConfig, Scratch, SpinLock,
};
use usb4_engine::{
    EpAddr, Fate, LinkConfig, LinkStorage, NodeId, Post, RailConfig, RailId, RxToken, Slab, TxSlot,
};
use usb4_ring_abi::{Consumer, Cqe, Entry, Op, Producer, QueueGeometry, Rqe, Sqe};

const RAIL: RailId = RailId(0);
const BASE: u64 = 0;
const REGION: usize = 1 << 20;
const DEPTH: u32 = 256;

/// Registered memory and frames; one thread uses them.
struct Bytes(UnsafeCell<Vec<u8>>);

// SAFETY: this program has one thread.
unsafe impl Sync for Bytes {}
// SAFETY: as above.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new(len: usize) -> Self {
        Self(UnsafeCell::new(vec![0; len]))
    }

    fn read(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: one thread; no reference outlives the copy it is made for.
        unsafe { &(&*self.0.get())[at..at + len] }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: as for `read`.
        unsafe { (&mut *self.0.get())[at..at + bytes.len()].copy_from_slice(bytes) }
    }
}

struct Lean(AtomicU64);

impl Home for Lean {
    type Lock = SpinLock;
    type Queue = Arc<[AtomicU64]>;
    type Mem = Bytes;
    type Waker = ();
    type Port = LeanPort;

    fn random(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc ^ bytes.len() as u32
    }

    fn wake(&self, (): &()) {}

    fn relax(&self) {}

    fn fetch_add(&self, _: &Bytes, _: u64, _: u64) -> u64 {
        0
    }

    fn compare_swap(&self, _: &Bytes, _: u64, _: u64, _: u64) -> u64 {
        0
    }

    fn write(&self, _: &Bytes, _: u64, _: &[u8]) {}
}

/// A frame lies in its sender's slot until the receiver is done with it.
struct LeanPort {
    posted: RefCell<Vec<(TxSlot, u16)>>,
    peer_slots: Arc<Bytes>,
    my_slots: Arc<Bytes>,
    /// By token: the peer's slot.
    tokens: RefCell<Vec<u16>>,
    free: RefCell<Vec<RxToken>>,
}

impl Port<Bytes> for LeanPort {
    #[inline]
    fn write(&self, slot: TxSlot, at: u16, bytes: &[u8]) {
        self.my_slots
            .write(usize::from(slot.0) * 4096 + usize::from(at), bytes);
    }

    #[inline]
    fn gather(&self, slot: TxSlot, at: u16, len: u16, mem: &Bytes, offset: u64) {
        self.write(slot, at, mem.read(offset as usize, usize::from(len)));
    }

    fn seal(&self, _: TxSlot, _: u16, _: u16) {}

    #[inline]
    fn post(&self, post: &Post, header: &[u8; 40]) {
        self.write(post.slot, 0, header);
        self.posted.borrow_mut().push((post.slot, post.len));
    }

    #[inline]
    fn scatter(&self, token: RxToken, at: u16, len: u16, mem: &Bytes, offset: u64) {
        let slot = usize::from(self.tokens.borrow()[token.0 as usize]);
        mem.write(
            offset as usize,
            self.peer_slots
                .read(slot * 4096 + usize::from(at), usize::from(len)),
        );
    }

    #[inline]
    fn release(&self, token: RxToken) {
        self.free.borrow_mut().push(token);
    }
}

struct Side {
    device: Device<Lean>,
    port: LeanPort,
    link: LinkId,
    scratch: Scratch,
    ep: EndpointId,
    addr: EpAddr,
    keys: Keys,
    sq: Producer<Arc<[AtomicU64]>, Sqe>,
    rq: Producer<Arc<[AtomicU64]>, Rqe>,
    cq: Consumer<Arc<[AtomicU64]>, Cqe>,
    now: u64,
    deadline: Option<u64>,
    sent: u64,
    received: u64,
}

fn words<E: Entry>(depth: u32) -> Arc<[AtomicU64]> {
    (0..QueueGeometry::of::<E>(depth).unwrap().words())
        .map(|_| AtomicU64::new(0))
        .collect()
}

fn side(local: u128, peer: u128, mine: &Arc<Bytes>, theirs: &Arc<Bytes>) -> Side {
    let config = DeviceConfig::new(NodeId(local));
    let device = Device::new(Lean(AtomicU64::new(1)), &config, DeviceStorage::boxed(&config)).unwrap();
    let config = LinkConfig::new(NodeId(local), NodeId(peer));
    let link = device.add_link(config, LinkStorage::boxed(&config)).unwrap();
    let rail = RailConfig {
        tx_tag: 1,
        rx_tag: 1,
        peer_ring: 1024,
        tx_depth: 256,
        peer_max_ack_delay: 25_000,
        rate_bps: 40_000_000_000,
        latency: 2_000,
    };
    device.attach_rail(link, 0, RAIL, &rail).unwrap();
    let client = device.add_client(Quota::UNLIMITED, None).unwrap();
    let (sq, rq, cq) = (words::<Sqe>(DEPTH), words::<Rqe>(DEPTH), words::<Cqe>(2 * DEPTH));
    let cq_config = CqConfig {
        depth: 2 * DEPTH,
        memory: cq.clone(),
        ops: Slab::boxed(2 * DEPTH as usize),
        waker: (),
    };
    let cq_id = device.create_cq(client, cq_config).unwrap();
    let config = EndpointConfig {
        kind: EndpointKind::Datagram,
        send_cq: cq_id,
        recv_cq: cq_id,
        sq_depth: DEPTH,
        sq: sq.clone(),
        rq_depth: DEPTH,
        rq: rq.clone(),
        handles: Slab::boxed(1),
    };
    let (ep, addr) = device.create_endpoint(client, config).unwrap();
    let region = RegionConfig {
        addr: BASE,
        len: REGION as u64,
        access: Access::LOCAL,
        peer: None,
        mem: Bytes::new(REGION),
    };
    let keys = device.register(client, region).unwrap();
    Side {
        device,
        port: LeanPort {
            posted: RefCell::default(),
            peer_slots: theirs.clone(),
            my_slots: mine.clone(),
            tokens: RefCell::new(vec![0; 4096]),
            free: RefCell::new((0..4096).map(RxToken).collect()),
        },
        link,
        scratch: Scratch::boxed(),
        ep,
        addr,
        keys,
        sq: Producer::new(sq, DEPTH).unwrap(),
        rq: Producer::new(rq, DEPTH).unwrap(),
        cq: Consumer::new(cq, 2 * DEPTH).unwrap(),
        now: 0,
        deadline: None,
        sent: 0,
        received: 0,
    }
}

/// What a home does on one side: takes posted entries and arrived frames, and gives the link its turn.
#[inline(never)]
fn counted(side: &mut Side, submit: bool, frames: &[(TxSlot, u16)]) {
    let held = if submit {
        side.device.submit_held(side.ep, side.now).held
    } else {
        None
    };
    let (port, scratch) = (&side.port, &mut side.scratch);
    let receive = |arrivals: &mut Arrivals<'_, Lean>| {
        for (slot, len) in frames {
            let token = port.free.borrow_mut().pop().unwrap();
            port.tokens.borrow_mut()[token.0 as usize] = slot.0;
            let head = port
                .peer_slots
                .read(usize::from(slot.0) * 4096, usize::from((*len).min(1024)));
            if arrivals.frame(RAIL, token, head, *len) == Fate::Done {
                port.release(token);
            }
        }
    };
    let mut done = side
        .device
        .turn(side.link, held, port, side.now, scratch, false, receive, |_| ());
    while done.more {
        done = side.device.service(side.link, port, side.now, scratch);
    }
    side.deadline = done.deadline;
}

fn poll(side: &mut Side) -> u64 {
    let mut received = 0;
    while let Some(cqe) = side.cq.pop().unwrap() {
        assert_eq!(cqe.status, 0, "{cqe:?}");
        if cqe.flags & usb4_ring_abi::cqe_flags::RECV != 0 {
            received += 1;
        } else {
            side.sent += 1;
        }
    }
    side.cq.release();
    side.received += received;
    received
}

fn post_receives(side: &mut Side, count: u64, len: u32) {
    for _ in 0..count {
        let rqe = Rqe {
            user_data: 0,
            addr: BASE,
            local_key: side.keys.local,
            len,
            reserved: 0,
        };
        side.rq.push(&rqe).unwrap();
    }
    side.rq.publish();
}

fn post_send(side: &mut Side, len: u32) {
    let sqe = Sqe {
        op: Op::Send.code(),
        local_addr: BASE,
        local_key: side.keys.local,
        len,
        ..Sqe::default()
    };
    side.sq.push(&sqe).unwrap();
    side.sq.publish();
}

fn main() {
    let mut args = env::args().skip(1);
    let mode = args.next().unwrap_or_else(|| "pingpong".into());
    let count: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let (len, window, echo) = match mode.as_str() {
        "pingpong" => (64, 1, true),
        "stream" => (64, 128, false),
        "bulk" => (1 << 20, 8, false),
        other => panic!("{other}: not a mode"),
    };
    let (slots_a, slots_b) = (
        Arc::new(Bytes::new(2048 * 4096)),
        Arc::new(Bytes::new(2048 * 4096)),
    );
    let mut sides = [side(1, 2, &slots_a, &slots_b), side(2, 1, &slots_b, &slots_a)];
    for at in 0..2 {
        let peer = sides[1 - at].addr;
        let client = usb4_device::ClientId::from_raw(0x1_0000);
        sides[at].device.create_ah(client, sides[at].ep, &peer).unwrap();
        post_receives(&mut sides[at], u64::from(DEPTH), len);
    }
    let (mut now, mut frames, mut posted, mut echoes) = (1_000, 0_u64, 0_u64, 0_u64);
    let mut arrived: Vec<(TxSlot, u16)> = Vec::new();
    let mut wire: [Vec<(TxSlot, u16)>; 2] = [Vec::new(), Vec::new()];
    while sides[0].sent < count || (echo && sides[1].sent < count) {
        now += 2_000;
        for at in 0..2 {
            let side = &mut sides[at];
            side.now = now;
            std::mem::swap(&mut arrived, &mut wire[1 - at]);
            wire[1 - at].clear();
            let mut submit = false;
            if at == 0 {
                let outstanding = if echo {
                    posted - side.received
                } else {
                    posted - side.sent
                };
                for _ in outstanding..window {
                    if posted < count {
                        post_send(side, len);
                        posted += 1;
                        submit = true;
                    }
                }
            } else if echo && echoes < side.received {
                post_send(side, len);
                echoes += 1;
                submit = true;
            }
            if submit || !arrived.is_empty() || side.deadline.is_some_and(|deadline| deadline <= now) {
                counted(side, submit, &arrived);
            }
            let received = poll(side);
            post_receives(side, received, len);
            wire[at].append(&mut side.port.posted.borrow_mut());
            frames += wire[at].len() as u64;
            // The peer reads a frame from the slot before the next turn of this side.
            for slot in arrived.drain(..) {
                let other = &sides[1 - at];
                other.device.tx_completed(other.link, now, RAIL, slot.0);
            }
        }
    }
    println!(
        "mode={mode} messages={} frames={frames}",
        sides[0].sent + sides[1].sent
    );
}
