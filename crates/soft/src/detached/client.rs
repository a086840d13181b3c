//! A client of a detached device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use usb4_device::{Access, DeviceError, EndpointKind, Object};
use usb4_ring_abi::{Cqe, QueueGeometry, Rqe, Sqe};
use usb4_wire::{EpAddr, NodeId};

use super::QUOTA;
use super::protocol::{self, MESSAGE_LEN, Message, OK, Op, PEER_LEN, PENDING, REPLY_MAX, VERSION};
use super::spawn;
use crate::client::{CqParts, EndpointParts, RegionParts};
use crate::fork::{Descriptor, Generation};
use crate::home::Bell;
use crate::memory::{Mapping, Sharing};
use crate::names::Fabric;
use crate::queue::QueueMemory;
use crate::{Error, Peer, PeerState, socket};

/// How long a device may take to answer: it is stopped, or dead.
const ANSWER: Duration = Duration::from_secs(10);

/// Why a device that somebody listens for cannot be opened.
const SILENT: &str = "usb4-softd did not answer within ten seconds: is its process stopped?";

/// Pause between two looks at whether a connection has come about.
const CONNECT_PAUSE: Duration = Duration::from_micros(200);

/// Calls of [`Detached::progress`] between two looks at whether the device lives.
const LOOK_EVERY: u32 = 4096;

/// A client of a device in another process.
#[derive(Debug)]
pub(crate) struct Detached {
    /// One request at a time.
    asking: Mutex<()>,
    socket: Descriptor,
    doorbell: Descriptor,
    fabric: Fabric,
    node: NodeId,
    generation: Generation,
    gone: AtomicBool,
    polls: AtomicU32,
}

