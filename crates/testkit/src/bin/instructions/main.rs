//! `usb4-instructions`: two devices wired back to back in one thread, for counting instructions.
//!
//! `cargo xtask instructions` runs it under callgrind and counts what happens inside the four functions
//! `count_*`: a turn of one host in one role. What the home does there (copies, CRC, rings; everything in `home`) is
//! taken off; clients and wires are outside.

mod home;

use std::hint::black_box;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use home::{CountedHome, Memory, Wire, words};
use usb4_device::{
    Access, ClientId, CqConfig, Device, DeviceConfig, DeviceStorage, EndpointConfig, EndpointId,
    EndpointKind, Keys, LinkId, QpAttr, QpConfig, QpKind, QpState, Quota, RegionConfig, Scratch,
};
use usb4_engine::{EpAddr, Fate, LinkConfig, LinkStorage, Nanos, NodeId, RailConfig, RailId, Slab};
use usb4_ring_abi::{Consumer, Cqe, CqeStatus, Op, Producer, Rqe, Slots, Sqe};

/// Moves messages between two devices in one thread.
#[derive(Parser)]
struct Args {
    /// What to move.
    #[arg(value_enum)]
    traffic: Traffic,
    /// How many messages.
    messages: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Traffic {
    /// 64 bytes back and forth.
    Small,
    /// The same between queue pairs of verbs, reliably connected.
    Verbs,
    /// 1 MiB one way.
    Large,
}

const RAIL: RailId = RailId(0);
const DEPTH: u32 = 16;
const SMALL: u32 = 64;
const LARGE: u32 = 1 << 20;
const BASE: u64 = 0x10_0000;
const SEND: u64 = 1;
const RECEIVE: u64 = 2;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usb4-instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args = Args::parse();
    let mut world = match args.traffic {
        Traffic::Verbs => World::verbs()?,
        Traffic::Small | Traffic::Large => World::ring()?,
    };
    for message in 0..args.messages {
        match args.traffic {
            Traffic::Small | Traffic::Verbs => world.small(message % 2 == 1)?,
            Traffic::Large => world.large()?,
        }
    }
    writeln!(
        std::io::stdout(),
        "{} frames one way, {} the other",
        world.a.wire.frames_sent(),
        world.b.wire.frames_sent()
    )?;
    Ok(())
}

type Words = Arc<[AtomicU64]>;

/// Protection domain of the queue pairs.
const PD: u32 = 1;

/// A host, its side of the link, and a client with one endpoint.
struct Side {
    device: Device<CountedHome>,
    wire: Wire,
    link: LinkId,
    scratch: Scratch,
    client: ClientId,
    ep: EndpointId,
    addr: EpAddr,
    ah: u32,
    keys: Keys,
    sq: Producer<Words, Sqe>,
    rq: Producer<Words, Rqe>,
    cq: Consumer<Words, Cqe>,
    sent: u32,
    received: u32,
}

impl Side {
    fn new(node: u64, peer: u64, verbs: bool) -> Result<Self> {
        let (node_id, peer_id) = (NodeId(node.into()), NodeId(peer.into()));
        let config = DeviceConfig::new(node_id);
        let device = Device::new(CountedHome::new(node), &config, DeviceStorage::boxed(&config))?;
        let config = LinkConfig::new(node_id, peer_id);
        let wire = Wire::new(&config);
        let link = device.add_link(config, LinkStorage::boxed(&config))?;
        let rail = RailConfig {
            tx_tag: peer,
            rx_tag: node,
            peer_ring: 256,
            tx_depth: 64,
            peer_max_ack_delay: 25_000,
            rate_bps: 10_000_000_000,
            latency: 1_000,
        };
        device.attach_rail(link, 0, RAIL, &rail)?;
        let client = device.add_client(Quota::UNLIMITED, None)?;
        let mem = Memory::new(usize::try_from(LARGE)?);
        let region = RegionConfig {
            addr: BASE,
            len: u64::from(LARGE),
            access: Access::LOCAL,
            peer: None,
            mem,
        };
        let keys = if verbs {
            device.register_in_pd(client, PD, region)?
        } else {
            device.register(client, region)?
        };
        let (sq, rq, cq) = (
            words::<Sqe>(DEPTH)?,
            words::<Rqe>(DEPTH)?,
            words::<Cqe>(2 * DEPTH)?,
        );
        let ops = Slab::boxed(usize::try_from(2 * DEPTH)?);
        let queue = device.create_cq(
            client,
            CqConfig {
                depth: 2 * DEPTH,
                memory: cq.clone(),
                ops,
                waker: (),
            },
        )?;
        let (ep, addr) = if verbs {
            let config = QpConfig {
                kind: QpKind::Rc,
                special: None,
                pd: PD,
                send_cq: queue,
                recv_cq: queue,
                sq_depth: DEPTH,
                sq: sq.clone(),
                rq_depth: DEPTH,
                rq: rq.clone(),
                handles: Slab::boxed(1),
                srq: None,
                sq_slots: Slots::NONE,
                sq_lists: Slab::empty(),
                rq_slots: Slots::NONE,
                rq_lists: Slab::empty(),
            };
            let (ep, number) = device.create_qp(client, config)?;
            let addr = EpAddr {
                node: node_id,
                ep: number,
                incarnation: 0,
            };
            (ep, addr)
        } else {
            let config = EndpointConfig {
                kind: EndpointKind::Datagram,
                send_cq: queue,
                recv_cq: queue,
                sq_depth: DEPTH,
                sq: sq.clone(),
                rq_depth: DEPTH,
                rq: rq.clone(),
                handles: Slab::boxed(1),
            };
            device.create_endpoint(client, config)?
        };
        Ok(Self {
            device,
            wire,
            link,
            scratch: Scratch::boxed(),
            client,
            ep,
            addr,
            ah: 0,
            keys,
            sq: Producer::new(sq, DEPTH)?,
            rq: Producer::new(rq, DEPTH)?,
            cq: Consumer::new(cq, 2 * DEPTH)?,
            sent: 0,
            received: 0,
        })
    }

