use std::sync::Arc;

use super::sync::{AtomicU64, Ordering};
use super::*;

fn ring<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

#[test]
fn values_come_out_in_order_over_many_laps_and_the_wrap_of_the_position() {
    let ring = ring::<4>();
    let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
    for lap in 0..10_000u32 {
        for i in 0..=lap % 4 {
            producer.push(&ring, lap ^ i);
        }
        for i in 0..=lap % 4 {
            assert_eq!(consumer.pop(&ring), Ok(Some(lap ^ i)));
        }
        assert_eq!(consumer.pop(&ring), Ok(None));
    }
}

#[test]
fn a_producer_that_overruns_the_consumer_is_hostile() {
    let ring = ring::<4>();
    let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
    for value in 0..5 {
        producer.push(&ring, value);
    }
    assert_eq!(consumer.pop(&ring), Err(Hostile));
}

#[test]
fn any_word_that_is_not_the_next_or_a_lap_old_is_hostile() {
    let ring = ring::<4>();
    for sequence in [2u64, 3, 5, 0xffff_ffff, 0x8000_0000] {
        ring[0].store(sequence << 32 | 9, Ordering::Relaxed);
        assert_eq!(Consumer::default().pop(&ring), Err(Hostile), "{sequence:#x}");
    }
    ring[0].store(9, Ordering::Relaxed);
    assert_eq!(Consumer::default().pop(&ring), Err(Hostile));
}

#[test]
fn a_waker_rings_once_per_sleep() {
    let word = ring::<1>();
    let (mut sleeper, waker) = (Sleeper::default(), Waker::default());
    assert!(!waker.must_wake(&word[0]));
    for _ in 0..3 {
        sleeper.arm(&word[0]);
        assert!(waker.must_wake(&word[0]));
        assert!(!waker.must_wake(&word[0]));
        sleeper.disarm(&word[0]);
        assert!(!waker.must_wake(&word[0]));
    }
}

/// Two threads, rings that wrap often, slots that must not be reused early.
#[test]
fn frames_and_completions_between_two_threads_are_never_lost_or_mixed_up() {
    const SLOTS: usize = 8;
    const FRAMES: u64 = 200_000;
    let shared = Arc::new((ring::<SLOTS>(), ring::<SLOTS>(), ring::<SLOTS>()));
    let sender = {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || {
            let (frames, done, slots) = &*shared;
            let (mut tx, mut completed) = (Producer::default(), Consumer::default());
            let mut free: Vec<u32> = (0..8).collect();
            for frame in 1..=FRAMES {
                let slot = loop {
                    while let Some(slot) = completed.pop(done).unwrap() {
                        free.push(slot);
                    }
                    match free.pop() {
                        Some(slot) => break slot,
                        None => std::thread::yield_now(),
                    }
                };
                slots[slot as usize].store(frame, Ordering::Relaxed);
                tx.push(frames, slot);
            }
        })
    };
    let (frames, done, slots) = &*shared;
    let (mut rx, mut release) = (Consumer::default(), Producer::default());
    for frame in 1..=FRAMES {
        let slot = loop {
            match rx.pop(frames).unwrap() {
                Some(slot) => break slot,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(slots[slot as usize].load(Ordering::Relaxed), frame);
        release.push(done, slot);
    }
    sender.join().unwrap();
}
