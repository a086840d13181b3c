//! What two queue pairs do for each other, every byte looked at.

use std::sync::atomic::Ordering;

use anyhow::{Result, bail, ensure};
use usb4_ring_abi::{ARMED, CqeStatus, FLAGS_WORD, OP_INVALIDATE, Op, Sqe, cqe_flags, sqe_flags};

use crate::party::{BUFFER, CQ, Completion, Party, Place, QP, Request, with_immediate};
use crate::peer::Peer;
use crate::states::{ALL, Change, ERR, INIT, Kind, PATIENT, Patience, REMOTE_READ, RESET, RTS, To};

/// Completion statuses (`usb4_ring_abi::CqeStatus`).
pub(crate) const OK: u8 = 0;
const ACCESS: u8 = 2;
pub(crate) const FLUSHED: u8 = 8;
const RETRY_EXCEEDED: u8 = 11;
const RNR_RETRY_EXCEEDED: u8 = 12;

/// `enum ib_event_type`.
const QP_ACCESS_ERR: u64 = 3;

/// Where a side has what it is sent: what it sends is at the beginning.
pub(crate) const INBOX: usize = BUFFER / 2;

/// The longest of the messages here.
const LONG: u32 = 1 << 20;

/// Two queue pairs that are connected.
pub(crate) fn joined(me: &mut Party, peer: &mut Peer, kind: Kind, access: u32) -> Result<Place> {
    let (mine, other) = (me.make(kind, ALL)?, peer.make(kind, access)?);
    peer.connect_to(mine.gid, mine.number)?;
    let to = other.target();
    me.connect(to, PATIENT)?;
    Ok(other)
}

pub(crate) fn succeeded(completion: &Completion) -> Result<()> {
    ensure!(completion.status == OK, "{completion:?}");
    Ok(())
}

/// Sends `len` bytes into a receive of the peer's; returns both completions, the receiver's last.
pub(crate) fn send(me: &mut Party, peer: &mut Peer, len: u32, seed: u64) -> Result<[Completion; 2]> {
    peer.done(&Request::Fill {
        at: INBOX,
        len: len as usize,
        seed: !seed,
    })?;
    peer.done(&Request::Receive { at: INBOX, len })?;
    me.buffer.fill(0, len as usize, seed);
    let entry = me.entry(Op::Send, 0, len);
    me.post(&entry)?;
    let sent = me.wait()?;
    let received = peer.completion(&Request::Await)?;
    succeeded(&sent)?;
    succeeded(&received)?;
    ensure!(
        received.flags & cqe_flags::RECV != 0 && received.len == len,
        "{received:?}"
    );
    peer.done(&Request::Verify {
        at: INBOX,
        len: len as usize,
        seed,
    })?;
    Ok([sent, received])
}

/// Joins two queue pairs, which let each other do everything.
pub(crate) fn join(me: &mut Party, peer: &mut Peer, kind: Kind) -> Result<Place> {
    joined(me, peer, kind, ALL)
}

/// Joins two queue pairs that [`greet`] each other.
pub(crate) fn meet(me: &mut Party, peer: &mut Peer) -> Result<()> {
    joined(me, peer, Kind::Rc, ALL).map(drop)
}

/// A message of a few frames.
pub(crate) fn greet(me: &mut Party, peer: &mut Peer, seed: u64) -> Result<()> {
    send(me, peer, 5000, seed).map(drop)
}

pub(crate) fn rc_sends_arrive_whole(me: &mut Party, peer: &mut Peer) -> Result<()> {
    joined(me, peer, Kind::Rc, ALL)?;
    for (seed, len) in [(1, 1), (2, 64), (3, 4096), (4, 5000), (5, LONG)] {
        send(me, peer, len, seed)?;
    }
    Ok(())
}

pub(crate) fn rc_sends_come_back(me: &mut Party, peer: &mut Peer) -> Result<()> {
    joined(me, peer, Kind::Rc, ALL)?;
    me.receive(INBOX, LONG)?;
    let sent = peer.completion(&Request::Send { len: LONG, seed: 6 })?;
    let received = me.wait()?;
    succeeded(&sent)?;
    succeeded(&received)?;
    ensure!(received.len == LONG, "{received:?}");
    let wrong = me.buffer.differs(INBOX, LONG as usize, 6);
    ensure!(wrong.is_none(), "byte {wrong:?} is wrong");
    Ok(())
}

