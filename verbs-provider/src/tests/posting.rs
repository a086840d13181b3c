//! Posting and polling.

use std::ptr;
use std::sync::atomic::Ordering;

use rdma_core_sys::*;
use usb4_ring::raw::{CONSUMER_WORD, Cqe, FLAGS_WORD, Op as RingOp, PRODUCER_WORD, Sqe, sqe_flags};

use super::{World, buffer, request};
use crate::{ah, cq, qp_post};

#[test]
fn a_message_is_an_entry_and_its_completion_a_completion() {
    let world = World::new(IBV_QPT_RC);
    let mut sge = buffer();
    let mut wr = request(IBV_WR_SEND, &mut sge);
    assert_eq!(world.post(&mut wr), 0);
    let sent = world.open.sq(world.qp).pop().unwrap().unwrap();
    let expected = Sqe {
        op: RingOp::Send.code(),
        user_data: 7,
        local_addr: 0x1000,
        local_key: 11,
        len: 100,
        ..Sqe::default()
    };
    assert_eq!(sent, expected);
    assert_eq!(sent.check(), Ok(RingOp::Send));
    assert!(world.poll().is_empty());
    world.complete(&Cqe {
        user_data: 7,
        op: RingOp::Send.code(),
        len: 100,
        ..Cqe::default()
    });
    let [done] = world.poll()[..] else {
        panic!("one completion")
    };
    assert_eq!(
        (done.wr_id, done.status, done.opcode),
        (7, IBV_WC_SUCCESS, IBV_WC_SEND)
    );
    assert!(world.poll().is_empty());
}

#[test]
fn each_operation_says_what_the_device_has_to_know() {
    let world = World::new(IBV_QPT_RC);
    let mut sq = world.open.sq(world.qp);
    let mut posted = |wr: &mut ibv_send_wr| {
        assert_eq!(world.post(wr), 0);
        let sqe = sq.pop().unwrap().unwrap();
        sq.release();
        sqe
    };
    let mut sge = buffer();
    let rdma = ibv_send_wr_rdma {
        remote_addr: 0x2000,
        rkey: 12,
    };
    for (opcode, op, flags, args) in [
        (IBV_WR_RDMA_WRITE, RingOp::Write, 0, [0x2000, 12, 0, 0]),
        (
            IBV_WR_RDMA_WRITE_WITH_IMM,
            RingOp::Write,
            sqe_flags::IMM,
            [0x2000, 12, 0, 0x0102_0304],
        ),
        (IBV_WR_RDMA_READ, RingOp::Read, 0, [0x2000, 12, 0, 0]),
        (
            IBV_WR_SEND_WITH_IMM,
            RingOp::Send,
            sqe_flags::IMM,
            [0, 0, 0, 0x0102_0304],
        ),
    ] {
        let mut wr = request(opcode, &mut sge);
        wr.wr.rdma = rdma;
        wr.imm_data = 0x0102_0304_u32.to_be();
        let sqe = posted(&mut wr);
        assert_eq!((sqe.op, sqe.flags, sqe.args), (op.code(), flags, args));
        assert_eq!(sqe.check(), Ok(op));
    }
    let mut word = ibv_sge {
        length: 8,
        ..buffer()
    };
    let atomic = ibv_send_wr_atomic {
        remote_addr: 0x3000,
        compare_add: 5,
        swap: 6,
        rkey: 12,
    };
    for (opcode, op, args) in [
        (IBV_WR_ATOMIC_FETCH_AND_ADD, RingOp::FetchAdd, [0x3000, 12, 5, 0]),
        (IBV_WR_ATOMIC_CMP_AND_SWP, RingOp::CompareSwap, [0x3000, 12, 6, 5]),
    ] {
        let mut wr = request(opcode, &mut word);
        wr.wr.atomic = atomic;
        let sqe = posted(&mut wr);
        assert_eq!((sqe.op, sqe.args), (op.code(), args));
        assert_eq!(sqe.check(), Ok(op));
    }
}

#[test]
fn flags_are_those_of_the_entry() {
    let world = World::new(IBV_QPT_RC);
    let mut sq = world.open.sq(world.qp);
    let mut sge = buffer();
    for (opcode, flags, expected) in [
        (IBV_WR_SEND, 0, sqe_flags::UNSIGNALED),
        (IBV_WR_SEND, IBV_SEND_SIGNALED, 0),
        (IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_FENCE, 4),
        (IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED, 8),
        (IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED, 0),
        (
            IBV_WR_RDMA_WRITE_WITH_IMM,
            IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
            8 | sqe_flags::IMM,
        ),
    ] {
        let mut wr = request(opcode, &mut sge);
        wr.send_flags = flags;
        assert_eq!(world.post(&mut wr), 0);
        assert_eq!(sq.pop().unwrap().unwrap().flags, expected);
        sq.release();
    }
    drop(world);
    let world = World::with(IBV_QPT_RC, |attr| attr.sq_sig_all = 1);
    let mut wr = request(IBV_WR_SEND, &mut sge);
    wr.send_flags = 0;
    assert_eq!(world.post(&mut wr), 0);
    assert_eq!(world.open.sq(world.qp).pop().unwrap().unwrap().flags, 0);
}

