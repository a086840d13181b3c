//! Receives: posting, delivery, multi-receive, cancel.

use crate::header::{Envelope, HEADER_BYTES, HEADER_LEN, Header, Rts};
use crate::matching::{Pattern, Posted};
use crate::messenger::{of, total};
use crate::slab::{Links, NIL};
use crate::unexpected::Body;
use crate::{Class, Completion, Failure, Lanes, MAX_SEGMENTS, Messenger, PeerId, Segment, Sink};

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// What it accepts.
    pub pattern: Pattern,
    /// Where the message goes.
    pub segments: &'a [Segment],
    /// The caller's context, given back with the completion.
    pub context: u64,
    /// The caller's own word, given back with the completion.
    pub token: u32,
    /// Whether success is to be reported; failure always is.
    pub report: bool,
    /// The buffer (one segment) takes messages one after the other until less than this is left.
    pub multi: Option<u64>,
}

/// Why a receive was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// Too many segments, or a multi-receive of several.
    Segments,
    /// No message was claimed with this context.
    NotClaimed,
}

/// A receive outstanding. What matching looks at comes first, and segments that few have last.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Receive {
    pattern: Pattern,
    sequence: u64,
    links: Links,
    multi: Option<Multi>,
    pub(crate) target: Target,
}

impl Default for Receive {
    fn default() -> Self {
        Self {
            pattern: Pattern {
                class: Class::Message,
                from: None,
                tag: 0,
                ignore: 0,
            },
            sequence: 0,
            links: Links::NONE,
            multi: None,
            target: Target {
                context: 0,
                capacity: 0,
                token: 0,
                multi: NIL,
                report: false,
                count: 0,
                segments: [Segment::EMPTY; MAX_SEGMENTS],
            },
        }
    }
}

/// Where a message goes, and what is told when it is there.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Target {
    pub(crate) context: u64,
    pub(crate) capacity: u64,
    pub(crate) token: u32,
    /// Part of a multi-receive buffer, whose receive this is; else [`NIL`].
    pub(crate) multi: u32,
    pub(crate) report: bool,
    pub(crate) count: usize,
    /// The first `count` mean something.
    pub(crate) segments: [Segment; MAX_SEGMENTS],
}

#[derive(Clone, Copy, Debug)]
struct Multi {
    used: u64,
    min_left: u64,
    /// Messages still on their way into the buffer.
    pending: u32,
    /// No longer takes messages.
    retired: bool,
}

impl Posted for Receive {
    #[inline]
    fn pattern(&self) -> &Pattern {
        &self.pattern
    }
    #[inline]
    fn sequence(&mut self) -> &mut u64 {
        &mut self.sequence
    }
    #[inline]
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl<T: Lanes> Messenger<T> {
    /// Posts a receive; it completes at once if its message is here.
    ///
    /// # Errors
    /// Nothing was taken.
    ///
    /// # Safety
    /// The segments stay writable until the completion (of a multi-receive: the last), and nobody else uses
    /// them.
    #[inline(always)]
    pub unsafe fn receive(
        &mut self,
        request: &RecvRequest<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), RecvError> {
        if request.segments.len() == 1
            && request.multi.is_none()
            && self.unexpected[of(request.pattern.class)].is_empty()
        {
            self.enlist(request, None);
            return Ok(());
        }
        // A copy, so that a request of the kind above never takes the way through memory.
        self.receive_any(*request, sink)
    }

    /// [`Messenger::receive`] without short cuts.
    #[inline(never)]
    fn receive_any(&mut self, request: RecvRequest<'_>, sink: &mut impl Sink) -> Result<(), RecvError> {
        let request = &request;
        if request.segments.len() > MAX_SEGMENTS {
            return Err(RecvError::Segments);
        }
        if let Some(min_left) = request.multi {
            return self.receive_multi(request, min_left, sink);
        }
        let class = of(request.pattern.class);
        if !self.unexpected[class].is_empty()
            && let Some(index) = self.unexpected[class].find(&mut self.messages, &request.pattern)
        {
            self.unexpected[class].remove(&mut self.messages, index);
            self.deliver_message(index, Target::new(request), sink);
            self.flush_due();
            return Ok(());
        }
        self.enlist(request, None);
        Ok(())
    }

    /// Puts a receive into its queue.
    #[inline(always)]
    fn enlist(&mut self, request: &RecvRequest<'_>, multi: Option<Multi>) -> u32 {
        let index = self.receives.claim();
        let receive = &mut self.receives[index];
        receive.pattern = request.pattern;
        receive.multi = multi;
        receive.target.set(request);
        self.posted[of(request.pattern.class)].push(&mut self.receives, index);
        index
    }

    /// Receives the message claimed with `request.context`.
    ///
    /// # Errors
    /// Nothing was taken.
    ///
    /// # Safety
    /// As [`Messenger::receive`].
    pub unsafe fn receive_claimed(
        &mut self,
        request: &RecvRequest<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), RecvError> {
        if request.segments.len() > MAX_SEGMENTS {
            return Err(RecvError::Segments);
        }
        let index = self.take_claimed(request.context).ok_or(RecvError::NotClaimed)?;
        self.deliver_message(index, Target::new(request), sink);
        self.flush_due();
        Ok(())
    }

    /// Cancels a receive that has matched nothing yet; it completes with [`Failure::Cancelled`]. A multi-receive
    /// takes no more messages; those on their way into it complete later. False if there is none of this context.
    pub fn cancel(&mut self, context: u64, sink: &mut impl Sink) -> bool {
        for class in 0..self.posted.len() {
            let found = self.posted[class].find_by(&mut self.receives, |r| r.target.context == context);
            let Some(index) = found else { continue };
            self.posted[class].remove(&mut self.receives, index);
            let receive = &mut self.receives[index];
            let (pattern, target) = (receive.pattern, receive.target);
            // The last completion of a multi-receive gives its buffer back.
            let last = match &mut receive.multi {
                Some(multi) if multi.pending > 0 => {
                    multi.retired = true;
                    false
                }
                multi => {
                    let last = multi.is_some();
                    self.receives.free(index);
                    last
                }
            };
            sink.complete(Completion {
                receive: true,
                context,
                token: target.token,
                class: pattern.class,
                len: 0,
                truncated: 0,
                addr: 0,
                tag: pattern.tag,
                data: None,
                from: None,
                last,
                result: Err(Failure::Cancelled),
            });
            return true;
        }
        false
    }

    /// Delivers an eager message that fits the one segment of the receive it matches; else false.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, slot: u32, len: u32, from: PeerId, sink: &mut impl Sink) -> bool {
        let bytes = self.transport.slot(slot, len);
        let Some(envelope) = Header::eager(bytes) else {
            return false;
        };
        let posted = &mut self.posted[of(envelope.class)];
        let Some(index) = posted.find(&mut self.receives, from, envelope.tag) else {
            return false;
        };
        let Receive { target, multi, .. } = &self.receives[index];
        let payload = &bytes[HEADER_LEN..];
        let len = payload.len() as u64;
        if multi.is_some() || target.count != 1 || len > target.capacity {
            return false;
        }
        // SAFETY: the poster of the receive promised that its segments are writable, and the message fits.
        unsafe { copy(payload, target.segments[0].addr) };
        if target.report {
            // Two calls, so that a completion that is awaited need not be in memory as a whole.
            if sink.is_awaited(true) {
                sink.hand_over(target.filled(from, envelope, len));
            } else {
                sink.complete(target.filled(from, envelope, len));
            }
        }
        posted.remove(&mut self.receives, index);
        self.receives.free(index);
        self.repost(slot);
        true
    }

