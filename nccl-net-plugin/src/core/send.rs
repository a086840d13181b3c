//! The sending side: messages leave in the order they were posted, each into the buffer it was granted or, if it is
//! short and there is none yet, eagerly.

use std::num::NonZeroU32;

use usb4_ring::{AddressHandle, Buffer, Remote, WorkRequest};

use super::id::Id;
use super::port::{Port, Refused};
use super::request::{Order, Requests, WINDOW};
use super::table::Key;
use super::wire::{Closing, Message, Placed, low16};

/// A send that has not been tested.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendRequest {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    /// Bytes the ring has been given.
    pub(crate) given: u64,
    pub(crate) local_key: u32,
    pub(crate) region: u32,
    pub(crate) tag: u32,
    pub(crate) state: SendState,
}

/// How far a send is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SendState {
    /// Not all of it is with the ring.
    #[default]
    Queued,
    /// All pieces of a message that is longer than the ring takes at once are with it.
    Placing,
    /// They are where they belong, and the receiver is to be told.
    Placed,
    /// All of it is with the ring.
    Posted,
    /// It is where it belongs.
    Done,
    /// The peer has withdrawn its buffer.
    Lost,
}

/// A buffer of the receiver.
#[derive(Clone, Copy, Debug, Default)]
struct Grant {
    addr: u64,
    key: u64,
    capacity: u64,
}

/// The sending side of a connection.
#[derive(Debug)]
pub(crate) struct SendComm {
    /// The peer's device has our request to connect.
    pub(crate) asked: bool,
    /// Messages all of which the ring has.
    sent: u32,
    /// Receives the peer has posted, as far as it has told us.
    granted: u32,
    /// Eager messages that may be ahead of that.
    credits: u32,
    /// The longest eager message.
    eager: u32,
    grants: [Grant; WINDOW],
    pub(crate) requests: Requests<SendRequest>,
    /// Requests whose messages have not gone out.
    pub(crate) order: Order,
}

/// Why messages wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// For room in the queue.
    Full,
    /// For ever: the endpoint is dead.
    Dead,
    /// The message does not fit its buffer.
    TooLong(Closing),
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full => Self::Full,
            Refused::Dead => Self::Dead,
        }
    }
}

/// A message of the peer that it may not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nonsense(pub(crate) &'static str);

/// Where a communicator's messages go, and under which names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) to: AddressHandle,
    pub(crate) remote: u32,
    pub(crate) key: Key,
    pub(crate) world: u8,
    pub(crate) hub: u8,
}

impl SendComm {
    pub(crate) fn new() -> Self {
        Self {
            asked: false,
            sent: 0,
            granted: 0,
            credits: 0,
            eager: 0,
            grants: [Grant::default(); WINDOW],
            requests: Requests::new(),
            order: Order::default(),
        }
    }

    /// The peer has accepted the connection.
    pub(crate) fn accepted(&mut self, credits: u16, eager: u32) {
        (self.credits, self.eager) = (u32::from(credits), eager);
    }

    /// The peer has a buffer for receive `seq`.
    #[inline]
    pub(crate) fn grant(&mut self, seq: u16, addr: u64, key: u64, capacity: u64) -> Result<(), Nonsense> {
        let skipped = u32::from(seq.wrapping_sub(low16(self.granted)));
        let seq = self.granted.wrapping_add(skipped);
        // Receives that need no grant are those of messages that are out already.
        let ahead = seq.wrapping_sub(self.sent);
        let is_out = ahead > u32::MAX / 2;
        if skipped as usize > WINDOW
            || !(is_out || skipped == 0 || ahead == 0)
            || (!is_out && ahead as usize >= WINDOW)
        {
            return Err(Nonsense("a grant out of turn"));
        }
        self.granted = seq.wrapping_add(1);
        self.grants[seq as usize % WINDOW] = Grant { addr, key, capacity };
        Ok(())
    }

    /// The peer has posted so many receives, for messages that have arrived.
    pub(crate) fn credit(&mut self, posted: u32) -> Result<(), Nonsense> {
        let more = posted.wrapping_sub(self.granted);
        if more > u32::MAX / 2 {
            // A grant was quicker.
            return Ok(());
        }
        if self.sent.wrapping_sub(posted) > u32::MAX / 2 {
            return Err(Nonsense("credit for messages that were not sent"));
        }
        self.granted = posted;
        Ok(())
    }

