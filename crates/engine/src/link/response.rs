//! Responses of the peer: read data, results, progress and refusals for this side's operations.

use usb4_wire::{Chunk, NakCode, Response, Seq, csn_before};

use super::Link;
use super::rx::{Turn, turn};
use crate::list::{NONE, at, at_mut};
use crate::op::Op;
use crate::park::Place;
use crate::plan::Then;
use crate::rail::NEVER;
use crate::tx_flow::{EPOCHS_PER_REST, Rest, TxFlow, TxState};
use crate::{Host, Nanos, Operation, Plan, RxToken, Status, WorkDone};

impl Link {
    /// An EXEC_ACK for an outgoing flow.
    #[inline(always)]
    pub(super) fn on_exec_ack<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        seq: Seq,
        csn: u32,
        token: RxToken,
        host: &H,
    ) -> bool {
        let short = self.takes_short_ways();
        match at_mut(&mut self.tx_flows, seq.flow) {
            Some(flow) if short && flow.is_plainly_next(seq) => {
                flow.response_csn = flow.response_csn.wrapping_add(1);
                if flow.takes_exec_ack(csn) {
                    self.complete(seq.flow, host);
                } else {
                    self.violation();
                }
                true
            }
            _ => {
                let place = Place { token, at: 0 };
                self.on_response(now, seq, &Response::ExecAck { csn }, place, host)
            }
        }
    }

    /// A response chunk for an outgoing flow.
    #[inline(never)]
    pub(super) fn on_response<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        seq: Seq,
        response: &Response,
        place: Place,
        host: &H,
    ) -> bool {
        let Some(flow) = at_mut(&mut self.tx_flows, seq.flow) else {
            self.violation();
            return true;
        };
        let ready = matches!(response, Response::Ready { .. });
        if !flow.takes_responses() || !flow.knows_epoch(seq.epoch, ready) {
            self.stale();
            return true;
        }
        match turn(seq.csn, flow.response_csn) {
            Turn::Now if self.plans.room() != 0 || !needs_plan(response) => {
                let more = !flow.parked.is_empty();
                self.take_response(now, seq, response, place, host);
                if more {
                    self.drain_responses(now, seq.flow, host);
                }
                true
            }
            turn => self.put_off(turn, Chunk::Response(seq, *response), place),
        }
    }

    /// Takes what is parked and has its turn now.
    pub(super) fn drain_responses<H: Host + ?Sized>(&mut self, now: Nanos, index: u32, host: &H) {
        while let Some(flow) = at_mut(&mut self.tx_flows, index) {
            let Some(seq) = self.park.first(&flow.parked) else {
                return;
            };
            if !flow.takes_responses() {
                return self.purge_responses(index);
            }
            match turn(seq.csn, flow.response_csn) {
                Turn::Now if self.plans.room() == 0 => {
                    return self.stalled_responses.push(&mut self.tx_flows, index);
                }
                Turn::Now => {
                    let Some((chunk, place)) = self.park.pop(&mut flow.parked) else {
                        return;
                    };
                    if let Chunk::Response(seq, ref response) = chunk {
                        self.take_response(now, seq, response, place, host);
                    }
                    self.tokens.drop_ref(place.token);
                }
                Turn::Past => {
                    let Some((_, place)) = self.park.pop(&mut flow.parked) else {
                        return;
                    };
                    self.tokens.drop_ref(place.token);
                }
                Turn::Early | Turn::Never => return,
            }
        }
    }

    /// Drops everything an outgoing flow has parked.
    pub(super) fn purge_responses(&mut self, index: u32) {
        if let Some(flow) = at_mut(&mut self.tx_flows, index) {
            self.park.empty(&mut flow.parked, &mut self.tokens);
        }
    }

    #[inline]
    fn take_response<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        seq: Seq,
        response: &Response,
        place: Place,
        host: &H,
    ) {
        let Some(flow) = at_mut(&mut self.tx_flows, seq.flow) else {
            return;
        };
        flow.response_csn = flow.response_csn.wrapping_add(1);
        match *response {
            Response::ExecAck { csn } => self.take_exec_ack(seq.flow, csn, host),
            Response::ReadData {
                req_id,
                offset,
                len,
                last,
            } => {
                self.on_read_data(now, seq.flow, req_id, (offset, len, last), place, host);
            }
            Response::Atomic { req_id, value } => self.on_result(now, seq.flow, req_id, value, host),
            Response::ReadCut { req_id } => self.on_read_cut(now, seq.flow, req_id, host),
            Response::Nak { csn, code } => self.on_nak(now, seq.flow, csn, code, host),
            Response::Ready { csn } => {
                let valid = flow.paused && csn == flow.next_csn && seq.epoch == flow.epoch;
                flow.waits &= !valid;
                match flow.state {
                    TxState::Open if valid => match flow.rest {
                        Rest::No => {
                            flow.paused = false;
                            self.active.push(&mut self.tx_flows, seq.flow);
                        }
                        Rest::Until(marking) => flow.rest = Rest::Ready(marking),
                        Rest::Ready(_) => self.violation(),
                    },
                    TxState::Open => self.violation(),
                    _ => {}
                }
            }
        }
    }

    pub(super) fn take_exec_ack<H: Host + ?Sized>(&mut self, index: u32, csn: u32, host: &H) {
        let Some(flow) = at_mut(&mut self.tx_flows, index) else {
            return;
        };
        if !flow.takes_exec_ack(csn) {
            return self.violation();
        }
        if flow.state == TxState::Closing && flow.closed && csn == flow.next_csn {
            self.end_flow(index);
        } else {
            self.complete(index, host);
        }
    }

    fn on_read_data<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        index: u32,
        req_id: u32,
        (offset, len, last): (u32, u16, bool),
        place: Place,
        host: &H,
    ) {
        let Some(op) = self.open_read(index, req_id) else {
            return if last {
                self.return_flushed(index)
            };
        };
        let end = offset.wrapping_add(u32::from(len));
        let is_read = matches!(op.work.op, Operation::Read { .. });
        if !is_read || offset != op.received || end > op.total || last != (end == op.total) {
            return self.violation();
        }
        op.received = end;
        let to = op.local_at(offset);
        if last {
            op.answered = true;
            self.return_read(index);
        }
        match to {
            Some(to) if len != 0 => {
                let from = place.token;
                self.tokens.hold(from);
                let plan = Plan::Copy {
                    from,
                    at: place.at,
                    len,
                    to,
                };
                self.queue_plan(plan, Then::Landed { op: req_id });
            }
            _ => self.landed(now, req_id, host),
        }
    }

    fn on_read_cut<H: Host + ?Sized>(&mut self, now: Nanos, index: u32, req_id: u32, host: &H) {
        let Some(op) = self.open_read(index, req_id) else {
            return self.return_flushed(index);
        };
        if !matches!(op.work.op, Operation::Read { .. }) {
            return self.violation();
        }
        op.refuse(NakCode::Access);
        op.answered = true;
        self.return_read(index);
        self.landed(now, req_id, host);
    }

    fn on_result<H: Host + ?Sized>(&mut self, now: Nanos, index: u32, req_id: u32, value: u64, host: &H) {
        let Some(op) = self.open_read(index, req_id) else {
            return self.return_flushed(index);
        };
        if matches!(op.work.op, Operation::Read { .. }) {
            return self.violation();
        }
        op.value = value;
        op.answered = true;
        let to = op.local_at(0);
        self.return_read(index);
        match to {
            Some(to) => self.queue_plan(Plan::Store { to, value }, Then::Landed { op: req_id }),
            None => self.landed(now, req_id, host),
        }
    }

    /// The read or atomic a response names, if it is one that waits for responses. Those of a closed flow have
    /// completed and are none.
    fn open_read(&mut self, index: u32, req_id: u32) -> Option<&mut Op> {
        let open = self
            .ops
            .get(req_id)
            .is_some_and(|op| op.flow == index && op.holds_read() && !op.done);
        if !open {
            if at(&self.tx_flows, index).is_some_and(|flow| flow.state == TxState::Open) {
                self.violation();
            }
            return None;
        }
        self.ops.get_mut(req_id)
    }

    /// One of the peer's read slots is free again.
    fn return_read(&mut self, index: u32) {
        if let Some(flow) = at_mut(&mut self.tx_flows, index) {
            flow.reads = flow.reads.wrapping_sub(1);
            self.reads = self.reads.wrapping_sub(1);
        }
        self.release_held(index);
    }

    /// A read or atomic that had been staged is done.
    fn read_done(&mut self, index: u32) {
        if let Some(flow) = at_mut(&mut self.tx_flows, index) {
            flow.undone = flow.undone.wrapping_sub(1);
        }
        self.release_held(index);
    }

    /// A read or atomic has been answered, or is done: what waited for that may be staged.
    fn release_held(&mut self, index: u32) {
        if let Some(flow) = at_mut(&mut self.tx_flows, index) {
            if core::mem::take(&mut flow.held) {
                self.active.push(&mut self.tx_flows, index);
            }
        }
    }

    /// The peer has answered a read of a refused flow, which has completed since.
    fn return_flushed(&mut self, index: u32) {
        let refused = |flow: &TxFlow| flow.state == TxState::Refused && flow.reads != 0;
        if at(&self.tx_flows, index).is_some_and(refused) {
            self.return_read(index);
        }
    }

    /// The peer has refused everything from `csn` on: it will not answer reads that begin there or later.
    fn return_unanswered(&mut self, index: u32, csn: u32) {
        let mut next = at(&self.tx_flows, index).and_then(|flow| flow.ops.front());
        while let Some(op) = next.and_then(|op| self.ops.get(op)) {
            next = Some(op.link);
            if op.holds_read() && !csn_before(op.first_csn, csn) {
                self.return_read(index);
            }
        }
    }

    /// Response bytes of an operation are in local memory, or there were none.
    pub(super) fn landed<H: Host + ?Sized>(&mut self, _now: Nanos, index: u32, host: &H) {
        let Some(op) = self.ops.get_mut(index) else { return };
        let first = op.answered && op.plans == 0 && !core::mem::replace(&mut op.done, true);
        if op.plans == 0 {
            let flow = op.flow;
            self.complete(flow, host);
            if first {
                self.read_done(flow);
            }
        }
    }

    fn on_nak<H: Host + ?Sized>(&mut self, now: Nanos, index: u32, csn: u32, code: NakCode, host: &H) {
        let Some(flow) = at_mut(&mut self.tx_flows, index) else {
            return;
        };
        if code.is_resumed() {
            self.counters.rnr_received = self.counters.rnr_received.wrapping_add(1);
        } else {
            self.counters.nak_received = self.counters.nak_received.wrapping_add(1);
        }
        // An endpoint can go while nothing is outstanding.
        let idle = code == NakCode::Gone && flow.opened && csn == flow.next_csn;
        if !flow.is_outstanding(csn) && !idle {
            return self.violation();
        }
        let opening = csn == 0 && !flow.accepted;
        match flow.state {
            _ if code.is_resumed() && !opening => self.pause(now, index, csn, code),
            TxState::Open if code == NakCode::Gone || opening => {
                flow.refuse();
                flow.takes_exec_ack(csn);
                self.return_unanswered(index, csn);
                self.flush(index, Status::Refused(code), host);
            }
            TxState::Open => self.refuse(index, csn, code, host),
            _ => {}
        }
    }

    /// The peer has refused the operation chunk `csn` belongs to, and only that.
    fn refuse<H: Host + ?Sized>(&mut self, index: u32, csn: u32, code: NakCode, host: &H) {
        let Some(op_index) = self.op_of(index, csn) else {
            return self.violation();
        };
        let Some(op) = self.ops.get_mut(op_index) else {
            return;
        };
        op.refuse(code);
        if op.is_read() {
            // It has no other answer.
            let held = op.holds_read();
            op.answered = true;
            let first = !core::mem::replace(&mut op.done, true);
            if held {
                self.return_read(index);
            }
            if first {
                self.read_done(index);
            }
        }
        self.complete(index, host);
    }

    /// The operation a staged chunk belongs to.
    fn op_of(&self, index: u32, csn: u32) -> Option<u32> {
        let flow = at(&self.tx_flows, index)?;
        let mut op_index = flow.ops.front()?;
        while let Some(op) = self.ops.get(op_index) {
            if !op.started || csn_before(csn, op.first_csn) {
                return None;
            }
            if !op.finished || !csn_before(op.last_csn, csn) {
                return Some(op_index);
            }
            op_index = op.link;
        }
        None
    }

    /// The peer has no receive for chunk `csn`, or is not ready, and discards what follows. Takes back everything from
    /// there on and waits for READY.
    fn pause(&mut self, now: Nanos, index: u32, csn: u32, code: NakCode) {
        let cursor = self.op_of(index, csn);
        let Some(flow) = at_mut(&mut self.tx_flows, index) else {
            return;
        };
        if flow.state == TxState::Open {
            let Some(cursor) = cursor else {
                return self.violation();
            };
            let Some(op) = self.ops.get_mut(cursor) else {
                return;
            };
            let resumes_at_last = op.finished
                && csn == op.last_csn
                && matches!(op.work.op, Operation::Write { imm: Some(_), .. });
            let mut next = if csn == op.first_csn {
                cursor
            } else if resumes_at_last {
                op.sent = op.last_offset;
                op.finished = false;
                op.link
            } else {
                return self.violation();
            };
            while let Some(op) = self.ops.get_mut(next) {
                if op.holds_read() {
                    flow.reads = flow.reads.wrapping_sub(1);
                    self.reads = self.reads.wrapping_sub(1);
                }
                if op.is_read() && op.started && !op.done {
                    flow.undone = flow.undone.wrapping_sub(1);
                }
                op.rewind();
                next = op.link;
            }
            flow.cursor = cursor;
        }
        flow.next_csn = csn;
        flow.epoch = flow.epoch.wrapping_add(1);
        flow.replays = flow.replays.saturating_add(1);
        flow.paused = true;
        flow.closed = false;
        flow.begin_wait(now, csn, code);
        self.patience_at = self.patience_at.min(flow.gives_up_at().unwrap_or(NEVER));
        if flow.state == TxState::Closing {
            self.active.push(&mut self.tx_flows, index);
        } else if flow.epoch % EPOCHS_PER_REST == 0 {
            self.rest(index);
        }
    }

    /// Completes what is complete at the head of a flow's operations: they complete in order.
    #[inline]
    pub(super) fn complete<H: Host + ?Sized>(&mut self, index: u32, host: &H) {
        let Self {
            tx_flows,
            ops,
            slots,
            counters,
            ..
        } = self;
        let Some(flow) = at_mut(tx_flows, index) else {
            return;
        };
        while let Some(op_index) = flow.ops.front() {
            let Some(op) = ops.get(op_index) else { return };
            if !op.is_complete(flow.acked_csn) || op.plans != 0 {
                return;
            }
            if !slots.is_gathered(op.gather) {
                return self.blocked.push(tx_flows, index);
            }
            if flow.cursor == op_index {
                flow.cursor = op.link;
            }
            if let Some(mem) = op.mem() {
                host.release(mem);
            }
            let count = match op.status {
                Status::Ok => &mut counters.completed,
                _ => &mut counters.failed,
            };
            *count = count.wrapping_add(1);
            host.complete_work(WorkDone {
                cookie: op.work.cookie,
                status: op.status,
                len: op.total,
                value: op.value,
            });
            ops.free_first(&mut flow.ops);
        }
        if flow.state == TxState::Closing {
            self.after_last_op(index);
        }
    }

    /// All operations of a closing flow have completed.
    pub(super) fn after_last_op(&mut self, index: u32) {
        let Some(flow) = at_mut(&mut self.tx_flows, index) else {
            return;
        };
        if flow.opened {
            self.active.push(&mut self.tx_flows, index);
        } else {
            // The peer has never heard of it: the next life takes the same epoch, since the peer accepts 127 at most
            // beyond the last it saw.
            flow.epoch = flow.open_epoch.wrapping_sub(1);
            flow.state = TxState::Free;
            self.free_flows.push(&mut self.tx_flows, index);
        }
    }

    /// Ends all operations of a flow as soon as their memory is not in use: with `status`, unless they are complete
    /// and only waited for their turn.
    pub(super) fn flush<H: Host + ?Sized>(&mut self, index: u32, status: Status, host: &H) {
        let Some(flow) = at_mut(&mut self.tx_flows, index) else {
            return;
        };
        let mut next = flow.ops.front().unwrap_or(NONE);
        while let Some(op) = self.ops.get_mut(next) {
            if op.status == Status::Ok && !op.is_complete(flow.acked_csn) {
                op.status = status;
            }
            op.done = true;
            next = op.link;
        }
        flow.cursor = NONE;
        self.complete(index, host);
    }

    /// Goes on with flows whose completions waited for a gather.
    #[inline]
    pub(super) fn resume_blocked<H: Host + ?Sized>(&mut self, host: &H) {
        if self.blocked.bits() & self.streams.ending.bits() != NONE {
            self.resume_gathered(host);
        }
    }

    fn resume_gathered<H: Host + ?Sized>(&mut self, host: &H) {
        let last = self.blocked.back();
        while let Some(index) = self.blocked.pop(&mut self.tx_flows) {
            self.complete(index, host);
            if Some(index) == last {
                break;
            }
        }
        self.end_streams(host);
    }
}

/// Whether a response may have to be followed by a plan.
#[inline]
fn needs_plan(response: &Response) -> bool {
    matches!(response, Response::ReadData { .. } | Response::Atomic { .. })
}
