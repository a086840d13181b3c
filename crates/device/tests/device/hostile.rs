//! Clients that write what they should not, where they should not, when they should not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use usb4_device::{Access, EndpointKind, EndpointState, Keys};
use usb4_ring_abi::{
    CONSUMER_WORD, CqeStatus, ENTRIES_WORD, LOCAL_PROCESS, Op, PRODUCER_WORD, SQE_WORDS, Sqe,
};

use crate::home::Memory;
use crate::world::{Shape, User, World, rma, send};

const BASE: u64 = 0x10_0000;
const NO_KEYS: Keys = Keys { local: 1, remote: 1 };

/// One message from `a` to `b`: they still work.
fn works(world: &mut World, a: &mut User, b: &mut User) {
    let memory = Memory::zeroed(16);
    let (from, to) = (
        world.register(a, &memory, Access::LOCAL),
        world.register(b, &memory, Access::LOCAL),
    );
    b.receive(900, to, BASE, 16);
    world.submit(b);
    a.post(send(901, from, BASE, 16));
    world.submit(a);
    world.settle();
    assert!(a.outcomes().contains(&(901, CqeStatus::Ok)));
    assert!(b.outcomes().contains(&(900, CqeStatus::Ok)));
}

/// Two pairs; the second must not notice what happens to the first.
fn with_bystanders(f: impl FnOnce(&mut World, &mut User, &mut User)) {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let (mut c, mut d) = world.pair();
    works(&mut world, &mut a, &mut b);
    f(&mut world, &mut a, &mut b);
    works(&mut world, &mut c, &mut d);
    works(&mut world, &mut d, &mut c);
}

fn state(world: &World, user: &User) -> EndpointState {
    world.device(user).endpoint_state(user.client, user.ep).unwrap()
}

#[test]
fn a_submission_index_beyond_the_queue_kills_that_endpoint_only() {
    for index in [17, 1000, u64::MAX] {
        with_bystanders(|world, a, b| {
            let memory = Memory::zeroed(16);
            let keys = world.register(a, &memory, Access::LOCAL);
            // Work in flight is flushed: the peer has no receive for it.
            a.post(send(1, keys, BASE, 16));
            world.submit(a);
            world.turn();
            a.sq_words[PRODUCER_WORD].store(index.wrapping_add(2), Ordering::Release);
            world.device(a).submit(a.ep, world.now);
            world.settle();
            assert_eq!(state(world, a), EndpointState::Killed);
            assert_eq!(a.outcomes(), [(1, CqeStatus::Flushed)]);
            assert_eq!(state(world, b), EndpointState::Ready);
            assert!(world.device(a).arm_all(), "it keeps the device awake");
        });
    }
}

#[test]
fn a_submission_index_that_moves_back_kills_that_endpoint_only() {
    with_bystanders(|world, a, _| {
        a.sq_words[PRODUCER_WORD].store(0, Ordering::Release);
        world.device(a).submit(a.ep, world.now);
        world.settle();
        assert_eq!(state(world, a), EndpointState::Killed);
    });
}

#[test]
fn a_receive_index_beyond_the_queue_kills_that_endpoint_only() {
    with_bystanders(|world, a, b| {
        b.rq_words[PRODUCER_WORD].store(1000, Ordering::Release);
        let keys = world.register(a, &Memory::zeroed(16), Access::LOCAL);
        a.post(send(1, keys, BASE, 16));
        world.submit(a);
        world.settle();
        assert_eq!(state(world, b), EndpointState::Killed);
        assert_eq!(a.outcomes(), [(1, CqeStatus::Gone)]);
    });
}