#[test]
fn a_chain_is_posted_up_to_the_first_that_cannot_be() {
    let world = World::new(IBV_QPT_RC);
    let mut sge = buffer();
    let mut chain: Vec<ibv_send_wr> = (0..6).map(|_| request(IBV_WR_SEND, &mut sge)).collect();
    for at in 0..5 {
        chain[at].next = &raw mut chain[at + 1];
    }
    // There is room for four.
    let (result, bad) = world.post_chain(&mut chain[0]);
    assert_eq!((result, bad), (libc::ENOMEM, &raw mut chain[4]));
    let mut sq = world.open.sq(world.qp);
    assert_eq!(sq.available(), Ok(4));
    while sq.pop().unwrap().is_some() {}
    sq.release();
    chain[1].opcode = IBV_WR_BIND_MW;
    let (result, bad) = world.post_chain(&mut chain[0]);
    assert_eq!((result, bad), (libc::EOPNOTSUPP, &raw mut chain[1]));
    assert_eq!(sq.available(), Ok(1));
}

#[test]
fn what_a_kind_has_not_is_refused() {
    let mut sge = buffer();
    for (kind, opcode) in [
        (IBV_QPT_UC, IBV_WR_RDMA_READ),
        (IBV_QPT_UC, IBV_WR_ATOMIC_FETCH_AND_ADD),
        (IBV_QPT_UC, IBV_WR_SEND_WITH_INV),
        (IBV_QPT_UD, IBV_WR_LOCAL_INV),
        (IBV_QPT_UD, IBV_WR_RDMA_WRITE),
        (IBV_QPT_RC, 99),
    ] {
        let world = World::new(kind);
        assert_eq!(world.post(&mut request(opcode, &mut sge)), libc::EINVAL);
    }
    let world = World::new(IBV_QPT_RC);
    for opcode in [IBV_WR_BIND_MW, IBV_WR_TSO] {
        assert_eq!(world.post(&mut request(opcode, &mut sge)), libc::EOPNOTSUPP);
    }
    let mut two = request(IBV_WR_SEND, &mut sge);
    two.num_sge = 2;
    assert_eq!(world.post(&mut two), libc::ENOMEM);
    // An atomic is of 8 bytes.
    let mut long = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &mut sge);
    assert_eq!(world.post(&mut long), libc::EINVAL);
    assert_eq!(world.open.sq(world.qp).available(), Ok(0));
}

#[test]
fn nothing_is_sent_before_the_queue_pair_is_ready_and_receives_wait_from_the_first_state_on() {
    let world = World::new(IBV_QPT_RC);
    let mut sge = buffer();
    let mut receive = ibv_recv_wr {
        wr_id: 3,
        next: ptr::null_mut(),
        sg_list: &mut sge,
        num_sge: 1,
    };
    let mut wr = request(IBV_WR_SEND, &mut buffer()).wr_id;
    for (state, send, receives) in [
        (IBV_QPS_RESET, libc::EINVAL, libc::EINVAL),
        (IBV_QPS_INIT, libc::EINVAL, 0),
        (IBV_QPS_RTR, libc::EINVAL, 0),
        (IBV_QPS_RTS, 0, 0),
        (IBV_QPS_ERR, 0, 0),
    ] {
        world.set_state(state);
        wr += 1;
        let mut request = request(IBV_WR_SEND, &mut sge);
        request.wr_id = wr;
        assert_eq!(world.post(&mut request), send, "{state}");
        let mut bad = ptr::null_mut();
        // SAFETY: a queue pair of ours, and a request.
        let posted = unsafe { qp_post::post_recv(world.qp, &mut receive, &mut bad) };
        assert_eq!((posted, bad.is_null()), (receives, receives == 0), "{state}");
    }
    assert_eq!(world.open.sq(world.qp).available(), Ok(2));
    let mut rq = world.open.rq(world.qp);
    assert_eq!(rq.available(), Ok(4));
    let rqe = rq.pop().unwrap().unwrap();
    assert_eq!(
        (rqe.user_data, rqe.addr, rqe.local_key, rqe.len),
        (3, 0x1000, 11, 100)
    );
    assert_eq!(rqe.check(), Ok(()));
}

#[test]
fn a_reset_takes_back_what_was_completed_and_not_polled() {
    let world = World::new(IBV_QPT_RC);
    // SAFETY: a queue pair of ours.
    let ours = unsafe { (*world.qp).qp_num };
    let entry = |user_data, qpn| {
        let entry = Cqe {
            user_data,
            op: RingOp::Send.code(),
            ..Cqe::default()
        };
        (qpn, entry)
    };
    world.complete_of(&[entry(1, ours), entry(2, 0xff_ffff), entry(3, ours)]);
    world.set_state(IBV_QPS_RESET);
    let left: Vec<u64> = world.poll().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(left, [2]);
}

