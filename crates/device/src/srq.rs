//! Shared receive queues: receives that several queue pairs of a client draw from.
//!
//! To clients and tables one is an endpoint that sends nothing and that no peer reaches. Messages that find it empty wait as
//! they do for a queue pair's own receives, on their links' lists; whoever waits there is asked which queue it draws from
//! when something is posted. Its receiving half is locked under that of the queue pair that draws.

use usb4_engine::{MemAt, NakCode, Nanos, Slab};
use usb4_ring_abi::{Consumer, CqeStatus, QueueGeometry, Rqe, Slots};

use crate::client::count;
use crate::endpoint::{EndpointSlot, FAILED, Kind, Rx};
use crate::memory::Domain;
use crate::sync::{AtomicU32, Ordering};
use crate::{
    ClientId, CqId, Device, DeviceError, EndpointId, EndpointState, Home, ListWord, Object, QpEvent, QpKind,
};

/// A shared receive queue to be created.
#[derive(Debug)]
pub struct SrqConfig<H: Home> {
    /// The protection domain of its receives' buffers, not 0.
    pub pd: u32,
    /// Entries, a power of two.
    pub depth: u32,
    /// The queue's memory, zeroed.
    pub rq: H::Queue,
    /// Slots behind its entries.
    pub slots: Slots,
    /// [`crate::list_words`] of them.
    pub lists: Slab<ListWord>,
}

/// Receives that a queue pair has taken from its shared receive queue and that have not completed, and whether it takes
/// more. Exactly one of those that end the last of them and that stop it learns that there will be no other
/// (`loom_tests.rs`).
#[derive(Debug)]
pub(crate) struct Draws(AtomicU32);

/// The queue pair is in error, and takes no more.
const NO_MORE: u32 = 1 << 31;

impl Draws {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// One is about to be taken; false if none may be any more.
    pub(crate) fn take(&self) -> bool {
        let take = |taken: u32| (taken & NO_MORE == 0).then(|| taken.saturating_add(1));
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, take)
            .is_ok()
    }

    /// One has completed, or was not taken after all. True if there will be no other.
    pub(crate) fn end(&self) -> bool {
        let end = |taken: u32| (taken & !NO_MORE != 0).then(|| taken.wrapping_sub(1));
        let ended = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, end);
        ended == Ok(NO_MORE | 1)
    }

    /// None is taken any more. True, the first time, if all have completed.
    pub(crate) fn stop(&self) -> bool {
        self.0.fetch_or(NO_MORE, Ordering::AcqRel) == 0
    }

    /// The queue pair is new, or reset and nothing of its earlier life completes any more.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A receive that was taken for a message.
pub(crate) struct Drawn {
    pub(crate) rqe: Rqe,
    pub(crate) cookie: u64,
    /// Its buffer, or what it completes with at once.
    pub(crate) at: Result<MemAt, CqeStatus>,
}

/// Who takes it.
#[derive(Clone, Copy)]
pub(crate) struct Drawer {
    pub(crate) kind: QpKind,
    pub(crate) id: EndpointId,
    pub(crate) cq: CqId,
    pub(crate) op_flags: u8,
    /// The least room that will do.
    pub(crate) needed: u32,
    /// The room that the message takes, if there is so much.
    pub(crate) used: u32,
}

