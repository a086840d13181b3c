//! Sends: eager, and the sender's half of rendezvous.

use crate::header::{End, Envelope, Header, RTS_MAX, Rts};
use crate::messenger::{Cookie, total};
use crate::protocol::{Path, STAGE_LEN};
use crate::{
    Class, Completion, Failure, Lanes, MAX_MESSAGE, MAX_SEGMENTS, Messenger, PeerId, PostError, Remote,
    Segment, Sink,
};

/// Sends whose staging memory lies in one block.
const BLOCK_SENDS: usize = 64;

/// A send.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// To whom.
    pub to: PeerId,
    /// Space.
    pub class: Class,
    /// Tag; 0 for [`Class::Message`].
    pub tag: u64,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
    /// Payload.
    pub segments: &'a [Segment],
    /// The caller's context, given back with the completion.
    pub context: u64,
    /// The caller's own word, given back with the completion.
    pub token: u32,
    /// Whether success is to be reported; failure always is.
    pub report: bool,
    /// The buffer is free again on return; at most [`STAGE_LEN`] bytes.
    pub inject: bool,
    /// Success means that the message is in the receiver's buffer, not only at the receiver.
    pub confirm: bool,
    /// More follows at once: the device need not start yet.
    pub more: bool,
}

impl SendRequest<'_> {
    #[inline]
    fn envelope(&self) -> Envelope {
        Envelope {
            class: self.class,
            tag: self.tag,
            data: self.data,
        }
    }
}

/// Why a send was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No room now; progress makes some.
    Full,
    /// The peer cannot be reached.
    Unreachable,
    /// There is no memory for it, or the device cannot use what it is in.
    Resource,
    /// The device or endpoint is gone.
    Dead,
    /// The message, or the part of it to inject, is too long, or in too many segments.
    TooLong,
}

impl From<PostError> for SendError {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::Full,
            PostError::Unreachable => Self::Unreachable,
            PostError::Resource => Self::Resource,
            PostError::Dead => Self::Dead,
        }
    }
}

/// How far a send is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not in use.
    Free,
    /// The transport has the message.
    Eager,
    /// The transport has the request, and the receiver has not finished.
    Requested,
    /// The receiver has the request.
    Reading,
    /// The receiver has finished, but the transport has not told that the request arrived.
    Finished,
}

/// A send outstanding.
pub(crate) struct SendOp {
    context: u64,
    generation: u32,
    to: PeerId,
    token: u32,
    stage: Stage,
    class: Class,
    report: bool,
    /// There is something in [`SendPool::held`].
    holds: bool,
}

impl SendOp {
    /// The name of a rendezvous, for its receiver.
    fn id(&self, index: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(index)
    }

    #[inline(always)]
    fn completion(&self, result: Result<(), Failure>) -> Completion {
        Completion {
            receive: false,
            context: self.context,
            token: self.token,
            class: self.class,
            len: 0,
            truncated: 0,
            addr: 0,
            tag: 0,
            data: None,
            from: None,
            last: false,
            result,
        }
    }
}

impl Default for SendOp {
    fn default() -> Self {
        Self {
            context: 0,
            generation: 0,
            to: PeerId(0),
            token: 0,
            stage: Stage::Free,
            class: Class::Message,
            report: false,
            holds: false,
        }
    }
}

/// What few sends need: kept apart, so that the others stay small.
struct Held<E> {
    packed: Option<Box<[u8]>>,
    exposed: [Option<E>; MAX_SEGMENTS],
}

/// Memory of sends: a stable staging area each, buffers for packing, and what is exposed to peers.
pub(crate) struct SendPool<E> {
    blocks: Vec<Box<[u8]>>,
    packs: Vec<Box<[u8]>>,
    /// By the send's index.
    held: Vec<Held<E>>,
}

impl<E> SendPool<E> {
    pub(crate) fn new() -> Self {
        Self {
            blocks: Vec::new(),
            packs: Vec::new(),
            held: Vec::new(),
        }
    }

