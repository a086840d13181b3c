//! Regions of queue pairs that peers are not to use any more, though they stay registered: at a peer's request, which comes
//! with a message, or at their owner's, which is an entry on a submission queue.

use usb4_engine::{NakCode, Target};
use usb4_ring_abi::{Cqe, CqeStatus, Sqe, sqe_flags};

use crate::cq::{NoRoom, Op};
use crate::endpoint::{BARRIER, EndpointSlot, Tx};
use crate::memory::Domain;
use crate::qp_send::{stop, word};
use crate::submit::Taken;
use crate::sync::Ordering;
use crate::{Device, EndpointId, Home, QpKind};

impl<H: Home> Device<H> {
    /// Does what the immediate data of a message says before its receive completes, if the message is of a reliable connection.
    /// An access that has begun on another flow may end later.
    pub(crate) fn invalidate_for(&self, target: Target, imm: u64) -> Result<(), NakCode> {
        let Some(slot) = self.endpoint(EndpointId(target.ep)) else {
            return Ok(());
        };
        if imm & word::INVALIDATE == 0 || slot.qp_kind() != Some(QpKind::Rc) {
            return Ok(());
        }
        if self.invalidate(slot.domain(), imm & u64::from(u32::MAX)) {
            Ok(())
        } else {
            Err(NakCode::Access)
        }
    }

    /// Has peers not use the region with that key any more. False if there is none that they could use.
    fn invalidate(&self, domain: Domain, key: u64) -> bool {
        let shut = self.regions.shut(domain, key);
        shut.inspect_err(|denied| self.tell_idle(denied.0)).is_ok()
    }

    /// An entry that invalidates a region of its own client's.
    #[cold]
    pub(crate) fn invalidate_own(&self, slot: &EndpointSlot<H>, tx: &Tx<H>, sqe: &Sqe) -> Taken {
        let Some(kind) = QpKind::of(tx.op_flags) else {
            return Taken::Dead;
        };
        let [_, key, ..] = sqe.args;
        let plain = Sqe {
            op: sqe.op,
            flags: sqe.flags & (sqe_flags::UNSIGNALED | sqe_flags::FENCE),
            ah: sqe.ah,
            user_data: sqe.user_data,
            args: [0, key, 0, 0],
            ..Sqe::default()
        };
        if kind == QpKind::Ud || *sqe != plain {
            return self.refuse_qp(slot, tx, sqe, CqeStatus::Invalid);
        }
        let record = Op {
            user_data: sqe.user_data,
            ep: tx.id.0,
            op: sqe.op,
            flags: tx.op_flags,
        };
        // With the lock that operations complete under: the last one to do so finds the mark.
        let reserved = self.cq(tx.cq).and_then(|cq| {
            cq.with(tx.cq, |cq| {
                if slot.is_drained() {
                    slot.attention.fetch_and(!BARRIER, Ordering::Relaxed);
                    return Some(cq.reserve(record));
                }
                slot.attention.fetch_or(BARRIER, Ordering::Relaxed);
                None
            })
        });
        let place = match reserved {
            Some(None) => return Taken::Held,
            Some(Some(Ok(place))) => place,
            Some(Some(Err(NoRoom::Full))) => return Taken::Stuck,
            Some(Some(Err(NoRoom::Dead))) | None => {
                self.tell_dead(tx.cq);
                return Taken::Dead;
            }
        };
        let done = self.invalidate(tx.domain, key);
        let status = if done { CqeStatus::Ok } else { CqeStatus::Invalid };
        let cqe = Cqe {
            user_data: sqe.user_data,
            op: sqe.op,
            status: status.code(),
            ep: tx.id.number(),
            ..Cqe::default()
        };
        if let Some(cq) = self.cq(tx.cq) {
            cq.with(tx.cq, |cq| {
                cq.end(place);
                if done && sqe.flags & sqe_flags::UNSIGNALED != 0 {
                    return;
                }
                cq.push(&cqe);
                if !done {
                    cq.solicit();
                }
                if cq.take_armed() {
                    self.home.wake(&cq.waker);
                }
            });
        }
        if !done {
            if let Some((slot, ep, why)) = stop(kind, slot, tx.id) {
                self.attend(slot, ep, why);
            }
        }
        Taken::Done
    }
}
