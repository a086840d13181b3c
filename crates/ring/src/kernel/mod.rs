//! A client of the kernel module's device: `/dev/usb4ring`, one descriptor, ioctls of `usb4_ring_abi::uapi`.
//!
//! Queues are the kernel's memory, mapped; registered memory is the process's, pinned. A message costs one system
//! call, which submits it and drives the links; a poll costs one, or none while others drive them all.

mod errors;
#[cfg(test)]
mod fake;
mod line;
mod open;
#[cfg(test)]
mod tests;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use usb4_ring_abi::{Cqe, MAX_MESSAGE, QueueGeometry, Rqe, Sqe, uapi};
use usb4_soft::{
    Access, Bell, CqParts, DeviceError, EndpointKind, EndpointParts, Generation, Limits, Mapping,
    QueueMemory, RegionParts, Sharing,
};
use usb4_wire::{EpAddr, NodeId};

use crate::{Error, PeerInfo, PeerState, Result};
use errors::{Request, refusal};
use line::Line;

/// Polls in a row that do nothing before the caller begins to give its time slice away, and how many to the next time:
/// whoever has something for it may be waiting for this processor.
const PATIENCE: u32 = 64;
const PAUSE_EVERY: u32 = 32;

/// Peers the list has room for at first; asked again with more if that is too few.
const PEERS: u32 = 16;

/// A client of the device.
#[derive(Debug)]
pub(crate) struct Client {
    line: Line,
    info: uapi::Info,
    /// A word that is 0 while polling is of no use, if the device has that.
    notice: Option<QueueMemory>,
    generation: Generation,
    gone: AtomicBool,
    /// Polls in a row that did nothing.
    idle: AtomicU32,
    cqs: AtomicU32,
    regions: AtomicU32,
}

impl Client {
    /// Opens the device at `path`.
    pub(crate) fn open(path: &str) -> Result<Self> {
        let (line, info) = open::open(path)?;
        Self::new(path, line, info)
    }

    fn new(path: &str, line: Line, info: uapi::Info) -> Result<Self> {
        let failed = |source| Error::OpenDevice {
            path: path.into(),
            source,
        };
        let words = info.notice_bytes as usize / 8;
        let notice = (words > uapi::NOTICE_UNDRIVEN_WORD)
            .then(|| line.map(info.notice_offset, words, Sharing::ReadOnly))
            .transpose()
            .map_err(failed)?;
        Ok(Self {
            notice,
            generation: Generation::new().map_err(failed)?,
            line,
            info,
            gone: AtomicBool::new(false),
            idle: AtomicU32::new(0),
            cqs: AtomicU32::new(0),
            regions: AtomicU32::new(0),
        })
    }

    pub(crate) fn node(&self) -> NodeId {
        NodeId::from_halves(self.info.node_low, self.info.node_high)
    }

