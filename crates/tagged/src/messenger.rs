//! The messenger's state, and the loop that drives it.

use std::collections::VecDeque;

use crate::header::{End, Header};
use crate::matching::{PostedQueue, UnexpectedQueue};
use crate::protocol::Table;
use crate::recv::Receive;
use crate::rendezvous::Reading;
use crate::send::{SendOp, SendPool};
use crate::slab::Slab;
use crate::unexpected::Message;
use crate::{Arrival, Class, Control, Done, Failure, Lanes, PeerId, PostError, Segment};

/// Most segments of one message.
pub const MAX_SEGMENTS: usize = 4;

/// Longest message in bytes: the ring's longest, less the header.
pub const MAX_MESSAGE: u64 = (1 << 30) - crate::HEADER_LEN as u64;

/// Most events [`Messenger::progress`] handles in one call, so that a caller who wants one completion is not kept busy by a peer.
pub const EVENTS_MAX: usize = 64;

/// Calls that are content with what has arrived before finished sends are looked at nevertheless.
const CONTENT_MAX: u32 = 64;

/// Calls that find nothing before the control lane is looked at, if nothing is expected there; and calls that find
/// something.
const QUIET_MAX: u32 = 16;
const BUSY_MAX: u32 = 64;

/// Receive slots that may wait to be given back to the device.
const SLOTS_WAITING_MAX: usize = 32;

/// And how many of them a call that finds nothing to do gives back.
const SLOTS_WAITING_IDLE: usize = 8;

