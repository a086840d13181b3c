//! Peers and cables that come, go, stall, restart and speak another version.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

use usb4_engine::{RailState, Status};
use usb4_sim::{Faults, Line, MS, Profile, SEC, US, World, seeds};
use usb4_wire::{Control, ControlBody, ControlKind, NodeId, Reason};

fn pair(seed: u64, rails: usize) -> (World, Line) {
    let (mut world, a, b) = World::pair(seed, &Profile::STRIX, rails, Faults::NONE).unwrap();
    let line = Line::new(&mut world, a, b).unwrap();
    (world, line)
}

fn all_is_well(world: &mut World) {
    world.run_for(SEC);
    assert_eq!(world.violations(), [""; 0]);
    assert_eq!(world.leaks(), [""; 0]);
}

#[test]
fn a_peer_that_stops_acking_holds_the_sender_up_and_no_more() {
    let (mut world, mut line) = pair(1, 1);
    line.works(&mut world).unwrap();
    let (a, b) = (line.from.host, line.to.host);
    let cable = world.cables_between(a, b)[0];
    world.set_faults_from(cable, b, Faults::loss(1.0));
    let before = world.cable_counters(cable, a).frames;
    for _ in 0..16 {
        line.post(&mut world, 1 << 16).unwrap();
    }
    world.run_for(10 * SEC);
    // 16 messages are 272 frames; after them only probes with back-off.
    let sent = world.cable_counters(cable, a).frames - before;
    assert!(sent < 272 + 300, "{sent} frames into silence");
    assert!(world.host(a).next_finished().is_none());
    world.set_faults_from(cable, b, Faults::NONE);
    for _ in 0..16 {
        assert_eq!(line.outcome(&mut world, 10 * SEC), Ok(Status::Ok));
    }
    all_is_well(&mut world);
}

#[test]
fn a_peer_silent_for_a_minute_is_not_dead() {
    let (mut world, mut line) = pair(2, 1);
    let (a, b) = (line.from.host, line.to.host);
    line.works(&mut world).unwrap();
    world.stop(b);
    line.post(&mut world, 100_000).unwrap();
    world.run_for(60 * SEC);
    assert!(world.host(a).next_finished().is_none());
    world.resume(b);
    assert_eq!(line.outcome(&mut world, 10 * SEC), Ok(Status::Ok));
    world.host(b).next_received().unwrap();
    line.works(&mut world).unwrap();
    all_is_well(&mut world);
}

/// Time passes, in which homes look for silent rails once a second.
fn watch(world: &mut World, seconds: u32) {
    for _ in 0..seconds {
        world.run_for(SEC);
        world.look_for_silence();
    }
}

#[test]
fn a_stopped_peer_that_is_asked_for_an_hour_is_not_dead() {
    for stopped in [60, 3600] {
        let (mut world, mut line) = pair(2, 1);
        let (a, b) = (line.from.host, line.to.host);
        line.works(&mut world).unwrap();
        world.stop(b);
        line.post(&mut world, 100_000).unwrap();
        watch(&mut world, stopped);
        assert!(world.host(a).next_finished().is_none());
        world.resume(b);
        watch(&mut world, 10);
        assert_eq!(line.outcome(&mut world, 10 * SEC), Ok(Status::Ok));
        world.host(b).next_received().unwrap();
        line.works(&mut world).unwrap();
        all_is_well(&mut world);
    }
}

#[test]
fn a_rail_on_which_nothing_arrives_is_begun_anew_for_ever() {
    let (mut world, mut line) = pair(3, 1);
    let (a, b) = (line.from.host, line.to.host);
    let cable = world.cables_between(a, b)[0];
    line.works(&mut world).unwrap();
    world.set_faults(cable, Faults::loss(1.0));
    line.post(&mut world, 100_000).unwrap();
    watch(&mut world, 15);
    // In bounded time, and clearly.
    assert_eq!(line.outcome(&mut world, SEC), Ok(Status::LinkDown));
    // Longer than probes would last.
    for _ in 0..20 {
        watch(&mut world, 10);
        let mut line = Line::new(&mut world, a, b).unwrap();
        line.post(&mut world, 100).unwrap();
        watch(&mut world, 600);
        assert_eq!(line.outcome(&mut world, SEC), Ok(Status::LinkDown));
    }
    world.set_faults(cable, Faults::NONE);
    watch(&mut world, 15);
    Line::new(&mut world, a, b).unwrap().works(&mut world).unwrap();
    all_is_well(&mut world);
}

