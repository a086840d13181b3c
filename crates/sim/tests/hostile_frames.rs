//! A hostile neighbour on the cable: what it injects changes nothing for those who use it.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

use usb4_sim::{Access, CableId, Faults, HostId, Line, MS, Profile, Rng, SEC, World};
use usb4_wire::{Chunk, FRAME_HEADER_LEN, FrameHeader, FrameView, Request, Seq};

/// Two hosts, a working line, and a tap that has seen some of its frames.
fn tapped() -> (World, Line, CableId) {
    let (mut world, a, b) = World::pair(7, &Profile::STRIX, 1, Faults::NONE).unwrap();
    let cable = world.cables_between(a, b)[0];
    world.tap(cable, a);
    let mut line = Line::new(&mut world, a, b).unwrap();
    line.works(&mut world).unwrap();
    (world, line, cable)
}

/// The line still delivers, nothing is broken or left over.
fn unharmed(world: &mut World, line: &mut Line) {
    line.works(world).unwrap();
    world.run_for(SEC);
    assert_eq!(world.violations(), [""; 0]);
    assert_eq!(world.leaks(), [""; 0]);
}

fn crc(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// Seals a frame anew after its header was changed.
fn reseal(frame: &[u8], change: impl FnOnce(&mut FrameHeader)) -> Vec<u8> {
    let view = FrameView::parse(frame, frame.len()).unwrap();
    let mut header = *view.header();
    let chunks = crc(0, &frame[FRAME_HEADER_LEN..usize::from(header.head_len)]);
    change(&mut header);
    let mut sealed = [0; FRAME_HEADER_LEN];
    header.seal(chunks, crc, &mut sealed);
    let mut frame = frame.to_vec();
    frame[..FRAME_HEADER_LEN].copy_from_slice(&sealed);
    frame
}

#[test]
fn random_bytes_are_dropped() {
    let (mut world, mut line, cable) = tapped();
    let mut rng = Rng::new(1);
    for _ in 0..2_000 {
        let bytes: Vec<u8> = (0..rng.below(5_000))
            .map(|_| rng.next_u64().to_le_bytes()[0])
            .collect();
        world.inject(cable, line.from.host, &bytes);
        world.run_for(MS / 100);
    }
    unharmed(&mut world, &mut line);
    let link = world.link_between(line.to.host, line.from.host).unwrap();
    assert!(
        world.counters(link).rx_malformed >= 1_990,
        "{:?}",
        world.counters(link)
    );
}

#[test]
fn truncated_frames_are_dropped() {
    let (mut world, mut line, cable) = tapped();
    let frames = world.tapped(cable, line.from.host).to_vec();
    let mut rng = Rng::new(2);
    for frame in &frames {
        world.inject(cable, line.from.host, &frame[..rng.index(frame.len())]);
        world.run_for(MS / 100);
    }
    unharmed(&mut world, &mut line);
}

#[test]
fn replayed_frames_are_dropped() {
    let (mut world, mut line, cable) = tapped();
    let link = world.link_between(line.to.host, line.from.host).unwrap();
    let frames = world.tapped(cable, line.from.host).to_vec();
    let before = world.counters(link);
    for frame in &frames {
        world.inject(cable, line.from.host, frame);
    }
    world.run_for(10 * MS);
    let after = world.counters(link);
    assert_eq!(after.rx_duplicate - before.rx_duplicate, frames.len() as u64);
    assert_eq!(after.executed, before.executed);
    unharmed(&mut world, &mut line);
}

#[test]
fn frames_of_another_session_are_dropped_and_end_no_session() {
    let (mut world, mut line, cable) = tapped();
    let link = world.link_between(line.to.host, line.from.host).unwrap();
    let frames = world.tapped(cable, line.from.host).to_vec();
    for frame in &frames {
        let wrong = reseal(frame, |header| {
            header.tag ^= 1;
            header.packet += 1_000_000;
        });
        world.inject(cable, line.from.host, &wrong);
    }
    world.run_for(SEC);
    assert_eq!(world.counters(link).rx_wrong_tag, frames.len() as u64);
    assert_eq!(world.link_between(line.to.host, line.from.host), Some(link));
    unharmed(&mut world, &mut line);
}

/// A frame with one chunk that follows the tapped one.
fn forged(after: &[u8], nth: u64, chunk: &Chunk) -> Vec<u8> {
    let mut frame = after[..FRAME_HEADER_LEN].to_vec();
    frame.resize(FRAME_HEADER_LEN + chunk.header_len(), 0);
    chunk.emit(&mut frame[FRAME_HEADER_LEN..]).unwrap();
    let tag = FrameView::parse(after, after.len()).unwrap().header().tag;
    let head_len = u16::try_from(frame.len()).unwrap();
    let header = FrameHeader {
        head_len,
        tag,
        packet: 1_000 + nth,
        ack: None,
        ack_now: false,
        payload_crc: false,
    };
    let mut sealed = [0; FRAME_HEADER_LEN];
    header.seal(crc(0, &frame[FRAME_HEADER_LEN..]), crc, &mut sealed);
    frame[..FRAME_HEADER_LEN].copy_from_slice(&sealed);
    frame
}

/// The next request number of the flow whose frames were tapped.
fn next_csn(frames: &[Vec<u8>]) -> Seq {
    let last = frames.iter().rev().find_map(|frame| {
        let view = FrameView::parse(frame, frame.len()).unwrap();
        view.chunks()
            .filter_map(|c| {
                if let Chunk::Request(seq, _) = c.chunk {
                    Some(seq)
                } else {
                    None
                }
            })
            .last()
    });
    let seq = last.unwrap();
    Seq {
        csn: seq.csn + 1,
        ..seq
    }
}

#[test]
fn a_flood_of_reads_is_bounded_and_leaves_other_links_alone() {
    let mut world = World::new(3, &Profile::STRIX);
    let (victim, flooder, friend) = (world.add_host(), world.add_host(), world.add_host());
    let cable = world.connect(flooder, victim, Faults::NONE);
    world.connect(friend, victim, Faults::NONE);
    world.bring_up().unwrap();
    world.tap(cable, flooder);
    let mut hostile = Line::new(&mut world, flooder, victim).unwrap();
    hostile.works(&mut world).unwrap();
    let mut good = Line::new(&mut world, friend, victim).unwrap();
    let bait = world.memory(victim, vec![1; 1 << 20], Access::ALL);
    let frames = world.tapped(cable, flooder).to_vec();
    let link = world.link_between(victim, flooder).unwrap();
    let limit = world.link(link).config().max_reads as usize;
    // The flooder's own engine is out of the game: forged frames only.
    world.stop(flooder);
    let mut seq = next_csn(&frames);
    for nth in 0..5_000 {
        let len = 1 << 20;
        let (remote_addr, remote_key) = (bait.addr, bait.key);
        let read = Request::Read {
            req_id: u32::try_from(nth).unwrap(),
            len,
            remote_addr,
            remote_key,
        };
        world.inject(
            cable,
            flooder,
            &forged(frames.last().unwrap(), nth, &Chunk::Request(seq, read)),
        );
        seq.csn += 1;
        world.run_for(MS / 200);
        assert!(
            world.host(victim).references() <= limit + 16,
            "{} references",
            world.host(victim).references()
        );
    }
    good.works(&mut world).unwrap();
    assert_eq!(world.violations(), [""; 0]);
}

#[test]
fn a_neighbour_claiming_anothers_node_id_stays_a_separate_peer() {
    let mut world = World::new(5, &Profile::STRIX);
    let (alice, bob) = (world.add_host(), world.add_host());
    let name = world.host(bob).node();
    let mallory = world.add_host_named(name);
    world.connect(alice, bob, Faults::NONE);
    world.run_for(SEC);
    let real = world.link_between(alice, bob).unwrap();
    let mut line = Line::new(&mut world, alice, bob).unwrap();
    line.works(&mut world).unwrap();
    let cable = world.connect(alice, mallory, Faults::NONE);
    world.run_for(30 * SEC);
    assert_eq!(world.rails_of(real), 1, "mallory's rail has joined bob's link");
    assert_eq!(world.links_of(alice).len(), 2);
    line.works(&mut world).unwrap();
    world.unplug(cable);
    unharmed(&mut world, &mut line);
}

#[test]
fn a_neighbour_who_was_there_first_under_anothers_node_id_ends_no_session_but_his_own() {
    let mut world = World::new(1, &Profile::STRIX);
    let (alice, bob) = (world.add_host(), world.add_host());
    let name = world.host(bob).node();
    let mallory = world.add_host_named(name);
    let cable = world.connect(alice, mallory, Faults::NONE);
    world.run_for(SEC);
    world.connect(alice, bob, Faults::NONE);
    while world.links_of(bob).is_empty() {
        world.run_for(MS);
    }
    let real = world.links_of(bob);
    for nonce in 1..=20 {
        let link = world.links_of(mallory)[0];
        world.offer_join(link, 0x1000 + nonce);
        world.run_for(100 * MS);
        if nonce % 5 == 0 {
            // A new link may give a new nonce.
            world.unplug(cable);
            world.plug(cable);
            world.run_for(SEC);
        }
    }
    assert_eq!(world.links_of(bob), real, "bob's session was ended");
    assert!(world.violations().is_empty());
}

/// Hosts of a session, for tests that only look at control messages.
fn hosts(line: &Line) -> (HostId, HostId) {
    (line.from.host, line.to.host)
}

#[test]
fn control_messages_of_random_bytes_are_ignored() {
    let (mut world, mut line, cable) = tapped();
    let mut rng = Rng::new(4);
    for _ in 0..1_000 {
        let mut message = [0; usb4_wire::CONTROL_LEN];
        message.fill_with(|| rng.next_u64().to_le_bytes()[0]);
        let (from, to) = hosts(&line);
        world.inject_control(cable, if rng.chance(0.5) { from } else { to }, message);
    }
    world.run_for(SEC);
    unharmed(&mut world, &mut line);
}

#[test]
fn chunks_of_a_closed_flow_open_nothing_and_are_not_kept() {
    let (mut world, line, cable) = tapped();
    let frames = world.tapped(cable, line.from.host).to_vec();
    world.close_flow(line.flow);
    world.run_for(10 * MS);
    assert_eq!(world.host(line.to.host).incoming_flows(), 0);
    // What a rail that was unplugged had delivered, but not acknowledged, comes again over another.
    for frame in &frames {
        let again = reseal(frame, |header| {
            header.packet += 1_000;
            header.ack = None;
        });
        world.inject(cable, line.from.host, &again);
    }
    world.run_for(10 * MS);
    assert_eq!(world.host(line.to.host).incoming_flows(), 0);
    assert_eq!(world.leaks(), [""; 0]);
}