    /// What the send holds.
    fn held(&mut self, index: u32) -> &mut Held<E> {
        let index = index as usize;
        if self.held.len() <= index {
            self.held.resize_with(index + 1, || Held {
                packed: None,
                exposed: [const { None }; MAX_SEGMENTS],
            });
        }
        &mut self.held[index]
    }

    /// Gives back what the send holds.
    #[cold]
    fn let_go(&mut self, index: u32) {
        let held = self.held(index);
        held.exposed = [const { None }; MAX_SEGMENTS];
        if let Some(pack) = held.packed.take() {
            self.packs.push(pack);
        }
    }

    /// The staging area of a send; it stays where it is.
    #[inline]
    fn stage(&mut self, index: u32) -> &mut [u8] {
        let (block, at) = (index as usize / BLOCK_SENDS, index as usize % BLOCK_SENDS);
        if self.blocks.len() <= block {
            self.grow(block);
        }
        &mut self.blocks[block][at * STAGE_LEN..][..STAGE_LEN]
    }

    #[cold]
    fn grow(&mut self, block: usize) {
        let new = || vec![0; BLOCK_SENDS * STAGE_LEN].into_boxed_slice();
        self.blocks.resize_with(block + 1, new);
    }

    /// Copies a payload to the staging area of a send, which has room for it.
    ///
    /// # Safety
    /// The payload is readable.
    #[inline]
    unsafe fn copy(&mut self, index: u32, payload: Segment) -> Segment {
        let len = usize::try_from(payload.len).unwrap_or(usize::MAX);
        let stage = &mut self.stage(index)[..len];
        if len > 0 {
            // SAFETY: readable by the caller's promise; a user buffer is no part of the staging area.
            unsafe { std::ptr::copy_nonoverlapping(payload.addr as *const u8, stage.as_mut_ptr(), len) };
        }
        Segment {
            addr: stage.as_ptr() as u64,
            len: payload.len,
        }
    }

    fn pack(&mut self, len: usize) -> Box<[u8]> {
        self.packs
            .pop()
            .unwrap_or_else(|| vec![0; len].into_boxed_slice())
    }
}

const _: () = assert!(RTS_MAX <= STAGE_LEN, "a request fits the staging area");

impl<T: Lanes> Messenger<T> {
    /// Posts a send. Unless `more`, the device starts at once.
    ///
    /// # Errors
    /// Nothing was taken.
    ///
    /// # Safety
    /// The segments stay readable until the completion, or are readable now if `inject`.
    #[inline(always)]
    pub unsafe fn send(&mut self, request: &SendRequest<'_>) -> Result<(), SendError> {
        let &[payload] = request.segments else {
            // SAFETY: the caller's promise is handed on.
            return unsafe { self.send_any(*request) };
        };
        if request.confirm || payload.len > self.table.longest(request.inject) {
            // SAFETY: as above. A copy, so that a request that goes on never takes the way through memory.
            return unsafe { self.send_any(*request) };
        }
        let index = self.claim_send(request)?;
        let payload = if request.inject {
            // SAFETY: the caller promises readable segments.
            unsafe { self.pool.copy(index, payload) }
        } else {
            payload
        };
        // SAFETY: user memory by the caller's promise; staging memory is kept until completion.
        let posted = unsafe { self.post_eager(index, request, payload) };
        self.started(index, posted, request.more)
    }

    /// [`Messenger::send`] without short cuts.
    ///
    /// # Safety
    /// As [`Messenger::send`].
    #[inline(never)]
    unsafe fn send_any(&mut self, request: SendRequest<'_>) -> Result<(), SendError> {
        let len = total(request.segments);
        if len > MAX_MESSAGE || request.segments.len() > MAX_SEGMENTS {
            return Err(SendError::TooLong);
        }
        let path = self
            .table
            .choose(len, request.segments.len(), request.inject, request.confirm)
            .ok_or(SendError::TooLong)?;
        let index = self.claim_send(&request)?;
        // SAFETY: the caller's promise is handed on.
        let posted = unsafe { self.post_send(index, path, &request, len) };
        self.started(index, posted, request.more)
    }

