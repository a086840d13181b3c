//! Message passing over a reliable datagram transport: tag matching, eager and rendezvous sends,
//! multi-receive, cancel, bounded unexpected messages.
//!
//! It is pure logic: no device, no thread, no clock. [`Lanes`] is what it needs below (the libfabric
//! provider implements it over the ring API), [`Messenger`] is what it offers above, one per endpoint.
//!
//! * A message up to [`Config::eager_max`] bytes is one send, a 24-byte header in front; the receiver copies
//!   it from its receive slot to the user's buffer.
//! * A longer one is a request (RTS) that names the sender's memory; the receiver reads it straight into the
//!   user's buffer and answers FIN. Eager messages and requests are sends of one ordered stream, so messages of a
//!   peer are matched in the order they were sent, whatever their lengths.
//! * A message that matches no receive stays in its slot, later in a copy, up to a bound; beyond that slots
//!   are not posted again, so senders wait. Nothing is dropped.
//! * What finishes a rendezvous (reads, FIN, and PROBE, which asks about one) travels apart from that stream, on the
//!   transport's control lane, and so never waits for a receive slot.
//!
//! # Why a matched rendezvous cannot be held up by unexpected messages
//!
//! Messages wait for receive slots, which may all be held until the application receives. Nothing on the control lane
//! does: it has queues, flows and receive slots of its own; a read needs none of its target's slots; and whoever takes a
//! FIN or PROBE gives its slot back at once, before it looks at it, and needs no room for anything: a FIN frees, and a
//! PROBE that cannot be answered is dropped. So control slots are always given back by a peer that makes progress,
//! therefore what is on the lane arrives, therefore its queue has room again, and a FIN or read that found none
//! is posted. No step waits for the application, or for a message.
//!
//! Where to start: [`Messenger::send`], [`Messenger::receive`], [`Messenger::progress`].

mod header;
mod matching;
mod messenger;
mod protocol;
mod recv;
mod rendezvous;
mod send;
mod slab;
mod transport;
mod unexpected;

pub use header::{Class, Envelope, HEADER_LEN, HeaderWords};
pub use matching::Pattern;
pub use messenger::{Completion, Config, EVENTS_MAX, MAX_MESSAGE, MAX_SEGMENTS, Messenger, Sink};
pub use protocol::STAGE_LEN;
pub use recv::{RecvError, RecvRequest};
pub use send::{SendError, SendRequest};
pub use transport::{Arrival, Control, Done, Failure, Lanes, PeerId, PostError, Remote, Segment, Transport};
pub use unexpected::{Found, Peek};
