//! Flows this side has opened: requests out, responses in.

use usb4_wire::{NakCode, Seq, csn_before};

use crate::list::{Linked, List, NONE, OUT};
use crate::park::Queue;
use crate::{FlowId, Limits, Nanos};

/// Where an outgoing flow is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxState {
    /// The id is free.
    Free,
    /// It takes work.
    Open,
    /// The peer's endpoint is not there, or not any more: no work is taken.
    Refused,
    /// Closed by this side; the peer has not confirmed.
    Closing,
    /// The peer has executed the close; frames with old chunks may still be about.
    Quarantined,
}

/// Why a paused flow waits for more than READY: a frame of an epoch that has not reached the peer must not see that
/// epoch's number come round again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    No,
    /// Until the marking of slots with that number has ended.
    Until(u32),
    /// The same, and READY has come.
    Ready(u32),
}

/// Epochs between two rests. At most twice as many are about at once, half of what their numbers tell apart.
pub(crate) const EPOCHS_PER_REST: u8 = 64;

/// An outgoing flow.
#[derive(Debug)]
pub struct TxFlow {
    active: u32,
    blocked: u32,
    waiting: u32,
    stalled: u32,
    pub(crate) state: TxState,
    /// Flows that have been here and take no more work; while the flow takes work, its part of the [`crate::FlowId`].
    pub(crate) life: u32,
    /// When it was last given work.
    pub(crate) used: Nanos,
    /// It is open and takes no more work, since another flow is wanted: it is closed once its work is done.
    pub(crate) draining: bool,
    /// Epoch of FLOW_OPEN. Epochs go on counting over the lives of an id, so they tell them apart.
    pub(crate) open_epoch: u8,
    pub(crate) epoch: u8,
    /// FLOW_OPEN has been staged.
    pub(crate) opened: bool,
    /// The peer has executed FLOW_OPEN.
    pub(crate) accepted: bool,
    /// The peer is not ready to receive: nothing is staged until READY.
    pub(crate) paused: bool,
    /// It stays paused until frames of old epochs are out of the way, too.
    pub(crate) rest: Rest,
    /// FLOW_CLOSE has been staged.
    pub(crate) closed: bool,
    /// Replays so far, saturating.
    pub(crate) replays: u8,
    /// Number of the next request chunk.
    pub(crate) next_csn: u32,
    /// Every request chunk before it has been executed by the peer.
    pub(crate) acked_csn: u32,
    /// Number of the response chunk whose turn it is.
    pub(crate) response_csn: u32,
    /// Reads and atomics the peer has not answered in full.
    pub(crate) reads: u32,
    /// Operations, oldest first.
    pub(crate) ops: List<0>,
    /// The operation to be staged next, [`NONE`] if all are.
    pub(crate) cursor: u32,
    pub(crate) parked: Queue,
    pub(crate) limits: Limits,
    /// The operation to be staged next waits for reads and atomics before it: when one is done, it is looked at again.
    pub(crate) held: bool,
    /// Reads and atomics that have been staged and are not done: not answered, or not all bytes are in place.
    pub(crate) undone: u32,
    /// READY has not come since it was paused.
    pub(crate) waits: bool,
    /// What it was paused for last, with which chunk, and since when it gets no further than that.
    pub(crate) waits_for: NakCode,
    waits_csn: u32,
    waits_since: Nanos,
    pub(crate) src_ep: u32,
    pub(crate) src_incarnation: u32,
    pub(crate) dst_ep: u32,
    pub(crate) dst_incarnation: u32,
}

/// List of flows that have something to stage.
pub(crate) const ACTIVE: usize = 0;
/// List of flows whose completions wait for a gather.
pub(crate) const BLOCKED: usize = 1;
/// List of flows whose next operation waits for one of the peer's read slots; free and quarantined flows are in
/// lists of this kind, too.
pub(crate) const WAITING: usize = 2;
/// List of flows whose first parked response has its turn but lacked room.
pub(crate) const STALLED: usize = 3;

impl Linked<ACTIVE> for TxFlow {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.active
    }
}

impl Linked<BLOCKED> for TxFlow {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.blocked
    }
}

impl Linked<WAITING> for TxFlow {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.waiting
    }
}

impl Linked<STALLED> for TxFlow {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.stalled
    }
}

impl Default for TxFlow {
    fn default() -> Self {
        Self {
            active: OUT,
            blocked: OUT,
            waiting: OUT,
            stalled: OUT,
            state: TxState::Free,
            life: 0,
            used: 0,
            draining: false,
            open_epoch: 0,
            epoch: 0,
            opened: false,
            accepted: false,
            paused: false,
            rest: Rest::No,
            closed: false,
            replays: 0,
            next_csn: 0,
            acked_csn: 0,
            response_csn: 0,
            reads: 0,
            ops: List::default(),
            cursor: NONE,
            parked: Queue::default(),
            limits: Limits::NONE,
            held: false,
            undone: 0,
            waits: false,
            waits_for: NakCode::Rnr,
            waits_csn: 0,
            waits_since: 0,
            src_ep: 0,
            src_incarnation: 0,
            dst_ep: 0,
            dst_incarnation: 0,
        }
    }
}

