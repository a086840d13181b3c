//! What the messenger needs below it: reliable, ordered sends into receive slots, and a control lane with remote reads.

use crate::{HEADER_LEN, HeaderWords};

/// A peer, by the index the user of this crate gave it. The same index names a message's sender and a
/// send's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

/// Plain memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

impl Segment {
    /// No bytes.
    pub const EMPTY: Self = Self { addr: 0, len: 0 };

    /// The part from `offset`, at most `len` bytes long; the caller keeps it within the segment.
    pub(crate) fn part(self, offset: u64, len: u64) -> Self {
        Self {
            addr: self.addr + offset,
            len,
        }
    }
}

/// Memory a peer lets us read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address, as the peer names it.
    pub addr: u64,
    /// Key.
    pub key: u64,
}

/// Why an operation was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// No room now; progress makes some.
    Full,
    /// The peer cannot be reached, and will not be by waiting.
    Unreachable,
    /// There is no memory for it, or the device cannot use what it is in, and waiting does not help.
    Resource,
    /// The device or endpoint is gone.
    Dead,
}

/// How an operation failed after it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The link to the peer, or the peer, went away.
    PeerLost,
    /// The peer refused access to its memory.
    Access,
    /// The message was longer than the receive.
    Truncated,
    /// The peer is out of resources.
    Resource,
    /// The operation was cancelled.
    Cancelled,
    /// The endpoint was closed, or is in error.
    Flushed,
    /// A message of the peer does not follow the protocol.
    Protocol,
    /// Anything else.
    Other,
}

/// What has become of a receive slot that was posted and is so no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A message lies in it.
    Message {
        /// The slot.
        slot: u32,
        /// Bytes, the header included.
        len: u32,
        /// Who sent it.
        from: PeerId,
    },
    /// It comes back unused.
    Returned {
        /// The slot.
        slot: u32,
    },
}

/// A message of the control lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// All of it.
    pub bytes: [u8; HEADER_LEN],
    /// Who sent it.
    pub from: PeerId,
}

/// A send or read that has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// As given when it was posted.
    pub cookie: u64,
    /// How it ended.
    pub result: Result<(), Failure>,
}

/// A reliable datagram endpoint: messages of one peer arrive once and in the order they were sent.
///
/// Receive slots are memory of the transport, all of one size; a slot is posted, filled by one message, read
/// with [`Transport::slot`] and posted again.
pub trait Transport {
    /// Memory peers may read; dropped when they may no longer.
    type Exposed;

    /// Number of receive slots.
    fn slots(&self) -> u32;

    /// Bytes of a receive slot.
    fn slot_size(&self) -> u32;

    /// The first `len` bytes of a slot that is not posted.
    fn slot(&self, slot: u32, len: u32) -> &[u8];

    /// Posts a receive slot; takes effect at the next [`Transport::submit`].
    ///
    /// # Errors
    /// As [`PostError`] says.
    fn post_slot(&mut self, slot: u32) -> Result<(), PostError>;

    /// Posts a message: header, then payload. Takes effect at the next [`Transport::submit`].
    ///
    /// # Errors
    /// As [`PostError`] says.
    ///
    /// # Safety
    /// The payload stays readable until it is [`Done`].
    unsafe fn send(
        &mut self,
        to: PeerId,
        header: HeaderWords,
        payload: Segment,
        cookie: u64,
    ) -> Result<(), PostError>;

    /// Posts a read into `into`, or of as many bytes of its beginning as the transport can read at once, which are at
    /// least one; how many. Of [`Lanes`] on the control lane.
    ///
    /// # Errors
    /// As [`PostError`] says.
    ///
    /// # Safety
    /// `into` stays writable until it is [`Done`] and nobody else uses it.
    unsafe fn read(
        &mut self,
        from: PeerId,
        remote: Remote,
        into: Segment,
        cookie: u64,
    ) -> Result<u64, PostError>;

    /// Lets peers read memory.
    ///
    /// # Errors
    /// As [`PostError`] says.
    ///
    /// # Safety
    /// The memory stays readable until the result is dropped.
    unsafe fn expose(&mut self, memory: Segment) -> Result<Self::Exposed, PostError>;

    /// Address and key of exposed memory, for peers.
    fn remote(exposed: &Self::Exposed) -> Remote;

    /// Makes everything posted visible to the device and lets it start.
    fn submit(&mut self);

    /// Lets the device work. False if it had nothing to do, and so there is nothing new to take; what others have it
    /// do at the same time shows at the next look.
    fn drive(&mut self) -> bool;

    /// Whether there are arrivals or finished work to take.
    fn has_events(&mut self) -> bool;

    /// Takes the next arrival the device has told of. A caller that takes some goes on, now or later, until there
    /// is none.
    fn arrival(&mut self) -> Option<Arrival>;

    /// Takes the next finished send the device has told of; else as [`Transport::arrival`].
    fn done(&mut self) -> Option<Done>;
}

/// A transport with a control lane beside it: reads and header-only messages, in order among themselves. It shares
/// nothing with the messages that these could use up: whatever waits for a receive slot, the lane goes on while the peer
/// makes progress. What is posted there starts at once.
pub trait Lanes: Transport {
    /// What peers that are told by [`Lanes::introduce`] need to know to reach the control lane.
    fn lane(&self) -> u64;

    /// Tells whose the lane of this name is, before anything is posted to the peer there. A peer the transport knows
    /// already keeps the one it has.
    fn introduce(&mut self, peer: PeerId, lane: u64);

    /// Posts a control message.
    ///
    /// # Errors
    /// As [`PostError`] says.
    fn send_control(&mut self, to: PeerId, header: HeaderWords, cookie: u64) -> Result<(), PostError>;

    /// Whether there is anything to take from the control lane.
    fn has_control(&mut self) -> bool;

    /// Takes the next control message; its slot is given back.
    fn control(&mut self) -> Option<Control>;

    /// Takes the next finished control message or read.
    fn control_done(&mut self) -> Option<Done>;
}
