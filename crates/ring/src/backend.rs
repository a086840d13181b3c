//! The one switch between backends: what the objects of the ring API call.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use usb4_ring_abi::{MAX_DEPTH, MAX_MESSAGE};
use usb4_soft::{Access, CqParts, EndpointKind, EndpointParts, Limits, RegionParts};
use usb4_wire::{EpAddr, NodeId};

use crate::{Error, PeerInfo, PeerState, Result, kernel};

/// A client of a device. Names given to its methods are checked by the device: a stale one has no effect.
#[derive(Debug)]
pub(crate) enum Client {
    Soft(usb4_soft::Client),
    Kernel(kernel::Client),
}

impl From<usb4_soft::Client> for Client {
    fn from(client: usb4_soft::Client) -> Self {
        Self::Soft(client)
    }
}

impl From<kernel::Client> for Client {
    fn from(client: kernel::Client) -> Self {
        Self::Kernel(client)
    }
}

/// Calls the same method of either.
macro_rules! forward {
    ($self:ident, $client:ident => $call:expr) => {
        match $self {
            Self::Soft($client) => $call,
            Self::Kernel($client) => $call,
        }
    };
    ($self:ident, $client:ident ?=> $call:expr) => {
        match $self {
            Self::Soft($client) => Ok($call?),
            Self::Kernel($client) => $call,
        }
    };
}

impl Client {
    /// The kernel's device, if it is that.
    pub(crate) fn kernel(&self) -> Option<&kernel::Client> {
        match self {
            Self::Soft(_) => None,
            Self::Kernel(client) => Some(client),
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        forward!(self, client => client.node())
    }

    /// Whether requests may name unregistered memory.
    pub(crate) fn process_memory(&self) -> bool {
        forward!(self, client => client.process_memory())
    }

    pub(crate) fn limits(&self) -> Limits {
        forward!(self, client => client.limits())
    }

    /// Longest message, and most entries of a queue.
    pub(crate) fn sizes(&self) -> (u32, u32) {
        match self {
            Self::Soft(_) => (MAX_MESSAGE, MAX_DEPTH),
            Self::Kernel(client) => client.sizes(),
        }
    }

    pub(crate) fn peers(&self) -> Result<Vec<PeerInfo>> {
        let info = |peer: usb4_soft::Peer| {
            let (state, rails) = match peer.state {
                usb4_soft::PeerState::Seen => (PeerState::Seen, 0),
                usb4_soft::PeerState::Connecting => (PeerState::Connecting, 0),
                usb4_soft::PeerState::Up => (PeerState::Up, 1),
            };
            PeerInfo {
                node: peer.node,
                state,
                rails,
                rate_mbps: 0,
                pid: peer.pid,
            }
        };
        match self {
            Self::Soft(client) => Ok(client.peers()?.into_iter().map(info).collect()),
            Self::Kernel(client) => client.peers(),
        }
    }

    pub(crate) fn create_cq(&self, depth: u32) -> Result<CqParts> {
        forward!(self, client ?=> client.create_cq(depth))
    }

    pub(crate) fn destroy_cq(&self, cq: &CqParts) {
        forward!(self, client => client.destroy_cq(cq));
    }

    /// The descriptor that becomes readable when the device wakes an armed queue.
    pub(crate) fn wait_fd<'a>(&self, cq: &'a CqParts) -> Result<BorrowedFd<'a>> {
        forward!(self, client ?=> client.wait_fd(cq))
    }

    pub(crate) fn create_endpoint(
        &self,
        kind: EndpointKind,
        depths: (u32, u32),
        cqs: (u32, u32),
    ) -> Result<EndpointParts> {
        forward!(self, client ?=> client.create_endpoint(kind, depths, cqs))
    }

    pub(crate) fn destroy_endpoint(&self, endpoint: u32) {
        forward!(self, client => client.destroy_endpoint(endpoint));
    }

    /// Makes an address handle (for a connected endpoint: its only one): waits for a link up to `wait`; without,
    /// `None` while it is coming up.
    pub(crate) fn address_handle(
        &self,
        endpoint: u32,
        kind: EndpointKind,
        peer: &EpAddr,
        wait: Option<Duration>,
    ) -> Result<Option<u32>> {
        match self {
            Self::Soft(client) => Ok(client.address_handle(endpoint, kind, peer, wait)?),
            Self::Kernel(client) => client.address_handle(endpoint, peer, wait),
        }
    }

    pub(crate) fn close_handle(&self, endpoint: u32, handle: u32) {
        forward!(self, client => client.close_handle(endpoint, handle));
    }

    pub(crate) fn source(&self, source: u32) -> Option<EpAddr> {
        forward!(self, client => client.source(source))
    }

    pub(crate) fn alloc(&self, len: usize, access: Access) -> Result<RegionParts> {
        forward!(self, client ?=> client.alloc(len, access))
    }

    /// # Safety
    /// Until [`Client::deregister`] returns, the memory stays mapped and may be read and written at any time.
    pub(crate) unsafe fn register(&self, start: *mut u8, len: usize, access: Access) -> Result<RegionParts> {
        // SAFETY: the caller's promise.
        forward!(self, client ?=> unsafe { client.register(start, len, access) })
    }

    pub(crate) fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        start: u64,
        access: Access,
    ) -> Result<RegionParts> {
        match self {
            Self::Soft(_) => Err(Error::Unsupported(
                "a dma-buf is registered with the kernel module's device",
            )),
            Self::Kernel(client) => client.register_dmabuf(fd, offset, len, start, access),
        }
    }

    pub(crate) fn deregister(&self, region: &RegionParts) {
        forward!(self, client => client.deregister(region));
    }

    /// The client has published entries on this endpoint's queues; `asleep` tells whether the device looks at them by
    /// itself.
    #[inline]
    pub(crate) fn submit(&self, endpoint: u32, asleep: impl FnOnce() -> bool) -> Result<()> {
        forward!(self, client ?=> client.submit(endpoint, asleep))
    }

    /// As [`Client::check`], but for what only a closer look would show.
    #[inline]
    pub(crate) fn check_quick(&self) -> Result<()> {
        match self {
            Self::Soft(client) => Ok(client.check_quick()?),
            Self::Kernel(client) => client.check(),
        }
    }

    /// Whether the device is there and this is the process that opened it.
    pub(crate) fn check(&self) -> Result<()> {
        forward!(self, client ?=> client.check())
    }

    /// Drives the device once. Returns whether anything was done.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        forward!(self, client => client.progress())
    }

    /// Prepares [`Client::wait_fd`]'s descriptor for what comes from now on.
    pub(crate) fn silence(&self, cq: &CqParts) {
        cq.bell.silence();
    }

    /// The caller is about to sleep on that descriptor: the device must get along without it.
    pub(crate) fn hand_over(&self) {
        match self {
            Self::Soft(client) => client.hand_over(),
            // It never counts on its clients.
            Self::Kernel(_) => {}
        }
    }

    /// Whether [`Client::sleep`] wants a queue armed by itself alone, and drives the device before it sleeps.
    pub(crate) fn sleeps_inside(&self) -> bool {
        matches!(self, Self::Kernel(_))
    }

    /// Sleeps until the queue, which the caller has armed, may have something, or `left` is over, or a signal comes.
    pub(crate) fn sleep(&self, cq: &CqParts, left: Option<Duration>) -> Result<()> {
        if let Self::Kernel(client) = self {
            return client.sleep(cq, left);
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let fd = self.wait_fd(cq)?;
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Os {
                what: "wait for completions",
                source: error.into(),
            }),
        }
    }
}
