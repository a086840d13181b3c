//! What endpoints do when nothing goes wrong.

use std::sync::atomic::Ordering;

use crate::home::{HELD_AT_WAKE, Memory};
use crate::world::{Shape, Side, User, World, add_link, deliver, pattern, rma, send};
use usb4_device::{Access, EndpointKind, Keys, Quota, RegionConfig};
use usb4_ring_abi::{Cqe, CqeStatus, LOCAL_PROCESS, Op, Sqe, cqe_flags, sqe_flags};

const BASE: u64 = 0x10_0000;

#[test]
fn messages_of_every_size_arrive_with_source_and_immediate() {
    for len in [0_usize, 1, 64, 4000, 4096, 100_000] {
        let mut world = World::new();
        let (mut a, mut b) = world.pair();
        let (from, to) = (Memory::of(&pattern(len)), Memory::zeroed(len + 24));
        let (from_keys, to_keys) = (
            world.register(&a, &from, Access::LOCAL),
            world.register(&b, &to, Access::LOCAL),
        );
        b.receive(9, to_keys, BASE, len as u32 + 24);
        world.submit(&mut b);
        let mut sqe = Sqe {
            flags: sqe_flags::IMM,
            ..send(5, from_keys, BASE, len as u32)
        };
        sqe.set_prefix(b"tag and things").unwrap();
        sqe.args[3] = 0x1234_5678_9abc_def0;
        a.post(sqe);
        world.submit(&mut a);
        world.settle();

        let [sent] = a.poll().try_into().unwrap();
        assert_eq!(
            (sent.user_data, sent.op, sent.status()),
            (5, Op::Send.code(), Some(CqeStatus::Ok))
        );
        let [got] = b.poll().try_into().unwrap();
        let total = len as u32 + 14;
        assert_eq!(got.user_data, 9);
        assert_eq!((got.status(), got.len), (Some(CqeStatus::Ok), total), "{len}");
        assert_eq!(got.flags, cqe_flags::RECV | cqe_flags::IMM);
        assert_eq!(got.value, 0x1234_5678_9abc_def0);
        assert_eq!(world.device(&b).source(b.client, got.src), Some(a.addr));
        let another = world.sides[1].device.add_client(Quota::UNLIMITED, None).unwrap();
        assert_eq!(world.device(&b).source(another, got.src), None);
        world.sides[1].device.remove_client(another, 0).unwrap();
        let bytes = to.bytes();
        assert_eq!(&bytes[..14], b"tag and things");
        assert_eq!(bytes[14..14 + len], pattern(len));
    }
}

#[test]
fn what_a_turn_in_a_hurry_leaves_is_progress_of_the_next() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let memory = [Memory::of(&pattern(64)), Memory::of(&pattern(64))];
    let keys = [
        world.register(&a, &memory[0], Access::LOCAL),
        world.register(&b, &memory[1], Access::LOCAL),
    ];
    for round in 0..2 {
        a.receive(1, keys[0], BASE, 64);
        b.receive(2, keys[1], BASE, 64);
        world.submit(&mut a);
        world.submit(&mut b);
        a.post(send(3, keys[0], BASE, 64));
        world.submit(&mut a);
        b.post(send(4, keys[1], BASE, 64));
        if round == 0 {
            // Flows are opened.
            world.submit(&mut b);
            world.settle();
            a.poll();
            b.poll();
            continue;
        }
        world.sides[0].service(world.now);
        let [first, second] = &mut world.sides;
        second.hurry(first, world.now);
        assert_eq!(b.outcomes(), [(2, CqeStatus::Ok)]);
        world.submit(&mut b);
        world.sides[1].service(world.now);
        let [first, second] = &mut world.sides;
        assert!(first.hurry(second, world.now).early);
        assert_eq!(a.outcomes(), [(1, CqeStatus::Ok)]);
        let rest = world.sides[0].service(world.now);
        assert_eq!(a.outcomes(), [(3, CqeStatus::Ok)]);
        assert!(rest.progress, "{rest:?}");
    }
}

