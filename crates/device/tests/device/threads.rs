//! A thread drives the links while others create, use and tear down.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use usb4_device::{Access, EndpointKind, RegionConfig};
use usb4_ring_abi::{Op, Sqe};

use crate::home::Memory;
use crate::world::{Shape, User, World, rma, send};

const BASE: u64 = 0x10_0000;

/// Turns the world in a thread of its own while `f` runs.
fn while_it_turns<T>(world: World, f: impl FnOnce(&Mutex<u64>) -> T) -> (World, T) {
    let stop = Arc::new(AtomicBool::new(false));
    let now = Arc::new(Mutex::new(0));
    let thread = {
        let (stop, now) = (stop.clone(), now.clone());
        let mut world = world;
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                world.turn();
                *now.lock().unwrap() = world.now;
                thread::yield_now();
            }
            world
        })
    };
    let result = f(&now);
    stop.store(true, Ordering::Relaxed);
    (thread.join().unwrap(), result)
}

#[test]
fn memory_revoked_under_traffic_is_never_touched_after_the_call_returns() {
    let world = World::new();
    let device = [world.sides[0].device.clone(), world.sides[1].device.clone()];
    let (mut a, b) = world.pair();
    let target = Memory::zeroed(20_000);
    let target_keys = world.register(&b, &target, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let (mut world, ()) = while_it_turns(world, |now| {
        let mut interrupted = 0;
        for round in 0..(if cfg!(miri) { 6 } else { 400_u64 }) {
            let memory = Memory::zeroed(20_000);
            let config = RegionConfig {
                addr: BASE,
                len: 20_000,
                access: Access::LOCAL,
                peer: None,
                mem: memory.clone(),
            };
            let keys = device[0].register(a.client, config).unwrap();
            for op in [Op::Write, Op::Read] {
                a.post(rma(op, round, keys, BASE, 20_000, (BASE, target_keys.remote)));
            }
            a.sq.publish();
            device[0].submit(a.ep, *now.lock().unwrap());
            while round % 4 != 0 && memory.1.begun.load(Ordering::SeqCst) < 3 {
                thread::yield_now();
            }
            if device[0].deregister(a.client, keys.local).unwrap() {
                continue;
            }
            interrupted += 1;
            assert!(device[0].reclaim(a.client, keys.local, true).unwrap());
            assert_eq!(
                memory.1.running.load(Ordering::SeqCst),
                0,
                "a copy is still running"
            );
            let begun = memory.1.begun.load(Ordering::SeqCst);
            thread::yield_now();
            // Both entries complete before the next round, so the queue does not fill.
            let mut done = 0;
            while done < 2 {
                done += a.poll().len();
                thread::yield_now();
            }
            assert_eq!(
                memory.1.begun.load(Ordering::SeqCst),
                begun,
                "used after it was revoked"
            );
            assert_eq!(Arc::strong_count(&memory.0), 1);
        }
        assert!(cfg!(miri) || interrupted > 100, "{interrupted}");
    });
    world.settle();
}

#[test]
fn clients_that_come_and_go_under_traffic_leave_nothing() {
    let world = World::new();
    let device = [world.sides[0].device.clone(), world.sides[1].device.clone()];
    let (mut world, ()) = while_it_turns(world, |now| {
        let time = || *now.lock().unwrap();
        for round in 0..(if cfg!(miri) { 4 } else { 200 }) {
            let shape = Shape::default();
            let client = |side: usize| device[side].add_client(shape.quota, None).unwrap();
            let mut users: Vec<User> = (0..2)
                .map(|side| User::of_client(&device[side], side, client(side), EndpointKind::Datagram, shape))
                .collect();
            let memory = [Memory::zeroed(30_000), Memory::zeroed(30_000)];
            let mut keys = Vec::new();
            for side in 0..2 {
                let peer = users[1 - side].addr;
                users[side].ah = device[side]
                    .create_ah(users[side].client, users[side].ep, &peer)
                    .unwrap();
                let config = RegionConfig {
                    addr: BASE,
                    len: 30_000,
                    access: Access::REMOTE_READ | Access::REMOTE_WRITE,
                    peer: None,
                    mem: memory[side].clone(),
                };
                keys.push(device[side].register(users[side].client, config).unwrap());
            }
            for side in 0..2 {
                let user = &mut users[side];
                user.receive(1, keys[side], BASE, 30_000);
                user.post(Sqe {
                    user_data: 2,
                    ..send(2, keys[side], BASE, 30_000)
                });
                user.post(rma(
                    Op::Read,
                    3,
                    keys[side],
                    BASE,
                    30_000,
                    (BASE, keys[1 - side].remote),
                ));
                user.post(rma(
                    Op::Write,
                    4,
                    keys[side],
                    BASE,
                    30_000,
                    (BASE, keys[1 - side].remote),
                ));
                user.rq.publish();
                user.sq.publish();
                device[side].submit(user.ep, time());
            }
            for _ in 0..round % 50 {
                thread::yield_now();
            }
            for side in [round % 2, 1 - round % 2] {
                device[side].remove_client(users[side].client, time()).unwrap();
                assert_eq!(memory[side].1.running.load(Ordering::SeqCst), 0);
                assert_eq!(Arc::strong_count(&memory[side].0), 1, "memory is still held");
                assert_eq!(
                    Arc::strong_count(&users[side].cq_words),
                    2,
                    "a queue is still mapped"
                );
            }
        }
    });
    world.settle();
    for side in &world.sides {
        let usage = side.device.usage(side.link).unwrap();
        assert_eq!((usage.ops, usage.streams, usage.reads, usage.plans), (0, 0, 0, 0));
    }
}
