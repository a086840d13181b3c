//! Shared receive queues whose receives have several buffers.

use std::sync::atomic::Ordering;

use usb4_device::{Access, DeviceError, Keys, QpKind, Quota, SrqConfig, list_words};
use usb4_engine::Slab;
use usb4_ring_abi::{CqeStatus, Piece, QueueGeometry, Rqe, Slots};

use crate::home::Memory;
use crate::slots::pieces_of;
use crate::srq::{BASE, DEPTH, Shared, send_now};
use crate::srq_wrong::Three;
use crate::world::{QKEY, User, World, pattern, send, words, words_with};

const SLOTS: Slots = Slots::of(64).unwrap();

impl Shared {
    /// Posts a receive whose buffer is a list.
    fn post_list(&mut self, world: &World, user_data: u64, pieces: &[Piece]) {
        let rqe = Rqe {
            user_data,
            len: pieces.iter().map(|piece| piece.len).sum(),
            reserved: pieces.len() as u64,
            ..Rqe::default()
        };
        let words: Vec<u64> = pieces.iter().flat_map(|piece| piece.to_words()).collect();
        self.rq.push_with(&rqe, self.slots, &words).unwrap();
        self.show(world);
    }

    /// Writes nonsense to all slots, as a client may at any time.
    fn spoil_slots(&self) {
        let first = QueueGeometry::of::<Rqe>(DEPTH).unwrap().words();
        for word in &self.words[first..] {
            word.store(0x0bad_0bad_0bad_0bad, Ordering::Relaxed);
        }
    }

    /// What is in pieces of its memory.
    fn bytes_in(&self, pieces: &[Piece]) -> Vec<u8> {
        let all = self.memory.bytes();
        let part = |piece: &Piece| {
            let from = (piece.addr - BASE) as usize;
            all[from..from + piece.len as usize].to_vec()
        };
        pieces.iter().flat_map(part).collect()
    }
}

/// Pieces of these lengths that do not lie next to each other.
fn apart(keys: Keys, at: u64, lens: &[u32]) -> Vec<Piece> {
    let mut pieces = pieces_of(keys, at, lens);
    for (gap, piece) in pieces.iter_mut().enumerate() {
        piece.addr += gap as u64 * 64;
    }
    pieces
}

/// Memory of these bytes for the sending end.
fn filled(world: &World, a: &User, bytes: &[u8]) -> Keys {
    world.register_pd(a, &Memory::of(bytes), Access::LOCAL)
}

#[test]
fn a_shared_receive_may_have_a_list_whoever_draws_it() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut world = World::new();
        let mut shared = Shared::with(&world, SLOTS);
        let (mut a, mut b, _) = shared.connection(&world, kind);
        let (mut c, mut d, _) = shared.connection(&world, kind);
        let bytes = pattern(9_000);
        let (ka, kc) = (filled(&world, &a, &bytes), filled(&world, &c, &bytes));
        let first = apart(shared.keys, BASE, &[1, 4_095, 4_904]);
        let second = apart(shared.keys, BASE + 20_000, &[3_000, 0, 5_999, 1]);
        shared.post_list(&world, 50, &first);
        shared.post_list(&world, 51, &second);
        // One of both kinds.
        shared.post(&world, 52, 8);
        send_now(&world, &mut a, 1, ka, 9_000);
        world.settle();
        send_now(&world, &mut c, 1, kc, 9_000);
        world.settle();
        send_now(&world, &mut a, 2, ka, 8);
        world.settle();
        let of = |user: &mut User| -> Vec<_> {
            let all = user.poll();
            all.iter()
                .map(|cqe| (cqe.user_data, cqe.status().unwrap(), cqe.len))
                .collect()
        };
        assert_eq!(of(&mut b), [(50, CqeStatus::Ok, 9_000), (52, CqeStatus::Ok, 8)]);
        assert_eq!(of(&mut d), [(51, CqeStatus::Ok, 9_000)]);
        // The last one was written over the beginning of the first.
        assert!(shared.bytes_in(&first)[8..] == bytes[8..]);
        assert!(shared.bytes_in(&second) == bytes);
    }
}

#[test]
fn a_datagrams_header_may_lie_across_pieces_of_a_shared_receive() {
    let mut world = World::new();
    let mut shared = Shared::with(&world, SLOTS);
    let (mut a, mut b) = (world.qp(0, QpKind::Ud), shared.qp(&world, QpKind::Ud));
    world.connect_qp(&a, &b);
    world.connect_qp(&b, &a);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    let bytes = pattern(200);
    let keys = filled(&world, &a, &bytes);
    let list = apart(shared.keys, BASE, &[39, 2, 199]);
    shared.post_list(&world, 50, &list);
    a.post(usb4_ring_abi::Sqe {
        args: [QKEY.into(), 0, 0, 0],
        ..send(1, keys, BASE, 200)
    });
    world.submit(&mut a);
    world.settle();
    let cqe = b.poll()[0];
    assert_eq!((cqe.user_data, cqe.len, cqe.src), (50, 240, a.addr.ep));
    let seen = shared.bytes_in(&list);
    assert_eq!(seen[8..24], a.addr.node.gid());
    assert!(seen[40..] == bytes);
}