#[test]
fn the_device_is_told_only_if_it_does_not_look_by_itself() {
    let world = World::new(IBV_QPT_RC);
    let mut sge = buffer();
    let mut sq = world.open.sq(world.qp);
    assert_eq!(world.post(&mut request(IBV_WR_SEND, &mut sge)), 0);
    sq.pop().unwrap();
    sq.arm().unwrap();
    // The file behind this queue pair knows no `ENTER`: that it was called shows.
    let (result, _) = world.post_chain(&mut request(IBV_WR_SEND, &mut sge));
    assert_eq!(result, libc::ENOTTY);
}

#[test]
fn a_call_that_fails_names_the_first_request_that_the_device_has_not_taken() {
    // Room for all, so that nobody looks at the device's index before the call.
    let world = World::with(IBV_QPT_RC, |attr| attr.cap.max_send_wr = 16);
    let mut sge = buffer();
    let mut sq = world.open.sq(world.qp);
    let chain_of_three = |sge: &mut ibv_sge| {
        let mut chain = Box::new([0; 3].map(|_| request(IBV_WR_SEND, sge)));
        (chain[0].next, chain[1].next) = (&raw mut chain[1], &raw mut chain[2]);
        chain
    };
    let words = world.open.sq_memory(world.qp);
    sq.arm().unwrap();
    for taken in 0..=3 {
        // A device that goes after it has taken some: the call is not there in any case.
        let before = words[PRODUCER_WORD].load(Ordering::Relaxed);
        words[CONSUMER_WORD].store(before + taken, Ordering::Relaxed);
        let mut chain = chain_of_three(&mut sge);
        let (result, bad) = world.post_chain(&mut chain[0]);
        match usize::try_from(taken).unwrap() {
            3 => assert_eq!(result, 0),
            first => assert_eq!((result, bad), (libc::ENOTTY, &raw mut chain[first])),
        }
    }
}

#[test]
fn a_datagram_needs_an_address_and_one_that_can_be_reached() {
    let world = World::new(IBV_QPT_UD);
    let mut sge = buffer();
    let mut wr = request(IBV_WR_SEND, &mut sge);
    assert_eq!(world.post(&mut wr), libc::EINVAL);
    // SAFETY: a protection domain of ours; the fake does not look at the attributes.
    unsafe {
        let ah = ah::create_ah(world.pd, ptr::null_mut());
        wr.wr.ud = ibv_send_wr_ud {
            ah,
            remote_qpn: 9,
            remote_qkey: 0x8000_0001,
        };
        // The file knows no `CREATE_AH`.
        assert_eq!(world.post(&mut wr), libc::ENOTTY);
        assert_eq!(ah::destroy_ah(ah), 0);
    }
}

#[test]
fn asking_for_an_event_arms_the_queue() {
    let world = World::new(IBV_QPT_RC);
    let memory = world.open.cq_memory(world.cq);
    for (solicited, flags) in [(1, 2), (0, 3)] {
        // SAFETY: a completion queue of ours.
        assert_eq!(unsafe { cq::req_notify_cq(world.cq, solicited) }, 0);
        assert_eq!(memory[FLAGS_WORD].load(Ordering::Relaxed), flags);
    }
}

#[test]
fn threads_post_and_poll_at_once() {
    struct Shared<'a>(&'a World);
    // SAFETY: what libibverbs promises of objects of verbs.
    unsafe impl Sync for Shared<'_> {}
    let world = World::with(IBV_QPT_RC, |attr| attr.cap.max_send_wr = 64);
    let shared = &Shared(&world);
    const EACH: u64 = 1000;
    let sum = std::thread::scope(|scope| {
        let posters: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn(move || {
                    let Shared(world) = shared;
                    let mut sge = buffer();
                    for at in 0..EACH {
                        let mut wr = request(IBV_WR_SEND, &mut sge);
                        wr.wr_id = thread * EACH + at;
                        while world.post(&mut wr) != 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let pollers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    let Shared(world) = shared;
                    let mut sum = (0, 0);
                    loop {
                        for wc in world.poll() {
                            if wc.wr_id == u64::MAX {
                                return sum;
                            }
                            sum = (sum.0 + 1, sum.1 + wc.wr_id);
                        }
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        // The device, which does what it is asked at once.
        let Shared(world) = shared;
        let mut sq = world.open.sq(world.qp);
        let mut device = world.open.cq(world.cq);
        let mut put = |user_data| {
            let entry = Cqe {
                user_data,
                op: RingOp::Send.code(),
                ..Cqe::default()
            };
            let pushed = device.push(&entry).is_ok();
            device.publish();
            pushed
        };
        let mut seen = 0;
        while seen < 2 * EACH {
            if let Some(sqe) = sq.pop().unwrap() {
                while !put(sqe.user_data) {
                    std::thread::yield_now();
                }
                sq.release();
                seen += 1;
            } else {
                std::thread::yield_now();
            }
        }
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        // One for each poller: a poller that takes both ends with the first, and the other gets another.
        let mut sums = vec![];
        for poller in pollers {
            while !poller.is_finished() {
                put(u64::MAX);
                std::thread::yield_now();
            }
            sums.push(poller.join().unwrap());
        }
        sums.into_iter()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    let all = 2 * EACH;
    assert_eq!(sum, (all, all * (all - 1) / 2));
}
