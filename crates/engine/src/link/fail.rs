//! The end of a rail and the end of a link.

use super::Link;
use crate::list::{NONE, at, at_mut};
use crate::plan::Then;
use crate::rail::{NEVER, Outcome};
use crate::rx_flow::{Message, RxState};
use crate::tx_flow::TxState;
use crate::{Host, Nanos, RailId, ReceiveDone, Status};

impl Link {
    /// Removes a rail. The home has stopped it: none of its descriptors is pending any more, and those that were
    /// count as completed. What the peer has not acknowledged goes out again on the other rails. Without another
    /// rail the link fails, as by [`Link::fail`].
    pub fn detach_rail<H: Host + ?Sized>(&mut self, now: Nanos, rail: RailId, host: &H) {
        self.catch_up(host);
        let Self {
            rails,
            slots,
            counters,
            ..
        } = self;
        let Some(state) = rails.get_mut(usize::from(rail.0)).filter(|rail| rail.attached()) else {
            return;
        };
        slots.complete_all(rail.0);
        state.detach(|slot| {
            counters.tx_lost = counters.tx_lost.wrapping_add(1);
            slots.decided(slot, Outcome::Lost);
        });
        self.rails_up = self.rails_up.wrapping_sub(1);
        if self.rails_up == 0 {
            self.fail(now, host);
        }
    }

    /// Ends the session: work completes with `LinkDown`, receives in progress with `Flushed`, incoming flows are
    /// closed towards the host, references and frame buffers come back. Plans already taken and frames being
    /// gathered still touch memory, so the home goes on calling [`Link::plan_done`] and [`Link::staged`] for
    /// them; what is left completes with the last of these calls. From then on [`Link::is_quiet`].
    pub fn fail<H: Host + ?Sized>(&mut self, _now: Nanos, host: &H) {
        if self.failed {
            return;
        }
        self.catch_up(host);
        self.failed = true;
        self.rails_up = 0;
        for rail in self.rails.iter_mut().filter(|rail| rail.attached()) {
            rail.detach(|_| ());
        }
        self.report_at = NEVER;
        self.patience_at = NEVER;
        for index in (0..NONE).take(self.rx_flows.len()) {
            self.purge_requests(index);
        }
        for index in (0..NONE).take(self.tx_flows.len()) {
            self.purge_responses(index);
        }
        self.finish_failing(host);
    }

    /// Completes everything, once no plan and no gather is under way.
    pub(super) fn finish_failing<H: Host + ?Sized>(&mut self, host: &H) {
        if self.cleared || self.plans.running() != 0 || self.slots.is_gathering() {
            return;
        }
        self.cleared = true;
        self.slots.abandon();
        while let Some((from, then)) = self.plans.cancel() {
            if let Some(from) = from {
                self.tokens.drop_ref(from);
            }
            self.end_plan(&then);
            self.cancel(&then, host);
        }
        for index in (0..NONE).take(self.rx_flows.len()) {
            self.fail_rx_flow(index, host);
        }
        self.end_streams(host);
        for index in (0..NONE).take(self.tx_flows.len()) {
            if at(&self.tx_flows, index).is_some_and(|flow| flow.state != TxState::Free) {
                self.flush(index, Status::LinkDown, host);
            }
        }
        self.reads = 0;
    }

    /// What follows a plan that was never run.
    fn cancel<H: Host + ?Sized>(&mut self, then: &Then, host: &H) {
        match *then {
            Then::Executed { .. } | Then::Closed { .. } | Then::Landed { .. } => {}
            Then::Written { mem, .. } => host.release(mem),
            Then::Received {
                flow,
                written,
                mem,
                done,
                ..
            } => {
                for mem in [written, mem].into_iter().flatten() {
                    host.release(mem);
                }
                let Some(flow) = at_mut(&mut self.rx_flows, flow) else {
                    return;
                };
                let status = match done.status {
                    Status::Ok => Status::Flushed,
                    status => status,
                };
                host.complete_receive(flow.target, ReceiveDone { status, ..done });
            }
            Then::Streamed { stream, .. } => self.streams.ending.push(&mut self.streams.slab, stream),
            Then::Atomic { stream, mem, .. } => {
                host.release(mem);
                self.streams.free(stream);
            }
        }
    }

    fn fail_rx_flow<H: Host + ?Sized>(&mut self, index: u32, host: &H) {
        self.drop_streams(index, host);
        let Some(flow) = at_mut(&mut self.rx_flows, index) else {
            return;
        };
        if let Message::Send { receive, .. } = core::mem::replace(&mut flow.message, Message::None) {
            if let Some(mem) = super::request::receive_mem(&receive) {
                host.release(mem);
            }
            let cookie = receive.cookie;
            let done = ReceiveDone {
                cookie,
                status: Status::Flushed,
                len: 0,
                imm: None,
                write: false,
            };
            host.complete_receive(flow.target, done);
        }
        if core::mem::take(&mut flow.has_target) {
            host.close_flow(flow.target);
        }
        flow.reset(RxState::Free);
    }

    /// Whether the link holds nothing: no operation, receive, plan, frame buffer or reference.
    pub fn is_quiet(&self) -> bool {
        let usage = self.usage();
        usage.ops == 0
            && usage.slots == 0
            && usage.tokens == 0
            && usage.parked == 0
            && usage.plans == 0
            && usage.streams == 0
            && self.late.is_empty()
            && (self.cleared || self.rx_flows.iter().all(|flow| flow.message == Message::None))
    }
}
