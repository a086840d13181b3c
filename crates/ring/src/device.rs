//! Devices.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use usb4_ring_abi::MAX_DEPTH;

use crate::backend::Client;
use crate::{
    Access, Cq, Endpoint, EndpointConfig, Error, KERNEL_DEVICE, MemoryRegion, NodeId, Registration, Result,
    SoftKind, Spec, kernel,
};

/// Which implementation is behind a [`Device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// The soft device in this process.
    SoftInline,
    /// The soft device in another process.
    SoftDetached,
    /// The kernel module.
    Kernel,
}

/// What a device is and can do. Limits given are limits enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name, as it would be written in `USB4_DEVICE`.
    pub name: String,
    /// What is behind it.
    pub backend: Backend,
    /// This host's node id.
    pub node: NodeId,
    /// Whether requests may name unregistered memory of the process ([`crate::Buffer::process`]).
    pub process_memory: bool,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Most entries of a submission or receive queue.
    pub max_queue_depth: u32,
    /// Most entries of a completion queue.
    pub max_cq_depth: u32,
    /// Most endpoints of this client.
    pub max_endpoints: u32,
    /// Most completion queues of this client.
    pub max_cqs: u32,
    /// Most memory regions of this client.
    pub max_regions: u32,
}

/// How a peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerState {
    /// Seen on the fabric, no link yet.
    Seen,
    /// The link is coming up.
    Connecting,
    /// The link is up.
    Up,
}

/// A peer on the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Its node id.
    pub node: NodeId,
    /// How it stands.
    pub state: PeerState,
    /// Rails that are up.
    pub rails: u8,
    /// Megabits per second of these together; 0 where the device does not know.
    pub rate_mbps: u32,
    /// The peer's process, where the device knows it.
    pub pid: Option<u32>,
}

/// An open device. Cheap to clone; the device closes with its last clone, endpoint, queue and region.
///
/// `Device` is `Send + Sync`: any thread may create objects and call [`Device::progress`]. A child process made by
/// `fork` gets [`Error::Forked`] and opens its own.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
}

/// What all objects of a device hold on to.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) client: Client,
    info: DeviceInfo,
}

impl Device {
    /// Opens the device `USB4_DEVICE` names; the real one if unset.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`], [`Error::BadSpec`], or whatever keeps the device from opening.
    pub fn open_env() -> Result<Self> {
        match std::env::var_os(crate::DEVICE_VARIABLE).filter(|spec| !spec.is_empty()) {
            None => Self::open(KERNEL_DEVICE),
            Some(spec) => Self::open(&spec.to_string_lossy()),
        }
    }

    /// Opens the device named `spec`: `soft:NAME`, `soft:NAME,registered`, `soft:NAME,detached` or
    /// `/dev/usb4ring`.
    ///
    /// # Errors
    ///
    /// [`Error::BadSpec`], or whatever keeps the device from opening.
    pub fn open(spec: &str) -> Result<Self> {
        let (client, backend) = match spec.parse::<Spec>()? {
            Spec::Kernel(path) => (kernel::Client::open(&path)?.into(), Backend::Kernel),
            Spec::Soft { name, kind } => match kind {
                SoftKind::Inline(reach) => (
                    usb4_soft::Client::inline(&name, reach)?.into(),
                    Backend::SoftInline,
                ),
                SoftKind::Detached(host) => (
                    usb4_soft::Client::detached(&name, &host)?.into(),
                    Backend::SoftDetached,
                ),
            },
        };
        Ok(Self::on(spec, client, backend))
    }

    pub(crate) fn on(spec: &str, client: Client, backend: Backend) -> Self {
        let limits = client.limits();
        let (max_message, max_depth) = client.sizes();
        let info = DeviceInfo {
            name: spec.into(),
            backend,
            node: client.node(),
            process_memory: client.process_memory(),
            max_message,
            max_queue_depth: max_depth,
            max_cq_depth: max_depth,
            max_endpoints: limits.endpoints,
            max_cqs: limits.cqs,
            max_regions: limits.regions,
        };
        Self {
            inner: Arc::new(Inner { client, info }),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.inner.client
    }

    /// What it is and can do.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The peers seen on the fabric, this host not included. Empty when the list cannot be read.
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.inner.client.peers().unwrap_or_default()
    }

