//! Connected endpoints: one peer, and the first error stops everything until a reset.

use usb4_device::{Access, DeviceError, EndpointKind, EndpointState};
use usb4_ring_abi::{CqeStatus, Op};

use crate::home::Memory;
use crate::world::{User, World, rma, send};

const BASE: u64 = 0x10_0000;

fn state(world: &World, user: &User) -> EndpointState {
    world.device(user).endpoint_state(user.client, user.ep).unwrap()
}

#[test]
fn work_posted_before_connect_is_invalid_and_connecting_twice_is_refused() {
    let world = World::new();
    let mut a = world.user(0, EndpointKind::Connected);
    let b = world.user(1, EndpointKind::Connected);
    let keys = world.register(&a, &Memory::zeroed(8), Access::LOCAL);
    a.post(send(1, keys, BASE, 8));
    world.submit(&mut a);
    assert_eq!(a.outcomes(), [(1, CqeStatus::Invalid)]);
    let device = world.device(&a);
    assert_eq!(state(&world, &a), EndpointState::Unconnected);
    device.connect(a.client, a.ep, &b.addr).unwrap();
    assert_eq!(device.connect(a.client, a.ep, &b.addr), Err(DeviceError::State));
    assert_eq!(device.create_ah(a.client, a.ep, &b.addr), Err(DeviceError::State));
    assert_eq!(state(&world, &a), EndpointState::Ready);
}

#[test]
fn messages_from_anybody_but_the_peer_are_refused() {
    let mut world = World::new();
    let (mut a, mut b) = world.connected();
    let mut stranger = world.user(0, EndpointKind::Datagram);
    stranger.ah = world
        .device(&stranger)
        .create_ah(stranger.client, stranger.ep, &b.addr)
        .unwrap();
    let memory = Memory::zeroed(8);
    let (ka, kb) = (
        world.register(&a, &memory, Access::LOCAL),
        world.register(&b, &memory, Access::LOCAL),
    );
    let ks = world.register(&stranger, &memory, Access::LOCAL);
    b.receive(1, kb, BASE, 8);
    world.submit(&mut b);
    stranger.post(send(2, ks, BASE, 8));
    world.submit(&mut stranger);
    world.settle();
    assert_eq!(stranger.outcomes(), [(2, CqeStatus::Gone)]);
    a.post(send(3, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(3, CqeStatus::Ok)]);
    assert_eq!(b.outcomes(), [(1, CqeStatus::Ok)]);
}

#[test]
fn an_error_flushes_everything_after_it_until_the_endpoint_is_reset() {
    let mut world = World::new();
    let (mut a, mut b) = world.connected();
    let memory = Memory::zeroed(64);
    let keys = world.register(&a, &memory, Access::LOCAL);
    let target = world.register(&b, &memory, Access::REMOTE_WRITE);
    let write = |name, key| rma(Op::Write, name, keys, BASE, 64, (BASE, key));
    a.receive(50, keys, BASE, 64);
    a.post(write(1, target.remote));
    a.post(write(2, target.remote ^ 1 << 40));
    a.post(write(3, target.remote));
    a.post(write(4, target.remote));
    world.submit(&mut a);
    world.settle();
    let flushed = CqeStatus::Flushed;
    let mut outcomes = a.outcomes();
    outcomes.sort_unstable_by_key(|(name, _)| *name);
    assert_eq!(
        outcomes,
        [
            (1, CqeStatus::Ok),
            (2, CqeStatus::Access),
            (3, flushed),
            (4, flushed),
            (50, flushed)
        ]
    );
    assert_eq!(state(&world, &a), EndpointState::Error);
    a.post(write(5, target.remote));
    world.submit(&mut a);
    assert_eq!(a.outcomes(), [(5, flushed)]);

    // In error it does not take messages either.
    b.post(send(6, target, BASE, 8));
    world.submit(&mut b);
    world.settle();
    assert_eq!(b.outcomes(), [(6, CqeStatus::Gone)]);
    assert_eq!(state(&world, &b), EndpointState::Error);

    let now = world.now;
    let (da, db) = (world.device(&a), world.device(&b));
    let new_a = da.reset_endpoint(a.client, a.ep, now).unwrap();
    let new_b = db.reset_endpoint(b.client, b.ep, now).unwrap();
    assert_ne!(new_a, a.addr, "a reset endpoint has a new incarnation");
    assert_eq!(state(&world, &a), EndpointState::Unconnected);
    da.connect(a.client, a.ep, &new_b).unwrap();
    db.connect(b.client, b.ep, &new_a).unwrap();
    a.post(write(7, target.remote));
    b.receive(8, target, BASE, 64);
    world.submit(&mut b);
    a.post(send(9, keys, BASE, 64));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(7, CqeStatus::Ok), (9, CqeStatus::Ok)]);
    assert_eq!(b.outcomes(), [(8, CqeStatus::Ok)]);
}

#[test]
fn a_message_that_does_not_fit_is_an_error_at_both_ends() {
    let mut world = World::new();
    let (mut a, mut b) = world.connected();
    let memory = Memory::zeroed(64);
    let (ka, kb) = (
        world.register(&a, &memory, Access::LOCAL),
        world.register(&b, &memory, Access::LOCAL),
    );
    b.receive(1, kb, BASE, 16);
    b.receive(2, kb, BASE, 64);
    world.submit(&mut b);
    a.post(send(3, ka, BASE, 64));
    a.post(send(4, ka, BASE, 8));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(3, CqeStatus::Length), (4, CqeStatus::Flushed)]);
    assert_eq!(b.outcomes(), [(1, CqeStatus::Length), (2, CqeStatus::Flushed)]);
}

#[test]
fn an_invalid_entry_stops_a_connected_endpoint() {
    let mut world = World::new();
    let (mut a, mut b) = world.connected();
    let memory = Memory::zeroed(64);
    let (ka, kb) = (
        world.register(&a, &memory, Access::LOCAL),
        world.register(&b, &memory, Access::LOCAL),
    );
    b.receive(1, kb, BASE, 64);
    world.submit(&mut b);
    a.post(send(2, ka, BASE + 1, 64));
    a.post(send(3, ka, BASE, 64));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(2, CqeStatus::Invalid), (3, CqeStatus::Flushed)]);
    assert!(b.poll().is_empty());
}

#[test]
fn idle_endpoints_notice_that_their_link_is_gone() {
    let mut world = World::new();
    let (mut a, mut b) = world.connected();
    let keys = world.register(&a, &Memory::zeroed(8), Access::LOCAL);
    a.receive(1, keys, BASE, 8);
    world.submit(&mut a);
    world.submit(&mut b);
    world.settle();
    let now = world.now;
    world.sides[0].fail(now);
    world.sides[0].service(now);
    assert_eq!(state(&world, &a), EndpointState::Error);
    assert_eq!(a.outcomes(), [(1, CqeStatus::Flushed)]);
    assert_eq!(
        state(&world, &b),
        EndpointState::Ready,
        "the other side has not noticed yet"
    );
}
