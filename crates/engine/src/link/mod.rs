//! [`Link`]: the session with one peer over all its rails.
//!
//! A link performs no I/O and reads no clock. The home (device, simulator) feeds it frames, work and time, and
//! turns what it yields into I/O. One turn of the home, under the link's lock except where said:
//!
//! 1. for every received frame: replace its descriptor, check the payload CRC if [`Link::payload_crc`] (see
//!    [`crate::payload_span`]), then [`Link::on_frame`];
//! 2. take plans with [`Link::next_plan`], run them *without the lock*, first in, first out, then call
//!    [`Link::plan_done`] once for each, in the same order; give buffers back from [`Link::next_released`];
//! 3. if [`Link::deadline`] has passed: [`Link::on_timer`];
//! 4. [`Link::stage`] while it returns true; gather each frame *without the lock*; then [`Link::staged`];
//! 5. [`Link::next_post`] while it yields: write the header, post the slot;
//! 6. for every TX descriptor consumed: [`Link::tx_completed`].
//!
//! Nothing is lost by skipping a step; it only comes later. Steps 4 and 5 follow every call that can give the link
//! something to say, plan completions and posts included. Where little is to be copied, a home may as well copy under
//! the lock: [`Link::run_plans`] is step 2, and [`Link::stage_post`] steps 4 and 5 for the usual small message. A home
//! that hands over frames with [`Link::on_frame_first`] calls [`Link::catch_up`] after step 5, and then repeats 4 and 5.

mod fail;
mod flows;
mod late;
mod patience;
mod plain;
mod plans;
mod post;
mod request;
mod response;
mod rx;
mod target;
mod tx;

use crate::list::{List, NONE};
use crate::op::Ops;
use crate::park::Park;
use crate::plan::Plans;
use crate::rail::{NEVER, Rail};
use crate::rx_flow::{self, RxFlow};
use crate::slot::Slots;
use crate::stream::Streams;
use crate::token::Tokens;
use crate::tx_flow::{self, TxFlow};
use crate::{AttachError, Counters, LinkConfig, LinkStorage, Nanos, RailConfig, RailId, RailStatus, Slab};

/// Shortest limit on frames that leaves room for a piece of a message behind the longest chunk headers.
const FRAME_MIN: u16 = 1024;

/// What one descriptor carries.
const FRAME_LIMIT: u16 = 4096;

/// The session with one peer.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    counters: Counters,
    rails: Slab<Rail>,
    rails_up: u8,
    /// No rail from here on has ever been attached.
    rails_span: u8,
    /// A rail may want a probe.
    probe_wanted: bool,
    /// The session is over; nothing is sent or taken any more.
    failed: bool,
    /// What depended on plans and gathers at the time of the failure has been completed, too.
    cleared: bool,
    ops: Ops,
    slots: Slots,
    tokens: Tokens,
    park: Park,
    plans: Plans,
    streams: Streams,

    tx_flows: Slab<TxFlow>,
    active: List<{ tx_flow::ACTIVE }>,
    blocked: List<{ tx_flow::BLOCKED }>,
    read_wait: List<{ tx_flow::WAITING }>,
    stalled_responses: List<{ tx_flow::STALLED }>,
    free_flows: List<{ tx_flow::WAITING }>,
    /// Closed flows whose ids are free once the marked slots are, and those that wait for the next marking.
    quarantine: List<{ tx_flow::WAITING }>,
    next_quarantine: List<{ tx_flow::WAITING }>,
    /// Markings of slots begun so far; flows that rest name the one they wait for.
    markings: u32,
    /// Those that had ended when resting flows were last looked at.
    markings_ended: u32,
    /// A flow rests; one waits for the next marking.
    resting: bool,
    next_resting: bool,
    /// Operations finished when all flows were last found busy: none is idle before another has finished.
    all_busy_at: Option<u64>,
    /// The home must ask for a frame once more, though nothing may happen that makes it.
    ask_again: bool,
    /// Since this was last looked at, the peer was to be told of frames or progress and could not be. That is no reason to
    /// ask again by itself: what makes room is.
    held_up: bool,
    /// Reads and atomics the peer has not answered in full.
    reads: u32,

    rx_flows: Slab<RxFlow>,
    respond: List<{ rx_flow::RESPOND }>,
    report: List<{ rx_flow::REPORT }>,
    stalled_requests: List<{ rx_flow::STALLED }>,
    not_ready: List<{ rx_flow::NOT_READY }>,
    /// Request chunks executed since the peer was told of all.
    unreported: u32,
    /// When the peer must be told, or [`NEVER`].
    report_at: Nanos,
    /// When the first flow that waits for the peer may give up, or [`NEVER`].
    patience_at: Nanos,

    /// What the latest frame says about this side's own sending, unless it has been seen to.
    late: late::Late,
    /// Rails for which a probe has been staged, one bit each.
    probing: u8,
    reset: Option<RailId>,
    join_offer: Option<u64>,
    join_received: Option<u64>,
    /// The usual frames, chunks and plans go the way of all: the outcome must be the same.
    #[cfg(test)]
    long_way: bool,
}

