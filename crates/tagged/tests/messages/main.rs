//! Messages between endpoints of a mock network.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod mock;
mod rendezvous;
mod world;

use proptest::prelude::*;
use usb4_tagged::*;

use world::*;

#[test]
fn each_length_arrives_whole_whether_expected_or_not() {
    for len in [0, 1, 24, 255, 256, 257, 511, 512, 513, 5000, 100_000] {
        for expected in [true, false] {
            let mut world = World::new(2, 8);
            let message = pattern(len, 3);
            let mut buffer = vec![0; len];
            if expected {
                world.receive(B, Some(A), 5, 0, &mut buffer, 9);
                world.settle();
            }
            world.send(A, B, 5, &message, 1);
            world.settle();
            if !expected {
                world.receive(B, Some(A), 5, 0, &mut buffer, 9);
                world.settle();
            }
            assert_eq!(buffer, message, "{len}");
            let received = world.received(B);
            assert_eq!(received.len(), 1);
            let c = received[0];
            assert_eq!(
                (c.len, c.tag, c.data, c.from, c.context),
                (len as u64, 5, Some(6), Some(A), 9)
            );
            assert_eq!(
                world
                    .sent(A)
                    .iter()
                    .map(|c| (c.context, c.result))
                    .collect::<Vec<_>>(),
                [(1, Ok(()))]
            );
            assert_eq!(
                world.net.borrow().exposed(),
                0,
                "memory stays exposed after completion"
            );
        }
    }
}

#[test]
fn a_send_to_be_confirmed_completes_only_when_it_is_received() {
    for len in [0, 10] {
        let mut world = World::new(2, 8);
        world.confirm = true;
        let message = pattern(len, 8);
        world.send(A, B, 1, &message, 1);
        world.settle();
        assert!(world.sent(A).is_empty());
        assert!(world.hosts[0].drained());
        let mut buffer = vec![0; len];
        world.receive(B, None, 1, 0, &mut buffer, 2);
        world.settle();
        assert_eq!((buffer, world.sent(A).len()), (message, 1));
    }
}

#[test]
fn a_short_message_does_not_overtake_a_long_one() {
    let mut world = World::new(2, 8);
    let long = pattern(10_000, 1);
    let short = pattern(10, 2);
    let (mut first, mut second) = (vec![0; 10_000], vec![0; 10_000]);
    world.receive(B, None, 0, u64::MAX, &mut first, 1);
    world.receive(B, None, 0, u64::MAX, &mut second, 2);
    world.send(A, B, 7, &long, 1);
    world.send(A, B, 8, &short, 2);
    world.settle();
    assert_eq!(first, long);
    assert_eq!(&second[..10], &short);
}

#[test]
fn a_message_to_oneself_arrives() {
    for len in [64, 20_000] {
        let mut world = World::new(1, 8);
        let message = pattern(len, 4);
        let mut buffer = vec![0; len];
        world.send(A, A, 1, &message, 1);
        world.receive(A, Some(A), 1, 0, &mut buffer, 2);
        world.settle();
        assert_eq!(buffer, message);
        assert_eq!(world.done[0].len(), 2);
    }
}

#[test]
fn a_message_longer_than_its_receive_is_truncated_and_reported() {
    for len in [300, 5000] {
        let mut world = World::new(2, 8);
        let message = pattern(len, 5);
        let mut buffer = vec![0; 100];
        world.receive(B, None, 1, 0, &mut buffer, 2);
        world.send(A, B, 1, &message, 1);
        world.settle();
        let c = world.received(B)[0];
        assert_eq!(buffer, message[..100]);
        assert_eq!(
            (c.result, c.len, c.truncated),
            (Err(Failure::Truncated), 100, len as u64 - 100)
        );
        assert_eq!(world.sent(A)[0].result, Ok(()));
    }
}

