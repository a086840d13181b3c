//! A client whose queue pairs and shared receive queue say what the input says, next to one that behaves: see
//! [`crate::queue_hostile`] for what is expected. Its queue pairs are each other's peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use usb4_device::{
    Access, ClientId, CqConfig, CqId, EndpointId, Keys, QpAttr, QpConfig, QpKind, QpState, RegionConfig,
    SrqConfig, list_words,
};
use usb4_engine::{EpAddr, Slab};
use usb4_ring_abi::{
    CONSUMER_WORD, Cqe, Entry, OP_INVALIDATE, Op, PRODUCER_WORD, Piece, QueueGeometry, RQE_WORDS, Rqe,
    SQE_WORDS, Slots, Sqe, sqe_flags,
};

use crate::input::Input;
use crate::queue_hostile::machine::{CQ, Machine, Memory, RQ, SQ, Words, client};
use crate::queue_hostile::{BASE, Honest, REGION, push};

const PD: u32 = 1;
const QKEY: u32 = 3;
/// Queue pairs at a time.
const QPS: usize = 3;
/// Entries of the shared receive queue: few, so that places of lists are used up.
const SHARED: u32 = 2;
/// Four pieces.
const SLOTS: Slots = match Slots::of(64) {
    Some(slots) => slots,
    None => Slots::NONE,
};

/// A queue pair with a completion queue of its own.
struct Qp {
    ep: EndpointId,
    addr: EpAddr,
    cq_id: CqId,
    shares: bool,
    sq: Words,
    rq: Words,
    cq: Words,
}

struct World {
    machine: Machine,
    honest: Honest,
    client: ClientId,
    memory: Memory,
    keys: Keys,
    /// Those of regions that were deregistered while something used them.
    going: Vec<u32>,
    qps: Vec<Qp>,
    srq: Option<(EndpointId, Words)>,
    /// Everything of the hostile client that the device has ever been given.
    lent: Vec<Words>,
}

/// Interprets the input as events.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new();
    while !input.is_empty() {
        world.event(&mut input);
    }
    world.finish();
}

fn words<E: Entry>(depth: u32) -> Words {
    let queue = QueueGeometry::of::<E>(depth).expect("a power of two");
    (0..queue.with_slots(SLOTS).words())
        .map(|_| AtomicU64::new(0))
        .collect()
}

/// Puts an entry where the next one belongs, and `slot` into its slot.
fn push_with<E: Entry>(queue: &[AtomicU64], depth: u32, entry: &[u64], slot: &[u64]) {
    let first = QueueGeometry::of::<E>(depth).expect("a power of two").words();
    let producer = queue[PRODUCER_WORD].load(Ordering::Relaxed);
    let place = (producer % u64::from(depth)) as usize;
    for (word, value) in queue[first + place * SLOTS.words()..].iter().zip(slot) {
        word.store(*value, Ordering::Relaxed);
    }
    push(queue, depth, entry);
}

