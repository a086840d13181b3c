//! A client of a soft device, inline or detached: what the ring API stands on.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use usb4_device::{Access, EndpointKind};
use usb4_wire::{EpAddr, NodeId};

use crate::detached::{Detached, QUOTA};
use crate::home::Bell;
use crate::inline::Inline;
use crate::memory::Mapping;
use crate::queue::QueueMemory;
use crate::{Error, Peer};

/// A completion queue as the device made it.
#[derive(Debug)]
pub struct CqParts {
    /// The device's name for it.
    pub id: u32,
    /// Entries.
    pub depth: u32,
    /// Its memory.
    pub memory: QueueMemory,
    /// What wakes its client.
    pub bell: Arc<Bell>,
}

/// An endpoint as the device made it.
#[derive(Debug)]
pub struct EndpointParts {
    /// The device's name for it.
    pub id: u32,
    /// Its address.
    pub address: EpAddr,
    /// Entries of the submission queue.
    pub sq_depth: u32,
    /// The submission queue's memory.
    pub sq: QueueMemory,
    /// Entries of the receive queue.
    pub rq_depth: u32,
    /// The receive queue's memory.
    pub rq: QueueMemory,
}

/// A memory region as the device made it.
#[derive(Debug)]
pub struct RegionParts {
    /// Where this process has it; also its address for local and remote operations.
    pub start: *mut u8,
    /// Bytes.
    pub len: usize,
    /// Key for local use.
    pub local_key: u32,
    /// Key for peers.
    pub remote_key: u64,
    /// The memory, where it is the device's.
    pub memory: Option<Arc<Mapping>>,
}

// SAFETY: the pointer is only a number here; whoever follows it deals with concurrent access.
unsafe impl Send for RegionParts {}
// SAFETY: as above.
unsafe impl Sync for RegionParts {}

/// Limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Endpoints.
    pub endpoints: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory regions.
    pub regions: u32,
}

/// What memory of its process a device in it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of it.
    Process,
    /// What is registered, which has to be writable unless it is read-only, as for the kernel module, which pins it.
    Registered,
}

/// A client of a soft device. `Send + Sync`.
///
/// Names given to its methods (`id`s, keys) are checked by the device: a stale one has no effect.
#[derive(Debug)]
pub struct Client(Kind);

#[derive(Debug)]
enum Kind {
    Inline(Inline),
    Detached(Detached),
}

macro_rules! forward {
    ($self:ident, $client:ident => $call:expr) => {
        match &$self.0 {
            Kind::Inline($client) => $call,
            Kind::Detached($client) => $call,
        }
    };
}

impl Client {
    /// Starts a device in this process, on fabric `name`.
    ///
    /// # Errors
    /// The name cannot be used, or the operating system refuses.
    pub fn inline(name: &str, reach: Reach) -> Result<Self, Error> {
        Inline::open(name, reach).map(|client| Self(Kind::Inline(client)))
    }

    /// Becomes a client of the device of `host` on fabric `name`, which runs in another process and is started if
    /// there is none.
    ///
    /// # Errors
    /// A name cannot be used, or there is no device and none can be started.
    pub fn detached(name: &str, host: &str) -> Result<Self, Error> {
        Detached::open(name, host).map(|client| Self(Kind::Detached(client)))
    }

    /// Its node id.
    pub fn node(&self) -> NodeId {
        forward!(self, client => client.node())
    }

    /// The fabric's name.
    pub fn fabric(&self) -> &str {
        forward!(self, client => client.fabric())
    }

    /// Whether the device reaches all memory of this process.
    pub fn process_memory(&self) -> bool {
        match &self.0 {
            Kind::Inline(client) => client.reach() == Reach::Process,
            Kind::Detached(_) => false,
        }
    }

    /// Its limits.
    pub fn limits(&self) -> Limits {
        match &self.0 {
            Kind::Inline(_) => Limits {
                endpoints: 1024,
                cqs: 1024,
                regions: 16384,
            },
            Kind::Detached(_) => Limits {
                endpoints: QUOTA.endpoints,
                cqs: QUOTA.cqs,
                regions: QUOTA.regions,
            },
        }
    }

    /// The other devices on the fabric.
    ///
    /// # Errors
    /// The list of sockets cannot be read.
    pub fn peers(&self) -> Result<Vec<Peer>, Error> {
        forward!(self, client => client.peers())
    }

    /// Creates a completion queue; `depth` is a power of two.
    ///
    /// # Errors
    /// A depth that is not allowed, or a limit is reached.
    pub fn create_cq(&self, depth: u32) -> Result<CqParts, Error> {
        forward!(self, client => client.create_cq(depth))
    }