pub(crate) fn rc_immediates_arrive(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = joined(me, peer, Kind::Rc, ALL)?;
    peer.done(&Request::Receive { at: INBOX, len: 8 })?;
    let entry = me.entry(Op::Send, 0, 8);
    me.post(&with_immediate(entry, 0xdead_beef))?;
    succeeded(&me.wait()?)?;
    let received = peer.completion(&Request::Await)?;
    ensure!(
        received.flags & cqe_flags::IMM != 0 && received.value == 0xdead_beef,
        "{received:?}"
    );
    peer.done(&Request::Receive { at: INBOX, len: 0 })?;
    me.buffer.fill(0, 100, 7);
    let entry = me.remote(Op::Write, 0, 100, &place, INBOX as u64);
    me.post(&with_immediate(entry, 5))?;
    succeeded(&me.wait()?)?;
    let received = peer.completion(&Request::Await)?;
    let flags = cqe_flags::IMM | cqe_flags::RECV | cqe_flags::WRITE_IMM;
    ensure!(
        received.flags & flags == flags && received.value == 5,
        "{received:?}"
    );
    peer.done(&Request::Verify {
        at: INBOX,
        len: 100,
        seed: 7,
    })
}

pub(crate) fn rc_writes_arrive_whole(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = joined(me, peer, Kind::Rc, ALL)?;
    for (seed, len) in [(10, 1), (11, 4096), (12, LONG)] {
        peer.done(&Request::Fill {
            at: INBOX,
            len: len as usize,
            seed: 99,
        })?;
        me.buffer.fill(0, len as usize, seed);
        let entry = me.remote(Op::Write, 0, len, &place, INBOX as u64);
        me.post(&entry)?;
        succeeded(&me.wait()?)?;
        peer.done(&Request::Verify {
            at: INBOX,
            len: len as usize,
            seed,
        })?;
    }
    Ok(())
}

pub(crate) fn rc_reads_arrive_whole(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = joined(me, peer, Kind::Rc, ALL)?;
    for (seed, len) in [(20, 1), (21, 4096), (22, LONG)] {
        peer.done(&Request::Fill {
            at: 0,
            len: len as usize,
            seed,
        })?;
        me.buffer.fill(INBOX, len as usize, 99);
        let entry = me.remote(Op::Read, INBOX as u64, len, &place, 0);
        me.post(&entry)?;
        succeeded(&me.wait()?)?;
        let wrong = me.buffer.differs(INBOX, len as usize, seed);
        ensure!(wrong.is_none(), "byte {wrong:?} of {len} is wrong");
    }
    Ok(())
}

pub(crate) fn rc_atomics_give_the_old_value(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = joined(me, peer, Kind::Rc, ALL)?;
    peer.done(&Request::SetWord { at: 8, value: 40 })?;
    let mut add = me.remote(Op::FetchAdd, 0, 8, &place, 8);
    add.args[2] = 2;
    me.post(&add)?;
    succeeded(&me.wait()?)?;
    ensure!(me.word(0)? == 40, "the old value is {}", me.word(0)?);
    for (compare, found) in [(41, 42), (42, 42), (42, 7)] {
        let mut swap = me.remote(Op::CompareSwap, 0, 8, &place, 8);
        [_, _, swap.args[2], swap.args[3]] = [0, 0, 7, compare];
        me.post(&swap)?;
        succeeded(&me.wait()?)?;
        ensure!(
            me.word(0)? == found,
            "the old value is {}, not {found}",
            me.word(0)?
        );
    }
    let left = peer.number(&Request::Word { at: 8 })?;
    ensure!(left == 7, "the word is {left} at the end");
    Ok(())
}

