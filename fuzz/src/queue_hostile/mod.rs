//! A client whose queues say what the input says, next to one that behaves.
//!
//! Whatever is in the hostile client's queues, the device reaches only memory that client registered, the other
//! client's memory stays as it was and its messages go through, the host keeps the protocol, and removing the
//! client leaves nothing of it in use.

pub(crate) mod machine;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use machine::{CQ, Machine, Memory, Queues, RQ, SQ, client, register};
use usb4_device::{Access, ClientId, EndpointKind, Keys};
use usb4_ring_abi::{
    CONSUMER_WORD, CQE_WORDS, Consumer, Cqe, CqeStatus, ENTRIES_WORD, Op, PRODUCER_WORD, Producer, RQE_WORDS,
    Rqe, SQE_WORDS, Sqe,
};

use crate::input::Input;

pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const REGION: usize = 8192;

/// The client that behaves.
pub(crate) struct Honest {
    pub(crate) queues: Queues,
    sq: Producer<Arc<[AtomicU64]>, Sqe>,
    rq: Producer<Arc<[AtomicU64]>, Rqe>,
    cq: Consumer<Arc<[AtomicU64]>, Cqe>,
    ah: u32,
    memory: Memory,
    pub(crate) keys: Keys,
}

/// The other one.
struct Hostile {
    client: ClientId,
    queues: Vec<Queues>,
    memory: Memory,
    keys: Keys,
}

struct World {
    machine: Machine,
    honest: Honest,
    hostile: Hostile,
    /// Everything of the hostile client that the device has ever been given.
    lent: Vec<Arc<[AtomicU64]>>,
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

fn pattern() -> Vec<u8> {
    (0..REGION).map(|at| (at * 31 + at / 251) as u8).collect()
}

impl Honest {
    pub(crate) fn new(machine: &Machine) -> Self {
        let id = client(machine);
        let queues = Queues::create(machine, id, EndpointKind::Datagram).expect("an endpoint");
        let memory = Memory::new(pattern().into());
        let keys = register(machine, id, &memory, BASE, Access::LOCAL).expect("a region");
        let ah = machine
            .device
            .create_ah(id, queues.ep, &queues.addr)
            .expect("a handle");
        Self {
            sq: Producer::new(queues.sq.clone(), SQ).expect("a queue"),
            rq: Producer::new(queues.rq.clone(), RQ).expect("a queue"),
            cq: Consumer::new(queues.cq.clone(), CQ).expect("a queue"),
            queues,
            ah,
            memory,
            keys,
        }
    }

    /// Sends itself a message. Others may take its receives meanwhile, so it posts more until its own has got one.
    pub(crate) fn works(&mut self, machine: &mut Machine) {
        let local_key = self.keys.local;
        let send = Sqe {
            op: Op::Send.code(),
            ah: self.ah,
            user_data: 2,
            local_addr: BASE,
            local_key,
            len: 100,
            ..Sqe::default()
        };
        self.sq.push(&send).expect("room for one");
        self.sq.publish();
        for _ in 0..64 {
            let receive = Rqe {
                user_data: 1,
                addr: BASE + 4096,
                local_key,
                len: 100,
                reserved: 0,
            };
            let _ = self.rq.push(&receive);
            self.rq.publish();
            machine.device.submit(self.queues.ep, machine.now);
            machine.settle();
            let mut sent = None;
            while let Some(cqe) = self.cq.pop().expect("an index that does not lie") {
                if cqe.user_data == 2 {
                    sent = cqe.status();
                }
            }
            self.cq.release();
            if let Some(status) = sent {
                assert_eq!(status, CqeStatus::Ok, "the honest client's message fails");
                return;
            }
        }
        panic!("the honest client's messages do not go through");
    }

