//! Endpoints, devices and sleepers coming and going.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use usb4_ring::{Access, Buffer, EndpointConfig, NodeId, Status, WorkRequest};

use crate::world::pattern;
use crate::{Fabric, FailureKind, Peer, World};

pub(super) fn a_closed_endpoint_is_gone(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let device = world.peers[1].device.clone();
    let doomed = Peer::on(device, &EndpointConfig::default())?;
    let address = doomed.ep.address();
    let to = world.peers[0].ep.address_handle(&address)?;
    let body = world.peers[0].memory(5000, Access::LOCAL, pattern(1))?;
    // No receive is posted: the first waits when the endpoint closes, the second comes too late.
    world.peers[0].post(&WorkRequest::send(to, body.buffer(0, 5000)?).user_data(1))?;
    world.quiet(0)?;
    drop(doomed);
    let waiting = world.wait(0, 1)?;
    ensure!(
        waiting.status == Status::Gone,
        "the waiting message ended with {:?}",
        waiting.status
    );
    world.peers[0].post(&WorkRequest::send(to, Buffer::EMPTY).user_data(2))?;
    let late = world.wait(0, 2)?;
    ensure!(
        late.status == Status::Gone,
        "the late message ended with {:?}",
        late.status
    );
    let other = world.handle(0, 1)?;
    world.peers[1].ep.post_recv(3, Buffer::EMPTY)?;
    world.peers[1].ep.submit()?;
    world.peers[0].post(&WorkRequest::send(other, Buffer::EMPTY))?;
    world.wait_ok(1, 3)?;
    Ok(())
}

pub(super) fn a_closed_device_takes_its_peers_work_down(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    let body = world.peers[0].memory(1 << 20, Access::LOCAL, pattern(1))?;
    for work in 0..8 {
        world.peers[0].post(&WorkRequest::send(to, body.buffer(0, 1 << 20)?).user_data(work))?;
    }
    world.step()?;
    world.peers.truncate(1);
    for work in 0..8 {
        let done = world.wait(0, work)?;
        let ended = matches!(done.status, Status::LinkDown | Status::Gone);
        ensure!(ended, "work {work} ended with {:?}", done.status);
    }
    world.peers[0].post(&WorkRequest::send(to, Buffer::EMPTY).user_data(9))?;
    let late = world.wait(0, 9)?;
    let ended = matches!(late.status, Status::LinkDown | Status::Gone | Status::Unreachable);
    ensure!(ended, "late work ended with {:?}", late.status);
    Ok(())
}

pub(super) fn an_address_of_nobody_is_unreachable(fabric: &Fabric) -> Result<()> {
    let world = World::pair(fabric)?;
    let mut address = world.peers[1].ep.address();
    address.node = NodeId(0x1234_5678);
    match world.peers[0].ep.address_handle(&address) {
        Err(failure) if failure.kind == FailureKind::Unreachable => Ok(()),
        Err(error) => bail!("the error is: {error}"),
        Ok(_) => bail!("there is a handle for a node that does not exist"),
    }
}

pub(super) fn a_connected_endpoint_hears_only_its_peer(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let first = world.add_connected()?;
    let second = world.add_connected()?;
    let there = world.handle(first, second)?;
    let back = world.handle(second, first)?;
    for (from, to, handle) in [(first, second, there), (second, first, back)] {
        world.peers[to].ep.post_recv(1, Buffer::EMPTY)?;
        world.peers[to].ep.submit()?;
        world.peers[from].post(&WorkRequest::send(handle, Buffer::EMPTY).user_data(2))?;
        world.wait_ok(to, 1)?;
        world.wait_ok(from, 2)?;
    }
    let stranger = world.handle(0, first)?;
    world.peers[first].ep.post_recv(3, Buffer::EMPTY)?;
    world.peers[first].ep.submit()?;
    world.peers[0].post(&WorkRequest::send(stranger, Buffer::EMPTY).user_data(4))?;
    let refused = world.wait(0, 4)?;
    ensure!(
        refused.status == Status::Gone,
        "a stranger's message ended with {:?}",
        refused.status
    );
    world.quiet(first)
}