#[test]
fn a_completion_index_that_lies_kills_the_endpoint_and_overruns_nothing() {
    // The device looks at the index when it knows of no free entry: the 64th completion after `works`.
    let fill = |world: &mut World, a: &mut User| {
        for n in 0..64 {
            // Nobody takes the entries of an endpoint that was killed.
            if a.sq.free(1).unwrap() != 0 {
                a.post(Sqe {
                    op: 77,
                    ..send(n, NO_KEYS, BASE, 16)
                });
                world.submit(a);
            }
        }
        world.settle();
    };
    for index in [100, u64::MAX] {
        with_bystanders(|world, a, _| {
            a.cq_words[CONSUMER_WORD].store(index, Ordering::Release);
            fill(world, a);
            assert_eq!(state(world, a), EndpointState::Killed);
        });
    }
    with_bystanders(|world, a, _| {
        fill(world, a);
        assert_eq!(a.poll().len(), 64);
        assert_eq!(state(world, a), EndpointState::Ready);
        a.cq_words[CONSUMER_WORD].store(0, Ordering::Release);
        fill(world, a);
        assert_eq!(state(world, a), EndpointState::Killed, "the index moved back");
    });
}

#[test]
fn invalid_entries_complete_invalid_and_the_next_one_works() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let memory = Memory::zeroed(64);
    let keys = world.register(&a, &memory, Access::LOCAL);
    let foreign = world.register(&b, &memory, Access::LOCAL);
    let good = send(0, keys, BASE, 8);
    let bad = [
        Sqe { op: 0, ..good },
        Sqe { op: 6, ..good },
        Sqe { flags: 0x80, ..good },
        Sqe { reserved: 1, ..good },
        Sqe {
            prefix_len: 25,
            ..good
        },
        Sqe { len: 65, ..good },
        Sqe {
            local_addr: BASE - 1,
            ..good
        },
        Sqe {
            local_addr: u64::MAX,
            ..good
        },
        Sqe {
            local_addr: BASE + 1,
            len: u32::MAX,
            ..good
        },
        Sqe {
            local_key: 0xffff_ffff,
            ..good
        },
        Sqe {
            local_key: keys.local ^ 0x1_0000,
            ..good
        },
        Sqe {
            local_key: LOCAL_PROCESS,
            ..good
        },
        Sqe {
            local_key: foreign.local ^ 0x2_0000,
            ..good
        },
        rma(Op::FetchAdd, 0, keys, BASE, 4, (0, 0)),
    ];
    for (n, sqe) in bad.into_iter().enumerate() {
        a.post(Sqe {
            user_data: n as u64,
            ..sqe
        });
    }
    world.submit(&mut a);
    let outcomes: Vec<_> = (0..bad.len() as u64).map(|n| (n, CqeStatus::Invalid)).collect();
    assert_eq!(a.outcomes(), outcomes);
    for ah in [1, 3, 4, u32::MAX] {
        a.sq.push(&Sqe {
            ah,
            user_data: 50,
            ..good
        })
        .unwrap();
        world.submit(&mut a);
        assert_eq!(a.outcomes(), [(50, CqeStatus::Invalid)]);
    }
    works(&mut world, &mut a, &mut b);
}

