//! Memory regions: who may touch what.
//!
//! Every posted entry and every incoming access finds its region here, so there is no lock: one state word per
//! region carries generation, phase, owner and references.
//!
//! * *live*: keys work; a reference is one compare-and-swap.
//! * *dead*: deregistered. Keys do not work; references given out before still do, and when the last one goes the
//!   owner is told.
//! * *revoked*: the owner is gone or will not wait. References given out before are still counted, but
//!   [`Regions::for_copy`] refuses them, so nothing new is copied; copies that are running are waited for (see
//!   `links.rs`), then the home's token is taken out.
//! * *free*: no references; the place can be used again.
//!
//! A region's description is written only while the place is free, so any reference makes it readable. The home's
//! token is taken out by the one who moved the region to revoked, after the last copy that could use it.

use usb4_engine::{MemAt, MemRef, NodeId, Slab};

use crate::id::{MAX_OBJECTS, join, next_generation, split};
use crate::sync::{AtomicU64, Ordering, UnsafeCell};
use crate::{Access, ClientId, DeviceError, Keys, Lock, RawLock};

/// Most clients: the owner's index has 14 bits in a region's state.
pub(crate) const MAX_CLIENTS: usize = 1 << 14;

const PHASE: u64 = 3 << 46;
const FREE: u64 = 0;
const LIVE: u64 = 1 << 46;
const DEAD: u64 = 2 << 46;
const REVOKED: u64 = 3 << 46;
const OWNER: u64 = (MAX_CLIENTS as u64 - 1) << 32;
/// Peers may not use it any more, though its remote key names it.
const SHUT: u64 = 1 << 31;
const REFS: u64 = SHUT - 1;

/// Whose memory it is, and on behalf of whose endpoints it is used: client and protection domain must both match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    pub(crate) client: ClientId,
    /// 0 for all but queue pairs.
    pub(crate) pd: u32,
}

impl Domain {
    /// What a client has beside queue pairs.
    pub(crate) fn of(client: ClientId) -> Self {
        Self { client, pd: 0 }
    }
}

/// What a region is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) domain: Domain,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) peer: Option<NodeId>,
}

/// A region and the key peers must show.
#[derive(Debug)]
struct Info {
    region: Region,
    remote_key: u64,
}

/// Place of a memory region.
#[derive(Debug)]
pub struct RegionSlot<M> {
    /// Generation (16 bits at 48), phase (2 at 46), owner's index (14 at 32), [`SHUT`] (1 at 31), references (31).
    state: AtomicU64,
    info: UnsafeCell<Option<Info>>,
    mem: UnsafeCell<Option<M>>,
}

impl<M> Default for RegionSlot<M> {
    fn default() -> Self {
        Self {
            state: AtomicU64::new(FREE),
            info: UnsafeCell::new(None),
            mem: UnsafeCell::new(None),
        }
    }
}

// SAFETY: `info` is written only by the thread that took the slot off the free list, before it publishes the live
// state. `mem` is written by that thread too, and by the one that revoked the region, after the last copy. In
// between both are only shared, hence `M: Sync`; the token may be dropped by another thread than the one that
// brought it, hence `M: Send`.
unsafe impl<M: Send + Sync> Sync for RegionSlot<M> {}

/// The table of memory regions.
#[derive(Debug)]
pub(crate) struct Regions<R, M: 'static> {
    slots: Slab<RegionSlot<M>>,
    free: Lock<R, Free>,
    /// Bits of a remote key that hold the index.
    mask: u64,
}

/// Places not in use.
#[derive(Debug)]
struct Free {
    /// Used before and free again.
    stack: Slab<u16>,
    len: usize,
    /// First place never used.
    fresh: usize,
}

/// Access is not allowed. Looking at the region took a reference for a moment; if it turned out to be the last one
/// of a dead region, its owner has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied(pub(crate) Option<ClientId>);

impl<R: RawLock, M: Send + Sync> Regions<R, M> {
    /// `stack` has as many elements as `slots`.
    pub(crate) fn new(slots: Slab<RegionSlot<M>>, stack: Slab<u16>) -> Result<Self, DeviceError> {
        if slots.len() > MAX_OBJECTS || stack.len() < slots.len() {
            return Err(DeviceError::Storage);
        }
        let mask = (slots.len() as u64).next_power_of_two().saturating_sub(1);
        Ok(Self {
            slots,
            free: Lock::new(Free {
                stack,
                len: 0,
                fresh: 0,
            }),
            mask,
        })
    }

