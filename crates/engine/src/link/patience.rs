//! Flows that have waited for the peer for as long as they may.

use usb4_wire::NakCode;

use super::Link;
use crate::list::{NONE, at_mut};
use crate::rail::NEVER;
use crate::{Host, Nanos, Status};

impl Link {
    /// Ends the work of flows whose time is over, and finds out when the next one's is. Such a flow is as good as refused
    /// by the peer: whoever opened it closes it.
    #[cold]
    pub(super) fn give_up<H: Host + ?Sized>(&mut self, now: Nanos, host: &H) {
        self.patience_at = NEVER;
        for index in (0..NONE).take(self.tx_flows.len()) {
            let Some(flow) = at_mut(&mut self.tx_flows, index) else {
                return;
            };
            let Some(at) = flow.gives_up_at() else { continue };
            if at > now {
                self.patience_at = self.patience_at.min(at);
                continue;
            }
            let code = flow.waits_for;
            flow.refuse();
            self.expire(index, code, host);
        }
    }

    /// The operation that has waited ends as expired, those behind it flushed. What was sent before goes on.
    fn expire<H: Host + ?Sized>(&mut self, index: u32, code: NakCode, host: &H) {
        let Some(flow) = at_mut(&mut self.tx_flows, index) else {
            return;
        };
        let mut next = core::mem::replace(&mut flow.cursor, NONE);
        let mut status = Status::Expired(code);
        while let Some(op) = self.ops.get_mut(next) {
            if op.status == Status::Ok {
                op.status = status;
            }
            status = Status::Flushed;
            op.done = true;
            next = op.link;
        }
        self.complete(index, host);
    }
}
