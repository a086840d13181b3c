//! What can go wrong, each with a sentence that says what to do.

use std::io;
use std::path::PathBuf;

use usb4_device::DeviceError;
use usb4_wire::NodeId;

/// An error of the soft device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The fabric's or host's name cannot be used.
    #[error("bad name {0:?}: use 1 to 32 letters, digits, '-', '_' and '.'")]
    BadName(String),
    /// The faults that are wanted are not understood.
    #[error(
        "bad {variable} {0:?}: use parts such as loss=1e-3, corrupt=1e-3, stall=200/2000, cut=5000 and seed=1, \
         with commas between them",
        variable = crate::FAULTS_VARIABLE
    )]
    BadFaults(String),
    /// No device with this node id listens on the fabric.
    #[error("no peer {0} on this fabric: is its process running, with the same USB4_DEVICE and user?")]
    Unreachable(NodeId),
    /// The peer's device exists and does not answer.
    #[error("peer {0} did not answer the connection request in time: is its process stopped?")]
    ConnectTimeout(NodeId),
    /// The peer's device runs as another user.
    #[error("peer {node} belongs to user {uid}: a fabric is for the processes of one user")]
    Foreign {
        /// The peer.
        node: NodeId,
        /// Its user.
        uid: u32,
    },
    /// The peer's device speaks another version of the cable.
    #[error("peer {0} was built from another version of this software: use the same on both sides")]
    Version(NodeId),
    /// As many peers as a device can have.
    #[error(
        "no room for peer {0}: it or this device has {max} peers already, as many as a device can have",
        max = crate::core::MAX_LINKS - 1
    )]
    TooManyPeers(NodeId),
    /// The device refused.
    #[error("the device refused: {0}")]
    Device(#[from] DeviceError),
    /// Not done by this kind of device.
    #[error("not supported by this device: {0}")]
    Unsupported(&'static str),
    /// An argument is out of range.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// There is no detached device, and none can be started.
    #[error(
        "no device of host {host:?} on fabric {fabric:?}, and usb4-softd was not found to start one: put it in \
         PATH, say where it is in USB4_SOFTD, or run usb4-softd {fabric} {host}"
    )]
    NoServer {
        /// The fabric.
        fabric: String,
        /// The host.
        host: String,
    },
    /// `USB4_SOFTD` names no file.
    #[error("USB4_SOFTD names {0:?}, which is no file: name usb4-softd, or unset it")]
    NoServerProgram(PathBuf),
    /// The program that was to serve the device ended well, and nobody serves it.
    #[error("{0:?} has ended and serves no device: is it usb4-softd? USB4_SOFTD names the program to start")]
    ServerSilent(PathBuf),
    /// The program that was to serve the device failed.
    #[error("usb4-softd could not start the device: it has said why on standard error")]
    ServerFailed,
    /// The detached device is another user's.
    #[error("the detached device belongs to user {0}: a fabric is for the processes of one user")]
    ForeignServer(u32),
    /// The detached device and this client are of different versions.
    #[error(
        "usb4-softd was built from another version of this software: stop it and use the same on both sides"
    )]
    ServerVersion,
    /// A server for this device runs already.
    #[error("host {host:?} on fabric {fabric:?} is served already")]
    AlreadyServed {
        /// The fabric.
        fabric: String,
        /// The host.
        host: String,
    },
    /// The detached device's process has gone.
    #[error("the device has gone: open it again")]
    Gone,
    /// Used in a child process after `fork`.
    #[error("this device was opened before fork(): open a new one in the child process")]
    Forked,
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was being done.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: names what was being done.
    pub(crate) fn os<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Os {
            what,
            source: source.into(),
        }
    }
}
