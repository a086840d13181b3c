//! Flows the peer has opened: requests in, responses out.

use usb4_wire::{NakCode, Request, Seq};

use crate::list::{Linked, List, OUT};
use crate::park::Queue;
use crate::{Receive, Target};

/// Where an incoming flow is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RxState {
    /// Nothing is known of it.
    Free,
    /// Chunks have arrived, FLOW_OPEN has not.
    Waiting,
    /// Its target is there and has not taken a request yet: the host is asked with each.
    Unready,
    /// Its requests are executed.
    Open,
    /// Its endpoint is not there: requests have no effect until FLOW_CLOSE.
    Refused,
    /// FLOW_CLOSE has been met; plans are outstanding.
    Closing,
    /// FLOW_CLOSE has been executed; the peer must be told.
    Closed,
}

/// The message an incoming flow is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    None,
    Send {
        receive: Receive,
        total: u32,
        got: u32,
        imm: Option<u64>,
    },
    Write {
        total: u32,
        got: u32,
    },
    /// Refused: the rest, up to its last chunk, has no effect.
    Discard,
}

/// An incoming flow.
#[derive(Debug)]
pub struct RxFlow {
    respond: u32,
    report: u32,
    stalled: u32,
    not_ready: u32,
    pub(crate) state: RxState,
    /// FLOW_OPEN's epoch.
    pub(crate) open_epoch: u8,
    /// Request chunks of other epochs are stale.
    pub(crate) epoch: u8,
    /// `target` is known to the host.
    pub(crate) has_target: bool,
    /// Refused for lack of a receive, or because the target is not ready: requests are discarded until it is.
    pub(crate) rnr: bool,
    /// READY is to be sent.
    pub(crate) ready: bool,
    /// Its endpoint is gone: NAK gone follows the refusal that waits to be sent.
    pub(crate) gone: bool,
    /// The peer asked to be told of execution without delay.
    pub(crate) urgent: bool,
    /// A NAK for chunk `nak_csn` is to be sent. There is at most one: nothing is executed before it is sent.
    pub(crate) nak: Option<NakCode>,
    pub(crate) nak_csn: u32,
    /// Number of the request chunk whose turn it is.
    pub(crate) next_csn: u32,
    /// Every request chunk before it has been executed, plans included.
    pub(crate) executed: u32,
    /// Number of the next response chunk.
    pub(crate) response_csn: u32,
    /// Plans outstanding for request chunks.
    pub(crate) plans: u32,
    /// Reads and atomics the peer may have outstanding, and those it has.
    pub(crate) max_answers: u32,
    pub(crate) answers: u32,
    pub(crate) parked: Queue,
    /// Answers to be sent, oldest first.
    pub(crate) streams: List<0>,
    pub(crate) target: Target,
    pub(crate) message: Message,
}

/// List of flows with response chunks to stage, EXEC_ACK aside.
pub(crate) const RESPOND: usize = 0;
/// List of flows whose progress the peer has not been told.
pub(crate) const REPORT: usize = 1;
/// List of flows whose first parked chunk has its turn but lacked room.
pub(crate) const STALLED: usize = 2;
/// List of flows refused for lack of a receive, or because the target is not ready.
pub(crate) const NOT_READY: usize = 3;

impl Linked<RESPOND> for RxFlow {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.respond
    }
}

impl Linked<REPORT> for RxFlow {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.report
    }
}

impl Linked<STALLED> for RxFlow {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.stalled
    }
}

impl Linked<NOT_READY> for RxFlow {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.not_ready
    }
}

impl Default for RxFlow {
    fn default() -> Self {
        Self {
            respond: OUT,
            report: OUT,
            stalled: OUT,
            not_ready: OUT,
            state: RxState::Free,
            open_epoch: 0,
            epoch: 0,
            has_target: false,
            rnr: false,
            ready: false,
            gone: false,
            urgent: false,
            nak: None,
            nak_csn: 0,
            next_csn: 0,
            executed: 0,
            response_csn: 0,
            plans: 0,
            max_answers: u32::MAX,
            answers: 0,
            parked: Queue::default(),
            streams: List::default(),
            target: Target { ep: 0, src: 0 },
            message: Message::None,
        }
    }
}

impl RxFlow {
    /// Forgets one life. List memberships stay: whoever takes the flow off a list looks whether there is
    /// something to do.
    pub(crate) fn reset(&mut self, state: RxState) {
        self.state = state;
        self.has_target = false;
        self.rnr = false;
        self.ready = false;
        self.gone = false;
        self.urgent = false;
        self.nak = None;
        self.next_csn = 0;
        self.executed = 0;
        self.response_csn = 0;
        self.answers = 0;
        self.message = Message::None;
    }

    /// Whether a chunk of this epoch belongs to the flow's next life rather than to the one that has ended: a frame
    /// whose acknowledgement a lost rail took with it comes again over another, when its flow may be closed.
    #[inline]
    pub(crate) fn is_next_life(&self, epoch: u8) -> bool {
        matches!(epoch.wrapping_sub(self.epoch), 1..=127)
    }

    /// Whether the peer may have another read or atomic answered.
    pub(crate) fn may_ask(&self) -> bool {
        self.answers < self.max_answers
    }

    /// A read or atomic has been answered in full.
    pub(crate) fn answered(&mut self) {
        self.answers = self.answers.saturating_sub(1);
    }

    /// Whether there is a response chunk to stage, EXEC_ACK aside.
    #[inline]
    pub(crate) fn wants_to_respond(&self) -> bool {
        self.nak.is_some() || self.ready || !self.streams.is_empty()
    }

    /// Whether a request chunk has its turn and nothing is in the way of its execution or has to follow it.
    #[inline(always)]
    pub(crate) fn is_plainly_next(&self, seq: Seq) -> bool {
        self.state == RxState::Open
            && self.epoch == seq.epoch
            && self.next_csn == seq.csn
            && !self.rnr
            && self.nak.is_none()
            && self.parked.is_empty()
    }

    /// Whether this is the one request that is taken while the receiver is not ready: the peer has seen the
    /// refusal, has dropped its work and closes the flow in the epoch that would have followed.
    #[inline]
    pub(crate) fn closes_while_not_ready(&self, seq: Seq, request: &Request) -> bool {
        self.rnr
            && self.nak.is_none()
            && matches!(request, Request::FlowClose)
            && seq.epoch == self.epoch.wrapping_add(1)
            && seq.csn == self.next_csn
    }
}
