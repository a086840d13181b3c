//! Data frames: paths, flow control, rate and latency.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

mod rig;

use rig::{ADAPTER, COMPLETED, E2E, EOF, Got, MS, PATH, Rig, SIZE, SOF};
use usb4_nhi_model::{Cable, Command, MappedPage, Nhi, Topology};

fn frame(bytes: &[u8]) -> Option<Got> {
    Some(Got {
        flags: COMPLETED,
        sof: SOF,
        eof: EOF,
        bytes: bytes.to_vec(),
    })
}

#[test]
fn a_frame_goes_from_ring_to_ring() {
    let mut rig = Rig::new(Topology::pair());
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..4);
    rig.send(0, 1, 0, b"hello");
    assert!(rig.sent(0, 1, 0));
    assert_eq!(rig.got(1, 1, 0), frame(b"hello"));
    let (tx, rx) = (rig.counters(0), rig.counters(1));
    assert_eq!(
        (tx.tx_frames, tx.tx_bytes, rx.rx_frames, rx.rx_bytes),
        (1, 5, 1, 5)
    );
    assert_eq!(rig.read(0, rig::TX_RINGS + 0x18), 1 << 16 | 1);
}

#[test]
fn a_full_frame_has_length_0_and_a_longer_one_than_the_buffer_is_cut() {
    let mut rig = Rig::new(Topology::pair());
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..4);
    rig.send(0, 1, 0, &[7; 4096]);
    assert_eq!(rig.got(1, 1, 0), frame(&[7; 4096]));
    rig.ring(1, false, 1, 0);
    rig.write(1, rig::RX_RINGS + 0x1c, 100 << 16 | SIZE);
    rig.write(1, rig::RX_OPTIONS + 0x20, rig::ENABLE);
    rig.post_rx(1, 1, 0..4);
    rig.send(0, 1, 1, &[7; 200]);
    let got = rig.got(1, 1, 0).unwrap();
    assert_eq!((got.flags, got.bytes.len()), (COMPLETED | 4, 100));
    assert_eq!(rig.counters(1).rx_truncated, 1);
}

#[test]
fn without_flow_control_a_frame_without_a_buffer_is_lost_and_said_so() {
    let mut rig = Rig::new(Topology::pair());
    rig.connect(0, 0);
    rig.send(0, 1, 0, b"hello");
    assert!(rig.sent(0, 1, 0), "consumed is not delivered");
    assert_eq!(rig.counters(1).rx_overruns, 1);
    rig.write(1, rig::DMA_MISC, 1 << 17);
    // Overrun of ring 1: bit 2 * 12 + 1.
    assert_eq!(rig.read(1, 0x37800) >> 25 & 1, 1);
}

#[test]
fn flow_control_holds_frames_until_a_buffer_is_posted() {
    let mut rig = Rig::new(Topology::pair());
    rig.open_tx(0, 1, 0, 8);
    rig.ring(0, true, 1, rig::ENABLE | E2E);
    rig.send(0, 1, 0, b"hello");
    assert!(!rig.sent(0, 1, 0), "no far path yet");
    rig.open_rx(1, 1, 0, 8);
    assert!(!rig.sent(0, 1, 0), "no far ring yet");
    rig.ring(1, false, 1, rig::ENABLE | E2E);
    assert!(!rig.sent(0, 1, 0), "no buffer yet");
    rig.post_rx(1, 1, 0..1);
    assert!(rig.sent(0, 1, 0));
    assert_eq!(rig.got(1, 1, 0), frame(b"hello"));
    assert_eq!(rig.counters(0).held, 1);
}

#[test]
fn a_receiver_with_flow_control_holds_a_sender_that_never_heard_of_it() {
    let mut rig = Rig::parse("pair,latency=1000");
    rig.connect(0, E2E);
    rig.post_rx(1, 1, 0..2);
    for i in 0..4 {
        rig.send(0, 1, i, &[i as u8; 8]);
    }
    rig.advance_by(MS);
    assert_eq!(
        (rig.sent(0, 1, 1), rig.sent(0, 1, 2)),
        (true, false),
        "frames under way count"
    );
    rig.post_rx(1, 1, 2..4);
    rig.advance_by(MS);
    assert_eq!(rig.got(1, 1, 3), frame(&[3; 8]));
    assert_eq!(rig.counters(1).rx_overruns, 0);
}

#[test]
fn a_frame_refused_on_arrival_gives_its_buffer_to_the_next() {
    let mut rig = Rig::parse("pair,latency=1000");
    rig.connect(0, E2E);
    rig.post_rx(1, 1, 0..1);
    rig.prepare(0, 1, 0, b"bad PDF", SOF, 9);
    rig.prepare(0, 1, 1, b"good", SOF, EOF);
    rig.doorbell(0, 1, 2);
    assert!(!rig.sent(0, 1, 1));
    rig.advance_by(MS);
    assert_eq!(rig.got(1, 1, 0), frame(b"good"));
}