    /// Registers a region; `random` becomes its remote key but for the bits that find it. The token comes back if
    /// all places are taken.
    pub(crate) fn insert(&self, region: Region, mem: M, random: u64) -> Result<Keys, M> {
        let Some((index, slot)) = self.take_free() else {
            return Err(mem);
        };
        let remote = (random & !self.mask) | u64::from(index);
        let generation = next_generation(generation_of(slot.state.load(Ordering::Relaxed)));
        let live = live(generation, region.domain.client);
        let info = Info {
            region,
            remote_key: remote,
        };
        // SAFETY: the slot came off the free list: no reference exists and none can be taken until the store
        // below publishes the live state.
        slot.info.with_mut(|cell| unsafe { *cell = Some(info) });
        // SAFETY: as above.
        slot.mem.with_mut(|cell| unsafe { *cell = Some(mem) });
        slot.state.store(live, Ordering::Release);
        Ok(Keys {
            local: join(index, generation),
            remote,
        })
    }

    /// A reference for the owner's own entry, which reads `len` bytes at `addr`, or `writes`.
    #[inline(always)]
    pub(crate) fn acquire_local(
        &self,
        domain: Domain,
        key: u32,
        (addr, len): (u64, u64),
        writes: bool,
    ) -> Result<MemAt, Denied> {
        let (index, generation) = split(key);
        let slot = self.slots.get(usize::from(index)).ok_or(Denied(None))?;
        let live = live(generation, domain.client);
        self.acquire(slot, key, live, REFS | SHUT, |info| {
            let region = &info.region;
            let allowed = region.domain == domain && !(writes && region.access.is_read_only());
            if allowed { region.span(addr, len) } else { None }
        })
    }

    /// A reference for a peer's access on behalf of one of the owner's endpoints. `node` is asked for only if the
    /// region is bound to a peer.
    #[inline]
    pub(crate) fn acquire_remote(
        &self,
        domain: Domain,
        key: u64,
        (addr, len): (u64, u64),
        access: Access,
        node: impl FnOnce() -> Option<NodeId>,
    ) -> Result<MemAt, Denied> {
        let index = u16::try_from(key & self.mask).map_err(|_| Denied(None))?;
        let slot = self.slots.get(usize::from(index)).ok_or(Denied(None))?;
        let generation = generation_of(slot.state.load(Ordering::Relaxed));
        let live = live(generation, domain.client);
        self.acquire(slot, join(index, generation), live, REFS, |info| {
            let region = &info.region;
            let allowed = info.remote_key == key
                && region.domain == domain
                && region.access.contains(access)
                && (region.peer.is_none() || region.peer == node());
            if allowed { region.span(addr, len) } else { None }
        })
    }

    /// Has peers not use the region with that remote key any more; what they have a reference of they use on. Its owner does,
    /// too, and still deregisters it.
    pub(crate) fn shut(&self, domain: Domain, key: u64) -> Result<(), Denied> {
        let index = u16::try_from(key & self.mask).map_err(|_| Denied(None))?;
        let slot = self.slots.get(usize::from(index)).ok_or(Denied(None))?;
        let generation = generation_of(slot.state.load(Ordering::Relaxed));
        let live = live(generation, domain.client);
        let name = join(index, generation);
        self.acquire(slot, name, live, REFS, |info| {
            let named = info.remote_key == key && info.region.domain == domain;
            named.then_some(0)
        })?;
        // The reference keeps the place from being another region's.
        let before = slot.state.fetch_or(SHUT, Ordering::AcqRel);
        match self.release(name) {
            None if before & SHUT == 0 => Ok(()),
            // Somebody else was quicker, or it has been deregistered meanwhile.
            idle => Err(Denied(idle)),
        }
    }

