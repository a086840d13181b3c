//! The machines and cables the project is measured on, and what a host's own work costs.

use usb4_engine::Nanos;

/// Nanoseconds of a microsecond.
pub const US: Nanos = 1_000;
/// Nanoseconds of a millisecond.
pub const MS: Nanos = 1_000_000;
/// Nanoseconds of a second.
pub const SEC: Nanos = 1_000_000_000;

/// One rail as the hardware gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RailSpec {
    /// Bits per second one ring pair moves in each direction.
    pub rate_bps: u64,
    /// From the end of a frame's transmission to its descriptor in the peer's RX ring.
    pub latency: Nanos,
}

/// A kind of machine and cable.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The name the command line knows it by.
    pub name: &'static str,
    /// The rails of one host pair, repeated as often as rails are asked for.
    pub rails: &'static [RailSpec],
    /// Descriptors in each RX and TX ring.
    pub ring: u16,
    /// Descriptors the home lets a link have posted on a TX ring at a time. Deep enough for the throughput knee of AMD's
    /// NHI (96 frames, reference measurements), and no deeper: a retransmission waits behind all of them.
    pub tx_depth: u16,
    /// Longest time an acknowledgement may be held back.
    pub max_ack_delay: Nanos,
    /// An interrupt is delivered at a random instant within this time of its cause. It tells only where a thread sleeps
    /// while a frame arrives, that is [`Costs::linger`] after its last work: traffic that keeps both ends busy runs alike
    /// whatever this is.
    pub moderation: Nanos,
    /// What the host's own work costs.
    pub costs: Costs,
}

/// A Strix Halo ring: about 12 Gb/s whatever the cable (reference measurements: 9 to 12 Gb/s per ring).
const STRIX: RailSpec = RailSpec {
    rate_bps: 12_000_000_000,
    latency: 3 * US,
};
/// An Intel integrated host router on a 40 Gb/s link: 38 Gb/s of payload-carrying frames.
const INTEL: RailSpec = RailSpec {
    rate_bps: 38_000_000_000,
    latency: 2 * US,
};

impl Profile {
    /// Strix Halo with the interrupt throttle off.
    pub const STRIX: Self = Self {
        name: "strix",
        rails: &[STRIX],
        ring: 1024,
        tx_depth: 128,
        max_ack_delay: 20 * US,
        moderation: 0,
        costs: Costs::DEFAULT,
    };
    /// Intel integrated USB4 at 40 Gb/s.
    pub const INTEL: Self = Self {
        name: "intel",
        rails: &[INTEL],
        ..Self::STRIX
    };
    /// Strix Halo as a stock kernel programs it: 128 us interrupt moderation on every vector (nhi.c). Busy traffic on it
    /// runs as on [`Profile::STRIX`]; messages after a pause, and the recovery of a lost frame, do not.
    pub const STOCK_THROTTLE: Self = Self {
        name: "stock-throttle",
        moderation: 128 * US,
        ..Self::STRIX
    };
    /// Two unlike rails between the same hosts.
    pub const MIXED: Self = Self {
        name: "mixed",
        rails: &[STRIX, INTEL],
        ..Self::STRIX
    };

    /// Every profile, in the order in which results are printed.
    pub const ALL: [Self; 4] = [Self::STRIX, Self::INTEL, Self::STOCK_THROTTLE, Self::MIXED];

    /// The profile called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name == name)
    }

    /// Rail number `index` of a host pair.
    pub fn rail(&self, index: usize) -> RailSpec {
        self.rails[index % self.rails.len()]
    }
}

/// CPU time of a host's own work, all of it done by one thread per link. A frame's own budget is 500 instructions
/// and a message's 900 (the design's budgets); at about 2 instructions per cycle and 4 GHz those are 63 ns and
/// 113 ns, doubled here for cache misses on descriptors and frames that other agents wrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Receiving one frame: descriptor, parse, CRC, engine.
    pub rx_frame: Nanos,
    /// Building and posting one frame.
    pub tx_frame: Nanos,
    /// Taking one work request in or pushing one completion out.
    pub message: Nanos,
    /// Reaping one TX descriptor.
    pub reap: Nanos,
    /// Copying 1 KiB, cache-warm: 10 GB/s (the design's "0.3 to 0.5 us per 4 KiB").
    pub copy_kib: Nanos,
    /// From an interrupt to the thread running (IRQ entry and wake-up of a sleeping thread).
    pub wake: Nanos,
    /// How long the thread stays polling after the last frame (NHI rule: at least 50 us, unmasking is slow).
    pub linger: Nanos,
    /// Period of the fallback timer that finds what an interrupt or doorbell should have announced.
    pub fallback: Nanos,
}

impl Costs {
    /// The constants every profile uses.
    pub const DEFAULT: Self = Self {
        rx_frame: 130,
        tx_frame: 130,
        message: 220,
        reap: 20,
        copy_kib: 100,
        wake: 3 * US,
        linger: 50 * US,
        fallback: 500 * US,
    };

    /// Time to copy `len` bytes.
    pub(crate) fn copy(&self, len: usize) -> Nanos {
        (len as u64 * self.copy_kib) >> 10
    }
}
