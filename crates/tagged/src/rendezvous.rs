//! The receiver's half of rendezvous: it reads the message out of the sender's memory.

use crate::header::{End, Envelope, Rts};
use crate::messenger::{Cookie, Deferred};
use crate::recv::Target;
use crate::unexpected::Message;
use crate::{Failure, Lanes, Messenger, PeerId, PostError, Remote, Segment, Sink};

/// A message being read.
pub(crate) struct Reading {
    from: PeerId,
    envelope: Envelope,
    rts: Rts,
    target: Target,
    /// Bytes to read.
    len: u64,
    /// Bytes for which reads are posted.
    posted: u64,
    /// Reads the transport has.
    pending: u32,
    failure: Option<Failure>,
    ended: bool,
}

impl Reading {
    /// The next read: as far as neither a local segment nor a remote part ends.
    fn piece(&self) -> (Remote, Segment) {
        let mut piece = self.len - self.posted;
        let mut at = self.posted;
        let mut remote = Remote { addr: 0, key: 0 };
        for (part, len) in &self.rts.parts[..self.rts.count] {
            if at < *len {
                remote = Remote {
                    addr: part.addr.wrapping_add(at),
                    key: part.key,
                };
                piece = piece.min(len - at);
                break;
            }
            at -= len;
        }
        let mut at = self.posted;
        let mut local = Segment::EMPTY;
        for segment in &self.target.segments[..self.target.count] {
            if at < segment.len {
                piece = piece.min(segment.len - at);
                local = segment.part(at, piece);
                break;
            }
            at -= segment.len;
        }
        (
            remote,
            Segment {
                addr: local.addr,
                len: piece,
            },
        )
    }
}

impl<T: Lanes> Messenger<T> {
    /// Begins to read a message into its target.
    pub(crate) fn start_reading(
        &mut self,
        from: PeerId,
        envelope: Envelope,
        rts: Rts,
        target: Target,
        sink: &mut impl Sink,
    ) {
        let len = rts.total.min(target.capacity);
        if len == 0 {
            self.finish(from, rts.id, End::Received);
            self.complete_receive(&target, from, envelope, rts.total, Ok(()), sink);
            return;
        }
        let reading = Reading {
            from,
            envelope,
            rts,
            target,
            len,
            posted: 0,
            pending: 0,
            failure: None,
            ended: false,
        };
        let index = self.readings.insert(reading);
        self.uses_lane = true;
        self.post_reads(index, sink);
    }

    /// Posts the reads not posted yet, as far as there is room.
    pub(crate) fn post_reads(&mut self, index: u32, sink: &mut impl Sink) {
        loop {
            let reading = &mut self.readings[index];
            if reading.posted == reading.len || reading.failure.is_some() {
                return;
            }
            let (remote, into) = reading.piece();
            let (from, cookie) = (reading.from, Cookie::Read(index).pack());
            // SAFETY: the poster of the receive promised that its segments are writable until it completes,
            // which it does after this read.
            match unsafe { self.transport.read(from, remote, into, cookie) } {
                Ok(len) => {
                    let reading = &mut self.readings[index];
                    reading.posted += len;
                    reading.pending += 1;
                    self.in_lane += 1;
                }
                Err(PostError::Full) => return self.deferred.push_back(Deferred::Read(index)),
                Err(error) => {
                    let failure = match error {
                        PostError::Resource => Failure::Resource,
                        _ => Failure::PeerLost,
                    };
                    self.readings[index].failure = Some(failure);
                    if self.readings[index].pending == 0 {
                        self.end_reading(index, sink);
                    }
                    return;
                }
            }
        }
    }

    /// A read has finished.
    pub(crate) fn read_done(&mut self, index: u32, result: Result<(), Failure>, sink: &mut impl Sink) {
        let reading = &mut self.readings[index];
        reading.pending -= 1;
        if let Err(failure) = result {
            reading.failure.get_or_insert(failure);
        }
        let all_posted = reading.posted == reading.len || reading.failure.is_some();
        if reading.pending == 0 && all_posted {
            self.end_reading(index, sink);
        }
    }

    /// A sender asks about a rendezvous. One that is neither waiting nor being read nor about to be answered has ended,
    /// and the answer is lost, or arrives before this one; unless its request is still to be taken. Without room for the answer now there is none, lest questions
    /// pile up: the sender asks again.
    pub(crate) fn asked(&mut self, from: PeerId, id: u64) {
        let reading = |reading: &Reading| !reading.ended && reading.from == from && reading.rts.id == id;
        let waiting = |message: &Message| message.from == from && message.body.is_remote(id);
        let answering = |work: &Deferred| matches!(work, Deferred::Fin { to, id: other, .. } if *to == from && *other == id);
        if !self.readings.iter().any(reading)
            && !self.messages.iter().any(waiting)
            && !self.deferred.iter().any(answering)
            && !self.transport.has_events()
        {
            self.try_finish(from, id, End::Unknown);
        }
    }

    fn end_reading(&mut self, index: u32, sink: &mut impl Sink) {
        self.readings[index].ended = true;
        let Reading {
            from,
            envelope,
            rts,
            target,
            failure,
            ..
        } = &self.readings[index];
        let (from, envelope, rts, target, failure) = (*from, *envelope, *rts, *target, *failure);
        self.deferred
            .retain(|work| !matches!(work, Deferred::Read(reading) if *reading == index));
        self.readings.free(index);
        let end = if failure.is_none() {
            End::Received
        } else {
            End::Failed
        };
        self.finish(from, rts.id, end);
        let result = failure.map_or(Ok(()), Err);
        self.complete_receive(&target, from, envelope, rts.total, result, sink);
    }
}
