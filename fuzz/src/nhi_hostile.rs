//! A guest of the emulated host router that does anything at all: registers, configuration space, descriptors, control
//! packets, commands of a person that concern it.
//!
//! The scenario is the model's own (`crates/nhi-model/tests/rig/hostile.rs`): no call does more than a bounded amount
//! of work, the memory of a guest that is gone stays as it was, and two other hosts still reach each other.

#[path = "../../crates/nhi-model/tests/rig/mod.rs"]
mod rig;

use crate::input::Rng;

/// Interprets the input as events.
pub fn run(data: &[u8]) {
    let mut bytes = data.iter().copied();
    rig::hostile::run(&mut || bytes.next());
}

/// Frames, control packets and restarts on every topology; and noise, which reaches most of it.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for topology in 0..4u8 {
        // A read of each space, a path for TX ring 1, that ring, and its doorbell.
        let reads = [6, 1, 1, 1, 0, 1, 0, 1, 6, 1, 0, 2, 7, 1, 0, 1];
        let path = [6, 2, 5, 0, 2, 2, 0, 1, 3, 8, 8, 0, 0x80, 0, 0];
        let ring = [0, 1, 3, 0, 32, 0, 7, 0, 2, 31, 0, 1, 2, 1, 20];
        let rest = [7, 200, 10, 9, 5, 10, 0, 11, 0, 1, 2, 3, 7, 255, 16];
        seeds.push([&[topology][..], &reads, &path, &ring, &rest].concat());
        let mut rng = Rng::new(u64::from(topology));
        let noise = (0..200).flat_map(|_| rng.next().to_le_bytes()).take(150);
        seeds.push([topology].into_iter().chain(noise).collect());
    }
    seeds
}