impl TxFlow {
    /// Begins a new life.
    pub(crate) fn open(&mut self) {
        self.state = TxState::Open;
        self.draining = false;
        self.open_epoch = self.epoch.wrapping_add(1);
        self.epoch = self.open_epoch;
        self.opened = false;
        self.accepted = false;
        self.paused = false;
        self.rest = Rest::No;
        self.closed = false;
        self.replays = 0;
        self.next_csn = 0;
        self.acked_csn = 0;
        self.response_csn = 0;
        self.reads = 0;
        self.cursor = NONE;
        self.limits = Limits::NONE;
        self.held = false;
        self.undone = 0;
        self.waits = false;
        // No operation has the number of FLOW_OPEN.
        self.waits_csn = 0;
    }

    /// The peer has refused chunk `csn` for now.
    pub(crate) fn begin_wait(&mut self, now: Nanos, csn: u32, code: NakCode) {
        // A receive that another flow has taken does not begin the wait anew.
        if self.waits_csn != csn || self.waits_for != code {
            self.waits_since = now;
            self.waits_csn = csn;
            self.waits_for = code;
        }
        self.waits = true;
    }

    /// When it gives up what it waits for, if ever.
    pub(crate) fn gives_up_at(&self) -> Option<Nanos> {
        let limit = match self.waits_for {
            NakCode::NotReady => self.limits.ready,
            _ => self.limits.receive,
        };
        let gives_up = self.waits && self.state == TxState::Open && limit != Nanos::MAX;
        gives_up.then(|| self.waits_since.saturating_add(limit))
    }

    /// The peer refuses everything.
    pub(crate) fn refuse(&mut self) {
        self.drain();
        self.state = TxState::Refused;
    }

    /// An open or refused flow is to be closed.
    pub(crate) fn close(&mut self) {
        if self.state == TxState::Open {
            self.drain();
        }
        self.state = TxState::Closing;
    }

    /// An open flow takes no more work.
    pub(crate) fn drain(&mut self) {
        if !self.draining {
            self.life = self.life.wrapping_add(1);
        }
        self.draining = true;
    }

    /// Whether the flow has that name and takes work.
    #[inline(always)]
    pub(crate) fn takes_work_as(&self, id: FlowId) -> bool {
        self.life == id.life
    }

    /// Whether the peer has refused the flow that had that name.
    pub(crate) fn was_refused_as(&self, id: FlowId) -> bool {
        self.state == TxState::Refused && self.life == id.life.wrapping_add(1)
    }

    /// Whether the flow that had that name is finishing its work.
    pub(crate) fn drains_as(&self, id: FlowId) -> bool {
        self.state == TxState::Open && self.draining && self.life == id.life.wrapping_add(1)
    }

    /// Whether everything given to it is done, so that it can be closed and opened again without anybody noticing.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, TxState::Open | TxState::Refused) && self.ops.is_empty()
    }

    /// Whether there is a request chunk to stage.
    #[inline]
    pub(crate) fn wants_to_send(&self) -> bool {
        match self.state {
            TxState::Open => !self.paused && self.cursor != NONE,
            TxState::Closing => !self.closed && self.ops.is_empty(),
            _ => false,
        }
    }

    /// Whether the next request chunk is a part of an operation.
    #[inline(always)]
    pub(crate) fn sends_plainly(&self) -> bool {
        self.state == TxState::Open && !self.paused && self.opened
    }

    /// Whether the flow takes response chunks.
    #[inline]
    pub(crate) fn takes_responses(&self) -> bool {
        !matches!(self.state, TxState::Free | TxState::Quarantined)
    }

    /// Whether a response chunk of this epoch belongs to this life of the flow. READY carries the epoch it
    /// begins, every other response that of FLOW_OPEN.
    #[inline]
    pub(crate) fn knows_epoch(&self, epoch: u8, ready: bool) -> bool {
        if !ready {
            return epoch == self.open_epoch;
        }
        // The READY of a refusal that is itself still under way is one ahead. After many replays the numbers
        // have wrapped and say nothing.
        let ahead = epoch.wrapping_sub(self.open_epoch);
        self.replays > 200
            || (ahead != 0 && ahead <= self.epoch.wrapping_sub(self.open_epoch).wrapping_add(1))
    }

    /// Notes that the peer has executed every request chunk before `csn`. False if it cannot have.
    #[inline(always)]
    pub(crate) fn takes_exec_ack(&mut self, csn: u32) -> bool {
        let staged = self.next_csn.wrapping_sub(self.acked_csn);
        let executed = csn.wrapping_sub(self.acked_csn);
        if executed > staged {
            return false;
        }
        if executed != 0 {
            self.accepted = true;
            self.acked_csn = csn;
        }
        true
    }

    /// Whether a response chunk other than READY has its turn.
    #[inline(always)]
    pub(crate) fn awaits(&self, seq: Seq) -> bool {
        self.open_epoch == seq.epoch && self.response_csn == seq.csn
    }

    /// Whether a response chunk other than READY has its turn on an open flow and no parked one has to follow it.
    #[inline(always)]
    pub(crate) fn is_plainly_next(&self, seq: Seq) -> bool {
        self.state == TxState::Open && self.awaits(seq) && self.parked.is_empty()
    }

    /// Whether `csn` is that of a staged chunk the peer has not reported as executed.
    #[inline]
    pub(crate) fn is_outstanding(&self, csn: u32) -> bool {
        !csn_before(csn, self.acked_csn) && csn_before(csn, self.next_csn)
    }
}
