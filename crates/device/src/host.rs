//! What the engine asks of the device. Called under a link's lock; takes leaf locks only.

use core::cell::Cell;

use usb4_engine::{
    Admission, EpAddr, Host, MemAt, MemRef, NakCode, Receive, ReceiveDone, RemoteAccess, Status, Target,
    WorkDone,
};
use usb4_ring_abi::{Cqe, CqeStatus, LOCAL_PROCESS, Op as OpCode, Rqe, cqe_flags};

use crate::cq::{BEGUN, CONNECTED, NoRoom, Op, QP, UNSIGNALED};
use crate::endpoint::{EndpointSlot, FAILED, HUNGRY, Kind, Rx, STARVED, SWEEP};
use crate::id::split;
use crate::qp_receive::{not_receiving, receives};
use crate::sync::{Ordering, fence};
use crate::{Access, CqId, Device, EndpointId, EndpointKind, EndpointState, Home};

/// Receives with a wrong buffer that one message may skip before it is told to come back.
const MAX_INVALID: usize = 16;

/// The device as the engine of one link sees it while that link's lock is held, or its copy phase is on. Remembers the
/// completion queues in which something was shown; their clients are woken, if they sleep, when it is dropped: with one
/// fence for all of them.
pub(crate) struct LinkHost<'a, H: Home> {
    pub(crate) device: &'a Device<H>,
    /// Places of completion queues; the first `count` count.
    shown: [Cell<u16>; SHOWN],
    count: Cell<usize>,
    /// Raw name of the one remembered last; 0 if there is none.
    last: Cell<u32>,
}

/// Completion queues remembered, after which clients are woken early.
const SHOWN: usize = 8;

impl<'a, H: Home> LinkHost<'a, H> {
    /// # Safety
    /// The caller holds the lock of a link, or is in the copy phase of one, for as long as this lives.
    #[inline]
    pub(crate) unsafe fn new(device: &'a Device<H>) -> Self {
        Self {
            device,
            shown: [const { Cell::new(0) }; SHOWN],
            count: Cell::new(0),
            last: Cell::new(0),
        }
    }

    /// Whether something was shown and no client has been woken for it yet.
    #[inline]
    pub(crate) fn has_shown(&self) -> bool {
        self.count.get() != 0
    }

    /// Something was shown in this completion queue.
    #[inline]
    fn remember(&self, cq: CqId) {
        if self.last.get() != cq.0 {
            self.remember_another(cq);
        }
    }

    #[inline(never)]
    fn remember_another(&self, cq: CqId) {
        self.last.set(cq.0);
        let index = split(cq.0).0;
        if self
            .shown
            .iter()
            .take(self.count.get())
            .any(|shown| shown.get() == index)
        {
            return;
        }
        if self.count.get() == SHOWN {
            self.wake();
        }
        let count = self.count.get();
        if let Some(place) = self.shown.get(count) {
            place.set(index);
            self.count.set(count.wrapping_add(1));
        }
    }

    #[cold]
    fn wake(&self) {
        fence(Ordering::SeqCst);
        self.wake_fenced();
    }

    /// Wakes the clients for what was shown; a sequentially consistent fence has come after that.
    #[inline]
    pub(crate) fn wake_fenced(&self) {
        self.last.set(0);
        for shown in self.shown.iter().take(self.count.replace(0)) {
            let Some(slot) = self.device.cqs.get(usize::from(shown.get())) else {
                continue;
            };
            // SAFETY: by the contract of `new`; `destroy_cq` does what is asked of whoever drops the words.
            if unsafe { slot.flags.are_armed() } {
                slot.wake(&self.device.home);
            }
        }
    }