#[test]
fn an_entry_rewritten_while_it_is_read_is_taken_as_one_or_the_other_or_refused() {
    // A second thread turns the entry between a good message and nonsense as fast as it can. Whatever the device
    // reads, it reads once and checks: it never touches memory outside the region.
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let memory = Memory::zeroed(64);
    let keys = world.register(&a, &memory, Access::LOCAL);
    let to = world.register(&b, &memory, Access::LOCAL);
    let good = Sqe {
        ah: a.ah,
        ..send(1, keys, BASE, 64)
    };
    let nonsense = Sqe {
        ah: u32::MAX,
        local_addr: u64::MAX - 3,
        len: u32::MAX,
        op: 3,
        ..good
    };
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (words, stop) = (a.sq_words.clone(), stop.clone());
        std::thread::spawn(move || {
            let (good, nonsense) = (good.to_words(), nonsense.to_words());
            while !stop.load(Ordering::Relaxed) {
                for entry in [good, nonsense] {
                    for slot in 0..16 {
                        for (n, word) in entry.iter().enumerate() {
                            words[ENTRIES_WORD + slot * SQE_WORDS + n].store(*word, Ordering::Relaxed);
                        }
                    }
                }
            }
        })
    };
    let mut done = 0;
    for _ in 0..500 {
        for n in 0..4 {
            b.receive(n, to, BASE, 64);
            a.post(good);
        }
        world.submit(&mut b);
        world.submit(&mut a);
        world.settle();
        done += a.poll().len();
        let received = b.poll();
        // Receives that were not used come back, so that the queue does not overflow.
        for _ in received.len()..4 {
            a.post(good);
        }
        while b.rq.free(16).unwrap() < 16 {
            a.post(good);
            world.submit(&mut a);
            world.settle();
            done += a.poll().len();
            b.poll();
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert!(done >= 2000);
    assert_ne!(state(&world, &a), EndpointState::Killed);
}

#[test]
fn receives_of_foreign_or_wrapping_buffers_complete_invalid_and_the_message_takes_the_next() {
    let mut world = World::new();
    let (mut a, mut b) = world.pair();
    let memory = Memory::zeroed(64);
    let from = world.register(&a, &memory, Access::LOCAL);
    let to = world.register(&b, &memory, Access::LOCAL);
    let mut other = world.user(1, EndpointKind::Datagram);
    let foreign = world.register(&other, &memory, Access::LOCAL);
    b.receive(1, foreign, BASE, 64);
    b.receive(2, to, BASE + 1, 64);
    b.receive(3, to, u64::MAX - 7, 64);
    b.receive(4, to, BASE, 64);
    world.submit(&mut b);
    a.post(send(9, from, BASE, 64));
    world.submit(&mut a);
    world.settle();
    let bad = CqeStatus::Invalid;
    assert_eq!(b.outcomes(), [(1, bad), (2, bad), (3, bad), (4, CqeStatus::Ok)]);
    assert_eq!(a.outcomes(), [(9, CqeStatus::Ok)]);
    assert!(other.poll().is_empty());
}

#[test]
fn a_queue_full_of_useless_receives_does_not_keep_the_link() {
    let mut world = World::new();
    let (mut a, b) = world.pair();
    let shape = Shape {
        rq: 64,
        ..Shape::default()
    };
    let mut fool = world.user_of(1, EndpointKind::Datagram, shape);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &fool.addr).unwrap();
    let from = world.register(&a, &Memory::zeroed(64), Access::LOCAL);
    let foreign = world.register(&b, &Memory::zeroed(64), Access::LOCAL);
    for n in 0..40 {
        fool.receive(n, foreign, BASE, 64);
    }
    world.submit(&mut fool);
    a.post(send(9, from, BASE, 64));
    world.submit(&mut a);
    world.settle();
    assert_eq!(fool.outcomes().len(), 40);
    let own = world.register(&fool, &Memory::zeroed(64), Access::LOCAL);
    fool.receive(100, own, BASE, 64);
    world.submit(&mut fool);
    world.settle();
    assert_eq!(fool.outcomes(), [(100, CqeStatus::Ok)]);
    assert_eq!(a.outcomes(), [(9, CqeStatus::Ok)]);
}

