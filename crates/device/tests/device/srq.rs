//! Shared receive queues.

use std::sync::atomic::Ordering;

use usb4_device::{
    Access, ClientId, DeviceError, EndpointId, Keys, QpEvent, QpKind, QpState, Quota, SrqConfig, list_words,
};
use usb4_engine::Slab;
use usb4_ring_abi::{CqeStatus, FLAGS_WORD, NEED_WAKEUP, PRODUCER_WORD, Producer, Rqe, Slots};

use crate::home::{Memory, Words};
use crate::world::{User, World, send, words, words_with};

pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const DEPTH: u32 = 16;

/// A client on the second host with a shared receive queue, and memory for it.
pub(crate) struct Shared {
    pub(crate) client: ClientId,
    pub(crate) srq: EndpointId,
    pub(crate) rq: Producer<Words, Rqe>,
    pub(crate) words: Words,
    pub(crate) memory: Memory,
    pub(crate) keys: Keys,
    pub(crate) slots: Slots,
}

impl Shared {
    fn new(world: &World) -> Self {
        Self::with(world, Slots::NONE)
    }

    /// With slots behind its entries.
    pub(crate) fn with(world: &World, slots: Slots) -> Self {
        Self::of(world, DEPTH, slots)
    }

    /// With so many of them.
    pub(crate) fn of(world: &World, depth: u32, slots: Slots) -> Self {
        let device = &world.sides[1].device;
        let client = device.add_client(Quota::UNLIMITED, None).unwrap();
        let words = words_with::<Rqe>(depth, slots);
        let config = SrqConfig {
            pd: 1,
            depth,
            rq: words.clone(),
            slots,
            lists: Slab::boxed(list_words(depth, slots)),
        };
        let srq = device.create_srq(client, config).unwrap();
        let memory = Memory::zeroed(1 << 16);
        let region = usb4_device::RegionConfig {
            addr: BASE,
            len: 1 << 16,
            access: Access::LOCAL,
            peer: None,
            mem: memory.clone(),
        };
        let keys = device.register_in_pd(client, 1, region).unwrap();
        let rq = Producer::new(words.clone(), depth).unwrap();
        Self {
            client,
            srq,
            rq,
            words,
            memory,
            keys,
            slots,
        }
    }

    /// A queue pair that draws from it.
    pub(crate) fn qp(&self, world: &World, kind: QpKind) -> User {
        let device = &world.sides[1].device;
        User::of_qp_with(device, 1, self.client, kind, 1, Some(self.srq))
    }

    /// A connection to it from the first host.
    pub(crate) fn connection(&self, world: &World, kind: QpKind) -> (User, User, Keys) {
        let (a, b) = (world.qp(0, kind), self.qp(world, kind));
        world.connect_qp(&a, &b);
        world.connect_qp(&b, &a);
        let keys = world.register_pd(&a, &Memory::zeroed(1 << 16), Access::LOCAL);
        (a, b, keys)
    }

    pub(crate) fn post(&mut self, world: &World, user_data: u64, len: u32) {
        let rqe = Rqe {
            user_data,
            addr: BASE,
            local_key: self.keys.local,
            len,
            reserved: 0,
        };
        self.rq.push(&rqe).unwrap();
        self.show(world);
    }

    /// Publishes what was pushed.
    pub(crate) fn show(&mut self, world: &World) {
        self.rq.publish();
        // As a client does: only if it is asked to.
        if self.rq.needs_wakeup() {
            world.sides[1].device.submit(self.srq, world.now);
        }
    }

    pub(crate) fn events(&self, world: &World) -> Vec<QpEvent> {
        events(world, self.srq)
    }
}

/// What has happened to one of the second host's.
pub(crate) fn events(world: &World, id: EndpointId) -> Vec<QpEvent> {
    let mut all = world.sides[1].device.home().events.lock().unwrap();
    let (of, others) = all.drain(..).partition(|(whose, _)| *whose == id);
    *all = others;
    let of: Vec<_> = of;
    of.into_iter().map(|(_, event)| event).collect()
}

pub(crate) fn send_now(world: &World, from: &mut User, name: u64, keys: Keys, len: u32) {
    from.post(send(name, keys, BASE, len));
    world.submit(from);
}