    /// Ends the operation `cookie` names: gives its place back and shows the completion `cqe` makes of it.
    /// Nothing happens if its queue is gone.
    #[inline]
    pub(crate) fn complete(&self, cookie: u64, cqe: impl FnOnce(&Op) -> Cqe) {
        let (id, place) = split_cookie(cookie);
        let Some(slot) = self.device.cq(id) else { return };
        let ended = slot.with(id, |cq| {
            let op = cq.end(place)?;
            if op.flags & BEGUN != 0 {
                if let Some(slot) = self.device.endpoint(EndpointId(op.ep)) {
                    slot.end();
                }
            }
            let mut cqe = cqe(&op);
            let mut failed = None;
            let (mut hidden, mut solicits) = (op.flags & UNSIGNALED != 0, false);
            if op.flags & (CONNECTED | QP) != 0 {
                // Copies, so that others' need not be in memory.
                let (mut op, mut settled) = (op, cqe);
                if op.flags & CONNECTED != 0 {
                    failed = self.device.settle_connected(EndpointId(op.ep), &mut settled);
                } else {
                    failed = self.device.settle_qp(&mut op, &mut settled);
                    hidden = op.flags & UNSIGNALED != 0;
                    let failure = settled.status != CqeStatus::Ok.code();
                    solicits = failure || settled.flags & cqe_flags::SOLICITED != 0;
                }
                cqe = settled;
            } else if cqe.status == CqeStatus::Gone.code() {
                let ep = EndpointId(op.ep);
                failed = self.device.endpoint(ep).map(|slot| (slot, ep, SWEEP));
            }
            let shown = !hidden || cqe.status != CqeStatus::Ok.code();
            if shown {
                cq.push(&cqe);
                if solicits {
                    cq.solicit();
                }
            }
            Some((shown, failed))
        });
        let Some(Some((shown, failed))) = ended else {
            return;
        };
        if shown {
            // May wake the clients of others: no queue's lock is held while another's is taken.
            self.remember(id);
        }
        if let Some((slot, ep, why)) = failed {
            self.device.attend(slot, ep, why);
        }
    }
}

impl<H: Home> Drop for LinkHost<'_, H> {
    #[inline]
    fn drop(&mut self) {
        if self.has_shown() {
            self.wake();
        }
    }
}

