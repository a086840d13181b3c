//! Clients that write what they like.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use usb4_ring_abi::{Op, PRODUCER_WORD, uapi};

use crate::Rig;
use crate::party::Party;

/// How long each kind of garbage is written.
const TIME: Duration = Duration::from_secs(2);

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }
}

/// A message from a client to itself.
pub(crate) fn greet_itself(party: &mut Party) -> Result<()> {
    party.receive();
    party.send()?;
    party.poll()
}

/// A client that sends to itself.
pub(crate) fn loner(rig: &Rig) -> Result<Party> {
    let party = Party::new(rig)?;
    party.address(party.ep.addr)?;
    Ok(party)
}

pub(crate) fn garbage_in_queues_harms_nobody_else(rig: &Rig) -> Result<()> {
    let mut rng = Rng(rig.seed);
    let mut neighbour = loner(rig)?;
    greet_itself(&mut neighbour)?;
    let start = Instant::now();
    let mut rounds = 0_u64;
    while start.elapsed() < TIME {
        let party = loner(rig)?;
        for _ in 0..200 {
            let map = &party.maps[rng.below(3)];
            match rng.below(4) {
                // Indices near what is right.
                0 => map.words()[PRODUCER_WORD].store(rng.next() % 20, Ordering::Relaxed),
                // Any word at all.
                1 => map.words()[rng.below(map.words().len())].store(rng.next(), Ordering::Relaxed),
                // An entry that may be one.
                2 => {
                    let at = 32 + rng.below(map.words().len().saturating_sub(40));
                    map.words()[at].store(rng.next() & 0x0003_0007_0303, Ordering::Relaxed);
                }
                _ => {
                    let flags = [uapi::ENTER_SUBMIT, uapi::ENTER_PROGRESS, uapi::ENTER_WAIT];
                    let flags = flags.iter().filter(|_| rng.next() & 1 == 0).sum();
                    // Refused or not.
                    let _ = party
                        .client
                        .enter(flags, party.ep.ep, party.cq, rng.next() % 1000);
                }
            }
        }
        drop(party);
        greet_itself(&mut neighbour)
            .with_context(|| format!("after {rounds} rounds with seed {}", rig.seed))?;
        rounds += 1;
    }
    Ok(())
}

pub(crate) fn a_client_that_vanishes_leaves_nothing(rig: &Rig) -> Result<()> {
    let mut memory = vec![0_u8; 1 << 20];
    let at = memory.as_mut_ptr().addr() as u64;
    let start = Instant::now();
    while start.elapsed() < TIME {
        // More clients than any device has places for, one after the other, in the middle of their work.
        for _ in 0..50 {
            let party = loner(rig)?;
            party.client.reg(at, 1 << 20, uapi::ACCESS_REMOTE_WRITE)?;
            let [sq, ..] = &party.maps;
            sq.words()[32].store(u64::from(Op::Send.code()), Ordering::Relaxed);
            sq.words()[PRODUCER_WORD].store(8, Ordering::Release);
            party.client.enter(uapi::ENTER_SUBMIT, party.ep.ep, 0, 0)?;
        }
    }
    greet_itself(&mut loner(rig)?)
}