/// Registers the memory in the queue pairs' protection domain.
fn register(machine: &Machine, client: ClientId, memory: &Memory, access: Access) -> Option<Keys> {
    let config = RegionConfig {
        addr: BASE,
        len: REGION as u64,
        access,
        peer: None,
        mem: memory.clone(),
    };
    machine.device.register_in_pd(client, PD, config).ok()
}

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let honest = Honest::new(&machine);
        let client = client(&machine);
        let memory = Memory::new(vec![0xee; REGION].into());
        let keys = register(&machine, client, &memory, Access::REMOTE_ALL).expect("a region");
        let mut world = Self {
            machine,
            honest,
            client,
            memory,
            keys,
            going: vec![],
            qps: vec![],
            srq: None,
            lent: vec![],
        };
        world.make_srq();
        for kind in [0, 0, 2] {
            world.open(kind);
        }
        for at in 0..QPS {
            world.connect(at, 0);
        }
        world
    }

    fn make_srq(&mut self) {
        let rq = words::<Rqe>(SHARED);
        let config = SrqConfig {
            pd: PD,
            depth: SHARED,
            rq: rq.clone(),
            slots: SLOTS,
            lists: Slab::boxed(list_words(SHARED, SLOTS)),
        };
        if let Ok(srq) = self.machine.device.create_srq(self.client, config) {
            self.lent.push(rq.clone());
            self.srq = Some((srq, rq));
        }
    }

    /// Of one of the kinds; it draws from the shared receive queue if 4 is added to that.
    fn open(&mut self, kind: u8) {
        let (sq, rq, cq) = (words::<Sqe>(SQ), words::<Rqe>(RQ), words::<Cqe>(CQ));
        let config = CqConfig {
            depth: CQ,
            memory: cq.clone(),
            ops: Slab::boxed(CQ as usize),
            waker: (),
        };
        let device = &self.machine.device;
        let Ok(cq_id) = device.create_cq(self.client, config) else {
            return;
        };
        let srq = self.srq.as_ref().map(|(srq, _)| *srq).filter(|_| kind & 4 == 0);
        let config = QpConfig {
            kind: [QpKind::Rc, QpKind::Uc, QpKind::Ud][usize::from(kind & 3) % 3],
            special: None,
            pd: PD,
            send_cq: cq_id,
            recv_cq: cq_id,
            sq_depth: SQ,
            sq: sq.clone(),
            rq_depth: RQ,
            rq: rq.clone(),
            handles: Slab::boxed(3),
            srq,
            sq_slots: SLOTS,
            sq_lists: Slab::boxed(list_words(SQ, SLOTS)),
            rq_slots: SLOTS,
            rq_lists: Slab::boxed(list_words(RQ, SLOTS)),
        };
        let Ok((ep, number)) = device.create_qp(self.client, config) else {
            let _ = device.destroy_cq(self.client, cq_id);
            return;
        };
        self.lent.extend([sq.clone(), rq.clone(), cq.clone()]);
        self.qps.push(Qp {
            ep,
            addr: EpAddr {
                node: device.node(),
                ep: number,
                incarnation: 0,
            },
            cq_id,
            shares: srq.is_some(),
            sq,
            rq,
            cq,
        });
    }

    /// Takes a queue pair to where it sends to another, or to itself.
    fn connect(&self, at: usize, patience: u8) {
        let peer = self.qps[(at + 1) % self.qps.len()].addr;
        let qp = &self.qps[at];
        let device = &self.machine.device;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr {
                state: Some(state),
                peer: Some((peer.node, peer.ep)),
                qkey: Some(QKEY),
                access: Some(Access::REMOTE_ALL),
                timeout: Some(patience),
                rnr_retry: Some(7 - patience % 8),
                min_rnr_timer: Some(1),
                max_dest_rd_atomic: Some(4),
                ..QpAttr::default()
            };
            let _ = device.modify_qp(self.client, qp.ep, &attr, self.machine.now);
        }
        let _ = device.create_ah(self.client, qp.ep, &peer);
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let more = choice >> 4;
        let at = usize::from(more & 3) % self.qps.len().max(1);
        let ep = self.qps.get(at).map(|qp| qp.ep);
        let (client, now) = (self.client, self.machine.now);
        match (choice & 15, ep) {
            (0..=2, Some(_)) => self.submission(at, input),
            (3 | 4, _) => self.receive(at, input),
            (5, Some(_)) => self.scribble(at, input),
            (6, Some(ep)) => _ = self.machine.device.submit(ep, now),
            (7, _) => {
                if let Some((srq, _)) = &self.srq {
                    let _ = self.machine.device.submit(*srq, now);
                }
            }
            (8 | 9, _) => _ = self.machine.turn(),
            (10, Some(_)) => self.consume(at),
            (11, Some(ep)) => {
                let state = input.byte();
                if state & 8 != 0 {
                    return self.connect(at, state >> 4);
                }
                let states = [QpState::Reset, QpState::Err, QpState::Rts, QpState::Sqd];
                let attr = QpAttr {
                    state: Some(states[usize::from(state & 3)]),
                    ..QpAttr::default()
                };
                let _ = self.machine.device.modify_qp(client, ep, &attr, now);
            }
            (12, Some(ep)) if more & 8 == 0 => {
                let _ = self.machine.device.destroy_endpoint(client, ep, now);
                let _ = self.machine.device.destroy_cq(client, self.qps[at].cq_id);
                self.qps.remove(at);
            }
            (12, _) if self.qps.len() < QPS => self.open(input.byte()),
            (13, _) => {
                let force = more & 4 != 0;
                if self.machine.device.deregister(client, self.keys.local) == Ok(false) {
                    self.going.push(self.keys.local);
                }
                let device = &self.machine.device;
                self.going
                    .retain(|key| device.reclaim(client, *key, force) == Ok(false));
                if more & 2 != 0 {
                    let access = Access::from_bits(more).unwrap_or(Access::REMOTE_ALL);
                    if let Some(keys) = register(&self.machine, client, &self.memory, access) {
                        self.keys = keys;
                    }
                }
            }
            (14, _) => match &self.srq {
                Some((srq, _)) if more & 3 != 3 => {
                    let _ = self.machine.device.limit_srq(client, *srq, u32::from(more & 3));
                }
                Some((srq, _)) => {
                    if self.machine.device.destroy_endpoint(client, *srq, now).is_ok() {
                        self.srq = None;
                    }
                }
                None => self.make_srq(),
            },
            (15, _) if more == 14 => {
                self.machine.change = Some((input.byte(), input.byte()));
                self.machine.turn();
            }
            (15, _) if more == 15 && !self.machine.changed => self.honest.works(&mut self.machine),
            (15, _) => self.machine.now += u64::from(input.byte()) << 14,
            _ => {}
        }
    }

    /// Values of which one usually fits.
    fn value(&self, input: &mut Input<'_>) -> u64 {
        match input.byte() {
            byte @ 0..=0x9f => u64::from(byte),
            0xa0..=0xaf => BASE + u64::from(input.u16()),
            0xb0..=0xb7 => u64::from(self.keys.local),
            0xb8..=0xbb => u64::from(self.honest.keys.local),
            0xbc..=0xcf => self.keys.remote,
            0xd0..=0xdf => u64::MAX - u64::from(input.byte()),
            0xe0..=0xe7 => 1 << (input.byte() & 63),
            _ => input.u64(),
        }
    }

    /// Up to four pieces, and their sum: long ones, so that a message is many frames.
    fn pieces(&self, input: &mut Input<'_>, count: u8) -> (Vec<u64>, u32) {
        let pieces = (0..count).map(|_| {
            let byte = input.byte();
            Piece {
                addr: BASE + u64::from(byte & 15),
                // One in sixteen is nobody's.
                local_key: self.keys.local ^ u32::from(byte & 15 == 15),
                len: u32::from(byte >> 4) << 9,
            }
        });
        let pieces: Vec<Piece> = pieces.collect();
        let words = pieces.iter().flat_map(|piece| piece.to_words()).collect();
        (words, pieces.iter().map(|piece| piece.len).sum())
    }

    /// A submission that is good but for what the input changes about it.
    fn submission(&mut self, at: usize, input: &mut Input<'_>) {
        let shape = input.byte();
        let op = 1 + (shape & 7) % OP_INVALIDATE;
        let mut sqe = Sqe {
            op,
            user_data: 7,
            local_addr: BASE + u64::from(input.byte()),
            local_key: self.keys.local,
            len: if (shape & 7) > 2 {
                8
            } else {
                u32::from(input.byte()) << (shape >> 6)
            },
            args: [BASE, self.keys.remote, 0, 0],
            ..Sqe::default()
        };
        if op == Op::Send.code() {
            sqe.args = [u64::from(QKEY) * u64::from(at == 2), 0, 0, 0];
        }
        let mut slot = vec![];
        if shape & 0x08 != 0 {
            let count = 1 + input.byte() % 4;
            let sum;
            (slot, sum) = self.pieces(input, count);
            sqe.local_addr = 0;
            (sqe.flags, sqe.local_key, sqe.len) = if shape & 0x40 == 0 {
                (sqe_flags::LIST, count.into(), sum)
            } else {
                (sqe_flags::INLINE, 0, sqe.len & 63)
            };
        }
        let mut words = sqe.to_words();
        if shape & 0x10 != 0 {
            let word = input.below(SQE_WORDS);
            words[word] = self.value(input);
        }
        push_with::<Sqe>(&self.qps[at].sq, SQ, &words, &slot);
    }

    fn receive(&mut self, at: usize, input: &mut Input<'_>) {
        let shape = input.byte();
        let (queue, depth) = match (self.qps.get(at), &self.srq) {
            (Some(qp), _) if !qp.shares => (&qp.rq, RQ),
            (_, Some((_, rq))) => (rq, SHARED),
            _ => return,
        };
        let mut slot = vec![];
        let mut words = [
            8,
            BASE + u64::from(shape & 15) * 16,
            u64::from(self.keys.local) | u64::from(shape >> 4) << (32 + 9),
            0,
        ];
        if shape & 1 != 0 {
            let count = 1 + input.byte() % 4;
            let sum;
            (slot, sum) = self.pieces(input, count);
            words = [8, 0, u64::from(sum) << 32, count.into()];
        }
        if shape & 6 == 6 {
            let word = input.below(RQE_WORDS);
            words[word] = self.value(input);
        }
        push_with::<Rqe>(queue, depth, &words, &slot);
    }

    /// Any word of any queue, the device's own ones included.
    fn scribble(&mut self, at: usize, input: &mut Input<'_>) {
        let qp = &self.qps[at];
        let which = input.byte();
        let shared = self.srq.as_ref().map_or(&qp.rq, |(_, rq)| rq);
        let words = [&qp.sq, &qp.rq, &qp.cq, shared][usize::from(which) % 4];
        let index = match which >> 2 & 7 {
            0 => PRODUCER_WORD,
            1 => CONSUMER_WORD,
            _ => usize::from(input.u16()) % words.len(),
        };
        let value = self.value(input);
        words[index].store(value, Ordering::Relaxed);
    }

    /// Frees the whole completion queue.
    fn consume(&mut self, at: usize) {
        let cq = &self.qps[at].cq;
        cq[CONSUMER_WORD].store(cq[PRODUCER_WORD].load(Ordering::Acquire), Ordering::Release);
    }

    fn finish(mut self) {
        self.rest();
        self.gives_all_back();
        let device = &self.machine.device;
        device
            .remove_client(self.client, self.machine.now)
            .expect("the client is there");
        self.rest();
        (self.srq, self.qps) = (None, vec![]);
        for words in &self.lent {
            assert_eq!(
                Arc::strong_count(words),
                1,
                "the device keeps a queue of a client that is gone"
            );
        }
        assert_eq!(
            Arc::strong_count(&self.memory),
            1,
            "the device keeps memory of a client that is gone"
        );
        if !self.machine.changed {
            self.machine.check_link();
            self.honest.is_untouched();
        }
    }

    /// Without queues nothing uses the memory any more.
    fn gives_all_back(&mut self) {
        let (client, now) = (self.client, self.machine.now);
        let queues = self.qps.iter().map(|qp| qp.ep);
        for queue in queues.chain(self.srq.as_ref().map(|(srq, _)| *srq)) {
            let destroyed = self.machine.device.destroy_endpoint(client, queue, now);
            destroyed.expect("the queue is there");
        }
        self.rest();
        let device = &self.machine.device;
        let used = device.deregister(client, self.keys.local) == Ok(false)
            || (self.going.iter()).any(|key| device.reclaim(client, *key, false) == Ok(false));
        assert!(self.machine.changed || !used, "something still uses the memory");
    }

    /// Comes to rest, if its peer lets it.
    fn rest(&mut self) {
        if self.machine.changed {
            for _ in 0..64 {
                self.machine.turn();
                self.machine.now += 400_000;
            }
        } else {
            self.machine.settle();
            self.honest.works(&mut self.machine);
        }
    }
}

