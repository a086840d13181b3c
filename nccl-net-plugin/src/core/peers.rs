//! The hubs of other processes, and of our own, that this one talks to.

use std::time::{Duration, Instant};

use usb4_ring::{AddressHandle, EpAddr, Error, Object, SourceId};

use super::id::Id;
use super::port::Port;
use super::table::{Key, Table};
use super::wire::Message;

/// Most peers of a hub: the address handles an endpoint has.
const MAX_PEERS: u32 = 1024;

/// How often a peer that is waited for is asked whether it is there.
pub(crate) const PROBE_EVERY: Duration = Duration::from_millis(100);

/// A peer's hub.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: EpAddr,
    pub(crate) handle: AddressHandle,
    /// Communicators with it.
    pub(crate) users: u32,
    /// A probe is under way.
    pub(crate) probing: bool,
    /// It is gone.
    pub(crate) failed: bool,
    /// The log says that it has closed connections that were in use.
    pub(crate) closing_told: bool,
    /// What the device calls it.
    source: Option<SourceId>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Peers {
    table: Table<Peer>,
    probed: Instant,
}

impl Peers {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(MAX_PEERS, 0),
            probed: Instant::now(),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Peer> {
        self.table.get_mut(key)
    }

    #[inline]
    pub(crate) fn handle(&self, key: Key) -> Option<AddressHandle> {
        self.table
            .get(key)
            .filter(|peer| !peer.failed)
            .map(|peer| peer.handle)
    }

    /// The peer at an address; `None` while the link to its host is coming up.
    pub(crate) fn open(&mut self, port: &mut Port, address: &EpAddr) -> Result<Option<Key>, Error> {
        let known = self
            .table
            .iter_mut()
            .find(|(_, peer)| peer.address == *address && !peer.failed);
        if let Some((key, _)) = known {
            return Ok(Some(key));
        }
        let mut opened = port.endpoint().try_address_handle(address);
        if matches!(opened, Err(Error::Limit(Object::Handle))) && self.close_unused(port) {
            opened = port.endpoint().try_address_handle(address);
        }
        let Some(handle) = opened? else {
            return Ok(None);
        };
        let new = Peer {
            address: *address,
            handle,
            users: 0,
            probing: false,
            failed: false,
            closing_told: false,
            source: None,
        };
        if self.table.is_full() {
            self.close_unused(port);
        }
        match self.table.insert(new) {
            Ok(key) => Ok(Some(key)),
            Err(peer) => {
                port.endpoint().close_handle(peer.handle);
                Err(Error::Limit(Object::Handle))
            }
        }
    }

    /// Closes the handle of some peer without communicators.
    fn close_unused(&mut self, port: &mut Port) -> bool {
        let unused = self.table.iter_mut().find(|(_, peer)| peer.users == 0);
        let Some((key, _)) = unused else { return false };
        self.close(port, key);
        true
    }

    fn close(&mut self, port: &mut Port, key: Key) {
        if let Some(peer) = self.table.remove(key) {
            port.endpoint().close_handle(peer.handle);
        }
    }

    /// One communicator more.
    pub(crate) fn join(&mut self, key: Key) {
        if let Some(peer) = self.table.get_mut(key) {
            peer.users += 1;
        }
    }

    /// One communicator less.
    pub(crate) fn leave(&mut self, port: &mut Port, key: Key) {
        let Some(peer) = self.table.get_mut(key) else {
            return;
        };
        peer.users = peer.users.saturating_sub(1);
        // Others stay, with what is on its way to them; a peer that comes again is another one.
        if peer.failed && peer.users == 0 {
            self.close(port, key);
        }
    }

    /// Whether a message with that source came from this peer.
    #[inline]
    pub(crate) fn sent_by(&mut self, port: &mut Port, key: Key, source: SourceId) -> bool {
        let Some(peer) = self.table.get_mut(key) else {
            return false;
        };
        if peer.source == Some(source) {
            return true;
        }
        let is_it = port.endpoint().source(source) == Some(peer.address);
        if is_it {
            peer.source = Some(source);
        }
        is_it
    }

    /// If it is time for that: asks the peers of our communicators whether they are there.
    pub(crate) fn probe_sometimes(&mut self, port: &mut Port, cookie: impl Fn(Key) -> Id) {
        let now = Instant::now();
        if now.duration_since(self.probed) >= PROBE_EVERY {
            self.probed = now;
            self.probe(port, cookie, |peer| peer.users != 0);
        }
    }

    /// Asks all of them; their answers come behind what was sent to them before.
    pub(crate) fn probe_all(&mut self, port: &mut Port, cookie: impl Fn(Key) -> Id) {
        self.probe(port, cookie, |_| true);
    }

    /// A stopped peer answers when it goes on; one that is gone is noticed by the device.
    fn probe(&mut self, port: &mut Port, cookie: impl Fn(Key) -> Id, wanted: impl Fn(&Peer) -> bool) {
        for (key, peer) in self.table.iter_mut() {
            if !peer.probing && !peer.failed && wanted(peer) {
                peer.probing = port.ask(peer.handle, &Message::Ping, cookie(key)).is_ok();
            }
        }
    }

    /// Those that are not gone.
    pub(crate) fn present(&mut self) -> Vec<Key> {
        self.table.keys(|peer| !peer.failed)
    }

    /// Whether there are probes under way to peers that are there.
    pub(crate) fn are_probing(&mut self) -> bool {
        self.table
            .iter_mut()
            .any(|(_, peer)| peer.probing && !peer.failed)
    }
}