    pub(crate) fn process_memory(&self) -> bool {
        self.info.caps & uapi::CAP_PROCESS_MEMORY != 0
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            endpoints: self.info.max_eps,
            cqs: self.info.max_cqs,
            regions: self.info.max_mrs,
        }
    }

    /// Longest message, and most entries of a queue.
    pub(crate) fn sizes(&self) -> (u32, u32) {
        (self.info.max_message.min(MAX_MESSAGE), self.info.max_depth)
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if !self.generation.is_current() {
            return Err(Error::Forked);
        }
        if self.gone.load(Ordering::Relaxed) {
            return Err(Error::Gone);
        }
        Ok(())
    }

    /// Makes a request; a refusal becomes an error.
    fn ask<T: uapi::Argument>(&self, number: u32, argument: &mut T, request: Request) -> Result<()> {
        self.check()?;
        match self.line.call(number, argument) {
            Ok(_) => Ok(()),
            Err(errno) => Err(self.refused(request, errno)),
        }
    }

    #[cold]
    fn refused(&self, request: Request, errno: Errno) -> Error {
        if errno == Errno::NODEV {
            self.gone.store(true, Ordering::Relaxed);
        }
        refusal(request, errno)
    }

    /// Tells the device that an object is not needed any more. A refusal has no consequence: what the process has goes
    /// with the descriptor.
    fn tell<T: uapi::Argument>(&self, number: u32, argument: &mut T) {
        // In a child the descriptor is closed, and its number may be another's.
        if self.check().is_ok() {
            let _ = self.line.call(number, argument);
        }
    }

    pub(crate) fn peers(&self) -> Result<Vec<PeerInfo>> {
        let mut room = PEERS;
        loop {
            let mut peers = vec![uapi::Peer::default(); room as usize];
            let mut list = uapi::Peers {
                count: room,
                stride: PEER_BYTES,
                peers: peers.as_mut_ptr().addr() as u64,
                ..uapi::Peers::new()
            };
            self.ask(uapi::IOC_PEERS, &mut list, Request::Peers)?;
            if list.count <= room {
                peers.truncate(list.count as usize);
                return Ok(peers.iter().map(peer_info).collect());
            }
            room = list.count;
        }
    }

    pub(crate) fn create_cq(&self, depth: u32) -> Result<CqParts> {
        let words = QueueGeometry::of::<Cqe>(depth)
            .map_err(DeviceError::from)?
            .words();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wakeup = eventfd(0, flags).map_err(os("create an eventfd"))?;
        let mut cq = uapi::CreateCq {
            depth,
            event_fd: wakeup.as_raw_fd(),
            ..uapi::CreateCq::new()
        };
        let full = self.cqs.load(Ordering::Relaxed) >= self.info.max_cqs;
        self.ask(uapi::IOC_CREATE_CQ, &mut cq, Request::Cq { full })?;
        let made = self
            .map("map a completion queue", (cq.offset, cq.bytes), words)
            .and_then(|memory| Ok((memory, Bell::new(wakeup).map_err(os("watch for forks"))?)));
        match made {
            Ok((memory, bell)) => {
                self.cqs.fetch_add(1, Ordering::Relaxed);
                Ok(CqParts {
                    id: cq.cq,
                    depth,
                    memory,
                    bell: Arc::new(bell),
                })
            }
            Err(error) => {
                self.destroy(uapi::IOC_DESTROY_CQ, cq.cq);
                Err(error)
            }
        }
    }

    pub(crate) fn destroy_cq(&self, cq: &CqParts) {
        self.destroy(uapi::IOC_DESTROY_CQ, cq.id);
        self.cqs.fetch_sub(1, Ordering::Relaxed);
    }

    fn destroy(&self, number: u32, id: u32) {
        self.tell(
            number,
            &mut uapi::Destroy {
                id,
                ..uapi::Destroy::new()
            },
        );
    }

    /// A queue of `words` words in `place`, an offset and how many bytes there are.
    fn map(&self, what: &'static str, place: (u64, u64), words: usize) -> Result<QueueMemory> {
        let (offset, bytes) = place;
        // A module that gives less than its own rules say: to touch what is not there would end the process.
        if bytes < words as u64 * 8 {
            return Err(Error::Unsupported("the kernel module's queues are too small"));
        }
        self.line.map(offset, words, Sharing::ReadWrite).map_err(os(what))
    }

    pub(crate) fn create_endpoint(
        &self,
        kind: EndpointKind,
        depths: (u32, u32),
        cqs: (u32, u32),
    ) -> Result<EndpointParts> {
        let (sq_depth, rq_depth) = depths;
        let sq_words = QueueGeometry::of::<Sqe>(sq_depth)
            .map_err(DeviceError::from)?
            .words();
        let rq_words = QueueGeometry::of::<Rqe>(rq_depth)
            .map_err(DeviceError::from)?
            .words();
        let mut ep = uapi::CreateEp {
            kind: match kind {
                EndpointKind::Datagram => uapi::EP_DATAGRAM,
                EndpointKind::Connected => uapi::EP_CONNECTED,
            },
            send_cq: cqs.0,
            recv_cq: cqs.1,
            sq_depth,
            rq_depth,
            ..uapi::CreateEp::new()
        };
        self.ask(uapi::IOC_CREATE_EP, &mut ep, Request::Endpoint)?;
        let map = |place, words| self.map("map an endpoint's queues", place, words);
        let queues = map((ep.sq_offset, ep.sq_bytes), sq_words)
            .and_then(|sq| Ok((sq, map((ep.rq_offset, ep.rq_bytes), rq_words)?)));
        match queues {
            Ok((sq, rq)) => Ok(EndpointParts {
                id: ep.ep,
                address: address(&ep.addr),
                sq_depth,
                sq,
                rq_depth,
                rq,
            }),
            Err(error) => {
                self.destroy_endpoint(ep.ep);
                Err(error)
            }
        }
    }

    pub(crate) fn destroy_endpoint(&self, endpoint: u32) {
        self.destroy(uapi::IOC_DESTROY_EP, endpoint);
    }

    pub(crate) fn address_handle(
        &self,
        endpoint: u32,
        peer: &EpAddr,
        wait: Option<Duration>,
    ) -> Result<Option<u32>> {
        let deadline = wait.map(|wait| Instant::now() + wait);
        let (node_low, node_high) = peer.node.halves();
        loop {
            self.check()?;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let mut ah = uapi::CreateAh {
                ep: endpoint,
                addr: uapi::Addr {
                    node_low,
                    node_high,
                    ep: peer.ep,
                    incarnation: peer.incarnation,
                },
                timeout_ns: left.map_or(0, nanos),
                ..uapi::CreateAh::new()
            };
            match self.line.call(uapi::IOC_CREATE_AH, &mut ah) {
                Ok(_) => return Ok(Some(ah.ah)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if wait.is_none() => return Ok(None),
                // The time was over before the device was asked.
                Err(Errno::AGAIN) => return Err(Error::ConnectTimeout(peer.node)),
                Err(errno) => return Err(self.refused(Request::Handle(peer.node), errno)),
            }
        }
    }

    pub(crate) fn close_handle(&self, endpoint: u32, handle: u32) {
        self.tell(
            uapi::IOC_DESTROY_AH,
            &mut uapi::DestroyAh {
                ep: endpoint,
                ah: handle,
                ..uapi::DestroyAh::new()
            },
        );
    }

    pub(crate) fn source(&self, source: u32) -> Option<EpAddr> {
        let mut who = uapi::Source {
            src: source,
            ..uapi::Source::new()
        };
        self.check().ok()?;
        self.line.call(uapi::IOC_SOURCE, &mut who).ok()?;
        Some(address(&who.addr))
    }

    pub(crate) fn alloc(&self, len: usize, access: Access) -> Result<RegionParts> {
        self.check()?;
        let mapping = Arc::new(Mapping::anonymous(len).map_err(os("allocate memory"))?);
        let keys = self.pin(mapping.as_ptr(), len, access)?;
        Ok(RegionParts {
            start: mapping.as_ptr(),
            len,
            local_key: keys.local_key,
            remote_key: keys.remote_key,
            memory: Some(mapping),
        })
    }

    /// # Safety
    /// Until [`Client::deregister`] returns, the memory stays mapped and may be read and written at any time.
    pub(crate) unsafe fn register(&self, start: *mut u8, len: usize, access: Access) -> Result<RegionParts> {
        if access.contains(Access::REMOTE_ATOMIC) && start.addr() % 8 != 0 {
            return Err(Error::Invalid("memory for atomics must start at a multiple of 8"));
        }
        let keys = self.pin(start, len, access)?;
        Ok(RegionParts {
            start,
            len,
            local_key: keys.local_key,
            remote_key: keys.remote_key,
            memory: None,
        })
    }

    fn pin(&self, start: *mut u8, len: usize, access: Access) -> Result<uapi::RegMr> {
        // No bytes cannot be pinned; that one more may be touched hurts nobody: memory comes in pages.
        let bytes = (len as u64).max(1);
        let mut region = uapi::RegMr {
            addr: start.addr() as u64,
            len: bytes,
            access: access.bits().into(),
            ..uapi::RegMr::new()
        };
        let full = self.regions.load(Ordering::Relaxed) >= self.info.max_mrs;
        self.ask(uapi::IOC_REG_MR, &mut region, Request::Region { bytes, full })?;
        self.regions.fetch_add(1, Ordering::Relaxed);
        Ok(region)
    }

    /// Deregisters. Work in flight may still use the pages of memory that was ours, pinned as they are; memory of the
    /// caller's is not touched after this returns.
    pub(crate) fn deregister(&self, region: &RegionParts) {
        let lingers = region.memory.is_some();
        self.tell(
            uapi::IOC_DEREG_MR,
            &mut uapi::DeregMr {
                flags: if lingers { uapi::DEREG_MR_LINGER } else { 0 },
                local_key: region.local_key,
                ..uapi::DeregMr::new()
            },
        );
        self.regions.fetch_sub(1, Ordering::Relaxed);
    }

    /// The client has published entries on this endpoint's queues. `asleep` tells whether one of them says that the
    /// device does not look at it by itself.
    #[inline]
    pub(crate) fn submit(&self, endpoint: u32, asleep: impl FnOnce() -> bool) -> Result<()> {
        self.check()?;
        if asleep() {
            self.enter(uapi::Enter {
                flags: uapi::ENTER_SUBMIT | uapi::ENTER_PROGRESS,
                ep: endpoint,
                ..uapi::Enter::new()
            })?;
        }
        Ok(())
    }

    #[inline]
    fn enter(&self, mut what: uapi::Enter) -> Result<i32> {
        self.line
            .call(uapi::IOC_ENTER, &mut what)
            .map_err(|errno| self.refused(Request::Enter, errno))
    }

    /// Drives the device once, unless others drive all of it.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        if self.check().is_err() {
            return false;
        }
        let done = self.is_undriven()
            && self
                .enter(uapi::Enter {
                    flags: uapi::ENTER_PROGRESS,
                    ..uapi::Enter::new()
                })
                .is_ok_and(|done| done & uapi::ENTERED_PROGRESS != 0);
        if done {
            self.idle.store(0, Ordering::Relaxed);
        } else {
            self.be_patient();
        }
        done
    }

    /// Whether a link may be there that nobody drives.
    #[inline]
    fn is_undriven(&self) -> bool {
        let word = self
            .notice
            .as_ref()
            .and_then(|notice| notice.get(uapi::NOTICE_UNDRIVEN_WORD));
        word.is_none_or(|undriven| undriven.load(Ordering::Relaxed) != 0)
    }

    #[inline]
    fn be_patient(&self) {
        // Not a read-modify-write: a count lost to another thread does no harm.
        let idle = self.idle.load(Ordering::Relaxed).wrapping_add(1);
        if idle < PATIENCE {
            self.idle.store(idle, Ordering::Relaxed);
        } else {
            self.idle
                .store(PATIENCE.saturating_sub(PAUSE_EVERY), Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Drives the device once, then sleeps until the completion queue, which the caller has armed, is not empty, or
    /// `left` is over, or a signal comes.
    pub(crate) fn sleep(&self, cq: &CqParts, left: Option<Duration>) -> Result<()> {
        self.check()?;
        let mut what = uapi::Enter {
            flags: uapi::ENTER_PROGRESS | uapi::ENTER_WAIT,
            cq: cq.id,
            timeout_ns: left.map_or(uapi::FOREVER, nanos),
            ..uapi::Enter::new()
        };
        match self.line.call(uapi::IOC_ENTER, &mut what) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(self.refused(Request::Enter, errno)),
        }
    }

    pub(crate) fn wait_fd<'a>(&self, cq: &'a CqParts) -> Result<BorrowedFd<'a>> {
        self.check()?;
        cq.bell.fd().map_err(os("create an eventfd"))
    }
}

#[allow(clippy::cast_possible_truncation, reason = "32 bytes")]
const PEER_BYTES: u32 = size_of::<uapi::Peer>() as u32;

fn peer_info(peer: &uapi::Peer) -> PeerInfo {
    PeerInfo {
        node: NodeId::from_halves(peer.node_low, peer.node_high),
        state: match peer.state {
            uapi::PEER_CONNECTING => PeerState::Connecting,
            uapi::PEER_UP => PeerState::Up,
            _ => PeerState::Seen,
        },
        rails: u8::try_from(peer.rails).unwrap_or(u8::MAX),
        pid: None,
    }
}

fn address(addr: &uapi::Addr) -> EpAddr {
    EpAddr {
        node: NodeId::from_halves(addr.node_low, addr.node_high),
        ep: addr.ep,
        incarnation: addr.incarnation,
    }
}

/// A timeout for the kernel: what does not fit is longer than anybody waits, but not for ever.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1)
}

/// For `map_err`: names what was being done.
fn os<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Os {
        what,
        source: source.into(),
    }
}
