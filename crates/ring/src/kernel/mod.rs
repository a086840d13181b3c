//! A client of the kernel module's device: `/dev/usb4ring`, one descriptor, ioctls of `usb4_ring_abi::uapi`.
//!
//! Queues are the kernel's memory, mapped; registered memory is the process's, pinned. A message costs one system
//! call, which submits it and drives the links; a poll costs one, or none while others drive them all.

mod admission;
mod drive;
mod errors;
#[cfg(test)]
mod fake;
mod line;
mod objects;
mod open;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use usb4_ring_abi::{MAX_MESSAGE, uapi};
use usb4_soft::Limits;
use usb4_wire::NodeId;

use crate::raw::Ring;
use crate::{Error, PeerInfo, PeerState, Result};
use errors::{Request, refusal};
pub(crate) use line::Line;

/// Elements a list has room for at first; asked again with more if that is too few.
const ROOM: u32 = 16;

/// A client of the device.
#[derive(Debug)]
pub(crate) struct Client {
    ring: Ring,
    info: uapi::Info,
    gone: AtomicBool,
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
        Ok(Self {
            ring: Ring::on(line, (info.notice_offset, info.notice_bytes)).map_err(failed)?,
            info,
            gone: AtomicBool::new(false),
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
        if !self.ring.is_ours() {
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
        match self.ring.call(number, argument) {
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
            let _ = self.ring.call(number, argument);
        }
    }

    pub(crate) fn peers(&self) -> Result<Vec<PeerInfo>> {
        let list = self.list(|room, start: *mut uapi::Peer| {
            let mut list = uapi::Peers {
                count: room,
                stride: PEER_BYTES,
                peers: start.addr() as u64,
                ..uapi::Peers::new()
            };
            self.ask(uapi::IOC_PEERS, &mut list, Request::Peers)?;
            Ok(list.count)
        })?;
        Ok(list.iter().map(peer_info).collect())
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
        rate_mbps: peer.rate_mbps,
        pid: None,
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