#[test]
fn frames_arrive_when_their_time_has_come() {
    // 2048 bits at 2 Gb/s are 1024 ns.
    let mut rig = Rig::parse("pair,rate=2000,latency=5000");
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..8);
    let start = rig.now;
    (0..2).for_each(|i| rig.prepare(0, 1, i, &[i as u8; 252], SOF, EOF));
    rig.doorbell(0, 1, 2);
    assert_eq!((rig.sent(0, 1, 0), rig.sent(0, 1, 1)), (true, false));
    assert_eq!(rig.fabric.deadline(), Some(start + 1024));
    rig.advance_by(6023);
    assert!(rig.sent(0, 1, 1) && rig.got(1, 1, 0).is_none());
    rig.advance_by(1);
    assert!(rig.got(1, 1, 0).is_some() && rig.got(1, 1, 1).is_none());
    rig.advance_by(1024);
    assert!(rig.got(1, 1, 1).is_some());
}

#[test]
fn a_late_clock_does_not_slow_the_link_down() {
    let mut rig = Rig::parse("pair,rate=2000");
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..15);
    (0..10).for_each(|i| rig.prepare(0, 1, i, &[0; 252], SOF, EOF));
    rig.doorbell(0, 1, 10);
    rig.now += 10 * 1024;
    let (now, world) = (rig.now, &mut rig.world);
    rig.fabric.advance(now, world);
    assert!(rig.got(1, 1, 9).is_some());
}

#[test]
fn rings_that_share_a_link_take_turns() {
    let mut rig = Rig::parse("pair,rate=2000");
    rig.connect(0, 0);
    rig.open_tx(0, 2, 0, 9);
    rig.open_rx(1, 2, 0, 9);
    rig.ring(0, true, 2, rig::ENABLE);
    rig.ring(1, false, 2, rig::ENABLE);
    for hop in 1..3 {
        rig.post_rx(1, hop, 0..15);
        (0..10).for_each(|i| rig.prepare(0, hop, i, &[0; 252], SOF, EOF));
    }
    rig.doorbell(0, 1, 10);
    rig.doorbell(0, 2, 10);
    rig.advance_by(10 * 1024);
    let seen = |hop| (0..10).filter(|&i| rig.got(1, hop, i).is_some()).count();
    assert!(seen(1).abs_diff(seen(2)) <= 2, "{} {}", seen(1), seen(2));
}

#[test]
fn two_lanes_carry_twice_as_much_and_a_narrow_retrain_halves_it() {
    let mut rig = Rig::parse("pair,rate=2000,train=1");
    rig.connect(0, 0);
    (0..2).for_each(|n| rig.acknowledge_all(n));
    for (n, adapter) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
        rig.write_space(n, adapter, ADAPTER, 0x21, &[3 << 4 | 0xc]);
    }
    rig.write_space(0, 1, ADAPTER, 0x21, &[3 << 4 | 0xc | 1 << 15]);
    assert_eq!(rig.read_space(1, 1, ADAPTER, 0x21) >> 20 & 0x3f, 2);
    assert_eq!(rig.read_space(1, 1, ADAPTER, 4) >> 20 & 0x3ff, 120);
    let time = |rig: &mut Rig, i| {
        rig.post_rx(1, 1, i..i + 1);
        let start = rig.now;
        rig.send(0, 1, i, &[0; 252]);
        while rig.got(1, 1, i).is_none() {
            rig.advance_by(1);
        }
        rig.now - start
    };
    assert_eq!(time(&mut rig, 0), 512);
    rig.command(Command::Retrain {
        cable: Cable(0),
        lanes: 1,
    });
    assert_eq!(
        time(&mut rig, 1),
        MS + 1024,
        "frames wait for the link to retrain"
    );
    assert_eq!(time(&mut rig, 2), 1024);
    assert_eq!(rig.read_space(1, 1, ADAPTER, 0x21) >> 20 & 0x3f, 1);
    rig.command(Command::Retrain {
        cable: Cable(0),
        lanes: 2,
    });
    assert_eq!(time(&mut rig, 3), 512);
    assert_eq!(rig.receive_all(0), [], "no plug event");
}

#[test]
fn paths_lead_to_the_hosts_they_name() {
    let mut rig = Rig::parse("chain4,controllers=2,hops=strix");
    // Host 1 is controllers 2 and 3, one port each: to host 0 (controller 0) and host 2 (controller 4).
    for (from, to) in [(2, 0), (3, 4)] {
        rig.open_tx(from, 1, 0, 8);
        rig.open_rx(to, 2, 0, 8);
        rig.ring(from, true, 1, rig::ENABLE);
        rig.ring(to, false, 2, rig::ENABLE);
        rig.post_rx(to, 2, 0..4);
        rig.send(from, 1, 0, &[from as u8; 8]);
    }
    assert_eq!(rig.got(0, 2, 0), frame(&[2; 8]));
    assert_eq!(rig.got(4, 2, 0), frame(&[3; 8]));
}