#[test]
fn writes_reads_and_atomics_reach_remote_memory() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let (local, remote) = (Memory::of(&pattern(20_000)), Memory::zeroed(20_000));
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let local_keys = world.register(&a, &local, Access::LOCAL);
    let remote_keys = world.register_at(&b, &remote, all, 0x7000_0000);
    let at = |offset: u64| (0x7000_0000 + offset, remote_keys.remote);

    a.post(rma(Op::Write, 1, local_keys, BASE, 10_000, at(0)));
    a.post(rma(Op::Read, 2, local_keys, BASE + 10_000, 10_000, at(0)));
    let mut add = rma(Op::FetchAdd, 3, local_keys, BASE + 8, 8, at(16_000));
    add.args[2] = 41;
    a.post(add);
    a.post(Sqe {
        user_data: 4,
        args: [at(16_000).0, at(16_000).1, 1, 0],
        ..add
    });
    let mut swap = Sqe {
        op: Op::CompareSwap.code(),
        user_data: 5,
        len: 0,
        local_key: 0,
        ..add
    };
    swap.args = [at(16_000).0, at(16_000).1, 7, 42];
    a.post(swap);
    world.submit(&mut a);
    world.settle();

    let done: Vec<Cqe> = a.poll();
    let seen: Vec<_> = done
        .iter()
        .map(|c| (c.user_data, c.status().unwrap(), c.value))
        .collect();
    let ok = CqeStatus::Ok;
    assert_eq!(
        seen,
        [(1, ok, 0), (2, ok, 0), (3, ok, 0), (4, ok, 41), (5, ok, 42)]
    );
    assert_eq!(remote.bytes()[..10_000], pattern(20_000)[..10_000]);
    assert_eq!(remote.bytes()[16_000..16_008], 7_u64.to_le_bytes());
    assert_eq!(local.bytes()[10_000..], pattern(20_000)[..10_000]);
    assert_eq!(local.bytes()[8..16], 41_u64.to_le_bytes());
    assert!(b.poll().is_empty());
}

#[test]
fn a_write_with_immediate_takes_a_receive() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let (local, remote) = (Memory::of(&pattern(100)), Memory::zeroed(100));
    let local_keys = world.register(&a, &local, Access::LOCAL);
    let remote_keys = world.register(&b, &remote, Access::REMOTE_WRITE);
    b.receive(3, remote_keys, BASE, 0);
    world.submit(&mut b);
    let mut write = rma(Op::Write, 1, local_keys, BASE, 100, (BASE, remote_keys.remote));
    write.flags = sqe_flags::IMM;
    write.args[3] = 77;
    a.post(write);
    world.submit(&mut a);
    world.settle();
    let [got] = b.poll().try_into().unwrap();
    assert_eq!(
        (got.user_data, got.op, got.len, got.value),
        (3, Op::Write.code(), 100, 77)
    );
    assert_eq!(got.flags, cqe_flags::RECV | cqe_flags::IMM | cqe_flags::WRITE_IMM);
    assert_eq!(remote.bytes(), pattern(100));
}

#[test]
fn unsignaled_work_completes_only_when_it_fails() {
    let mut world = World::new();
    let (mut a, b) = world.pair();
    let (local, remote) = (Memory::of(&pattern(100)), Memory::zeroed(100));
    let local_keys = world.register(&a, &local, Access::LOCAL);
    let remote_keys = world.register(&b, &remote, Access::REMOTE_WRITE);
    let quiet = |user_data, key| {
        let mut sqe = rma(Op::Write, user_data, local_keys, BASE, 100, (BASE, key));
        sqe.flags = sqe_flags::UNSIGNALED;
        sqe
    };
    a.post(quiet(1, remote_keys.remote));
    a.post(quiet(2, remote_keys.remote ^ 1 << 50));
    a.post(quiet(3, remote_keys.remote));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(2, CqeStatus::Access)]);
    assert_eq!(remote.bytes(), pattern(100));
}

#[test]
fn a_message_without_a_receive_waits_for_one() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let (from, to) = (Memory::of(&pattern(64)), Memory::zeroed(64));
    let from_keys = world.register(&a, &from, Access::LOCAL);
    let to_keys = world.register(&b, &to, Access::LOCAL);
    for n in 0..3 {
        a.post(send(n, from_keys, BASE, 64));
    }
    world.submit(&mut a);
    world.settle();
    assert!(a.poll().is_empty());
    assert!(b.rq.needs_wakeup(), "the client must be asked to call");
    for n in 10..13 {
        b.receive(n, to_keys, BASE, 64);
    }
    world.submit(&mut b);
    assert!(!b.rq.needs_wakeup());
    world.settle();
    let ok = CqeStatus::Ok;
    assert_eq!(a.outcomes(), [(0, ok), (1, ok), (2, ok)]);
    assert_eq!(b.outcomes(), [(10, ok), (11, ok), (12, ok)]);
}

#[test]
fn an_armed_completion_queue_wakes_its_client_once() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let memory = Memory::zeroed(64);
    let (from, to) = (
        world.register(&a, &memory, Access::LOCAL),
        world.register(&b, &memory, Access::LOCAL),
    );
    assert_eq!(b.cq.arm(), Ok(true));
    for n in 0..2 {
        b.receive(n, to, BASE, 64);
        a.post(send(n, from, BASE, 8));
    }
    world.submit(&mut b);
    world.submit(&mut a);
    world.settle();
    assert_eq!(b.wakes.load(Ordering::Relaxed), 1);
    assert_eq!(a.wakes.load(Ordering::Relaxed), 0);
    assert_eq!(b.poll().len(), 2);
}

