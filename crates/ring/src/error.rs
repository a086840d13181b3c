//! What can go wrong, each with a sentence that says what to do.

use std::io;

use usb4_soft::{DeviceError, Object};

use crate::{NodeId, Refusal};

/// An error of the ring API.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The real device was asked for, or none was named, and it is not there.
    #[error(
        "no RDMA device: /dev/usb4ring is not there; load the kernel module (modprobe usb4_rdma), or set \
         USB4_DEVICE=soft:NAME for the software cable between processes of this machine"
    )]
    NoDevice,
    /// The device is there and this user may not open it.
    #[error("no permission to open {path}: {remedy}")]
    Permission {
        /// The device.
        path: String,
        /// What to do.
        remedy: String,
    },
    /// What was opened is something else.
    #[error("{0} is not a device of usb4_rdma")]
    NotADevice(String),
    /// The device cannot be opened.
    #[error("cannot open {path}: {source}")]
    OpenDevice {
        /// The device.
        path: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The module and this program are of different versions.
    #[error(
        "the module usb4_rdma {release} behind {path} speaks version {kernel} of the ring interface and this program \
         version {ours}: use a module and programs of the same release"
    )]
    AbiVersion {
        /// The device.
        path: String,
        /// The module's release.
        release: String,
        /// The version it speaks.
        kernel: u32,
        /// The version this library speaks.
        ours: u32,
    },
    /// The process may not pin as much memory as it wants to register.
    #[error(
        "cannot register {bytes} bytes: this process has pinned {pinned} and may pin {limit} (RLIMIT_MEMLOCK). Raise it \
         where the process is started: `ulimit -l unlimited`, memlock in /etc/security/limits.conf for logins, \
         LimitMEMLOCK=infinity for a systemd unit, --ulimit memlock=-1:-1 for a container"
    )]
    Pin {
        /// What was to be registered.
        bytes: u64,
        /// What is pinned already.
        pinned: u64,
        /// The limit.
        limit: u64,
    },
    /// The device name does not parse.
    #[error(
        "bad device name {spec:?}: {why}; use soft:NAME, soft:NAME,registered, soft:NAME,detached[=HOST] or /dev/usb4ring"
    )]
    BadSpec {
        /// What was given.
        spec: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The backend does not do this.
    #[error("not supported by this device: {0}")]
    Unsupported(&'static str),
    /// An argument is out of range.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A limit of the device, or a quota of this client or of all clients of its user, is reached.
    #[error("out of {0}: close some, here or in other processes of this user, or ask for fewer")]
    Limit(Object),
    /// No process, or host, with this node id is on the fabric.
    #[error(
        "no peer {0} on this fabric: between processes, is it running, with the same USB4_DEVICE and user? Between \
         hosts, is the cable plugged in, usb4_rdma loaded at its other end, and neither refused (`usb4ctl peers`)?"
    )]
    Unreachable(NodeId),
    /// There is a cable to that host, and one side refuses the other.
    #[error("no session with peer {0}: {1}; `usb4ctl status`, and the kernel log of either host, say more")]
    RefusedPeer(NodeId, Refusal),
    /// The peer exists and does not answer (stopped, or overloaded).
    #[error("peer {0} did not answer the connection request in time: is its process, or its host, stopped?")]
    ConnectTimeout(NodeId),
    /// The queue has no free entry.
    #[error("queue full: reap completions and submit again")]
    QueueFull,
    /// Only an administrator may do this.
    #[error("only an administrator (CAP_NET_ADMIN) may say which hosts are let in")]
    NotAdministrator,
    /// Used in a child process after `fork`.
    #[error("this device was opened before fork(): open a new one in the child process")]
    Forked,
    /// The device has gone (its process died, or it was shut down).
    #[error("the device has gone: open it again")]
    Gone,
    /// The device closed this endpoint because its queue memory was corrupted.
    #[error("the endpoint is in error: close it and create a new one")]
    EndpointError,
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was being done.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// The device refused.
    #[error("the device refused: {0}")]
    Refused(DeviceError),
    /// The soft device failed in a way of its own.
    #[error(transparent)]
    Soft(usb4_soft::Error),
}

impl From<usb4_soft::Error> for Error {
    fn from(error: usb4_soft::Error) -> Self {
        use usb4_soft::Error as Soft;
        match error {
            Soft::BadName(spec) => Self::BadSpec {
                spec,
                why: "the name cannot be used",
            },
            Soft::Unreachable(node) => Self::Unreachable(node),
            Soft::ConnectTimeout(node) => Self::ConnectTimeout(node),
            Soft::Unsupported(what) => Self::Unsupported(what),
            Soft::Invalid(what) => Self::Invalid(what),
            Soft::Gone => Self::Gone,
            Soft::Forked => Self::Forked,
            Soft::Os { what, source } => Self::Os { what, source },
            Soft::Device(error) => error.into(),
            other => Self::Soft(other),
        }
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Quota(object) | DeviceError::Full(object) => Self::Limit(object),
            DeviceError::State => Self::Invalid("the endpoint's kind or state does not allow it"),
            DeviceError::Range => Self::Invalid("the address range or access right is not valid"),
            DeviceError::Queue(_) => Self::Invalid("a queue has 1 to 65536 entries"),
            other => Self::Refused(other),
        }
    }
}

/// `Result` with the ring API's [`enum@Error`].
pub type Result<T> = core::result::Result<T, Error>;
