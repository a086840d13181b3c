//! Every interleaving of the two ends of a queue:
//! `RUSTFLAGS="--cfg loom" cargo test -p usb4-ring-abi --release --test loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::Deref;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;
use usb4_ring_abi::sync::AtomicU64;
use usb4_ring_abi::{Consumer, Producer, QueueGeometry, Rqe, is_armed};

#[derive(Clone)]
struct Memory(Arc<Vec<AtomicU64>>);

impl Deref for Memory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

fn queue(depth: u32) -> (Producer<Memory, Rqe>, Consumer<Memory, Rqe>) {
    let words = QueueGeometry::of::<Rqe>(depth).unwrap().words();
    let memory = Memory(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()));
    (
        Producer::new(memory.clone(), depth).unwrap(),
        Consumer::new(memory, depth).unwrap(),
    )
}

fn entry(user_data: u64) -> Rqe {
    Rqe {
        user_data,
        addr: !user_data,
        ..Rqe::default()
    }
}

#[test]
fn an_entry_is_never_read_half_written_nor_overwritten_while_read() {
    loom::model(|| {
        let (mut producer, mut consumer) = queue(1);
        let thread = thread::spawn(move || {
            let mut sent = 0;
            for _ in 0..3 {
                if producer.push(&entry(sent)).is_ok() {
                    producer.publish();
                    sent += 1;
                }
            }
            sent
        });
        let mut expected = 0;
        for _ in 0..3 {
            if let Some(got) = consumer.pop().unwrap() {
                assert_eq!(got, entry(expected));
                expected += 1;
                consumer.release();
            }
        }
        let sent = thread.join().unwrap();
        assert!(expected <= sent);
        while let Some(got) = consumer.pop().unwrap() {
            assert_eq!(got, entry(expected));
            expected += 1;
            consumer.release();
        }
        assert_eq!(expected, sent);
    });
}

#[test]
fn a_consumer_that_goes_to_sleep_is_woken() {
    loom::model(|| {
        let (mut producer, mut consumer) = queue(2);
        let woken = Arc::new(AtomicBool::new(false));
        let wake = woken.clone();
        let thread = thread::spawn(move || {
            producer.push(&entry(0)).unwrap();
            producer.publish();
            if producer.take_armed() {
                wake.store(true, Ordering::Relaxed);
            }
        });
        let slept = consumer.arm().unwrap();
        thread.join().unwrap();
        assert!(
            !slept || woken.load(Ordering::Relaxed),
            "asleep with an entry in the queue"
        );
        assert_eq!(consumer.pop().unwrap(), Some(entry(0)));
    });
}

#[test]
fn a_consumer_that_sleeps_until_something_is_solicited_is_woken_for_that() {
    loom::model(|| {
        let (mut producer, mut consumer) = queue(2);
        let woken = Arc::new(AtomicBool::new(false));
        let wake = woken.clone();
        let thread = thread::spawn(move || {
            producer.push(&entry(0)).unwrap();
            producer.publish();
            producer.solicit();
            if producer.take_armed() {
                wake.store(true, Ordering::Relaxed);
            }
        });
        let slept = consumer.arm_solicited().unwrap();
        thread.join().unwrap();
        assert!(
            !slept || woken.load(Ordering::Relaxed),
            "asleep with an entry in the queue"
        );
    });
}

#[test]
fn consumers_of_two_queues_are_woken_after_one_fence() {
    loom::model(|| {
        let (mut a, b): (Vec<_>, Vec<_>) = (0..2).map(|_| queue(2)).unzip();
        let woken: [_; 2] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
        let wake = woken.clone();
        let thread = thread::spawn(move || {
            for producer in &mut a {
                producer.push(&entry(0)).unwrap();
                producer.publish();
            }
            fence(Ordering::SeqCst);
            for (producer, wake) in a.iter().zip(&wake) {
                if is_armed(producer.flags().unwrap()) {
                    wake.store(true, Ordering::Relaxed);
                }
            }
        });
        // One thread for both: each is a sleeper of its own, their order does not matter.
        let slept: Vec<_> = b
            .into_iter()
            .map(|mut consumer| consumer.arm().unwrap())
            .collect();
        thread.join().unwrap();
        for (slept, woken) in slept.iter().zip(&woken) {
            assert!(
                !slept || woken.load(Ordering::Relaxed),
                "asleep with an entry in the queue"
            );
        }
    });
}

#[test]
fn what_a_consumer_did_before_it_asked_to_be_woken_is_seen_by_the_one_who_wakes() {
    loom::model(|| {
        let (mut producer, mut consumer) = queue(2);
        let mark = Arc::new(AtomicBool::new(false));
        let marked = mark.clone();
        let thread = thread::spawn(move || {
            producer.push(&entry(0)).unwrap();
            producer.publish();
            producer.needs_wakeup() && !marked.load(Ordering::Relaxed)
        });
        mark.store(true, Ordering::Relaxed);
        consumer.arm().unwrap();
        assert!(
            !thread.join().unwrap(),
            "asked to wake, and the reason is not visible"
        );
    });
}
