//! The process of a detached device.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use usb4_device::{
    Access, ClientId, CqConfig, CqId, DeviceConfig, DeviceError, EndpointConfig, EndpointId, EndpointKind,
    Object, Quota, RegionConfig,
};
use usb4_engine::Slab;
use usb4_ring_abi::{Cqe, QueueGeometry, Rqe, Sqe};
use usb4_wire::NodeId;

use super::protocol::{self, MESSAGE_LEN, Message, OK, Op, PEER_LEN, PENDING, REPLY_MAX, VERSION};
use crate::clock::now;
use crate::device::{Drivers, SoftDevice};
use crate::home::{Bell, Memory};
use crate::inline::MAX_HANDLES;
use crate::memory::{Mapping, PAGE, Sharing};
use crate::names::Fabric;
use crate::queue::QueueMemory;
use crate::{Error, PeerState, socket};

/// What one client of a detached device may have.
pub(crate) const QUOTA: Quota = Quota {
    endpoints: 64,
    cqs: 64,
    cq_entries: 1 << 18,
    regions: 1024,
    region_bytes: 1 << 36,
    handles: 1 << 16,
};

/// Most clients at a time.
const MAX_CLIENTS: usize = 15;

/// All of them can have all of it.
const _: () = {
    let tables = DeviceConfig::new(NodeId(0));
    assert!(MAX_CLIENTS <= tables.max_clients);
    assert!(MAX_CLIENTS * QUOTA.endpoints as usize <= tables.max_endpoints);
    assert!(MAX_CLIENTS * QUOTA.cqs as usize <= tables.max_cqs);
    assert!(MAX_CLIENTS * QUOTA.regions as usize <= tables.max_regions);
};

/// How long a server waits for its first client.
const FIRST_CLIENT: Duration = Duration::from_secs(10);

const LISTENER: u64 = 0;

/// A detached device that listens for its clients and does not serve them yet: no thread has been started.
#[derive(Debug)]
pub struct Server {
    listener: OwnedFd,
    fabric: Fabric,
}

impl Server {
    /// Listens as the device of `host` on fabric `name`.
    ///
    /// # Errors
    /// A name cannot be used, or the device exists already.
    pub fn bind(name: &str, host: &str) -> Result<Self, Error> {
        let fabric = Fabric::new(name)?;
        let listener =
            socket::listen(&fabric.server_socket(host)?).map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => Error::AlreadyServed {
                    fabric: name.into(),
                    host: host.into(),
                },
                _ => Error::Os {
                    what: "listen for clients",
                    source,
                },
            })?;
        Ok(Self { listener, fabric })
    }

    /// Serves until the last client has gone; or gives up when none comes within ten seconds.
    ///
    /// # Errors
    /// The device cannot be started.
    pub fn run(self) -> Result<(), Error> {
        let device = SoftDevice::start(self.fabric, Drivers::KeeperAlone)?;
        let os = || Error::os("create an epoll instance");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os())?;
        epoll::add(
            &epoll,
            &self.listener,
            epoll::EventData::new_u64(LISTENER),
            epoll::EventFlags::IN,
        )
        .map_err(os())?;
        let mut serving = Serving {
            listener: self.listener,
            device,
            epoll,
            clients: HashMap::new(),
            next: LISTENER + 1,
            pause: None,
        };
        serving.run();
        Ok(())
    }
}

/// A server at work.
struct Serving {
    /// Dropped first: nobody is to reach a device that is ending.
    listener: OwnedFd,
    device: SoftDevice,
    epoll: OwnedFd,
    clients: HashMap<u64, Connection>,
    next: u64,
    /// There were no descriptors left for another client; at this time the listener is looked at again.
    pause: Option<Instant>,
}

/// A client's connection.
struct Connection {
    socket: OwnedFd,
    client: ClientId,
    endpoints: Vec<EndpointId>,
    /// Regions whose deregistration waits for work in flight.
    dying: Vec<u32>,
}

