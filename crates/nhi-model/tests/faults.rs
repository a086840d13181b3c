//! What a person or a test does to the fabric, and what hosts see of it.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

mod rig;

use rig::{COMPLETED, EOF, MS, Rig, SOF};
use usb4_nhi_model::{
    Cable, CableFaults, Command, CommandError, ControlPacket, Direction, LinkState, Nhi, Reply, Ring,
    RingKind, Topology,
};

const CABLE: Cable = Cable(0);
const ALWAYS: u32 = 1_000_000;
const TX: Ring = Ring {
    kind: RingKind::Tx,
    hop: 1,
};

fn connected() -> Rig {
    let mut rig = Rig::new(Topology::pair());
    (0..2).for_each(|n| rig.acknowledge_all(n));
    rig.connect(0, 0);
    rig.post_rx(1, 1, 0..15);
    rig
}

fn faults(rig: &mut Rig, faults: CableFaults) {
    rig.command(Command::Faults {
        cable: CABLE,
        direction: Some(Direction::Forth),
        faults,
    });
}

#[test]
fn frames_are_lost_damaged_doubled_and_delayed_on_demand() {
    let mut rig = connected();
    faults(
        &mut rig,
        CableFaults {
            loss: ALWAYS,
            ..CableFaults::default()
        },
    );
    rig.send(0, 1, 0, b"lost");
    assert!(rig.sent(0, 1, 0) && rig.got(1, 1, 0).is_none());
    faults(
        &mut rig,
        CableFaults {
            corrupt: ALWAYS,
            ..CableFaults::default()
        },
    );
    rig.send(0, 1, 1, b"bad!");
    let got = rig.got(1, 1, 0).unwrap();
    assert!(got.flags == COMPLETED | 1 && got.bytes != b"bad!");
    faults(
        &mut rig,
        CableFaults {
            corrupt_silently: ALWAYS,
            ..CableFaults::default()
        },
    );
    rig.send(0, 1, 2, b"sly!");
    let got = rig.got(1, 1, 1).unwrap();
    assert!(got.flags == COMPLETED && got.bytes != b"sly!");
    faults(
        &mut rig,
        CableFaults {
            duplicate: ALWAYS,
            ..CableFaults::default()
        },
    );
    rig.send(0, 1, 3, b"twice");
    assert_eq!(rig.got(1, 1, 2), rig.got(1, 1, 3));
    faults(
        &mut rig,
        CableFaults {
            delay: MS,
            ..CableFaults::default()
        },
    );
    rig.send(0, 1, 4, b"late");
    rig.advance_by(MS - 1);
    assert!(rig.got(1, 1, 4).is_none());
    rig.advance_by(1);
    assert!(rig.got(1, 1, 4).is_some());
    let stats = rig.stats();
    let forth = stats.cables[0].counters[0];
    assert_eq!(
        (forth.frames, forth.lost, forth.corrupted, forth.duplicated),
        (5, 1, 2, 1)
    );
    assert_eq!(stats.nhis[1].counters.rx_crc_errors, 1);
}

#[test]
fn the_next_frames_are_lost_and_no_more() {
    let mut rig = connected();
    rig.command(Command::LoseFrames {
        cable: CABLE,
        direction: Direction::Forth,
        count: 2,
    });
    (0..3).for_each(|i| rig.send(0, 1, i, &[i as u8]));
    assert_eq!(rig.got(1, 1, 0).unwrap().bytes, [2]);
}

