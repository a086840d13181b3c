//! From entries on a submission queue to work on a link.

use usb4_engine::{FlowId, Link, MemAt, Nanos, OpenError, Operation, PostError, Work};
use usb4_ring_abi::{Cqe, CqeStatus, LOCAL_PROCESS, OP_INVALIDATE, Op as OpCode, Sqe, sqe_flags};

use crate::cq::{BEGUN, CONNECTED, NoRoom, Op, QP, UNSIGNALED};
use crate::endpoint::{DRAINS, EndpointSlot, FLOWLESS, HUNGRY, Kind, RETRY, STARVED, Tx};
use crate::host::{LinkHost, join_cookie};
use crate::lists::NoList;
use crate::sync::Ordering;
use crate::{Device, EndpointId, EndpointState, Home, LinkHeld, LinkId};

/// Most entries taken per call: bounds how long a link's lock is held.
const BATCH: u32 = 64;

/// What became of an entry.
#[derive(Clone, Copy)]
pub(crate) enum Taken {
    /// It is work on a link, or has completed.
    Done,
    /// There is no room for it now; it stays on the queue.
    Stuck,
    /// Its flow had been closed: it needs another.
    Again,
    /// It stays on the queue until a flow is free.
    Flowless,
    /// It stays on the queue until the queue pair may send.
    Held,
    /// The completion queue is hostile or gone.
    Dead,
}

/// Why there is no flow for an entry.
#[derive(Clone, Copy)]
enum NoFlow {
    /// The link has none free; one will be.
    Yet,
    /// The entry completes with this.
    Because(CqeStatus),
}

/// The link whose lock is held from entry to entry.
pub(crate) struct Session<'a, H: Home> {
    held: Option<LinkHeld<'a, H>>,
    /// Others were held before.
    others: bool,
}

/// What [`Device::submit_held`] has found.
pub struct Submitted<'a, H: Home> {
    /// There was something.
    pub any: bool,
    /// The lock of the link that was given work last.
    pub held: Option<LinkHeld<'a, H>>,
    /// Other links may have been given work as well.
    pub others: bool,
}

impl<H: Home> Submitted<'_, H> {
    fn nothing() -> Self {
        Self {
            any: false,
            held: None,
            others: false,
        }
    }
}

impl<H: Home> Device<H> {
    /// Takes what the client has posted on an endpoint's queues, at most 64 submissions. Returns whether there
    /// was anything. Call [`Self::turn`] on the links afterwards.
    #[inline]
    pub fn submit(&self, ep: EndpointId, now: Nanos) -> bool {
        self.submit_held(ep, now).any
    }

