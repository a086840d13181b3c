//! Messages without a receive: where they are kept, and how they are bounded.
//!
//! A message outside the receive slots is charged its payload and [`BOOKKEEPING`], an empty one and a request to send
//! the latter alone; together they are charged at most [`Config::unexpected_max`](crate::Config). What exceeds that
//! stays in its receive slot, so what is kept in all is bounded by the limit and the number of slots, whatever peers
//! send: when no slot is left, senders wait.

use crate::header::{End, Envelope, HEADER_BYTES, HEADER_LEN, Rts};
use crate::matching::{Pattern, Unexpected};
use crate::messenger::of;
use crate::slab::Links;
use crate::{Lanes, Messenger, PeerId};

/// Bytes a kept message is charged beside its payload: its entry, twice because the pool of entries grows by doubling,
/// and what an allocator adds to a payload.
pub(crate) const BOOKKEEPING: usize = 2 * size_of::<Message>() + 32;

/// Where an unexpected message is.
#[derive(Debug)]
pub(crate) enum Body {
    /// In its receive slot; `len` is that of the payload.
    Slot { slot: u32, len: u32 },
    /// Copied out of its slot.
    Spilled(Box<[u8]>),
    /// At its sender; the request may still lie in its slot.
    Remote { rts: Rts, slot: Option<u32> },
}

impl Body {
    /// Whether it is that of rendezvous `id`.
    pub(crate) fn is_remote(&self, id: u64) -> bool {
        matches!(self, Self::Remote { rts, .. } if rts.id == id)
    }
}

/// A message that waits for a receive.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) envelope: Envelope,
    pub(crate) from: PeerId,
    pub(crate) body: Body,
    all_links: Links,
    peer_links: Links,
}

impl Message {
    pub(crate) fn len(&self) -> u64 {
        match &self.body {
            Body::Slot { len, .. } => u64::from(*len),
            Body::Spilled(bytes) => bytes.len() as u64,
            Body::Remote { rts, .. } => rts.total,
        }
    }
}

impl Unexpected for Message {
    #[inline]
    fn envelope(&self) -> &Envelope {
        &self.envelope
    }
    #[inline]
    fn sender(&self) -> PeerId {
        self.from
    }
    #[inline]
    fn all_links(&mut self) -> &mut Links {
        &mut self.all_links
    }
    #[inline]
    fn peer_links(&mut self) -> &mut Links {
        &mut self.peer_links
    }
}

/// An unexpected message found by [`Messenger::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the message.
    pub len: u64,
    /// What it carries beside them.
    pub envelope: Envelope,
    /// Who sent it.
    pub from: PeerId,
}

/// What [`Messenger::peek`] does with what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// Leaves it.
    Look,
    /// Takes it out of matching; [`Messenger::receive_claimed`] with the same context gets it.
    Claim {
        /// Its name from now on.
        context: u64,
    },
    /// Drops it; its sender sees success.
    Discard,
}

impl<T: Lanes> Messenger<T> {
    /// Looks for an unexpected message.
    pub fn peek(&mut self, pattern: &Pattern, what: Peek) -> Option<Found> {
        let queue = &mut self.unexpected[of(pattern.class)];
        let index = queue.find(&mut self.messages, pattern)?;
        let message = &self.messages[index];
        let found = Found {
            len: message.len(),
            envelope: message.envelope,
            from: message.from,
        };
        match what {
            Peek::Look => {}
            Peek::Claim { context } => {
                queue.remove(&mut self.messages, index);
                self.claimed.push((context, index));
            }
            Peek::Discard => {
                queue.remove(&mut self.messages, index);
                self.drop_message(index);
            }
        }
        Some(found)
    }

    /// Drops a message claimed before; false if there is none of this context.
    pub fn discard_claimed(&mut self, context: u64) -> bool {
        let index = self.take_claimed(context);
        index.inspect(|index| self.drop_message(*index)).is_some()
    }

    pub(crate) fn take_claimed(&mut self, context: u64) -> Option<u32> {
        let at = self.claimed.iter().position(|claim| claim.0 == context)?;
        Some(self.claimed.swap_remove(at).1)
    }

    fn drop_message(&mut self, index: u32) {
        if let Body::Remote { rts, .. } = self.messages[index].body {
            let from = self.messages[index].from;
            self.finish(from, rts.id, End::Received);
            self.flush_due();
        }
        self.free_message(index);
    }

    /// Frees a message and the memory it is in.
    pub(crate) fn free_message(&mut self, index: u32) {
        match std::mem::replace(&mut self.messages[index].body, Body::Spilled(Box::default())) {
            Body::Slot { slot, .. } | Body::Remote { slot: Some(slot), .. } => {
                self.slots_held -= 1;
                self.repost(slot);
            }
            Body::Spilled(bytes) => self.kept -= bytes.len() + BOOKKEEPING,
            Body::Remote { slot: None, .. } => self.kept -= BOOKKEEPING,
        }
        self.messages.free(index);
    }

    /// Keeps an eager message that matches no receive. It stays in its slot while half of the slots are free
    /// of such messages, then it is copied, up to the bound, then it stays again: senders wait when no slot is
    /// left.
    pub(crate) fn keep(&mut self, slot: u32, len: u32, from: PeerId, envelope: Envelope) {
        let payload = len.saturating_sub(HEADER_BYTES);
        let crowded = self.slots_held >= self.slots / 2;
        let body = if (crowded || payload == 0) && self.charge(payload as usize) {
            let bytes: Box<[u8]> = self.transport.slot(slot, len)[HEADER_LEN..].into();
            self.repost(slot);
            Body::Spilled(bytes)
        } else {
            self.slots_held += 1;
            Body::Slot { slot, len: payload }
        };
        self.enqueue(from, envelope, body);
    }

    /// Keeps a request to send that matches no receive, in its slot if it exceeds the bound.
    pub(crate) fn keep_request(&mut self, slot: u32, from: PeerId, envelope: Envelope, rts: Rts) {
        let slot = if self.charge(0) {
            self.repost(slot);
            None
        } else {
            self.slots_held += 1;
            Some(slot)
        };
        self.enqueue(from, envelope, Body::Remote { rts, slot });
    }

    /// Charges a message of `payload` bytes that is to be kept outside its slot, if the bound allows that.
    fn charge(&mut self, payload: usize) -> bool {
        let kept = self.kept.saturating_add(payload + BOOKKEEPING);
        let room = kept <= self.config.unexpected_max;
        if room {
            self.kept = kept;
        }
        room
    }

    fn enqueue(&mut self, from: PeerId, envelope: Envelope, body: Body) {
        let message = Message {
            envelope,
            from,
            body,
            all_links: Links::NONE,
            peer_links: Links::NONE,
        };
        let index = self.messages.insert(message);
        self.unexpected[of(envelope.class)].push(&mut self.messages, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookkeeping_is_what_the_documentation_of_the_limit_says() {
        assert!((350..450).contains(&BOOKKEEPING), "{BOOKKEEPING}");
    }
}
