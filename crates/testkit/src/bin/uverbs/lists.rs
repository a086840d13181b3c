//! Requests with several buffers and with inline data, every byte looked at.

use anyhow::{Result, ensure};
use usb4_ring_abi::Op;

use crate::datagrams::datagrams;
use crate::party::{Completion, GRH, Party, Place, Request, with_immediate};
use crate::peer::Peer;
use crate::states::{ERR, Kind, QKEY};
use crate::traffic::{INBOX, OK, join, succeeded};

/// Completion statuses (`usb4_ring_abi::CqeStatus`).
const LENGTH: u8 = 3;
const PROTECTION: u8 = 13;
const TOO_LONG: u8 = 14;

/// Lengths of pieces: within a frame, across frames, none.
const LENS: [u32; 5] = [3, 4097, 0, 9000, 101];

/// Where pieces of these lengths are, the first one last, none next to another.
fn backwards(base: usize, lens: &[u32]) -> Vec<(usize, u32)> {
    let mut at = base;
    let mut places: Vec<_> = lens
        .iter()
        .rev()
        .map(|len| {
            let place = (at, *len);
            at += *len as usize + 77;
            place
        })
        .collect();
    places.reverse();
    places
}

/// The same, one after the other.
fn in_a_row(base: usize, lens: &[u32]) -> Vec<(usize, u32)> {
    let mut at = base;
    let place = |len: &u32| {
        let place = (at, *len);
        at += *len as usize;
        place
    };
    lens.iter().map(place).collect()
}

/// Fills each piece with bytes of its own.
fn fill(party: &Party, places: &[(usize, u32)], seed: u64) {
    for ((at, len), piece) in places.iter().zip(0..) {
        party.buffer.fill(*at, *len as usize, seed + piece);
    }
}

/// Sees that the peer has them.
fn verify(peer: &mut Peer, places: &[(usize, u32)], seed: u64) -> Result<()> {
    for ((at, len), piece) in places.iter().zip(0..) {
        peer.done(&Request::Verify {
            at: *at,
            len: *len as usize,
            seed: seed + piece,
        })?;
    }
    Ok(())
}

/// Waits for a send and its receive; what was received.
fn both(me: &mut Party, peer: &mut Peer) -> Result<Completion> {
    succeeded(&me.wait()?)?;
    let received = peer.completion(&Request::Await)?;
    succeeded(&received)?;
    Ok(received)
}

fn gather_and_scatter(me: &mut Party, peer: &mut Peer, seed: u64) -> Result<()> {
    let total: u32 = LENS.iter().sum();
    let from = backwards(0, &LENS);
    fill(me, &from, seed);
    let (list, entry) = (me.pieces(&from), me.entry(Op::Send, 0, 0));
    // Into one buffer, then into others.
    peer.done(&Request::Receive {
        at: INBOX,
        len: total,
    })?;
    me.post_list(&entry, &list)?;
    ensure!(both(me, peer)?.len == total);
    verify(peer, &in_a_row(INBOX, &LENS), seed)?;
    let to = backwards(INBOX, &LENS);
    peer.done(&Request::ReceiveList(to.clone()))?;
    let entry = me.entry(Op::Send, 0, 0);
    me.post_list(&with_immediate(entry, 9), &list)?;
    let received = both(me, peer)?;
    ensure!((received.len, received.value) == (total, 9), "{received:?}");
    verify(peer, &to, seed)
}

pub(crate) fn rc_sends_gather_and_receives_scatter(me: &mut Party, peer: &mut Peer) -> Result<()> {
    join(me, peer, Kind::Rc)?;
    // More often than there are places for lists.
    for round in 0..80 {
        gather_and_scatter(me, peer, 1000 + 10 * round)?;
    }
    Ok(())
}

pub(crate) fn rc_writes_gather_and_reads_scatter(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = join(me, peer, Kind::Rc)?;
    let from = backwards(0, &LENS);
    fill(me, &from, 2000);
    let list = me.pieces(&from);
    let entry = me.remote(Op::Write, 0, 0, &place, INBOX as u64);
    me.post_list(&entry, &list)?;
    succeeded(&me.wait()?)?;
    verify(peer, &in_a_row(INBOX, &LENS), 2000)?;
    let to = backwards(INBOX, &LENS);
    let list = me.pieces(&to);
    let entry = me.remote(Op::Read, 0, 0, &place, INBOX as u64);
    me.post_list(&entry, &list)?;
    succeeded(&me.wait()?)?;
    for ((at, len), piece) in to.iter().zip(0..) {
        let wrong = me.buffer.differs(*at, *len as usize, 2000 + piece);
        ensure!(wrong.is_none(), "byte {wrong:?} of piece {piece} is wrong");
    }
    Ok(())
}

pub(crate) fn rc_keys_of_all_pieces_are_checked(me: &mut Party, peer: &mut Peer) -> Result<()> {
    join(me, peer, Kind::Rc)?;
    let mut list = me.pieces(&in_a_row(0, &[8, 8, 8]));
    list[2].local_key ^= 1 << 20;
    let entry = me.entry(Op::Send, 0, 0);
    me.post_list(&entry, &list)?;
    let refused = me.wait()?;
    ensure!(refused.status == PROTECTION, "{refused:?}");
    ensure!(me.state()? == ERR, "state {} after it", me.state()?);
    // Nothing is held of the pieces that were right.
    Ok(me.context.dereg(me.mr.handle)?)
}

/// Bytes that follow from a seed.
fn bytes(me: &Party, len: usize, seed: u64) -> Vec<u8> {
    me.buffer.fill(0, len, seed);
    let bytes = me.buffer.bytes().iter().take(len);
    bytes
        .map(|byte| byte.load(std::sync::atomic::Ordering::Relaxed))
        .collect()
}

