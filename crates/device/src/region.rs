//! Registering and deregistering memory.

use usb4_engine::MemRef;

use crate::client::{Control, count};
use crate::memory::{Domain, Region};
use crate::{ClientId, Device, DeviceError, Home, Keys, Object, RegionConfig};

impl<H: Home> Device<H> {
    /// Registers memory.
    ///
    /// # Errors
    /// The range wraps, rights contradict each other, the quota or the table is full, or there is no such client.
    pub fn register(&self, client: ClientId, config: RegionConfig<H::Mem>) -> Result<Keys, DeviceError> {
        self.register_in(Domain::of(client), config, self.home.random())
    }

    /// Registers memory for a client's queue pairs in protection domain `pd`, not 0; only they can use it. The remote key
    /// has 32 bits.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn register_in_pd(
        &self,
        client: ClientId,
        pd: u32,
        config: RegionConfig<H::Mem>,
    ) -> Result<Keys, DeviceError> {
        if pd == 0 {
            return Err(DeviceError::Range);
        }
        let random = self.home.random() & u64::from(u32::MAX);
        self.register_in(Domain { client, pd }, config, random)
    }

    fn register_in(
        &self,
        domain: Domain,
        config: RegionConfig<H::Mem>,
        random: u64,
    ) -> Result<Keys, DeviceError> {
        let client = domain.client;
        let RegionConfig {
            addr,
            len,
            access,
            peer,
            mem,
        } = config;
        // The byte after the last may be at 2^64.
        if len
            .checked_sub(1)
            .is_some_and(|last| addr.checked_add(last).is_none())
        {
            return Err(DeviceError::Range);
        }
        if !access.is_consistent() {
            return Err(DeviceError::Range);
        }
        // Held until the region is in the table, so that the client's removal finds it.
        let mut control = self.control.lock();
        control.charge(client, |quota, used| {
            let bytes = used
                .region_bytes
                .checked_add(len)
                .filter(|sum| *sum <= quota.region_bytes);
            let bytes = bytes.ok_or(Object::RegionByte)?;
            count(&mut used.regions, 1, quota.regions, Object::Region)?;
            used.region_bytes = bytes;
            Ok(())
        })?;
        let inserted = self.regions.insert(
            Region {
                domain,
                addr,
                len,
                access,
                peer,
            },
            mem,
            random,
        );
        if inserted.is_err() {
            credit_region(&mut control, client, len);
        }
        drop(control);
        inserted.map_err(|_mem| DeviceError::Full(Object::Region))
    }

    /// Kills a region's keys at once. True: nothing used it and it is gone (its `Mem` has been dropped). False:
    /// work in flight still uses it; [`Self::reclaim`] it later ([`Home::region_idle`] says when).
    ///
    /// # Errors
    /// The client has no such region, or has deregistered it already.
    pub fn deregister(&self, client: ClientId, local_key: u32) -> Result<bool, DeviceError> {
        self.regions.kill(client, local_key)?;
        self.reclaim(client, local_key, false)
    }

    /// Finishes a deregistration. True: the region is gone. With `force` it always is: waits only for turns of
    /// [`Self::service`] that are running in other threads; work in flight that still names the region then ends
    /// with an error, its peer's half as well, and drops what it receives.
    ///
    /// # Errors
    /// The client has no such region, or it is gone already.
    pub fn reclaim(&self, client: ClientId, local_key: u32, force: bool) -> Result<bool, DeviceError> {
        if !self.regions.revoke(client, local_key, force)? {
            return Ok(false);
        }
        if force {
            self.wait_for_copies();
        }
        // SAFETY: just revoked by this call, and copies that were running have ended.
        let gone = unsafe { self.regions.take(local_key) };
        self.forget_region(client, gone);
        Ok(true)
    }

    /// Revokes everything a leaving client has registered.
    pub(crate) fn revoke_all(&self, client: ClientId) {
        // One wait per region is as quick as one for all when no link is being serviced, and needs no list.
        for key in self.regions.keys_of(client) {
            let _ = self.reclaim(client, key, true);
        }
    }

    /// Gives back a reference on a region, and tells the owner if somebody waits for it; or on a list.
    ///
    /// # Safety
    /// If it may be on a list: as for [`crate::lists::ListsSlot::get`].
    #[inline]
    pub(crate) unsafe fn release_mem(&self, mem: MemRef) {
        match u32::try_from(mem.0) {
            Ok(name) => self.release_region(name),
            // SAFETY: the caller's promise.
            Err(_) => unsafe { self.release_list(mem) },
        }
    }

    #[inline]
    pub(crate) fn release_region(&self, name: u32) {
        self.tell_idle(self.regions.release(name));
    }

    #[inline]
    pub(crate) fn tell_idle(&self, owner: Option<ClientId>) {
        if let Some(client) = owner {
            self.home.region_idle(client);
        }
    }

    fn forget_region(&self, client: ClientId, gone: Option<(u64, H::Mem)>) {
        if let Some((len, _mem)) = gone {
            credit_region(&mut self.control.lock(), client, len);
        }
    }
}

fn credit_region(control: &mut Control, client: ClientId, len: u64) {
    control.credit(client, |used| {
        used.regions = used.regions.saturating_sub(1);
        used.region_bytes = used.region_bytes.saturating_sub(len);
    });
}
