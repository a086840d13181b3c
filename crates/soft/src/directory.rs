//! What is known of the peers, shared by the keeper, which connects, and callers who wait for it.

use std::collections::HashMap;
use std::io;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use usb4_device::DeviceError;
use usb4_wire::NodeId;

use crate::Error;

/// How far a peer has come.
#[derive(Debug)]
enum State {
    /// A call is under way.
    Calling,
    /// The link is up.
    Up {
        /// The peer's process, 0 if unknown.
        pid: u32,
    },
    /// The last call failed; whoever asks next is told.
    Failed(Failure),
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nobody listens there, or it closed without an answer.
    Unreachable,
    /// The listener is another user's.
    Foreign(u32),
    /// The listener is of another version.
    Version,
    /// No room for another peer, here or there.
    Full,
    /// The operating system refused.
    Os(&'static str, io::Error),
    /// The device refused.
    Device(DeviceError),
}

impl Failure {
    pub(crate) fn into_error(self, node: NodeId) -> Error {
        match self {
            Self::Unreachable => Error::Unreachable(node),
            Self::Foreign(uid) => Error::Foreign { node, uid },
            Self::Version => Error::Version(node),
            Self::Full => Error::TooManyPeers(node),
            Self::Os(what, source) => Error::Os { what, source },
            Self::Device(error) => Error::Device(error),
        }
    }
}

/// A peer, as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) node: NodeId,
    pub(crate) up: bool,
    pub(crate) pid: u32,
}

#[derive(Debug, Default)]
struct Inner {
    peers: HashMap<NodeId, State>,
    /// Calls asked for and not yet begun.
    wanted: Vec<NodeId>,
}

/// The peers.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Directory {
    /// Waits until the link to `node` is up, at most until `deadline`; asks for a call first if there is none.
    /// Without a deadline it does not wait: `None` while the call is under way.
    pub(crate) fn connect(
        &self,
        node: NodeId,
        deadline: Option<Instant>,
        wake_keeper: impl FnOnce(),
    ) -> Result<Option<()>, Error> {
        let mut inner = self.inner.lock();
        match inner.peers.get(&node) {
            Some(State::Up { .. }) => return Ok(Some(())),
            Some(State::Failed(_)) => {}
            Some(State::Calling) | None => {
                inner.peers.insert(node, State::Calling);
                if !inner.wanted.contains(&node) {
                    inner.wanted.push(node);
                }
                wake_keeper();
            }
        }
        loop {
            match inner.peers.get(&node) {
                Some(State::Up { .. }) => return Ok(Some(())),
                Some(State::Calling) => {}
                // Gone: the peer came and went while we waited.
                None => return Err(Error::Unreachable(node)),
                Some(State::Failed(_)) => {
                    return Err(match inner.peers.remove(&node) {
                        Some(State::Failed(failure)) => failure.into_error(node),
                        _ => Error::Unreachable(node),
                    });
                }
            }
            let Some(deadline) = deadline else { return Ok(None) };
            let late = self.changed.wait_until(&mut inner, deadline).timed_out();
            if late && matches!(inner.peers.get(&node), Some(State::Calling)) {
                inner.peers.remove(&node);
                return Err(Error::ConnectTimeout(node));
            }
        }
    }

    /// The calls asked for since the last time.
    pub(crate) fn take_wanted(&self) -> Vec<NodeId> {
        std::mem::take(&mut self.inner.lock().wanted)
    }

    /// Whether somebody still wants the call.
    pub(crate) fn is_calling(&self, node: NodeId) -> bool {
        matches!(self.inner.lock().peers.get(&node), Some(State::Calling))
    }

    /// The link to `node` is up.
    pub(crate) fn set_up(&self, node: NodeId, pid: u32) {
        self.inner.lock().peers.insert(node, State::Up { pid });
        self.changed.notify_all();
    }

    /// The call to `node` has failed.
    pub(crate) fn set_failed(&self, node: NodeId, failure: Failure) {
        if let Some(state @ State::Calling) = self.inner.lock().peers.get_mut(&node) {
            *state = State::Failed(failure);
        }
        self.changed.notify_all();
    }

    /// The link to `node` is gone.
    pub(crate) fn forget(&self, node: NodeId) {
        self.inner.lock().peers.remove(&node);
        self.changed.notify_all();
    }

    /// The peers that are up or being called.
    pub(crate) fn known(&self) -> Vec<Known> {
        let known = |(node, state): (&NodeId, &State)| match *state {
            State::Calling => Some(Known {
                node: *node,
                up: false,
                pid: 0,
            }),
            State::Up { pid } => Some(Known {
                node: *node,
                up: true,
                pid,
            }),
            State::Failed(_) => None,
        };
        self.inner.lock().peers.iter().filter_map(known).collect()
    }
}
