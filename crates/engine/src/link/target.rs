//! Endpoints of this host that go while flows of the peer lead to them.

use usb4_wire::NakCode;

use super::Link;
use crate::list::{NONE, at, at_mut};
use crate::rx_flow::RxState;
use crate::{Host, Nanos};

impl Link {
    /// Endpoint `ep` is gone, or its memory is about to be. Receives in progress on incoming flows to it end with
    /// `Flushed` (without room for a plan, with the next request or the close of the flow), answers not yet staged
    /// are dropped, references come back once no plan or gather uses them, and the peer is told: its work on these
    /// flows is refused with `Gone`. Memory revoked after this call is not read for a frame still to be staged.
    pub fn close_target<H: Host + ?Sized>(&mut self, now: Nanos, ep: u32, host: &H) {
        if self.failed {
            return;
        }
        for index in (0..NONE).take(self.rx_flows.len()) {
            let leads_there = at(&self.rx_flows, index).is_some_and(|flow| {
                matches!(flow.state, RxState::Unready | RxState::Open) && flow.target.ep == ep
            });
            if leads_there {
                self.cut_off(now, index, host);
            }
        }
    }

    fn cut_off<H: Host + ?Sized>(&mut self, now: Nanos, index: u32, host: &H) {
        let room = self.plans.room() != 0;
        let Some(flow) = at_mut(&mut self.rx_flows, index) else {
            return;
        };
        flow.state = RxState::Refused;
        flow.ready = false;
        // The peer closes the flow in the epoch that follows the lack of a receive, if it has been told of that
        // or is about to be.
        if core::mem::take(&mut flow.rnr) {
            flow.epoch = flow.epoch.wrapping_add(1);
        }
        // A refusal that waits to be sent says what became of an operation.
        let refused = flow.nak.is_some();
        flow.gone = refused;
        if room || flow.plans == 0 {
            self.cut_message(now, index, host);
        }
        self.drop_streams(index, host);
        if !refused {
            self.queue_nak(index, NakCode::Gone);
        }
    }
}