#[test]
fn queue_pairs_draw_from_one_queue_and_complete_where_they_belong() {
    let mut world = World::new();
    let mut shared = Shared::new(&world);
    let (mut a, mut b, ka) = shared.connection(&world, QpKind::Rc);
    let (mut c, mut d, kc) = shared.connection(&world, QpKind::Rc);
    for name in 0..3 {
        shared.post(&world, 50 + name, 8);
    }
    for first in [true, false, true] {
        let (from, keys) = if first { (&mut a, ka) } else { (&mut c, kc) };
        send_now(&world, from, 1, keys, 8);
        world.settle();
    }
    let of = |user: &mut User| -> Vec<_> {
        let all = user.poll();
        assert!(all.iter().all(|cqe| cqe.ep == user.addr.ep));
        all.iter().map(|cqe| (cqe.user_data, cqe.status())).collect()
    };
    let ok = Some(CqeStatus::Ok);
    assert_eq!(of(&mut b), [(50, ok), (52, ok)]);
    assert_eq!(of(&mut d), [(51, ok)]);
}

#[test]
fn who_waits_for_a_receive_gets_one_in_turn() {
    let mut world = World::new();
    let mut shared = Shared::new(&world);
    let mut all: Vec<_> = (0..3).map(|_| shared.connection(&world, QpKind::Rc)).collect();
    for (from, _, keys) in &mut all {
        for name in 0..6 {
            from.post(send(name, *keys, BASE, 8));
        }
        world.submit(from);
    }
    world.settle();
    assert!(all.iter_mut().all(|(_, to, _)| to.poll().is_empty()));
    // One at a time, each of which all of them want.
    let mut got = [0; 3];
    for round in 0..18 {
        shared.post(&world, round, 8);
        world.settle();
        for (count, (_, to, _)) in got.iter_mut().zip(&mut all) {
            *count += to.poll().len();
        }
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        assert!(most - least <= 2, "{got:?} after {} receives", round + 1);
    }
    assert_eq!(got, [6; 3]);
    assert!(all.iter_mut().all(|(from, ..)| from.outcomes().len() == 6));
}

#[test]
fn a_receive_for_many_who_wait_is_one_receive() {
    let mut world = World::new();
    let mut shared = Shared::new(&world);
    let (mut a, mut b, ka) = shared.connection(&world, QpKind::Rc);
    let (mut c, mut d, kc) = shared.connection(&world, QpKind::Rc);
    send_now(&world, &mut a, 1, ka, 8);
    send_now(&world, &mut c, 1, kc, 8);
    world.settle();
    let flags = || shared.words[FLAGS_WORD].load(Ordering::Relaxed);
    assert_eq!(flags(), NEED_WAKEUP, "its client is asked to say when it posts");
    shared.post(&world, 50, 8);
    world.settle();
    assert_eq!(b.poll().len() + d.poll().len(), 1);
    assert_eq!(a.poll().len() + c.poll().len(), 1);
    // Who is left is not forgotten.
    shared.post(&world, 51, 8);
    world.settle();
    assert_eq!(b.poll().len() + d.poll().len(), 1);
    assert_eq!(a.poll().len() + c.poll().len(), 1);
}

#[test]
fn a_limit_is_told_once() {
    let mut world = World::new();
    let mut shared = Shared::new(&world);
    let (mut a, _b, ka) = shared.connection(&world, QpKind::Rc);
    let device = world.sides[1].device.clone();
    (0..4).for_each(|name| shared.post(&world, name, 8));
    device.limit_srq(shared.client, shared.srq, 3).unwrap();
    let mut send_one = |world: &mut World| {
        send_now(world, &mut a, 1, ka, 8);
        world.settle();
    };
    send_one(&mut world);
    assert!(shared.events(&world).is_empty(), "three are left");
    // What is posted counts, even if the device has not looked at it yet.
    shared.post(&world, 4, 8);
    send_one(&mut world);
    assert!(shared.events(&world).is_empty(), "three are left");
    assert_eq!(device.srq_limit(shared.client, shared.srq), Ok(3));
    send_one(&mut world);
    assert_eq!(shared.events(&world), [QpEvent::Limit]);
    assert_eq!(device.srq_limit(shared.client, shared.srq), Ok(0));
    send_one(&mut world);
    assert!(shared.events(&world).is_empty());
    // There are fewer already.
    device.limit_srq(shared.client, shared.srq, 2).unwrap();
    assert_eq!(shared.events(&world), [QpEvent::Limit]);
    let too_many = device.limit_srq(shared.client, shared.srq, DEPTH + 1);
    assert_eq!(too_many, Err(DeviceError::Attribute));
    let other = device.add_client(Quota::UNLIMITED, None).unwrap();
    let others = device.limit_srq(other, shared.srq, 1);
    assert_eq!(others, Err(DeviceError::NoEndpoint));
}

