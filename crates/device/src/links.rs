//! The table of links, and copy phases.
//!
//! A thread in [`crate::Device::turn`] is in the link's *copy phase*: its count of turns is odd. Only in a copy phase
//! is registered memory touched. It begins under the link's lock, and ends without. Whoever revokes memory marks it
//! revoked, then takes the lock of each link once, and waits if a copy phase is on. A phase that began under an earlier
//! hold of the lock is seen by that, and waited for; one that begins under a later hold sees the mark. The count
//! also keeps a second thread out.

use usb4_engine::{
    Counters, Link, LinkConfig, LinkStorage, Nanos, NodeId, RailConfig, RailId, RailStatus, Usage,
};

use crate::endpoint::{FAILED, Kind};
use crate::host::LinkHost;
use crate::id::{next_generation, split};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::{
    Device, DeviceError, EndpointId, EndpointKind, Home, LinkId, Lock, LockGuard, Object, Owner, Port,
    QpEvent, QpKind, RawLock,
};

/// Place of a link (opaque).
#[derive(Debug)]
pub struct LinkSlot<H: Home> {
    /// Raw name of the link that is here, 0 if none.
    id: AtomicU32,
    /// Of the last link here; written under the control lock.
    generation: AtomicU32,
    /// Turns of `service` begun and ended; odd: one is running.
    pub(crate) turns: Turns,
    /// The link was up when last looked at.
    up: AtomicBool,
    /// Clients may have the link.
    chosen: AtomicBool,
    /// The link has been given something to do since the last turn began.
    pub(crate) touched: AtomicBool,
    /// When the link's timers are due, as of the last turn; used by whoever holds the copy phase.
    pub(crate) deadline: AtomicU64,
    owner: Owner,
    pub(crate) link: Lock<H::Lock, Option<Link>>,
}

impl<H: Home> Default for LinkSlot<H> {
    fn default() -> Self {
        Self {
            id: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            turns: Turns::default(),
            up: AtomicBool::new(false),
            chosen: AtomicBool::new(false),
            touched: AtomicBool::new(false),
            deadline: AtomicU64::new(0),
            owner: Owner::new(),
            link: Lock::new(None),
        }
    }
}

/// A link's lock, held: from [`Device::submit_held`] for [`Device::turn`].
pub struct LinkHeld<'a, H: Home> {
    pub(crate) id: LinkId,
    pub(crate) guard: LockGuard<'a, H::Lock, Option<Link>>,
}

impl<H: Home> LinkHeld<'_, H> {
    /// Which link it is.
    pub fn id(&self) -> LinkId {
        self.id
    }
}

/// Copy phases of one link.
#[derive(Debug)]
pub(crate) struct Turns(AtomicU64);

/// A copy phase; ends when dropped.
#[derive(Debug)]
pub(crate) struct CopyPhase<'a>(&'a Turns);

impl Default for Turns {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Turns {
    /// Begins a copy phase of the link whose lock the caller holds. `None` if another thread is in one.
    #[inline]
    pub(crate) fn enter<R: RawLock, T>(&self, _held: &LockGuard<'_, R, T>) -> Option<CopyPhase<'_>> {
        let turns = self.0.load(Ordering::Acquire);
        if turns & 1 != 0 {
            return None;
        }
        self.0.store(turns.wrapping_add(1), Ordering::Relaxed);
        Some(CopyPhase(self))
    }

    /// Waits until a copy phase that is running now has ended. What the caller stored before is seen by every
    /// later one. `link` is the link's lock.
    pub(crate) fn wait<R: RawLock, T>(&self, link: &Lock<R, T>, relax: impl Fn()) {
        let turns = {
            let _held = link.lock();
            self.0.load(Ordering::Acquire)
        };
        if turns & 1 != 0 {
            while self.0.load(Ordering::Acquire) == turns {
                relax();
            }
        }
    }
}

impl Drop for CopyPhase<'_> {
    #[inline]
    fn drop(&mut self) {
        let turns = self.0.0.load(Ordering::Relaxed);
        self.0.0.store(turns.wrapping_add(1), Ordering::Release);
    }
}

impl<H: Home> LinkSlot<H> {
    /// The link, if it has that name, locked.
    #[inline]
    pub(crate) fn lock(&self, id: LinkId) -> Option<LockGuard<'_, H::Lock, Option<Link>>> {
        let guard = self.link.lock();
        (id.0 != 0 && self.id.load(Ordering::Relaxed) == id.0 && guard.is_some()).then_some(guard)
    }