#[test]
fn several_segments_go_out_and_in_as_one_message() {
    for len in [100u64, 400, 3000] {
        let mut world = World::new(2, 8);
        let message = pattern(len as usize, 6);
        let cut = |parts: &[u64], addr: u64| {
            let mut at = 0;
            let segment = |len: &u64| {
                at += len;
                Segment {
                    addr: addr + at - len,
                    len: *len,
                }
            };
            parts.iter().map(segment).collect::<Vec<_>>()
        };
        let out = cut(
            &[len / 10, 0, len / 2, len - len / 10 - len / 2],
            message.as_ptr() as u64,
        );
        let mut buffer = vec![0u8; len as usize];
        let into = cut(&[len / 3, len - len / 3], buffer.as_mut_ptr() as u64);
        world.receive_segments(B, Some(A), (1, 0), &into, 2, None);
        world.send_segments(A, B, 1, &out, 1, false).unwrap();
        world.settle();
        assert_eq!(buffer, message, "{len}");
    }
}

#[test]
fn an_injected_buffer_may_be_reused_at_once() {
    let mut world = World::new(2, 8);
    let mut message = pattern(256, 7);
    let segment = [Segment {
        addr: message.as_ptr() as u64,
        len: 256,
    }];
    world.send_segments(A, B, 1, &segment, 1, true).unwrap();
    message.fill(0xee);
    let mut buffer = vec![0; 256];
    world.receive(B, None, 1, 0, &mut buffer, 2);
    world.settle();
    assert_eq!(buffer, pattern(256, 7));
    let long = [Segment {
        addr: message.as_ptr() as u64,
        len: 257,
    }];
    assert_eq!(
        world.send_segments(A, B, 1, &long, 1, true),
        Err(SendError::TooLong)
    );
}

#[test]
fn an_injected_message_to_be_confirmed_is_read_from_a_copy() {
    for len in [0, 8, 256] {
        let mut world = World::new(2, 8);
        world.confirm = true;
        let mut message = pattern(len, 7);
        let segment = [Segment {
            addr: message.as_ptr() as u64,
            len: len as u64,
        }];
        world.send_segments(A, B, 1, &segment, 1, true).unwrap();
        message.fill(0xee);
        world.settle();
        assert!(world.sent(A).is_empty(), "nobody has received it");
        let mut buffer = vec![0; len];
        world.receive(B, None, 1, 0, &mut buffer, 2);
        world.settle();
        assert_eq!(buffer, pattern(len, 7));
        assert_eq!(world.sent(A)[0].result, Ok(()));
        assert_eq!(world.net.borrow().exposed(), 0);
    }
}

#[test]
fn unexpected_messages_beyond_the_bound_make_the_sender_wait_and_none_is_lost() {
    let mut world = World::with(2, 8, 4 * 400);
    let messages: Vec<Vec<u8>> = (0..40).map(|n| pattern(400, n)).collect();
    for (n, message) in messages.iter().enumerate() {
        world.send(A, B, n as u64, message, n as u64);
    }
    world.settle();
    assert!(world.sent(A).len() <= 8 + 4, "{} were taken", world.sent(A).len());
    let mut buffers = vec![vec![0; 400]; 40];
    for (n, buffer) in buffers.iter_mut().enumerate() {
        world.receive(B, Some(A), n as u64, 0, buffer, n as u64);
        world.settle();
    }
    assert_eq!(buffers, messages);
    assert_eq!(world.sent(A).len(), 40);
}

#[test]
fn empty_messages_and_requests_to_send_are_bounded_too() {
    for len in [0, 1, 400, 3000] {
        for (unexpected_max, most) in [(0, 8), (4096, 8 + 12)] {
            let mut world = World::with(2, 8, unexpected_max);
            let messages: Vec<Vec<u8>> = (0..40).map(|n| pattern(len, n)).collect();
            for (n, message) in messages.iter().enumerate() {
                world.send(A, B, n as u64, message, n as u64);
            }
            world.settle();
            let taken = 40 - world.net.borrow().in_flight(0, 1);
            assert!((8..=most).contains(&taken), "{taken} of {len} bytes were taken");
            let mut buffers = vec![vec![0; len]; 40];
            for (n, buffer) in buffers.iter_mut().enumerate() {
                world.receive(B, Some(A), n as u64, 0, buffer, n as u64);
                world.settle();
            }
            assert_eq!(buffers, messages);
            assert_eq!(world.sent(A).len(), 40);
            // What was charged has been given back.
            world.send(A, B, 50, &messages[0], 50);
            world.settle();
            assert_eq!(world.net.borrow().in_flight(0, 1), 0);
        }
    }
}