    /// An eager message has arrived.
    pub(crate) fn arrived(
        &mut self,
        slot: u32,
        len: u32,
        from: PeerId,
        envelope: Envelope,
        sink: &mut impl Sink,
    ) {
        let class = of(envelope.class);
        let Some(index) = self.posted[class].find(&mut self.receives, from, envelope.tag) else {
            return self.keep(slot, len, from, envelope);
        };
        let payload = u64::from(len.saturating_sub(HEADER_BYTES));
        let target = self.take_target(index, payload);
        // SAFETY: the poster of the receive promised that its segments are writable.
        unsafe { scatter(&self.transport.slot(slot, len)[HEADER_LEN..], &target) };
        self.repost(slot);
        self.complete_receive(&target, from, envelope, payload, Ok(()), sink);
    }

    /// A request to send has arrived.
    pub(crate) fn requested(
        &mut self,
        slot: u32,
        from: PeerId,
        envelope: Envelope,
        rts: Rts,
        sink: &mut impl Sink,
    ) {
        let class = of(envelope.class);
        match self.posted[class].find(&mut self.receives, from, envelope.tag) {
            Some(index) => {
                self.repost(slot);
                let target = self.take_target(index, rts.total);
                self.start_reading(from, envelope, rts, target, sink);
            }
            None => self.keep_request(slot, from, envelope, rts),
        }
    }

    /// Takes the room for a message of `len` bytes out of a posted receive.
    #[inline]
    fn take_target(&mut self, index: u32, len: u64) -> Target {
        let class = of(self.receives[index].pattern.class);
        let Receive { target, multi, .. } = &mut self.receives[index];
        let Some(multi) = multi else {
            let target = *target;
            self.posted[class].remove(&mut self.receives, index);
            self.receives.free(index);
            return target;
        };
        let part = multi.take(target, index, len);
        if multi.retired {
            self.posted[class].remove(&mut self.receives, index);
        }
        part
    }

    fn receive_multi(
        &mut self,
        request: &RecvRequest<'_>,
        min_left: u64,
        sink: &mut impl Sink,
    ) -> Result<(), RecvError> {
        if request.segments.len() > 1 {
            return Err(RecvError::Segments);
        }
        let multi = Multi {
            used: 0,
            min_left: min_left.max(1),
            pending: 0,
            retired: false,
        };
        let index = self.enlist(request, Some(multi));
        let class = of(request.pattern.class);
        let mut retired = false;
        while !retired
            && !self.unexpected[class].is_empty()
            && let Some(message) = self.unexpected[class].find(&mut self.messages, &request.pattern)
        {
            self.unexpected[class].remove(&mut self.messages, message);
            let part = self.take_target(index, self.messages[message].len());
            retired = self.receives[index].multi.is_some_and(|multi| multi.retired);
            self.deliver_message(message, part, sink);
        }
        self.flush_due();
        Ok(())
    }