impl<H: Home> Host for LinkHost<'_, H> {
    fn open_flow(&self, src: &EpAddr, dst_ep: u32, dst_inc: u32) -> Result<Target, NakCode> {
        if dst_inc == 0 {
            return self.open_qp(src, dst_ep);
        }
        let ep = EndpointId(dst_ep);
        let slot = self.device.endpoint(ep).ok_or(NakCode::Gone)?;
        if slot.state() != EndpointState::Ready {
            return Err(NakCode::Gone);
        }
        let client = slot.rx.lock().as_ref().and_then(|rx| {
            let for_me = rx.id == ep && rx.incarnation == dst_inc;
            let any = rx.kind == Kind::Ring(EndpointKind::Datagram);
            let welcome = for_me && (any || rx.peer == Some(*src));
            welcome.then_some(rx.domain.client)
        });
        let client = client.ok_or(NakCode::Gone)?;
        let src = self.device.sources.lock().open(client, src);
        let src = src.ok_or(NakCode::Resource)?;
        Ok(Target { ep: dst_ep, src })
    }

    #[inline]
    fn admit(&self, target: Target) -> Result<Admission, NakCode> {
        let slot = self.device.endpoint(EndpointId(target.ep)).ok_or(NakCode::Gone)?;
        match slot.qp_kind() {
            None => Ok(Admission::Reads(u32::MAX)),
            Some(kind) => self.admit_qp(kind, slot, target),
        }
    }

    #[cold]
    fn refused(&self, target: Target, code: NakCode) {
        let ep = EndpointId(target.ep);
        if let Some(slot) = self.device.endpoint(ep) {
            self.device.refused_qp(slot, ep, code);
        }
    }

    fn close_flow(&self, target: Target) {
        self.device.sources.lock().close(target.src);
    }

    #[inline]
    fn remote_access(
        &self,
        target: Target,
        key: u64,
        addr: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<MemAt, NakCode> {
        let slot = self.device.endpoint(EndpointId(target.ep)).ok_or(NakCode::Gone)?;
        let state = slot.state();
        if state != EndpointState::Ready && !receives(state) {
            return Err(NakCode::Gone);
        }
        let access = match access {
            RemoteAccess::Read => Access::REMOTE_READ,
            RemoteAccess::Write => Access::REMOTE_WRITE,
            RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        };
        if !slot.allows(access) {
            return Err(NakCode::Access);
        }
        let domain = slot.domain();
        let client = domain.client;
        let node = || self.device.source(client, target.src).map(|addr| addr.node);
        self.device
            .regions
            .acquire_remote(domain, key, (addr, u64::from(len)), access, node)
            .map_err(|denied| {
                self.device.tell_idle(denied.0);
                NakCode::Access
            })
    }

    #[inline]
    fn take_receive(&self, target: Target, len: u32) -> Result<Receive, NakCode> {
        let ep = EndpointId(target.ep);
        let slot = self.device.endpoint(ep).ok_or(NakCode::Gone)?;
        let state = slot.state();
        if state != EndpointState::Ready && !receives(state) {
            return Err(not_receiving(slot, state));
        }
        let mut rx = slot.rx.lock();
        let rx = rx.as_mut().filter(|rx| rx.id == ep).ok_or(NakCode::Gone)?;
        if rx.op_flags & QP != 0 {
            return self.take_qp_receive(slot, rx, target, len);
        }
        for _ in 0..MAX_INVALID {
            let Some(rqe) = self.device.peek_receive(slot, rx)? else {
                return Err(NakCode::Rnr);
            };
            let cookie = self.device.reserve_receive(slot, rx, &rqe)?;
            rx.rq.advance();
            rx.rq.release();
            match self.device.receive_buffer(rx, &rqe) {
                Some(at) => {
                    return Ok(Receive {
                        at,
                        capacity: rqe.len,
                        cookie,
                    });
                }
                None => self.complete(cookie, |op| Cqe {
                    user_data: op.user_data,
                    op: OpCode::Send.code(),
                    status: CqeStatus::Invalid.code(),
                    flags: cqe_flags::RECV,
                    ..Cqe::default()
                }),
            }
        }
        // A client that posts nothing but nonsense does not keep the link's lock.
        self.device.attend(slot, ep, STARVED);
        Err(NakCode::Rnr)
    }

    #[cold]
    fn arriving(&self, target: Target, imm: u64) -> Result<(), NakCode> {
        self.device.invalidate_for(target, imm)
    }

    #[inline]
    fn release(&self, mem: MemRef) {
        // SAFETY: by the contract of `new` a link's lock is held, or its copy phase is on.
        unsafe { self.device.release_mem(mem) };
    }

    #[inline]
    fn lives(&self, mem: MemRef) -> bool {
        match u32::try_from(mem.0) {
            Ok(name) => self.device.regions.lives(name),
            // SAFETY: by the contract of `new` a link's lock is held, or its copy phase is on.
            Err(_) => unsafe { self.device.list_lives(mem) },
        }
    }

    #[inline]
    fn complete_receive(&self, target: Target, done: ReceiveDone) {
        let mut flags = cqe_flags::RECV;
        if done.imm.is_some() {
            flags |= cqe_flags::IMM;
        }
        let code = if done.write {
            flags |= cqe_flags::WRITE_IMM;
            OpCode::Write
        } else {
            OpCode::Send
        };
        self.complete(done.cookie, |op| Cqe {
            user_data: op.user_data,
            op: code.code(),
            status: status(done.status).code(),
            flags,
            len: done.len,
            value: done.imm.unwrap_or(0),
            src: target.src,
            ep: 0,
        });
    }

    #[inline]
    fn complete_work(&self, done: WorkDone) {
        self.complete(done.cookie, |op| Cqe {
            user_data: op.user_data,
            op: op.op,
            status: status(done.status).code(),
            len: done.len,
            value: done.value,
            ..Cqe::default()
        });
    }

    #[inline]
    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        self.device.home.crc32c(crc, bytes)
    }
}

/// An endpoint that a completion has given a reason for attention.
pub(crate) type Wants<'a, H> = (&'a EndpointSlot<H>, EndpointId, u32);

