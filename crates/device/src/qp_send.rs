//! Queue pairs, sending: what their entries mean, and how these end.

use usb4_ring_abi::{Cqe, CqeStatus, InvalidEntry, MAX_MESSAGE, Op as OpCode, Sqe, cqe_flags, sqe_flags};

use crate::cq::{LIFE, Op, UNSIGNALED};
use crate::endpoint::{BARRIER, EndpointSlot, FAILED, RETRY, SWEEP, Tx};
use crate::host::Wants;
use crate::submit::{Session, Taken};
use crate::sync::Ordering;
use crate::{Device, EndpointId, EndpointState, Home, QpKind};

/// Longest datagram.
const MAX_DATAGRAM: u32 = 4096;

/// A queue pair's own key is to be shown: the top bit of the one in the entry.
const OWN_QKEY: u32 = 1 << 31;

/// Immediate data of queue pairs on the wire: 32 bits of it, and what the other 32 say.
pub(crate) mod word {
    /// The lower half is immediate data.
    pub(crate) const IMM: u64 = 1 << 32;
    /// The completion is solicited.
    pub(crate) const SOLICITED: u64 = 1 << 33;
    /// The lower half is the key of a region that is to be invalidated.
    pub(crate) const INVALIDATE: u64 = 1 << 34;
}

