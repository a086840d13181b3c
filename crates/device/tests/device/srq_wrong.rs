//! Shared receive queues: receives that are too short, and queues that are corrupt.

use std::sync::atomic::Ordering;

use usb4_device::{Access, Device, Keys, QpAttr, QpEvent, QpKind, QpState, Quota, RegionConfig};
use usb4_ring_abi::{CqeStatus, PRODUCER_WORD, Slots, Sqe};

use crate::home::Memory;
use crate::srq::{BASE, Shared, events, send_now};
use crate::world::{QKEY, Side, User, World, deliver, send};

/// A datagram queue pair on the first host that sends to one that draws from the queue.
fn datagrams(world: &World, shared: &Shared) -> (User, User, Keys) {
    let (mut a, b) = (world.qp(0, QpKind::Ud), shared.qp(world, QpKind::Ud));
    let memory = Memory::zeroed(64);
    let ka = world.register_pd(&a, &memory, Access::LOCAL);
    world.connect_qp(&a, &b);
    world.connect_qp(&b, &a);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    (a, b, ka)
}

fn datagram(name: u64, keys: Keys, len: u32) -> Sqe {
    Sqe {
        args: [QKEY.into(), 0, 0, 0],
        ..send(name, keys, BASE, len)
    }
}

#[test]
fn datagrams_draw_too_and_those_without_a_receive_are_dropped() {
    let mut world = World::new();
    let shared = Shared::with(&world, Slots::NONE);
    let (mut a, mut b, ka) = datagrams(&world, &shared);
    a.post(datagram(1, ka, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(1, CqeStatus::Ok)]);
    assert!(b.poll().is_empty());
}

#[test]
fn a_shared_receive_that_is_too_short_ends_and_the_next_message_gets_another() {
    for kind in [QpKind::Ud, QpKind::Uc] {
        let mut world = World::new();
        let mut shared = Shared::with(&world, Slots::NONE);
        let ((mut a, mut b, ka), header) = match kind {
            QpKind::Ud => (datagrams(&world, &shared), 40),
            _ => (shared.connection(&world, kind), 0),
        };
        shared.post(&world, 50, header + 7);
        shared.post(&world, 51, header + 8);
        for name in [1, 2] {
            let sqe = match kind {
                QpKind::Ud => datagram(name, ka, 8),
                _ => send(name, ka, BASE, 8),
            };
            a.post(sqe);
            world.submit(&mut a);
            world.settle();
        }
        assert_eq!(a.outcomes(), [(1, CqeStatus::Ok), (2, CqeStatus::Ok)]);
        assert_eq!(b.outcomes(), [(50, CqeStatus::Length), (51, CqeStatus::Ok)]);
        assert_eq!(world.qp_state(&b), QpState::Rts);
        assert!(events(&world, b.ep).is_empty());
    }
}

/// Three hosts: the second one has a link to each of the others.
pub(crate) struct Three {
    pub(crate) world: World,
    /// The third host, and the second's end of its link to it.
    pub(crate) far: [Side; 2],
}

impl Three {
    pub(crate) fn new() -> Self {
        let world = World::new();
        let far = [Side::new(3, 2, |_| ()), world.sides[1].beside(3)];
        Self { world, far }
    }

    /// A reliable connection from the third host to one that draws from the queue.
    pub(crate) fn connection(&self, shared: &Shared) -> (User, User, Keys) {
        let far = &self.far[0].device;
        let client = far.add_client(Quota::UNLIMITED, None).unwrap();
        let c = User::of_qp(far, 0, client, QpKind::Rc, 1);
        let d = shared.qp(&self.world, QpKind::Rc);
        let move_on = |device: &Device<_>, qp: &User, peer: &User| {
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                let attr = QpAttr {
                    state: Some(state),
                    peer: Some((peer.addr.node, peer.addr.ep)),
                    ..QpAttr::default()
                };
                device.modify_qp(qp.client, qp.ep, &attr, 0).unwrap();
            }
        };
        move_on(far, &c, &d);
        move_on(&self.world.sides[1].device, &d, &c);
        let region = RegionConfig {
            addr: BASE,
            len: 1 << 16,
            access: Access::LOCAL,
            peer: None,
            mem: Memory::zeroed(1 << 16),
        };
        let keys = far.register_in_pd(client, 1, region).unwrap();
        (c, d, keys)
    }

    /// Sends from the third host.
    pub(crate) fn send(&self, from: &mut User, sqe: Sqe) {
        from.post(sqe);
        from.sq.publish();
        self.far[0].device.submit(from.ep, self.world.now);
    }

    /// A turn of both ends of the third host's link.
    pub(crate) fn turn_far(&mut self) {
        for index in 0..2 {
            self.far[index].service(self.world.now);
            let (sender, receiver) = (&self.far[index], &self.far[1 - index]);
            deliver(sender, receiver, self.world.now, &mut |_| ());
        }
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            self.world.settle();
            self.turn_far();
        }
    }
}

#[test]
fn a_corrupt_queue_stops_those_who_wait_on_other_links_too() {
    let mut three = Three::new();
    let shared = Shared::with(&three.world, Slots::NONE);
    let (mut a, b, ka) = shared.connection(&three.world, QpKind::Rc);
    let (mut c, d, kc) = three.connection(&shared);
    // One that nobody sends to.
    let e = shared.qp(&three.world, QpKind::Uc);
    three.world.connect_qp(&e, &a);
    // The third host's message waits.
    three.send(&mut c, send(1, kc, BASE, 8));
    three.settle();
    assert!(c.poll().is_empty());
    // The first host's finds the queue corrupt.
    shared.words[PRODUCER_WORD].store(u64::MAX / 2, Ordering::Relaxed);
    send_now(&three.world, &mut a, 1, ka, 8);
    three.settle();
    assert_eq!(shared.events(&three.world), [QpEvent::Corrupt]);
    assert_eq!(a.outcomes(), [(1, CqeStatus::RetryExceeded)]);
    assert_eq!(c.outcomes(), [(1, CqeStatus::RetryExceeded)]);
    for qp in [&b, &d, &e] {
        let device = &three.world.sides[1].device;
        let state = device.query_qp(qp.client, qp.ep).unwrap().state;
        assert_eq!(state, QpState::Err);
        let told = events(&three.world, qp.ep);
        assert!(
            told.contains(&QpEvent::Fatal) && told.contains(&QpEvent::LastReceive),
            "{told:?}"
        );
    }
}
