//! Outgoing flows: opened, given work, closed.

use usb4_wire::{EpAddr, MAX_MESSAGE};

use super::Link;
use crate::list::{NONE, at, at_mut};
use crate::rail::NEVER;
use crate::tx_flow::{Rest, TxFlow, TxState};
use crate::{FlowId, Host, Limits, Nanos, OpenError, Operation, PostError, Status, Work};

/// Of all flows, the part that may be closing for others' sake.
const RECLAIMED_PART: usize = 16;

impl Link {
    /// Opens a flow from a local endpoint to an endpoint of the peer. The peer's refusal, if any, comes as the
    /// failure of posted work with `Refused(Gone)`. If no flow is free, the one that has been idle longest is closed
    /// to make room: post on it says so.
    ///
    /// # Errors
    /// No flow is free, or the link has failed.
    pub fn open_flow(
        &mut self,
        now: Nanos,
        src_ep: u32,
        src_incarnation: u32,
        dst: &EpAddr,
    ) -> Result<FlowId, OpenError> {
        if self.failed {
            return Err(OpenError::Down);
        }
        self.end_quarantine();
        let index = match self.free_flows.pop(&mut self.tx_flows) {
            Some(index) => index,
            None => self.reclaim().ok_or(OpenError::Full)?,
        };
        let flow = at_mut(&mut self.tx_flows, index).ok_or(OpenError::Full)?;
        flow.open();
        flow.used = now;
        self.all_busy_at = None;
        flow.src_ep = src_ep;
        flow.src_incarnation = src_incarnation;
        flow.dst_ep = dst.ep;
        flow.dst_incarnation = dst.incarnation;
        Ok(FlowId {
            index,
            life: flow.life,
        })
    }

    /// No flow is free: closes the one that has been idle longest, unless enough are closing already. If none is
    /// idle the busiest takes no more work until it is: it will be soon. Returns the closed one's index if it is
    /// free at once.
    #[cold]
    fn reclaim(&mut self) -> Option<u32> {
        let finished = self.counters.completed.wrapping_add(self.counters.failed);
        if self.all_busy_at == Some(finished) {
            return None;
        }
        let (mut closing, mut draining) = (0_usize, false);
        let (mut idle, mut busy) = (None, None);
        for (index, flow) in (0..NONE).zip(self.tx_flows.iter()) {
            let rank = (!flow.draining, flow.used, index);
            if matches!(flow.state, TxState::Closing | TxState::Quarantined) {
                closing = closing.wrapping_add(1);
            } else if flow.is_idle() {
                idle = Some(idle.unwrap_or(rank).min(rank));
            } else if flow.draining {
                draining |= !flow.paused;
            } else if !flow.paused {
                busy = busy.max(Some((flow.used, index)));
            }
        }
        // Several at once, as each takes some round trips; few, as most will be opened again.
        if closing > self.tx_flows.len() / RECLAIMED_PART {
            return None;
        }
        if let Some((_, _, index)) = idle {
            at_mut(&mut self.tx_flows, index)?.close();
            self.after_last_op(index);
            return self.free_flows.pop(&mut self.tx_flows);
        }
        self.all_busy_at = Some(finished);
        let (_, index) = busy.filter(|_| !draining && closing == 0)?;
        at_mut(&mut self.tx_flows, index)?.drain();
        None
    }

    /// Bounds what a flow waits for, from now on.
    pub fn limit_flow(&mut self, flow: FlowId, limits: Limits) {
        let (id, index) = (flow, flow.index);
        if let Some(flow) = at_mut(&mut self.tx_flows, index).filter(|flow| flow.takes_work_as(id)) {
            flow.limits = limits;
            self.patience_at = self.patience_at.min(flow.gives_up_at().unwrap_or(NEVER));
        }
    }

    /// A flow takes no more work: once what it has is done it is closed, and the next [`Link::post`] says so.
    pub fn drain_flow(&mut self, flow: FlowId) {
        let (id, index) = (flow, flow.index);
        if let Some(flow) = at_mut(&mut self.tx_flows, index).filter(|flow| flow.takes_work_as(id)) {
            flow.drain();
        }
    }

    /// Closes a flow: its work completes with `Flushed`, at once unless a plan or a gather still uses its
    /// memory. Once the plans and gathers now running are done nothing does. The id is used again only after the
    /// peer has executed the close.
    pub fn close_flow<H: Host + ?Sized>(&mut self, _now: Nanos, flow: FlowId, host: &H) {
        self.catch_up(host);
        let (id, index) = (flow, flow.index);
        let Some(flow) = at_mut(&mut self.tx_flows, index) else {
            return;
        };
        if !flow.takes_work_as(id) && !flow.drains_as(id) && !flow.was_refused_as(id) {
            return;
        }
        flow.close();
        let ops = &self.ops;
        self.plans
            .keep_from_landing(|op| ops.get(op).is_some_and(|op| op.flow == index));
        self.flush(index, Status::Flushed, host);
    }

    /// Queues work on a flow, first in, first out. On success the link owns the reference in `work.local` until
    /// it releases it.
    ///
    /// # Errors
    /// The work is not accepted and nothing has changed.
    #[inline]
    pub fn post(&mut self, now: Nanos, flow: FlowId, work: Work) -> Result<(), PostError> {
        self.post_fenced(now, flow, work, false)
    }

