//! Clients: what they may have, what they have, and how all of it goes.

use usb4_engine::{Nanos, Slab};

use crate::id::{next_generation, split};
use crate::memory::{Domain, MAX_CLIENTS, Region};
use crate::{Access, ClientId, Device, DeviceError, Home, Object, Quota, User};

/// Place of a client (opaque).
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientSlot {
    generation: u16,
    phase: Phase,
    quota: Option<Quota>,
    /// Whose it is, if it shares a quota with that user's other clients.
    user: Option<User>,
    used: Used,
    /// Local key of its whole address space; 0 if the device cannot reach it.
    process_key: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Free,
    Live,
    /// Being removed: gets nothing new.
    Leaving,
}

/// What a client has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) endpoints: u32,
    pub(crate) cqs: u32,
    pub(crate) cq_entries: u32,
    pub(crate) regions: u32,
    pub(crate) region_bytes: u64,
    pub(crate) handles: u32,
}

impl Used {
    fn plus(self, other: Self) -> Self {
        Self {
            endpoints: self.endpoints.saturating_add(other.endpoints),
            cqs: self.cqs.saturating_add(other.cqs),
            cq_entries: self.cq_entries.saturating_add(other.cq_entries),
            regions: self.regions.saturating_add(other.regions),
            region_bytes: self.region_bytes.saturating_add(other.region_bytes),
            handles: self.handles.saturating_add(other.handles),
        }
    }

    /// What of it is more than a quota allows.
    fn beyond(&self, quota: &Quota) -> Option<Object> {
        [
            (self.endpoints > quota.endpoints, Object::Endpoint),
            (self.cqs > quota.cqs, Object::Cq),
            (self.cq_entries > quota.cq_entries, Object::CqEntry),
            (self.regions > quota.regions, Object::Region),
            (self.region_bytes > quota.region_bytes, Object::RegionByte),
            (self.handles > quota.handles, Object::Handle),
        ]
        .into_iter()
        .find_map(|(beyond, object)| beyond.then_some(object))
    }
}

/// What creation and destruction of objects share. Its lock is taken first and never on the data path.
#[derive(Debug)]
pub(crate) struct Control {
    clients: Slab<ClientSlot>,
}

impl Control {
    pub(crate) fn new(clients: Slab<ClientSlot>) -> Result<Self, DeviceError> {
        if clients.len() > MAX_CLIENTS {
            return Err(DeviceError::Storage);
        }
        Ok(Self { clients })
    }

    /// Charges a live client for something: `f` checks the client's quota and counts; what all clients of its user have
    /// together is checked here.
    pub(crate) fn charge<T>(
        &mut self,
        client: ClientId,
        f: impl FnOnce(&Quota, &mut Used) -> Result<T, Object>,
    ) -> Result<T, DeviceError> {
        let user = self.get(client).and_then(|slot| slot.user);
        let others = user.map(|user| self.used_beside(client, user.id));
        let slot = self.get(client).ok_or(DeviceError::NoClient)?;
        let (Phase::Live, Some(quota)) = (slot.phase, &slot.quota) else {
            return Err(DeviceError::NoClient);
        };
        let before = slot.used;
        let charged = f(quota, &mut slot.used).map_err(DeviceError::Quota)?;
        if let (Some(user), Some(others)) = (user, others) {
            if let Some(object) = others.plus(slot.used).beyond(&user.quota) {
                slot.used = before;
                return Err(DeviceError::Quota(object));
            }
        }
        Ok(charged)
    }

    /// What all other clients of a user have. Those that are going count until all of theirs has gone.
    fn used_beside(&self, client: ClientId, user: u32) -> Used {
        let (index, _) = split(client.0);
        self.clients
            .iter()
            .enumerate()
            .filter(|(at, slot)| *at != usize::from(index) && slot.phase != Phase::Free)
            .filter(|(_, slot)| slot.user.is_some_and(|its| its.id == user))
            .fold(Used::default(), |sum, (_, slot)| sum.plus(slot.used))
    }

    /// Takes something off a client's account.
    pub(crate) fn credit(&mut self, client: ClientId, f: impl FnOnce(&mut Used)) {
        if let Some(slot) = self.get(client) {
            f(&mut slot.used);
        }
    }

