//! A hub: one endpoint of the ring and everything that is multiplexed over it.
//!
//! A lock per hub. What is to be logged is collected and told after it has been given back, and no call that may sleep is
//! made under it: the device is driven, and memory registered, without.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use usb4_ffi::{Level, log};
use usb4_ring::{Device, Error, NodeId};

use super::comm::{Comm, Side, State};
use super::fault::{Blame, Fault};
use super::id::{Id, Kind};
use super::listen::Listener;
use super::memory::Region;
use super::peers::Peers;
use super::port::{Port, Refused};
use super::send::{Route, Stop};
use super::table::{Key, Table};
use super::wire::{Closing, Message, VERSION};
use super::world::World;

/// Connections of a hub, of both directions: what `maxComms` says.
pub(crate) const MAX_COMMS: u32 = 65536;

/// Listeners of a hub.
const MAX_LISTENERS: u32 = 65536;

/// Where a hub is: its process's number among its forebears, and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) world: u8,
    pub(crate) hub: u8,
}

impl Place {
    pub(crate) fn id(self, kind: Kind, key: Key) -> Id {
        Id::new(kind, self.world, self.hub, key)
    }
}

/// A hub, open or not.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    inner: Mutex<Option<Box<Inner>>>,
}

impl Hub {
    /// Does something with an open hub; then sends what was posted, and logs what there is to say.
    #[inline]
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> Result<T, Fault> {
        let mut guard = self.inner.lock();
        let Some(inner) = guard.as_mut() else {
            return Err(Fault::internal(
                "called without, or after the end of, what it was made in",
            ));
        };
        let result = f(inner);
        inner.port.submit();
        if inner.notes.is_empty() {
            return Ok(result);
        }
        let notes = std::mem::take(&mut inner.notes);
        drop(guard);
        tell(notes);
        Ok(result)
    }

    /// Does what has to wait for something, if it need not any more: looks at what has arrived, drives the device without
    /// the lock, and looks again.
    #[inline]
    pub(crate) fn attempt<T>(
        &self,
        mut f: impl FnMut(&mut Inner) -> Result<Option<T>, Fault>,
    ) -> Result<Option<T>, Fault> {
        let first = self.with(|inner| -> Result<_, Fault> {
            if let Some(done) = f(inner)? {
                return Ok(Ok(done));
            }
            if inner.poll()
                && let Some(done) = f(inner)?
            {
                return Ok(Ok(done));
            }
            Ok(Err(Arc::clone(&inner.device)))
        })??;
        match first {
            Ok(done) => return Ok(Some(done)),
            Err(device) => device.progress(),
        };
        let (done, look) = self.with(|inner| {
            if inner.poll() {
                return (f(inner), false);
            }
            (Ok(None), inner.wait())
        })?;
        if look {
            World::look_around(self);
        }
        done
    }

    /// Takes what has arrived, unless somebody else is at it.
    pub(crate) fn look_in(&self) {
        let Some(mut guard) = self.inner.try_lock() else {
            return;
        };
        let Some(inner) = guard.as_mut() else { return };
        inner.poll();
        inner.port.submit();
        let notes = std::mem::take(&mut inner.notes);
        drop(guard);
        tell(notes);
    }

