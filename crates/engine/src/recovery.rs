//! The sending half of a rail: packet numbers, window, acknowledgements, loss and the probe timer.
//!
//! A rail is first in, first out. Once the peer has acknowledged packet n, everything below n is decided too:
//! received if the block says so, lost if not. So the undecided packets are always one run of numbers, from
//! `decided + 1` to `next - 1`, and an acknowledgement costs as much as it decides.

use usb4_wire::{ACK_BITMAP_LEN, AckBlock, RING_RESERVE};

use crate::ack::NEVER;
use crate::rtt::{Cost, Rtt};
use crate::{Nanos, RailConfig, Slab};

/// In place of a slot: the frame has none that has to be resent (pure acknowledgement or probe).
pub(crate) const NO_SLOT: u16 = u16::MAX;

/// Of the data window, what only responses may use: they free the peer's resources.
const RESPONSE_RESERVE: u64 = 16;

/// Of the TX descriptors, what only pure acknowledgements and probes may use.
const POST_RESERVE: u16 = 4;

/// Probe intervals double up to this.
const BACKOFF_CAP: Nanos = 100_000_000;

/// After that many unanswered probes, half of the reserve, intervals double without a cap. The other half then
/// lasts for the better part of an hour: a rail that comes back after minutes still finds a probe to answer.
const CAPPED_PROBES: u8 = 16;

/// Longest expected round trip that the probe timer allows for: a home that is often descheduled measures
/// anything, and recovery has 2 ms.
const PROBE_RTT_LIMIT: Nanos = 1_000_000;

/// A frame with more bytes than that before it is no measure of the round trip: it has waited in our own queue,
/// which the probe timer allows for by itself.
const QUEUE_LIMIT: u64 = 65_536;

/// Longest acknowledgement delay of the peer that timeouts allow for, whatever it announces.
const PEER_DELAY_LIMIT: Nanos = 10_000_000;

/// Probes without an answer that make a silence.
const SILENCE: u8 = 2;

/// After that many silences in a row it is the round trip that has grown.
const SILENCES: u8 = 3;

const ELICITS: u16 = 0x8000;
const BUSY: u16 = 0x4000;
const LEN: u16 = 0x3fff;

/// A packet whose fate is not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct InFlight {
    sent: Nanos,
    /// Bytes acknowledged when it was sent (modulo 2^32).
    delivered: u32,
    slot: u16,
    /// Length in bytes, `ELICITS`, `BUSY`.
    len: u16,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The peer holds it.
    Acked,
    /// The peer does not have it: its content must go out again under a new packet number.
    Lost,
}

/// What a frame is, for the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Carries requests only.
    Request,
    /// Carries responses, perhaps with requests.
    Response,
    /// Pure acknowledgement or probe.
    Reserve,
}

/// Sending state of one rail.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    ring: Slab<InFlight>,
    mask: u64,
    /// The next packet number.
    next: u64,
    /// Everything up to here is acknowledged or lost.
    decided: u64,
    /// Of the undecided packets, those that have a slot. The others, probes and pure acknowledgements, are neither
    /// sent again nor worth a probe.
    data: u64,
    /// Bytes of the undecided packets.
    bytes: u64,
    window: Window,
    /// Descriptors posted and not completed.
    posted: u16,
    rtt: Rtt,
    cost: Cost,
    latency: Nanos,
    peer_delay: Nanos,
    delivered: u32,
    last_elicit: Nanos,
    last_progress: Nanos,
    /// Frames sent before this do not measure the round trip.
    measure_from: Nanos,
    /// Silences since an acknowledgement came in time.
    silences: u8,
    /// Probes sent since the last progress.
    probes: u8,
    probe_due: bool,
}

/// Limits on undecided packets and posted descriptors.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Data packets, when the next one carries requests only.
    requests: u64,
    /// Data packets, when the next one carries responses.
    responses: u64,
    /// All packets, when the next one is data. Others do not count against the window of data as long as half of
    /// the reserve is left.
    with_data: u64,
    /// All packets.
    all: u64,
    /// Pure acknowledgements after which one is confirmed on purpose, because the peer has nothing to send.
    unconfirmed: u64,
    data_depth: u16,
    depth: u16,
}