pub(super) fn a_connected_endpoint_in_error_flushes(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let first = world.add_connected()?;
    let second = world.add_connected()?;
    let to = world.handle(first, second)?;
    world.handle(second, first)?;
    let target = world.peers[second].memory(64, Access::LOCAL, |_| 0)?;
    let mine = world.peers[first].memory(64, Access::LOCAL, |_| 1)?;
    let remote = usb4_ring::Remote {
        addr: target.addr(),
        key: target.remote_key(),
    };
    world.peers[first].post(&WorkRequest::write(to, mine.buffer(0, 64)?, remote).user_data(1))?;
    let failed = world.wait(first, 1)?;
    ensure!(
        failed.status == Status::Access,
        "the write ended with {:?}",
        failed.status
    );
    world.peers[first]
        .ep
        .post(&WorkRequest::send(to, Buffer::EMPTY).user_data(2))?;
    match world.peers[first].ep.submit() {
        Ok(()) => {
            let after = world.wait(first, 2)?;
            ensure!(
                after.status == Status::Flushed,
                "work after the error ended with {:?}",
                after.status
            );
        }
        Err(failure) if failure.kind == FailureKind::EndpointError => {}
        Err(error) => bail!("submitting after the error: {error}"),
    }
    Ok(())
}

pub(super) fn a_sleeper_wakes_for_a_completion(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    for message in 0..20 {
        world.peers[1].ep.post_recv(message, Buffer::EMPTY)?;
        world.peers[1].ep.submit()?;
        world.peers[0].post(&WorkRequest::send(to, Buffer::EMPTY).user_data(message))?;
        // Nobody polls from here on: the devices' own threads have to move the message.
        ensure!(
            world.peers[1].cq.wait(Duration::from_secs(10))?,
            "message {message} woke nobody"
        );
        world.wait_ok(1, message)?;
        world.wait_ok(0, message)?;
    }
    ensure!(
        !world.peers[1].cq.wait(Duration::from_millis(5))?,
        "an empty queue woke its sleeper"
    );
    Ok(())
}

pub(super) fn a_descriptor_becomes_readable_for_a_completion(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    let to = world.handle(0, 1)?;
    for message in 0..20 {
        world.peers[1].ep.post_recv(message, Buffer::EMPTY)?;
        world.peers[1].ep.submit()?;
        world.peers[0].post(&WorkRequest::send(to, Buffer::EMPTY).user_data(message))?;
        ensure!(
            world.peers[1].cq.wait_readable(Duration::from_secs(10))?,
            "message {message} made nothing readable"
        );
        world.wait_ok(1, message)?;
        world.wait_ok(0, message)?;
    }
    ensure!(
        !world.peers[1].cq.wait_readable(Duration::from_millis(5))?,
        "the descriptor of an empty queue is readable"
    );
    Ok(())
}

pub(super) fn endpoints_open_and_close_without_end(fabric: &Fabric) -> Result<()> {
    let mut world = World::pair(fabric)?;
    for round in 0..300 {
        let device = world.peers[0].device.clone();
        world.peers.push(Peer::on(
            device,
            &EndpointConfig {
                sq_depth: 8,
                rq_depth: 8,
                ..Default::default()
            },
        )?);
        let to = world.handle(2, 1)?;
        world.peers[1].ep.post_recv(round, Buffer::EMPTY)?;
        world.peers[1].ep.submit()?;
        world.peers[2].post(&WorkRequest::send(to, Buffer::EMPTY).user_data(1))?;
        world.wait_ok(1, round)?;
        world.wait_ok(2, 1)?;
        world.peers.truncate(2);
    }
    Ok(())
}