    fn deliver_message(&mut self, index: u32, target: Target, sink: &mut impl Sink) {
        let message = &self.messages[index];
        let (from, envelope, len) = (message.from, message.envelope, message.len());
        match &message.body {
            Body::Remote { rts, .. } => {
                let rts = *rts;
                self.free_message(index);
                return self.start_reading(from, envelope, rts, target, sink);
            }
            Body::Spilled(bytes) => {
                // SAFETY: the poster of the receive promised that its segments are writable.
                unsafe { scatter(bytes, &target) }
            }
            Body::Slot { slot, len } => {
                let bytes = self.transport.slot(*slot, *len + HEADER_BYTES);
                // SAFETY: as above.
                unsafe { scatter(&bytes[HEADER_LEN..], &target) }
            }
        }
        self.free_message(index);
        self.complete_receive(&target, from, envelope, len, Ok(()), sink);
    }

    /// A message of `len` bytes is in its target as far as it fits.
    #[inline]
    pub(crate) fn complete_receive(
        &mut self,
        target: &Target,
        from: PeerId,
        envelope: Envelope,
        len: u64,
        result: Result<(), Failure>,
        sink: &mut impl Sink,
    ) {
        let last = target.multi != NIL && self.part_done(target.multi);
        if let Some(done) = target.completion(from, envelope, len, last, result) {
            sink.complete(done);
        }
    }

    /// One message into a multi-receive buffer is done; true if it was the last.
    fn part_done(&mut self, index: u32) -> bool {
        let Some(multi) = &mut self.receives[index].multi else {
            return false;
        };
        multi.pending -= 1;
        let last = multi.retired && multi.pending == 0;
        if last {
            self.receives.free(index);
        }
        last
    }
}

impl Target {
    fn new(request: &RecvRequest<'_>) -> Self {
        let mut target = Receive::default().target;
        target.set(request);
        target
    }

    /// Becomes that of a receive; its segments are at most [`MAX_SEGMENTS`].
    #[inline]
    fn set(&mut self, request: &RecvRequest<'_>) {
        self.context = request.context;
        self.capacity = total(request.segments);
        self.token = request.token;
        self.multi = NIL;
        self.report = request.report;
        self.count = request.segments.len();
        for (place, segment) in self.segments.iter_mut().zip(request.segments) {
            *place = *segment;
        }
    }

    /// The completion of a message of `len` bytes, if it is to be reported.
    #[inline]
    fn completion(
        &self,
        from: PeerId,
        envelope: Envelope,
        len: u64,
        last: bool,
        result: Result<(), Failure>,
    ) -> Option<Completion> {
        let truncated = len.saturating_sub(self.capacity);
        let result = if truncated > 0 {
            result.and(Err(Failure::Truncated))
        } else {
            result
        };
        (self.report || last || result.is_err()).then(|| Completion {
            truncated,
            addr: if self.multi == NIL {
                0
            } else {
                self.segments[0].addr
            },
            last,
            result,
            ..self.filled(from, envelope, len.min(self.capacity))
        })
    }

    /// The completion of `len` bytes that fit.
    #[inline(always)]
    fn filled(&self, from: PeerId, envelope: Envelope, len: u64) -> Completion {
        Completion {
            receive: true,
            context: self.context,
            token: self.token,
            class: envelope.class,
            len,
            truncated: 0,
            addr: 0,
            tag: envelope.tag,
            data: envelope.data,
            from: Some(from),
            last: false,
            result: Ok(()),
        }
    }
}

impl Multi {
    fn take(&mut self, target: &Target, index: u32, len: u64) -> Target {
        let left = target.capacity - self.used;
        let taken = len.min(left);
        let mut part = *target;
        part.segments[0] = target.segments[0].part(self.used, taken);
        part.capacity = taken;
        part.multi = index;
        self.used += taken;
        self.pending += 1;
        self.retired = target.capacity - self.used < self.min_left;
        part
    }
}

/// Copies as much of `bytes` as fits to the target.
///
/// # Safety
/// The target's segments are writable.
#[inline]
unsafe fn scatter(mut bytes: &[u8], target: &Target) {
    for segment in &target.segments[..target.count] {
        let len = bytes
            .len()
            .min(usize::try_from(segment.len).unwrap_or(usize::MAX));
        if len == 0 {
            continue;
        }
        // SAFETY: writable by the caller's promise.
        unsafe { copy(&bytes[..len], segment.addr) };
        bytes = &bytes[len..];
    }
}

/// Copies `bytes` to `to`.
///
/// # Safety
/// As many bytes are writable there.
#[inline]
unsafe fn copy(bytes: &[u8], to: u64) {
    // SAFETY: writable by the caller's promise, and a user buffer is no part of a receive slot.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
}