impl Window {
    fn new(config: &RailConfig, ring: u64) -> Self {
        let reserve = u64::from(RING_RESERVE);
        let peer = u64::from(config.peer_ring);
        // A ring of n slots takes n - 1 descriptors (nhi.c tells full from empty that way).
        let all = peer.saturating_sub(1).min(ring);
        let responses = peer.saturating_sub(reserve).min(ring.saturating_sub(reserve));
        let depth = config.tx_depth;
        Self {
            requests: responses.saturating_sub(RESPONSE_RESERVE.min(responses >> 2)),
            responses,
            with_data: all.saturating_sub(reserve >> 1),
            all,
            unconfirmed: all >> 2,
            data_depth: depth.saturating_sub(POST_RESERVE.min(depth >> 2)),
            depth,
        }
    }
}

impl Sender {
    /// A sender that keeps account of packets in `ring`; it can send once [`Sender::start`] is called. The ring
    /// bounds the window with the largest power of two in its length.
    pub(crate) fn new(ring: Slab<InFlight>) -> Self {
        Self {
            ring,
            ..Self::default()
        }
    }

    /// Begins a session.
    pub(crate) fn start(&mut self, now: Nanos, config: &RailConfig) {
        let len = u64::try_from(self.ring.len()).unwrap_or(0);
        let capacity = match len.checked_ilog2() {
            Some(log) => 1u64.checked_shl(log).unwrap_or(0),
            None => 0,
        };
        *self = Self {
            ring: core::mem::take(&mut self.ring),
            mask: capacity.saturating_sub(1),
            next: 1,
            window: Window::new(config, capacity),
            rtt: Rtt::new(config.latency),
            cost: Cost::of_rate(config.rate_bps),
            latency: config.latency,
            peer_delay: config.peer_max_ack_delay.min(PEER_DELAY_LIMIT),
            last_progress: now,
            ..Self::default()
        };
    }

    /// Ends the session: nothing can be sent. Every frame that has a slot and whose fate is not known is handed
    /// out, oldest first.
    pub(crate) fn stop(&mut self, mut undecided: impl FnMut(u16)) {
        while self.decided.wrapping_add(1) < self.next {
            self.decided = self.decided.wrapping_add(1);
            let entry = self.ring.get(index(self.decided & self.mask));
            if let Some(entry) = entry.filter(|entry| entry.slot != NO_SLOT) {
                undecided(entry.slot);
            }
        }
        *self = Self::new(core::mem::take(&mut self.ring));
    }

    /// Packets whose fate is not known, pure acknowledgements included.
    #[inline]
    pub(crate) fn in_flight(&self) -> u64 {
        self.next.wrapping_sub(self.decided).saturating_sub(1)
    }

    /// Descriptors posted and not completed.
    pub(crate) fn posted(&self) -> u16 {
        self.posted
    }

    /// Whether a frame of this class may be posted now.
    #[inline]
    pub(crate) fn can_send(&self, class: Class) -> bool {
        let window = &self.window;
        let data = |limit| {
            self.data < limit && self.in_flight() < window.with_data && self.posted < window.data_depth
        };
        match class {
            Class::Request => data(window.requests),
            Class::Response => data(window.responses),
            Class::Reserve => self.in_flight() < window.all && self.posted < window.depth,
        }
    }

    /// Whether the peer's ring, not the TX ring, keeps requests back.
    #[inline]
    pub(crate) fn is_window_full(&self) -> bool {
        self.data >= self.window.requests || self.in_flight() >= self.window.with_data
    }

    /// Gives the next packet number to a frame that is posted now. The second value asks for an acknowledgement
    /// without delay. `None` if the peer's ring has no slot for it, which `can_send` would have told.
    #[inline(always)]
    pub(crate) fn on_sent(&mut self, now: Nanos, slot: u16, len: u16, elicits: bool) -> Option<(u64, bool)> {
        if self.in_flight() >= self.window.all {
            return None;
        }
        let number = self.next;
        // Both are bounded by the rings.
        let busy = self.posted.wrapping_add(1) >= self.window.data_depth
            || self.data.wrapping_add(1) >= self.window.requests;
        let len = len & LEN;
        let flags = if elicits { ELICITS } else { 0 } | if busy { BUSY } else { 0 };
        let entry = self.ring.get_mut(index(number & self.mask))?;
        *entry = InFlight {
            sent: now,
            delivered: self.delivered,
            slot,
            len: len | flags,
        };
        self.next = number.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(u64::from(len));
        self.posted = self.posted.wrapping_add(1);
        self.data = self.data.wrapping_add(u64::from(slot != NO_SLOT));
        let mut ack_now = false;
        if elicits {
            self.last_elicit = now;
            if self.probe_due {
                self.probe_due = false;
                self.probes = self.probes.saturating_add(1);
                self.measure_from = now;
                ack_now = true;
            }
        }
        Some((number, ack_now))
    }