    /// Goes on until `f` says that it is enough, or `patience` is over.
    pub(crate) fn drain(&self, patience: Duration, f: impl Fn(&mut Inner) -> bool) -> Result<(), Fault> {
        let start = Instant::now();
        loop {
            let left = self.with(|inner| {
                inner.poll();
                (!f(inner)).then(|| Arc::clone(&inner.device))
            })?;
            match left {
                Some(device) if start.elapsed() < patience => device.progress(),
                _ => return Ok(()),
            };
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.inner.lock().is_some()
    }

    /// Whether it is open and its device is there.
    pub(crate) fn is_usable(&self) -> bool {
        self.inner
            .lock()
            .as_ref()
            .is_some_and(|inner| inner.device.check().is_ok())
    }

    /// Puts an inside in; gives back what has to be dropped without the lock.
    pub(crate) fn put(&self, inner: Box<Inner>) -> Option<Box<Inner>> {
        self.inner.lock().replace(inner)
    }

    pub(crate) fn take(&self) -> Option<Box<Inner>> {
        self.inner.lock().take()
    }
}

#[cold]
fn tell(notes: Vec<(Level, String)>) {
    for (level, note) in notes {
        log(level, format_args!("{note}"));
    }
}

/// The inside of an open hub.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) place: Place,
    /// Its own, so that threads of other hubs do not count on the same cache line.
    pub(crate) device: Arc<Device>,
    pub(crate) port: Port,
    pub(crate) peers: Peers,
    pub(crate) comms: Table<Comm>,
    pub(crate) listeners: Table<Listener>,
    pub(crate) regions: Table<Region>,
    /// Longest eager message we take.
    pub(crate) eager: u32,
    /// Communicators that wait for room in the submission queue.
    pub(crate) waiting: VecDeque<Key>,
    /// Messages without a communicator that do.
    pub(crate) outbox: Vec<(Key, Message)>,
    pub(crate) notes: Vec<(Level, String)>,
    /// Calls that have found nothing to do.
    pub(crate) idle: u32,
    /// The last host whose plugin was found to be of another version.
    pub(crate) strange: Option<NodeId>,
    /// A message that is none of ours has been told of.
    pub(crate) nonsense_told: bool,
}

impl Inner {
    pub(crate) fn new(place: Place, device: &Device, eager: u32, first: u32) -> Result<Self, Error> {
        Ok(Self {
            place,
            device: Arc::new(device.clone()),
            port: Port::new(device, eager)?,
            peers: Peers::new(),
            comms: Table::new(MAX_COMMS, first),
            listeners: Table::new(MAX_LISTENERS, first),
            regions: Table::new(u32::MAX, first),
            eager,
            waiting: VecDeque::new(),
            outbox: Vec::new(),
            notes: Vec::new(),
            idle: 0,
            strange: None,
            nonsense_told: false,
        })
    }

    /// Gives the ring what a communicator has to say.
    #[inline]
    pub(crate) fn pump(&mut self, key: Key) {
        let Some(comm) = self.comms.get_mut(key) else {
            return;
        };
        let common = &mut comm.common;
        let (State::Open, Some(remote)) = (common.state, common.remote) else {
            return;
        };
        let Some(to) = self.peers.handle(common.peer) else {
            return;
        };
        let route = Route {
            to,
            remote,
            key,
            world: self.place.world,
            hub: self.place.hub,
        };
        let pumped = match &mut comm.side {
            Side::Send(send) => send.pump(&mut self.port, route),
            Side::Recv(recv) => recv.pump(&mut self.port, route),
        };
        if let Err(stop) = pumped {
            self.stopped(key, stop);
        }
    }

    #[cold]
    fn stopped(&mut self, key: Key, stop: Stop) {
        match stop {
            Stop::Full => {
                if let Some(comm) = self.comms.get_mut(key)
                    && !std::mem::replace(&mut comm.common.waiting, true)
                {
                    self.waiting.push_back(key);
                }
            }
            Stop::Dead => {
                let why = match self.device.check() {
                    Err(error) => error.to_string(),
                    Ok(()) => "our endpoint is in error".into(),
                };
                self.fail(key, Blame::System, &why);
            }
            Stop::TooLong(closing) => self.too_long(key, closing, true),
        }
    }

    /// A message is longer than its buffer: ends the communicator on both sides.
    #[cold]
    pub(crate) fn too_long(&mut self, key: Key, closing: Closing, tell_peer: bool) {
        if let Closing::TooLong { size, capacity } = closing {
            let why = format!(
                "a message of {size} bytes for a receive of {capacity}: do collective sizes, NCCL versions, NCCL_PROTO and \
                 NCCL_ALGO agree on all ranks?"
            );
            self.fail(key, Blame::Usage, &why);
        }
        if tell_peer {
            self.tell_remote(key, closing);
        }
    }