/// A peer that does not let itself be written to has an error and an event of it; so has the sender.
pub(crate) fn rc_access_is_checked(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = joined(me, peer, Kind::Rc, REMOTE_READ)?;
    peer.done(&Request::Receive { at: INBOX, len: 8 })?;
    peer.done(&Request::Fill {
        at: INBOX,
        len: 64,
        seed: 30,
    })?;
    let entry = me.remote(Op::Write, 0, 64, &place, INBOX as u64);
    me.post(&entry)?;
    let refused = me.wait()?;
    ensure!(refused.status == ACCESS, "{refused:?}");
    ensure!(me.state()? == ERR, "state {} after it", me.state()?);
    let flushed = peer.completion(&Request::Await)?;
    ensure!(flushed.status == FLUSHED, "{flushed:?}");
    let state = peer.number(&Request::State)?;
    ensure!(state == u64::from(ERR), "the peer is in state {state}");
    let event = peer.number(&Request::Event)?;
    ensure!(event == QP_ACCESS_ERR, "the peer has event {event}");
    peer.done(&Request::Verify {
        at: INBOX,
        len: 64,
        seed: 30,
    })
}

/// A key of another protection domain's is none.
pub(crate) fn rc_keys_are_of_one_domain(me: &mut Party, peer: &mut Peer) -> Result<()> {
    joined(me, peer, Kind::Rc, ALL)?;
    let other = me.context.pd()?;
    let mr = me.context.reg(other, me.buffer.address(), 4096, ALL)?;
    let mut entry = me.entry(Op::Send, 0, 8);
    entry.local_key = mr.lkey;
    me.post(&entry)?;
    let refused = me.wait()?;
    ensure!(refused.status != OK && refused.status != FLUSHED, "{refused:?}");
    me.context.dereg(mr.handle)?;
    Ok(me.context.dealloc_pd(other)?)
}

pub(crate) fn rc_waits_for_a_peer_that_is_not_ready(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let (mine, other) = (me.make(Kind::Rc, ALL)?, peer.make(Kind::Rc, ALL)?);
    let to = other.target();
    // 4.096 us times 2^22: time enough for the peer.
    let patience = Patience {
        timeout: 22,
        ..PATIENT
    };
    me.connect(to, patience)?;
    peer.done(&Request::Receive { at: INBOX, len: 64 })?;
    me.buffer.fill(0, 64, 40);
    let entry = me.entry(Op::Send, 0, 64);
    me.post(&entry)?;
    me.quiet()?;
    peer.connect_to(mine.gid, mine.number)?;
    succeeded(&me.wait()?)?;
    succeeded(&peer.completion(&Request::Await)?)?;
    peer.done(&Request::Verify {
        at: INBOX,
        len: 64,
        seed: 40,
    })
}

/// What it sends to a queue pair that is not ready, or has no receive, fails in its time.
pub(crate) fn rc_loses_patience(me: &mut Party, peer: &mut Peer) -> Result<()> {
    me.make(Kind::Rc, ALL)?;
    let to = peer.make(Kind::Rc, ALL)?.target();
    // 4.096 us times 2^13, twice.
    let hasty = Patience {
        timeout: 13,
        retries: 1,
        rnr_retries: 1,
    };
    me.connect(to, hasty)?;
    let entry = me.entry(Op::Send, 0, 8);
    me.post(&entry)?;
    let late = me.wait()?;
    ensure!(late.status == RETRY_EXCEEDED, "{late:?}");
    ensure!(me.state()? == ERR, "state {} after it", me.state()?);
    let (mine, other) = (me.make(Kind::Rc, ALL)?, peer.make(Kind::Rc, ALL)?);
    peer.connect_to(mine.gid, mine.number)?;
    me.connect(other.target(), hasty)?;
    let entry = me.entry(Op::Send, 0, 8);
    me.post(&entry)?;
    let late = me.wait()?;
    ensure!(late.status == RNR_RETRY_EXCEEDED, "{late:?}");
    Ok(())
}

/// To a number nobody has.
pub(crate) fn rc_finds_nobody(me: &mut Party, peer: &mut Peer) -> Result<()> {
    me.make(Kind::Rc, ALL)?;
    let other = peer.make(Kind::Rc, ALL)?;
    let to = To {
        gid: other.gid,
        number: other.number ^ 0x80_0000,
    };
    me.connect(to, PATIENT)?;
    let entry = me.entry(Op::Send, 0, 8);
    me.post(&entry)?;
    let gone = me.wait()?;
    ensure!(gone.status != OK && me.state()? == ERR, "{gone:?}");
    Ok(())
}

