//! What follows once plans are done, and what the peer is told of it.

use usb4_wire::NakCode;

use super::Link;
use crate::list::at_mut;
use crate::plan::{PlanEntry, Then};
use crate::rail::{DUE, NEVER};
use crate::rx_flow::RxState;
use crate::stream::Answer;
use crate::{Host, Nanos, Plan, RxToken};

/// Request chunks executed, after which the peer is told at once.
const REPORT_EVERY: u32 = 16;

impl Link {
    /// The next thing to do to memory, in order.
    #[inline]
    pub fn next_plan(&mut self) -> Option<Plan> {
        if self.failed { None } else { self.plans.take() }
    }

    /// The oldest plan taken is done; `old_value` is an atomic's value before the operation, else 0.
    #[inline]
    pub fn plan_done<H: Host + ?Sized>(&mut self, now: Nanos, old_value: u64, host: &H) {
        if !self.takes_short_ways() {
            return self.any_plan_done(now, old_value, host);
        }
        let Self {
            plans,
            tokens,
            rx_flows,
            ..
        } = self;
        let Some(entry) = plans.oldest() else { return };
        // What nearly all plans are: part of a message, or its end, copied to a receive.
        let (from, index, done) = match *entry {
            PlanEntry {
                plan: Plan::Copy { from, .. },
                then: Then::Executed { flow },
            } => (from, flow, None),
            PlanEntry {
                plan: Plan::Copy { from, .. },
                then:
                    Then::Received {
                        flow,
                        written: None,
                        mem: Some(mem),
                        ref done,
                        counts: true,
                    },
            } => (from, flow, Some((mem, done))),
            _ => return self.any_plan_done(now, old_value, host),
        };
        let flow = match at_mut(rx_flows, index) {
            Some(flow) if !self.failed => flow,
            _ => return self.any_plan_done(now, old_value, host),
        };
        flow.plans = flow.plans.wrapping_sub(1);
        if let Some((mem, done)) = done {
            host.release(mem);
            host.complete_receive(flow.target, *done);
        }
        plans.end_oldest();
        tokens.drop_ref(from);
        self.executed(now, index);
        self.resume_stalled(now, host);
    }

    #[inline(never)]
    fn any_plan_done<H: Host + ?Sized>(&mut self, now: Nanos, old_value: u64, host: &H) {
        let Some((from, then)) = self.plans.finish() else {
            return;
        };
        if let Some(from) = from {
            self.tokens.drop_ref(from);
        }
        self.end_plan(&then);
        self.finish(now, &then, old_value, host);
        if self.failed {
            return self.finish_failing(host);
        }
        self.resume_stalled(now, host);
    }