impl<H: Home> Device<H> {
    /// An error on a connected endpoint puts it in error; whatever completes after that is flushed. Returns the
    /// endpoint if it has just failed.
    #[cold]
    fn settle_connected(&self, ep: EndpointId, cqe: &mut Cqe) -> Option<Wants<'_, H>> {
        let slot = self.endpoint(ep)?;
        if slot.state() != EndpointState::Ready {
            cqe.status = CqeStatus::Flushed.code();
            return None;
        }
        let failed = cqe.status != CqeStatus::Ok.code() && slot.fail();
        failed.then_some((slot, ep, FAILED))
    }

    /// The next receive, if there is one; else the client's next one will be noticed.
    #[inline(always)]
    pub(crate) fn peek_receive(
        &self,
        slot: &EndpointSlot<H>,
        rx: &mut Rx<H>,
    ) -> Result<Option<Rqe>, NakCode> {
        let mut next = rx.rq.peek();
        if let Ok(None) = next {
            // Marked first: the client's call finds the mark if it finds the request to call.
            slot.attention.fetch_or(HUNGRY, Ordering::AcqRel);
            next = match rx.rq.arm() {
                Ok(true) => return Ok(None),
                Ok(false) => rx.rq.peek(),
                Err(hostile) => Err(hostile),
            };
        }
        next.map_err(|_| {
            self.kill(slot, rx.id);
            NakCode::Gone
        })
    }

    #[inline(always)]
    pub(crate) fn reserve_receive(
        &self,
        slot: &EndpointSlot<H>,
        rx: &Rx<H>,
        rqe: &Rqe,
    ) -> Result<u64, NakCode> {
        self.reserve_for(slot, (rx.id, rx.cq, rx.op_flags), rqe)
    }

    /// The same for an endpoint with that name, receive completion queue and marks, wherever the receive is from.
    #[inline(always)]
    pub(crate) fn reserve_for(
        &self,
        slot: &EndpointSlot<H>,
        (id, cq_id, flags): (EndpointId, CqId, u8),
        rqe: &Rqe,
    ) -> Result<u64, NakCode> {
        let op = Op {
            user_data: rqe.user_data,
            ep: id.0,
            op: OpCode::Send.code(),
            flags,
        };
        let place = self.cq(cq_id).and_then(|cq| cq.with(cq_id, |cq| cq.reserve(op)));
        match place {
            Some(Ok(place)) => Ok(join_cookie(cq_id, place)),
            Some(Err(NoRoom::Full)) => {
                self.attend(slot, id, STARVED);
                Err(NakCode::Rnr)
            }
            Some(Err(NoRoom::Dead)) | None => {
                self.tell_dead(cq_id);
                self.kill(slot, id);
                Err(NakCode::Gone)
            }
        }
    }

    /// The buffer of a receive, referenced; `None` if it is not the client's.
    #[inline(always)]
    pub(crate) fn receive_buffer(&self, rx: &Rx<H>, rqe: &Rqe) -> Option<MemAt> {
        rqe.check().ok()?;
        if rqe.len == 0 {
            return Some(MemAt {
                mem: MemRef(0),
                offset: 0,
            });
        }
        let key = if rqe.local_key == LOCAL_PROCESS {
            rx.process_key
        } else {
            rqe.local_key
        };
        self.regions
            .acquire_local(rx.domain, key, (rqe.addr, u64::from(rqe.len)), true)
            .inspect_err(|denied| self.tell_idle(denied.0))
            .ok()
    }
}

/// An operation's name: its completion queue and its place there.
#[inline]
pub(crate) fn join_cookie(cq: CqId, place: u32) -> u64 {
    u64::from(cq.0) << 32 | u64::from(place)
}

#[inline]
fn split_cookie(cookie: u64) -> (CqId, u32) {
    let [a, b, c, d, e, f, g, h] = cookie.to_le_bytes();
    (
        CqId(u32::from_le_bytes([e, f, g, h])),
        u32::from_le_bytes([a, b, c, d]),
    )
}

#[inline]
fn status(status: Status) -> CqeStatus {
    match status {
        Status::Ok => CqeStatus::Ok,
        Status::Refused(NakCode::Rnr) => CqeStatus::Rnr,
        Status::Refused(NakCode::Access) => CqeStatus::Access,
        Status::Refused(NakCode::Length) => CqeStatus::Length,
        Status::Refused(NakCode::Unsupported) => CqeStatus::Unsupported,
        Status::Refused(NakCode::Resource) => CqeStatus::Resource,
        Status::Refused(NakCode::Gone) => CqeStatus::Gone,
        Status::Refused(NakCode::NotReady) | Status::Expired(NakCode::NotReady) => CqeStatus::RetryExceeded,
        Status::Expired(_) => CqeStatus::RnrRetryExceeded,
        Status::LinkDown => CqeStatus::LinkDown,
        Status::Flushed => CqeStatus::Flushed,
    }
}