impl Link {
    /// A link without rails. It is up once the first rail is attached. Whatever the storage held is forgotten.
    pub fn new(mut config: LinkConfig, storage: LinkStorage) -> Self {
        config.frame_size = config.frame_size.clamp(FRAME_MIN, FRAME_LIMIT);
        let LinkStorage {
            ops,
            mut tx_flows,
            mut rx_flows,
            slots,
            tokens,
            parked,
            plans,
            streams,
            mut rails,
        } = storage;
        let mut free_flows = List::default();
        for flow in tx_flows.iter_mut() {
            *flow = TxFlow::default();
        }
        for index in (0..NONE).take(tx_flows.len()) {
            free_flows.push(&mut tx_flows, index);
        }
        for flow in rx_flows.iter_mut() {
            *flow = RxFlow::default();
        }
        for rail in rails.iter_mut().filter(|rail| rail.attached()) {
            rail.detach(|_| ());
        }
        Self {
            rails,
            rails_up: 0,
            rails_span: 0,
            probe_wanted: false,
            failed: false,
            cleared: false,
            ops: Ops::new(ops),
            slots: Slots::new(slots, config.tx_slots, config.max_parked.min(crate::PEER_PARKS)),
            tokens: Tokens::new(tokens),
            park: Park::new(parked),
            plans: Plans::new(plans, config.max_plans),
            streams: Streams::new(streams),
            tx_flows,
            active: List::default(),
            blocked: List::default(),
            read_wait: List::default(),
            stalled_responses: List::default(),
            free_flows,
            quarantine: List::default(),
            next_quarantine: List::default(),
            markings: 0,
            markings_ended: 0,
            resting: false,
            next_resting: false,
            ask_again: false,
            held_up: false,
            all_busy_at: None,
            reads: 0,
            rx_flows,
            respond: List::default(),
            report: List::default(),
            stalled_requests: List::default(),
            not_ready: List::default(),
            unreported: 0,
            report_at: NEVER,
            patience_at: NEVER,
            late: late::Late::default(),
            probing: 0,
            reset: None,
            join_offer: None,
            join_received: None,
            #[cfg(test)]
            long_way: false,
            counters: Counters::default(),
            config,
        }
    }

    /// The memory of a link that is no longer needed, for the next one.
    pub fn into_storage(self) -> LinkStorage {
        LinkStorage {
            ops: self.ops.slab,
            tx_flows: self.tx_flows,
            rx_flows: self.rx_flows,
            slots: self.slots.into_slab(),
            tokens: self.tokens.into_slab(),
            parked: self.park.into_slab(),
            plans: self.plans.into_slab(),
            streams: self.streams.slab,
            rails: self.rails,
        }
    }

