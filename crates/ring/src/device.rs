//! Devices.

use std::sync::Arc;

use crate::{Access, Cq, Endpoint, EndpointConfig, Error, MemoryRegion, NodeId, Result, Spec};

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
    /// Whether requests may name unregistered memory of the process ([`crate::Buffer::process`]) and
    /// [`Device::register`] works.
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
    /// The peer's process, where the device knows it.
    pub pid: Option<u32>,
}

/// An open device. Cheap to clone; the device closes with its last clone, endpoint, queue and region.
///
/// `Device` is `Send + Sync`: any thread may create objects and call [`Device::progress`].
#[derive(Clone, Debug)]
pub struct Device {
    _inner: Arc<()>,
}

impl Device {
    /// Opens the device `USB4_DEVICE` names; the real one if unset.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`], [`Error::BadSpec`], or whatever keeps the device from opening.
    pub fn open_env() -> Result<Self> {
        match std::env::var_os(crate::DEVICE_VARIABLE) {
            None => Err(Error::NoDevice),
            Some(spec) => Self::open(&spec.to_string_lossy()),
        }
    }

    /// Opens the device named `spec`: `soft:NAME`, `soft:NAME,detached` or `/dev/usb4ring`.
    ///
    /// # Errors
    ///
    /// [`Error::BadSpec`], or whatever keeps the device from opening.
    pub fn open(spec: &str) -> Result<Self> {
        match spec.parse::<Spec>()? {
            Spec::Kernel(path) => Err(Error::KernelDevice(path)),
            Spec::Soft { .. } => Err(Error::Unsupported("the soft device")),
        }
    }

    /// What it is and can do.
    pub fn info(&self) -> &DeviceInfo {
        unreachable!()
    }

    /// The peers seen on the fabric, this host not included.
    pub fn peers(&self) -> Vec<PeerInfo> {
        Vec::new()
    }

    /// Creates a completion queue of at least `depth` entries (rounded up to a power of two).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] or [`Error::Limit`].
    pub fn create_cq(&self, _depth: u32) -> Result<Cq> {
        Err(Error::Unsupported("completion queues"))
    }

    /// Creates an endpoint. Its sends, writes, reads and atomics complete on `send_cq`, its receives on
    /// `recv_cq`; they may be the same.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] or [`Error::Limit`].
    pub fn create_endpoint(
        &self,
        _config: &EndpointConfig,
        _send_cq: &Cq,
        _recv_cq: &Cq,
    ) -> Result<Endpoint> {
        Err(Error::Unsupported("endpoints"))
    }

    /// Allocates zeroed memory and registers it. Works on every backend.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], [`Error::Limit`] or [`Error::Os`].
    pub fn alloc(&self, _len: usize, _access: Access) -> Result<MemoryRegion> {
        Err(Error::Unsupported("memory regions"))
    }

    /// Registers memory of this process.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where the device cannot reach the process ([`DeviceInfo::process_memory`] is
    /// false); [`Error::Invalid`] or [`Error::Limit`].
    ///
    /// # Safety
    ///
    /// Until the last clone of the region is dropped the memory stays mapped, and local and remote
    /// operations on it may read and write it at any time.
    pub unsafe fn register(&self, _ptr: *mut u8, _len: usize, _access: Access) -> Result<MemoryRegion> {
        Err(Error::Unsupported("memory regions"))
    }

    /// Drives the device: takes submissions, receives what has arrived, makes completions visible. Returns
    /// whether anything was done. Never blocks. A caller that waits for completions calls it in a loop with
    /// [`Cq::poll`]; where nobody calls it the device's own thread takes over within about a millisecond.
    #[inline]
    pub fn progress(&self) -> bool {
        false
    }
}
