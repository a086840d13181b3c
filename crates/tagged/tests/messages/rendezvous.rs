//! Rendezvous whose peer or link goes away.

use usb4_tagged::*;

use super::mock::Wire;
use super::world::*;

#[test]
fn a_message_that_cannot_be_read_at_once_is_read_in_parts() {
    let mut world = World::new(2, 8);
    world.net.borrow_mut().read_max = 999;
    world.net.borrow_mut().depth = 3;
    let message = pattern(5000, 1);
    let mut buffer = vec![0; 5000];
    world.receive(B, None, 1, 0, &mut buffer, 2);
    world.send(A, B, 1, &message, 1);
    world.settle();
    assert_eq!(buffer, message);
    assert_eq!((world.received(B).len(), world.sent(A).len()), (1, 1));
    assert_eq!(world.net.borrow().exposed(), 0);
}

#[test]
fn a_lost_peer_fails_sends_and_a_rendezvous_it_never_finished() {
    let mut world = World::new(2, 8);
    let message = pattern(5000, 1);
    world.send(A, B, 1, &message, 1);
    world.settle();
    assert!(world.sent(A).is_empty(), "nobody has received it");
    world.net.borrow_mut().kill(1);
    world.send(A, B, 1, &message[..10], 2);
    world.settle();
    world.probe(A);
    world.settle();
    let results: Vec<_> = world.sent(A).iter().map(|c| (c.context, c.result)).collect();
    assert_eq!(
        results,
        [(2, Err(Failure::PeerLost)), (1, Err(Failure::PeerLost))]
    );
    assert_eq!(world.hosts[0].rendezvous_outstanding(), 0);
}

#[test]
fn a_rendezvous_whose_end_was_lost_with_the_link_ends_when_the_link_is_back() {
    let mut world = World::new(2, 8);
    let message = pattern(5000, 1);
    let mut buffer = vec![0; 5000];
    world.send(A, B, 1, &message, 1);
    world.settle();
    world.receive(B, None, 1, 0, &mut buffer, 2);
    // The receiver has read the message; its answer is on the way.
    loop {
        world.progress();
        if !world.received(B).is_empty() {
            break;
        }
        world.net.borrow_mut().step(0);
    }
    assert_eq!(world.net.borrow().in_flight(1, 0), 1);
    world.net.borrow_mut().cut(0, 1);
    world.settle();
    assert!(world.sent(A).is_empty());
    world.probe(A);
    world.settle();
    assert_eq!(buffer, message);
    assert_eq!(world.sent(A)[0].result, Err(Failure::PeerLost));
    assert_eq!(world.hosts[0].rendezvous_outstanding(), 0);
    assert_eq!(world.net.borrow().exposed(), 0);
}

#[test]
fn a_rendezvous_the_peer_has_still_to_finish_survives_a_lost_link_and_probes() {
    let mut world = World::new(2, 8);
    let (messages, mut buffers) = (
        [pattern(5000, 1), pattern(6000, 2)],
        [vec![0; 5000], vec![0; 6000]],
    );
    for (n, message) in messages.iter().enumerate() {
        world.send(A, B, n as u64, message, n as u64);
    }
    world.settle();
    // The first is being read, the second waits for its receive.
    let [first, second] = &mut buffers;
    world.receive(B, None, 0, 0, first, 2);
    for _ in 0..4 {
        world.probe(A);
        let host = &mut world.hosts[0];
        host.progress(&mut |c| world.done[0].push(c));
        while world.net.borrow().in_flight(0, 1) > 0 {
            world.net.borrow_mut().step(0);
        }
        let host = &mut world.hosts[1];
        host.progress(&mut |c| world.done[1].push(c));
    }
    assert!(world.sent(A).iter().all(|c| c.result.is_ok()));
    world.settle();
    world.net.borrow_mut().cut(0, 1);
    world.probe(A);
    world.settle();
    world.receive(B, None, 1, 0, second, 3);
    world.settle();
    assert_eq!(world.sent(A).len(), 2);
    assert!(world.sent(A).iter().all(|c| c.result.is_ok()));
    assert_eq!(buffers, messages);
}

#[test]
fn a_question_is_heard_while_every_call_finds_a_message() {
    let mut world = World::new(2, 8);
    let mut wire = Wire::new(&world.net, 0);
    // Nonsense is counted when it is looked at.
    wire.send_control(B, [99, 0, 0], u64::MAX).unwrap();
    while world.net.borrow_mut().step(0) {}
    for call in 0..100 {
        world.send(A, B, 0, &[], call);
        while world.net.borrow_mut().step(0) {}
        let host = &mut world.hosts[1];
        assert_ne!(host.progress(&mut |c| world.done[1].push(c)), 0);
        let host = &mut world.hosts[0];
        host.progress(&mut |c| world.done[0].push(c));
    }
    assert_eq!(world.hosts[1].protocol_errors(), 1);
}

#[test]
fn questions_that_cannot_be_answered_now_are_not_kept() {
    let mut world = World::new(2, 8);
    let mut wire = Wire::new(&world.net, 0);
    for id in 0..8 {
        wire.send_control(B, [4, 0, id], u64::MAX).unwrap();
    }
    world.net.borrow_mut().depth = 0;
    world.settle();
    assert_eq!(world.net.borrow().in_flight(0, 1), 0);
    assert!(world.hosts[1].drained());
    assert_eq!(world.hosts[1].protocol_errors(), 0);
}

#[test]
fn a_sender_that_dies_fails_the_receive_that_reads_from_it() {
    let mut world = World::new(2, 8);
    let message = pattern(5000, 1);
    let mut buffer = vec![0; 5000];
    world.send(A, B, 1, &message, 1);
    world.settle();
    world.receive(B, None, 1, 0, &mut buffer, 3);
    world.net.borrow_mut().kill(0);
    world.settle();
    assert_eq!(world.received(B)[0].result, Err(Failure::PeerLost));
}