/// A queue pair that is reset is as good as new.
pub(crate) fn rc_can_be_reset(me: &mut Party, peer: &mut Peer) -> Result<()> {
    joined(me, peer, Kind::Rc, ALL)?;
    me.receive(INBOX, 8)?;
    me.modify(&Change::to(ERR))?;
    let flushed = me.wait()?;
    ensure!(flushed.status == FLUSHED, "{flushed:?}");
    me.modify(&Change::to(RESET))?;
    ensure!(me.state()? == RESET, "state {} after RESET", me.state()?);
    me.modify(&Change::init(Kind::Rc, ALL))?;
    ensure!(me.state()? == INIT, "state {} after INIT", me.state()?);
    let (gid, number) = (me.gid, me.queue_pair()?.number);
    let other = peer.make(Kind::Rc, ALL)?;
    peer.connect_to(gid, number)?;
    me.connect(other.target(), PATIENT)?;
    ensure!(me.state()? == RTS, "state {} after RTS", me.state()?);
    send(me, peer, 4096, 50)?;
    Ok(())
}

/// A completion channel wakes who has armed the queue: in its memory, or by the kernel.
pub(crate) fn rc_completions_wake_who_sleeps(me: &mut Party, peer: &mut Peer) -> Result<()> {
    joined(me, peer, Kind::Rc, ALL)?;
    for round in 0..20 {
        me.receive(INBOX, 64)?;
        if round % 2 == 0 {
            me.context.arm(me.cq.handle, false)?;
        } else {
            me.cq.map.words()[FLAGS_WORD].store(ARMED, Ordering::SeqCst);
        }
        succeeded(&peer.completion(&Request::Send { len: 64, seed: round })?)?;
        me.sleep()?;
        succeeded(&me.wait()?)?;
    }
    Ok(())
}

/// Armed for solicited completions only, a queue does not wake for others.
pub(crate) fn rc_solicited_completions_wake(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let Peer::Here(other) = peer else {
        bail!("what the peer posts is of this check's making, so it has to be here");
    };
    let (mine, theirs) = (me.make(Kind::Rc, ALL)?, other.make(Kind::Rc, ALL)?);
    other.connect(mine.target(), PATIENT)?;
    me.connect(theirs.target(), PATIENT)?;
    me.receive(INBOX, 64)?;
    me.receive(INBOX, 64)?;
    me.context.arm(me.cq.handle, true)?;
    let entry = other.entry(Op::Send, 0, 8);
    other.post(&entry)?;
    succeeded(&me.wait()?)?;
    ensure!(!me.has_woken()?, "woken by a completion that was not solicited");
    let mut entry = other.entry(Op::Send, 0, 8);
    entry.flags |= sqe_flags::SOLICITED;
    other.post(&entry)?;
    me.sleep()?;
    let received = me.wait()?;
    ensure!(received.flags & cqe_flags::SOLICITED != 0, "{received:?}");
    Ok(())
}

pub(crate) fn uc_sends_and_writes_arrive(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = joined(me, peer, Kind::Uc, ALL)?;
    send(me, peer, 5000, 60)?;
    me.buffer.fill(0, 5000, 61);
    let entry = me.remote(Op::Write, 0, 5000, &place, INBOX as u64);
    me.post(&entry)?;
    succeeded(&me.wait()?)?;
    // Complete, and yet perhaps not there: a message that follows is.
    peer.done(&Request::Receive { at: 0, len: 8 })?;
    let entry = me.entry(Op::Send, 0, 8);
    me.post(&entry)?;
    succeeded(&me.wait()?)?;
    succeeded(&peer.completion(&Request::Await)?)?;
    peer.done(&Request::Verify {
        at: INBOX,
        len: 5000,
        seed: 61,
    })
}

/// What a UC queue pair sends without a receive is dropped, and what follows is not.
pub(crate) fn uc_drops_what_nobody_wants(me: &mut Party, peer: &mut Peer) -> Result<()> {
    joined(me, peer, Kind::Uc, ALL)?;
    let entry = me.entry(Op::Send, 0, 8);
    me.post(&entry)?;
    succeeded(&me.wait()?)?;
    peer.done(&Request::Quiet)?;
    send(me, peer, 100, 62)?;
    Ok(())
}

