//! Atomics.

use anyhow::{Result, ensure};
use usb4_ring::{Access, Buffer, EndpointConfig, Op, Remote, WorkRequest};

use crate::world::bytes;
use crate::{Fabric, Region, World};

fn value(region: &Region, word: usize) -> Result<u64> {
    let mut le = [0; 8];
    region.read(word * 8, &mut le)?;
    Ok(u64::from_ne_bytes(le))
}

pub(super) fn fetch_add_returns_the_old_value(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(16, Access::REMOTE_ATOMIC, |_| 0)?;
    let old = world.peers[0].memory(8, Access::LOCAL, |_| 0)?;
    target.write(8, &(u64::MAX - 1).to_ne_bytes())?;
    let remote = Remote {
        addr: target.addr() + 8,
        key: target.remote_key(),
    };
    for (before, add) in [(u64::MAX - 1, 1), (u64::MAX, 5), (4, 0)] {
        world.peers[0].post(&WorkRequest::fetch_add(to, old.buffer(0, 8)?, remote, add).user_data(1))?;
        let done = world.wait_ok(0, 1)?;
        ensure!(
            done.op == Op::FetchAdd && done.value == before,
            "fetch-add was {done:?}"
        );
        ensure!(
            value(&old, 0)? == before,
            "the local buffer has {}",
            value(&old, 0)?
        );
    }
    ensure!(value(&target, 1)? == 4, "the target has {}", value(&target, 1)?);
    ensure!(
        bytes(&target, 0, 8)? == [0; 8],
        "the word beside the target changed"
    );
    Ok(())
}

pub(super) fn compare_swap_swaps_only_on_equality(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(8, Access::REMOTE_ATOMIC, |_| 0)?;
    let remote = Remote {
        addr: target.addr(),
        key: target.remote_key(),
    };
    for (compare, swap, before, after) in [(1, 9, 0, 0), (0, 9, 0, 9), (9, 3, 9, 3)] {
        let request = WorkRequest::compare_swap(to, Buffer::EMPTY, remote, compare, swap);
        world.peers[0].post(&request.user_data(1))?;
        let done = world.wait_ok(0, 1)?;
        ensure!(
            done.op == Op::CompareSwap && done.value == before,
            "compare-swap was {done:?}"
        );
        ensure!(
            value(&target, 0)? == after,
            "the target has {}",
            value(&target, 0)?
        );
    }
    Ok(())
}

pub(super) fn adds_of_two_hosts_lose_nothing(fabric: &Fabric) -> Result<()> {
    const EACH: u64 = 500;
    let mut world = World::pair(fabric)?;
    world.add(EndpointConfig::default())?;
    let target = world.peers[0].memory(8, Access::REMOTE_ATOMIC, |_| 0)?;
    let remote = Remote {
        addr: target.addr(),
        key: target.remote_key(),
    };
    let handles = [world.handle(1, 0)?, world.handle(2, 0)?];
    let mut old: Vec<u64> = Vec::new();
    for round in 0..EACH / 50 {
        for (from, handle) in (1..).zip(handles) {
            for add in 0..50 {
                let request = WorkRequest::fetch_add(handle, Buffer::EMPTY, remote, 1);
                world.peers[from].post(&request.user_data(round * 50 + add))?;
            }
        }
        for from in [1, 2] {
            for add in 0..50 {
                old.push(world.wait_ok(from, round * 50 + add)?.value);
            }
        }
    }
    old.sort_unstable();
    ensure!(
        old.iter().copied().eq(0..2 * EACH),
        "an add was lost or done twice"
    );
    ensure!(
        value(&target, 0)? == 2 * EACH,
        "the sum is {}",
        value(&target, 0)?
    );
    Ok(())
}
