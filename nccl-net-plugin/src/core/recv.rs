//! The receiving side: every receive gives its buffer to the sender; messages come in the order they were sent.

use super::id::{Id, Kind};
use super::port::Port;
use super::request::{Order, Requests};
use super::send::{Nonsense, Route, Stop};
use super::wire::{Closing, Message, low16};

/// Eager messages a sender may have out for which it knows of no receive. Each holds a buffer of the hub until there is
/// one. As many as NCCL has in flight on a connection for point-to-point operations.
pub(crate) const CREDITS: usize = 8;

/// A receive that has not been tested.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecvRequest {
    pub(crate) addr: u64,
    pub(crate) capacity: u64,
    pub(crate) remote_key: u64,
    /// Once done: how long the message was.
    pub(crate) size: u64,
    pub(crate) region: u32,
    pub(crate) tag: u32,
    pub(crate) done: bool,
}

/// A message that came before its receive.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    buffer: u32,
    len: u32,
    tag: u32,
}

/// Where the bytes of a message are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bytes {
    /// In this buffer of the hub.
    Eager { buffer: u32, len: u32 },
    /// So many, in the receive's own buffer.
    Placed(u64),
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is in its receive's buffer. With the tag of the receive, if that is another.
    Done { tag: Option<u32> },
    /// It waits in the hub's buffer.
    Held,
}

/// Why a message cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It may not be sent.
    Nonsense(Nonsense),
    /// It does not fit its buffer.
    TooLong(Closing),
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(crate) struct RecvComm {
    /// Receives posted.
    posted: u32,
    /// Messages that have come.
    arrived: u32,
    /// Receives the sender knows of.
    announced: u32,
    pub(crate) requests: Requests<RecvRequest>,
    /// Requests whose messages have not come.
    order: Order,
    /// Messages whose receives are not posted, the oldest at `arrived - held` modulo the length.
    held: [Held; CREDITS],
    held_len: u32,
}

impl RecvComm {
    pub(crate) fn new() -> Self {
        Self {
            posted: 0,
            arrived: 0,
            announced: 0,
            requests: Requests::new(),
            order: Order::default(),
            held: [Held::default(); CREDITS],
            held_len: 0,
        }
    }

    /// Takes a receive in: its slot and generation, and what became of the message that was waiting for it. `None` if
    /// there are too many.
    ///
    /// # Safety
    /// The request's buffer may be written until it is done or withdrawn.
    #[inline]
    pub(crate) unsafe fn post(
        &mut self,
        port: &mut Port,
        request: RecvRequest,
    ) -> Option<(u8, u16, Result<Option<Taken>, Unfit>)> {
        let (slot, generation) = self.requests.insert(request)?;
        self.posted = self.posted.wrapping_add(1);
        if self.held_len == 0 {
            self.order.push(slot);
            return Some((slot, generation, Ok(None)));
        }
        let held = self.held[self.arrived.wrapping_sub(self.held_len) as usize % CREDITS];
        self.held_len -= 1;
        let bytes = Bytes::Eager {
            buffer: held.buffer,
            len: held.len,
        };
        // SAFETY: the caller's promise.
        let taken = unsafe { self.fill(port, slot, held.tag, bytes) };
        port.give_back(held.buffer);
        Some((slot, generation, taken.map(Some)))
    }

    /// A message has come.
    ///
    /// # Safety
    /// The buffers of requests in flight may be written.
    #[inline]
    pub(crate) unsafe fn arrive(
        &mut self,
        port: &mut Port,
        seq: u16,
        tag: u32,
        bytes: Bytes,
    ) -> Result<Taken, Unfit> {
        if seq != low16(self.arrived) {
            return Err(Unfit::Nonsense(Nonsense("a message out of turn")));
        }
        if let Some(slot) = self.order.get(0) {
            // SAFETY: the caller's promise.
            let taken = unsafe { self.fill(port, slot, tag, bytes)? };
            self.order.pop();
            self.arrived = self.arrived.wrapping_add(1);
            return Ok(taken);
        }
        match bytes {
            Bytes::Eager { buffer, len } if (self.held_len as usize) < CREDITS => {
                self.held[self.arrived as usize % CREDITS] = Held { buffer, len, tag };
                self.held_len += 1;
                self.arrived = self.arrived.wrapping_add(1);
                Ok(Taken::Held)
            }
            _ => Err(Unfit::Nonsense(Nonsense("a message without credit"))),
        }
    }

    /// Ends the receive in `slot` with this message.
    ///
    /// # Safety
    /// Its buffer may be written.
    #[inline]
    unsafe fn fill(&mut self, port: &Port, slot: u8, tag: u32, bytes: Bytes) -> Result<Taken, Unfit> {
        let request = self.requests.at(slot);
        let size = match bytes {
            Bytes::Eager { len, .. } => u64::from(len),
            Bytes::Placed(size) => size,
        };
        if size > request.capacity {
            return Err(Unfit::TooLong(Closing::TooLong {
                size,
                capacity: request.capacity,
            }));
        }
        if let Bytes::Eager { buffer, len } = bytes
            && len != 0
        {
            let to = std::ptr::with_exposed_provenance_mut(usize::try_from(request.addr).unwrap_or(0));
            // SAFETY: not more than its capacity, which the caller vouches for.
            unsafe { port.copy_out(buffer, to, len) };
        }
        request.size = size;
        request.done = true;
        // A message that was placed carries 16 bits of its tag.
        let mask = if matches!(bytes, Bytes::Placed(_)) {
            0xffff
        } else {
            u32::MAX
        };
        Ok(Taken::Done {
            tag: ((request.tag ^ tag) & mask != 0).then_some(request.tag),
        })
    }

    /// Tells the sender of buffers, and of receives that need none, as far as there is room.
    #[inline]
    pub(crate) fn pump(&mut self, port: &mut Port, route: Route) -> Result<(), Stop> {
        let cookie = Id::new(Kind::Comm, route.world, route.hub, route.key);
        loop {
            // Those of messages that have come are not granted any more.
            let behind = self.arrived.wrapping_sub(self.announced);
            let ahead = if behind > u32::MAX / 2 {
                behind.wrapping_neg()
            } else {
                0
            };
            let Some(slot) = self.order.get(ahead) else { break };
            let request = *self.requests.at(slot);
            let seq = self.arrived.wrapping_add(ahead);
            let grant = Message::Grant {
                to: route.remote,
                seq: low16(seq),
                tag: low16(request.tag),
                addr: request.addr,
                key: request.remote_key,
                capacity: request.capacity,
            };
            port.tell(route.to, &grant, cookie)?;
            self.announced = seq.wrapping_add(1);
        }
        let unknown = self.posted.wrapping_sub(self.announced) as usize;
        if unknown >= CREDITS / 2 {
            let credit = Message::Credit {
                to: route.remote,
                posted: self.posted,
            };
            port.tell(route.to, &credit, cookie)?;
            self.announced = self.posted;
        }
        Ok(())
    }

    /// Gives the hub its buffers back.
    pub(crate) fn release(&mut self, port: &mut Port) {
        while self.held_len != 0 {
            let oldest = self.arrived.wrapping_sub(self.held_len) as usize % CREDITS;
            port.give_back(self.held[oldest].buffer);
            self.held_len -= 1;
        }
    }
}