    /// Tells the other side of a communicator that this one has ended.
    pub(crate) fn tell_remote(&mut self, key: Key, why: Closing) {
        let Some(comm) = self.comms.get_mut(key) else {
            return;
        };
        if let Some(to) = comm.common.remote {
            let peer = comm.common.peer;
            self.tell_peer(peer, Message::Close { to, why });
        }
    }

    /// Sends a message that belongs to no communicator of ours.
    pub(crate) fn tell_peer(&mut self, peer: Key, message: Message) {
        let Some(to) = self.peers.handle(peer) else { return };
        let cookie = self.place.id(Kind::Probe, peer);
        if self.port.tell(to, &message, cookie) == Err(Refused::Full)
            && self.outbox.len() < MAX_COMMS as usize
        {
            self.outbox.push((peer, message));
        }
    }

    /// Goes on with what has been waiting for room in the submission queue.
    #[cold]
    pub(crate) fn go_on(&mut self) {
        for (peer, message) in std::mem::take(&mut self.outbox) {
            self.tell_peer(peer, message);
        }
        // Whoever still has to wait queues up again, behind the others.
        while let Some(key) = self.waiting.pop_front() {
            let Some(comm) = self.comms.get_mut(key) else {
                continue;
            };
            comm.common.waiting = false;
            self.pump(key);
            if self.waiting.back() == Some(&key) {
                break;
            }
        }
    }

    /// Ends a communicator with an error, and says why, once.
    #[cold]
    pub(crate) fn fail(&mut self, key: Key, blame: Blame, why: &str) {
        let Some(comm) = self.comms.get_mut(key) else {
            return;
        };
        let before = comm.common.state;
        // What a side that has closed leaves behind is no surprise.
        let level = match before {
            State::Failed(_) => return,
            State::Closed => Level::Info,
            State::Open => Level::Warn,
        };
        self.fail_with(key, blame, why, level);
    }

    #[cold]
    pub(crate) fn fail_with(&mut self, key: Key, blame: Blame, why: &str, level: Level) {
        let Some(comm) = self.comms.get_mut(key) else {
            return;
        };
        comm.common.state = State::Failed(blame);
        let peer = comm.common.peer;
        let note = self.about(peer, why);
        self.notes.push((level, note));
    }

    /// A host's plugin is of another version. Told of once, however many connections to it are tried.
    #[cold]
    pub(crate) fn other_version(&mut self, node: NodeId, version: u16) {
        if self.strange.replace(node) == Some(node) {
            return;
        }
        let rail = self.port.rail();
        self.notes.push((
            Level::Warn,
            format!(
                "peer {node} rail {rail}: it runs version {version} of the USB4 plugin's protocol and this host version \
                 {VERSION}: install the same plugin on all hosts"
            ),
        ));
    }

    /// "peer ..., rail ...: why".
    pub(crate) fn about(&mut self, peer: Key, why: &str) -> String {
        let rail = self.port.rail();
        match self.peers.get_mut(peer) {
            Some(peer) => format!("peer {} rail {rail}: {why}", peer.address.node),
            None => format!("rail {rail}: {why}"),
        }
    }