fn inline(me: &mut Party, peer: &mut Peer, place: &Place) -> Result<()> {
    for (len, seed) in [(1, 3000), (25, 3001), (100, 3002), (128, 3003)] {
        let data = bytes(me, len, seed);
        let verify = |at| Request::Verify { at, len, seed };
        let receive = Request::Receive { at: INBOX, len: 128 };
        peer.done(&receive)?;
        let entry = me.entry(Op::Send, 0, 0);
        me.post_inline(&entry, &data)?;
        let received = both(me, peer)?;
        ensure!(received.len as usize == len, "{received:?}");
        peer.done(&verify(INBOX))?;
        peer.done(&receive)?;
        let entry = me.remote(Op::Write, 0, 0, place, INBOX as u64 + 4096);
        me.post_inline(&with_immediate(entry, 7), &data)?;
        let received = both(me, peer)?;
        ensure!(
            (received.len as usize, received.value) == (len, 7),
            "{received:?}"
        );
        peer.done(&verify(INBOX + 4096))?;
    }
    Ok(())
}

pub(crate) fn rc_inline_data_arrives(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = join(me, peer, Kind::Rc)?;
    inline(me, peer, &place)
}

pub(crate) fn uc_lists_and_inline_data_arrive(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let place = join(me, peer, Kind::Uc)?;
    gather_and_scatter(me, peer, 4000)?;
    inline(me, peer, &place)
}

pub(crate) fn ud_headers_lie_across_pieces(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let (ah, _) = datagrams(me, peer)?;
    let mut entry = me.entry(Op::Send, 0, 0);
    (entry.ah, entry.args[0]) = (ah, u64::from(QKEY));
    for first in [1, 7, 39] {
        // The header ends with the second piece.
        let to = backwards(INBOX, &[first, GRH - first, 60, 40]);
        peer.done(&Request::ReceiveList(to.clone()))?;
        let from = backwards(0, &[60, 40]);
        fill(me, &from, 5000);
        let list = me.pieces(&from);
        me.post_list(&entry, &list)?;
        let received = both(me, peer)?;
        ensure!(received.len == 100 + GRH, "{received:?}");
        verify(peer, &to[2..], 5000)?;
        peer.done(&Request::ReceiveList(to.clone()))?;
        let data = bytes(me, 60, 5100);
        me.post_inline(&entry, &data)?;
        let received = both(me, peer)?;
        ensure!(received.len == 60 + GRH, "{received:?}");
        verify(peer, &to[2..3], 5100)?;
    }
    Ok(())
}

pub(crate) fn ud_datagrams_that_are_too_long_are_so_here(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let (ah, _) = datagrams(me, peer)?;
    let mut entry = me.entry(Op::Send, 0, 0);
    (entry.ah, entry.args[0]) = (ah, u64::from(QKEY));
    let list = me.pieces(&in_a_row(0, &[4000, 97]));
    me.post_list(&entry, &list)?;
    let refused = me.wait()?;
    ensure!(refused.status == TOO_LONG, "{refused:?}");
    Ok(())
}

/// The peer's queue pairs draw from a shared receive queue, whose receives have several buffers.
fn share(peer: &mut Peer) -> Result<()> {
    peer.done(&Request::Share { entries: 16, sge: 4 })
}

pub(crate) fn rc_shared_receives_scatter(me: &mut Party, peer: &mut Peer) -> Result<()> {
    share(peer)?;
    join(me, peer, Kind::Rc)?;
    // More often than there are places for lists; each time into one buffer, and into three.
    for round in 0..40 {
        let seed = 6000 + 10 * round;
        let from = backwards(0, &[4097, 1, 2000]);
        fill(me, &from, seed);
        let list = me.pieces(&from);
        let to = backwards(INBOX, &[4097, 1, 2000]);
        peer.done(&Request::ReceiveList(to.clone()))?;
        peer.done(&Request::Receive {
            at: INBOX + (1 << 16),
            len: 6098,
        })?;
        for _ in 0..2 {
            let entry = me.entry(Op::Send, 0, 0);
            me.post_list(&entry, &list)?;
            let received = both(me, peer)?;
            ensure!(received.len == 6098, "{received:?}");
        }
        verify(peer, &to, seed)?;
        verify(peer, &in_a_row(INBOX + (1 << 16), &[4097, 1, 2000]), seed)?;
    }
    Ok(())
}

pub(crate) fn ud_shared_receives_scatter(me: &mut Party, peer: &mut Peer) -> Result<()> {
    share(peer)?;
    let (ah, _) = datagrams(me, peer)?;
    for first in [1, 39, GRH] {
        let mut entry = me.entry(Op::Send, 0, 0);
        (entry.ah, entry.args[0]) = (ah, u64::from(QKEY));
        // The header ends with the second piece.
        let to = backwards(INBOX, &[first, GRH - first, 100]);
        peer.done(&Request::ReceiveList(to.clone()))?;
        let from = in_a_row(0, &[100]);
        fill(me, &from, 7000);
        entry.len = 100;
        me.post(&entry)?;
        let received = both(me, peer)?;
        ensure!(received.len == 100 + GRH, "{received:?}");
        verify(peer, &to[2..], 7000)?;
    }
    // A shared receive that is too short is used up by what does not fit.
    for len in [GRH + 99, GRH + 100] {
        peer.done(&Request::Receive { at: INBOX, len })?;
    }
    for status in [LENGTH, OK] {
        let mut entry = me.entry(Op::Send, 0, 100);
        (entry.ah, entry.args[0]) = (ah, u64::from(QKEY));
        me.post(&entry)?;
        succeeded(&me.wait()?)?;
        let received = peer.completion(&Request::Await)?;
        ensure!(received.status == status, "{received:?}");
    }
    Ok(())
}
