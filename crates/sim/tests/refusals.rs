//! Work that the peer refuses ends with the reason, and what follows it on the flow is not harmed.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

use usb4_engine::{NakCode, Operation, Status};
use usb4_sim::{Access, Buf, Faults, Line, Profile, SEC, World};

fn line(loss: f64) -> (World, Line) {
    let (mut world, a, b) = World::pair(11, &Profile::STRIX, 1, Faults::loss(loss)).unwrap();
    let line = Line::new(&mut world, a, b).unwrap();
    (world, line)
}

/// The work just posted is refused with `code`; the flow goes on, nothing is left.
fn is_refused(world: &mut World, line: &mut Line, code: NakCode) {
    assert_eq!(line.outcome(world, SEC), Ok(Status::Refused(code)));
    line.works(world).unwrap();
    world.run_for(SEC);
    assert_eq!(world.violations(), [""; 0]);
    assert_eq!(world.leaks(), [""; 0]);
}

#[test]
fn a_write_with_a_key_of_nobody() {
    for loss in [0.0, 0.05] {
        let (mut world, mut line) = line(loss);
        let op = Operation::Write {
            remote_addr: line.target.addr,
            remote_key: line.target.key ^ 1,
            imm: None,
        };
        world
            .post(line.flow, 0, op, Some(line.source.at(0, 50_000)))
            .unwrap();
        is_refused(&mut world, &mut line, NakCode::Access);
    }
}

#[test]
fn a_read_with_a_dead_key() {
    let (mut world, mut line) = line(0.0);
    let gone = world.memory(line.to.host, vec![0; 4096], Access::ALL);
    world.revoke(gone);
    world
        .read(line.flow, 0, line.source.at(0, 4096), gone.at(0, 4096))
        .unwrap();
    is_refused(&mut world, &mut line, NakCode::Access);
}

#[test]
fn offsets_that_wrap() {
    for remote_addr in [u64::MAX, u64::MAX - 99, 0] {
        let (mut world, mut line) = line(0.0);
        let op = Operation::Write {
            remote_addr,
            remote_key: line.target.key,
            imm: None,
        };
        world
            .post(line.flow, 0, op, Some(line.source.at(0, 100)))
            .unwrap();
        is_refused(&mut world, &mut line, NakCode::Access);
    }
}

#[test]
fn a_write_that_runs_over_the_end_of_its_region() {
    let (mut world, mut line) = line(0.0);
    let small = world.memory(line.to.host, vec![0; 10_000], Access::ALL);
    world
        .write(line.flow, 0, line.source.at(0, 20_000), small.at(0, 20_000))
        .unwrap();
    is_refused(&mut world, &mut line, NakCode::Access);
}

#[test]
fn access_that_was_not_granted() {
    let (mut world, mut line) = line(0.0);
    let read_only = world.memory(
        line.to.host,
        vec![5; 64],
        Access {
            read: true,
            ..Access::LOCAL
        },
    );
    world
        .fetch_add(line.flow, 0, line.source.at(0, 8), read_only.at(0, 8), 1)
        .unwrap();
    is_refused(&mut world, &mut line, NakCode::Access);
    world
        .host(line.to.host)
        .region(read_only, |bytes| assert_eq!(bytes, [5; 64]));
}

#[test]
fn a_message_longer_than_its_receive() {
    let (mut world, mut line) = line(0.0);
    let small = Buf {
        len: 1_000,
        ..line.target.at(0, 0)
    };
    world.post_receive(line.to, small, 77);
    world.send(line.flow, 0, line.source.at(0, 30_000)).unwrap();
    assert_eq!(
        line.outcome(&mut world, SEC),
        Ok(Status::Refused(NakCode::Length))
    );
    let received = world.host(line.to.host).next_received().unwrap().done;
    assert_eq!(
        (received.cookie, received.status),
        (77, Status::Refused(NakCode::Length))
    );
    world.host(line.to.host).region(line.target, |bytes| {
        assert!(bytes[1_000..].iter().all(|&b| b == 0))
    });
    line.works(&mut world).unwrap();
}

#[test]
fn work_for_an_endpoint_that_is_gone() {
    let (mut world, mut line) = line(0.0);
    line.works(&mut world).unwrap();
    world.close_endpoint(line.to);
    world.send(line.flow, 0, line.source.at(0, 100)).unwrap();
    assert_eq!(line.outcome(&mut world, SEC), Ok(Status::Refused(NakCode::Gone)));
    world.close_flow(line.flow);
    world.run_for(SEC);
    assert_eq!(world.violations(), [""; 0]);
    assert_eq!(world.leaks(), [""; 0]);
}

#[test]
fn an_endpoint_closed_mid_message() {
    for delay in 0..40 {
        let (mut world, line) = line(0.01);
        world.post_receive(line.to, line.target.at(0, 1 << 20), 0);
        world.send(line.flow, 0, line.source.at(0, 1 << 20)).unwrap();
        world.run_for(delay * 20_000);
        world.close_endpoint(line.to);
        let status = line.outcome(&mut world, SEC).unwrap();
        assert!(
            matches!(status, Status::Refused(NakCode::Gone) | Status::Ok),
            "{status:?}"
        );
        world.close_flow(line.flow);
        world.run_for(SEC);
        assert_eq!(world.violations(), [""; 0]);
        assert_eq!(world.leaks(), [""; 0]);
    }
}

#[test]
fn reads_on_a_refused_flow_do_not_use_up_the_links_reads() {
    let mut world = World::new(11, &Profile::STRIX);
    let (a, b) = (world.add_host(), world.add_host());
    world.set_limits(|config| config.max_reads = 4);
    world.connect(a, b, Faults::NONE);
    world.bring_up().unwrap();
    let mut good = Line::new(&mut world, a, b).unwrap();
    let mut nobody = good.to;
    nobody.addr.incarnation ^= 1;
    let (local, remote) = (good.source.at(0, 8), good.target.at(0, 8));
    let flow = world.open_flow(good.from, nobody).unwrap();
    for cookie in 0..4 {
        world.read(flow, cookie, local, remote).unwrap();
    }
    for _ in 0..4 {
        assert_eq!(good.outcome(&mut world, SEC), Ok(Status::Refused(NakCode::Gone)));
    }
    world.read(good.flow, 0, local, remote).unwrap();
    assert_eq!(good.outcome(&mut world, SEC), Ok(Status::Ok));
    world.close_flow(flow);
    good.works(&mut world).unwrap();
    world.run_for(SEC);
    assert_eq!(world.leaks(), [""; 0]);
}

#[test]
fn a_closed_flow_flushes_its_work() {
    let (mut world, mut line) = line(0.0);
    // No receive is posted: the messages wait for one until the flow is closed.
    for cookie in 0..10 {
        world.send(line.flow, cookie, line.source.at(0, 10_000)).unwrap();
    }
    world.run_for(SEC / 10);
    world.close_flow(line.flow);
    for _ in 0..10 {
        assert_eq!(line.outcome(&mut world, SEC), Ok(Status::Flushed));
    }
    line.flow = world.open_flow(line.from, line.to).unwrap();
    line.works(&mut world).unwrap();
    world.run_for(SEC);
    assert_eq!(world.violations(), [""; 0]);
    assert_eq!(world.leaks(), [""; 0]);
}