impl Serving {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(16);
        let mut patience = Some(Instant::now() + FIRST_CLIENT);
        loop {
            let timeout = match patience {
                Some(until) => Some(until.saturating_duration_since(Instant::now())),
                None => self
                    .clients
                    .values()
                    .any(|client| !client.dying.is_empty())
                    .then_some(RECLAIM),
            };
            let pause = self
                .pause
                .map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = timeout.into_iter().chain(pause).min();
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            events.clear();
            let _ = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    id => self.serve(id),
                }
            }
            if self.pause.is_some_and(|until| until <= Instant::now()) {
                self.pause = None;
                let _ = listen_for(&self.epoll, &self.listener, epoll::EventFlags::IN);
            }
            if self.device.core.device.home().take_idle_regions() {
                self.reclaim();
            }
            if !self.clients.is_empty() {
                patience = None;
            } else if patience.is_none_or(|until| until <= Instant::now()) {
                return;
            }
        }
    }

    fn accept(&mut self) {
        loop {
            let socket = match socket::accept(self.listener.as_fd()) {
                Ok(socket) => socket,
                Err(error) => {
                    if socket::is_exhausted(&error) {
                        // The listener stays readable: it is left alone for a while.
                        let _ = listen_for(&self.epoll, &self.listener, epoll::EventFlags::empty());
                        self.pause = Some(Instant::now() + Duration::from_nanos(socket::ACCEPT_PAUSE));
                    }
                    return;
                }
            };
            let ours = socket::credentials(socket.as_fd())
                .is_ok_and(|peer| peer.uid == rustix::process::geteuid().as_raw());
            if !ours {
                continue;
            }
            if self.clients.len() >= MAX_CLIENTS {
                let full = Error::Device(DeviceError::Full(Object::Client));
                let reply = Reply {
                    message: protocol::refusal(&full),
                    ..Reply::default()
                };
                let _ = reply.send(socket.as_fd());
                continue;
            }
            let Ok(client) = self.device.core.device.add_client(QUOTA, None) else {
                continue;
            };
            let id = self.next;
            self.next += 1;
            if epoll::add(
                &self.epoll,
                &socket,
                epoll::EventData::new_u64(id),
                epoll::EventFlags::IN,
            )
            .is_ok()
            {
                self.clients.insert(
                    id,
                    Connection {
                        socket,
                        client,
                        endpoints: Vec::new(),
                        dying: Vec::new(),
                    },
                );
            } else {
                let _ = self.device.core.device.remove_client(client, now());
            }
        }
    }

    /// Answers a client's request, or sees its end.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.clients.get_mut(&id) else {
            return;
        };
        let mut bytes = [0; MESSAGE_LEN];
        let request = match socket::receive(connection.socket.as_fd(), &mut bytes) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return;
            }
            Ok(message) if message.len == MESSAGE_LEN => {
                Message::parse(&bytes).map(|request| (request, message.fds))
            }
            _ => None,
        };
        let mut reply = Reply::default();
        let well_formed = match request {
            Some((request, fds)) => match connection.answer(&self.device, &request, fds, &mut reply) {
                Ok(known) => known,
                Err(error) => {
                    reply = Reply {
                        message: protocol::refusal(&error),
                        ..Reply::default()
                    };
                    true
                }
            },
            None => false,
        };
        if !well_formed || reply.send(connection.socket.as_fd()).is_err() {
            self.remove(id);
        }
    }

    /// A client has gone, or speaks nonsense: everything it had goes.
    fn remove(&mut self, id: u64) {
        let Some(connection) = self.clients.remove(&id) else {
            return;
        };
        for endpoint in &connection.endpoints {
            self.device.core.remove_endpoint(*endpoint);
        }
        let _ = self.device.core.device.remove_client(connection.client, now());
        self.device.core.nudge();
    }

    fn reclaim(&mut self) {
        let device = &self.device.core.device;
        for Connection { client, dying, .. } in self.clients.values_mut() {
            dying.retain(|key| device.reclaim(*client, *key, false) == Ok(false));
        }
    }
}

/// What the listener is watched for.
fn listen_for(epoll: &OwnedFd, listener: &OwnedFd, events: epoll::EventFlags) -> rustix::io::Result<()> {
    epoll::modify(epoll, listener, epoll::EventData::new_u64(LISTENER), events)
}

/// How often deregistered regions in use are looked at: the device announces their end, but does not wake this
/// thread for it.
const RECLAIM: Duration = Duration::from_millis(20);

