//! The soft device in the calling process.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use usb4_device::{
    Access, ClientId, CqConfig, CqId, DeviceError, EndpointConfig, EndpointId, EndpointKind, Quota,
    RegionConfig,
};
use usb4_engine::Slab;
use usb4_ring_abi::{Cqe, QueueGeometry, Rqe, Sqe};
use usb4_wire::{EpAddr, NodeId};

use crate::client::{CqParts, EndpointParts, Reach, RegionParts};
use crate::clock::now;
use crate::device::{Drivers, SoftDevice};
use crate::home::{Bell, Memory};
use crate::memory::{Mapping, populate};
use crate::names::Fabric;
use crate::queue::QueueMemory;
use crate::{Error, Peer};

/// Address handles a datagram endpoint may have.
pub(crate) const MAX_HANDLES: usize = 1024;

/// A device in this process and its one client.
#[derive(Debug)]
pub(crate) struct Inline {
    pub(crate) device: SoftDevice,
    client: ClientId,
    reach: Reach,
    /// Regions deregistered while work in flight still used them.
    dying: Mutex<HashSet<u32>>,
}

impl Inline {
    pub(crate) fn open(fabric: &str, reach: Reach) -> Result<Self, Error> {
        let device = SoftDevice::start(Fabric::new(fabric)?, Drivers::Anybody)?;
        // SAFETY: entries that name memory of the process are posted through unsafe functions, whose callers
        // vouch for it.
        let process = (reach == Reach::Process).then(|| unsafe { Memory::process(std::ptr::null_mut()) });
        let client = device.core.device.add_client(Quota::UNLIMITED, process)?;
        Ok(Self {
            device,
            client,
            reach,
            dying: Mutex::default(),
        })
    }

    pub(crate) fn create_cq(&self, depth: u32) -> Result<CqParts, Error> {
        self.device.core.check_process()?;
        let words = QueueGeometry::of::<Cqe>(depth)
            .map_err(DeviceError::from)?
            .words();
        let memory = QueueMemory::local(words);
        let bell = Arc::new(Bell::default());
        let cq = self.device.core.device.create_cq(
            self.client,
            CqConfig {
                depth,
                memory: memory.clone(),
                ops: Slab::boxed(depth as usize),
                waker: Arc::clone(&bell),
            },
        )?;
        Ok(CqParts {
            id: cq.raw(),
            depth,
            memory,
            bell,
        })
    }

    pub(crate) fn destroy_cq(&self, cq: u32) {
        // In a child a thread that is not there may hold the locks.
        if self.device.core.check_process().is_err() {
            return;
        }
        let _ = self
            .device
            .core
            .device
            .destroy_cq(self.client, CqId::from_raw(cq));
    }

    pub(crate) fn create_endpoint(
        &self,
        kind: EndpointKind,
        depths: (u32, u32),
        cqs: (u32, u32),
    ) -> Result<EndpointParts, Error> {
        self.device.core.check_process()?;
        let (sq_depth, rq_depth) = depths;
        let sq = QueueMemory::local(
            QueueGeometry::of::<Sqe>(sq_depth)
                .map_err(DeviceError::from)?
                .words(),
        );
        let rq = QueueMemory::local(
            QueueGeometry::of::<Rqe>(rq_depth)
                .map_err(DeviceError::from)?
                .words(),
        );
        let handles = if kind == EndpointKind::Connected {
            1
        } else {
            MAX_HANDLES
        };
        let (id, address) = self.device.core.device.create_endpoint(
            self.client,
            EndpointConfig {
                kind,
                send_cq: CqId::from_raw(cqs.0),
                recv_cq: CqId::from_raw(cqs.1),
                sq_depth,
                sq: sq.clone(),
                rq_depth,
                rq: rq.clone(),
                handles: Slab::boxed(handles),
            },
        )?;
        Ok(EndpointParts {
            id: id.raw(),
            address,
            sq_depth,
            sq,
            rq_depth,
            rq,
        })
    }

    pub(crate) fn destroy_endpoint(&self, endpoint: u32) {
        if self.device.core.check_process().is_ok() {
            let _ =
                self.device
                    .core
                    .device
                    .destroy_endpoint(self.client, EndpointId::from_raw(endpoint), now());
            // The peers are told.
            self.device.core.nudge();
        }
    }

    pub(crate) fn address_handle(
        &self,
        endpoint: u32,
        kind: EndpointKind,
        peer: &EpAddr,
        wait: Option<std::time::Duration>,
    ) -> Result<Option<u32>, Error> {
        self.device
            .address_handle(self.client, EndpointId::from_raw(endpoint), kind, peer, wait)
    }