#[test]
fn more_work_than_the_link_holds_is_taken_as_room_comes() {
    let mut world = World::new();
    let shape = Shape {
        cq: 1024,
        sq: 256,
        rq: 256,
        ..Shape::default()
    };
    let mut a = world.user_of(0, EndpointKind::Datagram, shape);
    let mut b = world.user_of(1, EndpointKind::Datagram, shape);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    let memory = Memory::zeroed(64);
    let (from, to) = (
        world.register(&a, &memory, Access::LOCAL),
        world.register(&b, &memory, Access::LOCAL),
    );
    for n in 0..256 {
        b.receive(n, to, BASE, 64);
        a.post(send(n, from, BASE, 64));
    }
    world.submit(&mut b);
    world.submit(&mut a);
    world.settle();
    let all: Vec<_> = (0..256).map(|n| (n, CqeStatus::Ok)).collect();
    assert_eq!(a.outcomes(), all);
    assert_eq!(b.outcomes(), all);
}

#[test]
fn clients_are_asked_to_call_only_while_the_home_does_not_poll() {
    let world = World::new();
    let (mut a, _) = world.pair();
    assert!(a.sq.needs_wakeup());
    world.device(&a).disarm_all();
    assert!(!a.sq.needs_wakeup());
    assert!(world.device(&a).arm_all());
    assert!(a.sq.needs_wakeup());
    let keys = world.register(&a, &Memory::zeroed(8), Access::LOCAL);
    a.post(send(1, keys, BASE, 8));
    a.sq.publish();
    assert!(!world.device(&a).arm_all(), "there is an entry to take first");
    assert!(world.device(&a).submit_all(world.now));
    assert!(world.device(&a).arm_all());
}

#[test]
fn damaged_payload_is_noticed_and_comes_again() {
    let mut world = World::with(|config| config.payload_crc = true);
    let (mut a, mut b) = world.pair();
    let mut dice = 1_u64;
    world.damage = Box::new(move |frame| {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if dice >> 62 == 0 && frame.len() > 1000 {
            let middle = frame.len() / 2;
            frame[middle] ^= 0x10;
        }
    });
    let (from, to) = (Memory::of(&pattern(100_000)), Memory::zeroed(100_000));
    let (from_keys, to_keys) = (
        world.register(&a, &from, Access::LOCAL),
        world.register(&b, &to, Access::LOCAL),
    );
    b.receive(1, to_keys, BASE, 100_000);
    world.submit(&mut b);
    a.post(send(2, from_keys, BASE, 100_000));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(2, CqeStatus::Ok)]);
    assert_eq!(to.bytes(), pattern(100_000));
    let counters = world.sides[1].device.counters(world.sides[1].link).unwrap();
    assert!(counters.rx_corrupt > 3, "{}", counters.rx_corrupt);
}

#[test]
fn a_host_reaches_its_own_endpoints_and_an_endpoint_itself() {
    let mut side = Side::new(5, 5, |_| ());
    let device = side.device.clone();
    let user = || {
        let client = device.add_client(Shape::default().quota, None).unwrap();
        User::of_client(&device, 0, client, EndpointKind::Datagram, Shape::default())
    };
    let (mut a, mut b) = (user(), user());
    let memory = [Memory::of(&pattern(10_000)), Memory::zeroed(10_000)];
    let register = |user: &User, memory: &Memory| {
        let config = RegionConfig {
            addr: BASE,
            len: 10_000,
            access: Access::REMOTE_READ,
            peer: None,
            mem: memory.clone(),
        };
        device.register(user.client, config).unwrap()
    };
    let (ka, kb) = (register(&a, &memory[0]), register(&b, &memory[1]));
    b.ah = device.create_ah(b.client, b.ep, &a.addr).unwrap();
    a.receive(1, ka, BASE, 64);
    a.receive(2, ka, BASE, 64);
    a.ah = device.create_ah(a.client, a.ep, &a.addr).unwrap();
    a.post(send(3, ka, BASE + 100, 64));
    b.post(rma(Op::Read, 4, kb, BASE, 10_000, (BASE, ka.remote)));
    b.post(send(5, kb, BASE, 64));
    for user in [&mut a, &mut b] {
        user.rq.publish();
        user.sq.publish();
        device.submit(user.ep, 0);
    }
    for turn in 0..2000 {
        side.service(turn * 1000);
        deliver(&side, &side, turn * 1000, &mut |_| ());
    }
    let mut done: Vec<_> = a.outcomes().into_iter().chain(b.outcomes()).collect();
    done.sort_unstable_by_key(|(name, _)| *name);
    let ok = CqeStatus::Ok;
    assert_eq!(done, [(1, ok), (2, ok), (3, ok), (4, ok), (5, ok)]);
    assert_eq!(memory[1].bytes()[64..], pattern(10_000)[64..]);
}