#[test]
fn both_ports_of_a_controller_have_paths_of_their_own() {
    let mut rig = Rig::parse("triangle");
    for (port, to, to_port) in [(0, 1, 0), (1, 2, 1)] {
        let ring = port + 1;
        rig.open_tx(0, ring, port, 8);
        rig.open_rx(to, 1, to_port, 8);
        rig.ring(0, true, u64::from(ring), rig::ENABLE);
        rig.ring(to, false, 1, rig::ENABLE);
        rig.post_rx(to, 1, 0..4);
        rig.send(0, u64::from(ring), 0, &[port as u8; 4]);
        assert_eq!(rig.got(to, 1, 0), frame(&[port as u8; 4]));
    }
}

#[test]
fn frames_under_way_make_their_path_pending() {
    let mut rig = Rig::parse("pair,latency=1000000");
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..4);
    rig.send(0, 1, 0, b"x");
    assert_eq!(rig.read_space(1, 1, PATH, 17) >> 28 & 1, 1);
    rig.advance_by(MS);
    assert_eq!(rig.read_space(1, 1, PATH, 17) >> 28 & 1, 0);
}

#[test]
fn a_cable_pulled_loses_what_is_under_way_and_gives_its_buffers_back() {
    let mut rig = Rig::parse("pair,latency=1000,train=0");
    rig.connect(0, E2E);
    rig.post_rx(1, 1, 0..1);
    rig.send(0, 1, 0, b"lost");
    rig.command(Command::Unplug(Cable(0)));
    rig.advance_by(MS);
    assert_eq!(rig.got(1, 1, 0), None);
    rig.command(Command::Plug(Cable(0)));
    rig.advance_by(MS);
    rig.send(0, 1, 1, b"found");
    rig.advance_by(MS);
    assert_eq!(rig.got(1, 1, 0), frame(b"found"));
}

#[test]
fn more_frames_than_one_call_moves_are_moved_by_the_next() {
    let mut rig = Rig::new(Topology::pair());
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..15);
    // One descriptor, again and again: a ring of 60000 in which all but the first 16 are zero.
    rig.ring(0, true, 1, 0);
    rig.write(0, rig::TX_RINGS + 0x1c, 60_000);
    rig.write(0, rig::TX_OPTIONS + 0x20, rig::ENABLE);
    let before = rig.world.accesses;
    rig.write(0, rig::TX_RINGS + 0x18, 59_999 << 16);
    assert!(rig.world.accesses - before < 256 * 8);
    assert_eq!(rig.fabric.deadline(), Some(rig.now));
    rig.advance_by(0);
    assert_eq!(rig.counters(0).tx_frames + rig.counters(0).dropped, 59_999);
    assert_ne!(rig.fabric.deadline(), Some(rig.now));
}

#[test]
fn a_mapped_doorbell_works_like_a_trapped_one() {
    let mut rig = Rig::new(Topology::pair());
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..4);
    rig.prepare(0, 1, 0, b"hello", SOF, EOF);
    let mut page: Vec<u32> = (0..48).map(|i| rig.read(0, 4 * i)).collect();
    let (now, world) = (rig.now, &mut rig.world);
    let mut poll = |page: &[u32]| {
        let mut word = |offset: u64| page[usize::try_from(offset / 4).unwrap()];
        rig.fabric
            .poll(Nhi(0), MappedPage::TxRings, &mut word, now, world)
    };
    assert!(!poll(&page));
    page[6] = 1 << 16; // the driver's write zeroes our half
    assert!(poll(&page) && !poll(&page));
    assert_eq!(rig.got(1, 1, 0), frame(b"hello"));
}

#[test]
fn memory_that_is_not_there_stops_a_ring_not_the_fabric() {
    let mut rig = Rig::new(Topology::pair());
    rig.connect(0, 0);
    rig.write(0, rig::TX_OPTIONS + 0x20, 0);
    rig.write(0, rig::TX_RINGS + 0x14, 0xffff_ffff); // base high
    rig.write(0, rig::TX_OPTIONS + 0x20, rig::ENABLE);
    rig.doorbell(0, 1, 5);
    assert_eq!((rig.counters(0).dma_faults, rig.counters(0).tx_frames), (1, 0));
    assert_ne!(rig.fabric.deadline(), Some(rig.now));
    rig.ring(0, true, 1, 0);
    rig.ring(0, true, 1, rig::ENABLE);
    rig.post_rx(1, 1, 0..4);
    rig.send(0, 1, 0, b"again");
    assert_eq!(rig.got(1, 1, 0), frame(b"again"));
}

#[test]
fn no_byte_of_a_guest_is_touched_once_it_is_gone() {
    let mut rig = Rig::parse("pair,latency=1000");
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..4);
    rig.send(0, 1, 0, b"late");
    rig.fabric.disconnected(Nhi(1), rig.now, &mut rig.world);
    let before = rig.world.memory[1].clone();
    rig.advance_by(1000 * MS);
    assert_eq!(rig.world.memory[1], before);
}
