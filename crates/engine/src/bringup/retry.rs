//! A message that is sent again until it is answered.

use crate::Nanos;

/// First interval (design, section 4: retried for ever with back-off).
pub(super) const FIRST: Nanos = 100_000_000;
/// Intervals double up to this.
const LONGEST: Nanos = 5_000_000_000;
/// Interval after the peer has refused.
const REFUSED: Nanos = 10_000_000_000;

/// When to send next; off at first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retry {
    at: Option<Nanos>,
    interval: Nanos,
    last: Option<Nanos>,
    tries: u8,
}

impl Retry {
    /// Sends at `at` for the first time.
    pub(super) fn start(&mut self, at: Nanos) {
        *self = Self {
            at: Some(at),
            interval: FIRST,
            last: None,
            tries: 0,
        };
    }

    pub(super) fn stop(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_on(&self) -> bool {
        self.at.is_some()
    }

    /// When to send next.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.at
    }

    /// How often it has been sent.
    pub(super) fn tries(&self) -> u8 {
        self.tries
    }

    /// The peer is there: intervals begin anew, and the message goes out again now, if it has not just done so.
    pub(super) fn hurry(&mut self, now: Nanos) {
        if self.is_on() {
            let rested = self.last.map_or(now, |last| last.saturating_add(FIRST));
            self.at = Some(rested.max(now));
            self.interval = FIRST;
        }
    }

    /// The peer is there and does not want us: tries again much later.
    pub(super) fn rest(&mut self, now: Nanos) {
        if self.is_on() {
            self.at = Some(now.saturating_add(REFUSED));
            self.interval = REFUSED;
        }
    }

    /// True if the message is to be sent now. `salt` is random: intervals vary by a quarter, so that two sides
    /// that began at once do not stay in step.
    pub(super) fn expire(&mut self, now: Nanos, salt: u64) -> bool {
        if self.at.is_none_or(|at| at > now) {
            return false;
        }
        self.last = Some(now);
        self.tries = self.tries.saturating_add(1);
        let byte = salt.rotate_right(u32::from(self.tries).wrapping_mul(8)) & 0xff;
        let jitter = (self.interval >> 10).wrapping_mul(byte);
        self.at = Some(now.saturating_add(self.interval).saturating_add(jitter));
        self.interval = self.interval.saturating_mul(2).min(LONGEST.max(self.interval));
        true
    }
}
