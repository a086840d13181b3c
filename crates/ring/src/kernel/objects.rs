//! What a client makes: completion queues, endpoints, address handles, memory regions.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use usb4_ring_abi::{Cqe, QueueGeometry, Rqe, Sqe, uapi};
use usb4_soft::{
    Access, Bell, CqParts, DeviceError, EndpointKind, EndpointParts, Mapping, QueueMemory, RegionParts,
};
use usb4_wire::{EpAddr, NodeId};

use super::errors::Request;
use super::{Client, nanos, os};
use crate::{Error, Result};

impl Client {
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
        self.ring.map_words(offset, words).map_err(os(what))
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
            match self.ring.call(uapi::IOC_CREATE_AH, &mut ah) {
                Ok(_) => return Ok(Some(ah.ah)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if wait.is_none() => return Ok(None),
                // The time was over before the device was asked.
                Err(Errno::AGAIN) => return Err(Error::ConnectTimeout(peer.node)),
                Err(errno) => {
                    let unreachable = errno == Errno::HOSTUNREACH;
                    let refusal = unreachable.then(|| self.why_none(peer.node)).flatten();
                    return Err(match refusal {
                        Some(refusal) => Error::RefusedPeer(peer.node, refusal),
                        None => self.refused(Request::Handle(peer.node), errno),
                    });
                }
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
        self.ring.call(uapi::IOC_SOURCE, &mut who).ok()?;
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

    pub(crate) fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        start: u64,
        access: Access,
    ) -> Result<RegionParts> {
        self.check()?;
        let full = self.regions.load(Ordering::Relaxed) >= self.info.max_mrs;
        let bytes = len as u64;
        let mut region = uapi::RegMr {
            flags: uapi::REG_MR_DMABUF,
            addr: start,
            len: bytes,
            access: access.bits().into(),
            dmabuf_fd: fd.as_raw_fd(),
            dmabuf_offset: offset,
            ..uapi::RegMr::new()
        };
        self.ask(uapi::IOC_REG_MR, &mut region, Request::DmaBuf { bytes, full })?;
        self.regions.fetch_add(1, Ordering::Relaxed);
        let start = usize::try_from(start).map_err(|_| Error::Invalid("an address has 64 bits"))?;
        Ok(RegionParts {
            // A name: nothing is reached by it here.
            start: std::ptr::without_provenance_mut(start),
            len,
            local_key: region.local_key,
            remote_key: region.remote_key,
            memory: None,
        })
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

    pub(crate) fn wait_fd<'a>(&self, cq: &'a CqParts) -> Result<BorrowedFd<'a>> {
        self.check()?;
        cq.bell.fd().map_err(os("create an eventfd"))
    }
}

fn address(addr: &uapi::Addr) -> EpAddr {
    EpAddr {
        node: NodeId::from_halves(addr.node_low, addr.node_high),
        ep: addr.ep,
        incarnation: addr.incarnation,
    }
}