    /// As [`Self::lock`], by somebody who gives the link something to do.
    #[inline]
    pub(crate) fn touch(&self, id: LinkId) -> Option<LockGuard<'_, H::Lock, Option<Link>>> {
        let guard = self.lock(id)?;
        // Cleared before a turn takes the lock: what is done under this hold is seen by a turn that clears it later.
        self.touched.store(true, Ordering::Release);
        Some(guard)
    }

    /// The name of the link that is here.
    fn id(&self) -> Option<LinkId> {
        match self.id.load(Ordering::Acquire) {
            0 => None,
            id => Some(LinkId(id)),
        }
    }
}

impl<H: Home> Device<H> {
    /// Adds a link to a peer (or to this host itself: loopback), without rails.
    ///
    /// # Errors
    /// There is a link to that host, or no place for another.
    pub fn add_link(&self, config: LinkConfig, storage: LinkStorage) -> Result<LinkId, DeviceError> {
        let control = self.control.lock();
        if self.link_to(config.peer).is_some() {
            return Err(DeviceError::Exists);
        }
        self.place_link(&control, config, storage, true)
    }

    /// As [`Self::add_link`], for a rail that may turn out to belong to another link to the same host
    /// ([`usb4_engine::Joins`]): the peer may use it, this host's clients do not before [`Self::choose`].
    ///
    /// # Errors
    /// There is no place for another link.
    pub fn add_candidate(&self, config: LinkConfig, storage: LinkStorage) -> Result<LinkId, DeviceError> {
        self.place_link(&self.control.lock(), config, storage, false)
    }

    /// Clients may have the link from now on. True if they might not before.
    pub fn choose(&self, link: LinkId) -> bool {
        let slot = self.link_slot(link).filter(|slot| slot.id() == Some(link));
        slot.is_some_and(|slot| !slot.chosen.swap(true, Ordering::AcqRel))
    }

    /// The control lock is held.
    fn place_link<T>(
        &self,
        _control: &LockGuard<'_, H::Lock, T>,
        config: LinkConfig,
        storage: LinkStorage,
        chosen: bool,
    ) -> Result<LinkId, DeviceError> {
        let free = self
            .links
            .iter()
            .enumerate()
            .find(|(_, slot)| slot.id().is_none());
        let (index, slot) = free.ok_or(DeviceError::Full(Object::Link))?;
        let index = u16::try_from(index).map_err(|_| DeviceError::Storage)?;
        let (generation, _) = split(slot.generation.load(Ordering::Relaxed));
        let generation = next_generation(generation);
        slot.generation.store(u32::from(generation), Ordering::Relaxed);
        let id = LinkId::new(index, generation);
        slot.deadline.store(0, Ordering::Relaxed);
        slot.chosen.store(chosen, Ordering::Relaxed);
        let mut link = slot.link.lock();
        *link = Some(Link::new(config, storage));
        slot.id.store(id.0, Ordering::Release);
        Ok(id)
    }

