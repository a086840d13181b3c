//! From the errno of an ioctl to a sentence.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use usb4_soft::{DeviceError, Object};

use crate::{Error, NodeId};

/// What was asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Cq {
        /// The client has as many as it may.
        full: bool,
    },
    Endpoint,
    Handle(NodeId),
    Region {
        bytes: u64,
        /// The client has as many as it may.
        full: bool,
    },
    Peers,
    Enter,
}

impl Request {
    fn what(self) -> &'static str {
        match self {
            Self::Cq { .. } => "create a completion queue",
            Self::Endpoint => "create an endpoint",
            Self::Handle(_) => "make an address handle",
            Self::Region { .. } => "register memory",
            Self::Peers => "list the peers",
            Self::Enter => "enter the device",
        }
    }

    /// What it may have run out of.
    fn object(self) -> Object {
        match self {
            Self::Cq { full: true } => Object::Cq,
            Self::Cq { full: false } => Object::CqEntry,
            Self::Endpoint | Self::Enter => Object::Endpoint,
            Self::Handle(_) | Self::Peers => Object::Handle,
            Self::Region { full: true, .. } => Object::Region,
            Self::Region { full: false, .. } => Object::RegionByte,
        }
    }

    /// What it names that may not be there.
    fn missing(self) -> DeviceError {
        match self {
            Self::Cq { .. } | Self::Endpoint => DeviceError::NoCq,
            Self::Region { .. } => DeviceError::NoRegion,
            Self::Handle(_) | Self::Peers | Self::Enter => DeviceError::NoEndpoint,
        }
    }

    fn invalid(self) -> &'static str {
        match self {
            Self::Cq { .. } | Self::Endpoint => "a queue has 1 to 65536 entries",
            Self::Region { .. } => "the address range or access right is not valid",
            Self::Handle(_) | Self::Peers | Self::Enter => "the device does not understand the request",
        }
    }
}

/// Why the device refused a request: see the table in `usb4_ring_abi::uapi`.
#[cold]
pub(super) fn refusal(request: Request, errno: Errno) -> Error {
    match (errno, request) {
        (Errno::PERM, _) => Error::Forked,
        (Errno::NODEV, _) => Error::Gone,
        (Errno::NOENT, _) => request.missing().into(),
        (Errno::DQUOT, _) => DeviceError::Quota(request.object()).into(),
        (Errno::NOSPC, Request::Region { .. }) => DeviceError::Full(Object::Region).into(),
        (Errno::NOSPC, Request::Cq { .. }) => DeviceError::Full(Object::Cq).into(),
        (Errno::NOSPC, _) => DeviceError::Full(request.object()).into(),
        (Errno::INVAL, _) => Error::Invalid(request.invalid()),
        (Errno::ISCONN, _) => DeviceError::State.into(),
        (Errno::OPNOTSUPP, _) => Error::Unsupported("the kernel module is older than this program"),
        (Errno::HOSTUNREACH, Request::Handle(node)) => Error::Unreachable(node),
        (Errno::TIMEDOUT, Request::Handle(node)) => Error::ConnectTimeout(node),
        (Errno::NOMEM, Request::Region { bytes, .. }) => match getrlimit(Resource::Memlock).current {
            Some(limit) => Error::Pin { bytes, limit },
            None => os(request, errno),
        },
        _ => os(request, errno),
    }
}

fn os(request: Request, errno: Errno) -> Error {
    Error::Os {
        what: request.what(),
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_says_what_to_do() {
        let node = NodeId(7);
        let region = Request::Region {
            bytes: 1,
            full: false,
        };
        let says = |request, errno| refusal(request, errno).to_string();
        assert!(says(Request::Handle(node), Errno::HOSTUNREACH).contains("usb4_rdma"));
        assert!(says(Request::Enter, Errno::PERM).contains("fork"));
        assert!(says(Request::Cq { full: false }, Errno::DQUOT).contains("completion queue entries"));
        assert!(says(Request::Cq { full: true }, Errno::DQUOT).contains("out of completion queues"));
        assert!(says(region, Errno::DQUOT).contains("bytes of registered memory"));
        assert!(says(region, Errno::NOSPC).contains("memory regions"));
        assert!(says(region, Errno::FAULT).starts_with("cannot register memory"));
        assert!(matches!(refusal(Request::Enter, Errno::NODEV), Error::Gone));
        assert!(matches!(
            refusal(Request::Handle(node), Errno::ISCONN),
            Error::Invalid(_)
        ));
    }
}