#[test]
fn remote_keys_ranges_and_rights_that_are_not_granted_are_refused() {
    let mut world = World::new();
    let (mut a, b) = world.pair();
    let (local, remote) = (Memory::zeroed(64), Memory::zeroed(64));
    let keys = world.register(&a, &local, Access::LOCAL);
    let writable = world.register(&b, &remote, Access::REMOTE_WRITE);
    let stranger = world.user(1, EndpointKind::Datagram);
    let foreign = world.register(&stranger, &remote, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let private = world.register(&b, &remote, Access::LOCAL);
    let key = writable.remote;
    let refused = [
        rma(Op::Write, 0, keys, BASE, 64, (BASE + 1, key)),
        rma(Op::Write, 1, keys, BASE, 64, (u64::MAX - 3, key)),
        rma(Op::Write, 2, keys, BASE, 64, (BASE - 1, key)),
        rma(Op::Write, 3, keys, BASE, 64, (BASE, key ^ 1 << 33)),
        rma(Op::Write, 4, keys, BASE, 64, (BASE, u64::from(writable.local))),
        rma(Op::Write, 5, keys, BASE, 64, (BASE, foreign.remote)),
        rma(Op::Write, 6, keys, BASE, 64, (BASE, private.remote)),
        rma(Op::Read, 7, keys, BASE, 64, (BASE, key)),
        rma(Op::FetchAdd, 8, keys, BASE, 8, (BASE, key)),
    ];
    for sqe in refused {
        a.post(sqe);
    }
    a.post(rma(Op::Write, 9, keys, BASE, 64, (BASE, key)));
    world.submit(&mut a);
    world.settle();
    let mut expected: Vec<_> = (0..9).map(|n| (n, CqeStatus::Access)).collect();
    expected.push((9, CqeStatus::Ok));
    assert_eq!(a.outcomes(), expected);
}

#[test]
fn a_full_completion_queue_stops_its_client_only_and_goes_on_when_polled() {
    let mut world = World::new();
    let shape = Shape {
        cq: 4,
        sq: 16,
        rq: 16,
        ..Shape::default()
    };
    let mut a = world.user_of(0, EndpointKind::Datagram, shape);
    let mut b = world.user_of(1, EndpointKind::Datagram, shape);
    a.ah = world.device(&a).create_ah(a.client, a.ep, &b.addr).unwrap();
    let (mut c, mut d) = world.pair();
    let memory = Memory::zeroed(16);
    let (from, to) = (
        world.register(&a, &memory, Access::LOCAL),
        world.register(&b, &memory, Access::LOCAL),
    );
    for n in 0..12 {
        b.receive(n, to, BASE, 16);
        a.post(send(n, from, BASE, 16));
    }
    world.submit(&mut b);
    world.submit(&mut a);
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for round in 0..6 {
        for _ in 0..50 {
            world.turn();
        }
        let (s, r) = (a.poll(), b.poll());
        assert!(s.len() <= 4 && r.len() <= 4, "a completion queue overflowed");
        assert!(round > 2 || !s.is_empty() || !r.is_empty(), "nothing goes on");
        sent.extend(s.iter().map(|cqe| cqe.user_data));
        received.extend(r.iter().map(|cqe| cqe.user_data));
        works(&mut world, &mut c, &mut d);
    }
    assert!(sent.iter().copied().eq(0..12), "{sent:?}");
    assert!(received.iter().copied().eq(0..12), "{received:?}");
}

#[test]
fn an_endpoint_that_sends_where_nobody_receives_leaves_the_others_their_share_of_the_link() {
    let mut world = World::with(|config| config.max_ops = 16);
    let (mut hog, _deaf) = world.pair();
    let (mut a, mut b) = world.pair();
    let memory = Memory::zeroed(64);
    let hog_keys = world.register(&hog, &memory, Access::LOCAL);
    let (a_keys, b_keys) = (
        world.register(&a, &memory, Access::LOCAL),
        world.register(&b, &memory, Access::LOCAL),
    );
    for n in 0..16 {
        hog.post(send(n, hog_keys, BASE, 8));
    }
    world.submit(&mut hog);
    for _ in 0..50 {
        world.turn();
        world.now += 50_000;
    }
    b.receive(1, b_keys, BASE, 64);
    world.submit(&mut b);
    a.post(send(2, a_keys, BASE, 8));
    world.submit(&mut a);
    for _ in 0..50 {
        world.turn();
        world.now += 50_000;
    }
    assert_eq!(a.outcomes(), [(2, CqeStatus::Ok)], "nothing is left for it");
    assert_eq!(b.outcomes(), [(1, CqeStatus::Ok)]);
    assert!(hog.outcomes().is_empty());
}
