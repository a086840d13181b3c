//! The data state of one rail: packet numbers and acknowledgements of both directions.
//!
//! A [`Rail`] belongs to a [`crate::Link`], which owns the frames. Order of calls:
//! * to send, ask [`Rail::can_send`], then [`Rail::send`] for the header's numbers, and post the frame at once:
//!   packets must reach the wire in the order of these calls;
//! * on a frame with the right tag, hand its block to [`Rail::on_ack`]; ask [`Rail::is_new`]; decide whether the
//!   frame can be held, and only then call [`Rail::on_received`]. A frame dropped instead is a lost one;
//! * when [`Rail::ack_due`] or [`Rail::probe_due`], send something, a pure acknowledgement or a PING if there is
//!   nothing else. Call [`Rail::on_timer`] at [`Rail::deadline`].

use usb4_wire::AckBlock;

use crate::ack::Receiver;
use crate::recovery::Sender;
use crate::{Nanos, RailConfig, Slab};

pub(crate) use crate::ack::{DUE, NEVER, Verdict, not_due};
pub use crate::recovery::InFlight;
pub(crate) use crate::recovery::{Class, NO_SLOT, Outcome};

/// The numbers of a frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The peer's tag.
    pub(crate) tag: u64,
    /// Packet number.
    pub(crate) packet: u64,
    /// What has been received, if anything has.
    pub(crate) ack: Option<AckBlock>,
    /// Ask the peer to acknowledge without delay.
    pub(crate) ack_now: bool,
}

/// A snapshot of a rail, for status tools and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailStatus {
    /// Packets whose fate is not known, pure acknowledgements included.
    pub in_flight: u64,
    /// Descriptors posted and not completed.
    pub posted: u16,
    /// Smoothed round-trip time.
    pub rtt: Nanos,
    /// Its mean deviation.
    pub rtt_deviation: Nanos,
    /// Delivery rate, in bits per second: as configured until measured.
    pub rate_bps: u64,
    /// Frames declared lost in this session.
    pub lost: u64,
    /// Since when the peer has left probes unanswered, if it does.
    pub silent_since: Option<Nanos>,
}

/// One rail of a link. Created detached, with the memory for its packets in flight.
#[derive(Debug, Default)]
pub struct Rail {
    attached: bool,
    tx_tag: u64,
    rx_tag: u64,
    tx: Sender,
    rx: Receiver,
    lost: u64,
}

impl Rail {
    /// A detached rail. The window is bounded by the largest power of two in the length of `ring`.
    pub fn new(ring: Slab<InFlight>) -> Self {
        Self {
            tx: Sender::new(ring),
            ..Self::default()
        }
    }

    /// Begins a session. `max_ack_delay` is this side's own.
    pub(crate) fn attach(&mut self, now: Nanos, config: &RailConfig, max_ack_delay: Nanos) {
        self.attached = true;
        self.tx_tag = config.tx_tag;
        self.rx_tag = config.rx_tag;
        self.lost = 0;
        self.tx.start(now, config);
        self.rx = Receiver::new(max_ack_delay);
    }

    /// Ends the session. `undecided` gets the slot of every frame whose fate is not known, oldest first. All
    /// posted descriptors count as completed.
    pub(crate) fn detach(&mut self, undecided: impl FnMut(u16)) {
        self.attached = false;
        self.tx.stop(undecided);
        self.rx = Receiver::default();
    }

    /// Whether a session is on.
    #[inline]
    pub(crate) fn attached(&self) -> bool {
        self.attached
    }

    /// The tag every received frame must carry.
    #[inline]
    pub(crate) fn rx_tag(&self) -> u64 {
        self.rx_tag
    }

    /// Whether a frame of this class may be posted now: window and TX descriptors have room.
    #[inline]
    pub(crate) fn can_send(&self, class: Class) -> bool {
        self.tx.can_send(class)
    }

    /// Whether the peer's ring, not the TX ring, keeps requests back.
    #[inline]
    pub(crate) fn is_window_full(&self) -> bool {
        self.tx.is_window_full()
    }