impl<H: Home> Device<H> {
    /// Creates a shared receive queue. It counts as an endpoint, [`Self::submit`] takes its name when something was posted,
    /// and it is destroyed as an endpoint is, once no queue pair draws from it.
    ///
    /// # Errors
    /// A bad depth or too little memory, quota or table full, no such client.
    pub fn create_srq(&self, client: ClientId, config: SrqConfig<H>) -> Result<EndpointId, DeviceError> {
        let SrqConfig {
            pd,
            depth,
            rq,
            slots,
            lists,
        } = config;
        if pd == 0 {
            return Err(DeviceError::Range);
        }
        let size = QueueGeometry::of::<Rqe>(depth)?.with_slots(slots).words();
        let lists = self.lists_for((1, Slots::NONE, Slab::default()), (depth, slots, lists))?;
        if rq.len() < size {
            return Err(DeviceError::Storage);
        }
        let rq = Consumer::new(rq, depth)?;
        let mut control = self.control.lock();
        control.charge(client, |quota, used| {
            count(&mut used.endpoints, 1, quota.endpoints, Object::Endpoint)
        })?;
        let Some((slot, id)) = self.place_endpoint(Kind::Srq, None) else {
            control.credit(client, |used| used.endpoints = used.endpoints.saturating_sub(1));
            return Err(DeviceError::Full(Object::Endpoint));
        };
        self.put_lists(id, lists);
        let domain = Domain { client, pd };
        let process_key = control.process_key(client);
        *slot.rx.lock() = Some(Rx {
            id,
            domain,
            kind: Kind::Srq,
            op_flags: Kind::Srq.op_flags(),
            incarnation: 0,
            cq: CqId(0),
            process_key,
            peer: None,
            qkey: 0,
            rq,
        });
        slot.open(id, domain, Kind::Srq, EndpointState::Ready, Some(id));
        Ok(id)
    }

    /// Has the client told, once, when a shared receive queue has fewer receives than `limit`, or now if it has; 0: not.
    ///
    /// # Errors
    /// No such queue; it does not hold as many.
    pub fn limit_srq(&self, client: ClientId, srq: EndpointId, limit: u32) -> Result<(), DeviceError> {
        self.with_srq(client, srq, |slot, rx| {
            if limit > rx.rq.depth() {
                return Err(DeviceError::Attribute);
            }
            slot.limit.store(limit, Ordering::Relaxed);
            self.look_at_limit(slot, rx);
            Ok(())
        })?
    }

    /// The limit that is in force; 0 if there is none, or none any more.
    ///
    /// # Errors
    /// The client has no such queue.
    pub fn srq_limit(&self, client: ClientId, srq: EndpointId) -> Result<u32, DeviceError> {
        self.with_srq(client, srq, |slot, _| slot.limit.load(Ordering::Relaxed))
    }

    fn with_srq<T>(
        &self,
        client: ClientId,
        srq: EndpointId,
        f: impl FnOnce(&EndpointSlot<H>, &mut Rx<H>) -> T,
    ) -> Result<T, DeviceError> {
        let slot = self.endpoint_of(client, srq)?;
        if !slot.is_srq(srq) {
            return Err(DeviceError::State);
        }
        let mut rx = slot.rx.lock();
        let rx = rx.as_mut().filter(|rx| rx.id == srq);
        rx.map(|rx| f(slot, rx)).ok_or(DeviceError::NoEndpoint)
    }