#[test]
fn the_last_frame_lost_is_repaired_with_nothing_behind_it() {
    for profile in &Profile::ALL {
        for seed in seeds(20) {
            let (mut world, a, b) = World::pair(seed, profile, 1, Faults::NONE).unwrap();
            let mut line = Line::new(&mut world, a, b).unwrap();
            world.cut(world.cables_between(a, b)[0], a, 0, 1);
            line.deliver(&mut world, 1, 100, 2 * MS)
                .unwrap_or_else(|e| panic!("{}, seed {seed}: {e}", profile.name));
            assert_eq!(world.cable_counters(0, a).lost, 1);
            all_is_well(&mut world);
        }
    }
}

#[test]
fn a_stopped_receivers_ring_is_not_overrun() {
    for ring in [40, 64, 1024] {
        let profile = Profile {
            ring,
            tx_depth: ring - 1,
            ..Profile::STRIX
        };
        let (mut world, a, b) = World::pair(3, &profile, 2, Faults::NONE).unwrap();
        let mut line = Line::new(&mut world, a, b).unwrap();
        line.works(&mut world).unwrap();
        world.stop(b);
        for _ in 0..20 {
            line.post(&mut world, 1 << 20).unwrap();
        }
        world.run_for(600 * SEC);
        assert_eq!(world.violations(), [""; 0], "ring {ring}");
        world.resume(b);
        for _ in 0..20 {
            assert_eq!(line.outcome(&mut world, 30 * SEC), Ok(Status::Ok), "ring {ring}");
        }
        all_is_well(&mut world);
    }
}

#[test]
fn a_peer_that_restarts_mid_message_fails_the_work_and_comes_back() {
    for seed in seeds(20) {
        let (mut world, mut line) = pair(seed, 1);
        let (a, b) = (line.from.host, line.to.host);
        line.post(&mut world, 1 << 20).unwrap();
        world.run_for(100 * US + seed % 20 * 7 * US);
        world.crash(b);
        world.run_for(seed % 20 * MS);
        world.boot(b);
        assert_eq!(
            line.outcome(&mut world, 30 * SEC),
            Ok(Status::LinkDown),
            "seed {seed}"
        );
        world.bring_up().unwrap();
        Line::new(&mut world, a, b).unwrap().works(&mut world).unwrap();
        all_is_well(&mut world);
    }
}

#[test]
fn both_sides_restarting_at_the_same_moment_find_each_other() {
    for seed in seeds(20) {
        let (mut world, mut line) = pair(seed, 2);
        let (a, b) = (line.from.host, line.to.host);
        line.post(&mut world, 1 << 20).unwrap();
        world.run_for(200 * US);
        world.crash(a);
        world.crash(b);
        world.boot(a);
        world.boot(b);
        world.bring_up().unwrap();
        Line::new(&mut world, a, b).unwrap().works(&mut world).unwrap();
        all_is_well(&mut world);
    }
}

#[test]
fn a_rail_unplugged_mid_message_loses_nothing_if_there_is_another() {
    for seed in seeds(20) {
        let (mut world, mut line) = pair(seed, 2);
        let cable = world.cables_between(line.from.host, line.to.host)[usize::from(seed % 2 == 0)];
        for _ in 0..8 {
            line.post(&mut world, 100_000).unwrap();
        }
        world.run_for(50 * US + seed % 20 * 9 * US);
        world.unplug(cable);
        for _ in 0..8 {
            assert_eq!(line.outcome(&mut world, SEC), Ok(Status::Ok), "seed {seed}");
            world.host(line.to.host).next_received().unwrap();
        }
        line.works(&mut world).unwrap();
        world.plug(cable);
        world.bring_up().unwrap();
        line.works(&mut world).unwrap();
        all_is_well(&mut world);
    }
}

