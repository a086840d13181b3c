//! Requests that must fail, and only they.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use usb4_ring::{Access, Buffer, EndpointConfig, Remote, Status, WorkRequest};

use crate::world::{HANG, bytes, expect, pattern};
use crate::{Fabric, FailureKind, World};

/// Posts `request` at peer 0 and expects it to end with `status`; then a message must still get through.
fn refused(world: &mut World, request: WorkRequest, status: Status) -> Result<()> {
    world.peers[0].post(&request.user_data(7))?;
    let done = world.wait(0, 7)?;
    ensure!(
        done.status == status,
        "ended with {:?}, not {status:?}",
        done.status
    );
    still_works(world)
}

fn still_works(world: &mut World) -> Result<()> {
    let to = world.handle(0, 1)?;
    world.peers[1].ep.post_recv(8, Buffer::EMPTY)?;
    world.peers[1].ep.submit()?;
    world.peers[0].post(&WorkRequest::send(to, Buffer::EMPTY).user_data(9))?;
    world.wait_ok(1, 8)?;
    world.wait_ok(0, 9)?;
    Ok(())
}

pub(super) fn a_message_longer_than_its_receive_fails_at_both_ends(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    for len in [65usize, 20_000] {
        let from = world.peers[0].memory(len, Access::LOCAL, pattern(1))?;
        let into = world.peers[1].memory(80, Access::LOCAL, |_| 0xee)?;
        world.peers[1].ep.post_recv(1, into.buffer(0, 64)?)?;
        world.peers[1].ep.submit()?;
        world.peers[0].post(&WorkRequest::send(to, from.buffer(0, len)?).user_data(2))?;
        let got = world.wait(1, 1)?;
        ensure!(
            got.status == Status::Length && got.len as usize == len,
            "receive was {got:?}"
        );
        ensure!(
            world.wait(0, 2)?.status == Status::Length,
            "the sender was not told"
        );
        ensure!(
            bytes(&into, 64, 16)? == [0xee; 16],
            "bytes behind the receive were written"
        );
        still_works(&mut world)?;
    }
    Ok(())
}

pub(super) fn a_wrong_key_is_refused(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(64, Access::REMOTE_ALL, |_| 0)?;
    let mine = world.peers[0].memory(64, Access::REMOTE_ALL, |_| 1)?;
    let right = target.remote_key();
    for key in [
        0,
        1,
        u64::MAX,
        right ^ 1,
        right.rotate_left(32),
        mine.remote_key(),
    ] {
        let remote = Remote {
            addr: target.addr(),
            key,
        };
        refused(
            &mut world,
            WorkRequest::write(to, mine.buffer(0, 64)?, remote),
            Status::Access,
        )?;
        refused(
            &mut world,
            WorkRequest::read(to, mine.buffer(0, 64)?, remote),
            Status::Access,
        )?;
        refused(
            &mut world,
            WorkRequest::fetch_add(to, Buffer::EMPTY, remote, 1),
            Status::Access,
        )?;
    }
    ensure!(
        bytes(&target, 0, 64)? == [0; 64],
        "a refused write changed memory"
    );
    Ok(())
}

pub(super) fn a_range_beyond_the_region_is_refused(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(20_000, Access::REMOTE_ALL, |_| 0)?;
    let mine = world.peers[0].memory(20_001, Access::LOCAL, |_| 1)?;
    let at = |addr| Remote {
        addr,
        key: target.remote_key(),
    };
    for remote in [
        at(target.addr() + 1),
        at(target.addr().wrapping_sub(1)),
        at(target.addr() + 20_000),
    ] {
        refused(
            &mut world,
            WorkRequest::read(to, mine.buffer(0, 20_000)?, remote),
            Status::Access,
        )?;
        refused(
            &mut world,
            WorkRequest::write(to, mine.buffer(0, 20_000)?, remote),
            Status::Access,
        )?;
    }
    refused(
        &mut world,
        WorkRequest::write(to, mine.buffer(0, 20_001)?, at(target.addr())),
        Status::Access,
    )
}