/// A reply being made.
struct Reply {
    message: Message,
    fds: Vec<OwnedFd>,
    tail: Vec<u8>,
}

impl Default for Reply {
    fn default() -> Self {
        Self {
            message: Message::new(OK, &[]),
            fds: Vec::new(),
            tail: Vec::new(),
        }
    }
}

impl Reply {
    fn values(&mut self, values: &[u64]) {
        self.message = Message::new(OK, values);
    }

    fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(REPLY_MAX);
        bytes.extend_from_slice(&self.message.to_bytes());
        bytes.extend_from_slice(&self.tail);
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).collect();
        socket::send(socket, &bytes, &fds)
    }
}

impl Connection {
    /// Does what a request asks. False if it is no request of the protocol.
    fn answer(
        &mut self,
        device: &SoftDevice,
        request: &Message,
        fds: Vec<OwnedFd>,
        reply: &mut Reply,
    ) -> Result<bool, Error> {
        let core = &device.core.device;
        match request.op() {
            None => return Ok(false),
            Some(Op::Hello) => {
                if request.args[0] != VERSION {
                    return Err(Error::ServerVersion);
                }
                let (low, high) = device.node().halves();
                reply.values(&[low, high]);
                reply.fds.push(dup(device.core.bell())?);
            }
            Some(Op::CreateCq) => self.create_cq(device, request, reply)?,
            Some(Op::DestroyCq) => core.destroy_cq(self.client, CqId::from_raw(request.u32(0)))?,
            Some(Op::CreateEndpoint) => self.create_endpoint(device, request, reply)?,
            Some(Op::DestroyEndpoint) => {
                let id = EndpointId::from_raw(request.u32(0));
                core.destroy_endpoint(self.client, id, now())?;
                self.endpoints.retain(|endpoint| *endpoint != id);
                device.core.remove_endpoint(id);
                device.core.nudge();
            }
            Some(Op::Register) => self.register(device, request, &fds, reply)?,
            Some(Op::Deregister) => {
                let key = request.u32(0);
                if !core.deregister(self.client, key)? {
                    self.dying.push(key);
                }
            }
            Some(Op::AddressHandle) => {
                let endpoint = EndpointId::from_raw(request.u32(0));
                let kind = kind_of(request.args[1])?;
                match device.address_handle(self.client, endpoint, kind, &request.address(2), None)? {
                    Some(handle) => reply.values(&[u64::from(handle)]),
                    None => reply.message = Message::new(PENDING, &[]),
                }
            }
            Some(Op::CloseHandle) => {
                let endpoint = EndpointId::from_raw(request.u32(0));
                core.destroy_ah(self.client, endpoint, request.u32(1), now())?;
                device.core.nudge();
            }
            Some(Op::Source) => match core.source(self.client, request.u32(0)) {
                Some(address) => reply.values(&protocol::address_args(&address)),
                None => return Err(Error::Unreachable(NodeId::default())),
            },
            Some(Op::Peers) => {
                let peers = device.peers()?;
                for peer in peers.iter().take(protocol::MAX_PEERS) {
                    let state = match peer.state {
                        PeerState::Seen => 0,
                        PeerState::Connecting => 1,
                        PeerState::Up => 2,
                    };
                    let state = protocol::join(peer.pid.unwrap_or(0), state);
                    reply.tail.extend_from_slice(&peer.node.to_bytes());
                    reply.tail.extend_from_slice(&state.to_le_bytes());
                }
                let count = reply.tail.len() / PEER_LEN;
                reply.values(&[count as u64]);
            }
        }
        Ok(true)
    }

    fn create_cq(&mut self, device: &SoftDevice, request: &Message, reply: &mut Reply) -> Result<(), Error> {
        let depth = request.u32(0);
        let words = QueueGeometry::of::<Cqe>(depth)
            .map_err(DeviceError::from)?
            .words();
        let (memory, fd) = QueueMemory::shared(words).map_err(Error::os("allocate a queue"))?;
        let bell = Arc::new(Bell::default());
        let bell_fd = bell
            .fd()
            .and_then(|fd| fd.try_clone_to_owned())
            .map_err(Error::os("create an eventfd"))?;
        let ops = Slab::boxed(depth as usize);
        let id = device.core.device.create_cq(
            self.client,
            CqConfig {
                depth,
                memory,
                ops,
                waker: bell,
            },
        )?;
        reply.values(&[u64::from(id.raw())]);
        reply.fds.extend([fd, bell_fd]);
        Ok(())
    }