    /// Nobody else has written to its memory.
    pub(crate) fn is_untouched(&self) {
        let bytes = self.memory.lock().expect("not poisoned");
        let mut expected = pattern();
        expected.copy_within(..100, 4096);
        assert!(*bytes == expected, "the honest client's memory has changed");
    }
}

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let honest = Honest::new(&machine);
        let id = client(&machine);
        let memory = Memory::new(vec![0xee; REGION].into());
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let keys = register(&machine, id, &memory, BASE, access).expect("a region");
        let hostile = Hostile {
            client: id,
            queues: vec![],
            memory,
            keys,
        };
        let mut world = Self {
            machine,
            honest,
            hostile,
            lent: vec![],
        };
        world.open(EndpointKind::Datagram);
        world
    }

    fn open(&mut self, kind: EndpointKind) {
        let client = self.hostile.client;
        let Some(queues) = Queues::create(&self.machine, client, kind) else {
            return;
        };
        self.lent
            .extend([queues.sq.clone(), queues.rq.clone(), queues.cq.clone()]);
        let device = &self.machine.device;
        if kind == EndpointKind::Connected {
            let _ = device.connect(client, queues.ep, &queues.addr);
        } else {
            for addr in [queues.addr, self.honest.queues.addr] {
                let _ = device.create_ah(client, queues.ep, &addr);
            }
        }
        self.hostile.queues.push(queues);
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let at = usize::from(choice >> 4 & 1) % self.hostile.queues.len().max(1);
        let ep = self.hostile.queues.get(at).map(|queues| queues.ep);
        let device = &self.machine.device;
        let now = self.machine.now;
        let client = self.hostile.client;
        match (choice & 15, ep) {
            (0..=3, Some(_)) => self.submission(at, input),
            (4 | 5, Some(_)) => self.receive(at, input),
            (6, Some(_)) => self.scribble(at, input),
            (7, Some(ep)) => _ = device.submit(ep, now),
            (8, _) => _ = self.machine.turn(),
            (9, _) => self.machine.now += u64::from(input.byte()) << 14,
            (10, Some(_)) => self.consume(at),
            (11, Some(ep)) => {
                let handle = u32::from(input.byte() & 3);
                let _ = match choice >> 5 & 3 {
                    0 => device.destroy_ah(client, ep, handle, now),
                    1 => device.create_ah(client, ep, &self.honest.queues.addr).map(|_| ()),
                    2 => device.reset_endpoint(client, ep, now).map(|_| ()),
                    _ => device.connect(client, ep, &self.honest.queues.addr),
                };
            }
            (12, Some(ep)) if choice >> 5 & 1 == 0 => {
                let _ = device.destroy_endpoint(client, ep, now);
                self.hostile.queues.remove(at);
            }
            (12, _) => {
                let connected = choice >> 6 & 1 != 0;
                self.open(if connected {
                    EndpointKind::Connected
                } else {
                    EndpointKind::Datagram
                });
            }
            (13, _) => {
                let _ = device.deregister(client, self.hostile.keys.local);
                let _ = device.reclaim(client, self.hostile.keys.local, choice >> 5 & 1 != 0);
            }
            (14, _) => {
                let access = Access::from_bits(choice >> 5).unwrap_or_default();
                if let Some(keys) = register(&self.machine, client, &self.hostile.memory, BASE, access) {
                    self.hostile.keys = keys;
                }
            }
            _ => self.honest.works(&mut self.machine),
        }
    }

    /// Values of which one usually fits.
    fn value(&self, input: &mut Input<'_>) -> u64 {
        match input.byte() {
            byte @ 0..=0x9f => u64::from(byte),
            0xa0..=0xaf => BASE + u64::from(input.u16()),
            0xb0..=0xb7 => u64::from(self.hostile.keys.local),
            0xb8..=0xbb => u64::from(self.honest.keys.local),
            0xbc..=0xcf => self.hostile.keys.remote,
            0xd0..=0xdf => u64::MAX - u64::from(input.byte()),
            0xe0..=0xe7 => 1 << (input.byte() & 63),
            _ => input.u64(),
        }
    }

    /// A submission that is good but for what the input changes about it.
    fn submission(&mut self, at: usize, input: &mut Input<'_>) {
        let shape = input.byte();
        let (remote_key, local_key) = (self.hostile.keys.remote, self.hostile.keys.local);
        let sqe = Sqe {
            op: 1 + (shape & 7) % 5,
            ah: u32::from(shape >> 3 & 1),
            user_data: 7,
            local_addr: BASE + u64::from(input.byte()),
            local_key,
            len: if shape & 7 > 2 {
                8
            } else {
                u32::from(input.byte()) << (shape >> 5)
            },
            args: if (shape & 7).is_multiple_of(5) {
                [0; 4]
            } else {
                [BASE, remote_key, 0, 0]
            },
            ..Sqe::default()
        };
        let mut words = sqe.to_words();
        if shape & 0x10 != 0 {
            let word = input.below(SQE_WORDS);
            words[word] = self.value(input);
        }
        push(&self.hostile.queues[at].sq, SQ, &words);
    }

    fn receive(&mut self, at: usize, input: &mut Input<'_>) {
        let shape = input.byte();
        let mut words = [
            8,
            BASE + u64::from(shape) * 16,
            u64::from(self.hostile.keys.local) | 256 << 32,
            0,
        ];
        if shape & 0x40 != 0 {
            let word = input.below(RQE_WORDS);
            words[word] = self.value(input);
        }
        push(&self.hostile.queues[at].rq, RQ, &words);
    }

    /// Any word of any queue, the device's own ones included.
    fn scribble(&mut self, at: usize, input: &mut Input<'_>) {
        let queues = &self.hostile.queues[at];
        let which = input.byte();
        let words = [&queues.sq, &queues.rq, &queues.cq][usize::from(which) % 3];
        let index = match which >> 2 & 3 {
            0 => PRODUCER_WORD,
            1 => CONSUMER_WORD,
            _ => usize::from(input.u16()) % words.len(),
        };
        let value = self.value(input);
        words[index].store(value, Ordering::Relaxed);
    }

    /// Frees the whole completion queue.
    fn consume(&mut self, at: usize) {
        let cq = &self.hostile.queues[at].cq;
        cq[CONSUMER_WORD].store(cq[PRODUCER_WORD].load(Ordering::Acquire), Ordering::Release);
    }

    fn finish(mut self) {
        self.machine.settle();
        self.honest.works(&mut self.machine);
        let device = &self.machine.device;
        device
            .remove_client(self.hostile.client, self.machine.now)
            .expect("the client is there");
        self.machine.settle();
        self.hostile.queues.clear();
        for words in &self.lent {
            assert_eq!(
                Arc::strong_count(words),
                1,
                "the device keeps a queue of a client that is gone"
            );
        }
        assert_eq!(
            Arc::strong_count(&self.hostile.memory),
            1,
            "the device keeps memory of a client that is gone"
        );
        self.honest.works(&mut self.machine);
        self.machine.check_link();
        self.honest.is_untouched();
    }
}