    /// Adds a rail: both sides have enabled their paths and exchanged tags.
    ///
    /// # Errors
    /// The rail number is not free, or the link has failed.
    pub fn attach_rail(&mut self, now: Nanos, rail: RailId, config: &RailConfig) -> Result<(), AttachError> {
        if self.failed {
            return Err(AttachError::Down);
        }
        let state = self
            .rails
            .get_mut(usize::from(rail.0))
            .ok_or(AttachError::NoSuchRail)?;
        if state.attached() {
            return Err(AttachError::InUse);
        }
        state.attach(now, config, self.config.max_ack_delay);
        self.rails_up = self.rails_up.wrapping_add(1);
        self.rails_span = self.rails_span.max(rail.0.wrapping_add(1));
        Ok(())
    }

    /// The rails that are attached.
    #[inline]
    fn attached(&self) -> impl Iterator<Item = &Rail> {
        let rails = self.rails.get(..usize::from(self.rails_span)).unwrap_or_default();
        rails.iter().filter(|rail| rail.attached())
    }

    /// Whether some attached rail passes a test.
    #[inline]
    fn any_rail(&self, test: impl Fn(&Rail) -> bool) -> bool {
        if self.rails_span == 1 {
            return self
                .rails
                .first()
                .is_some_and(|rail| rail.attached() && test(rail));
        }
        self.attached().any(test)
    }

    /// Whether the usual frames, chunks and plans may take a short way.
    #[inline(always)]
    fn takes_short_ways(&self) -> bool {
        #[cfg(test)]
        return !self.long_way;
        #[cfg(not(test))]
        true
    }

    /// Whether the link has a rail and has not failed.
    pub fn is_up(&self) -> bool {
        self.rails_up != 0 && !self.failed
    }

    /// Whether frames carry a CRC over their payload, which the home computes when it gathers and checks before
    /// it hands a frame to [`Link::on_frame`].
    pub fn payload_crc(&self) -> bool {
        self.config.payload_crc
    }

    /// Counts a frame the home has dropped because its payload CRC was wrong. It is lost, as if it had never
    /// arrived.
    pub fn payload_corrupt(&mut self) {
        self.counters.rx_corrupt = self.counters.rx_corrupt.wrapping_add(1);
    }

    /// A rail on which a frame of another session has arrived since the last call: the home answers with a
    /// rate-limited RESET on the control channel.
    pub fn take_reset(&mut self) -> Option<RailId> {
        self.reset.take()
    }

    /// Gives the peer, on the rails of this link, the nonce with which another rail may join it.
    pub fn offer_join(&mut self, nonce: u64) {
        self.join_offer = Some(nonce);
    }

    /// The nonce the peer has given since the last call: for the bring-up of another rail to the same peer.
    pub fn take_join(&mut self) -> Option<u64> {
        self.join_received.take()
    }

    /// Whether [`Link::take_join`] has something to give.
    #[inline]
    pub fn has_join(&self) -> bool {
        self.join_received.is_some()
    }

    /// What the link was created with.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// What has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The state of a rail, if it is attached.
    pub fn rail_status(&self, rail: RailId) -> Option<RailStatus> {
        let rail = self
            .rails
            .get(usize::from(rail.0))
            .filter(|rail| rail.attached())?;
        Some(rail.status())
    }

    /// Operations that can be posted before the link is full.
    #[inline]
    pub fn free_ops(&self) -> u32 {
        self.config.max_ops.saturating_sub(self.ops.used())
    }

    /// How much of the link's memory is in use.
    pub fn usage(&self) -> Usage {
        Usage {
            ops: self.ops.used(),
            slots: u32::from(self.config.tx_slots).saturating_sub(self.slots.free_count()),
            tokens: self.tokens.held(),
            parked: u32::try_from(self.park.used()).unwrap_or(u32::MAX),
            plans: self.plans.len(),
            streams: self.streams.used(),
            reads: self.reads,
        }
    }
}

/// How much of a link's memory is in use; see [`Link::usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Posted operations.
    pub ops: u32,
    /// TX slots.
    pub slots: u32,
    /// RX tokens held, or released and not taken back.
    pub tokens: u32,
    /// Parked chunks.
    pub parked: u32,
    /// Plans not done.
    pub plans: u32,
    /// Reads and atomics of the peer being answered.
    pub streams: u32,
    /// Reads and atomics of this side the peer has not answered.
    pub reads: u32,
}

#[cfg(test)]
mod tests;