    fn create_endpoint(
        &mut self,
        device: &SoftDevice,
        request: &Message,
        reply: &mut Reply,
    ) -> Result<(), Error> {
        let kind = kind_of(request.args[0])?;
        let [sq_depth, rq_depth] = protocol::split(request.args[1]);
        let [send_cq, recv_cq] = protocol::split(request.args[2]);
        let geometry = (
            QueueGeometry::of::<Sqe>(sq_depth),
            QueueGeometry::of::<Rqe>(rq_depth),
        );
        let os = || Error::os("allocate a queue");
        let (sq, sq_fd) = QueueMemory::shared(geometry.0.map_err(DeviceError::from)?.words()).map_err(os())?;
        let (rq, rq_fd) = QueueMemory::shared(geometry.1.map_err(DeviceError::from)?.words()).map_err(os())?;
        let handles = if kind == EndpointKind::Connected {
            1
        } else {
            MAX_HANDLES
        };
        let (id, address) = device.core.device.create_endpoint(
            self.client,
            EndpointConfig {
                kind,
                send_cq: CqId::from_raw(send_cq),
                recv_cq: CqId::from_raw(recv_cq),
                sq_depth,
                sq,
                rq_depth,
                rq,
                handles: Slab::boxed(handles),
            },
        )?;
        self.endpoints.push(id);
        device.core.add_endpoint(id);
        let [low, high, rest] = protocol::address_args(&address);
        reply.values(&[u64::from(id.raw()), low, high, rest]);
        reply.fds.extend([sq_fd, rq_fd]);
        Ok(())
    }

    fn register(
        &mut self,
        device: &SoftDevice,
        request: &Message,
        fds: &[OwnedFd],
        reply: &mut Reply,
    ) -> Result<(), Error> {
        let [addr, len, access, ..] = request.args;
        let bad = || Error::Device(DeviceError::Range);
        let access = u8::try_from(access)
            .ok()
            .and_then(Access::from_bits)
            .ok_or_else(bad)?;
        let [fd] = fds else { return Err(bad()) };
        let bytes = usize::try_from(len)
            .ok()
            .filter(|len| *len as u64 <= QUOTA.region_bytes)
            .ok_or_else(bad)?;
        let mapped = bytes.max(1).checked_next_multiple_of(PAGE).ok_or_else(bad)?;
        let mapping = Mapping::open_lazily(fd.as_fd(), mapped, Sharing::ReadWrite)
            .map_err(Error::os("map the client's memory"))?;
        if addr % 8 != 0 {
            return Err(bad());
        }
        let mem = Memory::mapped(Arc::new(mapping));
        let keys = device.core.device.register(
            self.client,
            RegionConfig {
                addr,
                len,
                access,
                peer: None,
                mem,
            },
        )?;
        reply.values(&[u64::from(keys.local), keys.remote]);
        Ok(())
    }
}

fn kind_of(word: u64) -> Result<EndpointKind, Error> {
    match word {
        0 => Ok(EndpointKind::Datagram),
        1 => Ok(EndpointKind::Connected),
        _ => Err(Error::Invalid("no such kind of endpoint")),
    }
}

fn dup(fd: impl AsFd) -> Result<OwnedFd, Error> {
    fd.as_fd()
        .try_clone_to_owned()
        .map_err(Error::os("duplicate a descriptor"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::detached::client::Detached;

    #[test]
    fn a_client_that_reaches_a_server_at_its_end_opens_the_next_one() {
        let name = format!("ending-{}", std::process::id());
        let server = Server::bind(&name, "h").unwrap();
        let serving = std::thread::spawn(move || {
            // The first connection gets what one gets that came just before the end.
            while socket::accept(server.listener.as_fd()).is_err() {
                std::thread::yield_now();
            }
            server.run()
        });
        drop(Detached::open(&name, "h").unwrap());
        serving.join().unwrap().unwrap();
    }
}