pub(super) fn an_offset_that_wraps_is_refused(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(64, Access::REMOTE_ALL, |_| 0)?;
    let mine = world.peers[0].memory(64, Access::LOCAL, |_| 1)?;
    for addr in [u64::MAX, u64::MAX - 63, u64::MAX - 64, 0] {
        let remote = Remote {
            addr,
            key: target.remote_key(),
        };
        refused(
            &mut world,
            WorkRequest::write(to, mine.buffer(0, 64)?, remote),
            Status::Access,
        )?;
        refused(
            &mut world,
            WorkRequest::read(to, mine.buffer(0, 64)?, remote),
            Status::Access,
        )?;
    }
    Ok(())
}

pub(super) fn a_right_not_given_is_refused(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let mine = world.peers[0].memory(8, Access::LOCAL, |_| 1)?;
    let local = mine.buffer(0, 8)?;
    for given in [
        Access::LOCAL,
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ] {
        let target = world.peers[1].memory(8, given, |_| 0)?;
        let remote = Remote {
            addr: target.addr(),
            key: target.remote_key(),
        };
        let wanted = [
            (Access::REMOTE_READ, WorkRequest::read(to, local, remote)),
            (Access::REMOTE_WRITE, WorkRequest::write(to, local, remote)),
            (
                Access::REMOTE_ATOMIC,
                WorkRequest::compare_swap(to, local, remote, 0, 1),
            ),
        ];
        for (need, request) in wanted {
            let status = if given.contains(need) {
                Status::Ok
            } else {
                Status::Access
            };
            refused(&mut world, request, status)?;
        }
    }
    Ok(())
}

pub(super) fn a_dropped_region_is_no_longer_reachable(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let mine = world.peers[0].memory(64, Access::LOCAL, |_| 1)?;
    let target = world.peers[1].memory(64, Access::REMOTE_ALL, |_| 0)?;
    let remote = Remote {
        addr: target.addr(),
        key: target.remote_key(),
    };
    refused(
        &mut world,
        WorkRequest::write(to, mine.buffer(0, 64)?, remote),
        Status::Ok,
    )?;
    drop(target);
    refused(
        &mut world,
        WorkRequest::write(to, mine.buffer(0, 64)?, remote),
        Status::Access,
    )
}

pub(super) fn a_buffer_of_a_dropped_region_is_invalid(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let region = world.peers[0].memory(64, Access::LOCAL, |_| 1)?;
    let buffer = region.buffer(0, 64)?;
    drop(region);
    refused(&mut world, WorkRequest::send(to, buffer), Status::Invalid)
}

pub(super) fn an_unaligned_atomic_is_refused(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(16, Access::REMOTE_ATOMIC, |_| 0)?;
    let remote = Remote {
        addr: target.addr() + 4,
        key: target.remote_key(),
    };
    refused(
        &mut world,
        WorkRequest::fetch_add(to, Buffer::EMPTY, remote, 1),
        Status::Access,
    )
}

pub(super) fn immediate_data_on_a_read_is_invalid(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(64, Access::REMOTE_ALL, |_| 0)?;
    let mine = world.peers[0].memory(64, Access::LOCAL, |_| 1)?;
    let remote = Remote {
        addr: target.addr(),
        key: target.remote_key(),
    };
    refused(
        &mut world,
        WorkRequest::read(to, mine.buffer(0, 64)?, remote).imm(1),
        Status::Invalid,
    )
}