#[test]
fn the_last_rail_unplugged_mid_message_fails_all_work_at_once() {
    for seed in seeds(20) {
        let (mut world, mut line) = pair(seed, 1);
        let (a, b) = (line.from.host, line.to.host);
        let cable = world.cables_between(a, b)[0];
        for _ in 0..8 {
            line.post(&mut world, 100_000).unwrap();
        }
        world.run_for(50 * US + seed % 20 * 9 * US);
        world.unplug(cable);
        for _ in 0..8 {
            let status = line.outcome(&mut world, MS).unwrap();
            assert!(
                matches!(status, Status::LinkDown | Status::Ok),
                "seed {seed}: {status:?}"
            );
        }
        world.run_for(MS);
        assert_eq!(world.leaks(), [""; 0]);
        assert!(line.post(&mut world, 100).is_err());
        world.plug(cable);
        world.bring_up().unwrap();
        Line::new(&mut world, a, b).unwrap().works(&mut world).unwrap();
        all_is_well(&mut world);
    }
}

#[test]
fn a_rail_closed_in_good_order_wedges_nobody() {
    for seed in seeds(20) {
        let (mut world, mut line) = pair(seed, 1);
        let b = line.to.host;
        let cable = world.cables_between(line.from.host, b)[0];
        for _ in 0..8 {
            line.post(&mut world, 100_000).unwrap();
        }
        world.run_for(300 * US);
        world.close(cable, b);
        let mut ends = Vec::new();
        for _ in 0..8 {
            ends.push(line.outcome(&mut world, 2 * SEC).unwrap());
        }
        assert_eq!(ends.last(), Some(&Status::LinkDown), "seed {seed}: {ends:?}");
        world.run_for(2 * SEC);
        assert_eq!(world.violations(), [""; 0]);
        assert_eq!(world.leaks(), [""; 0]);
    }
}

#[test]
fn a_host_that_speaks_another_version_is_refused_and_welcome_later() {
    let mut world = World::new(4, &Profile::STRIX);
    let (old, new) = (world.add_host(), world.add_host());
    // The newcomer's own engine does not run: forged offers only.
    world.stop(new);
    let cable = world.connect(old, new, Faults::NONE);
    let body = ControlBody {
        ver_min: 2,
        ver_max: 3,
        node_id: NodeId(9),
        tag: 1,
        nonce: 2,
        tx_hop: 8,
        ring_size: 1023,
        max_flows: 16,
        max_reads: 16,
        ..ControlBody::default()
    };
    let offer = Control {
        kind: ControlKind::Offer,
        body,
    };
    world.tap(cable, old);
    world.inject_control(cable, new, offer.emit(crc32c::crc32c_append));
    world.run_for(10 * MS);
    let refusal = world
        .tapped_control(cable, old)
        .iter()
        .find(|message| message.kind == ControlKind::Refuse);
    assert_eq!(
        refusal.map(|message| (message.body.reason, message.body.echo)),
        Some((Reason::Version.code(), 2))
    );
    assert_eq!(
        world.rail_state(cable, old),
        Some(RailState::Refused(Reason::Version))
    );
    world.boot(new);
    world.bring_up().unwrap();
    Line::new(&mut world, old, new)
        .unwrap()
        .works(&mut world)
        .unwrap();
    all_is_well(&mut world);
}

#[test]
fn data_before_the_path_is_up_wedges_the_rail_and_is_noticed() {
    let mut world = World::new(6, &Profile::STRIX);
    let (a, b) = (world.add_host(), world.add_host());
    let cable = world.connect(a, b, Faults::NONE);
    world.inject(cable, a, &[0; 64]);
    assert_eq!(world.violations().len(), 1);
}
