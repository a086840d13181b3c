//! Messages.

use anyhow::{Result, ensure};
use usb4_ring::{Access, Buffer, EndpointConfig, Op, WorkRequest};

use crate::world::{bytes, expect, pattern};
use crate::{Fabric, Peer, World};

/// Around one and two frames' payload, and larger.
const SIZES: [usize; 10] = [1, 7, 64, 512, 4015, 4032, 4096, 8192, 65_537, 1 << 20];

pub(super) fn a_message_of_any_size_arrives_whole(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    for (seed, len) in (0u64..).zip(SIZES) {
        let from = world.peers[0].memory(len, Access::LOCAL, pattern(seed))?;
        let into = world.peers[1].memory(len + 8, Access::LOCAL, |_| 0xee)?;
        world.peers[1].receive(1, &into)?;
        let request = WorkRequest::send(to, from.buffer(0, len)?).user_data(2);
        world.peers[0].post(&request)?;
        let got = world.wait_ok(1, 1)?;
        let sent = world.wait_ok(0, 2)?;
        ensure!(
            got.op == Op::Receive && got.len as usize == len && got.imm.is_none(),
            "receive was {got:?}"
        );
        ensure!(
            sent.op == Op::Send && sent.len as usize == len,
            "send was {sent:?}"
        );
        expect(&into, len, seed)?;
        ensure!(
            bytes(&into, len, 8)? == [0xee; 8],
            "bytes behind a message of {len} were written"
        );
    }
    Ok(())
}

pub(super) fn an_empty_message_arrives(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    world.peers[1].ep.post_recv(1, Buffer::EMPTY)?;
    world.peers[1].ep.submit()?;
    world.peers[0].post(&WorkRequest::send(to, Buffer::EMPTY).user_data(2))?;
    ensure!(world.wait_ok(1, 1)?.len == 0, "an empty message has a length");
    world.wait_ok(0, 2)?;
    Ok(())
}

pub(super) fn immediate_data_arrives_with_its_message(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let into = world.peers[1].memory(64, Access::LOCAL, |_| 0)?;
    let from = world.peers[0].memory(64, Access::LOCAL, pattern(1))?;
    world.peers[1].receive(1, &into)?;
    world.peers[1].receive(2, &into)?;
    world.peers[0].post(&WorkRequest::send(to, Buffer::EMPTY).imm(u64::MAX))?;
    world.peers[0].post(&WorkRequest::send(to, from.buffer(0, 64)?).imm(7))?;
    ensure!(
        world.wait_ok(1, 1)?.imm == Some(u64::MAX),
        "immediate data of an empty message is lost"
    );
    ensure!(world.wait_ok(1, 2)?.imm == Some(7), "immediate data is lost");
    expect(&into, 64, 1)
}

pub(super) fn a_prefix_comes_before_the_buffer(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    for (prefix, body) in [(24, 4096), (1, 0), (24, 0), (13, 64)] {
        let into = world.peers[1].memory(prefix + body, Access::LOCAL, |_| 0)?;
        let from = world.peers[0].memory(body, Access::LOCAL, |index| pattern(9)(index + prefix))?;
        world.peers[1].receive(1, &into)?;
        let head: Vec<u8> = (0..prefix).map(pattern(9)).collect();
        world.peers[0].post(
            &WorkRequest::send(to, from.buffer(0, body)?)
                .prefix(&head)
                .user_data(2),
        )?;
        ensure!(
            world.wait_ok(1, 1)?.len as usize == prefix + body,
            "the prefix does not count"
        );
        world.wait_ok(0, 2)?;
        expect(&into, prefix + body, 9)?;
    }
    Ok(())
}

pub(super) fn a_message_to_oneself_arrives(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 0)?;
    let from = world.peers[0].memory(10_000, Access::LOCAL, pattern(3))?;
    let into = world.peers[0].memory(10_000, Access::LOCAL, |_| 0)?;
    world.peers[0].receive(1, &into)?;
    world.peers[0].post(&WorkRequest::send(to, from.buffer(0, 10_000)?).user_data(2))?;
    world.wait_ok(0, 1)?;
    world.wait_ok(0, 2)?;
    expect(&into, 10_000, 3)
}

pub(super) fn two_endpoints_of_one_device_talk(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let second = Peer::on(world.peers[0].device.clone(), &EndpointConfig::default())?;
    world.peers.push(second);
    let to = world.handle(0, 2)?;
    let from = world.peers[0].memory(100, Access::LOCAL, pattern(4))?;
    let into = world.peers[2].memory(100, Access::LOCAL, |_| 0)?;
    world.peers[2].receive(1, &into)?;
    world.peers[0].post(&WorkRequest::send(to, from.buffer(0, 100)?))?;
    world.wait_ok(2, 1)?;
    expect(&into, 100, 4)
}

pub(super) fn a_receive_names_its_sender(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    world.add(EndpointConfig::default())?;
    for from in [1, 2, 1] {
        let to = world.handle(from, 0)?;
        world.peers[0].ep.post_recv(1, Buffer::EMPTY)?;
        world.peers[0].ep.submit()?;
        world.peers[from].post(&WorkRequest::send(to, Buffer::EMPTY))?;
        let source = world.wait_ok(0, 1)?.source;
        let want = world.peers[from].ep.address();
        let got = world.peers[0].ep.source(source)?;
        ensure!(
            got == Some(want),
            "sender of a message from peer {from} is {got:?}"
        );
    }
    Ok(())
}

pub(super) fn three_hosts_talk_to_each_other(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    world.add(EndpointConfig::default())?;
    for from in 0..3 {
        for to in (0..3).filter(|to| *to != from) {
            let handle = world.handle(from, to)?;
            let body = world.peers[from].memory(5000, Access::LOCAL, pattern(from as u64))?;
            let into = world.peers[to].memory(5000, Access::LOCAL, |_| 0)?;
            world.peers[to].receive(1, &into)?;
            world.peers[from].post(&WorkRequest::send(handle, body.buffer(0, 5000)?).user_data(2))?;
            world.wait_ok(to, 1)?;
            world.wait_ok(from, 2)?;
            expect(&into, 5000, from as u64)?;
        }
    }
    Ok(())
}