    /// As [`Self::submit`], for a caller that goes on with [`Self::turn`] at once.
    #[inline]
    pub fn submit_held(&self, ep: EndpointId, now: Nanos) -> Submitted<'_, H> {
        let Some(slot) = self.endpoint(ep) else {
            return Submitted::nothing();
        };
        let mut fed = false;
        let mut submitted = Submitted::nothing();
        let why = slot.attention.load(Ordering::Acquire) & (HUNGRY | STARVED | FLOWLESS | DRAINS);
        if why & (HUNGRY | STARVED | DRAINS) != 0 {
            fed = if why & DRAINS == 0 {
                self.feed(slot, ep, now)
            } else {
                self.flush_receives(slot, ep)
            };
        }
        if why & FLOWLESS == 0 {
            submitted = self.drain_sq(slot, ep, now);
        }
        submitted.any |= fed;
        submitted.others |= fed;
        submitted
    }

    /// [`Self::submit`] for every endpoint; for homes that poll their clients' queues.
    pub fn submit_all(&self, now: Nanos) -> bool {
        let mut progress = false;
        for slot in self.endpoints.iter() {
            if let Some(ep) = slot.id() {
                progress |= self.submit(ep, now);
            }
        }
        progress
    }

    /// Before a home that polls its clients' queues sleeps: asks all clients to call `ENTER` (sets NEED_WAKEUP).
    /// True if all submission queues were empty afterwards, so that it may sleep.
    pub fn arm_all(&self) -> bool {
        let mut empty = true;
        for slot in self.endpoints.iter().filter(|slot| slot.id().is_some()) {
            if let Some(tx) = slot.tx.lock().as_mut() {
                // A hostile index is found, and acted on, by the next submit; after that it is no reason to stay awake.
                let killed = || slot.state() == EndpointState::Killed;
                empty &= tx.sq.arm().unwrap_or_else(|_| killed());
            }
        }
        empty
    }

    /// The home polls again: clients need not call `ENTER`.
    pub fn disarm_all(&self) {
        for slot in self.endpoints.iter().filter(|slot| slot.id().is_some()) {
            if let Some(tx) = slot.tx.lock().as_mut() {
                tx.sq.disarm();
            }
        }
    }

    /// Takes entries off an endpoint's submission queue.
    pub(crate) fn drain_sq(&self, slot: &EndpointSlot<H>, ep: EndpointId, now: Nanos) -> Submitted<'_, H> {
        let mut guard = slot.tx.lock();
        let Some(tx) = guard.as_mut().filter(|tx| tx.id == ep) else {
            return Submitted::nothing();
        };
        let mut session = Session {
            held: None,
            others: false,
        };
        let mut count = 0_u32;
        while count < BATCH {
            let sqe = match tx.sq.peek() {
                Ok(Some(sqe)) => sqe,
                Ok(None) => break,
                Err(_) => {
                    self.kill(slot, ep);
                    break;
                }
            };
            match self.take(slot, tx, &mut session, &sqe, now) {
                Taken::Done => {}
                Taken::Again => continue,
                Taken::Flowless => {
                    self.attend(slot, ep, RETRY | FLOWLESS);
                    break;
                }
                Taken::Stuck => {
                    self.attend(slot, ep, RETRY);
                    break;
                }
                Taken::Held => break,
                Taken::Dead => {
                    self.kill(slot, ep);
                    break;
                }
            }
            tx.sq.advance();
            count = count.saturating_add(1);
        }
        tx.sq.release();
        if count == BATCH {
            self.attend(slot, ep, RETRY);
        }
        Submitted {
            any: count != 0,
            held: session.held,
            others: session.others,
        }
    }

    /// Receives have been posted, or completions polled, on an endpoint messages wait for.
    pub(crate) fn feed(&self, slot: &EndpointSlot<H>, ep: EndpointId, now: Nanos) -> bool {
        let srq = slot.draws_from();
        {
            let mut rx = slot.rx.lock();
            let Some(rx) = rx.as_mut().filter(|rx| rx.id == ep) else {
                return false;
            };
            match rx.rq.available() {
                // It is the shared receive queue that has to have some, and may have.
                _ if srq.is_some_and(|srq| srq != ep) => {}
                Ok(0) => {
                    // Still none: the client's next call must be noticed.
                    slot.attention.fetch_or(HUNGRY, Ordering::AcqRel);
                    if rx.rq.arm() != Ok(false) {
                        return false;
                    }
                }
                Ok(_) => {}
                Err(_) => {
                    self.kill(slot, ep);
                    return true;
                }
            }
            let is_srq = srq == Some(ep);
            let room = self.cq(rx.cq).and_then(|cq| cq.with(rx.cq, |cq| cq.has_room()));
            let is_verbs = !matches!(rx.kind, Kind::Ring(_));
            if room == Some(false) && !is_srq || is_verbs && self.waits_for_place(rx) {
                self.attend(slot, ep, STARVED);
                return false;
            }
            slot.attention.fetch_and(!HUNGRY, Ordering::AcqRel);
            rx.rq.disarm();
        }
        if srq == Some(ep) {
            self.feed_drawers(ep, now);
        } else {
            self.for_each_link(|link, _| link.receive_posted(now, ep.0));
        }
        true
    }

    /// An endpoint in error or killed: closes its flows and completes what is posted on its queues as flushed.
    pub(crate) fn flush(&self, slot: &EndpointSlot<H>, ep: EndpointId, now: Nanos) -> bool {
        if slot.is_srq(ep) {
            return self.fail_drawers(ep);
        }
        {
            let mut tx = slot.tx.lock();
            let Some(tx) = tx.as_mut().filter(|tx| tx.id == ep) else {
                return false;
            };
            // Whoever resets it says so before it takes this lock: what is of its next life is left alone.
            if !slot.is_over() {
                return false;
            }
            self.close_flows(&mut tx.handles, now);
            self.close_target(ep, now);
            self.stop_drawing(slot, ep);
        }
        let drained = self.drain_sq(slot, ep, now).any;
        drained | self.flush_receives(slot, ep)
    }

    fn take<'a>(
        &'a self,
        slot: &EndpointSlot<H>,
        tx: &mut Tx<H>,
        session: &mut Session<'a, H>,
        sqe: &Sqe,
        now: Nanos,
    ) -> Taken {
        match slot.state() {
            EndpointState::Ready => {}
            EndpointState::Unconnected => return self.refuse(slot, tx, sqe, CqeStatus::Invalid),
            EndpointState::Error | EndpointState::Killed | EndpointState::SendError => {
                return self.refuse(slot, tx, sqe, CqeStatus::Flushed);
            }
            EndpointState::Reset
            | EndpointState::Init
            | EndpointState::Receiving
            | EndpointState::Draining => return Taken::Held,
        }
        if tx.op_flags & QP != 0 {
            return self.take_of_qp(slot, tx, session, sqe, now);
        }
        match sqe.check() {
            Ok(op) => self.begin::<false>(slot, tx, session, (op, sqe), now),
            Err(_) => self.refuse(slot, tx, sqe, CqeStatus::Invalid),
        }
    }

    /// The same for a queue pair's. Apart, so that entries of other endpoints need not be copied.
    #[inline(never)]
    fn take_of_qp<'a>(
        &'a self,
        slot: &EndpointSlot<H>,
        tx: &mut Tx<H>,
        session: &mut Session<'a, H>,
        sqe: &Sqe,
        now: Nanos,
    ) -> Taken {
        if sqe.op == OP_INVALIDATE {
            return self.invalidate_own(slot, tx, sqe);
        }
        let taken = match self.qp_entry(tx, session, sqe) {
            Ok((op, entry)) => self.begin::<true>(slot, tx, session, (op, &entry), now),
            Err(status) => self.refuse(slot, tx, sqe, status),
        };
        match taken {
            // It serves everybody: one link that has no room may not keep what is for others.
            Taken::Stuck | Taken::Flowless if tx.id.is_special() => {
                self.refuse(slot, tx, sqe, CqeStatus::Flushed)
            }
            taken => taken,
        }
    }

    /// Gives a link the work that a valid entry stands for; with `LISTS` it may have a list or inline data.
    #[inline(always)]
    fn begin<'a, const LISTS: bool>(
        &'a self,
        slot: &EndpointSlot<H>,
        tx: &mut Tx<H>,
        session: &mut Session<'a, H>,
        (op, sqe): (OpCode, &Sqe),
        now: Nanos,
    ) -> Taken {
        let flow = match self.flow(tx, session, sqe.ah, now) {
            Ok(flow) => flow,
            Err(NoFlow::Yet) => return Taken::Flowless,
            Err(NoFlow::Because(status)) => return self.refuse(slot, tx, sqe, status),
        };
        if !session.link().is_none_or(|link| slot.has_share(link.free_ops())) {
            return Taken::Stuck;
        }
        let elsewhere = LISTS && sqe.flags & (sqe_flags::LIST | sqe_flags::INLINE) != 0;
        let local = if elsewhere {
            match self.send_list(tx, op, sqe) {
                Ok(local) => local,
                Err(NoList::Yet) => return Taken::Stuck,
                Err(NoList::Because(status)) => return self.refuse(slot, tx, sqe, status),
            }
        } else {
            match self.local_buffer(tx, op, sqe) {
                Ok(local) => local,
                Err(status) => return self.refuse(slot, tx, sqe, status),
            }
        };
        let unsignaled = if sqe.flags & sqe_flags::UNSIGNALED != 0 {
            UNSIGNALED
        } else {
            0
        };
        let record = Op {
            user_data: sqe.user_data,
            ep: tx.id.0,
            op: sqe.op,
            flags: tx.op_flags | unsignaled | BEGUN,
        };
        let reserved = self
            .cq(tx.cq)
            .and_then(|cq| cq.with(tx.cq, |cq| cq.reserve(record)));
        let posted = match reserved {
            Some(Ok(place)) => {
                let cookie = join_cookie(tx.cq, place);
                let work = Work {
                    cookie,
                    op: operation(op, sqe),
                    local,
                    len: sqe.len,
                };
                let fenced = sqe.flags & sqe_flags::FENCE != 0;
                let posted = match session.link() {
                    Some(link) => link.post_fenced(now, flow, work, fenced),
                    None => Err(PostError::Down),
                };
                match posted {
                    Ok(()) => {
                        slot.begin();
                        return Taken::Done;
                    }
                    Err(error) => {
                        self.cq(tx.cq).and_then(|cq| cq.with(tx.cq, |cq| cq.end(place)));
                        error
                    }
                }
            }
            Some(Err(NoRoom::Full)) => PostError::Full,
            Some(Err(NoRoom::Dead)) | None => {
                // SAFETY: the endpoint's sending half is locked.
                unsafe { self.give_back(local) };
                self.tell_dead(tx.cq);
                return Taken::Dead;
            }
        };
        // SAFETY: as above.
        unsafe { self.give_back(local) };
        match posted {
            PostError::Full => Taken::Stuck,
            PostError::Invalid => self.refuse(slot, tx, sqe, CqeStatus::Invalid),
            PostError::Down => self.refuse(slot, tx, sqe, CqeStatus::LinkDown),
            PostError::Closed => {
                // It was idle, and others needed flows.
                if let Some(handle) = tx.handles.get_mut(sqe.ah as usize) {
                    handle.take_flow();
                }
                Taken::Again
            }
            PostError::Gone => {
                // The peer's endpoint is gone. The next entry tries again, with a new flow.
                let open = tx
                    .handles
                    .get_mut(sqe.ah as usize)
                    .and_then(|handle| handle.take_flow());
                if let (Some((_, flow)), Some(link)) = (open, session.link()) {
                    // SAFETY: the session holds the link's lock.
                    link.close_flow(now, flow, &unsafe { LinkHost::new(self) });
                }
                self.refuse(slot, tx, sqe, CqeStatus::Gone)
            }
        }
    }

    /// The flow behind an address handle, opened if need be; the session then holds its link.
    #[inline(always)]
    fn flow<'a>(
        &'a self,
        tx: &mut Tx<H>,
        session: &mut Session<'a, H>,
        ah: u32,
        now: Nanos,
    ) -> Result<FlowId, NoFlow> {
        let Tx {
            handles,
            id,
            incarnation,
            told,
            op_flags,
            ..
        } = tx;
        let handle = handles.get_mut(ah as usize).and_then(|handle| handle.0.as_mut());
        let handle = handle.ok_or(NoFlow::Because(CqeStatus::Invalid))?;
        if let Some(flow) = handle.flow {
            if session.hold(self, handle.link) {
                return Ok(flow);
            }
            handle.flow = None;
        }
        // The link may have come back under another name since the handle was made.
        session.others |= session.held.take().is_some();
        let unreachable = NoFlow::Because(CqeStatus::Unreachable);
        let (number, incarnation) = if *op_flags & QP != 0 {
            (id.number(), handle.qkey)
        } else if handle.incarnation == 0 {
            // Only a queue pair has that.
            return Err(NoFlow::Because(CqeStatus::Gone));
        } else {
            (id.0, *incarnation)
        };
        handle.link = self.link_to(handle.node).ok_or(unreachable)?;
        session.hold(self, handle.link);
        let link = session.link().ok_or(unreachable)?;
        match link.open_flow(now, number, incarnation, &handle.dst()) {
            Ok(flow) => {
                if *op_flags & QP != 0 {
                    link.limit_flow(flow, told.limits());
                }
                handle.flow = Some(flow);
                Ok(flow)
            }
            Err(OpenError::Full) => Err(NoFlow::Yet),
            Err(OpenError::Down) => Err(unreachable),
        }
    }

    #[inline(always)]
    fn local_buffer(&self, tx: &Tx<H>, op: OpCode, sqe: &Sqe) -> Result<Option<MemAt>, CqeStatus> {
        if sqe.len == 0 {
            return Ok(None);
        }
        let key = if sqe.local_key == LOCAL_PROCESS {
            tx.process_key
        } else {
            sqe.local_key
        };
        let writes = matches!(op, OpCode::Read | OpCode::FetchAdd | OpCode::CompareSwap);
        match self
            .regions
            .acquire_local(tx.domain, key, (sqe.local_addr, u64::from(sqe.len)), writes)
        {
            Ok(at) => Ok(Some(at)),
            Err(denied) => {
                self.tell_idle(denied.0);
                Err(if tx.op_flags & QP == 0 {
                    CqeStatus::Invalid
                } else {
                    CqeStatus::Protection
                })
            }
        }
    }

    /// # Safety
    /// As for [`Self::release_mem`].
    #[cold]
    #[inline(never)]
    unsafe fn give_back(&self, local: Option<MemAt>) {
        if let Some(at) = local {
            // SAFETY: the caller's promise.
            unsafe { self.release_mem(at.mem) };
        }
    }

    /// Completes an entry that did not become work.
    #[cold]
    fn refuse(&self, slot: &EndpointSlot<H>, tx: &Tx<H>, sqe: &Sqe, status: CqeStatus) -> Taken {
        if tx.op_flags & QP != 0 {
            return self.refuse_qp(slot, tx, sqe, status);
        }
        let cqe = Cqe {
            user_data: sqe.user_data,
            op: sqe.op,
            status: status.code(),
            len: sqe.len,
            ..Cqe::default()
        };
        let shown = self.show(tx.cq, &cqe);
        if matches!(shown, Taken::Done) && tx.op_flags & CONNECTED != 0 && slot.fail() {
            self.attend(slot, tx.id, crate::endpoint::FAILED);
        }
        shown
    }

    /// Shows a completion that has no place reserved.
    pub(crate) fn show(&self, id: crate::CqId, cqe: &Cqe) -> Taken {
        let shown = self.cq(id).and_then(|cq| {
            cq.with(id, |cq| {
                cq.push_now(cqe).map(|armed| {
                    if armed {
                        self.home.wake(&cq.waker);
                    }
                })
            })
        });
        match shown {
            Some(Ok(())) => Taken::Done,
            Some(Err(NoRoom::Full)) => Taken::Stuck,
            Some(Err(NoRoom::Dead)) | None => {
                self.tell_dead(id);
                Taken::Dead
            }
        }
    }

    /// Completes posted receives as flushed, at most a batch.
    pub(crate) fn flush_receives(&self, slot: &EndpointSlot<H>, ep: EndpointId) -> bool {
        let is_qp = slot.qp_kind().is_some();
        let flushed = self.flush_posted(slot, ep, if is_qp { ep.number() } else { 0 });
        if is_qp && slot.draws_from().is_none() {
            self.drain_receives(slot, ep);
        }
        flushed
    }

    fn flush_posted(&self, slot: &EndpointSlot<H>, ep: EndpointId, number: u32) -> bool {
        let mut guard = slot.rx.lock();
        let Some(rx) = guard.as_mut().filter(|rx| rx.id == ep && slot.is_over()) else {
            return false;
        };
        let mut count = 0_u32;
        while let Ok(Some(rqe)) = rx.rq.peek() {
            let cqe = Cqe {
                user_data: rqe.user_data,
                op: OpCode::Send.code(),
                status: CqeStatus::Flushed.code(),
                flags: usb4_ring_abi::cqe_flags::RECV,
                ep: number,
                ..Cqe::default()
            };
            let shown = if count == BATCH {
                Taken::Stuck
            } else {
                self.show(rx.cq, &cqe)
            };
            match shown {
                Taken::Done => rx.rq.advance(),
                Taken::Stuck => {
                    self.attend(slot, ep, crate::endpoint::FAILED);
                    break;
                }
                Taken::Again | Taken::Flowless | Taken::Held | Taken::Dead => break,
            }
            count = count.saturating_add(1);
        }
        rx.rq.release();
        count != 0
    }
}