    /// Runs waiting plans at once, for a home that copies under the link's lock: `run` does what a plan says and
    /// returns an atomic's value before the operation, else 0. `None` leaves that plan and what is behind it to
    /// [`Link::next_plan`]. Nothing is run while plans are with the home. Returns how many were.
    pub fn run_plans<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        host: &H,
        mut run: impl FnMut(&Plan) -> Option<u64>,
    ) -> u32 {
        let mut count = 0u32;
        while !self.failed && self.plans.running() == 0 {
            let Some(old_value) = self.plans.front().and_then(&mut run) else {
                break;
            };
            self.plans.take();
            self.plan_done(now, old_value, host);
            count = count.wrapping_add(1);
        }
        count
    }

    /// A receive buffer the link held and needs no more.
    #[inline]
    pub fn next_released(&mut self) -> Option<RxToken> {
        self.tokens.next_released()
    }

    /// Queues a plan. There is room: see `can_execute` and its counterpart for responses.
    #[inline]
    pub(super) fn queue_plan(&mut self, plan: Plan, then: Then) {
        match then {
            Then::Landed { op } => {
                if let Some(op) = self.ops.get_mut(op) {
                    op.plans = op.plans.wrapping_add(1);
                }
            }
            _ => {
                if let Some(flow) = then.flow().and_then(|flow| at_mut(&mut self.rx_flows, flow)) {
                    flow.plans = flow.plans.wrapping_add(1);
                }
            }
        }
        self.plans.push(plan, then);
    }

    #[inline]
    pub(super) fn end_plan(&mut self, then: &Then) {
        match *then {
            Then::Landed { op } => {
                if let Some(op) = self.ops.get_mut(op) {
                    op.plans = op.plans.wrapping_sub(1);
                }
            }
            _ => {
                if let Some(flow) = then.flow().and_then(|flow| at_mut(&mut self.rx_flows, flow)) {
                    flow.plans = flow.plans.wrapping_sub(1);
                }
            }
        }
    }

    /// Does `then` after the plans an incoming flow has outstanding.
    #[inline]
    pub(super) fn follow<H: Host + ?Sized>(&mut self, now: Nanos, index: u32, then: Then, host: &H) {
        match at_mut(&mut self.rx_flows, index) {
            Some(flow) if flow.plans == 0 => self.finish(now, &then, 0, host),
            _ => self.queue_plan(Plan::Nothing, then),
        }
    }

    pub(super) fn finish<H: Host + ?Sized>(&mut self, now: Nanos, then: &Then, old_value: u64, host: &H) {
        let index = match *then {
            Then::Executed { flow } => flow,
            Then::Written { flow, mem } => {
                host.release(mem);
                flow
            }
            Then::Received {
                flow,
                written,
                mem,
                ref done,
                counts,
            } => {
                if let Some(mem) = written {
                    host.release(mem);
                }
                if let Some(mem) = mem {
                    host.release(mem);
                }
                if let Some(flow) = at_mut(&mut self.rx_flows, flow) {
                    host.complete_receive(flow.target, *done);
                }
                if !counts {
                    return;
                }
                flow
            }
            Then::Streamed { flow, stream } => {
                self.answer(flow, stream, host);
                flow
            }
            Then::Atomic { flow, stream, mem } => {
                host.release(mem);
                if let Some(stream) = self.streams.get_mut(stream) {
                    stream.answer = Answer::Atomic { value: old_value };
                }
                self.answer(flow, stream, host);
                flow
            }
            Then::Closed { flow } => {
                self.finish_close(flow, host);
                flow
            }
            Then::Landed { op } => return self.landed(now, op, host),
        };
        self.executed(now, index);
    }

    /// An answer waits to be sent; or is not sent, because the endpoint has gone.
    fn answer<H: Host + ?Sized>(&mut self, index: u32, stream: u32, host: &H) {
        if let Some(flow) = at_mut(&mut self.rx_flows, index) {
            if flow.state == RxState::Refused {
                self.streams.ending.push(&mut self.streams.slab, stream);
                return self.end_streams(host);
            }
            flow.streams.push(&mut self.streams.slab, stream);
            self.respond.push(&mut self.rx_flows, index);
        }
    }

    /// Every plan of a closed flow is done.
    fn finish_close<H: Host + ?Sized>(&mut self, index: u32, host: &H) {
        self.drop_streams(index, host);
        let Some(flow) = at_mut(&mut self.rx_flows, index) else {
            return;
        };
        flow.state = RxState::Closed;
        flow.urgent = true;
        if core::mem::take(&mut flow.has_target) {
            host.close_flow(flow.target);
        }
    }

    /// Cuts off the answers a flow still owes.
    pub(super) fn drop_streams<H: Host + ?Sized>(&mut self, index: u32, host: &H) {
        let Some(flow) = at_mut(&mut self.rx_flows, index) else {
            return;
        };
        while let Some(stream) = flow.streams.pop(&mut self.streams.slab) {
            self.streams.ending.push(&mut self.streams.slab, stream);
        }
        self.end_streams(host);
    }

    /// Frees ended streams whose memory no gather reads any more.
    pub(super) fn end_streams<H: Host + ?Sized>(&mut self, host: &H) {
        while let Some(index) = self.streams.ending.front() {
            match self.streams.get(index) {
                Some(stream) if self.slots.is_gathered(stream.gather) => {
                    if let Answer::Read { from, .. } = stream.answer {
                        host.release(from.mem);
                    }
                }
                _ => break,
            }
            self.streams.ending.pop(&mut self.streams.slab);
            self.streams.free(index);
        }
    }

    /// One more request chunk has taken effect.
    #[inline(always)]
    fn executed(&mut self, now: Nanos, index: u32) {
        let Some(flow) = at_mut(&mut self.rx_flows, index) else {
            return;
        };
        flow.executed = flow.executed.wrapping_add(1);
        let urgent = flow.urgent && flow.plans == 0;
        if urgent {
            flow.urgent = false;
        }
        self.counters.executed = self.counters.executed.wrapping_add(1);
        self.report.push(&mut self.rx_flows, index);
        self.unreported = self.unreported.wrapping_add(1);
        if urgent || self.unreported >= REPORT_EVERY {
            self.report_at = DUE;
        } else if self.report_at == NEVER {
            self.report_at = now.saturating_add(self.config.max_ack_delay);
        }
    }

    /// Endpoint `ep` has got a receive, has become ready, or is gone: flows that were refused for lack of that may
    /// resume.
    pub fn receive_posted(&mut self, now: Nanos, ep: u32) {
        self.receives_posted(now, |target| target == ep);
    }

    /// As [`Self::receive_posted`], for all endpoints that `got` says yes to. It is asked of those that somebody waits for
    /// only, who has waited longest first; whom a receive was not enough for waits behind others afterwards.
    pub fn receives_posted(&mut self, _now: Nanos, mut got: impl FnMut(u32) -> bool) {
        let last = self.not_ready.back();
        while let Some(index) = self.not_ready.pop(&mut self.rx_flows) {
            let Some(flow) = at_mut(&mut self.rx_flows, index) else {
                break;
            };
            if flow.rnr && got(flow.target.ep) {
                flow.rnr = false;
                flow.ready = true;
                flow.epoch = flow.epoch.wrapping_add(1);
                self.respond.push(&mut self.rx_flows, index);
            } else if flow.rnr {
                self.not_ready.push(&mut self.rx_flows, index);
            }
            if Some(index) == last {
                break;
            }
        }
    }

    /// Counts a NAK sent.
    pub(super) fn count_nak(&mut self, code: NakCode) {
        let counters = &mut self.counters;
        if code.is_resumed() {
            counters.rnr_sent = counters.rnr_sent.wrapping_add(1);
        } else {
            counters.nak_sent = counters.nak_sent.wrapping_add(1);
        }
    }
}
