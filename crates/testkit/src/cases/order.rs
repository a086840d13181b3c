//! Order, back-pressure and full windows.

use anyhow::{Result, ensure};
use usb4_ring::{Access, Buffer, EndpointConfig, Remote, Status, WorkRequest};

use crate::world::{expect, pattern};
use crate::{Fabric, FailureKind, Region, World};

pub(super) fn messages_arrive_in_the_order_they_were_posted(fabric: &Fabric) -> Result<()> {
    const COUNT: u64 = 2000;
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let (mut posted, mut got) = (0, 0);
    let mut room = 0u64;
    while got < COUNT {
        while room < got + 128 && world.peers[1].ep.post_recv(room, Buffer::EMPTY).is_ok() {
            room += 1;
        }
        world.peers[1].ep.submit()?;
        while posted < COUNT {
            match world.peers[0]
                .ep
                .post(&WorkRequest::send(to, Buffer::EMPTY).imm(posted).unsignaled())
            {
                Ok(()) => posted += 1,
                Err(failure) if failure.kind == FailureKind::QueueFull => break,
                Err(error) => return Err(error.into()),
            }
        }
        world.peers[0].ep.submit()?;
        let done = world.next(1)?;
        ensure!(
            done.status == Status::Ok && done.imm == Some(got),
            "message {got} arrived as {done:?}"
        );
        ensure!(done.user_data == got, "receives are used out of order");
        got += 1;
    }
    Ok(())
}

pub(super) fn a_write_is_in_place_before_the_message_after_it(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(100_000, Access::REMOTE_WRITE, |_| 0)?;
    let remote = Remote {
        addr: target.addr(),
        key: target.remote_key(),
    };
    for seed in 1..=20 {
        let body = world.peers[0].memory(100_000, Access::LOCAL, pattern(seed))?;
        world.peers[1].ep.post_recv(1, Buffer::EMPTY)?;
        world.peers[1].ep.submit()?;
        world.peers[0]
            .ep
            .post(&WorkRequest::write(to, body.buffer(0, 100_000)?, remote).user_data(2))?;
        world.peers[0].post(&WorkRequest::send(to, Buffer::EMPTY).user_data(3))?;
        world.wait_ok(1, 1)?;
        expect(&target, 100_000, seed)?;
        world.wait_ok(0, 2)?;
        world.wait_ok(0, 3)?;
    }
    Ok(())
}

pub(super) fn a_read_sees_the_write_before_it(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let target = world.peers[1].memory(20_000, Access::REMOTE_ALL, |_| 0)?;
    let remote = Remote {
        addr: target.addr(),
        key: target.remote_key(),
    };
    for seed in 1..=20 {
        let out = world.peers[0].memory(20_000, Access::LOCAL, pattern(seed))?;
        let back = world.peers[0].memory(20_000, Access::LOCAL, |_| 0)?;
        world.peers[0]
            .ep
            .post(&WorkRequest::write(to, out.buffer(0, 20_000)?, remote).user_data(1))?;
        world.peers[0].post(&WorkRequest::read(to, back.buffer(0, 20_000)?, remote).user_data(2))?;
        world.wait_ok(0, 1)?;
        world.wait_ok(0, 2)?;
        expect(&back, 20_000, seed)?;
    }
    Ok(())
}

pub(super) fn both_directions_at_full_window_keep_every_byte(fabric: &Fabric) -> Result<()> {
    const SLOTS: u64 = 16;
    const ROUNDS: u64 = 20;
    const LEN: usize = 50_000;
    let mut world = World::pair(fabric)?;
    let handles = [world.handle(0, 1)?, world.handle(1, 0)?];
    let mut into: [Vec<Region>; 2] = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for side in [0, 1] {
            into[side] = (0..SLOTS)
                .map(|_| world.peers[side].memory(LEN, Access::LOCAL, |_| 0))
                .collect::<Result<_>>()?;
            for (slot, region) in (0..).zip(&into[side]) {
                world.peers[side].receive(slot, region)?;
            }
        }
        for side in [0, 1] {
            for slot in 0..SLOTS {
                let seed = round * SLOTS + slot;
                let body = world.peers[side].memory(LEN, Access::LOCAL, pattern(seed))?;
                let request = WorkRequest::send(handles[side], body.buffer(0, LEN)?).user_data(100 + slot);
                world.peers[side].post(&request)?;
                into[side].push(body);
            }
        }
        for side in [0, 1] {
            for slot in 0..SLOTS {
                world.wait_ok(side, slot)?;
                world.wait_ok(side, 100 + slot)?;
            }
            for (slot, region) in (0..SLOTS).zip(&into[side]) {
                expect(region, LEN, round * SLOTS + slot)?;
            }
        }
    }
    Ok(())
}

pub(super) fn a_message_without_a_receive_waits_for_one(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let body = world.peers[0].memory(9000, Access::LOCAL, pattern(1))?;
    for message in 0..4 {
        world.peers[0].post(&WorkRequest::send(to, body.buffer(0, 9000)?).user_data(message))?;
    }
    world.quiet(1)?;
    world.quiet(0)?;
    for message in 0..4 {
        let into = world.peers[1].memory(9000, Access::LOCAL, |_| 0)?;
        world.peers[1].receive(50 + message, &into)?;
        world.wait_ok(1, 50 + message)?;
        world.wait_ok(0, message)?;
        expect(&into, 9000, 1)?;
    }
    Ok(())
}

pub(super) fn waiting_messages_of_two_senders_all_arrive(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    world.add(EndpointConfig::default())?;
    let handles = [world.handle(1, 0)?, world.handle(2, 0)?];
    for (from, handle) in (1..).zip(handles) {
        for message in 0..10 {
            let request = WorkRequest::send(handle, Buffer::EMPTY).imm(from as u64 * 100 + message);
            world.peers[from].post(&request.user_data(message))?;
        }
    }
    world.quiet(0)?;
    let mut next = [0, 0];
    for receive in 0..20 {
        world.peers[0].ep.post_recv(receive, Buffer::EMPTY)?;
        world.peers[0].ep.submit()?;
        let imm = world.wait_ok(0, receive)?.imm.unwrap_or(0);
        let sender = usize::try_from(imm / 100)? - 1;
        ensure!(
            imm % 100 == next[sender],
            "sender {sender}: {} came before {}",
            imm % 100,
            next[sender]
        );
        next[sender] += 1;
    }
    ensure!(next == [10, 10], "messages are missing: {next:?}");
    Ok(())
}