/// A message takes a region of the peer's from everybody, and the peer is told which.
pub(crate) fn rc_sends_invalidate(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = joined(me, peer, Kind::Rc, ALL)?;
    peer.done(&Request::Receive { at: INBOX, len: 64 })?;
    me.buffer.fill(0, 64, 50);
    let write = me.remote(Op::Write, 0, 64, &place, 0);
    me.post(&write)?;
    succeeded(&me.wait()?)?;
    let mut entry = me.entry(Op::Send, 0, 64);
    entry.flags |= sqe_flags::INVALIDATE;
    entry.args[3] = u64::from(place.rkey);
    me.post(&entry)?;
    succeeded(&me.wait()?)?;
    let received = peer.completion(&Request::Await)?;
    let flags = cqe_flags::RECV | cqe_flags::INVALIDATED;
    ensure!(
        received.flags == flags && received.value == u64::from(place.rkey) && received.status == OK,
        "{received:?}"
    );
    // The receive was in that region, which its owner still uses.
    peer.done(&Request::Verify {
        at: INBOX,
        len: 64,
        seed: 50,
    })?;
    me.post(&write)?;
    let refused = me.wait()?;
    ensure!(refused.status == ACCESS, "{refused:?}");
    let event = peer.number(&Request::Event)?;
    ensure!(event == QP_ACCESS_ERR, "the peer has event {event}");
    Ok(())
}

/// An owner takes its region from peers, once.
pub(crate) fn rc_owners_invalidate(me: &mut Party, peer: &mut Peer) -> Result<()> {
    joined(me, peer, Kind::Rc, ALL)?;
    peer.done(&Request::Receive { at: INBOX, len: 64 })?;
    let entry = me.entry(Op::Send, 0, 64);
    let invalidate = Sqe {
        op: OP_INVALIDATE,
        user_data: 77,
        args: [0, u64::from(me.mr.rkey), 0, 0],
        ..Sqe::default()
    };
    me.post(&entry)?;
    me.post(&invalidate)?;
    succeeded(&me.wait()?)?;
    let done = me.wait()?;
    succeeded(&done)?;
    ensure!(done.op == OP_INVALIDATE && done.user_data == 77, "{done:?}");
    succeeded(&peer.completion(&Request::Await)?)?;
    me.post(&invalidate)?;
    let refused = me.wait()?;
    ensure!(refused.status == CqeStatus::Invalid.code(), "{refused:?}");
    ensure!(me.state()? == ERR, "state {} after it", me.state()?);
    Ok(())
}

/// The peer's next events, each of an object, are these, in any order.
pub(crate) fn expect(peer: &mut Peer, events: &[(u64, u64)]) -> Result<()> {
    let mut seen = vec![];
    for _ in events {
        let event = peer.number(&Request::AnyEvent)?;
        seen.push((event >> 32, event & u64::from(u32::MAX)));
    }
    ensure!(
        events.iter().all(|event| seen.contains(event)),
        "the peer's events are {seen:x?}, not {events:x?}"
    );
    Ok(())
}

/// A completion queue whose index makes no sense is of no use; whoever has it learns that.
pub(crate) fn rc_corrupt_completion_queues_are_told(me: &mut Party, peer: &mut Peer) -> Result<()> {
    /// `enum ib_event_type`.
    const CQ_ERR: u64 = 0;
    const QP_FATAL: u64 = 1;
    joined(me, peer, Kind::Rc, ALL)?;
    peer.done(&Request::Corrupt { completions: true })?;
    // The device looks at the index when it knows of no more room.
    for _ in 0..=64 {
        peer.done(&Request::Receive { at: INBOX, len: 8 })?;
        let entry = me.entry(Op::Send, 0, 8);
        me.post(&entry)?;
        if me.wait()?.status != OK {
            return expect(peer, &[(CQ, CQ_ERR), (QP, QP_FATAL)]);
        }
    }
    bail!("messages went on")
}