    /// Creates a completion queue of at least `depth` entries (rounded up to a power of two).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] or [`Error::Limit`].
    pub fn create_cq(&self, depth: u32) -> Result<Cq> {
        Cq::create(Arc::clone(&self.inner), round_up(depth)?)
    }

    /// Creates an endpoint. Its sends, writes, reads and atomics complete on `send_cq`, its receives on
    /// `recv_cq`; they may be the same.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], also when a queue is of another device, or [`Error::Limit`].
    pub fn create_endpoint(&self, config: &EndpointConfig, send_cq: &Cq, recv_cq: &Cq) -> Result<Endpoint> {
        let depths = (round_up(config.sq_depth)?, round_up(config.rq_depth)?);
        Endpoint::create(Arc::clone(&self.inner), config.kind, depths, send_cq, recv_cq)
    }

    /// Allocates zeroed memory and registers it. Works on every backend.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], [`Error::Limit`] or [`Error::Os`].
    pub fn alloc(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        let parts = self.inner.client.alloc(len, access.to_device()?)?;
        Ok(MemoryRegion::new(Arc::clone(&self.inner), parts, access))
    }

    /// Registers memory of this process.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] on a detached soft device; [`Error::Pin`] where the process may not pin as much;
    /// [`Error::Invalid`], also for atomics on memory that is not 8-aligned, or [`Error::Limit`].
    ///
    /// # Safety
    ///
    /// Until the last clone of the region is dropped the memory stays mapped, and local and remote
    /// operations on it may read it, and write it unless [`Access::READ_ONLY`] is said, at any time.
    pub unsafe fn register(&self, ptr: *mut u8, len: usize, access: Access) -> Result<MemoryRegion> {
        // SAFETY: the caller's promise; the region's last clone deregisters.
        let parts = unsafe { self.inner.client.register(ptr, len, access.to_device()?)? };
        Ok(MemoryRegion::new(Arc::clone(&self.inner), parts, access))
    }

    /// As [`Device::register`], for a single owner.
    ///
    /// # Errors
    ///
    /// As [`Device::register`].
    ///
    /// # Safety
    ///
    /// As [`Device::register`], until the result is dropped.
    pub unsafe fn expose(&self, ptr: *mut u8, len: usize, access: Access) -> Result<Registration> {
        // SAFETY: the caller's promise; the registration deregisters when it is dropped.
        let parts = unsafe { self.inner.client.register(ptr, len, access.to_device()?)? };
        Ok(Registration::new(Arc::clone(&self.inner), parts, access))
    }

    /// Registers `len` bytes of a dma-buf, from `offset` on: memory of another driver's, a GPU's say. Requests and peers name
    /// the first of them by the address `start`, which may be any: where this process has them mapped, if it has. The
    /// region keeps the buffer; the descriptor may be closed. The whole buffer is pinned, and counts.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] but for the kernel module's device, and if its processor cannot reach the memory;
    /// [`Error::Pin`] where the process may not pin as much; [`Error::Invalid`]: no dma-buf, a range that is not within it,
    /// a right to write where the descriptor is for reading, or atomics on what is not 8-aligned; [`Error::Limit`].
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        start: u64,
        access: Access,
    ) -> Result<Registration> {
        let rights = access.to_device()?;
        let parts = self
            .inner
            .client
            .register_dmabuf(fd, offset, len, start, rights)?;
        Ok(Registration::new(Arc::clone(&self.inner), parts, access))
    }

    /// Drives the device: takes submissions, receives what has arrived, makes completions visible. Returns
    /// whether anything was done. Never blocks. A caller that waits for completions calls it in a loop with
    /// [`Cq::poll`]; where nobody calls it the device's own thread takes over within about a millisecond.
    #[inline]
    pub fn progress(&self) -> bool {
        self.inner.client.progress()
    }

    /// Whether the device is there. One in another process that has died completes nothing any more: a caller that
    /// polls and gets nothing asks this from time to time. Costs next to nothing; a death shows after a few
    /// thousand calls of [`Device::progress`], or with the first other call that meets it.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`], [`Error::Forked`].
    #[inline]
    pub fn check(&self) -> Result<()> {
        self.inner.client.check_quick()
    }
}

/// A queue's depth as the device wants it.
fn round_up(depth: u32) -> Result<u32> {
    let depth = depth
        .max(1)
        .checked_next_power_of_two()
        .filter(|depth| *depth <= MAX_DEPTH);
    depth.ok_or(Error::Invalid("a queue has at most 65536 entries"))
}