#[test]
fn a_rendezvous_ends_though_unexpected_messages_hold_every_slot_of_both_sides() {
    const C: PeerId = PeerId(2);
    let mut world = World::with(3, 4, 0);
    let (long, mut buffer) = (pattern(5000, 1), vec![0; 5000]);
    let (short, mut into) = (pattern(10, 2), vec![0; 10]);
    world.send(A, B, 1, &long, 100);
    world.settle();
    // They send each other, and C sends both, more than there is room for.
    for n in 0..10 {
        for (from, to) in [(A, B), (B, A), (C, A), (C, B)] {
            world.send(from, to, 2, &short, n);
        }
    }
    world.settle();
    world.receive(B, Some(A), 1, 0, &mut buffer, 3);
    world.settle();
    assert_eq!(buffer, long);
    let ended = |c: &Completion| c.context == 100 && c.result.is_ok();
    assert!(world.sent(A).iter().any(ended), "the sender waits for slots");
    for n in 0..20 {
        for at in [A, B] {
            world.receive(at, None, 2, 0, &mut into, n);
            world.settle();
        }
    }
    let sent: usize = (0..3).map(|host| world.sent(PeerId(host)).len()).sum();
    assert_eq!(sent, 41);
}

#[test]
fn a_question_that_overtakes_its_request_is_not_answered() {
    let mut world = World::new(2, 80);
    let (long, mut buffer) = (pattern(5000, 1), vec![0; 5000]);
    let step_all = |world: &mut World| {
        while world.net.borrow().in_flight(0, 1) > 0 {
            world.net.borrow_mut().step(0);
        }
        let host = &mut world.hosts[0];
        while host.progress(&mut |c| world.done[0].push(c)) > 0 {}
    };
    // As many as the receiver takes in one call, then the request.
    for n in 0..EVENTS_MAX as u64 {
        world.send(A, B, 2, &long[..10], n);
    }
    step_all(&mut world);
    world.send(A, B, 1, &long, 100);
    step_all(&mut world);
    world.probe(A);
    step_all(&mut world);
    let handled = world.hosts[1].progress(&mut |_: Completion| ());
    assert_eq!(handled, EVENTS_MAX + 1, "the messages and the question");
    world.receive(B, None, 1, 0, &mut buffer, 2);
    world.settle();
    assert_eq!(buffer, long);
    let ends: Vec<_> = world
        .sent(A)
        .iter()
        .filter(|c| c.context == 100)
        .copied()
        .collect();
    assert_eq!((ends.len(), ends[0].result), (1, Ok(())));
}

#[test]
fn a_full_send_queue_says_so_and_takes_more_later() {
    let mut world = World::new(2, 8);
    world.net.borrow_mut().depth = 4;
    let message = pattern(3000, 1);
    let segment = [Segment {
        addr: message.as_ptr() as u64,
        len: 3000,
    }];
    for n in 0..4 {
        world.send_segments(A, B, 1, &segment, n, false).unwrap();
    }
    assert_eq!(
        world.send_segments(A, B, 1, &segment, 4, false),
        Err(SendError::Full)
    );
    let mut buffers = vec![vec![0u8; 3000]; 6];
    for (n, buffer) in buffers.iter_mut().enumerate() {
        world.receive(B, None, 1, 0, buffer, n as u64);
    }
    world.settle();
    world.send_segments(A, B, 1, &segment, 4, false).unwrap();
    world.send_segments(A, B, 1, &segment, 5, false).unwrap();
    world.settle();
    assert!(buffers.iter().all(|b| *b == message));
    assert_eq!(world.sent(A).len(), 6);
    assert_eq!(world.net.borrow().exposed(), 0);
}