#[test]
fn a_queue_pair_in_error_tells_when_it_has_taken_its_last_receive() {
    let mut world = World::new();
    let mut shared = Shared::new(&world);
    let (_a, b, _) = shared.connection(&world, QpKind::Rc);
    world.to(&b, QpState::Err);
    assert_eq!(events(&world, b.ep), [QpEvent::LastReceive], "it has none");
    world.to(&b, QpState::Err);
    assert!(events(&world, b.ep).is_empty());
    // Again in its next life.
    world.to(&b, QpState::Reset);
    world.to(&b, QpState::Init);
    world.to(&b, QpState::Err);
    assert_eq!(events(&world, b.ep), [QpEvent::LastReceive]);

    // In the middle of a message: when the receive has completed, not before.
    let (mut a, mut b, ka) = shared.connection(&world, QpKind::Rc);
    shared.post(&world, 50, 1 << 16);
    shared.post(&world, 51, 1 << 16);
    let sent = shared.words[usb4_ring_abi::CONSUMER_WORD].load(Ordering::Relaxed);
    send_now(&world, &mut a, 1, ka, 1 << 16);
    while shared.words[usb4_ring_abi::CONSUMER_WORD].load(Ordering::Relaxed) == sent {
        world.turn();
    }
    assert!(b.poll().is_empty(), "the message is not whole");
    world.to(&b, QpState::Err);
    world.settle();
    assert_eq!(b.outcomes(), [(50, CqeStatus::Flushed)]);
    assert_eq!(events(&world, b.ep), [QpEvent::LastReceive]);
    // What it has not taken is for others.
    let (mut c, mut d, kc) = shared.connection(&world, QpKind::Rc);
    send_now(&world, &mut c, 1, kc, 8);
    world.settle();
    assert_eq!(d.outcomes(), [(51, CqeStatus::Ok)]);
}

#[test]
fn one_that_queue_pairs_draw_from_is_not_destroyed_and_who_waits_may_go() {
    let mut world = World::new();
    let mut shared = Shared::new(&world);
    let (mut a, b, ka) = shared.connection(&world, QpKind::Rc);
    let (mut c, mut d, kc) = shared.connection(&world, QpKind::Rc);
    let device = world.sides[1].device.clone();
    send_now(&world, &mut a, 1, ka, 8);
    send_now(&world, &mut c, 1, kc, 8);
    world.settle();
    let destroy = |ep, now| device.destroy_endpoint(shared.client, ep, now);
    assert_eq!(destroy(shared.srq, world.now), Err(DeviceError::Busy));
    // The one that waits first goes; the other one gets the receive.
    destroy(b.ep, world.now).unwrap();
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::RetryExceeded)]);
    shared.post(&world, 50, 8);
    world.settle();
    assert_eq!(d.outcomes(), [(50, CqeStatus::Ok)]);
    assert_eq!(c.outcomes(), [(1, CqeStatus::Ok)]);
    let device = &world.sides[1].device;
    device.destroy_endpoint(shared.client, d.ep, world.now).unwrap();
    device
        .destroy_endpoint(shared.client, shared.srq, world.now)
        .unwrap();
    let gone = device.srq_limit(shared.client, shared.srq);
    assert_eq!(gone, Err(DeviceError::NoEndpoint));
}

#[test]
fn a_client_that_goes_while_peers_wait_takes_all_of_it_along() {
    let mut world = World::new();
    let shared = Shared::new(&world);
    let (mut a, _b, ka) = shared.connection(&world, QpKind::Rc);
    send_now(&world, &mut a, 1, ka, 8);
    world.settle();
    let device = &world.sides[1].device;
    device.remove_client(shared.client, world.now).unwrap();
    assert_eq!(
        std::sync::Arc::strong_count(&shared.words),
        2,
        "ours, and its producer's"
    );
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::RetryExceeded)]);
}

