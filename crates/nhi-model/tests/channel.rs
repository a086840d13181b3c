//! The control channel: configuration, plug events, packets between domains.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

mod rig;

use rig::{ADAPTER, MS, ROUTER, Rig};
use usb4_nhi_model::{Command, ControlPacket, Nhi, Topology, Towards};

const PLUG: u8 = 5;

#[test]
fn both_hosts_hear_of_the_cable() {
    let mut rig = Rig::new(Topology::pair());
    for n in 0..2 {
        let packets = rig.receive_all(n);
        assert!(
            packets
                .iter()
                .any(|packet| packet.pdf == PLUG && packet.words == [1 << 31, 0, 1]),
            "{packets:?}"
        );
    }
}

#[test]
fn a_plug_event_is_sent_again_until_it_is_acknowledged() {
    let mut rig = Rig::new(Topology::pair());
    rig.receive_all(0);
    for _ in 0..20 {
        rig.advance_by(255 * MS);
        assert_eq!(rig.receive_all(0).len(), 1);
    }
    rig.acknowledge(0, 1, true); // of something else
    rig.advance_by(255 * MS);
    assert_eq!(rig.receive_all(0).len(), 1);
    rig.acknowledge(0, 1, false);
    rig.advance_by(1000 * MS);
    assert_eq!(rig.receive_all(0), []);
}

#[test]
fn pulling_the_cable_tells_both_and_takes_the_link_down() {
    let mut rig = Rig::new(Topology::pair());
    (0..2).for_each(|n| rig.acknowledge_all(n));
    rig.command(Command::Unplug(usb4_nhi_model::Cable(0)));
    for n in 0..2 {
        let packets = rig.receive_all(n);
        assert_eq!(
            packets.iter().map(|packet| packet.words[2]).collect::<Vec<_>>(),
            [1 | 1 << 31]
        );
        assert_eq!(rig.read_space(n, 1, ADAPTER, 0x21) >> 26 & 0xf, 7);
    }
}

#[test]
fn replies_carry_the_upstream_adapters_number() {
    let mut rig = Rig::new(Topology::pair());
    rig.receive_all(0);
    rig.send_control(
        0,
        &ControlPacket::new(1, vec![0, 0, ADAPTER << 25 | 1 << 19 | 1 << 13]),
    );
    let reply = rig.receive(0).unwrap();
    assert_eq!((reply.pdf, reply.words[2] >> 19 & 0x3f), (1, 3));
    assert!(reply.to_manager());
}

#[test]
fn a_request_to_the_far_host_says_that_another_domain_is_there() {
    let mut rig = Rig::new(Topology::pair());
    let ask = |rig: &mut Rig, route| {
        rig.receive_all(0);
        rig.send_control(0, &ControlPacket::new(1, vec![0, route, ROUTER << 25 | 1 << 13]));
        let packets = rig.receive_all(0);
        let notice = packets.iter().find(|packet| packet.pdf == 3).unwrap();
        notice.words[2] & 0xff
    };
    assert_eq!(ask(&mut rig, 1), 15, "locked until the manager unlocks it");
    rig.write_space(0, 1, ADAPTER, 4, &[0]);
    assert_eq!(ask(&mut rig, 1), 8);
    assert_eq!(ask(&mut rig, 3), 4, "no such adapter");
    rig.command(Command::Unplug(usb4_nhi_model::Cable(0)));
    assert_eq!(ask(&mut rig, 1), 0, "not connected");
}

#[test]
fn a_packet_between_domains_gets_the_receivers_route() {
    let mut rig = Rig::parse("triangle");
    (0..3).for_each(|n| rig.acknowledge_all(n));
    // Host 2's port 1 (adapter 3) leads to host 0's port 1.
    rig.send_control(2, &ControlPacket::new(6, vec![0, 3, 0xaaaa, 0xbbbb]));
    assert_eq!(rig.receive_all(1), []);
    assert_eq!(
        rig.receive_all(0),
        [ControlPacket::new(6, vec![1 << 31, 3, 0xaaaa, 0xbbbb])]
    );
    // And host 0 answers through its own adapter 3.
    rig.send_control(0, &ControlPacket::new(7, vec![0, 3, 1]));
    assert_eq!(rig.receive_all(2), [ControlPacket::new(7, vec![1 << 31, 3, 1])]);
}