    /// One more queue pair draws from it.
    pub(crate) fn join_srq(&self, client: ClientId, srq: EndpointId) -> Result<(), DeviceError> {
        self.with_srq(client, srq, |slot, _| {
            slot.users.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// One less does.
    pub(crate) fn leave_srq(&self, srq: Option<EndpointId>) {
        if let Some(slot) = srq.and_then(|srq| self.endpoint(srq)) {
            // Not while somebody looks whether there are any.
            let _rx = slot.rx.lock();
            slot.users.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes its name away, if no queue pair draws from it.
    pub(crate) fn close_srq(&self, slot: &EndpointSlot<H>, srq: EndpointId) -> Result<(), DeviceError> {
        let rx = slot.rx.lock();
        match rx.as_ref().filter(|rx| rx.id == srq) {
            Some(_) if slot.users.load(Ordering::Relaxed) != 0 => Err(DeviceError::Busy),
            Some(_) if slot.close(srq) => Ok(()),
            _ => Err(DeviceError::NoEndpoint),
        }
    }

    /// Something was posted: whoever waits for it may go on. There may not be enough for all.
    pub(crate) fn feed_drawers(&self, srq: EndpointId, now: Nanos) {
        let draws = |target: u32| {
            let slot = self.endpoint(EndpointId(target));
            slot.is_some_and(|slot| slot.is_srq(srq))
        };
        self.for_each_link(|link, _| link.receives_posted(now, draws));
    }

    /// A shared receive queue was found corrupt: the queue pairs that draw from it are in error, whether messages wait for
    /// its receives or not, on whichever link. No lock may be held.
    #[cold]
    pub(crate) fn fail_drawers(&self, srq: EndpointId) -> bool {
        let mut any = false;
        for slot in self.endpoints.iter() {
            // It does not go while its receiving half is locked, nor does another come here.
            let rx = slot.rx.lock();
            let Some(qp) = rx.as_ref().map(|rx| rx.id) else {
                continue;
            };
            if qp != srq && slot.is(qp) && slot.is_srq(srq) {
                any |= self.fail_drawer(slot, qp);
            }
        }
        any
    }

    /// Puts a queue pair in error whose shared receive queue is corrupt or gone; false if it does not receive.
    fn fail_drawer(&self, slot: &EndpointSlot<H>, qp: EndpointId) -> bool {
        let failed = slot.fail_qp();
        if failed {
            self.attend(slot, qp, FAILED);
            self.home.qp_event(slot.client(), qp, QpEvent::Fatal);
        }
        failed
    }

    /// A queue pair in error takes no more.
    pub(crate) fn stop_drawing(&self, slot: &EndpointSlot<H>, qp: EndpointId) {
        if slot.draws_from().is_some() && slot.draws.stop() {
            self.home.qp_event(slot.client(), qp, QpEvent::LastReceive);
        }
    }

    /// A receive that a queue pair took has completed, or was none.
    pub(crate) fn end_drawing(&self, slot: &EndpointSlot<H>, qp: EndpointId) {
        if slot.draws_from().is_some() && slot.draws.end() {
            self.home.qp_event(slot.client(), qp, QpEvent::LastReceive);
        }
    }

    /// Takes a receive for a queue pair that draws from `srq`.
    #[inline(never)]
    pub(crate) fn draw_shared(
        &self,
        slot: &EndpointSlot<H>,
        drawer: &Drawer,
        srq: EndpointId,
    ) -> Result<Drawn, NakCode> {
        if !slot.draws.take() {
            return Err(NakCode::Gone);
        }
        let drawn = self.draw_from(slot, drawer, srq);
        if drawn.is_err() {
            self.end_drawing(slot, drawer.id);
        }
        if matches!(drawn, Err(NakCode::Gone)) {
            self.fail_drawer(slot, drawer.id);
        }
        drawn
    }

    fn draw_from(&self, slot: &EndpointSlot<H>, drawer: &Drawer, srq: EndpointId) -> Result<Drawn, NakCode> {
        // As long as the queue pair is there, so is what it draws from.
        let shared = self.endpoint(srq).ok_or(NakCode::Gone)?;
        let mut rx = shared.rx.lock();
        let rx = rx.as_mut().filter(|rx| rx.id == srq).ok_or(NakCode::Gone)?;
        if shared.state() == EndpointState::Killed {
            return Err(NakCode::Gone);
        }
        let drawn = self.draw(slot, drawer, shared, rx)?;
        self.look_at_limit(shared, rx);
        Ok(drawn)
    }

    /// Takes a receive off a queue for a queue pair's message.
    #[inline(always)]
    pub(crate) fn draw(
        &self,
        slot: &EndpointSlot<H>,
        drawer: &Drawer,
        queue: &EndpointSlot<H>,
        rx: &mut Rx<H>,
    ) -> Result<Drawn, NakCode> {
        let rqe = if drawer.kind == QpKind::Rc {
            self.peek_receive(queue, rx)?.ok_or(NakCode::Rnr)?
        } else {
            self.peek_only(queue, rx)?
        };
        if drawer.needed > rqe.len {
            return self.draw_short(slot, drawer, rx, rqe);
        }
        if rqe.pieces() != 0 {
            return self.draw_list(slot, drawer, queue, rx, rqe);
        }
        let who = (drawer.id, drawer.cq, drawer.op_flags);
        let cookie = match self.reserve_for(slot, who, &rqe) {
            Err(NakCode::Rnr) if drawer.kind != QpKind::Rc => return Err(NakCode::Resource),
            other => other?,
        };
        rx.rq.advance();
        rx.rq.release();
        // Only what the message has may be written to, and has to be the client's: programs post longer receives than they have
        // memory for.
        let rqe = Rqe {
            len: rqe.len.min(drawer.used),
            ..rqe
        };
        let at = self.receive_buffer(rx, &rqe).ok_or(CqeStatus::Protection);
        Ok(Drawn { rqe, cookie, at })
    }

    /// The same of one that is too short, for a queue pair that drops what it has no receive for. As InfiniBand's responders
    /// do (class D and E errors, as in Linux's `rxe_resp.c`): a receive of its own stays, for the next message that fits; a
    /// shared one is taken, and completes with an error, after which the queue pair goes on.
    #[cold]
    #[inline(never)]
    fn draw_short(
        &self,
        slot: &EndpointSlot<H>,
        drawer: &Drawer,
        rx: &mut Rx<H>,
        rqe: Rqe,
    ) -> Result<Drawn, NakCode> {
        if rx.kind != Kind::Srq {
            return Err(NakCode::Length);
        }
        let who = (drawer.id, drawer.cq, drawer.op_flags);
        let cookie = match self.reserve_for(slot, who, &rqe) {
            // It stays: there is no room to say so.
            Err(NakCode::Rnr) => return Err(NakCode::Resource),
            other => other?,
        };
        rx.rq.advance();
        rx.rq.release();
        let at = Err(CqeStatus::Length);
        Ok(Drawn { rqe, cookie, at })
    }

    /// The same of one that has a list, which is there until it is taken off the queue.
    #[inline(never)]
    fn draw_list(
        &self,
        slot: &EndpointSlot<H>,
        drawer: &Drawer,
        queue: &EndpointSlot<H>,
        rx: &mut Rx<H>,
        rqe: Rqe,
    ) -> Result<Drawn, NakCode> {
        let without = |none| match none {
            NakCode::Rnr if drawer.kind != QpKind::Rc => NakCode::Resource,
            other => other,
        };
        let list = self.receive_list(queue, rx, &rqe).map_err(without)?;
        let who = (drawer.id, drawer.cq, drawer.op_flags);
        let cookie = self.reserve_for(slot, who, &rqe).map_err(|none| {
            if let Ok(at) = list {
                // SAFETY: the queue's half of its endpoint is locked.
                unsafe { self.release_mem(at.mem) };
            }
            without(none)
        })?;
        rx.rq.advance();
        rx.rq.release();
        Ok(Drawn {
            rqe,
            cookie,
            at: list,
        })
    }

    /// The next receive, for a queue pair that drops what it has none for.
    fn peek_only(&self, queue: &EndpointSlot<H>, rx: &mut Rx<H>) -> Result<Rqe, NakCode> {
        match rx.rq.peek() {
            Ok(rqe) => rqe.ok_or(NakCode::Resource),
            Err(_) => {
                self.kill(queue, rx.id);
                Err(NakCode::Gone)
            }
        }
    }

    /// Tells the client if there are fewer receives than it wants to have.
    fn look_at_limit(&self, slot: &EndpointSlot<H>, rx: &mut Rx<H>) {
        let limit = u64::from(slot.limit.load(Ordering::Relaxed));
        // What is known to be there may be enough; if not, there may be more by now.
        let enough = |posted| matches!(posted, Ok(posted) if posted >= limit);
        if limit == 0 || enough(rx.rq.available()) || enough(rx.rq.posted()) {
            return;
        }
        slot.limit.store(0, Ordering::Relaxed);
        self.home.qp_event(rx.domain.client, rx.id, QpEvent::Limit);
    }
}
