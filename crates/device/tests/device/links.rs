//! Links that are not there, come, and go.

use usb4_device::{Access, DeviceError, EndpointKind};
use usb4_engine::{EpAddr, LinkConfig, LinkStorage, NodeId};
use usb4_ring_abi::{CqeStatus, Op, Sqe};

use crate::home::Memory;
use crate::lifecycle::mixed_traffic;
use crate::world::{World, pattern, send};

const BASE: u64 = 0x10_0000;

#[test]
fn a_host_without_a_link_is_unreachable() {
    let world = World::new();
    let user = world.user(0, EndpointKind::Datagram);
    let nowhere = EpAddr {
        node: NodeId(99),
        ep: 1,
        incarnation: 1,
    };
    let device = world.device(&user);
    assert_eq!(
        device.create_ah(user.client, user.ep, &nowhere),
        Err(DeviceError::Unreachable)
    );
}

#[test]
fn clients_are_not_given_a_link_before_it_is_chosen() {
    let world = World::new();
    let user = world.user(0, EndpointKind::Datagram);
    let device = world.device(&user);
    let stranger = EpAddr {
        node: NodeId(99),
        ep: 0,
        incarnation: 1,
    };
    let candidate = || {
        let config = LinkConfig {
            tx_slots: 16,
            ..LinkConfig::new(device.node(), stranger.node)
        };
        device.add_candidate(config, LinkStorage::boxed(&config)).unwrap()
    };
    let (first, second) = (candidate(), candidate());
    let handle = || device.create_ah(user.client, user.ep, &stranger);
    assert_eq!(handle(), Err(DeviceError::Unreachable));
    assert!(device.choose(second), "it was not chosen before");
    assert!(!device.choose(second));
    assert_eq!(device.link_to(stranger.node), Some(second));
    assert!(handle().is_ok());
    assert_ne!(first, second);
}

#[test]
fn a_link_that_dies_ends_all_work_and_one_that_comes_back_is_used() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let (ma, mb) = (Memory::of(&pattern(40_000)), Memory::of(&pattern(40_000)));
    mixed_traffic(&mut world, &mut a, &mut b, [&ma, &mb]);
    for _ in 0..3 {
        world.turn();
    }
    world.drop_frames();
    let now = world.now;
    for side in &mut world.sides {
        side.fail(now);
    }
    for user in [&mut a, &mut b] {
        let outcomes = user.outcomes();
        let sends: Vec<_> = outcomes.iter().filter(|(name, _)| *name > 1).collect();
        assert_eq!(sends.len(), 5, "{outcomes:?}");
        assert!(sends.iter().any(|(_, status)| *status == CqeStatus::LinkDown));
    }
    let keys = world.register(&a, &ma, Access::LOCAL);
    a.post(send(7, keys, BASE, 64));
    world.submit(&mut a);
    let [(7, status)] = a.outcomes()[..] else {
        panic!("no answer")
    };
    assert!(
        matches!(status, CqeStatus::LinkDown | CqeStatus::Unreachable),
        "{status:?}"
    );

    world.sides[0].relink(2, now);
    world.sides[1].relink(1, now);
    let into = world.register(&b, &mb, Access::LOCAL);
    b.receive(8, into, BASE, 64);
    world.submit(&mut b);
    a.post(send(9, keys, BASE, 64));
    world.submit(&mut a);
    world.settle();
    assert_eq!(a.outcomes(), [(9, CqeStatus::Ok)]);
    assert!(b.outcomes().iter().any(|(_, status)| *status == CqeStatus::Ok));
}

#[test]
fn a_link_wants_service_from_submission_to_its_turn() {
    let mut world = World::new();
    let (mut a, _b) = world.pair();
    world.settle();
    let wants = |world: &World, side: usize| world.sides[side].device.wants_service(world.sides[side].link);
    assert_eq!((wants(&world, 0), wants(&world, 1)), (false, false));
    a.post(Sqe {
        op: Op::Send.code(),
        ah: a.ah,
        ..Sqe::default()
    });
    world.submit(&mut a);
    assert_eq!((wants(&world, 0), wants(&world, 1)), (true, false));
    world.sides[0].service(world.now);
    assert!(!wants(&world, 0));
}

#[test]
fn work_for_a_host_whose_link_was_removed_completes_unreachable() {
    let mut world = World::new();
    let (mut a, _) = world.pair();
    let keys = world.register(&a, &Memory::zeroed(8), Access::LOCAL);
    let side = &world.sides[0];
    side.device.remove_link(side.link, &side.port, 0).unwrap();
    a.post(send(1, keys, BASE, 8));
    world.submit(&mut a);
    assert_eq!(a.outcomes(), [(1, CqeStatus::Unreachable)]);
    assert!(side_is_gone(&mut world));
}

#[test]
fn entries_that_waited_for_room_on_a_link_that_was_removed_complete() {
    let world = World::with(|config| config.max_ops = 4);
    let (mut a, _) = world.pair();
    let keys = world.register(&a, &Memory::zeroed(8), Access::LOCAL);
    for n in 0..10 {
        a.post(send(n, keys, BASE, 8));
    }
    world.submit(&mut a);
    let side = &world.sides[0];
    side.device.remove_link(side.link, &side.port, 0).unwrap();
    let outcomes = a.outcomes();
    let numbers: Vec<u64> = outcomes.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    let last = outcomes.last().map(|(_, status)| *status);
    assert_eq!(last, Some(CqeStatus::Unreachable));
}

fn side_is_gone(world: &mut World) -> bool {
    let now = world.now;
    let done = world.sides[0].service(now);
    done.down && !done.progress
}