#[test]
fn a_host_that_does_not_listen_gets_nothing_and_holds_nobody_up() {
    let mut rig = Rig::new(Topology::pair());
    rig.receive_all(0);
    rig.ring(1, false, 0, 0);
    for i in 0..200 {
        rig.send_control(0, &ControlPacket::new(6, vec![0, 1, i]));
    }
    assert!(rig.counters(1).control_lost >= 200);
    assert_eq!(rig.read_space(0, 0, ROUTER, 7), 1);
}

#[test]
fn a_host_that_takes_no_replies_waits_with_its_requests() {
    let mut rig = Rig::new(Topology::pair());
    rig.acknowledge_all(0);
    rig.ring(0, false, 0, 0);
    rig.ring(0, false, 0, rig::ENABLE | rig::RAW); // no buffers
    for i in 0..200 {
        rig.send_control(
            0,
            &ControlPacket::new(1, vec![0, 0, ROUTER << 25 | 1 << 13 | (i % 16)]),
        );
    }
    let counters = rig.counters(0);
    assert_eq!((counters.control_lost, counters.held), (0, 1));
    assert!(counters.control_out < 120, "{counters:?}");
}

#[test]
fn damaged_packets_are_dropped() {
    let mut rig = Rig::new(Topology::pair());
    rig.receive_all(0);
    let mut bytes = ControlPacket::new(1, vec![0, 0, ROUTER << 25 | 1 << 13]).encode();
    bytes[0] ^= 1;
    let before = rig.counters(0);
    rig.prepare(0, 0, 2, &bytes, 1, 1);
    let next = before.control_out as u32;
    rig.prepare(0, 0, next, &bytes, 1, 1);
    rig.doorbell(0, 0, next + 1);
    assert_eq!(rig.counters(0).control_lost, before.control_lost + 1);
    assert_eq!(rig.receive_all(0), []);
}

#[test]
fn control_packets_can_be_lost_both_ways() {
    let mut rig = Rig::new(Topology::pair());
    rig.acknowledge_all(0);
    let read = ControlPacket::new(1, vec![0, 0, ROUTER << 25 | 1 << 13]);
    for towards in [Towards::Router, Towards::Host] {
        rig.command(Command::LoseControl {
            nhi: Nhi(0),
            towards,
            count: 1,
        });
        rig.send_control(0, &read);
        assert_eq!(rig.receive_all(0), []);
        rig.send_control(0, &read);
        assert_eq!(rig.receive_all(0).len(), 1);
    }
}

#[test]
fn an_injected_packet_arrives_as_it_is() {
    let mut rig = Rig::new(Topology::pair());
    rig.acknowledge_all(0);
    let packet = ControlPacket::new(6, vec![1 << 31, 1, 42]);
    rig.command(Command::InjectControl {
        nhi: Nhi(0),
        pdf: 6,
        bytes: packet.encode(),
    });
    assert_eq!(rig.receive_all(0), [packet]);
}

#[test]
fn a_version_2_router_resets_through_its_register() {
    let mut rig = Rig::parse("pair,usb4=2");
    assert_eq!(rig.read(0, 0x39640) >> 16, 0x40);
    let before = rig.fabric.resets(Nhi(0));
    rig.write(0, 0x39898, 1);
    assert_eq!((rig.read(0, 0x39898), rig.fabric.resets(Nhi(0))), (0, before + 1));
    assert_eq!(rig.read(0, rig::TX_OPTIONS), 0);
}