    pub(crate) fn process_key(&mut self, client: ClientId) -> u32 {
        self.get(client).map_or(0, |slot| slot.process_key)
    }

    fn get(&mut self, client: ClientId) -> Option<&mut ClientSlot> {
        let (index, generation) = split(client.0);
        self.clients
            .get_mut(usize::from(index))
            .filter(|slot| slot.generation == generation && slot.phase != Phase::Free)
    }

    fn add(&mut self, quota: Quota, user: Option<User>) -> Option<ClientId> {
        let index = self.clients.iter().position(|slot| slot.phase == Phase::Free)?;
        let slot = self.clients.get_mut(index)?;
        let generation = next_generation(slot.generation);
        *slot = ClientSlot {
            generation,
            phase: Phase::Live,
            quota: Some(quota),
            user,
            used: Used::default(),
            process_key: 0,
        };
        Some(ClientId::new(u16::try_from(index).ok()?, generation))
    }
}

/// Adds `n`, if the quota allows.
pub(crate) fn count(used: &mut u32, n: u32, limit: u32, what: Object) -> Result<(), Object> {
    match used.checked_add(n).filter(|sum| *sum <= limit) {
        Some(sum) => {
            *used = sum;
            Ok(())
        }
        None => Err(what),
    }
}

impl<H: Home> Device<H> {
    /// Adds a client. `process` is how the home reaches the client's whole address space, if it can: entries may
    /// then use `LOCAL_PROCESS` with plain addresses (region offset = address).
    ///
    /// # Errors
    /// The device has no more clients or regions.
    pub fn add_client(&self, quota: Quota, process: Option<H::Mem>) -> Result<ClientId, DeviceError> {
        self.add_client_of(None, quota, process)
    }

    /// As [`Self::add_client`], for a client that counts towards what all clients of `user` may have together.
    ///
    /// # Errors
    /// The device has no more clients or regions.
    pub fn add_client_of(
        &self,
        user: Option<User>,
        quota: Quota,
        process: Option<H::Mem>,
    ) -> Result<ClientId, DeviceError> {
        let client = self
            .control
            .lock()
            .add(quota, user)
            .ok_or(DeviceError::Full(Object::Client))?;
        let Some(mem) = process else { return Ok(client) };
        let region = Region {
            domain: Domain::of(client),
            addr: 0,
            len: u64::MAX,
            access: Access::LOCAL,
            peer: None,
        };
        let inserted = self.regions.insert(region, mem, self.home.random());
        let mut control = self.control.lock();
        if let Some(slot) = control.get(client) {
            match inserted {
                Ok(keys) => slot.process_key = keys.local,
                Err(_) => {
                    slot.phase = Phase::Free;
                    return Err(DeviceError::Full(Object::Region));
                }
            }
        }
        Ok(client)
    }

    /// Removes a client with all it has, at any moment. When this returns nothing touches its memory or queues
    /// any more. Waits only for turns of [`Self::service`] that are running in other threads; must not be called
    /// from within one.
    ///
    /// # Errors
    /// There is no such client, or somebody else is removing it.
    pub fn remove_client(&self, client: ClientId, now: Nanos) -> Result<(), DeviceError> {
        match self.control.lock().get(client) {
            Some(slot) if slot.phase == Phase::Live => slot.phase = Phase::Leaving,
            _ => return Err(DeviceError::NoClient),
        }
        // Shared receive queues after the queue pairs that draw from them.
        for are_srqs in [false, true] {
            for slot in self.endpoints.iter() {
                let mine = slot
                    .id()
                    .filter(|id| slot.client() == client && slot.is_srq(*id) == are_srqs);
                if let Some(id) = mine {
                    // It may have been destroyed by its client in the meantime.
                    let _ = self.destroy_endpoint(client, id, now);
                }
            }
        }
        for (index, slot) in self.cqs.iter().enumerate() {
            let id = u16::try_from(index).ok().and_then(|index| slot.of(index, client));
            if let Some(id) = id {
                let _ = self.destroy_cq(client, id);
            }
        }
        self.revoke_all(client);
        if let Some(slot) = self.control.lock().get(client) {
            slot.phase = Phase::Free;
        }
        Ok(())
    }
}
