use std::vec::Vec;

use super::*;

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;

fn deadline(sender: &Sender) -> Option<Nanos> {
    Some(sender.deadline()).filter(|&at| at != NEVER)
}

fn config() -> RailConfig {
    RailConfig {
        tx_tag: 1,
        rx_tag: 2,
        peer_ring: 1024,
        tx_depth: 128,
        peer_max_ack_delay: 20 * US,
        rate_bps: 12_000_000_000,
        latency: 3 * US,
    }
}

fn sender(config: &RailConfig) -> Sender {
    let mut sender = Sender::new(Slab::boxed(1024));
    sender.start(0, config);
    sender
}

/// Sends frames with these slots at `now`; each is consumed at once.
fn send(sender: &mut Sender, now: Nanos, slots: impl IntoIterator<Item = u16>) -> u64 {
    let mut last = 0;
    for slot in slots {
        last = sender.on_sent(now, slot, 1000, true).expect("no room").0;
        sender.on_completed();
    }
    last
}

fn ack(sender: &mut Sender, now: Nanos, largest: u64, bitmap: u64) -> Vec<(u16, Outcome)> {
    let mut outcomes = Vec::new();
    assert!(sender.on_ack(now, AckBlock { largest, bitmap }, |slot, outcome| {
        outcomes.push((slot, outcome));
    }));
    outcomes
}

#[test]
fn an_unset_bit_below_the_largest_is_a_loss() {
    use Outcome::{Acked, Lost};
    let mut sender = sender(&config());
    send(&mut sender, 0, 10..15);
    let outcomes = ack(&mut sender, 10 * US, 4, 0b101);
    assert_eq!(outcomes, [(10, Acked), (11, Lost), (12, Acked), (13, Acked)]);
    assert_eq!(sender.in_flight(), 1, "what is above the largest is undecided");
    assert_eq!(ack(&mut sender, 10 * US, 4, u64::MAX), [], "decided is decided");
    assert_eq!(ack(&mut sender, 10 * US, 3, 0), []);
    assert_eq!(ack(&mut sender, 10 * US, 5, 0), [(14, Acked)]);
    assert_eq!((sender.in_flight(), sender.bytes, sender.data), (0, 0, 0));
}