/// Puts an entry where the next one belongs, as far as the queue's own words say where that is.
pub(crate) fn push(queue: &[AtomicU64], depth: u32, words: &[u64]) {
    let producer = queue[PRODUCER_WORD].load(Ordering::Relaxed);
    let slot = (producer % u64::from(depth)) as usize;
    for (word, value) in queue[ENTRIES_WORD + slot * words.len()..].iter().zip(words) {
        word.store(*value, Ordering::Relaxed);
    }
    queue[PRODUCER_WORD].store(producer.wrapping_add(1), Ordering::Release);
}

/// Good work, then each kind of lie.
pub fn seeds() -> Vec<Vec<u8>> {
    let receives = [4u8, 0, 4, 1, 4, 2];
    let good: Vec<u8> = (0..5).flat_map(|op| [0, op, 0, 100]).collect();
    let turns = [7u8, 8, 8, 8, 8, 10, 15];
    let lie = |which: u8, value: &[u8]| [&[6, which][..], value].concat();
    let with = |events: &[&[u8]]| events.concat();
    assert_eq!(CQE_WORDS, RQE_WORDS, "scribbling treats all queues alike");
    vec![
        with(&[&receives, &good, &turns]),
        with(&[&good, &[7, 8], &receives, &turns]),
        with(&[&receives, &good, &lie(0, &[200]), &turns]),
        with(&[&receives, &good, &lie(4, &[0xd0, 1]), &turns]),
        with(&[&receives, &good, &lie(1, &[200]), &turns]),
        with(&[&receives, &good, &turns, &lie(2 | 4, &[0xd0, 1]), &good, &turns]),
        with(&[&receives, &[0, 0x10, 0, 8, 3, 0xb8], &turns]),
        with(&[
            &receives,
            &[0, 0x12, 0, 8, 5, 0xff, 1, 2, 3, 4, 5, 6, 7, 8],
            &turns,
        ]),
        with(&[&receives, &good, &[7, 8, 13, 8, 14], &turns]),
        with(&[&receives, &good, &[12, 12 | 1 << 5], &receives, &good, &turns]),
        with(&[
            &[12 | 3 << 5],
            &receives,
            &good,
            &turns,
            &[11 | 2 << 5, 0],
            &good,
            &turns,
        ]),
        with(&[&[0, 8, 0, 100], &turns, &receives, &[0, 0, 0, 100], &turns]),
    ]
}
