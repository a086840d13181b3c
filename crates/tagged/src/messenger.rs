//! The messenger's state, and the loop that drives it.

use std::collections::VecDeque;

use crate::header::Header;
use crate::matching::{PostedQueue, UnexpectedQueue};
use crate::protocol::Table;
use crate::recv::Receive;
use crate::rendezvous::Reading;
use crate::send::{SendOp, SendPool};
use crate::slab::Slab;
use crate::unexpected::Message;
use crate::{Class, Event, Failure, PeerId, PostError, Segment, Transport};

/// Most segments of one message.
pub const MAX_SEGMENTS: usize = 4;

/// Longest message in bytes: the ring's longest, less the header.
pub const MAX_MESSAGE: u64 = (1 << 30) - crate::HEADER_LEN as u64;

/// Most events handled in one call, so that a caller who wants one completion is not kept busy by a peer.
const EVENTS_MAX: usize = 64;

/// Receive slots that may wait to be made visible to the device.
const SLOTS_UNSEEN_MAX: u32 = 32;

/// Sizes of a messenger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest message sent without asking the receiver; a slot holds it with its header.
    pub eager_max: u32,
    /// Most sends outstanding.
    pub max_sends: usize,
    /// Bytes of unexpected messages kept outside the receive slots. Beyond it messages stay in their slots,
    /// and when those run out senders wait.
    pub unexpected_max: usize,
}

/// What has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// A receive (else a send).
    pub receive: bool,
    /// The caller's context of the operation.
    pub context: u64,
    /// The caller's own word of the operation.
    pub token: u64,
    /// Space.
    pub class: Class,
    /// Bytes in the user's buffer, or sent.
    pub len: u64,
    /// Bytes of the message that did not fit.
    pub truncated: u64,
    /// Where a receive's bytes are, if it was a multi-receive; else 0.
    pub addr: u64,
    /// Tag of the message.
    pub tag: u64,
    /// Data the sender gave.
    pub data: Option<u64>,
    /// Who sent it.
    pub from: Option<PeerId>,
    /// The multi-receive buffer is given back with this completion.
    pub last: bool,
    /// How it ended.
    pub result: Result<(), Failure>,
}

/// Takes completions.
pub trait Sink {
    /// One operation has completed.
    fn complete(&mut self, completion: Completion);
}

impl<F: FnMut(Completion)> Sink for F {
    #[inline]
    fn complete(&mut self, completion: Completion) {
        self(completion);
    }
}

/// Work that found no room in the transport.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deferred {
    Fin { to: PeerId, id: u64, ok: bool },
    Read(u32),
    Slot(u32),
}

/// What a cookie names.
pub(crate) enum Cookie {
    Send(u32),
    Read(u32),
    Fin,
    Probe(u32),
}

impl Cookie {
    #[inline]
    pub(crate) fn pack(&self) -> u64 {
        match *self {
            Self::Send(index) => 1 << 32 | u64::from(index),
            Self::Read(index) => 2 << 32 | u64::from(index),
            Self::Fin => 3 << 32,
            Self::Probe(peer) => 4 << 32 | u64::from(peer),
        }
    }

    #[inline]
    fn unpack(word: u64) -> Option<Self> {
        let [a, b, c, d, kind, 0, 0, 0] = word.to_le_bytes() else {
            return None;
        };
        let index = u32::from_le_bytes([a, b, c, d]);
        match kind {
            1 => Some(Self::Send(index)),
            2 => Some(Self::Read(index)),
            3 => Some(Self::Fin),
            4 => Some(Self::Probe(index)),
            _ => None,
        }
    }
}

/// One endpoint's messages: sends, receives, matching.
///
/// Not thread safe: calls need `&mut self`. Completions come out of the calls that are given a [`Sink`].
pub struct Messenger<T: Transport> {
    pub(crate) transport: T,
    pub(crate) table: Table,
    pub(crate) config: Config,
    pub(crate) sends: Slab<SendOp>,
    pub(crate) pool: SendPool<T::Exposed>,
    pub(crate) rendezvous_out: usize,
    /// Messages the transport has.
    pub(crate) in_transport: usize,
    pub(crate) next_generation: u32,
    pub(crate) probes: Vec<bool>,
    pub(crate) receives: Slab<Receive>,
    pub(crate) readings: Slab<Reading>,
    pub(crate) messages: Slab<Message>,
    pub(crate) posted: [PostedQueue; 2],
    pub(crate) unexpected: [UnexpectedQueue; 2],
    pub(crate) claimed: Vec<(u64, u32)>,
    /// Slots that hold unexpected messages.
    pub(crate) slots_held: u32,
    /// Bytes of unexpected messages outside slots.
    pub(crate) spilled: usize,
    pub(crate) deferred: VecDeque<Deferred>,
    slots_unseen: u32,
    pub(crate) dirty: bool,
    protocol_errors: u64,
}

