//! Every interleaving of two sides (`RUSTFLAGS="--cfg loom" cargo test -p usb4-soft --lib rings`).

use loom::sync::Arc;
use loom::thread;

use super::sync::{AtomicU64, Ordering, fence};
use super::*;

fn words<const N: usize>() -> Arc<[AtomicU64; N]> {
    Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
}

/// A direction of a cable with two slots and rings of two entries, three frames through it.
#[test]
fn a_frame_is_read_whole_and_its_slot_is_not_rewritten_before() {
    loom::model(|| {
        let (frames, done, slots) = (words::<2>(), words::<2>(), words::<2>());
        let sender = {
            let (frames, done, slots) = (frames.clone(), done.clone(), slots.clone());
            thread::spawn(move || {
                let (mut tx, mut completed) = (Producer::default(), Consumer::default());
                let mut free = vec![1, 0];
                for frame in 1..=3 {
                    let slot = loop {
                        if let Some(slot) = free.pop() {
                            break slot;
                        }
                        match completed.pop(&done).unwrap() {
                            Some(slot) => free.push(slot),
                            None => thread::yield_now(),
                        }
                    };
                    slots[slot as usize].store(frame, Ordering::Relaxed);
                    tx.push(&frames, slot);
                }
            })
        };
        let (mut rx, mut release) = (Consumer::default(), Producer::default());
        for frame in 1..=3 {
            let slot = loop {
                match rx.pop(&frames).unwrap() {
                    Some(slot) => break slot,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(slots[slot as usize].load(Ordering::Relaxed), frame);
            release.push(&done, slot);
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_sleeper_never_misses_a_frame() {
    loom::model(|| {
        let (frames, word, bell) = (words::<1>(), words::<1>(), words::<1>());
        let sender = {
            let (frames, word, bell) = (frames.clone(), word.clone(), bell.clone());
            thread::spawn(move || {
                Producer::default().push(&frames, 7);
                fence(Ordering::SeqCst);
                if Waker::default().must_wake(&word[0]) {
                    bell[0].store(1, Ordering::Release);
                }
            })
        };
        let mut sleeper = Sleeper::default();
        sleeper.arm(&word[0]);
        let asleep = !Consumer::default().ready(&frames);
        sender.join().unwrap();
        assert!(!asleep || bell[0].load(Ordering::Acquire) == 1);
    });
}
