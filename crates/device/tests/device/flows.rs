//! More pairs of endpoints than a link has flows.

use usb4_device::{Access, EndpointKind, Keys};
use usb4_ring_abi::CqeStatus;

use crate::home::*;
use crate::world::*;

const BASE: u64 = 0x10_0000;
const FLOWS: u32 = 3;

fn world() -> World {
    World::with(|config| {
        config.max_tx_flows = FLOWS;
        config.max_rx_flows = FLOWS;
    })
}

/// Endpoints of one client, and memory they may use.
fn users(world: &World, side: usize, count: usize) -> (Vec<User>, Vec<Keys>) {
    let device = &world.sides[side].device;
    let shape = Shape {
        handles: 100,
        ..Shape::default()
    };
    let first = world.user_of(side, EndpointKind::Datagram, shape);
    let client = first.client;
    let more = (1..count).map(|_| User::of_client(device, side, client, EndpointKind::Datagram, shape));
    let users: Vec<User> = [first].into_iter().chain(more).collect();
    let keys = users
        .iter()
        .map(|user| world.register(user, &Memory::zeroed(64), Access::LOCAL))
        .collect();
    (users, keys)
}

fn handle(world: &World, from: &User, to: &User) -> u32 {
    world
        .device(from)
        .create_ah(from.client, from.ep, &to.addr)
        .unwrap()
}

#[test]
fn an_endpoint_talks_to_more_peers_than_there_are_flows_and_back() {
    let mut world = world();
    let (mut hub, keys) = users(&world, 0, 1);
    let (mut spokes, spoke_keys) = users(&world, 1, 8);
    let hub = &mut hub[0];
    let there: Vec<u32> = spokes.iter().map(|spoke| handle(&world, hub, spoke)).collect();
    for spoke in &mut spokes {
        spoke.ah = handle(&world, spoke, hub);
    }
    for round in 0..6_u64 {
        for ((ah, spoke), keys_there) in there.iter().zip(&mut spokes).zip(&spoke_keys) {
            hub.receive(100, keys[0], BASE, 8);
            spoke.receive(round, *keys_there, BASE, 8);
            world.submit(spoke);
            let mut sqe = send(round, keys[0], BASE, 8);
            sqe.ah = *ah;
            hub.sq.push(&sqe).unwrap();
        }
        world.submit(hub);
        world.settle();
        let sent = [(round, CqeStatus::Ok); 8];
        assert_eq!(hub.outcomes(), sent);
        for (spoke, keys_there) in spokes.iter_mut().zip(&spoke_keys) {
            assert_eq!(spoke.outcomes(), [(round, CqeStatus::Ok)]);
            spoke.post(send(round, *keys_there, BASE, 8));
            world.submit(spoke);
        }
        world.settle();
        assert_eq!(hub.outcomes(), [(100, CqeStatus::Ok); 8]);
        for spoke in &mut spokes {
            assert_eq!(spoke.outcomes(), [(round, CqeStatus::Ok)]);
        }
    }
}

#[test]
fn an_entry_waits_while_all_flows_are_busy_and_order_is_kept() {
    let mut world = world();
    let (mut hub, keys) = users(&world, 0, 1);
    let (mut spokes, spoke_keys) = users(&world, 1, 4);
    let hub = &mut hub[0];
    for n in 0..8_u64 {
        let mut sqe = send(n, keys[0], BASE, 8);
        sqe.ah = if n < 4 {
            handle(&world, hub, &spokes[n as usize])
        } else {
            n as u32 - 4
        };
        hub.sq.push(&sqe).unwrap();
    }
    world.submit(hub);
    world.settle();
    assert_eq!(hub.outcomes(), []);
    // The second has a flow; the fourth waits for one.
    for (n, spoke) in spokes.iter_mut().enumerate().rev() {
        spoke.receive(1, spoke_keys[n], BASE, 8);
        spoke.receive(2, spoke_keys[n], BASE, 8);
        world.submit(spoke);
        world.settle();
    }
    let mut outcomes = hub.outcomes();
    outcomes.sort_unstable_by_key(|(n, _)| *n);
    let all: Vec<_> = (0..8).map(|n| (n, CqeStatus::Ok)).collect();
    assert_eq!(outcomes, all);
    for spoke in &mut spokes {
        assert_eq!(spoke.outcomes(), [(1, CqeStatus::Ok), (2, CqeStatus::Ok)]);
    }
}

#[test]
fn a_server_whose_clients_come_and_go_works_for_ever() {
    let mut world = world();
    let (mut server, keys) = users(&world, 1, 1);
    let server = &mut server[0];
    for round in 0..100_u64 {
        let mut client = world.user(0, EndpointKind::Datagram);
        let client_keys = world.register(&client, &Memory::zeroed(64), Access::LOCAL);
        client.ah = handle(&world, &client, server);
        server.ah = handle(&world, server, &client);
        server.receive(1, keys[0], BASE, 8);
        client.receive(2, client_keys, BASE, 8);
        client.post(send(3, client_keys, BASE, 8));
        world.submit(server);
        world.submit(&mut client);
        world.settle();
        assert_eq!(server.outcomes(), [(1, CqeStatus::Ok)], "round {round}");
        server.post(send(4, keys[0], BASE, 8));
        world.submit(server);
        world.settle();
        assert_eq!(server.outcomes(), [(4, CqeStatus::Ok)], "round {round}");
        let mut outcomes = client.outcomes();
        outcomes.sort_unstable_by_key(|(n, _)| *n);
        assert_eq!(outcomes, [(2, CqeStatus::Ok), (3, CqeStatus::Ok)]);
        world
            .device(&client)
            .remove_client(client.client, world.now)
            .unwrap();
        if round % 3 == 0 {
            // The others are left to be found unused.
            let (ep, ah) = (server.ep, server.ah);
            world
                .device(server)
                .destroy_ah(server.client, ep, ah, world.now)
                .unwrap();
        }
    }
}

#[test]
fn an_endpoint_that_never_stops_sending_lets_another_have_its_flow() {
    let mut world = World::with(|config| {
        config.max_tx_flows = 1;
        config.max_rx_flows = 1;
    });
    let (mut senders, keys) = users(&world, 0, 2);
    let (mut receivers, receiver_keys) = users(&world, 1, 2);
    for (sender, receiver) in senders.iter_mut().zip(&receivers) {
        sender.ah = handle(&world, sender, receiver);
    }
    let (mut posted, mut received, mut sent) = (0, 0, Vec::new());
    let mut other = None;
    for turn in 0..2_000 {
        while received < posted + 4 {
            receivers[0].receive(received, receiver_keys[0], BASE, 8);
            received += 1;
        }
        world.submit(&mut receivers[0]);
        while posted < sent.len() as u64 + 4 {
            senders[0].post(send(posted, keys[0], BASE, 8));
            posted += 1;
        }
        world.submit(&mut senders[0]);
        if turn == 10 {
            receivers[1].receive(1, receiver_keys[1], BASE, 8);
            world.submit(&mut receivers[1]);
            senders[1].post(send(2, keys[1], BASE, 8));
            world.submit(&mut senders[1]);
        }
        world.turn();
        sent.extend(senders[0].outcomes());
        receivers[0].poll();
        if senders[1].outcomes() == [(2, CqeStatus::Ok)] {
            other = Some(turn);
            break;
        }
    }
    let turn = other.expect("it waits for ever");
    assert!(turn < 500, "it has waited for {turn} turns");
    let in_order = (0..).zip(&sent).all(|(n, done)| *done == (n, CqeStatus::Ok));
    assert!(in_order && !sent.is_empty(), "{sent:?}");
}