/// Good work of each kind, then what a client may do to it.
pub fn seeds() -> Vec<Vec<u8>> {
    // To the shared receive queue: one buffer, and three.
    let receives = [3_u8, 0xf0, 3, 0xf1, 2, 0x80, 0x70, 0x31];
    let sends = [0_u8, 0x80, 0, 200, 0, 0x08, 1, 0x95, 0x40];
    let others: Vec<u8> = (1..6).flat_map(|op| [0, op | 0x80, 0, 100]).collect();
    let turns = [6_u8, 7, 8, 8, 8, 10];
    let all = |events: &[&[u8]]| events.concat();
    vec![
        all(&[&receives, &sends, &turns, &turns]),
        all(&[&sends, &turns, &receives, &turns]),
        all(&[&receives, &others, &turns, &turns]),
        // Longer than its receive.
        all(&[&[3, 0x10, 3, 0x10], &sends, &[0x20, 0x80, 0, 200, 0x26], &turns]),
        // Words of slots, then of the shared queue's head.
        all(&[&receives, &sends, &[6, 5, 0x0b, 40, 0, 0xd0, 1], &turns]),
        all(&[&receives, &sends, &[5, 3, 0xd0, 1], &turns, &turns]),
        // Destroyed, reset and in error in the middle.
        all(&[&receives, &sends, &[6, 8, 0x1c], &turns, &[0x8c, 0], &turns]),
        all(&[
            &receives,
            &sends,
            &[6, 8, 0x1b, 0],
            &turns,
            &[0x1b, 8],
            &sends,
            &turns,
        ]),
        all(&[&receives, &sends, &[6, 8, 0x1b, 1], &turns]),
        all(&[&receives, &sends, &[6, 8, 0x2d], &turns]),
        all(&[
            &[0x1c, 0x1c, 0x0c, 0x3e, 0x3e, 0x8c, 1, 0x8c, 5],
            &receives,
            &turns,
        ]),
    ]
}