impl<H: Home> Device<H> {
    /// An entry of a queue pair as one that the wire knows; FENCE stays.
    #[inline(never)]
    pub(crate) fn qp_entry<'a>(
        &'a self,
        tx: &mut Tx<H>,
        session: &mut Session<'a, H>,
        sqe: &Sqe,
    ) -> Result<(OpCode, Sqe), CqeStatus> {
        let op = sqe.check_verbs().map_err(|wrong| {
            if wrong == InvalidEntry::Length && sqe.len > MAX_MESSAGE {
                CqeStatus::TooLong
            } else {
                CqeStatus::Invalid
            }
        })?;
        let mut entry = *sqe;
        match QpKind::of(tx.op_flags) {
            Some(QpKind::Ud) if op == OpCode::Send && sqe.prefix_len == 0 => {
                if sqe.len > MAX_DATAGRAM {
                    return Err(CqeStatus::TooLong);
                }
                self.show_qkey(tx, session, sqe);
            }
            Some(QpKind::Ud) => return Err(CqeStatus::Invalid),
            Some(QpKind::Rc) if tx.told.reads() => {}
            _ if matches!(op, OpCode::Send | OpCode::Write) => {}
            _ => return Err(CqeStatus::Invalid),
        }
        let invalidates = sqe.flags & sqe_flags::INVALIDATE != 0;
        if invalidates && QpKind::of(tx.op_flags) != Some(QpKind::Rc) {
            return Err(CqeStatus::Invalid);
        }
        let [.., imm] = &mut entry.args;
        let has_imm = sqe.flags & sqe_flags::IMM != 0;
        if invalidates {
            *imm = *imm & u64::from(u32::MAX) | word::INVALIDATE;
            entry.flags |= sqe_flags::IMM;
        }
        let takes_receive = has_imm || op == OpCode::Send;
        if has_imm {
            *imm = *imm & u64::from(u32::MAX) | word::IMM;
        }
        if takes_receive && sqe.flags & sqe_flags::SOLICITED != 0 {
            *imm |= word::SOLICITED;
            entry.flags |= sqe_flags::IMM;
        }
        Ok((op, entry))
    }

    /// Sees to it that the entry's flow shows the key it names. One that shows another takes no more, and is replaced once
    /// its work is done.
    fn show_qkey<'a>(&'a self, tx: &mut Tx<H>, session: &mut Session<'a, H>, sqe: &Sqe) {
        let [named, ..] = sqe.args;
        let [a, b, c, d, ..] = named.to_le_bytes();
        let qkey = match u32::from_le_bytes([a, b, c, d]) {
            key if key & OWN_QKEY != 0 => tx.qkey,
            key => key,
        };
        let handle = tx.handles.get_mut(sqe.ah as usize);
        let Some(handle) = handle.and_then(|handle| handle.0.as_mut()) else {
            return;
        };
        match handle.flow {
            Some(flow) if handle.qkey != qkey => {
                if session.hold(self, handle.link) {
                    if let Some(link) = session.link() {
                        link.drain_flow(flow);
                    }
                } else {
                    handle.flow = None;
                    handle.qkey = qkey;
                }
            }
            Some(_) => {}
            None => handle.qkey = qkey,
        }
    }

    /// Completes a queue pair's entry that did not become work.
    pub(crate) fn refuse_qp(
        &self,
        slot: &EndpointSlot<H>,
        tx: &Tx<H>,
        sqe: &Sqe,
        status: CqeStatus,
    ) -> Taken {
        let Some(kind) = QpKind::of(tx.op_flags) else {
            return Taken::Dead;
        };
        let status = match seen(kind, status) {
            // It serves everybody: nobody's handle that is gone may stop it.
            CqeStatus::Invalid if tx.id.is_special() => CqeStatus::Flushed,
            status => status,
        };
        let failed = !matches!(status, CqeStatus::Ok | CqeStatus::Flushed);
        if sqe.flags & sqe_flags::UNSIGNALED != 0 && status == CqeStatus::Ok {
            return Taken::Done;
        }
        let cqe = Cqe {
            user_data: sqe.user_data,
            op: sqe.op,
            status: status.code(),
            len: sqe.len,
            ep: tx.id.number(),
            ..Cqe::default()
        };
        let shown = self.show(tx.cq, &cqe);
        if failed && matches!(shown, Taken::Done) {
            if let Some((slot, ep, why)) = stop(kind, slot, tx.id) {
                self.attend(slot, ep, why);
            }
        }
        shown
    }

    /// How an operation of a queue pair's looks when it has completed, and what follows for the queue pair. What is not to
    /// be seen becomes an unsignaled success. The completion queue is locked.
    #[inline(never)]
    pub(crate) fn settle_qp(&self, op: &mut Op, cqe: &mut Cqe) -> Option<Wants<'_, H>> {
        let ep = EndpointId(op.ep);
        let kind = QpKind::of(op.flags)?;
        let slot = self.endpoint(ep);
        let (state, alive) = slot.map_or((EndpointState::Reset, false), |slot| {
            (slot.state(), (slot.marks() ^ op.flags) & LIFE == 0)
        });
        if !alive || state == EndpointState::Reset {
            op.flags |= UNSIGNALED;
            cqe.status = CqeStatus::Ok.code();
            return None;
        }
        let slot = slot?;
        cqe.ep = ep.number();
        let received = cqe.flags & cqe_flags::RECV != 0;
        if received {
            self.received_by_qp(kind, slot, cqe);
            self.end_drawing(slot, ep);
        }
        if matches!(state, EndpointState::Error | EndpointState::Killed) {
            cqe.status = CqeStatus::Flushed.code();
            return None;
        }
        let mut wants = None;
        if !received {
            self.tell_drained(slot, ep);
            if slot.attention.load(Ordering::Relaxed) & BARRIER != 0 && slot.is_drained() {
                wants = Some((slot, ep, RETRY));
            }
        }
        let Some(status) = cqe.status().filter(|status| *status != CqeStatus::Ok) else {
            return wants;
        };
        if received {
            // Of a datagram, or of an unreliable connection, the rest of whose message does not come, or does not fit.
            let lost = matches!(status, CqeStatus::Flushed | CqeStatus::Length);
            let only_lost = kind != QpKind::Rc && lost;
            return if !only_lost && slot.fail_qp() {
                Some((slot, ep, FAILED))
            } else {
                None
            };
        }
        if kind == QpKind::Rc {
            cqe.status = seen(kind, status).code();
            return stop(kind, slot, ep);
        }
        // Whatever has become of it on its way or at the peer.
        cqe.status = CqeStatus::Ok.code();
        if status != CqeStatus::Gone {
            return wants;
        }
        let retry = if wants.is_some() { RETRY } else { 0 };
        Some((slot, ep, SWEEP | retry))
    }
}

/// What is told of an entry that did not become work: if it is not to be reliable, only what is wrong with it.
fn seen(kind: QpKind, status: CqeStatus) -> CqeStatus {
    match (kind, status) {
        (QpKind::Rc, CqeStatus::Gone) => CqeStatus::RetryExceeded,
        (QpKind::Rc, status) => status,
        (_, CqeStatus::Invalid | CqeStatus::Protection | CqeStatus::TooLong | CqeStatus::Flushed) => status,
        _ => CqeStatus::Ok,
    }
}

/// An error in sending stops a reliable connection, and the sending half of others. What is to be done, if it has.
pub(crate) fn stop<H: Home>(kind: QpKind, slot: &EndpointSlot<H>, ep: EndpointId) -> Option<Wants<'_, H>> {
    let (stopped, why) = match kind {
        QpKind::Rc => (slot.fail_qp(), FAILED),
        _ => (slot.change(EndpointState::Ready, EndpointState::SendError), RETRY),
    };
    stopped.then_some((slot, ep, why))
}
