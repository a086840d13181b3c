//! Datagrams: who sent them, and which keys and queue pairs take them.

use anyhow::{Result, ensure};
use usb4_ring_abi::{Op, uapi};

use crate::party::{GRH, Party, Place, Request};
use crate::peer::Peer;
use crate::states::{Change, Kind, PATIENT, QKEY};
use crate::traffic::{INBOX, succeeded};

/// A datagram queue pair that sends to the peer's; the handle, and the peer.
pub(crate) fn datagrams(me: &mut Party, peer: &mut Peer) -> Result<(u32, Place)> {
    let (mine, other) = (me.make(Kind::Ud, 0)?, peer.make(Kind::Ud, 0)?);
    peer.connect_to(mine.gid, mine.number)?;
    me.connect(other.target(), PATIENT)?;
    let handle = handle_of(me, &other, other.number)?;
    Ok((handle, other))
}

/// A handle of the queue pair with that number on a host.
fn handle_of(me: &Party, there: &Place, number: u32) -> Result<u32> {
    let (ah, [node_low, node_high]) = me.context.ah(me.pd, &there.gid)?;
    let mut handle = uapi::CreateAh {
        ep: me.queue_pair()?.ep,
        addr: uapi::Addr {
            node_low,
            node_high,
            ep: number,
            incarnation: 0,
        },
        ..uapi::CreateAh::new()
    };
    me.context.call(uapi::IOC_CREATE_AH, &mut handle)?;
    me.context.destroy_ah(ah)?;
    Ok(handle.ah)
}

pub(crate) fn ud_datagrams_arrive_with_their_sender(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let (ah, _) = datagrams(me, peer)?;
    let number = me.queue_pair()?.number;
    for (seed, len) in [(70, 1), (71, 2048), (72, 4096)] {
        peer.done(&Request::Receive {
            at: INBOX,
            len: len + GRH,
        })?;
        me.buffer.fill(0, len as usize, seed);
        let mut entry = me.entry(Op::Send, 0, len);
        entry.ah = ah;
        entry.args[0] = u64::from(QKEY);
        me.post(&entry)?;
        succeeded(&me.wait()?)?;
        let received = peer.completion(&Request::Await)?;
        succeeded(&received)?;
        ensure!(
            received.len == len + GRH && received.src == number,
            "{received:?}"
        );
        let at = INBOX + GRH as usize;
        peer.done(&Request::Verify {
            at,
            len: len as usize,
            seed,
        })?;
    }
    Ok(())
}

/// A datagram with another Q_Key is dropped, and takes no receive.
pub(crate) fn ud_keys_are_checked(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let (ah, _) = datagrams(me, peer)?;
    peer.done(&Request::Receive {
        at: INBOX,
        len: 64 + GRH,
    })?;
    for (key, seed) in [(QKEY ^ 1, 73), (QKEY, 74)] {
        me.buffer.fill(0, 64, seed);
        let mut entry = me.entry(Op::Send, 0, 64);
        entry.ah = ah;
        entry.args[0] = u64::from(key);
        me.post(&entry)?;
        succeeded(&me.wait()?)?;
        if key != QKEY {
            peer.done(&Request::Quiet)?;
        }
    }
    succeeded(&peer.completion(&Request::Await)?)?;
    let at = INBOX + GRH as usize;
    peer.done(&Request::Verify {
        at,
        len: 64,
        seed: 74,
    })
}

/// The kernel's own queue pairs, to which a privileged process can send, take nothing from its queue pairs.
pub(crate) fn ud_does_not_speak_for_the_kernel(me: &mut Party, peer: &mut Peer) -> Result<()> {
    let (ah, there) = datagrams(me, peer)?;
    me.buffer.fill(0, 4096, 75);
    for (number, key) in [(0, 0x8001_0001), (1, 0x8001_0000)] {
        me.modify(&Change::key(key))?;
        let special = handle_of(me, &there, number)?;
        for len in [0, 13, 14, 296, 4096] {
            let mut entry = me.entry(Op::Send, 0, len);
            entry.ah = special;
            entry.args[0] = u64::from(key);
            me.post(&entry)?;
            succeeded(&me.wait()?)?;
        }
    }
    me.modify(&Change::key(QKEY))?;
    peer.done(&Request::Receive {
        at: INBOX,
        len: 64 + GRH,
    })?;
    let mut entry = me.entry(Op::Send, 0, 64);
    entry.ah = ah;
    entry.args[0] = u64::from(QKEY);
    me.post(&entry)?;
    succeeded(&me.wait()?)?;
    succeeded(&peer.completion(&Request::Await)?)
}