    /// Takes a place for a send.
    #[inline]
    fn claim_send(&mut self, request: &SendRequest<'_>) -> Result<u32, SendError> {
        if self.sends_left() == 0 {
            return Err(SendError::Full);
        }
        let index = self.sends.claim();
        self.sends[index] = SendOp {
            context: request.context,
            generation: 0,
            to: request.to,
            token: request.token,
            stage: Stage::Eager,
            class: request.class,
            report: request.report,
            holds: false,
        };
        Ok(index)
    }

    /// A send has been posted, or not.
    #[inline]
    fn started(&mut self, index: u32, posted: Result<(), PostError>, more: bool) -> Result<(), SendError> {
        if let Err(error) = posted {
            self.release(index);
            return Err(error.into());
        }
        if more {
            self.dirty = true;
        } else {
            self.flush();
        }
        Ok(())
    }

    /// # Safety
    /// The payload stays readable until the transport is done with it.
    #[inline(always)]
    unsafe fn post_eager(
        &mut self,
        index: u32,
        request: &SendRequest<'_>,
        payload: Segment,
    ) -> Result<(), PostError> {
        let header = Header::Eager(request.envelope()).encode();
        // SAFETY: promised by the caller.
        unsafe {
            self.transport
                .send(request.to, header, payload, Cookie::Send(index).pack())?;
        }
        self.in_transport += 1;
        Ok(())
    }

    /// # Safety
    /// As [`Messenger::send`].
    unsafe fn post_send(
        &mut self,
        index: u32,
        path: Path,
        request: &SendRequest<'_>,
        len: u64,
    ) -> Result<(), PostError> {
        let payload = match path {
            Path::Direct => request.segments.first().copied().unwrap_or(Segment::EMPTY),
            Path::Staged => {
                let stage = self.pool.stage(index);
                // SAFETY: the caller promises readable segments; the table sends no more than a stage here.
                unsafe { gather(request.segments, stage) };
                Segment {
                    addr: stage.as_ptr() as u64,
                    len,
                }
            }
            // SAFETY: the caller promises readable segments; the table sends no more than an eager message here.
            Path::Packed => unsafe { self.pack(index, request.segments, len) },
            Path::Rendezvous => {
                // SAFETY: the caller's promise covers the time until the receiver has finished.
                return unsafe { self.post_request(index, request, request.segments, len) };
            }
            Path::Copied => {
                // SAFETY: as for `Packed`; the copy is kept until the receiver has finished.
                return unsafe {
                    let copy = self.pack(index, request.segments, len);
                    self.post_request(index, request, &[copy], len)
                };
            }
        };
        // SAFETY: user memory by the caller's promise; staging and packing memory is kept until completion.
        unsafe { self.post_eager(index, request, payload) }
    }

    /// Copies segments of `len` bytes to a buffer of eager size, which the send holds from now on.
    ///
    /// # Safety
    /// The segments are readable, and not longer than that.
    unsafe fn pack(&mut self, index: u32, segments: &[Segment], len: u64) -> Segment {
        let mut pack = self.pool.pack(self.config.eager_max as usize);
        // SAFETY: promised by the caller.
        unsafe { gather(segments, &mut pack) };
        let addr = pack.as_ptr() as u64;
        self.pool.held(index).packed = Some(pack);
        self.sends[index].holds = true;
        Segment { addr, len }
    }