impl Detached {
    pub(crate) fn open(name: &str, host: &str) -> Result<Self, Error> {
        let fabric = Fabric::new(name)?;
        let os = || Error::os("open the detached device");
        let generation = Generation::new().map_err(os())?;
        let deadline = Instant::now() + spawn::START;
        let (socket, (reply, fds, _)) = loop {
            let socket = spawn::connect(&fabric, host, deadline)?;
            let hello = Message::new(Op::Hello as u64, &[VERSION]);
            match exchange(socket.as_fd(), &hello, &[], deadline) {
                // The server was about to end with its last client: the next one is reached, or started.
                Err(Error::Gone) if Instant::now() < deadline => std::thread::sleep(spawn::PAUSE),
                Err(Error::Gone) => return Err(os()(io::Error::new(io::ErrorKind::TimedOut, SILENT))),
                answer => break (socket, answer?),
            }
        };
        if reply.code != OK {
            return Err(protocol::error_of(
                &reply,
                "open the detached device",
                NodeId::default(),
            ));
        }
        let [doorbell] = exactly(fds)?;
        Ok(Self {
            asking: Mutex::new(()),
            socket: Descriptor::new(socket).map_err(os())?,
            doorbell: Descriptor::new(doorbell).map_err(os())?,
            fabric,
            node: NodeId::from_halves(reply.args[0], reply.args[1]),
            generation,
            gone: AtomicBool::new(false),
            polls: AtomicU32::new(0),
        })
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn fabric(&self) -> &str {
        self.fabric.name()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_quick()?;
        self.look();
        self.check_quick()
    }

    #[inline]
    pub(crate) fn check_quick(&self) -> Result<(), Error> {
        if !self.generation.is_current() {
            return Err(Error::Forked);
        }
        if self.gone.load(Ordering::Relaxed) {
            Err(Error::Gone)
        } else {
            Ok(())
        }
    }

    /// Looks whether the device's end of the socket is still there.
    fn look(&self) {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        if matches!(rustix::event::poll(&mut fds, Some(&none)), Ok(n) if n > 0)
            && fds[0].revents().intersects(ended)
        {
            self.gone.store(true, Ordering::Relaxed);
        }
    }

    /// Asks the device; an error reply becomes an error.
    fn ask(
        &self,
        op: Op,
        args: &[u64],
        fds: &[BorrowedFd<'_>],
        what: &'static str,
    ) -> Result<(Message, Vec<OwnedFd>, Vec<u8>), Error> {
        self.check_quick()?;
        let _one = self.asking.lock();
        let answer = exchange(
            self.socket.as_fd(),
            &Message::new(op as u64, args),
            fds,
            Instant::now() + ANSWER,
        );
        match answer {
            Ok((reply, fds, tail)) if reply.code == OK || reply.code == PENDING => Ok((reply, fds, tail)),
            Ok((reply, ..)) => Err(protocol::error_of(&reply, what, NodeId::default())),
            Err(error) => {
                // The conversation is out of step or over.
                self.gone.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Tells the device something whose refusal would have no consequence.
    fn tell(&self, op: Op, args: &[u64]) {
        let _ = self.ask(op, args, &[], "tell the device");
    }

    pub(crate) fn create_cq(&self, depth: u32) -> Result<CqParts, Error> {
        let words = QueueGeometry::of::<Cqe>(depth)
            .map_err(usb4_device::DeviceError::from)?
            .words();
        let (reply, fds, _) = self.ask(
            Op::CreateCq,
            &[u64::from(depth)],
            &[],
            "create a completion queue",
        )?;
        let [memory, bell] = exactly(fds)?;
        let os = || Error::os("map a completion queue");
        let memory = QueueMemory::open(memory.as_fd(), words).map_err(os())?;
        Ok(CqParts {
            id: reply.u32(0),
            depth,
            memory,
            bell: Arc::new(self.bell(bell).map_err(os())?),
        })
    }

    /// A descriptor that is readable when the completion queue's bell has rung, and when the device has gone.
    fn bell(&self, bell: OwnedFd) -> io::Result<Bell> {
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&both, &bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        epoll::add(
            &both,
            &self.socket,
            epoll::EventData::new_u64(1),
            epoll::EventFlags::RDHUP,
        )?;
        Bell::combined(bell, both)
    }

    pub(crate) fn destroy_cq(&self, cq: u32) {
        self.tell(Op::DestroyCq, &[u64::from(cq)]);
    }

    pub(crate) fn create_endpoint(
        &self,
        kind: EndpointKind,
        depths: (u32, u32),
        cqs: (u32, u32),
    ) -> Result<EndpointParts, Error> {
        let (sq_depth, rq_depth) = depths;
        let words = (
            QueueGeometry::of::<Sqe>(sq_depth)
                .map_err(usb4_device::DeviceError::from)?
                .words(),
            QueueGeometry::of::<Rqe>(rq_depth)
                .map_err(usb4_device::DeviceError::from)?
                .words(),
        );
        let args = [
            kind_arg(kind),
            protocol::join(sq_depth, rq_depth),
            protocol::join(cqs.0, cqs.1),
        ];
        let (reply, fds, _) = self.ask(Op::CreateEndpoint, &args, &[], "create an endpoint")?;
        let [sq, rq] = exactly(fds)?;
        let os = || Error::os("map an endpoint's queues");
        Ok(EndpointParts {
            id: reply.u32(0),
            address: reply.address(1),
            sq_depth,
            sq: QueueMemory::open(sq.as_fd(), words.0).map_err(os())?,
            rq_depth,
            rq: QueueMemory::open(rq.as_fd(), words.1).map_err(os())?,
        })
    }

    pub(crate) fn destroy_endpoint(&self, endpoint: u32) {
        self.tell(Op::DestroyEndpoint, &[u64::from(endpoint)]);
    }

    pub(crate) fn address_handle(
        &self,
        endpoint: u32,
        kind: EndpointKind,
        peer: &EpAddr,
        wait: Option<Duration>,
    ) -> Result<Option<u32>, Error> {
        let deadline = wait.map(|wait| Instant::now() + wait);
        let [low, high, rest] = protocol::address_args(peer);
        let args = [u64::from(endpoint), kind_arg(kind), low, high, rest];
        loop {
            self.check_quick()?;
            let answer = {
                let _one = self.asking.lock();
                exchange(
                    self.socket.as_fd(),
                    &Message::new(Op::AddressHandle as u64, &args),
                    &[],
                    Instant::now() + ANSWER,
                )
            };
            let (reply, ..) = answer.inspect_err(|_| self.gone.store(true, Ordering::Relaxed))?;
            match (reply.code, deadline) {
                (OK, _) => return Ok(Some(reply.u32(0))),
                (PENDING, None) => return Ok(None),
                (PENDING, Some(deadline)) if Instant::now() < deadline => std::thread::sleep(CONNECT_PAUSE),
                (PENDING, Some(_)) => return Err(Error::ConnectTimeout(peer.node)),
                _ => return Err(protocol::error_of(&reply, "connect to the peer", peer.node)),
            }
        }
    }

    pub(crate) fn close_handle(&self, endpoint: u32, handle: u32) {
        self.tell(Op::CloseHandle, &[u64::from(endpoint), u64::from(handle)]);
    }

    pub(crate) fn source(&self, source: u32) -> Option<EpAddr> {
        let (reply, ..) = self
            .ask(Op::Source, &[u64::from(source)], &[], "look up a source")
            .ok()?;
        Some(reply.address(0))
    }

    pub(crate) fn peers(&self) -> Result<Vec<Peer>, Error> {
        let (_, _, tail) = self.ask(Op::Peers, &[], &[], "list the peers")?;
        let peer = |bytes: &[u8]| {
            let (node, rest) = bytes.split_first_chunk::<16>()?;
            let [pid, state] = protocol::split(u64::from_le_bytes(*rest.first_chunk()?));
            let state = match state {
                0 => PeerState::Seen,
                1 => PeerState::Connecting,
                _ => PeerState::Up,
            };
            Some(Peer {
                node: NodeId::from_bytes(*node),
                state,
                pid: Some(pid).filter(|pid| *pid != 0),
            })
        };
        Ok(tail.chunks_exact(PEER_LEN).filter_map(peer).collect())
    }

    pub(crate) fn alloc(&self, len: usize, access: Access) -> Result<RegionParts, Error> {
        self.check_quick()?;
        // All of it is populated: what the device would refuse anyway must not take the machine's memory first.
        if len as u64 > QUOTA.region_bytes {
            return Err(Error::Device(DeviceError::Quota(Object::RegionByte)));
        }
        let (mapping, fd) =
            Mapping::create("usb4-memory", len, Sharing::ReadWrite).map_err(Error::os("allocate memory"))?;
        let start = mapping.as_ptr();
        let args = [start as u64, len as u64, u64::from(access.bits())];
        let (reply, ..) = self.ask(Op::Register, &args, &[fd.as_fd()], "register memory")?;
        let memory = Some(Arc::new(mapping));
        Ok(RegionParts {
            start,
            len,
            local_key: reply.u32(0),
            remote_key: reply.args[1],
            memory,
        })
    }

    pub(crate) fn deregister(&self, region: &RegionParts) {
        self.tell(Op::Deregister, &[u64::from(region.local_key)]);
    }

    #[inline]
    pub(crate) fn submit(&self, asleep: impl FnOnce() -> bool) -> Result<(), Error> {
        self.check_quick()?;
        if asleep() {
            socket::ring(&self.doorbell);
        }
        Ok(())
    }

    /// The device drives itself; only its end has to be noticed.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        if self.polls.fetch_add(1, Ordering::Relaxed) % LOOK_EVERY == LOOK_EVERY - 1 {
            // In a child the descriptor is closed, or another's.
            if self.generation.is_current() {
                self.look();
            }
            // On a machine with few processors the device may be waiting for this one.
            std::thread::yield_now();
        }
        false
    }

    pub(crate) fn wait_fd<'a>(&self, bell: &'a Bell) -> Result<BorrowedFd<'a>, Error> {
        self.check_quick()?;
        bell.fd().map_err(Error::os("create an eventfd"))
    }
}

/// One request, one reply, by `deadline`.
fn exchange(
    socket: BorrowedFd<'_>,
    request: &Message,
    fds: &[BorrowedFd<'_>],
    deadline: Instant,
) -> Result<(Message, Vec<OwnedFd>, Vec<u8>), Error> {
    match socket::send(socket, &request.to_bytes(), fds).map_err(ended) {
        // A server that has hung up may have said why.
        Ok(()) | Err(Error::Gone) => {}
        Err(error) => return Err(error),
    }
    let mut reset = false;
    let mut bytes = [0; REPLY_MAX];
    loop {
        match socket::receive(socket, &mut bytes) {
            Ok(message) if message.len >= MESSAGE_LEN => {
                let (reply, tail) = bytes[..message.len].split_at(MESSAGE_LEN);
                let reply = Message::parse(reply).ok_or(Error::Gone)?;
                return Ok((reply, message.fds, tail.to_vec()));
            }
            Ok(_) => return Err(Error::Gone),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Reported once, before what the server sent ahead of its end.
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionReset && !std::mem::replace(&mut reset, true) => {
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::Gone);
                }
                let left = Timespec::try_from(left).ok();
                let _ = rustix::event::poll(
                    &mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)],
                    left.as_ref(),
                );
            }
            Err(error) => return Err(ended(error)),
        }
    }
}

fn ended(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Error::Gone,
        _ => Error::Os {
            what: "talk to the detached device",
            source: error,
        },
    }
}

/// The descriptors a reply must have.
fn exactly<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], Error> {
    fds.try_into().map_err(|_| Error::Gone)
}

fn kind_arg(kind: EndpointKind) -> u64 {
    match kind {
        EndpointKind::Datagram => 0,
        EndpointKind::Connected => 1,
    }
}
