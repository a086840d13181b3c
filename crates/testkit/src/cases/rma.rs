//! RDMA writes and reads.

use anyhow::{Result, ensure};
use usb4_ring::{Access, Buffer, Op, Remote, WorkRequest};

use crate::world::{bytes, expect, pattern};
use crate::{Fabric, World};

pub(super) fn a_write_places_its_bytes_and_nothing_else(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    for (seed, len) in (1u64..).zip([0, 1, 8, 64, 4024, 4096, 12_345, 1 << 20]) {
        let from = world.peers[0].memory(len, Access::LOCAL, pattern(seed))?;
        let target = world.peers[1].memory(len + 32, Access::REMOTE_WRITE, |_| 0xee)?;
        let remote = Remote {
            addr: target.addr() + 16,
            key: target.remote_key(),
        };
        let done = {
            world.peers[0].post(&WorkRequest::write(to, from.buffer(0, len)?, remote).user_data(1))?;
            world.wait_ok(0, 1)?
        };
        ensure!(
            done.op == Op::Write && done.len as usize == len,
            "write of {len} was {done:?}"
        );
        let want: Vec<u8> = (0..len).map(pattern(seed)).collect();
        ensure!(
            bytes(&target, 16, len)? == want,
            "a write of {len} placed wrong bytes"
        );
        ensure!(
            bytes(&target, 0, 16)? == [0xee; 16],
            "bytes before a write of {len} changed"
        );
        ensure!(
            bytes(&target, len + 16, 16)? == [0xee; 16],
            "bytes behind a write of {len} changed"
        );
    }
    Ok(())
}

pub(super) fn a_write_with_immediate_completes_a_receive(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    for (seed, len) in (1u64..).zip([0usize, 64, 70_000]) {
        let from = world.peers[0].memory(len, Access::LOCAL, pattern(seed))?;
        let target = world.peers[1].memory(len, Access::REMOTE_WRITE, |_| 0)?;
        let remote = Remote {
            addr: target.addr(),
            key: target.remote_key(),
        };
        world.peers[0].post(
            &WorkRequest::write(to, from.buffer(0, len)?, remote)
                .imm(seed)
                .user_data(1),
        )?;
        world.quiet(1)?;
        world.peers[1].ep.post_recv(2, Buffer::EMPTY)?;
        world.peers[1].ep.submit()?;
        let got = world.wait_ok(1, 2)?;
        ensure!(
            got.op == Op::ReceiveWrite && got.imm == Some(seed),
            "receive was {got:?}"
        );
        ensure!(got.len as usize == len, "a write of {len} reported {}", got.len);
        expect(&target, len, seed)?;
        world.wait_ok(0, 1)?;
    }
    Ok(())
}

pub(super) fn a_read_of_any_size_returns_the_bytes(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    for (seed, len) in (1u64..).zip([0usize, 1, 64, 4031, 4032, 4096, 100_001, 1 << 20]) {
        let target = world.peers[1].memory(len, Access::REMOTE_READ, pattern(seed))?;
        let into = world.peers[0].memory(len + 8, Access::LOCAL, |_| 0xee)?;
        let remote = Remote {
            addr: target.addr(),
            key: target.remote_key(),
        };
        world.peers[0].post(&WorkRequest::read(to, into.buffer(0, len)?, remote).user_data(1))?;
        let done = world.wait_ok(0, 1)?;
        ensure!(
            done.op == Op::Read && done.len as usize == len,
            "read of {len} was {done:?}"
        );
        expect(&into, len, seed)?;
        ensure!(
            bytes(&into, len, 8)? == [0xee; 8],
            "bytes behind a read of {len} changed"
        );
    }
    Ok(())
}

pub(super) fn many_reads_at_once_complete(fabric: &Fabric) -> Result<()> {
    const COUNT: u64 = 128;
    const LEN: usize = 10_000;
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(LEN, Access::REMOTE_READ, pattern(5))?;
    let remote = Remote {
        addr: target.addr(),
        key: target.remote_key(),
    };
    let mut regions = Vec::new();
    for read in 0..COUNT {
        let into = world.peers[0].memory(LEN, Access::LOCAL, |_| 0)?;
        world.peers[0].post(&WorkRequest::read(to, into.buffer(0, LEN)?, remote).user_data(read))?;
        regions.push(into);
    }
    for (read, into) in (0..).zip(&regions) {
        world.wait_ok(0, read)?;
        expect(into, LEN, 5)?;
    }
    Ok(())
}
