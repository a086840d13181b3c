use super::*;

const DELAY: Nanos = 20_000;

fn receive(receiver: &mut Receiver, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        assert_eq!(receiver.on_received(0, number, true, false), Verdict::Accept);
    }
}

#[test]
fn a_repeated_or_older_packet_is_a_duplicate() {
    let mut receiver = Receiver::new(DELAY);
    receive(&mut receiver, [1, 2, 5]);
    let before = receiver.take_block();
    for old in [0, 1, 3, 4, 5] {
        assert!(!receiver.is_new(old));
        assert_eq!(receiver.on_received(0, old, true, true), Verdict::Duplicate);
    }
    assert!(!receiver.is_due(NEVER - 1), "a duplicate makes us send nothing");
    assert_eq!(receiver.take_block(), before);
}

#[test]
fn the_block_says_what_is_missing() {
    let mut receiver = Receiver::new(DELAY);
    assert_eq!(receiver.take_block(), None);
    receive(&mut receiver, [2, 3, 5]);
    // Bits: 4 missing, 3 and 2 there, 1 missing.
    let block = AckBlock {
        largest: 5,
        bitmap: 0b0110,
    };
    assert_eq!(receiver.take_block(), Some(block));
    receive(&mut receiver, [69]);
    assert_eq!(receiver.take_block().unwrap().bitmap, 1 << 63);
    receive(&mut receiver, [200]);
    assert_eq!(receiver.take_block().unwrap().bitmap, 0);
}

#[test]
fn acknowledgements_wait_for_sixteen_packets_or_the_delay() {
    let mut receiver = Receiver::new(DELAY);
    for number in 1..16 {
        receiver.on_received(number * 100, number, true, false);
    }
    assert!(!receiver.is_due(1_500));
    assert_eq!(receiver.deadline(), 100 + DELAY, "counted from the oldest");
    assert!(receiver.is_due(100 + DELAY));
    receiver.on_received(1_600, 16, true, false);
    assert!(receiver.is_due(1_600));
    receiver.take_block();
    assert!(!receiver.is_due(NEVER - 1));
    assert_eq!(receiver.deadline(), NEVER);
}

#[test]
fn a_gap_or_a_request_is_answered_at_once() {
    let mut receiver = Receiver::new(DELAY);
    receive(&mut receiver, [1, 3]);
    assert!(receiver.is_due(0));
    receiver.take_block();
    assert!(!receiver.is_due(0), "a gap is reported once");
    receiver.on_received(0, 4, true, true);
    assert!(receiver.is_due(0));
    receiver.take_block();
    receiver.on_received(0, 6, false, false);
    assert!(
        receiver.is_due(0),
        "what was lost before a pure acknowledgement may have been data"
    );
}

#[test]
fn pure_acknowledgements_are_not_acknowledged() {
    let mut receiver = Receiver::new(DELAY);
    for number in 1..100 {
        receiver.on_received(0, number, false, false);
    }
    assert!(!receiver.is_due(NEVER - 1));
    assert_eq!(receiver.deadline(), NEVER);
}

#[test]
fn frames_handled_in_one_go_are_all_reported_however_many() {
    for batch in [64, 65, 66, 67, 100, 500, 1000] {
        let mut receiver = Receiver::new(DELAY);
        receive(&mut receiver, 1..=10);
        receive(&mut receiver, 11..=10 + batch);
        let mut reported = Vec::new();
        while receiver.is_due(0) {
            let block = receiver.take_block().unwrap();
            reported.push(block.largest);
            reported.extend(
                (0..64)
                    .filter(|i| block.bitmap >> i & 1 == 1)
                    .map(|i| block.largest - 1 - i),
            );
        }
        reported.sort_unstable();
        reported.dedup();
        assert_eq!(reported, (1..=10 + batch).collect::<Vec<_>>());
    }
}

#[test]
fn a_jump_to_the_last_packet_number_overflows_nothing() {
    let mut receiver = Receiver::new(Nanos::MAX);
    assert_eq!(
        receiver.on_received(Nanos::MAX, u64::MAX, true, false),
        Verdict::Accept
    );
    assert_eq!(
        receiver.on_received(Nanos::MAX, u64::MAX, true, false),
        Verdict::Duplicate
    );
    assert_eq!(receiver.take_block().unwrap().largest, u64::MAX);
}

use std::vec::Vec;
