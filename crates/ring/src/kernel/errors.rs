//! From the errno of an ioctl to a sentence.

use std::fs;

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
    DmaBuf {
        bytes: u64,
        /// The client has as many as it may.
        full: bool,
    },
    Peers,
    Cables,
    Rules,
    SetRules,
    Enter,
}

impl Request {
    fn what(self) -> &'static str {
        match self {
            Self::Cq { .. } => "create a completion queue",
            Self::Endpoint => "create an endpoint",
            Self::Handle(_) => "make an address handle",
            Self::Region { .. } => "register memory",
            Self::DmaBuf { .. } => "register a dma-buf",
            Self::Peers => "list the peers",
            Self::Cables => "list the cables",
            Self::Rules => "read the rules",
            Self::SetRules => "set the rules",
            Self::Enter => "enter the device",
        }
    }

    /// What it may have run out of.
    fn object(self) -> Object {
        match self {
            Self::Cq { full: true } => Object::Cq,
            Self::Cq { full: false } => Object::CqEntry,
            Self::Endpoint | Self::Enter => Object::Endpoint,
            Self::Handle(_) | Self::Peers | Self::Cables | Self::Rules | Self::SetRules => Object::Handle,
            Self::Region { full: true, .. } | Self::DmaBuf { full: true, .. } => Object::Region,
            Self::Region { full: false, .. } | Self::DmaBuf { full: false, .. } => Object::RegionByte,
        }
    }

    /// What it names that may not be there.
    fn missing(self) -> DeviceError {
        match self {
            Self::Cq { .. } | Self::Endpoint => DeviceError::NoCq,
            Self::Region { .. } | Self::DmaBuf { .. } => DeviceError::NoRegion,
            _ => DeviceError::NoEndpoint,
        }
    }

    fn invalid(self) -> &'static str {
        match self {
            Self::Cq { .. } | Self::Endpoint => "a queue has 1 to 65536 entries",
            Self::Region { .. } => "the address range or access right is not valid",
            Self::DmaBuf { .. } => {
                "the range is not within the dma-buf, or the access right is not valid, or not 8-aligned"
            }
            _ => "the device does not understand the request",
        }
    }
}

/// Why the device refused a request: see the table in `usb4_ring_abi::uapi`.
#[cold]
pub(super) fn refusal(request: Request, errno: Errno) -> Error {
    match (errno, request) {
        (Errno::PERM, Request::SetRules) => Error::NotAdministrator,
        (Errno::PERM, _) => Error::Forked,
        (Errno::NODEV, _) => Error::Gone,
        (Errno::NOENT, _) => request.missing().into(),
        (Errno::DQUOT, _) => DeviceError::Quota(request.object()).into(),
        (Errno::BADF, Request::DmaBuf { .. }) => Error::Invalid("the descriptor is that of no dma-buf"),
        (Errno::ACCESS, Request::DmaBuf { .. }) => {
            Error::Invalid("the dma-buf's descriptor is for reading only: register it read-only")
        }
        (Errno::OPNOTSUPP, Request::DmaBuf { .. }) => Error::Unsupported(
            "the processor cannot reach the memory of this dma-buf, or the kernel module is older than this program",
        ),
        (Errno::NOSPC, Request::Region { .. } | Request::DmaBuf { .. }) => {
            DeviceError::Full(Object::Region).into()
        }
        (Errno::NOSPC, Request::Cq { .. }) => DeviceError::Full(Object::Cq).into(),
        (Errno::NOSPC, _) => DeviceError::Full(request.object()).into(),
        (Errno::INVAL, _) => Error::Invalid(request.invalid()),
        (Errno::ISCONN, _) => DeviceError::State.into(),
        (Errno::OPNOTSUPP | Errno::NOTTY, _) => {
            Error::Unsupported("the kernel module is older than this program")
        }
        (Errno::HOSTUNREACH, Request::Handle(node)) => Error::Unreachable(node),
        (Errno::TIMEDOUT, Request::Handle(node)) => Error::ConnectTimeout(node),
        (Errno::NOMEM, Request::Region { bytes, .. } | Request::DmaBuf { bytes, .. }) => {
            over_memlock(bytes).unwrap_or_else(|| os(request, errno))
        }
        _ => os(request, errno),
    }
}

/// That `bytes` more are more than `RLIMIT_MEMLOCK` allows, if they are; else memory itself is short, or a cgroup's limit
/// reached.
fn over_memlock(bytes: u64) -> Option<Error> {
    let limit = getrlimit(Resource::Memlock).current?;
    let pinned = fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| pinned(&status))
        .unwrap_or(limit);
    // The kernel counts whole pages; at most two are touched in part.
    let pages = bytes.saturating_add(2 * PAGE);
    (pinned.saturating_add(pages) > limit).then_some(Error::Pin { bytes, pinned, limit })
}

/// The smallest there are; with larger ones `over_memlock` is a little less sure.
const PAGE: u64 = 4096;

/// Bytes the process has pinned, of its `/proc/PID/status`.
fn pinned(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
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
        assert!(says(Request::SetRules, Errno::PERM).contains("CAP_NET_ADMIN"));
        assert!(says(Request::Cables, Errno::NOTTY).contains("older than this program"));
        assert!(says(Request::Cq { full: false }, Errno::DQUOT).contains("completion queue entries"));
        assert!(says(Request::Cq { full: true }, Errno::DQUOT).contains("out of completion queues"));
        assert!(says(region, Errno::DQUOT).contains("bytes of registered memory"));
        assert!(says(region, Errno::NOSPC).contains("memory regions"));
        assert!(says(region, Errno::FAULT).starts_with("cannot register memory"));
        assert!(says(region, Errno::OPNOTSUPP).contains("older than this program"));
        assert!(matches!(refusal(Request::Enter, Errno::NODEV), Error::Gone));
        assert!(matches!(
            refusal(Request::Handle(node), Errno::ISCONN),
            Error::Invalid(_)
        ));
    }
    #[test]
    fn memory_that_is_short_is_not_blamed_on_the_limit() {
        let status = "Name:\tx\nVmLck:\t       8 kB\nVmPin:\t    2048 kB\nVmHWM:\t 1 kB\n";
        assert_eq!(pinned(status), Some(2 << 20));
        assert_eq!(pinned("VmLck:\t 8 kB\n"), None);
        let Some(limit) = getrlimit(Resource::Memlock).current else {
            assert!(over_memlock(u64::MAX).is_none());
            return;
        };
        let said = over_memlock(limit).unwrap().to_string();
        for part in [&limit.to_string(), "RLIMIT_MEMLOCK", "LimitMEMLOCK", "ulimit -l"] {
            assert!(said.contains(part), "{said}");
        }
        if limit > 1 << 20 {
            assert!(over_memlock(4096).is_none());
        }
    }
}
