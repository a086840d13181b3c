//! Registered memory, to the byte: wherever it begins, and across its pages.

use anyhow::{Result, ensure};
use usb4_ring_abi::{Op, Sqe, uapi};

use crate::Rig;
use crate::hostile::Rng;
use crate::party::Party;

/// Bytes around and between what is written keep this.
const UNTOUCHED: u8 = 0xee;

/// Ranges of any place and length, of regions that begin anywhere in a page, are copied as they are, and no byte beside
/// them.
pub(crate) fn bytes_are_found_wherever_a_region_begins(rig: &Rig) -> Result<()> {
    const ROUNDS: usize = 200;
    /// Four pages and some.
    const ROOM: usize = 4 * 4096 + 100;
    let mut rng = Rng(rig.seed);
    let mut party = Party::new(rig)?;
    party.address(party.ep.addr)?;
    let mut from: Vec<u8> = (0..ROOM).map(|_| rng.next().to_le_bytes()[0]).collect();
    let mut into = vec![0_u8; ROOM];
    let (source, target) = (from.as_mut_ptr(), into.as_mut_ptr());
    for round in 0..ROUNDS {
        let (left, right) = (rng.below(4096), rng.below(64));
        let len = ROOM - left - right;
        let all = uapi::ACCESS_REMOTE_READ | uapi::ACCESS_REMOTE_WRITE;
        let mine = party.client.reg((source.addr() + left) as u64, len as u64, all)?;
        let its = party.client.reg((target.addr() + left) as u64, len as u64, all)?;
        let at = rng.below(len);
        // All the rest, one byte, or something between.
        let bytes = [len - at, 1, 1 + rng.below(len - at)][round % 3];
        // SAFETY: ours, `ROOM` bytes; the device does nothing there meanwhile.
        (0..ROOM).for_each(|at| unsafe { target.add(at).write_volatile(UNTOUCHED) });
        let (op, local, remote) = match round % 2 {
            0 => (Op::Write, &mine, &its),
            _ => (Op::Read, &its, &mine),
        };
        let entry = Sqe {
            op: op.code(),
            local_addr: local.addr + at as u64,
            local_key: local.local_key,
            len: u32::try_from(bytes)?,
            args: [remote.addr + at as u64, remote.remote_key, 0, 0],
            ..Sqe::default()
        };
        let status = party.status_of(&entry)?;
        let copied = left + at..left + at + bytes;
        let wrong = (0..ROOM).find(|&at| {
            // SAFETY: ours, `ROOM` bytes each; the device has completed what it did there.
            let (is, was) = unsafe { (target.add(at).read_volatile(), source.add(at).read_volatile()) };
            is != if copied.contains(&at) { was } else { UNTOUCHED }
        });
        ensure!(
            status == 0 && wrong.is_none(),
            "{op:?} of {bytes} bytes at {at} of {len}, {left} bytes into the memory: status {status}, wrong at {wrong:?}"
        );
        for region in [mine, its] {
            party.client.dereg(region.local_key)?;
        }
    }
    Ok(())
}

/// The word before and after each page's end, of a region that begins in the middle of one.
pub(crate) fn atomics_find_words_at_the_ends_of_pages(rig: &Rig) -> Result<()> {
    const WORDS: usize = 3 * 512;
    let mut party = Party::new(rig)?;
    party.address(party.ep.addr)?;
    let mut memory = vec![0_u64; WORDS];
    let start = memory.as_mut_ptr();
    let first = 8 * 7;
    let base = start.addr() as u64 + first;
    let len = 8 * WORDS as u64 - first;
    let region = party.client.reg(base, len, uapi::ACCESS_REMOTE_ATOMIC)?;
    let ends = (base..base + len - 7).step_by(8).filter(|at| {
        let in_page = at % 4096;
        in_page == 0 || in_page == 4088
    });
    for (round, at) in ends.enumerate() {
        let add = Sqe {
            op: Op::FetchAdd.code(),
            args: [at, region.remote_key, 40 + round as u64, 0],
            ..Sqe::default()
        };
        let swap = Sqe {
            op: Op::CompareSwap.code(),
            args: [at, region.remote_key, 1000 + round as u64, 40 + round as u64],
            ..Sqe::default()
        };
        let statuses = [party.status_of(&add)?, party.status_of(&swap)?];
        let place = usize::try_from((at - start.addr() as u64) / 8)?;
        // SAFETY: within our words; the device has completed what it did there.
        let is = unsafe { start.add(place).read_volatile() };
        ensure!(
            statuses == [0, 0] && is == 1000 + round as u64,
            "the word at {:#x} of its page: statuses {statuses:?}, {is}",
            at % 4096
        );
    }
    party.client.dereg(region.local_key)?;
    Ok(())
}
