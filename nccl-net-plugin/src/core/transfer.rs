//! Sending, receiving, testing.

use usb4_ffi::Level;

use super::comm::{Side, State};
use super::fault::{Blame, Fault};
use super::hub::Inner;
use super::id::{COMM_GENERATION_MASK, Id};
use super::recv::{RecvRequest, Taken};
use super::send::{SendRequest, SendState};
use super::table::Key;

/// A message or its buffer, as NCCL gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) tag: u32,
    /// Registered memory; none is needed for no bytes.
    pub(crate) region: Option<Key>,
}

/// No region.
const NO_REGION: u32 = u32::MAX;

const CLOSED: &str = "a communicator that has been closed, or never was";

impl Inner {
    /// Posts a message; `None` if there are too many.
    #[inline]
    pub(crate) fn isend(&mut self, key: Key, piece: &Piece) -> Result<Option<Id>, Fault> {
        let (local_key, _, region) = self.keys(key, piece)?;
        // The buffer may have been granted.
        self.poll();
        let comm = self.comms.get_mut(key).ok_or_else(|| Fault::internal(CLOSED))?;
        comm.common.check()?;
        let Side::Send(send) = &mut comm.side else {
            return Err(Fault::internal("isend() on a receiving communicator"));
        };
        let request = SendRequest {
            addr: piece.addr,
            size: piece.size,
            given: 0,
            local_key,
            region,
            tag: piece.tag,
            state: SendState::Queued,
        };
        let Some((slot, generation)) = send.requests.insert(request) else {
            return Ok(None);
        };
        send.order.push(slot);
        self.pump(key);
        Ok(Some(Id::request(
            self.place.world,
            self.place.hub,
            key,
            slot,
            generation,
        )))
    }

    /// Posts a buffer; `None` if there are too many.
    ///
    /// # Safety
    /// The buffer may be written until the request is done, or its memory deregistered.
    #[inline]
    pub(crate) unsafe fn irecv(&mut self, key: Key, piece: &Piece) -> Result<Option<Id>, Fault> {
        let (_, remote_key, region) = self.keys(key, piece)?;
        let comm = self.comms.get_mut(key).ok_or_else(|| Fault::internal(CLOSED))?;
        comm.common.check()?;
        let Side::Recv(recv) = &mut comm.side else {
            return Err(Fault::internal("irecv() on a sending communicator"));
        };
        let request = RecvRequest {
            addr: piece.addr,
            capacity: piece.size,
            remote_key,
            size: 0,
            region,
            tag: piece.tag,
            done: false,
        };
        // SAFETY: the caller's promise.
        let Some((slot, generation, taken)) = (unsafe { recv.post(&mut self.port, request) }) else {
            return Ok(None);
        };
        match taken {
            Ok(Some(Taken::Done { tag: Some(sent) })) => self.tags_differ(key, sent, piece.tag),
            Ok(_) => {}
            Err(unfit) => self.unfit(key, unfit),
        }
        self.pump(key);
        Ok(Some(Id::request(
            self.place.world,
            self.place.hub,
            key,
            slot,
            generation,
        )))
    }

    /// Local key, remote key and place of a piece's region.
    #[inline]
    fn keys(&self, comm: Key, piece: &Piece) -> Result<(u32, u64, u32), Fault> {
        let Some(key) = piece.region else {
            return if piece.size == 0 {
                Ok((0, 0, NO_REGION))
            } else {
                Err(Fault::internal("a message without a memory handle"))
            };
        };
        match self.regions.get(key) {
            Some(region)
                if region.comm == comm && (piece.size == 0 || region.has(piece.addr, piece.size)) =>
            {
                Ok((region.local_key(), region.remote_key(), key.index))
            }
            Some(_) => Err(Fault::internal(
                "bytes outside of the memory registered for this communicator",
            )),
            None => Err(Fault::internal("memory that is not registered, or not any more")),
        }
    }

    /// How long the message of a request was, once it is done.
    #[inline]
    pub(crate) fn test(&mut self, id: Id) -> Result<Option<u64>, Fault> {
        let (generation, slot, own) = id.request_parts();
        let found = self.comms.find(id.key().index, generation, COMM_GENERATION_MASK);
        let stale = || Fault::internal("a request that is done already, or never was");
        let key = found.ok_or_else(stale)?;
        let comm = self.comms.get_mut(key).ok_or_else(stale)?;
        let (state, peer) = (comm.common.state, comm.common.peer);
        let is_hopeless = match &mut comm.side {
            Side::Send(send) => {
                let request = *send.requests.find(slot, own).ok_or_else(stale)?;
                if request.state == SendState::Done {
                    send.requests.remove(slot);
                    return Ok(Some(request.size));
                }
                matches!(
                    request.state,
                    SendState::Queued | SendState::Placed | SendState::Lost
                )
            }
            Side::Recv(recv) => {
                let request = *recv.requests.find(slot, own).ok_or_else(stale)?;
                if request.done {
                    recv.requests.remove(slot);
                    return Ok(Some(request.size));
                }
                true
            }
        };
        match state {
            State::Failed(blame) => Err(Fault::told(blame)),
            State::Closed if is_hopeless => {
                let why =
                    "it has closed the connection, or given its buffers back, while messages were under way";
                // A peer that gives up closes all its connections.
                let told = (self.peers.get_mut(peer))
                    .is_some_and(|peer| std::mem::replace(&mut peer.closing_told, true));
                let level = if told { Level::Info } else { Level::Warn };
                self.fail_with(key, Blame::Peer, why, level);
                Err(Fault::told(Blame::Peer))
            }
            State::Open | State::Closed => Ok(None),
        }
    }
}
