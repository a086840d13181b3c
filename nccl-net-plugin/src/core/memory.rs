//! Registered memory.

use std::sync::Arc;

use usb4_ffi::Level;
use usb4_ring::{Access, Device, MemoryRegion};

use super::comm::{Side, State};
use super::fault::{Blame, Fault};
use super::hub::Inner;
use super::send::SendState;
use super::table::Key;
use super::wire::Closing;

/// Memory NCCL has registered for a communicator.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) comm: Key,
    start: u64,
    len: u64,
    memory: MemoryRegion,
}

impl Region {
    /// Whether these bytes are within it.
    #[inline]
    pub(crate) fn has(&self, addr: u64, len: u64) -> bool {
        let offset = addr.checked_sub(self.start);
        let end = offset.and_then(|offset| offset.checked_add(len));
        end.is_some_and(|end| end <= self.len)
    }

    #[inline]
    pub(crate) fn local_key(&self) -> u32 {
        self.memory.local_key()
    }

    #[inline]
    pub(crate) fn remote_key(&self) -> u64 {
        self.memory.remote_key()
    }
}

impl Inner {
    /// What a communicator's memory is registered with: the device, and what peers may do. Senders only read.
    pub(crate) fn registrar(&mut self, comm: Key) -> Result<(Arc<Device>, Access), Fault> {
        let Some(comm) = self.comms.get_mut(comm) else {
            return Err(Fault::internal(
                "memory for a communicator that has been closed, or never was",
            ));
        };
        let access = match comm.side {
            Side::Send(_) => Access::LOCAL,
            Side::Recv(_) => Access::REMOTE_WRITE,
        };
        Ok((Arc::clone(&self.device), access))
    }

    /// Takes registered memory in; gives it back, to be dropped without the lock, if the communicator is gone.
    pub(crate) fn add_region(&mut self, comm: Key, memory: MemoryRegion) -> Result<Key, MemoryRegion> {
        let Some(owner) = self.comms.get_mut(comm) else {
            return Err(memory);
        };
        let region = Region {
            comm,
            start: memory.addr(),
            len: memory.len() as u64,
            memory,
        };
        let key = self.regions.insert(region).map_err(|region| region.memory)?;
        owner.common.regions += 1;
        Ok(key)
    }

    /// Takes memory out, to be dropped without the lock. Requests that use it end, and their communicator with them:
    /// nothing touches the memory once it has been dropped.
    pub(crate) fn remove_region(&mut self, comm: Key, key: Key) -> Result<Region, Fault> {
        if self.regions.get(key).is_none_or(|region| region.comm != comm) {
            return Err(Fault::internal(
                "memory that this communicator has not registered, or not any more",
            ));
        }
        if self.uses(comm, key.index) {
            // Not a warning: this is how NCCL gives up.
            let why = "memory was deregistered with requests in flight";
            self.fail_with(comm, Blame::Internal, why, Level::Info);
            self.tell_remote(comm, Closing::Closed);
        }
        if let Some(owner) = self.comms.get_mut(comm) {
            owner.common.regions = owner.common.regions.saturating_sub(1);
        }
        self.regions
            .remove(key)
            .ok_or_else(|| Fault::internal("memory that is not registered"))
    }

    /// Whether requests in flight use a region.
    fn uses(&mut self, comm: Key, region: u32) -> bool {
        let Some(comm) = self.comms.get_mut(comm) else {
            return false;
        };
        if matches!(comm.common.state, State::Failed(_)) {
            return false;
        }
        match &comm.side {
            Side::Send(send) => send
                .requests
                .iter()
                .any(|request| request.state != SendState::Done && request.region == region),
            Side::Recv(recv) => recv
                .requests
                .iter()
                .any(|request| !request.done && request.region == region),
        }
    }
}