#[test]
fn packets_a_block_does_not_reach_are_sent_again() {
    let mut sender = sender(&config());
    send(&mut sender, 0, 0..100);
    let outcomes = ack(&mut sender, 10 * US, 100, u64::MAX);
    let lost = outcomes
        .iter()
        .filter(|(_, outcome)| *outcome == Outcome::Lost)
        .count();
    assert_eq!((outcomes.len(), lost), (100, 35));
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_ignored() {
    let mut sender = sender(&config());
    for largest in [1, 2, u64::MAX] {
        let block = AckBlock { largest, bitmap: 0 };
        assert!(!sender.on_ack(0, block, |_, _| unreachable!()));
    }
    send(&mut sender, 0, [1]);
    let block = AckBlock {
        largest: 2,
        bitmap: 1,
    };
    assert!(!sender.on_ack(0, block, |_, _| unreachable!()));
    assert_eq!(sender.in_flight(), 1);
}

#[test]
fn the_window_leaves_the_reserve_to_acknowledgements_and_probes() {
    let mut sender = sender(&config());
    let mut sent = [0; 3];
    let kinds = [
        (Class::Request, 1),
        (Class::Response, 1),
        (Class::Reserve, NO_SLOT),
    ];
    for ((class, slot), count) in kinds.into_iter().zip(&mut sent) {
        while sender.can_send(class) {
            send(&mut sender, 0, [slot]);
            *count += 1;
        }
    }
    assert_eq!(sent, [1024 - 32 - 16, 16, 31]);
    assert_eq!(sender.on_sent(0, 1, 1, true), None, "the peer's ring is full");
}

#[test]
fn full_request_windows_leave_room_for_responses() {
    for peer_ring in [36, 64, 256, 1024] {
        let mut sender = sender(&RailConfig {
            peer_ring,
            ..config()
        });
        while sender.can_send(Class::Request) {
            send(&mut sender, 0, [1]);
        }
        assert!(sender.can_send(Class::Response), "peer ring {peer_ring}");
    }
}

#[test]
fn unconfirmed_acknowledgements_do_not_close_the_window_of_data() {
    for peer_ring in [33, 34, 64, 1024] {
        let mut sender = sender(&RailConfig {
            peer_ring,
            ..config()
        });
        let mut acks = 0;
        while deadline(&sender).is_none() {
            sender.on_sent(0, NO_SLOT, 40, false).unwrap();
            sender.on_completed();
            acks += 1;
        }
        sender.on_timer(MS);
        assert!(sender.probe_due());
        assert!(
            acks <= u64::from(peer_ring) / 4 + 1,
            "{acks} before one is confirmed"
        );
        assert!(sender.can_send(Class::Request), "peer ring {peer_ring}");
        let ping = send(&mut sender, 0, [NO_SLOT]);
        assert!(deadline(&sender).is_some(), "the PING may be lost");
        ack(&mut sender, 0, ping, u64::MAX);
        assert_eq!((sender.in_flight(), deadline(&sender)), (0, None));
    }
}

#[test]
fn packet_numbers_begin_at_one_and_never_repeat() {
    let mut sender = sender(&config());
    let mut expected = 0;
    for round in 0..1_000 {
        let now = round * MS;
        expected += 1;
        assert_eq!(send(&mut sender, now, [1]), expected);
        expected += 1;
        assert_eq!(sender.on_sent(now, NO_SLOT, 40, false).unwrap().0, expected);
        sender.on_completed();
        sender.on_timer(now + MS / 2);
        expected += 1;
        assert_eq!(send(&mut sender, now + MS / 2, [NO_SLOT]), expected);
        // What is lost is numbered anew, too.
        ack(&mut sender, now + MS / 2, expected, 0);
    }
}

#[test]
fn the_smallest_rings_allowed_still_carry_data() {
    for (peer_ring, ring, data) in [
        (33, 1024, 1),
        (34, 1024, 2),
        (64, 1024, 32),
        (1024, 128, 96),
        (65535, 256, 224),
    ] {
        let mut sender = Sender::new(Slab::boxed(ring));
        sender.start(
            0,
            &RailConfig {
                peer_ring,
                ..config()
            },
        );
        let mut sent = 0;
        while sender.can_send(Class::Response) {
            send(&mut sender, 0, [1]);
            sent += 1;
        }
        assert_eq!(sent, data, "peer ring {peer_ring}, account for {ring}");
        assert!(sender.can_send(Class::Reserve));
    }
    let mut none = Sender::new(Slab::empty());
    none.start(
        0,
        &RailConfig {
            peer_ring: 0,
            tx_depth: 0,
            rate_bps: 0,
            ..config()
        },
    );
    assert!(!none.can_send(Class::Reserve) && none.on_sent(0, 1, 1, true).is_none());
}

#[test]
fn a_slow_tx_ring_holds_data_back_before_acknowledgements() {
    let mut sender = sender(&config());
    while sender.can_send(Class::Request) {
        sender.on_sent(0, 1, 64, true);
    }
    assert_eq!(sender.posted(), 124);
    assert!(sender.can_send(Class::Reserve));
    for _ in 0..4 {
        sender.on_sent(0, NO_SLOT, 40, false);
    }
    assert!(!sender.can_send(Class::Reserve));
    sender.on_completed();
    assert!(sender.can_send(Class::Reserve) && !sender.can_send(Class::Request));
}

#[test]
fn silence_asks_for_one_probe_per_step_and_frees_nothing() {
    let mut sender = sender(&config());
    send(&mut sender, 0, 0..5);
    let mut steps = Vec::new();
    let mut now = 0;
    for _ in 0..12 {
        let at = deadline(&sender).unwrap();
        sender.on_timer(at - 1);
        assert!(!sender.probe_due());
        sender.on_timer(at);
        assert!(sender.probe_due());
        assert_eq!(deadline(&sender), None, "one probe at a time");
        steps.push(at - now);
        now = at;
        assert!(
            sender.on_sent(now, NO_SLOT, 56, true).unwrap().1,
            "answered without delay"
        );
        assert!(!sender.probe_due());
    }
    assert!(steps[0] < 300 * US && steps[1] < steps[0] * 2, "{steps:?}");
    assert!(steps.windows(2).all(|pair| pair[0] <= pair[1]), "{steps:?}");
    assert_eq!(*steps.last().unwrap(), BACKOFF_CAP);
    assert_eq!(sender.in_flight(), 17);
    assert_eq!(ack(&mut sender, now, 17, u64::MAX).len(), 5);
    assert_eq!(deadline(&sender), None, "nothing left to wait for");
}

#[test]
fn progress_brings_the_probe_timer_back_to_its_first_step() {
    let mut sender = sender(&config());
    send(&mut sender, 0, 0..5);
    let first = deadline(&sender).unwrap();
    for _ in 0..10 {
        let at = deadline(&sender).unwrap();
        sender.on_timer(at);
        sender.on_sent(at, NO_SLOT, 56, true);
    }
    let now = sender.last_elicit + MS;
    ack(&mut sender, now, 1, 0);
    assert!(deadline(&sender).unwrap() - now <= first * 2);
}

#[test]
fn data_that_can_be_sent_is_the_probe() {
    let mut sender = sender(&config());
    send(&mut sender, 0, [1]);
    sender.on_timer(MS);
    assert!(sender.probe_due());
    sender.on_sent(MS, NO_SLOT, 40, false);
    assert!(sender.probe_due(), "a pure acknowledgement is no probe");
    assert_eq!(sender.on_sent(MS, 2, 1000, true), Some((3, true)));
    assert!(!sender.probe_due());
}

#[test]
fn probes_to_a_stopped_peer_outlast_fifty_minutes() {
    let mut sender = sender(&config());
    while sender.can_send(Class::Response) {
        send(&mut sender, 0, [1]);
    }
    let mut probes = 0;
    while let Some(at) = deadline(&sender) {
        sender.on_timer(at);
        if !sender.can_send(Class::Reserve) {
            break;
        }
        sender.on_sent(at, NO_SLOT, 56, true);
        sender.on_completed();
        probes += 1;
    }
    assert_eq!(probes, 31);
    assert!(sender.last_elicit > 3_000_000 * MS, "{}", sender.last_elicit);
    // Spent: silent until the peer speaks, and then as if nothing had happened.
    assert_eq!(deadline(&sender), None);
    let now = sender.last_elicit + MS;
    ack(&mut sender, now, 64, u64::MAX);
    assert!(deadline(&sender).unwrap() < now + 10 * MS);
}

#[test]
fn a_peer_that_paused_does_not_look_far_away_afterwards() {
    let mut sender = sender(&config());
    let mut now = 0;
    for i in 0..100 {
        let number = send(&mut sender, now, [i]);
        now += 10 * US;
        ack(&mut sender, now, number, u64::MAX);
    }
    let before = sender.probe_interval();
    let number = send(&mut sender, now, [1]);
    for _ in 0..8 {
        let at = deadline(&sender).unwrap();
        sender.on_timer(at);
        sender.on_sent(at, NO_SLOT, 56, true);
    }
    for i in 0..=8 {
        ack(&mut sender, now + 60_000 * MS + i, number + i, u64::MAX);
    }
    assert!(
        sender.probe_interval() < before * 3,
        "{}",
        sender.probe_interval()
    );
}

#[test]
fn a_peer_that_is_late_for_the_first_frame_does_not_slow_recovery_down() {
    let mut sender = sender(&config());
    let before = sender.probe_interval();
    send(&mut sender, 0, [1]);
    let mut now = 0;
    for _ in 0..3 {
        now = deadline(&sender).unwrap();
        sender.on_timer(now);
        sender.on_sent(now, NO_SLOT, 56, true);
    }
    ack(&mut sender, now + 300 * US, 4, u64::MAX);
    assert!(sender.probe_interval() <= before);
}

#[test]
fn a_round_trip_that_has_grown_is_learnt_and_not_probed_for_ever() {
    let mut sender = sender(&config());
    let mut now = 0;
    let mut probes = Vec::new();
    for flight in 0..40 {
        let trip = if flight < 10 { 10 * US } else { 500 * US };
        let mut acks = std::collections::VecDeque::new();
        acks.push_back((now + trip, send(&mut sender, now, [1])));
        probes.push(0);
        while let Some(&(at, number)) = acks.front() {
            match deadline(&sender).filter(|&deadline| deadline < at) {
                Some(deadline) => {
                    sender.on_timer(deadline);
                    let number = sender.on_sent(deadline, NO_SLOT, 56, true).unwrap().0;
                    acks.push_back((deadline + trip, number));
                    probes[flight] += 1;
                }
                None => {
                    acks.pop_front();
                    now = at;
                    ack(&mut sender, now, number, u64::MAX);
                }
            }
        }
        now += MS;
    }
    assert_eq!(probes[..10].iter().sum::<u32>(), 0, "{probes:?}");
    assert!(probes[10] > 0, "{probes:?}");
    assert_eq!(probes[30..].iter().sum::<u32>(), 0, "{probes:?}");
}

#[test]
fn a_stalled_or_slow_rail_finishes_later() {
    let fast = sender(&RailConfig {
        rate_bps: 38_000_000_000,
        ..config()
    });
    let mut slow = sender(&config());
    assert!(fast.expected_finish(0, 4096) < slow.expected_finish(0, 4096));
    let idle = slow.expected_finish(0, 4096);
    send(&mut slow, 0, 0..50);
    let loaded = slow.expected_finish(0, 4096);
    assert!(loaded > idle + 30 * US);
    slow.on_timer(MS);
    assert!(slow.expected_finish(0, 4096) > loaded + 100 * US);
}

#[test]
fn the_rate_is_learnt_from_a_busy_rail() {
    let mut sender = sender(&config());
    let mut now = 0;
    let mut acked = 0;
    let mut sent = 0;
    // 5 Gb/s: a frame every 6.5 us, always a full TX ring.
    for _ in 0..5_000 {
        while sender.can_send(Class::Request) {
            sender.on_sent(now, 1, 4096, true);
            sent += 1;
        }
        now += 6_554;
        sender.on_completed();
        acked += 1;
        ack(&mut sender, now, acked, u64::MAX);
    }
    assert!(sent > 5_000);
    assert!(
        (4_800_000_000..5_200_000_000).contains(&sender.rate()),
        "{}",
        sender.rate()
    );
}

#[test]
fn stopping_hands_out_what_is_undecided_and_nothing_else() {
    let mut sender = sender(&config());
    send(&mut sender, 0, [1, 2, 3, NO_SLOT, 4]);
    ack(&mut sender, MS, 2, 1);
    let mut slots = Vec::new();
    sender.stop(|slot| slots.push(slot));
    assert_eq!(slots, [3, 4]);
    assert!(!sender.can_send(Class::Reserve) && deadline(&sender).is_none());
    sender.start(MS, &config());
    assert_eq!(send(&mut sender, MS, [7]), 1, "a new session numbers anew");
}

#[test]
fn a_peer_is_silent_from_what_it_was_to_answer_first() {
    let mut sender = sender(&config());
    assert_eq!(sender.silent_since(), NEVER);
    send(&mut sender, 0, [1]);
    ack(&mut sender, MS, 1, 0);
    // Long after that.
    let sent = 1000 * MS;
    send(&mut sender, sent, [2, 3]);
    for _ in 0..2 {
        assert_eq!(sender.silent_since(), NEVER, "a late answer is no silence");
        let at = deadline(&sender).unwrap();
        sender.on_timer(at);
        sender.on_sent(at, NO_SLOT, 56, true);
    }
    assert_eq!(sender.silent_since(), sent);
    ack(&mut sender, sent + MS, 2, 0);
    assert_eq!(sender.silent_since(), NEVER);
}