    pub(crate) fn close_handle(&self, endpoint: u32, handle: u32) {
        if self.device.core.check_process().is_ok() {
            let endpoint = EndpointId::from_raw(endpoint);
            let _ = self
                .device
                .core
                .device
                .destroy_ah(self.client, endpoint, handle, now());
            self.device.core.nudge();
        }
    }

    pub(crate) fn source(&self, source: u32) -> Option<EpAddr> {
        self.device.core.check_process().ok()?;
        self.device.core.device.source(self.client, source)
    }

    pub(crate) fn alloc(&self, len: usize, access: Access) -> Result<RegionParts, Error> {
        self.device.core.check_process()?;
        let mapping = Arc::new(Mapping::anonymous(len).map_err(Error::os("allocate memory"))?);
        let start = mapping.as_ptr();
        let keys = self.device.core.device.register(
            self.client,
            RegionConfig {
                addr: start as u64,
                len: len as u64,
                access,
                peer: None,
                mem: Memory::mapped(Arc::clone(&mapping)),
            },
        )?;
        Ok(RegionParts {
            start,
            len,
            local_key: keys.local,
            remote_key: keys.remote,
            memory: Some(mapping),
        })
    }

    /// # Safety
    /// See [`crate::Client::register`].
    pub(crate) unsafe fn register(
        &self,
        start: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<RegionParts, Error> {
        self.device.core.check_process()?;
        if access.contains(Access::REMOTE_ATOMIC) && start as usize % 8 != 0 {
            return Err(Error::Invalid("memory for atomics must start at a multiple of 8"));
        }
        if self.reach == Reach::Registered {
            populate(start, len, !access.is_read_only()).map_err(Error::os("register memory"))?;
        }
        let keys = self.device.core.device.register(
            self.client,
            RegionConfig {
                addr: start as u64,
                len: len as u64,
                access,
                peer: None,
                // SAFETY: the caller vouches for it until the region is deregistered.
                mem: unsafe { Memory::process(start) },
            },
        )?;
        Ok(RegionParts {
            start,
            len,
            local_key: keys.local,
            remote_key: keys.remote,
            memory: None,
        })
    }

    /// Deregisters. Memory of the device's own may linger until work in flight has done with it; memory of the
    /// caller's is not touched after this returns.
    pub(crate) fn deregister(&self, region: &RegionParts) {
        let device = &self.device.core.device;
        if self.device.core.check_process().is_err()
            || device.deregister(self.client, region.local_key) != Ok(false)
        {
            return;
        }
        if region.memory.is_none() {
            let _ = device.reclaim(self.client, region.local_key, true);
        } else {
            self.dying.lock().insert(region.local_key);
        }
    }

    fn reclaim(&self) {
        let device = &self.device.core.device;
        self.dying
            .lock()
            .retain(|key| device.reclaim(self.client, *key, false) == Ok(false));
    }

    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    pub(crate) fn node(&self) -> NodeId {
        self.device.node()
    }

    pub(crate) fn fabric(&self) -> &str {
        self.device.fabric()
    }

    pub(crate) fn peers(&self) -> Result<Vec<Peer>, Error> {
        self.device.core.check_process()?;
        self.device.peers()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.device.core.check_process()
    }

    #[inline]
    pub(crate) fn check_quick(&self) -> Result<(), Error> {
        self.device.core.check_process()
    }

    #[inline]
    pub(crate) fn submit(&self, endpoint: u32) -> Result<(), Error> {
        self.device.core.check_process()?;
        self.device.core.submit(EndpointId::from_raw(endpoint));
        Ok(())
    }

    #[inline]
    pub(crate) fn progress(&self) -> bool {
        if self.device.core.check_process().is_err() {
            return false;
        }
        if self.device.core.device.home().take_idle_regions() {
            self.reclaim();
        }
        self.device.core.progress()
    }

    /// The caller is about to sleep: the keeper drives from now on.
    pub(crate) fn hand_over(&self) {
        self.device.core.hand_over.store(true, Ordering::Release);
        self.device.core.wake_keeper();
    }

    pub(crate) fn wait_fd<'a>(&self, bell: &'a Bell) -> Result<BorrowedFd<'a>, Error> {
        self.device.core.check_process()?;
        bell.fd().map_err(Error::os("create an eventfd"))
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        if self.device.core.check_process().is_ok() {
            let _ = self.device.core.device.remove_client(self.client, now());
        }
    }
}
