//! What a frame with a message says about this side's own sending, put off until that message is where it belongs.

use usb4_wire::{AckBlock, Seq};

use super::Link;
use crate::list::at_mut;
use crate::{Host, Nanos, RailId};

/// What is put off. That is as if the peer had said it a little later, so what happens meanwhile needs to know nothing of
/// it; but it comes before anything else the peer says, and before the flow or the rail it is for goes.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// When the frame arrived, on which rail, and what it acknowledges; until that is taken.
    ack: Option<(Nanos, RailId, AckBlock)>,
    /// An EXEC_ACK that was the last chunk and had its turn.
    exec_ack: Option<(Seq, u32)>,
}

impl Late {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.ack.is_none() && self.exec_ack.is_none()
    }
}

impl Link {
    /// Whether [`Link::on_frame_first`] has put something off that has not been taken.
    #[inline(always)]
    pub fn is_behind(&self) -> bool {
        !self.late.is_empty()
    }

    /// Takes what [`Link::on_frame_first`] has put off. Returns whether something may be sent now that had to wait for it.
    #[inline(always)]
    pub fn catch_up<H: Host + ?Sized>(&mut self, host: &H) -> bool {
        self.is_behind() && self.take_late(host)
    }

    #[inline(never)]
    fn take_late<H: Host + ?Sized>(&mut self, host: &H) -> bool {
        self.catch_up_with_ack();
        if let Some((seq, csn)) = self.late.exec_ack.take() {
            match at_mut(&mut self.tx_flows, seq.flow) {
                // It may be closing by now.
                Some(flow) if flow.takes_responses() && flow.awaits(seq) => {
                    flow.response_csn = flow.response_csn.wrapping_add(1);
                    self.take_exec_ack(seq.flow, csn, host);
                }
                _ => self.stale(),
            }
        }
        !self.active.is_empty()
            || self.slots.has_queued()
            || self.has_seldom()
            || core::mem::take(&mut self.held_up)
    }

    /// Takes the acknowledgement alone: what a timer must know.
    #[inline]
    pub(super) fn catch_up_with_ack(&mut self) {
        if let Some((now, rail, ack)) = self.late.ack.take() {
            self.on_ack(now, rail, ack);
        }
    }

    /// Puts the acknowledgement of a frame off.
    #[inline(always)]
    pub(super) fn put_off_ack(&mut self, now: Nanos, rail: RailId, ack: AckBlock) {
        self.late.ack = Some((now, rail, ack));
    }

    /// Puts an EXEC_ACK off, the last chunk of a frame whose acknowledgement is. False if it is to be taken now.
    #[inline(always)]
    pub(super) fn put_off_exec_ack(&mut self, seq: Seq, csn: u32) -> bool {
        let Self { late, tx_flows, .. } = self;
        let may =
            late.ack.is_some() && at_mut(tx_flows, seq.flow).is_some_and(|flow| flow.is_plainly_next(seq));
        if may {
            late.exec_ack = Some((seq, csn));
        }
        may
    }
}
