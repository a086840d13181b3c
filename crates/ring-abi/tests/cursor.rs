//! The cursors against a plain FIFO, and against a peer that lies.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(not(loom))]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use usb4_ring_abi::{
    ARMED, CONSUMER_WORD, Consumer, Cqe, ENTRIES_WORD, FLAGS_WORD, GeometryError, Hostile, PRODUCER_WORD,
    Producer, PushError, QueueGeometry, Rqe, Sqe,
};

type Memory = Arc<[AtomicU64]>;

fn memory(depth: u32) -> Memory {
    let words = QueueGeometry::of::<Rqe>(depth).unwrap().words();
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

fn queue(depth: u32) -> (Memory, Producer<Memory, Rqe>, Consumer<Memory, Rqe>) {
    let memory = memory(depth);
    let producer = Producer::new(memory.clone(), depth).unwrap();
    let consumer = Consumer::new(memory.clone(), depth).unwrap();
    (memory, producer, consumer)
}

fn entry(user_data: u64) -> Rqe {
    Rqe {
        user_data,
        addr: !user_data,
        local_key: 1,
        len: 2,
        reserved: 0,
    }
}

/// SplitMix64, so that a failing sequence replays from its seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[test]
fn random_operations_agree_with_a_fifo() {
    // Miri is slow; a few sequences show it every access there is.
    let seeds = if cfg!(miri) { 3 } else { 200 };
    for seed in 0..seeds {
        let mut rng = Rng(seed);
        let depth = 1 << (seed % 6);
        let (_memory, mut producer, mut consumer) = queue(depth);
        let mut pushed = VecDeque::new();
        let mut visible = VecDeque::new();
        let (mut unreleased, mut name) = (0, 0u64);
        for _ in 0..(if cfg!(miri) { 200 } else { 2000 }) {
            match rng.next() % 5 {
                0 | 1 => {
                    let room = pushed.len() + visible.len() + unreleased < depth as usize;
                    let result = producer.push(&entry(name));
                    assert_eq!(
                        result,
                        if room { Ok(()) } else { Err(PushError::Full) },
                        "seed {seed}"
                    );
                    if room {
                        pushed.push_back(name);
                        name += 1;
                    }
                }
                2 => {
                    assert_eq!(producer.publish(), pushed.len() as u64, "seed {seed}");
                    visible.append(&mut pushed);
                }
                3 => {
                    let got = consumer.pop().unwrap();
                    assert_eq!(got, visible.pop_front().map(entry), "seed {seed}");
                    unreleased += usize::from(got.is_some());
                }
                _ => {
                    consumer.release();
                    unreleased = 0;
                }
            }
        }
    }
}

#[test]
fn a_consumer_index_that_moves_back_is_hostile() {
    let (memory, mut producer, mut consumer) = queue(2);
    for n in 0..2 {
        producer.push(&entry(n)).unwrap();
    }
    producer.publish();
    consumer.pop().unwrap();
    consumer.release();
    assert_eq!(producer.free(1), Ok(1));
    memory[CONSUMER_WORD].store(0, Ordering::Release);
    assert_eq!(
        producer.free(2),
        Err(Hostile {
            index: 0,
            expected: 1,
            limit: 2
        })
    );
}

#[test]
fn a_consumer_index_beyond_what_was_published_is_hostile() {
    let (memory, mut producer, _consumer) = queue(2);
    producer.push(&entry(0)).unwrap();
    producer.publish();
    producer.push(&entry(1)).unwrap();
    memory[CONSUMER_WORD].store(2, Ordering::Release);
    assert!(matches!(producer.push(&entry(2)), Err(PushError::Hostile(_))));
}

#[test]
fn a_producer_index_beyond_the_queue_is_hostile() {
    let (memory, _producer, mut consumer) = queue(4);
    memory[PRODUCER_WORD].store(5, Ordering::Release);
    assert_eq!(
        consumer.available(),
        Err(Hostile {
            index: 5,
            expected: 0,
            limit: 4
        })
    );
    memory[PRODUCER_WORD].store(u64::MAX, Ordering::Release);
    assert!(consumer.pop().is_err());
}

#[test]
fn a_producer_index_that_moves_back_is_hostile() {
    let (memory, mut producer, mut consumer) = queue(4);
    for n in 0..3 {
        producer.push(&entry(n)).unwrap();
    }
    producer.publish();
    for _ in 0..3 {
        consumer.pop().unwrap();
    }
    memory[PRODUCER_WORD].store(2, Ordering::Release);
    assert!(consumer.pop().is_err());
}

#[test]
fn entries_not_yet_released_still_fill_the_queue() {
    let (memory, mut producer, mut consumer) = queue(2);
    for n in 0..2 {
        producer.push(&entry(n)).unwrap();
    }
    producer.publish();
    consumer.pop().unwrap();
    consumer.pop().unwrap();
    assert_eq!(producer.push(&entry(2)), Err(PushError::Full));
    memory[PRODUCER_WORD].store(3, Ordering::Release);
    assert!(
        consumer.available().is_err(),
        "a producer that overruns unreleased entries lies"
    );
}

#[test]
fn an_entry_rewritten_after_it_was_read_changes_nothing() {
    let (memory, mut producer, mut consumer) = queue(1);
    producer.push(&entry(7)).unwrap();
    producer.publish();
    let copy = consumer.peek().unwrap().unwrap();
    memory[ENTRIES_WORD].store(8, Ordering::Relaxed);
    assert_eq!(copy, entry(7));
}

#[test]
fn an_armed_queue_wakes_its_consumer_once() {
    let (memory, mut producer, mut consumer) = queue(4);
    assert!(!producer.take_armed());
    assert_eq!(consumer.arm(), Ok(true));
    producer.push(&entry(0)).unwrap();
    producer.publish();
    assert!(producer.needs_wakeup());
    assert!(producer.take_armed());
    assert!(!producer.take_armed());
    assert_eq!(consumer.arm(), Ok(false), "there is an entry to consume");
    consumer.disarm();
    assert_eq!(memory[FLAGS_WORD].load(Ordering::Relaxed) & ARMED, 0);
}

#[test]
fn memory_too_small_for_the_queue_is_refused() {
    let memory = memory(4);
    let words = memory.len();
    let error = Producer::<_, Rqe>::new(&memory[..words - 1], 4).unwrap_err();
    assert_eq!(error, GeometryError::Memory(words, words - 1));
    assert!(Consumer::<_, Sqe>::new(memory.clone(), 4).is_err());
    assert!(Consumer::<_, Cqe>::new(memory, 3).is_err());
}

#[test]
fn two_threads_see_every_entry_once_and_in_order() {
    let (_memory, mut producer, mut consumer) = queue(16);
    const COUNT: u64 = if cfg!(miri) { 200 } else { 20_000 };
    let thread = std::thread::spawn(move || {
        let mut name = 0;
        while name < COUNT {
            match producer.push(&entry(name)) {
                Ok(()) => name += 1,
                Err(PushError::Full) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
            producer.publish();
        }
    });
    let mut expected = 0;
    while expected < COUNT {
        match consumer.pop().unwrap() {
            Some(got) => {
                assert_eq!(got, entry(expected));
                expected += 1;
                consumer.release();
            }
            None => std::thread::yield_now(),
        }
    }
    thread.join().unwrap();
}