impl<T: Transport> Messenger<T> {
    /// A messenger over `transport`, all of whose receive slots are unposted.
    ///
    /// # Errors
    /// The transport takes no receive slot, or one is too small for `config.eager_max`.
    pub fn new(transport: T, config: Config) -> Result<Self, PostError> {
        if u64::from(transport.slot_size()) < u64::from(config.eager_max) + crate::HEADER_LEN as u64
            || (transport.slot_size() as usize) < crate::HEADER_LEN + crate::header::RTS_MAX
        {
            return Err(PostError::Dead);
        }
        let slots = transport.slots();
        let mut messenger = Self {
            transport,
            table: Table::new(u64::from(config.eager_max)),
            config,
            sends: Slab::with_capacity(config.max_sends.min(1024)),
            pool: SendPool::new(),
            rendezvous_out: 0,
            in_transport: 0,
            next_generation: 0,
            probes: Vec::new(),
            receives: Slab::with_capacity(1024),
            readings: Slab::with_capacity(64),
            messages: Slab::with_capacity(1024),
            posted: [PostedQueue::new(), PostedQueue::new()],
            unexpected: [UnexpectedQueue::new(), UnexpectedQueue::new()],
            claimed: Vec::new(),
            slots_held: 0,
            spilled: 0,
            deferred: VecDeque::with_capacity(1024),
            slots_unseen: 0,
            dirty: false,
            protocol_errors: 0,
        };
        for slot in 0..slots {
            messenger.transport.post_slot(slot)?;
        }
        messenger.transport.submit();
        Ok(messenger)
    }

    /// The transport.
    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Sends that can still be posted.
    pub fn sends_left(&self) -> usize {
        self.config.max_sends.saturating_sub(self.sends.in_use())
    }

    /// Rendezvous sends the peers have not finished. Only their own messages end them: see
    /// [`Messenger::probe`].
    pub fn rendezvous_outstanding(&self) -> usize {
        self.rendezvous_out
    }

    /// Whether the peers have every message sent so far (not: have matched it). Close an endpoint only then,
    /// or lose messages.
    pub fn drained(&self) -> bool {
        self.in_transport == 0 && self.deferred.is_empty()
    }

    /// Messages that broke the protocol and were dropped.
    pub fn protocol_errors(&self) -> u64 {
        self.protocol_errors
    }

    /// Drives the transport and completes what has finished; returns the number of events handled.
    pub fn progress(&mut self, sink: &mut impl Sink) -> usize {
        self.transport.drive();
        let mut handled = 0;
        while handled < EVENTS_MAX
            && let Some(event) = self.transport.next()
        {
            self.handle(event, sink);
            handled += 1;
        }
        if !self.deferred.is_empty() {
            self.retry(sink);
        }
        self.flush_due();
        handled
    }

    /// Makes what was posted visible to the device, if anything waits for that: operations do, receive slots
    /// only when several are unseen or the device has few.
    #[inline]
    pub(crate) fn flush_due(&mut self) {
        let unseen = self.slots_unseen;
        let few = unseen > 0 && self.slots_held + unseen >= self.transport.slots() / 2;
        if self.dirty || unseen >= SLOTS_UNSEEN_MAX || few {
            self.flush();
        }
    }

    /// Makes everything posted visible to the device.
    #[inline]
    pub fn flush(&mut self) {
        self.dirty = false;
        self.slots_unseen = 0;
        self.transport.submit();
    }

    #[inline]
    fn handle(&mut self, event: Event, sink: &mut impl Sink) {
        match event {
            Event::Received { slot, len, from } => self.received(slot, len, from, sink),
            Event::Done { cookie, result } => match Cookie::unpack(cookie) {
                Some(Cookie::Send(index)) => {
                    self.in_transport -= 1;
                    self.sent(index, result, sink);
                }
                Some(Cookie::Read(index)) => self.read_done(index, result, sink),
                Some(Cookie::Probe(peer)) => {
                    self.in_transport -= 1;
                    self.probed(PeerId(peer), result, sink);
                }
                Some(Cookie::Fin) => self.in_transport -= 1,
                None => {}
            },
            Event::Returned { slot } => self.repost(slot),
        }
    }

    #[inline]
    fn received(&mut self, slot: u32, len: u32, from: PeerId, sink: &mut impl Sink) {
        match Header::decode(self.transport.slot(slot, len)) {
            Some(Header::Eager(envelope)) => self.arrived(slot, len, from, envelope, sink),
            Some(Header::Rts(envelope)) => {
                let request =
                    crate::header::Rts::decode(&self.transport.slot(slot, len)[crate::HEADER_LEN..]);
                self.repost(slot);
                match request {
                    Some(request) => self.requested(from, envelope, request, sink),
                    None => self.protocol_errors += 1,
                }
            }
            Some(Header::Fin { id, ok }) => {
                self.repost(slot);
                if !self.finished(from, id, ok, sink) {
                    self.protocol_errors += 1;
                }
            }
            Some(Header::Probe) => self.repost(slot),
            None => {
                self.protocol_errors += 1;
                self.repost(slot);
            }
        }
    }

    /// Gives a slot back to the transport.
    #[inline]
    pub(crate) fn repost(&mut self, slot: u32) {
        match self.transport.post_slot(slot) {
            Ok(()) => self.slots_unseen += 1,
            Err(_) => self.deferred.push_back(Deferred::Slot(slot)),
        }
    }

    /// Posts what found no room before, in its order, as far as there is room now.
    fn retry(&mut self, sink: &mut impl Sink) {
        for _ in 0..self.deferred.len() {
            let Some(work) = self.deferred.pop_front() else {
                return;
            };
            match work {
                Deferred::Slot(slot) => self.repost(slot),
                Deferred::Fin { to, id, ok } => self.finish(to, id, ok),
                Deferred::Read(index) => self.post_reads(index, sink),
            }
        }
    }
}

/// The queue of a class.
#[inline]
pub(crate) fn of(class: Class) -> usize {
    match class {
        Class::Message => 0,
        Class::Tagged => 1,
    }
}

/// Bytes of all segments.
#[inline]
pub(crate) fn total(segments: &[Segment]) -> u64 {
    segments
        .iter()
        .fold(0, |sum, segment| sum.saturating_add(segment.len))
}
