//! Communicators: one direction of a connection between two ranks.

use super::fault::{Blame, Fault};
use super::recv::RecvComm;
use super::send::SendComm;
use super::table::Key;

/// How a communicator stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It works, or is being made.
    Open,
    /// The peer has closed its side: what is under way may still finish.
    Closed,
    /// It has failed, and the log has said why.
    Failed(Blame),
}

/// What both kinds have.
#[derive(Debug)]
pub(crate) struct Common {
    /// The context it was made in; 0 before v11.
    pub(crate) context: u64,
    pub(crate) peer: Key,
    /// The peer's number for its side, once we know it.
    pub(crate) remote: Option<u32>,
    pub(crate) state: State,
    /// Regions registered for it.
    pub(crate) regions: u32,
    /// It waits for room in the submission queue.
    pub(crate) waiting: bool,
    /// That tags differ has been said.
    pub(crate) tag_told: bool,
}

impl Common {
    pub(crate) const fn new(context: u64, peer: Key, remote: Option<u32>) -> Self {
        Self {
            context,
            peer,
            remote,
            state: State::Open,
            regions: 0,
            waiting: false,
            tag_told: false,
        }
    }

    /// The error of a communicator that has failed.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Fault> {
        match self.state {
            State::Failed(blame) => Err(Fault::told(blame)),
            State::Open | State::Closed => Ok(()),
        }
    }
}

/// Which side of the connection it is.
#[derive(Debug)]
pub(crate) enum Side {
    /// Messages go out.
    Send(Box<SendComm>),
    /// Messages come in.
    Recv(Box<RecvComm>),
}

/// A communicator.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) common: Common,
    pub(crate) side: Side,
}

// What an idle connection costs its host, queues and buffers being shared: at most 4 KiB.
const _: () = assert!(size_of::<Comm>() + 16 + size_of::<SendComm>() <= 4096);
const _: () = assert!(size_of::<Comm>() + 16 + size_of::<RecvComm>() <= 4096);