#[test]
fn plain_addresses_work_where_the_device_reaches_the_process_and_nowhere_else() {
    let mut world = World::new();
    let space = Memory::of(&pattern(8192));
    let client = world.sides[0]
        .device
        .add_client(Shape::default().quota, Some(space.clone()))
        .unwrap();
    let mut a = User::of_client(
        &world.sides[0].device,
        0,
        client,
        EndpointKind::Datagram,
        Shape::default(),
    );
    let mut b = world.user(1, EndpointKind::Datagram);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    b.ah = world.device(&b).create_ah(b.client, b.ep, &a.addr).unwrap();
    let plain = Keys {
        local: LOCAL_PROCESS,
        remote: 0,
    };
    let memory = Memory::zeroed(64);
    let keys = world.register(&b, &memory, Access::LOCAL);
    a.post(send(1, plain, 0x100, 64));
    a.receive(2, plain, 0x1000, 64);
    b.receive(3, keys, BASE, 64);
    b.receive(4, plain, BASE, 64);
    b.post(send(5, plain, BASE, 64));
    b.post(send(6, keys, BASE, 64));
    world.submit(&mut b);
    world.submit(&mut a);
    world.settle();
    let ok = CqeStatus::Ok;
    let mut seen = a.outcomes();
    seen.sort_unstable_by_key(|(name, _)| *name);
    assert_eq!(seen, [(1, ok), (2, ok)]);
    let mut seen = b.outcomes();
    seen.sort_unstable_by_key(|(name, _)| *name);
    assert_eq!(seen, [(3, ok), (5, CqeStatus::Invalid), (6, ok)]);
    assert_eq!(memory.bytes(), pattern(8192)[0x100..0x140]);
    a.post(send(7, plain, 0x200, 64));
    world.submit(&mut a);
    world.settle();
    assert_eq!(b.outcomes(), [(4, CqeStatus::Invalid)]);
    let weak = std::sync::Arc::downgrade(&space.0);
    drop(space);
    world.device(&a).remove_client(client, world.now).unwrap();
    assert!(weak.upgrade().is_none());
}

#[test]
fn entries_for_two_links_leave_a_word_that_there_is_another_one_to_serve() {
    let world = World::new();
    let (mut a, b) = world.pair();
    let device = &world.sides[0].device;
    let (_port, loopback) = add_link(device, 1, 1, 0, |_| ());
    let myself = device.create_ah(a.client, a.ep, &a.addr).unwrap();
    let to = a.ah;
    let mut post = |handles: &[u32]| {
        for ah in handles {
            a.ah = *ah;
            a.post(send(0, Keys { local: 0, remote: 0 }, 0, 0));
        }
        a.sq.publish();
        let submitted = device.submit_held(a.ep, 0);
        (
            submitted.any,
            submitted.held.map(|held| held.id()),
            submitted.others,
        )
    };
    let other = world.sides[0].link;
    assert_eq!(post(&[to, to]), (true, Some(other), false));
    assert_eq!(post(&[to, myself]), (true, Some(loopback), true));
    assert_eq!(post(&[]), (false, None, false));
    drop(b);
}

#[test]
fn waking_the_clients_of_many_queues_takes_one_queues_lock_at_a_time() {
    let mut world = World::new();
    let mut pairs = vec![world.pair()];
    for _ in 0..11 {
        let another = |user: &User| {
            let device = world.device(user);
            let kind = EndpointKind::Datagram;
            User::of_client(device, user.side, user.client, kind, Shape::default())
        };
        let (mut a, b) = (another(&pairs[0].0), another(&pairs[0].1));
        a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
        pairs.push((a, b));
    }
    let keys = Keys {
        local: LOCAL_PROCESS,
        remote: 0,
    };
    // The first round opens the flows; in the second all messages share a frame.
    for _ in 0..2 {
        for (a, b) in &mut pairs {
            b.receive(1, keys, 0, 0);
            world.submit(b);
            b.cq.arm().unwrap();
            let ah = a.ah;
            a.post(Sqe {
                ah,
                ..send(5, keys, 0, 0)
            });
        }
        for (a, _) in &mut pairs {
            world.submit(a);
        }
        HELD_AT_WAKE.set(0);
        world.settle();
        for (a, b) in &mut pairs {
            assert_eq!(b.poll().len(), 1);
            a.poll();
        }
    }
    assert!(HELD_AT_WAKE.get() <= 2, "the link's and one queue's");
}