    /// Gives a reference back. Returns the owner if that was the last one of a dead region.
    #[inline]
    pub(crate) fn release(&self, name: u32) -> Option<ClientId> {
        let (index, slot) = self.named(name)?;
        let mut state = slot.state.load(Ordering::Relaxed);
        // The common case first.
        if state & PHASE == LIVE && state & REFS != 0 {
            let next = state.wrapping_sub(1);
            match slot
                .state
                .compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return None,
                Err(now) => state = now,
            }
        }
        self.release_slow(index, slot, state)
    }

    #[cold]
    fn release_slow(&self, index: u16, slot: &RegionSlot<M>, mut state: u64) -> Option<ClientId> {
        loop {
            if state & REFS == 0 {
                return None;
            }
            let last = state & REFS == 1;
            let (next, owner) = match state & PHASE {
                // SAFETY: the reference being given back keeps the description until the exchange below.
                DEAD if last => (state.wrapping_sub(1), unsafe {
                    slot.read(|info| info.region.domain.client)
                }),
                REVOKED if last => (state & !(PHASE | REFS | SHUT) | FREE, None),
                _ => (state.wrapping_sub(1), None),
            };
            match slot
                .state
                .compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => {
                    if next & PHASE == FREE {
                        self.put_free(index);
                    }
                    return owner;
                }
                Err(now) => state = now,
            }
        }
    }

    /// Kills the keys of a live region. True: nothing uses it.
    pub(crate) fn kill(&self, client: ClientId, key: u32) -> Result<bool, DeviceError> {
        let (_, slot) = self.named(key).ok_or(DeviceError::NoRegion)?;
        let mut state = slot.state.load(Ordering::Relaxed);
        loop {
            if !is(state, key) || !owned_by(state, client) || state & PHASE != LIVE {
                return Err(DeviceError::NoRegion);
            }
            let next = state & !PHASE | DEAD;
            match slot
                .state
                .compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Ok(state & REFS == 0),
                Err(now) => state = now,
            }
        }
    }

    /// Moves a dead region (with `force` also one that is in use or live) to revoked; the caller then has to
    /// [`Self::take`] it, with `force` after the copies now running. False: it is still in use.
    pub(crate) fn revoke(&self, client: ClientId, key: u32, force: bool) -> Result<bool, DeviceError> {
        let (_, slot) = self.named(key).ok_or(DeviceError::NoRegion)?;
        let mut state = slot.state.load(Ordering::Relaxed);
        loop {
            if !is(state, key) || !owned_by(state, client) {
                return Err(DeviceError::NoRegion);
            }
            match state & PHASE {
                DEAD if force || state & REFS == 0 => {}
                LIVE if force => {}
                DEAD => return Ok(false),
                _ => return Err(DeviceError::NoRegion),
            }
            // The reference keeps the slot from becoming free before it is taken.
            let next = (state & !PHASE | REVOKED).wrapping_add(1);
            match slot
                .state
                .compare_exchange_weak(state, next, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return Ok(true),
                Err(now) => state = now,
            }
        }
    }

    /// Takes out a revoked region: its length and the home's token.
    ///
    /// # Safety
    /// The caller's [`Self::revoke`] of this key returned true, this is its only `take`, and copy phases that were
    /// running then have ended (with `force`; without, the region had no references).
    pub(crate) unsafe fn take(&self, key: u32) -> Option<(u64, M)> {
        let (_, slot) = self.named(key)?;
        // SAFETY: by this function's contract nobody reads the token any more: `for_copy` refuses since the
        // revocation, and whoever it was given to before has ended its copy phase.
        let mem = slot.mem.with_mut(|cell| unsafe { (*cell).take() });
        // SAFETY: the caller holds the reference its `revoke` took.
        let len = unsafe { slot.read(|info| info.region.len) };
        self.release(key);
        Some((len?, mem?))
    }

    /// The home's token, to copy to or from. `None` if the region was revoked.
    ///
    /// # Safety
    /// The reference `mem` has not been given back, and the caller is in a copy phase (`links.rs`) that lasts as
    /// long as it uses the result.
    #[inline]
    pub(crate) unsafe fn for_copy(&self, mem: MemRef) -> Option<&M> {
        let (_, slot) = self.named(u32::try_from(mem.0).ok()?)?;
        if !matches!(slot.state.load(Ordering::Acquire) & PHASE, LIVE | DEAD) {
            return None;
        }
        // SAFETY: the token is taken only from a revoked region, and a revocation that this load has not seen
        // waits for the caller's copy phase to end.
        slot.mem.with(|cell| unsafe { (*cell).as_ref() })
    }

    /// How the home reaches a region whose bytes go into a frame.
    ///
    /// # Safety
    /// As for [`Self::for_copy`], and in the same copy phase [`Self::lives`] has said that it lives.
    #[inline]
    pub(crate) unsafe fn for_gather(&self, mem: MemRef) -> Option<&M> {
        // A place of which there is a reference keeps its name.
        let (index, _) = split(u32::try_from(mem.0).ok()?);
        let slot = self.slots.get(usize::from(index))?;
        // SAFETY: a revocation that `lives` has not seen waits for the caller's copy phase to end before it takes the
        // token.
        slot.mem.with(|cell| unsafe { (*cell).as_ref() })
    }

    /// Whether a region of which the caller has a reference may still be read. If the caller is in a copy phase, that
    /// holds until its end: whoever revokes the region later waits for it.
    #[inline]
    pub(crate) fn lives(&self, name: u32) -> bool {
        self.named(name)
            .is_some_and(|(_, slot)| matches!(slot.state.load(Ordering::Acquire) & PHASE, LIVE | DEAD))
    }

    /// Keys of all regions of a client that are live or dead.
    pub(crate) fn keys_of(&self, client: ClientId) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().enumerate().filter_map(move |(index, slot)| {
            let state = slot.state.load(Ordering::Relaxed);
            let mine = matches!(state & PHASE, LIVE | DEAD) && owned_by(state, client);
            mine.then_some(join(u16::try_from(index).ok()?, generation_of(state)))
        })
    }

    /// `live` is the state the slot must be in, but for the bits in `other`, its references among them.
    #[inline]
    fn acquire(
        &self,
        slot: &RegionSlot<M>,
        key: u32,
        live: u64,
        other: u64,
        span: impl FnOnce(&Info) -> Option<u64>,
    ) -> Result<MemAt, Denied> {
        let mut state = slot.state.load(Ordering::Relaxed);
        loop {
            if state & !other != live || state & REFS == REFS {
                return Err(Denied(None));
            }
            let next = state.wrapping_add(1);
            match slot
                .state
                .compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        let mem = MemRef(u64::from(key));
        // SAFETY: the reference just taken keeps the description.
        match unsafe { slot.read(span) }.flatten() {
            Some(offset) => Ok(MemAt { mem, offset }),
            None => Err(Denied(self.release(key))),
        }
    }

    #[inline]
    fn named(&self, key: u32) -> Option<(u16, &RegionSlot<M>)> {
        let (index, _) = split(key);
        let slot = self.slots.get(usize::from(index))?;
        is(slot.state.load(Ordering::Relaxed), key).then_some((index, slot))
    }

    fn take_free(&self) -> Option<(u16, &RegionSlot<M>)> {
        let mut free = self.free.lock();
        let index = if let Some(len) = free.len.checked_sub(1) {
            free.len = len;
            *free.stack.get(len)?
        } else {
            let fresh = free.fresh;
            let index = u16::try_from(fresh).ok().filter(|_| fresh < self.slots.len())?;
            free.fresh = fresh.saturating_add(1);
            index
        };
        Some((index, self.slots.get(usize::from(index))?))
    }

    fn put_free(&self, index: u16) {
        let mut free = self.free.lock();
        let len = free.len;
        if let Some(place) = free.stack.get_mut(len) {
            *place = index;
            free.len = len.saturating_add(1);
        }
    }
}

