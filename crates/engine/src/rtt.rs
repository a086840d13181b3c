//! Round-trip time and rate estimates of a rail, in integers.

use crate::Nanos;

/// Longest smoothed round trip and deviation believed. A cable's is microseconds; a home that is descheduled may
/// make it look like anything, and a timeout derived from that would be of no use afterwards.
const RTT_LIMIT: Nanos = 10_000_000;

/// Least allowance for the variation of the round trip. Timers of the homes are no better, and a probe that
/// was not needed costs two frames.
const VARIATION_MIN: Nanos = 100_000;

/// Smoothed round-trip time and its mean deviation (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Nanos,
    deviation: Nanos,
    sampled: bool,
}

impl Rtt {
    /// Before any sample: there and back at the expected one-way `latency`.
    pub(crate) fn new(latency: Nanos) -> Self {
        let smoothed = latency.saturating_mul(2).min(RTT_LIMIT);
        Self {
            smoothed,
            deviation: (smoothed >> 1).max(VARIATION_MIN >> 1),
            sampled: false,
        }
    }

    /// Takes a measured round trip. One that is far longer than expected counts as twice the longest expected:
    /// a host that was stopped for a minute must not slow recovery down for the next minute, and a round trip
    /// that really has grown is reached in a few samples.
    #[inline(always)]
    pub(crate) fn sample(&mut self, measured: Nanos) {
        let limit = self.longest().wrapping_mul(2).min(RTT_LIMIT);
        let sample = measured.min(limit);
        if !self.sampled {
            self.sampled = true;
            self.smoothed = sample;
            self.deviation = sample >> 1;
            return;
        }
        let distance = self.smoothed.abs_diff(sample);
        self.deviation = ewma(self.deviation, distance, 2);
        self.smoothed = ewma(self.smoothed, sample, 3);
    }

    /// Smoothed round trip.
    pub(crate) fn smoothed(&self) -> Nanos {
        self.smoothed
    }

    /// Mean deviation of the round trip.
    pub(crate) fn deviation(&self) -> Nanos {
        self.deviation
    }

    /// The longest round trip to be expected, without the peer's acknowledgement delay.
    #[inline]
    pub(crate) fn longest(&self) -> Nanos {
        // Both are at most RTT_LIMIT.
        let variation = self.deviation.wrapping_mul(4).max(VARIATION_MIN);
        self.smoothed.wrapping_add(variation)
    }
}

/// Fraction bits of a [`Cost`].
const COST_SHIFT: u32 = 16;
/// Lowest rate believed; a tenth of the slowest host router known (ASM4242, 5 Gb/s per ring).
const RATE_MIN: u64 = 500_000_000;
/// Highest rate believed; five times USB4 v2 per lane pair.
const RATE_MAX: u64 = 400_000_000_000;
/// Fewest bytes a rate is measured over: eight frames. With fewer under way the round trip is the limit.
const RATE_BYTES: u64 = 32_768;
/// Shortest interval a rate is measured over.
const RATE_INTERVAL: Nanos = 10_000;
/// Longest interval: what took longer has met a pause of the home, not the rail's rate.
const RATE_INTERVAL_MAX: Nanos = 100_000_000;

/// What a byte costs on the rail: nanoseconds with 16 fraction bits, so that the hot path multiplies and never
/// divides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost(u64);

impl Cost {
    /// At a bit rate; out-of-range rates count as the nearest believable one.
    pub(crate) fn of_rate(bits_per_second: u64) -> Self {
        let rate = bits_per_second.clamp(RATE_MIN, RATE_MAX);
        Self((8_000_000_000u64 << COST_SHIFT).checked_div(rate).unwrap_or(0))
    }

    /// The rate, in bits per second.
    pub(crate) fn rate(self) -> u64 {
        (8_000_000_000u64 << COST_SHIFT).checked_div(self.0).unwrap_or(0)
    }

    /// The time `bytes` take.
    pub(crate) fn of(self, bytes: u64) -> Nanos {
        self.0.saturating_mul(bytes) >> COST_SHIFT
    }

    /// Learns from `bytes` having been delivered in `elapsed`. Unless the sender kept the rail `busy`, the
    /// interval has idle time in it and can only show that the rail is faster than thought.
    #[inline]
    pub(crate) fn sample(&mut self, bytes: u64, elapsed: Nanos, busy: bool) {
        if bytes >= RATE_BYTES && (RATE_INTERVAL..=RATE_INTERVAL_MAX).contains(&elapsed) {
            self.learn(bytes, elapsed, busy);
        }
    }

    #[inline(never)]
    fn learn(&mut self, bytes: u64, elapsed: Nanos, busy: bool) {
        let Some(cost) = (elapsed << COST_SHIFT).checked_div(bytes) else {
            return;
        };
        if busy || cost < self.0 {
            let learned = ewma(self.0, cost, 3);
            self.0 = learned.clamp(Self::of_rate(RATE_MAX).0, Self::of_rate(RATE_MIN).0);
        }
    }
}

/// Moves `average` towards `sample` by the distance over 2^`weight`.
#[inline]
fn ewma(average: u64, sample: u64, weight: u32) -> u64 {
    if sample > average {
        average.wrapping_add(sample.wrapping_sub(average).wrapping_shr(weight))
    } else {
        average.wrapping_sub(average.wrapping_sub(sample).wrapping_shr(weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_of_silence_does_not_become_the_round_trip() {
        let mut rtt = Rtt::new(3_000);
        for _ in 0..100 {
            rtt.sample(10_000);
        }
        rtt.sample(60_000_000_000);
        assert!(rtt.longest() < 500_000, "{rtt:?}");
    }

    #[test]
    fn a_round_trip_that_grows_tenfold_is_followed() {
        let mut rtt = Rtt::new(3_000);
        for _ in 0..100 {
            rtt.sample(20_000);
        }
        for _ in 0..30 {
            rtt.sample(260_000);
        }
        assert!(rtt.longest() > 260_000 && rtt.smoothed() > 230_000, "{rtt:?}");
    }

    #[test]
    fn rates_of_zero_and_infinity_are_clamped() {
        assert_eq!(Cost::of_rate(0).rate() / 1_000_000, 500);
        assert!(Cost::of_rate(u64::MAX).rate() > 390_000_000_000);
        let mut cost = Cost::of_rate(12_000_000_000);
        cost.sample(RATE_BYTES, RATE_INTERVAL_MAX, true);
        cost.sample(u64::MAX, RATE_INTERVAL, true);
        assert!(cost.rate() >= RATE_MIN / 2);
    }

    #[test]
    fn an_idle_sender_does_not_make_the_rail_look_slow() {
        let mut cost = Cost::of_rate(12_000_000_000);
        cost.sample(40_960, 1_000_000, false);
        cost.sample(4_096, 1_000_000, true);
        assert!(cost.rate() > 11_900_000_000);
        for _ in 0..100 {
            cost.sample(40_960, 65_536, true);
        }
        let rate = cost.rate();
        assert!((4_900_000_000..5_300_000_000).contains(&rate), "{rate}");
    }
}