#[test]
fn control_packets_on_a_cable_are_lost_damaged_and_doubled() {
    let mut rig = connected();
    let packet = ControlPacket::new(6, vec![0, 1, 7]);
    faults(
        &mut rig,
        CableFaults {
            control_loss: ALWAYS,
            ..CableFaults::default()
        },
    );
    rig.send_control(0, &packet);
    assert_eq!(rig.receive_all(1), []);
    faults(
        &mut rig,
        CableFaults {
            control_duplicate: ALWAYS,
            ..CableFaults::default()
        },
    );
    rig.send_control(0, &packet);
    assert_eq!(rig.receive_all(1).len(), 2);
    faults(
        &mut rig,
        CableFaults {
            control_delay: MS,
            ..CableFaults::default()
        },
    );
    rig.send_control(0, &packet);
    assert_eq!(rig.receive_all(1), []);
    rig.advance_by(MS);
    assert_eq!(rig.receive_all(1).len(), 1);
    let forth = rig.stats().cables[0].counters[0];
    assert_eq!(
        (forth.control, forth.control_lost, forth.control_duplicated),
        (3, 1, 1)
    );
    faults(
        &mut rig,
        CableFaults {
            control_corrupt: ALWAYS,
            ..CableFaults::default()
        },
    );
    rig.send_control(0, &packet);
    assert!(
        rig.world
            .log
            .iter()
            .any(|line| line.contains("ToHost(Nhi(1))") && line.contains("Passed"))
    );
    assert_eq!(rig.stats().cables[0].counters[0].control_corrupted, 1);
}

#[test]
fn a_stranded_completion_is_never_seen_though_the_frame_is() {
    let mut rig = connected();
    rig.command(Command::StrandCompletions {
        nhi: Nhi(0),
        ring: TX,
        count: 1,
    });
    (0..2).for_each(|i| rig.send(0, 1, i, b"x"));
    rig.advance_by(1000 * MS);
    assert_eq!((rig.sent(0, 1, 0), rig.sent(0, 1, 1)), (false, true));
    assert!(rig.got(1, 1, 1).is_some());
    assert_eq!(rig.counters(0).stranded, 1);
}

#[test]
fn an_ignored_doorbell_needs_another_kick() {
    let mut rig = connected();
    rig.command(Command::IgnoreDoorbells {
        nhi: Nhi(0),
        ring: TX,
        count: 1,
    });
    rig.send(0, 1, 0, b"x");
    rig.advance_by(1000 * MS);
    assert!(!rig.sent(0, 1, 0));
    rig.doorbell(0, 1, 1);
    assert!(rig.sent(0, 1, 0));
}

#[test]
fn a_peers_reset_is_an_unplug_and_then_silence() {
    let mut rig = connected();
    rig.command(Command::ResetPeer(Nhi(1)));
    let packets = rig.receive_all(0);
    assert_eq!(
        packets.iter().map(|packet| packet.words[2]).collect::<Vec<_>>(),
        [1 | 1 << 31]
    );
    rig.send(0, 1, 0, b"x");
    assert!(rig.sent(0, 1, 0) && rig.got(1, 1, 0).is_none());
    assert_eq!(rig.stats().cables[0].link, LinkState::Down);
    rig.acknowledge(0, 1, true);
    rig.start(1);
    rig.advance_by(1000 * MS);
    assert!(
        rig.receive_all(0)
            .iter()
            .any(|packet| packet.pdf == 5 && packet.words[2] == 1)
    );
}

#[test]
fn a_frame_into_an_absent_path_wedges_the_sender_where_that_is_modelled() {
    for (text, wedges) in [("pair,wedge=on", true), ("pair", false)] {
        let mut rig = Rig::parse(text);
        rig.connect(0, 0);
        rig.post_rx(1, 1, 0..15);
        rig.close_rx(1, 0, 8);
        rig.send(0, 1, 0, &[0; 4096]);
        rig.open_rx(1, 1, 0, 8);
        rig.send(0, 1, 1, b"x");
        assert_eq!(
            (rig.sent(0, 1, 1), rig.counters(0).wedged),
            (!wedges, u64::from(wedges))
        );
        rig.command(Command::Unplug(CABLE));
        rig.command(Command::Plug(CABLE));
        rig.advance_by(1000 * MS);
        assert!(rig.sent(0, 1, 1), "a new link mends it");
    }
}