    /// One posted descriptor has been consumed.
    #[inline]
    pub(crate) fn on_completed(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// Whether an acknowledgement decides anything, or names a packet that was never sent.
    #[inline(always)]
    pub(crate) fn is_news(&self, ack: AckBlock) -> bool {
        ack.largest > self.decided
    }

    /// Whether an acknowledgement names only packets that have been sent.
    #[inline(always)]
    pub(crate) fn is_possible(&self, ack: AckBlock) -> bool {
        ack.largest < self.next
    }

    /// Takes the peer's acknowledgement and reports every frame with a slot that it decides, in the order of
    /// sending. False if it names a packet that was never sent; it is ignored then.
    #[inline]
    pub(crate) fn on_ack(
        &mut self,
        now: Nanos,
        ack: AckBlock,
        mut decided: impl FnMut(u16, Outcome),
    ) -> bool {
        if !self.is_possible(ack) {
            return false;
        }
        if ack.largest <= self.decided {
            return true;
        }
        if ack.largest != self.decided.wrapping_add(1) {
            self.on_ack_of_many(now, ack, decided);
            return true;
        }
        // The next packet, and so no other.
        let entry = self.entry(ack.largest);
        let len = entry.len & LEN;
        self.decided = ack.largest;
        self.bytes = self.bytes.saturating_sub(u64::from(len));
        self.delivered = self.delivered.wrapping_add(u32::from(len));
        self.on_progress(now, entry);
        if entry.slot != NO_SLOT {
            self.data = self.data.saturating_sub(1);
            decided(entry.slot, Outcome::Acked);
        }
        true
    }

    #[inline(never)]
    fn on_ack_of_many(&mut self, now: Nanos, ack: AckBlock, mut decided: impl FnMut(u16, Outcome)) {
        let mut entry = InFlight::default();
        let mut number = self.decided;
        let (mut bytes, mut acked, mut data) = (0u64, 0u64, 0u64);
        while number < ack.largest {
            number = number.wrapping_add(1);
            entry = self.entry(number);
            let len = u64::from(entry.len & LEN);
            bytes = bytes.wrapping_add(len);
            let outcome = if covers(ack, number) {
                acked = acked.wrapping_add(len);
                Outcome::Acked
            } else {
                Outcome::Lost
            };
            if entry.slot != NO_SLOT {
                data = data.wrapping_add(1);
                decided(entry.slot, outcome);
            }
        }
        self.decided = number;
        self.bytes = self.bytes.saturating_sub(bytes);
        self.data = self.data.saturating_sub(data);
        self.delivered = self.delivered.wrapping_add(low(acked));
        self.on_progress(now, entry);
    }

    /// The account of a packet whose fate is not known.
    #[inline(always)]
    fn entry(&self, number: u64) -> InFlight {
        // The mask keeps the index inside the ring.
        self.ring
            .get(index(number & self.mask))
            .copied()
            .unwrap_or_default()
    }

    /// `newest` is the largest packet just acknowledged.
    #[inline(always)]
    fn on_progress(&mut self, now: Nanos, newest: InFlight) {
        if self.probes >= SILENCE {
            self.silences = self.silences.saturating_add(1);
            if self.silences <= SILENCES {
                // The peer paused: what was sent into the pause says how long it was, not how far the peer is away.
                self.measure_from = now;
            }
        }
        // A pure acknowledgement is no measure: it is confirmed whenever the peer has something to send.
        if newest.len & ELICITS != 0 && newest.sent >= self.measure_from {
            let elapsed = now.saturating_sub(newest.sent);
            let bytes = u64::from(self.delivered.wrapping_sub(newest.delivered));
            if bytes <= QUEUE_LIMIT {
                self.rtt.sample(elapsed);
            }
            if self.probes == 0 {
                self.silences = 0;
            }
            self.cost.sample(bytes, elapsed, newest.len & BUSY != 0);
        }
        self.last_progress = now;
        self.probes = 0;
        self.probe_due = false;
    }

    /// Whether a probe is to be sent: any frame with chunks will do, a PING if there is none.
    #[inline]
    pub(crate) fn probe_due(&self) -> bool {
        self.probe_due
    }

    /// When the next probe becomes due, or [`NEVER`]: frames are undecided that may have to be sent again, or so many
    /// pure acknowledgements that the peer, which has nothing to send, must be made to say that they have left its
    /// ring.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        let idle = self.data == 0 && self.in_flight() <= self.window.unconfirmed;
        if idle || self.probe_due {
            return NEVER;
        }
        let since = self.last_elicit.max(self.last_progress);
        since.saturating_add(self.probe_interval())
    }