    /// Adds a rail to a link; with the first the link is up.
    ///
    /// # Errors
    /// No such link, or it does not take the rail.
    pub fn attach_rail(
        &self,
        link: LinkId,
        now: Nanos,
        rail: RailId,
        config: &RailConfig,
    ) -> Result<(), DeviceError> {
        let slot = self.link_slot(link).ok_or(DeviceError::NoLink)?;
        let mut guard = slot.lock(link).ok_or(DeviceError::NoLink)?;
        guard
            .as_mut()
            .ok_or(DeviceError::NoLink)?
            .attach_rail(now, rail, config)?;
        slot.up.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a rail that has been stopped. Without another one the link fails.
    ///
    /// # Errors
    /// No such link.
    pub fn detach_rail(
        &self,
        link: LinkId,
        port: &H::Port,
        now: Nanos,
        rail: RailId,
    ) -> Result<(), DeviceError> {
        self.end(link, port, |link, host| link.detach_rail(now, rail, host))
    }

    /// Fails a link: all work on it completes `LINK_DOWN`, connected endpoints go to error.
    ///
    /// # Errors
    /// No such link.
    pub fn fail_link(&self, link: LinkId, port: &H::Port, now: Nanos) -> Result<(), DeviceError> {
        self.end(link, port, |link, host| link.fail(now, host))
    }

    /// Fails a link, waits for a turn of [`Self::service`] that is running in another thread, and forgets the
    /// link. Its memory comes back, for the next one. Entries that waited for it on submission queues complete. No lock
    /// may be held.
    ///
    /// # Errors
    /// No such link.
    pub fn remove_link(&self, link: LinkId, port: &H::Port, now: Nanos) -> Result<LinkStorage, DeviceError> {
        self.fail_link(link, port, now)?;
        let slot = self.link_slot(link).ok_or(DeviceError::NoLink)?;
        let (mut guard, phase) = loop {
            let guard = slot.lock(link).ok_or(DeviceError::NoLink)?;
            match slot.turns.enter(&guard) {
                Some(phase) => break (guard, phase),
                None => {
                    drop(guard);
                    self.home.relax();
                }
            }
        };
        slot.id.store(0, Ordering::Release);
        let gone = guard.take();
        drop(guard);
        let mut gone = gone.ok_or(DeviceError::NoLink)?;
        while let Some(token) = gone.next_released() {
            port.release(token);
        }
        drop(phase);
        // What waited for room on this link, or for a flow of it, would wait for the turn of another.
        let turns = self.endpoints.len();
        let _ = (0..turns).all(|_| self.serve_waiting(now));
        Ok(gone.into_storage())
    }

    /// The link to a host that clients may have.
    pub fn link_to(&self, node: NodeId) -> Option<LinkId> {
        let chosen = |slot: &&LinkSlot<H>| slot.chosen.load(Ordering::Acquire);
        self.links.iter().filter(chosen).find_map(|slot| {
            let id = slot.id()?;
            let guard = slot.lock(id)?;
            let link = guard.as_ref()?;
            (link.config().peer == node).then_some(id)
        })
    }

    /// Whether a link has a rail and has not failed.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.look(link, |link| link.is_up()).unwrap_or(false)
    }

    /// Who drives the link. A home that drives all its links together uses an [`Owner`] of its own.
    pub fn owner(&self, link: LinkId) -> Option<&Owner> {
        self.link_slot(link).map(|slot| &slot.owner)
    }

    /// What has happened on a link.
    pub fn counters(&self, link: LinkId) -> Option<Counters> {
        self.look(link, |link| *link.counters())
    }

    /// How much of a link's memory is in use.
    pub fn usage(&self, link: LinkId) -> Option<Usage> {
        self.look(link, |link| link.usage())
    }

    /// The state of a rail, if it is attached.
    pub fn rail_status(&self, link: LinkId, rail: RailId) -> Option<RailStatus> {
        self.look(link, |link| link.rail_status(rail)).flatten()
    }

    /// Gives the peer, on the rails of this link, the nonce with which another rail may join it.
    pub fn offer_join(&self, link: LinkId, nonce: u64) {
        self.with_link(link, |link| link.offer_join(nonce));
    }

    /// The nonce the peer has given since the last call: for the bring-up of another rail to the same peer.
    pub fn take_join(&self, link: LinkId) -> Option<u64> {
        self.with_link(link, Link::take_join).flatten()
    }

    /// Whether [`Self::service`] may have something to do on a link for which no frame, completed descriptor or
    /// deadline speaks: entries have been submitted to it, or endpoints wait. Any link will do for the latter.
    #[inline]
    pub fn wants_service(&self, link: LinkId) -> bool {
        let touched = |slot: &LinkSlot<H>| slot.touched.load(Ordering::Acquire);
        self.has_waiting() || self.link_slot(link).is_some_and(touched)
    }