#[test]
fn a_cancelled_receive_takes_nothing_and_reports_it() {
    let mut world = World::new(2, 8);
    let (mut first, mut second) = (vec![0; 8], vec![0; 8]);
    world.receive(B, Some(A), 1, 0, &mut first, 1);
    world.receive(B, None, 1, 0, &mut second, 2);
    let done = &mut world.done[1];
    assert!(world.hosts[1].cancel(1, &mut |c| done.push(c)));
    assert!(!world.hosts[1].cancel(1, &mut |_| panic!("cancelled twice")));
    assert_eq!(world.received(B)[0].result, Err(Failure::Cancelled));
    world.send(A, B, 1, &[1; 8], 1);
    world.settle();
    assert_eq!((first[0], second[0]), (0, 1));
}

#[test]
fn a_cancelled_multi_receive_is_given_back_with_its_last_completion() {
    for reading in [false, true] {
        let mut world = World::new(2, 8);
        let mut buffer = vec![0; 8000];
        let segment = [Segment {
            addr: buffer.as_mut_ptr() as u64,
            len: 8000,
        }];
        world.receive_segments(B, None, (0, u64::MAX), &segment, 5, Some(100));
        let message = pattern(5000, 1);
        if reading {
            world.send(A, B, 1, &message, 1);
            world.net.borrow_mut().step(0);
            world.progress();
        }
        let done = &mut world.done[1];
        assert!(world.hosts[1].cancel(5, &mut |c| done.push(c)));
        world.settle();
        let ends: Vec<_> = world.received(B).iter().map(|c| (c.result, c.last)).collect();
        let cancelled = Err(Failure::Cancelled);
        if reading {
            assert_eq!(ends, [(cancelled, false), (Ok(()), true)]);
            assert_eq!(buffer[..5000], message);
        } else {
            assert_eq!(ends, [(cancelled, true)]);
        }
    }
}

#[test]
fn a_peek_finds_claims_and_discards() {
    for len in [100, 4000] {
        let mut world = World::new(2, 8);
        let messages: Vec<Vec<u8>> = (0..3).map(|n| pattern(len, n)).collect();
        for (n, message) in messages.iter().enumerate() {
            world.send(A, B, 10 + n as u64, message, n as u64);
        }
        world.settle();
        let any = Pattern {
            class: Class::Tagged,
            from: None,
            tag: 0,
            ignore: u64::MAX,
        };
        let host = &mut world.hosts[1];
        assert_eq!(
            host.peek(
                &Pattern {
                    tag: 9,
                    ignore: 0,
                    ..any
                },
                Peek::Look
            ),
            None
        );
        let found = host.peek(&any, Peek::Look).unwrap();
        assert_eq!((found.len, found.envelope.tag, found.from), (len as u64, 10, A));
        assert_eq!(host.peek(&any, Peek::Claim { context: 77 }), Some(found));
        assert_eq!(host.peek(&any, Peek::Discard).unwrap().envelope.tag, 11);
        let mut buffer = vec![0; len];
        let segments = [Segment {
            addr: buffer.as_mut_ptr() as u64,
            len: len as u64,
        }];
        let request = RecvRequest {
            pattern: any,
            segments: &segments,
            context: 77,
            token: 0,
            report: true,
            multi: None,
        };
        // SAFETY: the buffer outlives the receive.
        unsafe {
            host.receive_claimed(&request, &mut |c| world.done[1].push(c))
                .unwrap();
            assert_eq!(
                host.receive_claimed(&request, &mut |_| ()),
                Err(RecvError::NotClaimed)
            );
        }
        let mut last = vec![0; len];
        world.receive(B, None, 0, u64::MAX, &mut last, 3);
        world.settle();
        assert_eq!((&buffer, &last), (&messages[0], &messages[2]));
        assert_eq!(
            world.sent(A).len(),
            3,
            "the sender of a discarded message hears of success"
        );
    }
}

