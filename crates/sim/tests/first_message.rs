//! Start reading here: two hosts, a cable, a message.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

use usb4_engine::Status;
use usb4_sim::{Access, Faults, MS, Profile, World};

#[test]
fn a_message_arrives() {
    // Two Strix Halo machines with one perfect cable, brought up. The seed decides everything random.
    let (mut world, alice, bob) = World::pair(1, &Profile::STRIX, 1, Faults::NONE).unwrap();

    // Applications: an endpoint and some memory on each host, and a flow between the endpoints.
    let (from, to) = (world.endpoint(alice), world.endpoint(bob));
    let source = world.memory(alice, b"hello, bob".to_vec(), Access::LOCAL);
    let target = world.memory(bob, vec![0; 64], Access::LOCAL);
    let flow = world.open_flow(from, to).unwrap();

    // Work is posted as with RDMA anywhere; the numbers come back in completions.
    world.post_receive(to, target.at(0, 64), 42);
    world.send(flow, 7, source.at(0, 10)).unwrap();

    // Virtual time passes until both have happened.
    world
        .run_until(MS, |world| world.host(alice).has_completions())
        .unwrap();
    let received = world.host(bob).next_received().unwrap();
    assert_eq!(
        (received.done.cookie, received.done.status, received.done.len),
        (42, Status::Ok, 10)
    );
    assert_eq!(received.from, from.addr);
    let finished = world.host(alice).next_finished().unwrap();
    assert_eq!((finished.cookie, finished.status), (7, Status::Ok));
    world
        .host(bob)
        .region(target, |bytes| assert_eq!(&bytes[..10], b"hello, bob"));

    // Nothing is left behind.
    world.run_for(10 * MS);
    assert_eq!(world.leaks(), [""; 0]);
    assert_eq!(world.violations(), [""; 0]);
}