    /// Calls `f` with the link of that name, under its lock; gives it nothing to do.
    #[inline(never)]
    fn look<T>(&self, id: LinkId, f: impl FnOnce(&Link) -> T) -> Option<T> {
        let guard = self.link_slot(id)?.lock(id)?;
        guard.as_ref().map(f)
    }

    /// Calls `f` with the link of that name, under its lock.
    #[inline]
    pub(crate) fn with_link<T>(&self, id: LinkId, f: impl FnOnce(&mut Link) -> T) -> Option<T> {
        let mut guard = self.link_slot(id)?.touch(id)?;
        guard.as_mut().map(f)
    }

    /// As [`Self::with_link`], for what the engine needs a host for.
    #[inline]
    pub(crate) fn with_host<T>(
        &self,
        id: LinkId,
        f: impl FnOnce(&mut Link, &LinkHost<'_, H>) -> T,
    ) -> Option<T> {
        // SAFETY: it is dropped at the end of the closure, which runs with the link's lock held.
        self.with_link(id, |link| f(link, &unsafe { LinkHost::new(self) }))
    }

    /// Calls `f` with every link, each under its lock.
    pub(crate) fn for_each_link(&self, mut f: impl FnMut(&mut Link, &LinkHost<'_, H>)) {
        for slot in self.links.iter() {
            if let Some(mut guard) = slot.id().and_then(|id| slot.touch(id)) {
                if let Some(link) = guard.as_mut() {
                    // SAFETY: it is dropped before the guard.
                    f(link, &unsafe { LinkHost::new(self) });
                }
            }
        }
    }

    #[inline]
    pub(crate) fn link_slot(&self, id: LinkId) -> Option<&LinkSlot<H>> {
        self.links.get(id.index())
    }

    /// Tells every link that an endpoint is gone.
    pub(crate) fn close_target(&self, ep: EndpointId, now: Nanos) {
        self.for_each_link(|link, host| link.close_target(now, ep.0, host));
    }

    /// Waits until every copy that was running has ended.
    pub(crate) fn wait_for_copies(&self) {
        for slot in self.links.iter() {
            slot.turns.wait(&slot.link, || self.home.relax());
        }
    }

    /// Notices that a link has gone down since it was last looked at. No lock may be held.
    pub(crate) fn look_at(&self, id: LinkId, up: bool) {
        let Some(slot) = self.link_slot(id) else { return };
        if up || !slot.up.swap(false, Ordering::Relaxed) {
            return;
        }
        for endpoint in self.endpoints.iter() {
            let connected = |tx: &crate::endpoint::Tx<H>| {
                let ah = tx.handles.first().and_then(|handle| handle.0);
                // An unreliable connection is none that could be lost.
                let reliable = matches!(
                    tx.kind,
                    Kind::Ring(EndpointKind::Connected) | Kind::Qp(QpKind::Rc)
                );
                (reliable && ah.is_some_and(|ah| ah.link == id)).then_some(tx.id)
            };
            let ep = endpoint.tx.lock().as_ref().and_then(connected);
            let Some(ep) = ep else { continue };
            if endpoint.qp_kind().is_none() {
                if endpoint.fail() {
                    self.attend(endpoint, ep, FAILED);
                }
            } else if endpoint.fail_qp() {
                self.attend(endpoint, ep, FAILED);
                self.home.qp_event(endpoint.client(), ep, QpEvent::Fatal);
            }
        }
    }

    fn end(
        &self,
        id: LinkId,
        port: &H::Port,
        f: impl FnOnce(&mut Link, &LinkHost<'_, H>),
    ) -> Result<(), DeviceError> {
        let up = self
            .with_host(id, |link, host| {
                f(link, host);
                while let Some(token) = link.next_released() {
                    port.release(token);
                }
                link.is_up()
            })
            .ok_or(DeviceError::NoLink)?;
        self.look_at(id, up);
        Ok(())
    }
}