    /// Since when the peer has left probes unanswered, or [`NEVER`].
    pub(crate) fn silent_since(&self) -> Nanos {
        let idle = self.data == 0 && self.in_flight() <= self.window.unconfirmed;
        if idle || self.probes < SILENCE {
            return NEVER;
        }
        let oldest = self.entry(self.decided.wrapping_add(1));
        oldest.sent.max(self.last_progress)
    }

    /// One expiry asks for one probe. It does not free the window or declare anything lost: only what the peer
    /// says does.
    pub(crate) fn on_timer(&mut self, now: Nanos) {
        if self.deadline() <= now {
            self.probe_due = true;
        }
    }

    /// The time without news after which the next probe is sent: what the longest round trip, the peer's delay
    /// and the bytes under way can take. Doubling begins with the third probe: when a frame and the probe behind
    /// it are both lost, the next one still comes within recovery's 2 ms.
    fn probe_interval(&self) -> Nanos {
        let base = (self.rtt.longest().min(PROBE_RTT_LIMIT))
            .saturating_add(self.peer_delay)
            .saturating_add(self.cost.of(self.bytes));
        if self.probes <= 1 {
            return base;
        }
        let cap = BACKOFF_CAP.saturating_mul(power_of_two(self.probes.saturating_sub(CAPPED_PROBES)));
        base.saturating_mul(power_of_two(self.probes.saturating_sub(1)))
            .min(cap)
            .max(base)
    }

    /// When a frame of `len` bytes posted now would be at the peer. Based on what is unacknowledged, so that a
    /// rail that stalls looks late at once.
    pub(crate) fn expected_finish(&self, now: Nanos, len: u16) -> Nanos {
        let silence = if self.probes == 0 && !self.probe_due {
            0
        } else {
            self.probe_interval()
        };
        now.saturating_add(self.latency)
            .saturating_add(silence)
            .saturating_add(self.cost.of(self.bytes.saturating_add(u64::from(len))))
    }

    /// Round-trip estimate.
    pub(crate) fn rtt(&self) -> Rtt {
        self.rtt
    }

    /// Rate estimate in bits per second.
    pub(crate) fn rate(&self) -> u64 {
        self.cost.rate()
    }
}

/// Whether the block says that packet `number`, at most its largest, was received. What has no bit any more
/// counts as not received: it is sent again, and the peer drops what it has already.
#[inline]
fn covers(ack: AckBlock, number: u64) -> bool {
    match ack.largest.wrapping_sub(number) {
        0 => true,
        age @ 1..=ACK_BITMAP_LEN => {
            let shift = u32::try_from(age.wrapping_sub(1)).unwrap_or(0);
            ack.bitmap.wrapping_shr(shift) & 1 != 0
        }
        _ => false,
    }
}

/// 2^`exponent`, at most 2^32.
#[inline]
fn power_of_two(exponent: u8) -> u64 {
    1u64.wrapping_shl(u32::from(exponent.min(32)))
}

/// `value` modulo 2^32.
#[inline]
fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or(0)
}

#[inline]
fn index(masked: u64) -> usize {
    usize::try_from(masked).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