#[test]
fn a_corrupt_queue_stops_who_draws_from_it_and_both_are_told() {
    let mut world = World::new();
    let shared = Shared::new(&world);
    let (mut a, b, ka) = shared.connection(&world, QpKind::Rc);
    let (mut c, d, kc) = shared.connection(&world, QpKind::Rc);
    // One waits, one comes later.
    send_now(&world, &mut a, 1, ka, 8);
    world.settle();
    shared.words[PRODUCER_WORD].store(u64::MAX / 2, Ordering::Relaxed);
    world.sides[1].device.submit(shared.srq, world.now);
    world.settle();
    assert_eq!(shared.events(&world), [QpEvent::Corrupt]);
    assert_eq!(a.outcomes(), [(1, CqeStatus::RetryExceeded)]);
    send_now(&world, &mut c, 1, kc, 8);
    world.settle();
    assert_eq!(c.outcomes(), [(1, CqeStatus::RetryExceeded)]);
    for qp in [&b, &d] {
        assert_eq!(events(&world, qp.ep), [QpEvent::Fatal, QpEvent::LastReceive]);
        assert_eq!(world.qp_state(qp), QpState::Err);
    }
    assert!(shared.events(&world).is_empty());
}

#[test]
fn a_full_completion_queue_stops_its_queue_pair_only() {
    let mut world = World::new();
    let mut shared = Shared::new(&world);
    let (mut a, mut b, ka) = shared.connection(&world, QpKind::Rc);
    let (mut c, mut d, kc) = shared.connection(&world, QpKind::Rc);
    let room = 64;
    let mut sent = 0;
    while sent < room + 2 {
        for name in 0..6 {
            a.post(send(name, ka, BASE, 8));
            shared.post(&world, sent + name, 8);
        }
        sent += 6;
        world.submit(&mut a);
        world.settle();
        a.poll();
    }
    send_now(&world, &mut c, 1, kc, 8);
    world.settle();
    assert_eq!(c.outcomes(), [(1, CqeStatus::Ok)]);
    assert_eq!(d.poll().len(), 1);
    assert_eq!(b.poll().len(), 64);
    world.submit(&mut b);
    world.settle();
    assert_eq!(b.poll().len(), 1, "one of two was the other's");
    shared.post(&world, 99, 8);
    world.settle();
    assert_eq!(b.outcomes(), [(99, CqeStatus::Ok)]);
}

#[test]
fn a_corrupt_completion_queue_is_told_once() {
    let mut world = World::new();
    let mut shared = Shared::new(&world);
    let (mut a, b, ka) = shared.connection(&world, QpKind::Rc);
    b.cq_words[usb4_ring_abi::CONSUMER_WORD].store(u64::MAX / 2, Ordering::Relaxed);
    // It is looked at when no more room is known of.
    for _ in 0..10 {
        for name in 0..8 {
            shared.post(&world, name, 8);
            a.post(send(1, ka, BASE, 8));
        }
        world.submit(&mut a);
        world.settle();
        a.poll();
        if !world.sides[1].device.home().events.lock().unwrap().is_empty() {
            break;
        }
    }
    let home = world.sides[1].device.home();
    assert_eq!(home.bad_cqs.load(Ordering::Relaxed), 1);
    assert_eq!(events(&world, b.ep), [QpEvent::Fatal, QpEvent::LastReceive]);
}

#[test]
fn what_is_no_shared_receive_queue_of_the_client_is_refused() {
    let world = World::new();
    let shared = Shared::new(&world);
    let b = shared.qp(&world, QpKind::Rc);
    let device = &world.sides[1].device;
    assert_eq!(device.limit_srq(shared.client, b.ep, 1), Err(DeviceError::State));
    let query = device.query_qp(shared.client, shared.srq);
    assert_eq!(query, Err(DeviceError::State));
    let stranger = device.add_client(Quota::UNLIMITED, None).unwrap();
    let refused = device.destroy_endpoint(stranger, shared.srq, 0);
    assert_eq!(refused, Err(DeviceError::NoEndpoint));
    let none = SrqConfig {
        pd: 0,
        depth: DEPTH,
        rq: words::<Rqe>(DEPTH),
        slots: Slots::NONE,
        lists: Slab::empty(),
    };
    assert_eq!(device.create_srq(shared.client, none), Err(DeviceError::Range));
}