    /// A peer is gone: all communicators with it end.
    #[cold]
    pub(crate) fn lose(&mut self, peer: Key, blame: Blame, why: &str) {
        match self.peers.get_mut(peer) {
            Some(peer) if !peer.failed => peer.failed = true,
            _ => return,
        }
        let mut open = 0_u32;
        for (_, comm) in self.comms.iter_mut() {
            if comm.common.peer != peer {
                continue;
            }
            open += u32::from(comm.common.state == State::Open);
            if !matches!(comm.common.state, State::Failed(_)) {
                comm.common.state = State::Failed(blame);
            }
        }
        let note = self.about(peer, why);
        // A peer that has closed everything may go.
        let level = if open == 0 { Level::Info } else { Level::Warn };
        self.notes
            .push((level, format!("{note}; {open} connections end")));
        // Its handle goes with the last of its communicators.
        if let Some(lost) = self.peers.get_mut(peer)
            && lost.users == 0
        {
            self.peers.leave(&mut self.port, peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::Id;
    use super::super::transfer::Piece;
    use super::*;

    const PLACE: Place = Place { world: 0, hub: 0 };

    fn done(inner: &mut Inner, request: Id) -> u64 {
        let start = Instant::now();
        loop {
            inner.poll();
            inner.port.submit();
            if let Some(size) = inner.test(request).unwrap() {
                return size;
            }
            inner.device.progress();
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "hangs: {:?}",
                inner.notes
            );
        }
    }

    #[test]
    fn a_message_longer_than_the_ring_takes_goes_in_pieces() {
        let device = Device::open(&format!("soft:nccl-hub-{}", std::process::id())).unwrap();
        let mut inner = Inner::new(PLACE, &device, 100, 0).unwrap();
        inner.port.max_message = 1000;
        let (listener, address) = inner.listen(0).unwrap();
        let tx = inner.begin_connect(0, &address).unwrap().unwrap();
        let start = Instant::now();
        let rx = loop {
            inner.port.submit();
            device.progress();
            inner.poll();
            if let Some(rx) = inner.accept(listener).unwrap() {
                break rx;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", inner.notes);
        };
        let bytes: Vec<u8> = (0..=255).cycle().take(2999).collect();
        let register = |inner: &mut Inner, comm| {
            let (device, access) = inner.registrar(comm).unwrap();
            let memory = device.alloc(bytes.len(), access).unwrap();
            (memory.clone(), inner.add_region(comm, memory).unwrap())
        };
        let (source, from) = register(&mut inner, tx);
        let (target, to) = register(&mut inner, rx);
        source.write(0, &bytes).unwrap();
        target.as_ptr().expose_provenance();
        for size in [1000, 1001, 2000, 2999] {
            target.write(0, &vec![0; bytes.len()]).unwrap();
            let piece = |memory: &usb4_ring::MemoryRegion, region| Piece {
                addr: memory.addr(),
                size,
                tag: 0,
                region: Some(region),
            };
            // SAFETY: the region's bytes are only ever copied out.
            let recv = unsafe { inner.irecv(rx, &piece(&target, to)) }.unwrap().unwrap();
            let send = inner.isend(tx, &piece(&source, from)).unwrap().unwrap();
            assert_eq!((done(&mut inner, recv), done(&mut inner, send)), (size, size));
            let mut got = vec![0; bytes.len()];
            target.read(0, &mut got).unwrap();
            let size = usize::try_from(size).unwrap();
            assert!(got[..size] == bytes[..size] && got[size..].iter().all(|byte| *byte == 0));
        }
        assert_eq!(inner.notes, []);
        // The receiver takes its buffer back: nothing of it is there, and nobody is told otherwise.
        let piece = |memory: &usb4_ring::MemoryRegion, region| Piece {
            addr: memory.addr(),
            size: 2999,
            tag: 0,
            region: Some(region),
        };
        // SAFETY: as above.
        let recv = unsafe { inner.irecv(rx, &piece(&target, to)) }.unwrap().unwrap();
        drop((inner.remove_region(rx, to), target));
        let send = inner.isend(tx, &piece(&source, from)).unwrap().unwrap();
        let start = Instant::now();
        let lost = loop {
            inner.poll();
            inner.port.submit();
            device.progress();
            match inner.test(send) {
                Ok(None) => assert!(start.elapsed() < Duration::from_secs(30), "hangs"),
                ended => break ended,
            }
        };
        assert!(lost.is_err(), "{lost:?}");
        assert!(!matches!(inner.test(recv), Ok(Some(_))));
    }
}