impl<M> RegionSlot<M> {
    /// # Safety
    /// The caller holds a reference on the region.
    #[inline]
    unsafe fn read<T>(&self, f: impl FnOnce(&Info) -> T) -> Option<T> {
        // SAFETY: the description is written only while the slot is free, which the reference prevents.
        self.info.with(|cell| unsafe { (*cell).as_ref().map(f) })
    }
}

impl Region {
    /// Offset of `addr`, if `addr..addr + len` is within the region and does not wrap.
    #[inline]
    fn span(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.addr)?;
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(offset)
    }
}

/// The state of a live region without references. Generation 0 is never live: no key names it.
#[inline]
fn live(generation: u16, client: ClientId) -> u64 {
    if generation == 0 {
        return u64::MAX;
    }
    u64::from(generation) << 48 | LIVE | (client.index() as u64) << 32 & OWNER
}

#[inline]
fn generation_of(state: u64) -> u16 {
    let [.., low, high] = state.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Whether the state is of the generation the key names; generation 0 names nothing.
#[inline]
fn is(state: u64, key: u32) -> bool {
    let (_, generation) = split(key);
    generation != 0 && generation_of(state) == generation
}

#[inline]
fn owned_by(state: u64, client: ClientId) -> bool {
    (state & OWNER) >> 32 == client.index() as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::SpinLock;

    const A: ClientId = ClientId(0x1_0000);
    const B: ClientId = ClientId(0x1_0001);
    const OF_A: Domain = Domain { client: A, pd: 0 };
    const OF_B: Domain = Domain { client: B, pd: 0 };
    const ANY: fn() -> Option<NodeId> = || None;

    fn name(mem: MemRef) -> u32 {
        u32::try_from(mem.0).unwrap()
    }

    fn regions(count: usize) -> Regions<SpinLock, &'static str> {
        Regions::new(Slab::boxed(count), Slab::boxed(count)).unwrap()
    }

    fn region(client: ClientId, addr: u64, len: u64, access: Access) -> Region {
        Region {
            domain: Domain::of(client),
            addr,
            len,
            access,
            peer: None,
        }
    }

    #[test]
    fn ranges_that_wrap_or_leave_the_region_are_denied() {
        let regions = regions(4);
        let keys = regions
            .insert(region(A, 0x1000, 0x100, Access::LOCAL), "m", 7)
            .unwrap();
        let local = |addr, len| regions.acquire_local(OF_A, keys.local, (addr, len), true);
        assert_eq!(local(0x1010, 0x10).unwrap().offset, 0x10);
        assert_eq!(local(0x1000, 0x100).unwrap().offset, 0);
        assert_eq!(local(0x1100, 0).unwrap().offset, 0x100);
        for (addr, len) in [
            (0xfff, 1),
            (0x1000, 0x101),
            (0x10ff, 2),
            (0x1101, 0),
            (0x1010, u64::MAX),
            (u64::MAX, 2),
            (0, 0x2000),
        ] {
            assert_eq!(local(addr, len), Err(Denied(None)), "{addr:#x}+{len:#x}");
        }
        let top = regions
            .insert(region(A, u64::MAX - 0xf, 0x10, Access::LOCAL), "top", 7)
            .unwrap();
        assert!(
            regions
                .acquire_local(OF_A, top.local, (u64::MAX, 1), true)
                .is_ok()
        );
        assert!(
            regions
                .acquire_local(OF_A, top.local, (u64::MAX, 2), true)
                .is_err()
        );
    }

    #[test]
    fn keys_of_another_client_are_denied() {
        let regions = regions(4);
        let keys = regions
            .insert(region(A, 0, 64, Access::REMOTE_WRITE), "m", 7)
            .unwrap();
        assert!(regions.acquire_local(OF_B, keys.local, (0, 1), false).is_err());
        let remote = |domain| regions.acquire_remote(domain, keys.remote, (0, 1), Access::REMOTE_WRITE, ANY);
        assert!(remote(OF_B).is_err());
        assert!(remote(OF_A).is_ok());
        assert_eq!(regions.kill(B, keys.local), Err(DeviceError::NoRegion));
    }

    #[test]
    fn keys_of_another_protection_domain_are_denied() {
        let regions = regions(4);
        let mine = Region {
            domain: Domain { client: A, pd: 7 },
            ..region(A, 0, 64, Access::REMOTE_WRITE)
        };
        let keys = regions.insert(mine, "m", 7).unwrap();
        for pd in [0, 6, 7] {
            let domain = Domain { client: A, pd };
            let local = regions.acquire_local(domain, keys.local, (0, 1), false);
            let remote = regions.acquire_remote(domain, keys.remote, (0, 1), Access::REMOTE_WRITE, ANY);
            assert_eq!((local.is_ok(), remote.is_ok()), (pd == 7, pd == 7), "domain {pd}");
        }
    }

    #[test]
    fn rights_not_granted_and_guessed_keys_are_denied() {
        let regions = regions(4);
        let keys = regions
            .insert(region(A, 0, 64, Access::REMOTE_READ), "m", 0xdead_beef_0000_0000)
            .unwrap();
        let remote = |key, access| regions.acquire_remote(OF_A, key, (0, 8), access, ANY);
        assert!(remote(keys.remote, Access::REMOTE_READ).is_ok());
        assert!(remote(keys.remote, Access::REMOTE_WRITE).is_err());
        assert!(remote(keys.remote, Access::REMOTE_ATOMIC).is_err());
        assert!(remote(keys.remote ^ 1 << 40, Access::REMOTE_READ).is_err());
        assert!(remote(keys.remote | 3, Access::REMOTE_READ).is_err());
    }

    #[test]
    fn what_is_to_be_read_only_is_written_by_nobody() {
        let regions = regions(4);
        let access = Access::READ_ONLY | Access::REMOTE_READ;
        let keys = regions.insert(region(A, 0, 64, access), "m", 7).unwrap();
        let local = |writes| regions.acquire_local(OF_A, keys.local, (0, 8), writes);
        assert!(local(false).is_ok());
        assert!(local(true).is_err());
        let remote = |access| regions.acquire_remote(OF_A, keys.remote, (0, 8), access, ANY);
        assert!(remote(Access::REMOTE_READ).is_ok());
        assert!(remote(Access::REMOTE_WRITE).is_err());
        for peers in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(Access::from_bits((peers | Access::READ_ONLY).bits()), None);
        }
        assert_eq!(Access::from_bits(access.bits()), Some(access));
        assert_eq!(Access::from_bits(16), None);
    }

    #[test]
    fn a_key_bound_to_one_peer_is_denied_to_another() {
        let regions = regions(4);
        let bound = Region {
            peer: Some(NodeId(5)),
            ..region(A, 0, 64, Access::REMOTE_WRITE | Access::REMOTE_READ)
        };
        let keys = regions.insert(bound, "m", 7).unwrap();
        let from = |node| {
            regions
                .acquire_remote(OF_A, keys.remote, (0, 8), Access::REMOTE_WRITE, || {
                    Some(NodeId(node))
                })
                .is_ok()
        };
        assert!(from(5));
        assert!(!from(6));
    }

    #[test]
    fn a_deregistered_region_denies_at_once_and_tells_its_owner_when_it_is_idle() {
        let regions = regions(1);
        let keys = regions.insert(region(A, 0, 64, Access::LOCAL), "m", 7).unwrap();
        let held = regions.acquire_local(OF_A, keys.local, (0, 8), true).unwrap();
        assert_eq!(regions.kill(A, keys.local), Ok(false));
        assert_eq!(regions.kill(A, keys.local), Err(DeviceError::NoRegion));
        assert!(regions.acquire_local(OF_A, keys.local, (0, 8), true).is_err());
        assert_eq!(regions.revoke(A, keys.local, false), Ok(false));
        assert!(
            regions.insert(region(A, 0, 1, Access::LOCAL), "n", 8).is_err(),
            "the place is still taken"
        );
        assert_eq!(regions.release(name(held.mem)), Some(A));
        assert_eq!(regions.revoke(A, keys.local, false), Ok(true));
        // SAFETY: just revoked without references.
        assert_eq!(unsafe { regions.take(keys.local) }, Some((64, "m")));
        assert!(regions.revoke(A, keys.local, true).is_err());
        let next = regions.insert(region(A, 0, 1, Access::LOCAL), "n", 8).unwrap();
        assert_ne!(
            next.local, keys.local,
            "the old key does not reach the new region"
        );
        assert_eq!(regions.release(name(held.mem)), None, "nor does an old reference");
    }

    #[test]
    fn a_revoked_region_is_not_copied_to_and_its_place_returns_with_the_last_reference() {
        let regions = regions(1);
        let keys = regions.insert(region(A, 0, 64, Access::LOCAL), "m", 7).unwrap();
        let held = regions.acquire_local(OF_A, keys.local, (0, 8), true).unwrap();
        // SAFETY: one thread, `held` is not given back.
        assert_eq!(unsafe { regions.for_copy(held.mem) }, Some(&"m"));
        assert_eq!(regions.revoke(A, keys.local, true), Ok(true));
        // SAFETY: as above.
        assert_eq!(unsafe { regions.for_copy(held.mem) }, None);
        // SAFETY: just revoked, no copy is running.
        assert_eq!(unsafe { regions.take(keys.local) }, Some((64, "m")));
        assert!(regions.insert(region(A, 0, 1, Access::LOCAL), "n", 8).is_err());
        assert_eq!(regions.release(name(held.mem)), None);
        assert!(regions.insert(region(A, 0, 1, Access::LOCAL), "n", 8).is_ok());
    }

    #[test]
    fn a_clients_keys_are_found_for_teardown() {
        let regions = regions(8);
        let mine: std::vec::Vec<u32> = (0..3)
            .map(|n| {
                regions
                    .insert(region(A, n, 1, Access::LOCAL), "m", n)
                    .unwrap()
                    .local
            })
            .collect();
        regions.insert(region(B, 0, 1, Access::LOCAL), "b", 9).unwrap();
        assert!(regions.keys_of(A).eq(mine));
    }
}