    /// # Safety
    /// The segments, `len` bytes in all, stay readable until the send completes.
    unsafe fn post_request(
        &mut self,
        index: u32,
        request: &SendRequest<'_>,
        segments: &[Segment],
        len: u64,
    ) -> Result<(), PostError> {
        self.next_generation = self.next_generation.wrapping_add(1);
        let generation = self.next_generation;
        let mut parts = [(Remote { addr: 0, key: 0 }, 0); MAX_SEGMENTS];
        let mut count = 0;
        for segment in segments.iter().filter(|segment| segment.len > 0) {
            // SAFETY: the caller promises that the segment stays readable until the completion, and the
            // exposure is dropped before that is reported.
            let exposed = unsafe { self.transport.expose(*segment)? };
            parts[count] = (T::remote(&exposed), segment.len);
            self.pool.held(index).exposed[count] = Some(exposed);
            self.sends[index].holds = true;
            count += 1;
        }
        self.sends[index].generation = generation;
        let id = self.sends[index].id(index);
        let stage = self.pool.stage(index);
        let body = Rts {
            id,
            total: len,
            lane: self.transport.lane(),
            parts,
            count,
        }
        .encode(stage);
        let payload = Segment {
            addr: stage.as_ptr() as u64,
            len: body as u64,
        };
        let op = &mut self.sends[index];
        op.stage = Stage::Requested;
        let header = Header::Rts(request.envelope()).encode();
        // SAFETY: the staging area is kept until the transport is done with it.
        unsafe {
            self.transport
                .send(request.to, header, payload, Cookie::Send(index).pack())?
        };
        self.in_transport += 1;
        self.rendezvous_out += 1;
        self.uses_lane = true;
        Ok(())
    }

    /// Completes a send if it is an eager one that went well and holds nothing; else false.
    #[inline(always)]
    pub(crate) fn sent(&mut self, cookie: u64, result: Result<(), Failure>, sink: &mut impl Sink) -> bool {
        let Some(index) = Cookie::as_send(cookie) else {
            return false;
        };
        let op = &mut self.sends[index];
        if op.stage != Stage::Eager || op.holds || result.is_err() {
            return false;
        }
        op.stage = Stage::Free;
        if op.report {
            // As in `deliver`.
            if sink.is_awaited(false) {
                sink.hand_over(op.completion(Ok(())));
            } else {
                sink.complete(op.completion(Ok(())));
            }
        }
        self.in_transport -= 1;
        self.sends.free(index);
        true
    }

    /// The transport is done with a message.
    pub(crate) fn sent_any(&mut self, index: u32, result: Result<(), Failure>, sink: &mut impl Sink) {
        match (self.sends[index].stage, result) {
            (Stage::Eager, result) => self.complete_send(index, result, sink),
            (Stage::Requested, Ok(())) => self.sends[index].stage = Stage::Reading,
            (Stage::Requested, Err(failure)) => {
                self.rendezvous_out -= 1;
                self.complete_send(index, Err(failure), sink);
            }
            (Stage::Finished, _) => self.release(index),
            (Stage::Free | Stage::Reading, _) => {}
        }
    }

    /// The receiver is done with a rendezvous. One we do not know has ended here before, when the link failed.
    pub(crate) fn finished(&mut self, from: PeerId, id: u64, end: End, sink: &mut impl Sink) {
        let [a, b, c, d, e, f, g, h] = id.to_le_bytes();
        let index = u32::from_le_bytes([a, b, c, d]);
        let generation = u32::from_le_bytes([e, f, g, h]);
        let Some(op) = self.sends.get(index) else { return };
        if op.generation != generation || op.to != from {
            return;
        }
        let result = match end {
            End::Received => Ok(()),
            End::Failed => Err(Failure::Other),
            End::Unknown => Err(Failure::PeerLost),
        };
        match op.stage {
            Stage::Reading => {
                self.rendezvous_out -= 1;
                self.complete_send(index, result, sink);
            }
            Stage::Requested => {
                self.rendezvous_out -= 1;
                self.let_go(index);
                self.report(index, result, sink);
                self.sends[index].stage = Stage::Finished;
            }
            Stage::Free | Stage::Eager | Stage::Finished => {}
        }
    }