#[test]
fn a_shared_list_is_what_it_was_when_it_was_taken_and_its_region_is_held_until_then() {
    let mut world = World::new();
    let mut shared = Shared::with(&world, SLOTS);
    let (mut a, mut b, _) = shared.connection(&world, QpKind::Rc);
    let bytes = pattern(60_000);
    let ka = filled(&world, &a, &bytes);
    let list = apart(shared.keys, BASE, &[20_001, 20_001, 19_998]);
    shared.post_list(&world, 50, &list);
    shared.post_list(&world, 51, &list);
    send_now(&world, &mut a, 1, ka, 60_000);
    let taken = || shared.words[usb4_ring_abi::CONSUMER_WORD].load(Ordering::Relaxed);
    while taken() == 0 {
        world.turn();
    }
    assert!(b.poll().is_empty(), "the message is not whole");
    shared.spoil_slots();
    world.settle();
    assert_eq!(b.outcomes(), [(50, CqeStatus::Ok)]);
    assert!(shared.bytes_in(&list) == bytes);
    // The second had been spoilt before it was taken.
    send_now(&world, &mut a, 2, ka, 8);
    world.settle();
    assert_eq!(b.outcomes(), [(51, CqeStatus::Protection)]);
    let device = &world.sides[1].device;
    assert_eq!(device.deregister(shared.client, shared.keys.local), Ok(true));
}

#[test]
fn who_draws_lists_may_go_and_so_may_the_queue_in_the_middle_of_a_message() {
    for queue_too in [false, true] {
        let mut world = World::new();
        let mut shared = Shared::with(&world, SLOTS);
        let (mut a, b, _) = shared.connection(&world, QpKind::Rc);
        let (mut c, mut d, _) = shared.connection(&world, QpKind::Rc);
        let bytes = pattern(60_000);
        let (ka, kc) = (filled(&world, &a, &bytes), filled(&world, &c, &bytes));
        let list = apart(shared.keys, BASE, &[20_001, 20_001, 19_998]);
        (0..DEPTH).for_each(|name| shared.post_list(&world, name.into(), &list));
        send_now(&world, &mut a, 1, ka, 60_000);
        while shared.words[usb4_ring_abi::CONSUMER_WORD].load(Ordering::Relaxed) == 0 {
            world.turn();
        }
        let destroy = |world: &World, ep| {
            let device = &world.sides[1].device;
            device.destroy_endpoint(shared.client, ep, world.now).unwrap();
        };
        destroy(&world, b.ep);
        if queue_too {
            destroy(&world, d.ep);
            destroy(&world, shared.srq);
        }
        world.settle();
        assert_eq!(a.outcomes(), [(1, CqeStatus::RetryExceeded)]);
        if !queue_too {
            // The place of the list that was under way is free again.
            shared.post_list(&world, 90, &list);
            for name in 0..DEPTH.into() {
                send_now(&world, &mut c, name, kc, 60_000);
                world.settle();
                c.poll();
            }
            let done = d.outcomes();
            assert_eq!(done.len(), DEPTH as usize);
            assert!(done.iter().all(|(_, status)| *status == CqeStatus::Ok));
        }
        let device = &world.sides[1].device;
        assert_eq!(device.deregister(shared.client, shared.keys.local), Ok(true));
    }
}

#[test]
fn who_finds_no_place_for_a_list_waits_for_one_quietly() {
    let mut three = Three::new();
    let mut shared = Shared::of(&three.world, 1, SLOTS);
    let (mut c, mut d, kc) = three.connection(&shared);
    let (mut a, mut b, _) = shared.connection(&three.world, QpKind::Rc);
    let bytes = pattern(60_000);
    let ka = filled(&three.world, &a, &bytes);
    let list = apart(shared.keys, BASE, &[20_001, 20_001, 19_998]);
    shared.post_list(&three.world, 50, &list);
    three.send(&mut c, send(1, kc, BASE, 60_000));
    while shared.words[usb4_ring_abi::CONSUMER_WORD].load(Ordering::Relaxed) == 0 {
        three.turn_far();
    }
    // The rest of that message takes its time; it has the only place.
    shared.post_list(&three.world, 51, &list);
    send_now(&three.world, &mut a, 2, ka, 60_000);
    three.world.settle();
    assert!(b.poll().is_empty());
    let side = &three.world.sides[1];
    let told = side.device.counters(side.link).unwrap().rnr_sent;
    assert!(told <= 2, "told {told} times to come back");
    // Now it has come.
    while d.poll().is_empty() {
        three.world.now += 1_000;
        three.turn_far();
    }
    three.world.settle();
    assert_eq!(b.outcomes(), [(51, CqeStatus::Ok)]);
    assert!(shared.bytes_in(&list) == bytes);
}

#[test]
fn slots_and_lists_without_room_for_them_are_refused() {
    let world = World::new();
    let device = &world.sides[1].device;
    let client = device.add_client(Quota::UNLIMITED, None).unwrap();
    let config = |rq, lists| SrqConfig {
        pd: 1,
        depth: DEPTH,
        rq,
        slots: SLOTS,
        lists: Slab::boxed(lists),
    };
    let enough = list_words(DEPTH, SLOTS);
    let without_slots = config(words::<Rqe>(DEPTH), enough);
    let without_lists = config(words_with::<Rqe>(DEPTH, SLOTS), enough - 1);
    for wrong in [without_slots, without_lists] {
        assert_eq!(device.create_srq(client, wrong), Err(DeviceError::Storage));
    }
    let right = config(words_with::<Rqe>(DEPTH, SLOTS), enough);
    assert!(device.create_srq(client, right).is_ok());
}

#[test]
fn a_list_on_a_queue_without_slots_ends_with_an_error() {
    let mut world = World::new();
    let mut shared = Shared::with(&world, Slots::NONE);
    let (mut a, mut b, ka) = shared.connection(&world, QpKind::Rc);
    let rqe = Rqe {
        user_data: 50,
        len: 8,
        reserved: 2,
        ..Rqe::default()
    };
    shared.rq.push(&rqe).unwrap();
    shared.show(&world);
    send_now(&world, &mut a, 1, ka, 8);
    world.settle();
    assert_eq!(b.outcomes(), [(50, CqeStatus::Protection)]);
}
