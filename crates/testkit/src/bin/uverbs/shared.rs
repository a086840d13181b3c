//! Shared receive queues at work: the peer's queue pairs draw from one.

use anyhow::{Result, ensure};
use usb4_ring_abi::Op;

use crate::party::{Party, QP, Request, SRQ};
use crate::peer::Peer;
use crate::states::{ALL, Kind};
use crate::traffic::{INBOX, OK, expect, joined, send, succeeded};

/// `enum ib_event_type`.
const QP_FATAL: u64 = 1;
const SRQ_ERR: u64 = 14;
const SRQ_LIMIT_REACHED: u64 = 15;
const QP_LAST_WQE_REACHED: u64 = 16;

/// Two queue pairs, the peer's of which draws from a shared receive queue.
fn share(me: &mut Party, peer: &mut Peer) -> Result<()> {
    peer.done(&Request::Share { entries: 16, sge: 1 })?;
    joined(me, peer, Kind::Rc, ALL).map(drop)
}

/// The next event of one of the peer's objects is that.
fn told(peer: &mut Peer, object: u64, event: u64) -> Result<()> {
    let seen = peer.number(&Request::EventOf { object })?;
    ensure!(seen == event, "the peer has event {seen}, not {event}");
    Ok(())
}

pub(crate) fn rc_receives_are_shared(me: &mut Party, peer: &mut Peer) -> Result<()> {
    share(me, peer)?;
    for (seed, len) in [(1, 64), (2, 1 << 20)] {
        send(me, peer, len, seed)?;
    }
    // What one queue pair leaves is the next one's.
    peer.done(&Request::Receive { at: INBOX, len: 64 })?;
    joined(me, peer, Kind::Rc, ALL)?;
    let entry = me.entry(Op::Send, 0, 64);
    me.post(&entry)?;
    succeeded(&me.wait()?)?;
    succeeded(&peer.completion(&Request::Await)?)
}

pub(crate) fn rc_waits_for_a_shared_receive(me: &mut Party, peer: &mut Peer) -> Result<()> {
    share(me, peer)?;
    for seed in 0..3 {
        me.buffer.fill(0, 64, seed);
        let entry = me.entry(Op::Send, 0, 64);
        me.post(&entry)?;
        me.quiet()?;
        peer.done(&Request::Receive { at: INBOX, len: 64 })?;
        succeeded(&me.wait()?)?;
        succeeded(&peer.completion(&Request::Await)?)?;
        peer.done(&Request::Verify {
            at: INBOX,
            len: 64,
            seed,
        })?;
    }
    Ok(())
}

pub(crate) fn rc_limits_are_told(me: &mut Party, peer: &mut Peer) -> Result<()> {
    share(me, peer)?;
    for _ in 0..3 {
        peer.done(&Request::Receive { at: INBOX, len: 64 })?;
    }
    peer.done(&Request::Limit { limit: 3 })?;
    let entry = me.entry(Op::Send, 0, 64);
    me.post(&entry)?;
    succeeded(&me.wait()?)?;
    told(peer, SRQ, SRQ_LIMIT_REACHED)?;
    // Not again, unless it is asked for: there are fewer already.
    peer.done(&Request::Limit { limit: 3 })?;
    told(peer, SRQ, SRQ_LIMIT_REACHED)
}

pub(crate) fn rc_last_receives_are_told(me: &mut Party, peer: &mut Peer) -> Result<()> {
    share(me, peer)?;
    send(me, peer, 64, 3)?;
    peer.done(&Request::Receive { at: INBOX, len: 64 })?;
    peer.done(&Request::Break)?;
    told(peer, QP, QP_LAST_WQE_REACHED)?;
    // The receive is not flushed.
    peer.done(&Request::Quiet)
}

pub(crate) fn rc_corrupt_queues_are_told(me: &mut Party, peer: &mut Peer) -> Result<()> {
    share(me, peer)?;
    peer.done(&Request::Corrupt { completions: false })?;
    let entry = me.entry(Op::Send, 0, 64);
    me.post(&entry)?;
    let refused = me.wait()?;
    ensure!(refused.status != OK, "{refused:?}");
    expect(peer, &[(SRQ, SRQ_ERR), (QP, QP_FATAL), (QP, QP_LAST_WQE_REACHED)])
}