    /// Asks each peer with a rendezvous outstanding about one of them, in turn. That shows the loss of the peer, and
    /// of what it said at the end of a rendezvous: once it has the request, only its own message would end the
    /// rendezvous. Call it now and then while nothing happens.
    pub fn probe(&mut self, sink: &mut impl Sink) {
        if self.rendezvous_out == 0 {
            return;
        }
        let (count, first) = (self.sends.len(), self.next_probe);
        for index in (first..count).chain(0..first.min(count)) {
            let op = &self.sends[index];
            if op.stage != Stage::Reading {
                continue;
            }
            let to = op.to;
            let peer = to.0 as usize;
            if self.probes.len() <= peer {
                self.probes.resize(peer + 1, false);
            }
            if self.probes[peer] {
                continue;
            }
            let header = Header::Probe { id: op.id(index) }.encode();
            let cookie = Cookie::Probe(to.0).pack();
            match self.transport.send_control(to, header, cookie) {
                Ok(()) => {
                    self.probes[peer] = true;
                    self.next_probe = index + 1;
                    self.in_lane += 1;
                    self.uses_lane = true;
                }
                Err(PostError::Full) => break,
                Err(PostError::Unreachable | PostError::Resource | PostError::Dead) => {
                    self.probed(to, Err(Failure::PeerLost), sink);
                }
            }
        }
    }

    /// A probe has ended; if it failed, the peer's rendezvous fail with it.
    pub(crate) fn probed(&mut self, peer: PeerId, result: Result<(), Failure>, sink: &mut impl Sink) {
        if let Some(pending) = self.probes.get_mut(peer.0 as usize) {
            *pending = false;
        }
        let Err(failure) = result else { return };
        for index in 0..self.sends.len() {
            let op = &self.sends[index];
            if op.stage == Stage::Reading && op.to == peer {
                self.rendezvous_out -= 1;
                self.complete_send(index, Err(failure), sink);
            }
        }
    }

    fn complete_send(&mut self, index: u32, result: Result<(), Failure>, sink: &mut impl Sink) {
        // The memory is withdrawn before the user hears that it is free.
        self.release(index);
        self.report(index, result, sink);
    }

    fn report(&mut self, index: u32, result: Result<(), Failure>, sink: &mut impl Sink) {
        let op = &self.sends[index];
        if op.report || result.is_err() {
            sink.complete(op.completion(result));
        }
    }

    /// Frees a send's resources; its description stays readable until the index is used again.
    #[inline]
    fn release(&mut self, index: u32) {
        self.sends[index].stage = Stage::Free;
        self.let_go(index);
        self.sends.free(index);
    }

    /// Withdraws what a send holds.
    #[inline]
    fn let_go(&mut self, index: u32) {
        if std::mem::take(&mut self.sends[index].holds) {
            self.pool.let_go(index);
        }
    }

    /// Tells a sender that its rendezvous is over. Whether it hears of it does not matter here: if it does not, it
    /// asks.
    pub(crate) fn finish(&mut self, to: PeerId, id: u64, end: End) {
        if !self.try_finish(to, id, end) {
            self.deferred
                .push_back(crate::messenger::Deferred::Fin { to, id, end });
            self.uses_lane = true;
        }
    }

    /// As [`Messenger::finish`]; false if there is no room for it now.
    pub(crate) fn try_finish(&mut self, to: PeerId, id: u64, end: End) -> bool {
        let header = Header::Fin { id, end }.encode();
        match self.transport.send_control(to, header, Cookie::Fin.pack()) {
            Ok(()) => {
                self.in_lane += 1;
                self.uses_lane = true;
            }
            Err(PostError::Full) => return false,
            Err(PostError::Unreachable | PostError::Resource | PostError::Dead) => {}
        }
        true
    }
}

/// Copies segments into `out`, which is long enough.
///
/// # Safety
/// The segments are readable.
unsafe fn gather(segments: &[Segment], out: &mut [u8]) {
    let mut at = 0;
    for segment in segments.iter().filter(|segment| segment.len > 0) {
        // Not longer than `out`, so it fits.
        let Ok(len) = usize::try_from(segment.len) else {
            return;
        };
        // SAFETY: readable by the caller's promise; a user buffer is no part of `out`.
        let bytes = unsafe { std::slice::from_raw_parts(segment.addr as *const u8, len) };
        out[at..at + len].copy_from_slice(bytes);
        at += len;
    }
}