    /// As [`Link::post`]. With `fenced` the work does not start before all reads and atomics posted on the flow before
    /// it are done, their bytes in place.
    ///
    /// # Errors
    /// As [`Link::post`].
    #[inline(always)]
    pub fn post_fenced(
        &mut self,
        now: Nanos,
        flow: FlowId,
        work: Work,
        fenced: bool,
    ) -> Result<(), PostError> {
        if self.failed {
            return Err(PostError::Down);
        }
        let (id, index) = (flow, flow.index);
        let flow = match at_mut(&mut self.tx_flows, index) {
            Some(flow) if flow.takes_work_as(id) => flow,
            _ => return Err(self.why_not(id)),
        };
        let total = length_of(&work).ok_or(PostError::Invalid)?;
        let op = self
            .ops
            .alloc(index, &work, total, fenced)
            .ok_or(PostError::Full)?;
        flow.ops.push(&mut self.ops.slab, op);
        flow.used = now;
        if flow.cursor == NONE {
            flow.cursor = op;
            if !flow.paused {
                self.active.push(&mut self.tx_flows, index);
            }
        }
        Ok(())
    }

    /// Why a flow takes no work under that name.
    #[cold]
    fn why_not(&mut self, id: FlowId) -> PostError {
        match at_mut(&mut self.tx_flows, id.index) {
            Some(flow) if flow.was_refused_as(id) => PostError::Gone,
            // Work through another flow would overtake what this one still has.
            Some(flow) if flow.drains_as(id) && !flow.ops.is_empty() => PostError::Full,
            Some(flow) if flow.drains_as(id) => {
                flow.close();
                self.after_last_op(id.index);
                PostError::Closed
            }
            _ => PostError::Closed,
        }
    }

    /// The peer has executed FLOW_CLOSE. Frames with chunks of this life of the flow may still be about, and a
    /// copy of one may yet be resent: the id rests until they are free.
    pub(super) fn end_flow(&mut self, index: u32) {
        self.purge_responses(index);
        let Some(flow) = at_mut(&mut self.tx_flows, index) else {
            return;
        };
        flow.state = TxState::Quarantined;
        self.reads = self.reads.wrapping_sub(core::mem::take(&mut flow.reads));
        self.next_quarantine.push(&mut self.tx_flows, index);
        self.end_quarantine();
    }

    /// Keeps a flow paused until no frame that is about now can reach the peer any more.
    #[cold]
    pub(super) fn rest(&mut self, index: u32) {
        if let Some(flow) = at_mut(&mut self.tx_flows, index) {
            flow.rest = Rest::Until(self.markings.wrapping_add(1));
            self.resting = true;
            self.next_resting = true;
        }
        self.end_quarantine();
    }

    /// Lets go on what has rested long enough.
    #[cold]
    pub(super) fn end_rests(&mut self) {
        self.end_quarantine();
        let under_way = u32::from(self.slots.marked() != 0);
        let ended = self.markings.wrapping_sub(under_way);
        if ended == self.markings_ended {
            return;
        }
        self.markings_ended = ended;
        self.resting = false;
        for index in 0..u32::try_from(self.tx_flows.len()).unwrap_or(NONE) {
            let Some(flow) = at_mut(&mut self.tx_flows, index) else {
                return;
            };
            let (Rest::Until(marking) | Rest::Ready(marking)) = flow.rest else {
                continue;
            };
            if ended.wrapping_sub(marking) > u32::MAX >> 1 {
                self.resting = true;
                continue;
            }
            let ready = flow.rest == Rest::Ready(marking);
            flow.rest = Rest::No;
            if ready && flow.state == TxState::Open {
                flow.paused = false;
                self.active.push(&mut self.tx_flows, index);
            }
        }
    }

    /// Frees the ids of closed flows that have rested long enough.
    fn end_quarantine(&mut self) {
        while self.slots.marked() == 0 {
            while let Some(index) = self.quarantine.pop(&mut self.tx_flows) {
                if let Some(flow) = at_mut(&mut self.tx_flows, index) {
                    flow.state = TxState::Free;
                }
                self.free_flows.push(&mut self.tx_flows, index);
            }
            if self.next_quarantine.is_empty() && !self.next_resting {
                return;
            }
            self.quarantine = core::mem::take(&mut self.next_quarantine);
            self.next_resting = false;
            self.markings = self.markings.wrapping_add(1);
            self.slots.mark();
        }
    }

    /// Whether a flow is open.
    pub fn is_open(&self, flow: FlowId) -> bool {
        let id = flow;
        let open = |flow: &TxFlow| flow.takes_work_as(id) || flow.drains_as(id);
        !self.failed && at(&self.tx_flows, id.index).is_some_and(open)
    }
}

/// Bytes of the message, if the work is valid.
#[inline(always)]
fn length_of(work: &Work) -> Option<u32> {
    let prefix_len = match work.op {
        Operation::Send {
            prefix_len,
            ref prefix,
            ..
        } => {
            if usize::from(prefix_len) > prefix.len() {
                return None;
            }
            prefix_len
        }
        Operation::Write { .. } | Operation::Read { .. } => 0,
        Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => return Some(8),
    };
    let total = work.len.checked_add(u32::from(prefix_len))?;
    let has_buffer = work.len == 0 || work.local.is_some();
    (has_buffer && total <= MAX_MESSAGE).then_some(total)
}
