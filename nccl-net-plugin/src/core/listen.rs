//! Listeners, and the connections peers ask them for.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use usb4_ffi::Level;
use usb4_ring::{Completion, EpAddr};

use super::comm::{Comm, Common, Side};
use super::fault::{Blame, Fault};
use super::handle::Address;
use super::hub::Inner;
use super::recv::{CREDITS, RecvComm};
use super::table::Key;
use super::wire::{Closing, Message, Refusal, VERSION};

/// Connections that may wait for a listener's user.
const BACKLOG: usize = 1024;

/// A listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) context: u64,
    nonce: u64,
    knocks: VecDeque<Knock>,
}

/// A peer that wants to connect.
#[derive(Clone, Copy, Debug)]
struct Knock {
    hub: EpAddr,
    /// The peer's number for its side.
    from: u32,
}

impl Inner {
    /// Makes a listener.
    pub(crate) fn listen(&mut self, context: u64) -> Result<(Key, Address), Fault> {
        let nonce = RandomState::new().hash_one(context);
        let listener = Listener {
            context,
            nonce,
            knocks: VecDeque::new(),
        };
        let key = self.listeners.insert(listener);
        let key = key.map_err(|_| Fault::new(Blame::System, "too many listeners"))?;
        let address = Address {
            hub: self.port.endpoint().address(),
            listener: key.wire(),
            nonce,
        };
        Ok((key, address))
    }

    /// A peer asks for a connection.
    #[cold]
    pub(crate) fn knock(&mut self, done: &Completion, to: u32, nonce: u64, from: u32, version: u16) {
        let Some(hub) = self.port.endpoint().source(done.source) else {
            return;
        };
        let key = self.listeners.find_wire(to);
        let listener = key.and_then(|key| self.listeners.get_mut(key));
        let refusal = match listener.filter(|listener| listener.nonce == nonce) {
            _ if version != VERSION => Refusal::Version,
            None => Refusal::NoListener,
            Some(listener) if listener.knocks.len() >= BACKLOG => Refusal::Full,
            Some(listener) => return listener.knocks.push_back(Knock { hub, from }),
        };
        if refusal == Refusal::Version {
            self.other_version(hub.node, version);
        }
        self.refuse(&hub, from, refusal);
    }

    fn refuse(&mut self, hub: &EpAddr, to: u32, why: Refusal) {
        // Whoever cannot be told is gone, or will be.
        if let Ok(Some(peer)) = self.peers.open(&mut self.port, hub) {
            self.tell_peer(peer, Message::Refuse { to, why });
        }
    }

    /// Takes the next connection a listener was asked for: our number for it. `None` if there is none yet.
    pub(crate) fn accept(&mut self, listener: Key) -> Result<Option<Key>, Fault> {
        loop {
            let Some(waiting) = self.listeners.get_mut(listener) else {
                return Err(Fault::internal("a listener that has been closed, or never was"));
            };
            let context = waiting.context;
            let Some(knock) = waiting.knocks.front().copied() else {
                return Ok(None);
            };
            let peer = match self.peers.open(&mut self.port, &knock.hub) {
                Ok(Some(peer)) => peer,
                Ok(None) => return Ok(None),
                Err(error) => {
                    // It has gone again; there may be others.
                    self.notes.push((
                        Level::Info,
                        format!(
                            "peer {}: it asked for a connection and left: {error}",
                            knock.hub.node
                        ),
                    ));
                    self.drop_knock(listener);
                    continue;
                }
            };
            self.drop_knock(listener);
            let comm = Comm {
                common: Common::new(context, peer, Some(knock.from)),
                side: Side::Recv(Box::new(RecvComm::new())),
            };
            let Ok(key) = self.comms.insert(comm) else {
                self.refuse(&knock.hub, knock.from, Refusal::Full);
                return Err(Fault::new(Blame::System, "too many connections"));
            };
            self.peers.join(peer);
            let accept = Message::Accept {
                to: knock.from,
                from: key.wire(),
                credits: u16::try_from(CREDITS).unwrap_or(0),
                eager: self.eager,
            };
            self.tell_peer(peer, accept);
            return Ok(Some(key));
        }
    }

    fn drop_knock(&mut self, listener: Key) {
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.knocks.pop_front();
        }
    }

    /// Closes a listener; whoever waits is refused. Whether there was one.
    pub(crate) fn close_listener(&mut self, key: Key) -> bool {
        let Some(listener) = self.listeners.remove(key) else {
            return false;
        };
        for knock in listener.knocks {
            self.refuse(&knock.hub, knock.from, Refusal::NoListener);
        }
        true
    }

    /// Our request to connect was accepted.
    #[cold]
    pub(crate) fn accepted(&mut self, done: &Completion, to: u32, from: u32, credits: u16, eager: u32) {
        let Some(key) = self.comms.find_wire(to) else {
            // We have given up meanwhile.
            let hub = self.port.endpoint().source(done.source);
            let peer = hub.map(|hub| self.peers.open(&mut self.port, &hub));
            if let Some(Ok(Some(peer))) = peer {
                let why = Closing::Closed;
                self.tell_peer(peer, Message::Close { to: from, why });
            }
            return;
        };
        if self.comm_of(done, to) != Some(key) {
            return;
        }
        if let Some(comm) = self.comms.get_mut(key)
            && let Side::Send(send) = &mut comm.side
            && comm.common.remote.is_none()
        {
            comm.common.remote = Some(from);
            send.accepted(credits, eager);
            self.pump(key);
        }
    }
}
