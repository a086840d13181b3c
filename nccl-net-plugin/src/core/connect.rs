//! Connecting, and closing what was connected.

use usb4_ring::Error;

use super::comm::{Comm, Common, Side, State};
use super::fault::{Blame, Fault};
use super::handle::Address;
use super::hub::Inner;
use super::id::Kind;
use super::memory::Region;
use super::port::Refused;
use super::send::{SendComm, SendRequest, SendState};
use super::table::Key;
use super::wire::{Closing, Message, VERSION};

impl Inner {
    /// Begins to connect to a listener; `None` while that cannot even begin.
    pub(crate) fn begin_connect(&mut self, context: u64, address: &Address) -> Result<Option<Key>, Fault> {
        let rail = self.port.rail().to_owned();
        let node = address.hub.node;
        let opened = self.peers.open(&mut self.port, &address.hub);
        let peer = match opened {
            Ok(Some(peer)) => peer,
            Ok(None) => return Ok(None),
            Err(error @ (Error::Gone | Error::Forked | Error::EndpointError | Error::Limit(_))) => {
                return Err(Fault::new(
                    Blame::System,
                    format_args!("peer {node} rail {rail}: {error}"),
                ));
            }
            Err(error) => {
                return Err(Fault::new(
                    Blame::Peer,
                    format_args!("peer {node} rail {rail}: {error}"),
                ));
            }
        };
        let Some(to) = self.peers.handle(peer) else {
            return Ok(None);
        };
        let comm = Comm {
            common: Common::new(context, peer, None),
            side: Side::Send(Box::new(SendComm::new())),
        };
        let key = self.comms.insert(comm);
        let key = key.map_err(|_| Fault::new(Blame::System, "too many connections"))?;
        let connect = Message::Connect {
            to: address.listener,
            nonce: address.nonce,
            from: key.wire(),
            version: VERSION,
        };
        let cookie = self.place.id(Kind::Comm, key);
        match self.port.ask(to, &connect, cookie) {
            Ok(()) => {
                self.peers.join(peer);
                Ok(Some(key))
            }
            Err(refused) => {
                self.comms.remove(key);
                match refused {
                    Refused::Full => Ok(None),
                    Refused::Dead => Err(Fault::new(
                        Blame::System,
                        format_args!("peer {node} rail {rail}: our endpoint is dead"),
                    )),
                }
            }
        }
    }

    /// Whether the listener's host has our request. From then on messages may be posted; they go when it is accepted.
    pub(crate) fn is_connected(&mut self, key: Key) -> Result<bool, Fault> {
        let Some(comm) = self.comms.get_mut(key) else {
            return Err(Fault::internal(
                "connect() was called with a handle that is not as connect() left it",
            ));
        };
        let Side::Send(send) = &comm.side else {
            return Err(Fault::internal(
                "connect() was called with a handle that is not as connect() left it",
            ));
        };
        let (state, asked) = (comm.common.state, send.asked);
        if let State::Failed(blame) = state {
            let _ = self.close(key);
            return Err(Fault::told(blame));
        }
        Ok(asked)
    }

    /// Whether messages of a communicator are under way, and may yet arrive.
    pub(crate) fn is_sending(&mut self, key: Key, region: Option<u32>) -> bool {
        let Some(comm) = self.comms.get_mut(key) else {
            return false;
        };
        let Side::Send(send) = &comm.side else {
            return false;
        };
        let under_way = |request: &SendRequest| {
            let is_out = matches!(
                request.state,
                SendState::Posted | SendState::Placing | SendState::Placed
            );
            is_out && region.is_none_or(|region| request.region == region)
        };
        !matches!(comm.common.state, State::Failed(_)) && send.requests.iter().any(under_way)
    }

    /// Forgets a communicator and tells the other side. Its regions, to be dropped without the lock; `None` if there is no
    /// such communicator.
    pub(crate) fn close(&mut self, key: Key) -> Option<Vec<Region>> {
        let comm = self.comms.get_mut(key)?;
        let why = match comm.common.state {
            State::Open => Some(Closing::Closed),
            // It knows.
            State::Closed | State::Failed(_) => None,
        };
        if let Some(why) = why {
            self.tell_remote(key, why);
        }
        let mut comm = self.comms.remove(key)?;
        if let Side::Recv(recv) = &mut comm.side {
            recv.release(&mut self.port);
        }
        self.peers.leave(&mut self.port, comm.common.peer);
        let mut regions = Vec::new();
        if comm.common.regions != 0 {
            for region in self.regions.keys(|region| region.comm == key) {
                regions.extend(self.regions.remove(region));
            }
        }
        Some(regions)
    }

    /// Forgets everything of a context. Regions as from [`Inner::close`].
    pub(crate) fn close_context(&mut self, context: u64) -> Vec<Region> {
        for key in self.listeners.keys(|listener| listener.context == context) {
            self.close_listener(key);
        }
        let mut regions = Vec::new();
        for key in self.comms.keys(|comm| comm.common.context == context) {
            regions.extend(self.close(key).unwrap_or_default());
        }
        regions
    }
}