#[test]
fn an_injected_frame_arrives_unless_the_ring_does_not_want_it() {
    let mut rig = connected();
    let inject = |hop, sof, len| Command::InjectFrame {
        nhi: Nhi(1),
        hop,
        sof,
        eof: EOF,
        bytes: vec![9; len],
        crc_error: true,
    };
    rig.command(inject(1, SOF, 3));
    let got = rig.got(1, 1, 0).unwrap();
    assert_eq!((got.flags, got.bytes), (COMPLETED | 1, vec![9; 3]));
    assert!(matches!(
        rig.try_command(inject(1, 5, 3)),
        Err(CommandError::NotTaken(_))
    ));
    assert!(matches!(
        rig.try_command(inject(2, SOF, 3)),
        Err(CommandError::NotTaken(_))
    ));
    assert_eq!(
        rig.try_command(inject(0, SOF, 3)),
        Err(CommandError::NoSuchRing(0))
    );
    assert_eq!(rig.try_command(inject(1, 16, 3)), Err(CommandError::BadPdf(16)));
    assert_eq!(
        rig.try_command(inject(1, SOF, 4097)),
        Err(CommandError::BadLength(4097))
    );
}

#[test]
fn a_mark_is_a_reading_and_a_clear_in_one() {
    let mut rig = connected();
    rig.send(0, 1, 0, b"x");
    let Reply::Stats(marked) = rig.command(Command::Mark) else {
        panic!()
    };
    assert_eq!(
        (
            marked.nhis[0].counters.tx_frames,
            marked.cables[0].counters[0].frames
        ),
        (1, 1)
    );
    let after = rig.stats();
    assert_eq!(
        (
            after.nhis[0].counters.tx_frames,
            after.cables[0].counters[0].frames
        ),
        (0, 0)
    );
    assert!(
        marked.nhis[0]
            .counters
            .fields()
            .any(|field| field == ("tx_frames", 1))
    );
}

#[test]
fn commands_about_things_that_are_not_there_are_refused() {
    let mut rig = connected();
    let refusals = [
        (Command::Plug(Cable(1)), CommandError::NoSuchCable(1)),
        (Command::ResetPeer(Nhi(2)), CommandError::NoSuchNhi(2)),
        (
            Command::Retrain {
                cable: CABLE,
                lanes: 3,
            },
            CommandError::BadLanes(3),
        ),
        (
            Command::LoseInterrupts {
                nhi: Nhi(0),
                vector: Some(16),
                count: 1,
            },
            CommandError::NoSuchVector(16),
        ),
        (
            Command::IgnoreDoorbells {
                nhi: Nhi(0),
                ring: Ring { hop: 12, ..TX },
                count: 1,
            },
            CommandError::NoSuchRing(12),
        ),
    ];
    for (command, error) in refusals {
        assert_eq!(rig.try_command(command), Err(error));
    }
    let faults = CableFaults {
        loss: ALWAYS + 1,
        ..CableFaults::default()
    };
    let command = Command::Faults {
        cable: CABLE,
        direction: None,
        faults,
    };
    assert_eq!(rig.try_command(command), Err(CommandError::BadRate(ALWAYS + 1)));
}

#[test]
fn the_same_seed_and_calls_give_the_same_history() {
    let history = || {
        let mut rig = Rig::parse("pair,rate=10000,latency=700");
        rig.connect(0, 0);
        rig.post_rx(1, 1, 0..15);
        let some = CableFaults {
            loss: 200_000,
            corrupt: 200_000,
            duplicate: 200_000,
            ..CableFaults::default()
        };
        faults(&mut rig, some);
        for i in 0..100 {
            rig.send(0, 1, i, &[0; 300]);
            rig.post_rx(1, 1, i + 14..i + 15);
            rig.advance_by(500);
        }
        rig.world.log
    };
    let first = history();
    assert_eq!(first, history());
    assert!(first.iter().any(|line| line.contains("injected loss")));
}