pub(super) fn a_full_queue_says_so_and_loses_nothing(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let small = world.add(EndpointConfig {
        sq_depth: 8,
        rq_depth: 8,
        ..EndpointConfig::default()
    })?;
    let to = world.handle(small, 1)?;
    let mut posted = 0;
    let full = loop {
        match world.peers[small]
            .ep
            .post(&WorkRequest::send(to, Buffer::EMPTY).imm(posted).user_data(posted))
        {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        ensure!(
            posted < 100,
            "a queue of 8 took {posted} requests that nobody has submitted"
        );
    };
    ensure!(
        full.kind == FailureKind::QueueFull && posted == 8,
        "after {posted}: {full}"
    );
    world.peers[small].ep.submit()?;
    for message in 0..posted {
        world.peers[1].ep.post_recv(message, Buffer::EMPTY)?;
        world.peers[1].ep.submit()?;
        ensure!(
            world.wait_ok(1, message)?.imm == Some(message),
            "message {message} is lost"
        );
        world.wait_ok(small, message)?;
    }
    Ok(())
}

pub(super) fn a_small_completion_queue_never_overflows(fabric: &Fabric) -> Result<()> {
    const COUNT: u64 = 300;
    let mut world = World::pair(fabric)?;
    let device = world.peers[0].device.clone();
    let cq = device.create_cq(8)?;
    let ep = device.create_endpoint(&EndpointConfig::default(), &cq)?;
    let to = ep.address_handle(&world.peers[1].ep.address())?;
    let (mut posted, mut received, mut sent) = (0, 0, 0);
    // Between hosts each of some thousand rounds is a few calls: as a whole they may take long.
    let mut moved = (Instant::now(), (received, sent));
    for round in 0.. {
        if moved.1 != (received, sent) {
            moved = (Instant::now(), (received, sent));
        }
        ensure!(
            moved.0.elapsed() < HANG,
            "stuck: {posted} posted, {received} received, {sent} completed"
        );
        while posted < COUNT
            && ep
                .post(&WorkRequest::send(to, Buffer::EMPTY).user_data(posted))
                .is_ok()
        {
            posted += 1;
        }
        ep.submit()?;
        if world.peers[1].ep.recv_space()? > 0 {
            world.peers[1].ep.post_recv(0, Buffer::EMPTY)?;
            world.peers[1].ep.submit()?;
        }
        world.step()?;
        received += world.peers[1].seen.drain(..).count() as u64;
        // The queue is left full for most of the time.
        if round % 50 == 0 {
            for done in cq.poll(4)? {
                ensure!(done.status == Status::Ok, "a send ended with {done:?}");
                sent += 1;
            }
        }
        if sent == COUNT {
            break;
        }
    }
    ensure!(received == COUNT, "{received} of {COUNT} messages arrived");
    ensure!(cq.poll(4)?.count() == 0, "a completion too many");
    Ok(())
}

pub(super) fn unsignaled_work_completes_only_on_error(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(64, Access::REMOTE_WRITE, |_| 0)?;
    let mine = world.peers[0].memory(64, Access::LOCAL, pattern(2))?;
    let remote = Remote {
        addr: target.addr(),
        key: target.remote_key(),
    };
    for _ in 0..10 {
        world.peers[0].post(
            &WorkRequest::write(to, mine.buffer(0, 64)?, remote)
                .user_data(1)
                .unsignaled(),
        )?;
    }
    // One that does complete comes after them all, so their bytes are there when it has.
    world.peers[0].post(&WorkRequest::write(to, mine.buffer(0, 64)?, remote).user_data(3))?;
    let done = world.next(0)?;
    if done.user_data != 3 || done.status != Status::Ok {
        bail!("the one that completes reported {done:?}");
    }
    expect(&target, 64, 2)?;
    let wrong = Remote {
        addr: remote.addr,
        key: 1,
    };
    world.peers[0].post(
        &WorkRequest::write(to, mine.buffer(0, 64)?, wrong)
            .user_data(2)
            .unsignaled(),
    )?;
    let done = world.next(0)?;
    if done.user_data != 2 || done.status != Status::Access {
        bail!("the failed one reported {done:?}");
    }
    Ok(())
}