#[test]
fn a_multi_receive_takes_messages_until_little_is_left() {
    let mut world = World::new(2, 8);
    let mut buffer = vec![0u8; 2000];
    let segment = [Segment {
        addr: buffer.as_mut_ptr() as u64,
        len: 2000,
    }];
    let messages = [pattern(300, 1), pattern(1200, 2), pattern(450, 3), pattern(10, 4)];
    world.send(A, B, 1, &messages[0], 0);
    world.settle();
    world.receive_segments(B, None, (0, u64::MAX), &segment, 5, Some(100));
    for (n, message) in messages.iter().enumerate().skip(1) {
        world.send(A, B, 1, message, n as u64);
    }
    world.settle();
    let received = world.received(B);
    let mut places: Vec<(u64, u64)> = received
        .iter()
        .map(|c| (c.addr - buffer.as_ptr() as u64, c.len))
        .collect();
    places.sort_unstable();
    assert_eq!(places, [(0, 300), (300, 1200), (1500, 450)]);
    assert_eq!(received.iter().filter(|c| c.last).count(), 1);
    assert!(
        received.last().unwrap().last,
        "the buffer is given back with its last completion"
    );
    assert_eq!(buffer[..1950], messages[..3].concat());
    let mut rest = vec![0; 10];
    world.receive(B, None, 1, 0, &mut rest, 6);
    world.settle();
    assert_eq!(rest, messages[3]);
}

/// Takes completions, but wants only one receive per call.
struct OneAtATime<'a>(&'a mut Vec<Completion>, usize);

impl Sink for OneAtATime<'_> {
    fn complete(&mut self, completion: Completion) {
        self.0.push(completion);
    }
    fn is_full(&self) -> bool {
        self.0.iter().filter(|c| c.receive).count() > self.1
    }
}

#[test]
fn finished_sends_are_not_forgotten_over_receives_that_never_end() {
    let mut world = World::new(2, 256);
    let mut buffers = vec![[0; 8]; 100];
    for (n, buffer) in buffers.iter_mut().enumerate() {
        world.receive(B, None, n as u64, 0, buffer, n as u64);
        world.send(A, B, n as u64, &[1; 8], 0);
        while world.net.borrow_mut().step(0) {}
        world.hosts[0].progress(&mut |_| {});
    }
    let mut unread = [0; 8];
    world.receive(A, None, 0, u64::MAX, &mut unread, 0);
    for n in 0..5 {
        world.send(B, A, n, &[2; 8], n);
    }
    while world.net.borrow_mut().step(0) {}
    // 100 messages wait, and five sends have ended.
    let done = &mut world.done[1];
    for seen in 0..64 {
        world.hosts[1].progress(&mut OneAtATime(done, seen));
        let receives = done.iter().filter(|c| c.receive).count();
        assert_eq!(receives, seen + 1, "a call returns with what it came for");
    }
    assert_eq!(done.iter().filter(|c| !c.receive).count(), 5);
}