    /// Gives the ring what may go out.
    #[inline]
    pub(crate) fn pump(&mut self, port: &mut Port, route: Route) -> Result<(), Stop> {
        while let Some(slot) = self.order.get(0) {
            let generation = self.requests.generation(slot);
            let request = self.requests.at(slot);
            let cookie = Id::request(route.world, route.hub, route.key, slot, generation);
            let ahead = self.sent.wrapping_sub(self.granted);
            // As signed numbers: is this one granted?
            let grant = (ahead > u32::MAX / 2).then(|| self.grants[self.sent as usize % WINDOW]);
            match grant {
                Some(grant) if request.size > grant.capacity => {
                    return Err(Stop::TooLong(Closing::TooLong {
                        size: request.size,
                        capacity: grant.capacity,
                    }));
                }
                Some(grant) if request.size != 0 => {
                    if !place(port, route, request, self.sent, grant, cookie)? {
                        break;
                    }
                }
                None if ahead >= self.credits || request.size > u64::from(self.eager) => break,
                _ => {
                    let message = Message::Eager {
                        to: route.remote,
                        seq: self.sent,
                        tag: request.tag,
                    };
                    let (words, imm) = message.encode();
                    let work = WorkRequest::send(route.to, request.bytes(request.size))
                        .prefix_words(words)
                        .imm(imm);
                    port.post(&work.user_data(cookie.raw()))?;
                }
            }
            request.state = SendState::Posted;
            self.order.pop();
            self.sent = self.sent.wrapping_add(1);
        }
        Ok(())
    }
}

/// Posts what of a message goes into the buffer it was granted. Whether that is all, and the receiver told.
#[inline]
fn place(
    port: &mut Port,
    route: Route,
    request: &mut SendRequest,
    seq: u32,
    grant: Grant,
    cookie: Id,
) -> Result<bool, Refused> {
    let most = u64::from(port.max_message);
    if request.size <= most {
        let placed = Placed {
            to: route.remote,
            seq: low16(seq),
            tag: low16(request.tag),
        };
        let remote = Remote {
            addr: grant.addr,
            key: grant.key,
        };
        let work = WorkRequest::write(route.to, request.bytes(request.size), remote).imm(placed.encode());
        port.post(&work.user_data(cookie.raw()))?;
        return Ok(true);
    }
    // More than the ring takes at once: piece by piece and, once all are there, a word that they are. The word may not go
    // with the last piece: it would be sent even if one before it could not.
    match request.state {
        SendState::Queued => {}
        SendState::Placed => {
            let message = Message::Written {
                to: route.remote,
                seq,
                tag: request.tag,
                size: request.size,
            };
            port.ask(route.to, &message, cookie)?;
            return Ok(true);
        }
        _ => return Ok(false),
    }
    while request.given < request.size {
        let len = most.min(request.size - request.given);
        let remote = Remote {
            addr: grant.addr.wrapping_add(request.given),
            key: grant.key,
        };
        let work = WorkRequest::write(route.to, request.bytes(len), remote).user_data(cookie.raw());
        let is_last = request.given + len == request.size;
        port.post(&if is_last { work } else { work.unsignaled() })?;
        request.given += len;
    }
    request.state = SendState::Placing;
    Ok(false)
}

impl SendRequest {
    /// The next `len` bytes.
    #[inline]
    fn bytes(&self, len: u64) -> Buffer {
        match (NonZeroU32::new(self.local_key), u32::try_from(len)) {
            (Some(key), Ok(len)) if len != 0 => Buffer::of_key(self.addr.wrapping_add(self.given), key, len),
            _ => Buffer::EMPTY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender that has sent some messages and knows of some receives.
    fn sender(sent: u32, granted: u32) -> SendComm {
        SendComm {
            sent,
            granted,
            ..SendComm::new()
        }
    }

    #[test]
    fn a_grant_out_of_turn_is_refused() {
        for (sent, granted, good, bad) in [
            // Nothing is out: they come one by one.
            (0, 0, vec![0], vec![1, 2, 31, 32, 0xffff]),
            // Those of messages that are out may be left out.
            (3, 1, vec![1, 2, 3], vec![0, 4, 34, 35]),
            (3, 3, vec![3], vec![2, 4]),
            // Not more than there are requests.
            (0, 31, vec![31], vec![32]),
            (0, 32, vec![], vec![32]),
            // Where the numbers begin again.
            (u32::MAX - 1, u32::MAX - 1, vec![0xfffe], vec![0xffff, 0]),
            (0, u32::MAX, vec![0xffff, 0], vec![1]),
        ] {
            for seq in good {
                let granted_now = sender(sent, granted).grant(seq, 1, 2, 3);
                assert_eq!(granted_now, Ok(()), "{seq} after {granted}, {sent} sent");
            }
            for seq in bad {
                let granted_now = sender(sent, granted).grant(seq, 1, 2, 3);
                assert!(granted_now.is_err(), "{seq} after {granted}, {sent} sent");
            }
        }
    }

    #[test]
    fn a_grant_for_a_message_that_is_out_is_not_used_for_the_next() {
        let mut sender = sender(2, 0);
        sender.grant(0, 100, 1, 1).unwrap();
        sender.grant(1, 101, 1, 1).unwrap();
        assert_eq!((sender.sent, sender.granted), (2, 2), "the next has none");
        sender.grant(2, 102, 1, 1).unwrap();
        assert_eq!(sender.grants[2].addr, 102);
    }

    #[test]
    fn credit_for_messages_that_were_not_sent_is_refused() {
        let mut sender = sender(5, 2);
        assert!(sender.credit(6).is_err());
        assert_eq!(sender.credit(4), Ok(()));
        // It was overtaken by a grant.
        assert_eq!(sender.credit(3), Ok(()));
        assert_eq!(sender.granted, 4);
        assert!(sender.credit(u32::MAX / 2).is_err());
    }
}