/// Sizes of a messenger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest message sent without asking the receiver; a slot holds it with its header.
    pub eager_max: u32,
    /// Most sends outstanding.
    pub max_sends: usize,
    /// Memory for unexpected messages outside the receive slots, in bytes: of payload, and of bookkeeping for each,
    /// also for empty ones and for requests to send. Beyond it messages stay in their slots, and when those run out
    /// senders wait.
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
    pub token: u32,
    /// Space.
    pub class: Class,
    /// Receives: bytes in the user's buffer.
    pub len: u64,
    /// Bytes of the message that did not fit.
    pub truncated: u64,
    /// Where a receive's bytes are, if it was a multi-receive; else 0.
    pub addr: u64,
    /// Receives: tag of the message.
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

    /// Whether the caller waits for receives, or sends, that go well: [`Sink::hand_over`] takes the next at once.
    #[inline]
    fn is_awaited(&self, _receive: bool) -> bool {
        false
    }

    /// An operation that is awaited has completed and gone well.
    #[inline]
    fn hand_over(&mut self, completion: Completion) {
        self.complete(completion);
    }

    /// Whether the caller has all it came for: [`Messenger::progress`] leaves the rest for later.
    #[inline]
    fn is_full(&self) -> bool {
        false
    }

    /// Whether the caller has something to go on with: [`Messenger::progress`] need not drive the transport for more.
    #[inline]
    fn is_content(&self) -> bool {
        self.is_full()
    }
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
    Fin { to: PeerId, id: u64, end: End },
    Read(u32),
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

    /// The send a word names, if it does.
    #[inline]
    pub(crate) fn as_send(word: u64) -> Option<u32> {
        let index = u32::try_from(word.wrapping_sub(Self::Send(0).pack()));
        index.ok()
    }

    fn unpack(word: u64) -> Option<Self> {
        let [a, b, c, d, kind, 0, 0, 0] = word.to_le_bytes() else {
            return None;
        };
        let index = u32::from_le_bytes([a, b, c, d]);
        match kind {
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
pub struct Messenger<T: Lanes> {
    pub(crate) transport: T,
    pub(crate) table: Table,
    pub(crate) config: Config,
    pub(crate) sends: Slab<SendOp>,
    pub(crate) pool: SendPool<T::Exposed>,
    pub(crate) rendezvous_out: usize,
    /// Messages the transport has.
    pub(crate) in_transport: usize,
    /// What the control lane has.
    pub(crate) in_lane: usize,
    /// Something is to be expected on the control lane, or waits for room there. Else there may still be questions of
    /// peers.
    pub(crate) uses_lane: bool,
    pub(crate) next_generation: u32,
    /// By peer: a probe is on its way.
    pub(crate) probes: Vec<bool>,
    /// The send whose peer is asked about it next.
    pub(crate) next_probe: u32,
    pub(crate) receives: Slab<Receive>,
    pub(crate) readings: Slab<Reading>,
    pub(crate) messages: Slab<Message>,
    pub(crate) posted: [PostedQueue; 2],
    pub(crate) unexpected: [UnexpectedQueue; 2],
    pub(crate) claimed: Vec<(u64, u32)>,
    /// Slots that hold unexpected messages.
    pub(crate) slots_held: usize,
    /// Bytes charged for unexpected messages outside slots.
    pub(crate) kept: usize,
    pub(crate) deferred: VecDeque<Deferred>,
    pub(crate) slots: usize,
    /// Slots to be given back to the transport.
    returned: Vec<u32>,
    /// Calls in a row after which finished sends still wait.
    content: u32,
    /// Calls that found nothing.
    quiet: u32,
    /// Calls of `poll`.
    busy: u32,
    pub(crate) dirty: bool,
    protocol_errors: u64,
}

impl<T: Lanes> Messenger<T> {
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
            in_lane: 0,
            uses_lane: false,
            next_generation: 0,
            probes: Vec::new(),
            next_probe: 0,
            receives: Slab::with_capacity(1024),
            readings: Slab::with_capacity(64),
            messages: Slab::with_capacity(1024),
            posted: [PostedQueue::new(), PostedQueue::new()],
            unexpected: [UnexpectedQueue::new(), UnexpectedQueue::new()],
            claimed: Vec::new(),
            slots_held: 0,
            kept: 0,
            deferred: VecDeque::with_capacity(1024),
            slots: slots as usize,
            returned: Vec::with_capacity(slots as usize),
            content: 0,
            quiet: 0,
            busy: 0,
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
        self.in_transport == 0 && self.in_lane == 0 && self.deferred.is_empty()
    }

    /// Messages that broke the protocol and were dropped.
    pub fn protocol_errors(&self) -> u64 {
        self.protocol_errors
    }

    /// Completes what has arrived or finished; then, unless the sink is content, drives the transport and does so again.
    /// Returns the number of events handled.
    #[inline(always)]
    pub fn progress(&mut self, sink: &mut impl Sink) -> usize {
        let mut handled = 0;
        if self.transport.has_events() {
            handled = self.poll(sink);
            if handled >= EVENTS_MAX || sink.is_content() {
                return handled;
            }
        }
        if self.transport.drive() && self.transport.has_events() {
            handled += self.poll(sink);
        }
        if handled == 0 {
            self.quiet = self.quiet.wrapping_add(1);
            if self.uses_lane || self.quiet % QUIET_MAX == 0 {
                handled = self.poll_lane(sink);
            }
            if self.returned.len() >= SLOTS_WAITING_IDLE {
                self.give_back();
            }
        }
        handled
    }

    /// Handles events until there are none or the sink is full. Arrivals come first: somebody waits for them, while
    /// finished sends and the control lane can wait for the next call.
    #[inline(never)]
    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        let mut handled = 0;
        let mut content = false;
        let mut overdue = false;
        while let Some(arrival) = self.transport.arrival() {
            match arrival {
                Arrival::Message { slot, len, from } => {
                    if !self.deliver(slot, len, from, sink) {
                        self.received(slot, len, from, sink);
                    }
                }
                Arrival::Returned { slot } => self.repost(slot),
            }
            handled += 1;
            if handled == EVENTS_MAX {
                overdue = true;
                break;
            }
            if sink.is_full() {
                self.content += 1;
                overdue = self.content >= CONTENT_MAX;
                content = !overdue;
                break;
            }
        }
        if !content {
            self.content = 0;
            while let Some(Done { cookie, result }) = self.transport.done() {
                if !self.sent(cookie, result, sink) {
                    self.finished_work(cookie, result, sink);
                }
                handled += 1;
                if handled >= EVENTS_MAX || sink.is_full() && !overdue {
                    break;
                }
            }
        }
        self.busy = self.busy.wrapping_add(1);
        if self.uses_lane || overdue || self.busy % BUSY_MAX == 0 {
            handled += self.poll_lane(sink);
        }
        self.flush_due();
        handled
    }

    /// Handles what the control lane has, then posts there what found no room before.
    #[inline(never)]
    fn poll_lane(&mut self, sink: &mut impl Sink) -> usize {
        let handled = if self.transport.has_control() {
            self.poll_control(sink)
        } else {
            0
        };
        self.retry(sink);
        self.uses_lane = self.rendezvous_out | self.in_lane | self.deferred.len() != 0;
        handled
    }

    fn poll_control(&mut self, sink: &mut impl Sink) -> usize {
        let mut handled = 0;
        while handled < EVENTS_MAX
            && let Some(Control { bytes, from }) = self.transport.control()
        {
            handled += 1;
            match Header::decode(&bytes) {
                Some(Header::Fin { id, end }) => self.finished(from, id, end, sink),
                Some(Header::Probe { id }) => self.asked(from, id),
                _ => self.protocol_errors += 1,
            }
        }
        while handled < EVENTS_MAX
            && let Some(Done { cookie, result }) = self.transport.control_done()
        {
            handled += 1;
            let Some(cookie) = Cookie::unpack(cookie) else {
                continue;
            };
            self.in_lane -= 1;
            match cookie {
                Cookie::Read(index) => self.read_done(index, result, sink),
                Cookie::Probe(peer) => self.probed(PeerId(peer), result, sink),
                Cookie::Fin | Cookie::Send(_) => {}
            }
        }
        handled
    }

    /// Makes what was posted visible to the device, if anything waits for that: operations do, receive slots
    /// only when several wait or the device has few.
    #[inline]
    pub(crate) fn flush_due(&mut self) {
        let waiting = self.returned.len();
        let few = waiting > 0 && self.slots_held + waiting >= self.slots / 2;
        if self.dirty || waiting >= SLOTS_WAITING_MAX || few {
            self.give_back();
        }
    }

    /// Gives slots back to the transport, and makes everything posted visible.
    #[inline(never)]
    fn give_back(&mut self) {
        while let Some(slot) = self.returned.pop() {
            if self.transport.post_slot(slot).is_err() {
                self.returned.push(slot);
                break;
            }
        }
        self.flush();
    }

    /// Makes everything posted visible to the device.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.dirty = false;
        self.transport.submit();
    }

    /// A send has finished.
    #[inline(never)]
    fn finished_work(&mut self, cookie: u64, result: Result<(), Failure>, sink: &mut impl Sink) {
        if let Some(index) = Cookie::as_send(cookie) {
            self.in_transport -= 1;
            self.sent_any(index, result, sink);
        }
    }

    /// A message has arrived.
    #[inline(never)]
    fn received(&mut self, slot: u32, len: u32, from: PeerId, sink: &mut impl Sink) {
        let bytes = self.transport.slot(slot, len);
        let header = Header::decode(bytes);
        if let Some(Header::Eager(envelope)) = header {
            return self.arrived(slot, len, from, envelope, sink);
        }
        let request = bytes
            .get(crate::HEADER_LEN..)
            .and_then(crate::header::Rts::decode);
        if let (Some(Header::Rts(envelope)), Some(request)) = (header, request) {
            self.transport.introduce(from, request.lane);
            return self.requested(slot, from, envelope, request, sink);
        }
        self.repost(slot);
        self.protocol_errors += 1;
    }

    /// Gives a slot back to the transport, soon.
    #[inline]
    pub(crate) fn repost(&mut self, slot: u32) {
        self.returned.push(slot);
    }

    /// Posts what found no room before, in its order, as far as there is room now.
    fn retry(&mut self, sink: &mut impl Sink) {
        for _ in 0..self.deferred.len() {
            let Some(work) = self.deferred.pop_front() else {
                return;
            };
            match work {
                Deferred::Fin { to, id, end } => self.finish(to, id, end),
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