    /// Destroys a completion queue without endpoints.
    pub fn destroy_cq(&self, cq: &CqParts) {
        forward!(self, client => client.destroy_cq(cq.id));
    }

    /// The descriptor that becomes readable when the device wakes an armed queue.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn wait_fd<'a>(&self, cq: &'a CqParts) -> Result<BorrowedFd<'a>, Error> {
        forward!(self, client => client.wait_fd(&cq.bell))
    }

    /// Makes that descriptor unreadable until the device wakes the queue again.
    pub fn silence(&self, cq: &CqParts) {
        cq.bell.silence();
    }

    /// Creates an endpoint with queues of (submission, receive) `depths`, completing on (send, receive) `cqs`.
    ///
    /// # Errors
    /// A depth that is not allowed, or a limit is reached.
    pub fn create_endpoint(
        &self,
        kind: EndpointKind,
        depths: (u32, u32),
        cqs: (u32, u32),
    ) -> Result<EndpointParts, Error> {
        forward!(self, client => client.create_endpoint(kind, depths, cqs))
    }

    /// Destroys an endpoint.
    pub fn destroy_endpoint(&self, endpoint: u32) {
        forward!(self, client => client.destroy_endpoint(endpoint));
    }

    /// Makes an address handle (for a connected endpoint: its only one), connecting first if need be: waits for
    /// that up to `wait`; without, `None` while it is under way.
    ///
    /// # Errors
    /// The peer cannot be reached, or a limit is reached.
    pub fn address_handle(
        &self,
        endpoint: u32,
        kind: EndpointKind,
        peer: &EpAddr,
        wait: Option<Duration>,
    ) -> Result<Option<u32>, Error> {
        forward!(self, client => client.address_handle(endpoint, kind, peer, wait))
    }

    /// Gives an address handle back.
    pub fn close_handle(&self, endpoint: u32, handle: u32) {
        forward!(self, client => client.close_handle(endpoint, handle));
    }

    /// The address behind a completion's source.
    pub fn source(&self, source: u32) -> Option<EpAddr> {
        forward!(self, client => client.source(source))
    }

    /// Allocates and registers `len` zeroed bytes.
    ///
    /// # Errors
    /// No memory, or a limit is reached.
    pub fn alloc(&self, len: usize, access: Access) -> Result<RegionParts, Error> {
        forward!(self, client => client.alloc(len, access))
    }

    /// Registers memory of this process.
    ///
    /// # Errors
    /// The device does not reach it, or a limit is reached.
    ///
    /// # Safety
    /// Until [`Client::deregister`] returns, the memory stays mapped and may be read and written at any time.
    pub unsafe fn register(&self, start: *mut u8, len: usize, access: Access) -> Result<RegionParts, Error> {
        match &self.0 {
            // SAFETY: the caller's promise.
            Kind::Inline(client) => unsafe { client.register(start, len, access) },
            Kind::Detached(_) => Err(Error::Unsupported(
                "a detached device reaches only memory it shares with its clients: use memory of Device::alloc",
            )),
        }
    }

    /// Deregisters a region; afterwards memory that was the caller's is not touched any more.
    pub fn deregister(&self, region: &RegionParts) {
        forward!(self, client => client.deregister(region));
    }

    /// The client has published entries on this endpoint's queues. `asleep` tells whether one of the queues says
    /// that the device does not poll it; only a detached device asks.
    ///
    /// # Errors
    /// The device has gone, or this is a child process.
    #[inline]
    pub fn submit(&self, endpoint: u32, asleep: impl FnOnce() -> bool) -> Result<(), Error> {
        match &self.0 {
            Kind::Inline(client) => client.submit(endpoint),
            Kind::Detached(client) => client.submit(asleep),
        }
    }

    /// As [`Client::check`], but an end of the device in another process shows only once somebody has met it.
    ///
    /// # Errors
    /// As [`Client::check`].
    #[inline]
    pub fn check_quick(&self) -> Result<(), Error> {
        forward!(self, client => client.check_quick())
    }

    /// Whether the device is there and this is the process that opened it.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self) -> Result<(), Error> {
        forward!(self, client => client.check())
    }

    /// Drives the device once. Returns whether anything was done.
    #[inline]
    pub fn progress(&self) -> bool {
        forward!(self, client => client.progress())
    }

    /// The caller is about to sleep: the device must get along without it from now on.
    pub fn hand_over(&self) {
        match &self.0 {
            Kind::Inline(client) => client.hand_over(),
            // It never counts on its clients.
            Kind::Detached(_) => {}
        }
    }
}