    /// Takes a queue pair to where it sends to `peer` and receives from it.
    fn connect(&self, peer: &EpAddr) -> Result<()> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr {
                state: Some(state),
                peer: Some((peer.node, peer.ep)),
                ..QpAttr::default()
            };
            self.device.modify_qp(self.client, self.ep, &attr, 0)?;
        }
        Ok(())
    }

    fn post_receive(&mut self, len: u32) -> Result<()> {
        let entry = Rqe {
            user_data: RECEIVE,
            addr: BASE,
            local_key: self.keys.local,
            len,
            reserved: 0,
        };
        self.rq.push(&entry).context("post a receive")?;
        self.rq.publish();
        Ok(())
    }

    fn post_send(&mut self, len: u32) -> Result<()> {
        let entry = Sqe {
            op: Op::Send.code(),
            user_data: SEND,
            local_addr: BASE,
            local_key: self.keys.local,
            len,
            ah: self.ah,
            ..Sqe::default()
        };
        self.sq.push(&entry).context("post a send")?;
        self.sq.publish();
        Ok(())
    }

    /// A turn of whoever drives this host.
    #[inline(always)]
    fn turn(&mut self, now: Nanos) {
        let held = self.device.submit_held(self.ep, now).held;
        let wire = &self.wire;
        self.device.turn(
            self.link,
            held,
            wire,
            now,
            &mut self.scratch,
            false,
            |arrivals| {
                while let Some(slot) = wire.take_completion() {
                    arrivals.completed(RAIL, slot);
                }
                while let Some((token, len)) = wire.take_arrival() {
                    let frame = wire.frame(token);
                    let head = frame.get(..usize::from(len)).unwrap_or_default();
                    let fate = arrivals.frame(RAIL, token, head, len);
                    drop(frame);
                    if fate == Fate::Done {
                        usb4_device::Port::release(wire, token);
                    }
                }
            },
            |_| (),
        );
    }

    fn poll(&mut self) -> Result<()> {
        while let Some(cqe) = self.cq.pop().context("read the completion queue")? {
            ensure!(
                cqe.status() == Some(CqeStatus::Ok),
                "a completion says {:?}",
                cqe.status()
            );
            match cqe.user_data {
                SEND => self.sent += 1,
                _ => self.received += 1,
            }
        }
        self.cq.release();
        Ok(())
    }
}

// The constants keep the compiler from making one function of these four.

#[inline(never)]
fn count_small_send(side: &mut Side, now: Nanos) {
    black_box(1);
    side.turn(now);
}

#[inline(never)]
fn count_small_receive(side: &mut Side, now: Nanos) {
    black_box(2);
    side.turn(now);
}

#[inline(never)]
fn count_large_send(side: &mut Side, now: Nanos) {
    black_box(3);
    side.turn(now);
}

#[inline(never)]
fn count_large_receive(side: &mut Side, now: Nanos) {
    black_box(4);
    side.turn(now);
}

/// Both hosts and the time.
struct World {
    a: Side,
    b: Side,
    now: Nanos,
}

impl World {
    /// Two endpoints of the ring API.
    fn ring() -> Result<Self> {
        let (mut a, mut b) = (Side::new(1, 2, false)?, Side::new(2, 1, false)?);
        a.ah = a.device.create_ah(a.client, a.ep, &b.addr)?;
        b.ah = b.device.create_ah(b.client, b.ep, &a.addr)?;
        Ok(Self { a, b, now: 1 })
    }

    /// Two connected queue pairs.
    fn verbs() -> Result<Self> {
        let (a, b) = (Side::new(1, 2, true)?, Side::new(2, 1, true)?);
        a.connect(&b.addr)?;
        b.connect(&a.addr)?;
        Ok(Self { a, b, now: 1 })
    }

    /// One small message, as half a round trip: acknowledgements ride on the next one.
    fn small(&mut self, back: bool) -> Result<()> {
        let (from, to) = if back {
            (&mut self.b, &mut self.a)
        } else {
            (&mut self.a, &mut self.b)
        };
        to.post_receive(SMALL)?;
        from.post_send(SMALL)?;
        let goal = to.received + 1;
        for _ in 0..10 {
            self.now += 500;
            count_small_send(from, self.now);
            from.wire.deliver(&to.wire)?;
            count_small_receive(to, self.now);
            to.poll()?;
            from.poll()?;
            if to.received == goal {
                return Ok(());
            }
        }
        anyhow::bail!("a small message does not arrive")
    }

    /// One large message, until it is confirmed.
    fn large(&mut self) -> Result<()> {
        let (from, to) = (&mut self.a, &mut self.b);
        to.post_receive(LARGE)?;
        from.post_send(LARGE)?;
        let goal = from.sent + 1;
        for _ in 0..100_000 {
            self.now += 500;
            count_large_send(from, self.now);
            from.wire.deliver(&to.wire)?;
            count_large_receive(to, self.now);
            to.wire.deliver(&from.wire)?;
            to.poll()?;
            from.poll()?;
            if from.sent == goal {
                return Ok(());
            }
        }
        anyhow::bail!("a large message does not arrive")
    }
}