impl<'a, H: Home> Session<'a, H> {
    /// Holds the lock of that link, and no other; false if the link is gone.
    #[inline]
    pub(crate) fn hold(&mut self, device: &'a Device<H>, id: LinkId) -> bool {
        if self.held.as_ref().is_some_and(|held| held.id == id) {
            return true;
        }
        // The other link's lock goes first: no thread holds two.
        self.others |= self.held.take().is_some();
        self.held = device
            .link_slot(id)
            .and_then(|slot| slot.touch(id))
            .map(|guard| LinkHeld { id, guard });
        self.held.is_some()
    }

    #[inline]
    pub(crate) fn link(&mut self) -> Option<&mut Link> {
        self.held.as_mut().and_then(|held| held.guard.as_mut())
    }
}

#[inline(always)]
fn operation(op: OpCode, sqe: &Sqe) -> Operation {
    let [first, second, third, fourth] = sqe.args;
    let imm = (sqe.flags & sqe_flags::IMM != 0).then_some(fourth);
    let (remote_addr, remote_key) = (first, second);
    match op {
        OpCode::Send => Operation::Send {
            imm,
            prefix: sqe.prefix(),
            prefix_len: sqe.prefix_len,
        },
        OpCode::Write => Operation::Write {
            remote_addr,
            remote_key,
            imm,
        },
        OpCode::Read => Operation::Read {
            remote_addr,
            remote_key,
        },
        OpCode::FetchAdd => Operation::FetchAdd {
            remote_addr,
            remote_key,
            add: third,
        },
        OpCode::CompareSwap => Operation::CompareSwap {
            remote_addr,
            remote_key,
            compare: fourth,
            swap: third,
        },
    }
}