    /// Numbers a frame that is posted now. `slot` is what [`Rail::on_ack`] reports, [`NO_SLOT`] for a frame that
    /// is never resent; `len` is the whole frame; `elicits` says that it has chunks. The acknowledgement in the
    /// stamp counts as sent. `None` if there is no room at all, which [`Rail::can_send`] would have told.
    #[inline(always)]
    pub(crate) fn send(&mut self, now: Nanos, slot: u16, len: u16, elicits: bool) -> Option<Stamp> {
        let (packet, ack_now) = self.tx.on_sent(now, slot, len, elicits)?;
        Some(Stamp {
            tag: self.tx_tag,
            packet,
            ack: self.rx.take_block(),
            ack_now,
        })
    }

    /// One posted descriptor has been consumed, pure acknowledgements and probes included.
    #[inline]
    pub(crate) fn on_completed(&mut self) {
        self.tx.on_completed();
    }

    /// Takes the block of a received frame, be that new or a duplicate. `decided` gets every frame with a slot
    /// whose fate is known now, in the order of sending, each exactly once. False if the block names a packet
    /// never sent: it is ignored, and the peer is at fault.
    #[inline]
    pub(crate) fn on_ack(&mut self, now: Nanos, ack: AckBlock, decided: impl FnMut(u16, Outcome)) -> bool {
        self.tx.on_ack(now, ack, decided)
    }

    /// So many of the frames [`Rail::on_ack`] has decided on were lost.
    #[inline]
    pub(crate) fn count_lost(&mut self, lost: u64) {
        self.lost = self.lost.wrapping_add(lost);
    }

    /// Whether a block says anything [`Rail::on_ack`] has not been told.
    #[inline]
    pub(crate) fn is_news(&self, ack: AckBlock) -> bool {
        self.tx.is_news(ack)
    }

    /// Whether a block names only packets that have been sent: [`Rail::on_ack`] ignores any other.
    #[inline]
    pub(crate) fn is_possible(&self, ack: AckBlock) -> bool {
        self.tx.is_possible(ack)
    }

    /// Whether a received packet number is new.
    #[inline]
    pub(crate) fn is_new(&self, packet: u64) -> bool {
        self.rx.is_new(packet)
    }

    /// A frame is safely held from now on. `elicits`: it has chunks; `ack_now`: as its header says.
    #[inline(always)]
    pub(crate) fn on_received(&mut self, now: Nanos, packet: u64, elicits: bool, ack_now: bool) -> Verdict {
        self.rx.on_received(now, packet, elicits, ack_now)
    }

    /// Whether an acknowledgement must be sent even if there is nothing else to send.
    #[inline]
    pub(crate) fn ack_due(&self, now: Nanos) -> bool {
        self.rx.is_due(now)
    }

    /// Whether a probe must be sent: the next frame with chunks is one; a PING if there is none.
    #[inline]
    pub(crate) fn probe_due(&self) -> bool {
        self.tx.probe_due()
    }

    /// When [`Rail::on_timer`] is to be called, or [`NEVER`]. That also while something is due that could not be
    /// sent: then a completion or an acknowledgement comes first.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.rx.deadline().min(self.tx.deadline())
    }

    /// Turns expired timers into acknowledgements and probes due.
    pub(crate) fn on_timer(&mut self, now: Nanos) {
        self.rx.on_timer(now);
        self.tx.on_timer(now);
    }

    /// When a frame of `len` bytes posted now would be at the peer: the measure for striping.
    #[inline]
    pub(crate) fn expected_finish(&self, now: Nanos, len: u16) -> Nanos {
        self.tx.expected_finish(now, len)
    }

    /// A snapshot.
    pub(crate) fn status(&self) -> RailStatus {
        RailStatus {
            in_flight: self.tx.in_flight(),
            posted: self.tx.posted(),
            rtt: self.tx.rtt().smoothed(),
            rtt_deviation: self.tx.rtt().deviation(),
            rate_bps: self.tx.rate(),
            lost: self.lost,
            silent_since: Some(self.tx.silent_since()).filter(|&since| since != NEVER),
        }
    }
}

#[cfg(test)]
#[path = "rail_tests.rs"]
mod tests;