#[derive(Clone, Debug)]
enum Step {
    Send {
        from: u32,
        to: u32,
        tag: u64,
        len: usize,
    },
    Receive {
        at: u32,
        from: Option<u32>,
        tag: u64,
        ignore: u64,
    },
    Move(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let host = 0u32..3;
    let len = prop_oneof![0usize..40, 500usize..530, 2000usize..2100];
    let ignore = prop_oneof![Just(0u64), Just(u64::MAX)];
    prop_oneof![
        (host.clone(), host.clone(), 0u64..3, len).prop_map(|(from, to, tag, len)| Step::Send {
            from,
            to,
            tag,
            len
        }),
        (host.clone(), proptest::option::of(host), 0u64..3, ignore).prop_map(|(at, from, tag, ignore)| {
            Step::Receive {
                at,
                from,
                tag,
                ignore,
            }
        }),
        any::<u8>().prop_map(|n| Step::Move(n.into())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any mixture of sends and receives: every message ends in one receive that accepts it, whole; of one
    /// sender and tag they end in the order sent.
    #[test]
    fn every_message_ends_once_whole_and_in_order(steps in proptest::collection::vec(step(), 0..120)) {
        let mut world = World::new(3, 4);
        world.net.borrow_mut().depth = 16;
        let mut sent: Vec<(u32, u32, u64, Vec<u8>)> = Vec::new();
        let mut buffers: Vec<Vec<u8>> = Vec::new();
        let mut receives = Vec::new();
        for step in steps {
            match step {
                Step::Move(n) => {
                    world.progress();
                    world.net.borrow_mut().step(n);
                }
                Step::Send { from, to, tag, len } => {
                    let n = sent.len();
                    let mut bytes = pattern(len, n as u8);
                    let stamp = (n as u32).to_le_bytes();
                    let head = bytes.len().min(4);
                    bytes[..head].copy_from_slice(&stamp[..head]);
                    let segment = [Segment { addr: bytes.as_ptr() as u64, len: len as u64 }];
                    while world.send_segments(PeerId(from), PeerId(to), tag, &segment, n as u64, false)
                        == Err(SendError::Full)
                    {
                        // Room comes by progress or, if receivers hold it all, by a receive.
                        world.settle();
                        let mut room = vec![0; 4096];
                        let context = buffers.len() as u64;
                        world.receive(PeerId(to), None, 0, u64::MAX, &mut room, context);
                        buffers.push(room);
                        receives.push((to, None, 0, u64::MAX));
                        world.settle();
                    }
                    sent.push((from, to, tag, bytes));
                }
                Step::Receive { at, from, tag, ignore } => {
                    let mut buffer = vec![0; 4096];
                    let context = buffers.len() as u64;
                    world.receive(PeerId(at), from.map(PeerId), tag, ignore, &mut buffer, context);
                    buffers.push(buffer);
                    receives.push((at, from, tag, ignore));
                }
            }
        }
        for at in 0..3 {
            for _ in 0..sent.len() {
                let mut buffer = vec![0; 4096];
                world.receive(PeerId(at), None, 0, u64::MAX, &mut buffer, buffers.len() as u64);
                buffers.push(buffer);
                receives.push((at, None, 0, u64::MAX));
            }
        }
        world.settle();
        let mut seen = std::collections::HashMap::new();
        let mut total = 0;
        for at in 0..3u32 {
            let mut done = world.received(PeerId(at));
            total += done.len();
            // Receives of one pattern are filled in the order posted.
            done.sort_by_key(|c| c.context);
            for c in done {
                let (_, from, tag, ignore) = receives[c.context as usize];
                let source = c.from.unwrap().0;
                prop_assert!(from.is_none_or(|f| f == source));
                prop_assert_eq!((c.tag ^ tag) & !ignore, 0);
                prop_assert_eq!(c.result, Ok(()));
                let exact = ignore == 0 && from.is_some();
                let bytes = &buffers[c.context as usize][..c.len as usize];
                let index = sent.iter().position(|s| {
                    s.0 == source && s.1 == at && s.2 == c.tag && s.3 == bytes && (bytes.len() < 4 || s.3[..4] == bytes[..4])
                });
                prop_assert!(index.is_some(), "bytes nobody sent");
                if exact && c.len >= 4 {
                    let stamp = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                    let last = seen.insert((source, at, c.tag), stamp);
                    prop_assert!(last.is_none_or(|last| last < stamp), "overtaken");
                }
            }
        }
        prop_assert_eq!(total, sent.len());
        prop_assert_eq!((0..3).map(|h| world.sent(PeerId(h)).len()).sum::<usize>(), sent.len());
        prop_assert_eq!(world.net.borrow().exposed(), 0);
    }
}
