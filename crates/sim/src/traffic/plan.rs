//! What kind of traffic.

use crate::profile::{SEC, US};
use crate::rng::Rng;
use usb4_engine::Nanos;

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A message, sometimes with a prefix, sometimes with immediate data.
    Send,
    /// A write.
    Write,
    /// A write that takes a receive.
    WriteImm,
    /// A read of the target's pattern.
    Read,
    /// A read of what the operation before it wrote.
    ReadBack,
    /// 1 is added to the target's counter.
    FetchAdd,
    /// The flow's own word moves on, or a comparison fails on purpose.
    CompareSwap,
}

/// Lengths of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All the same.
    Fixed(u32),
    /// 40 % up to 64 bytes, 30 % up to 512, 20 % up to 4096, 9 % up to 16 KiB, the rest up to 64 KiB; 1 in 64 of
    /// the smallest is empty.
    Mixed,
}

impl Sizes {
    /// The longest message.
    pub fn longest(self) -> u32 {
        match self {
            Self::Fixed(len) => len,
            Self::Mixed => 64 << 10,
        }
    }

    pub(super) fn draw(self, rng: &mut Rng) -> u32 {
        let up_to = match self {
            Self::Fixed(len) => return len,
            Self::Mixed => match rng.below(100) {
                0..40 if rng.below(64) == 0 => return 0,
                0..40 => 64,
                40..70 => 512,
                70..90 => 4096,
                90..99 => 16 << 10,
                _ => 64 << 10,
            },
        };
        u32::try_from(rng.between(1, up_to)).unwrap_or(1)
    }
}

/// A recipe for traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Operations in all, over all flows.
    pub messages: u64,
    /// Flows per ordered pair of hosts.
    pub flows: usize,
    /// Endpoints per host the flows are spread over.
    pub endpoints: usize,
    /// Traffic in both directions, or from the first host to the second only.
    pub both_ways: bool,
    /// Operations a flow keeps outstanding.
    pub depth: usize,
    /// Lengths.
    pub sizes: Sizes,
    /// Kinds and how often each is drawn, relative to the others.
    pub kinds: Vec<(Kind, u64)>,
    /// Receive buffers per endpoint.
    pub receives: usize,
    /// Longest time until a used receive is posted again. Long with few receives: senders meet "not ready".
    pub receive_delay: Nanos,
    /// After so many operations all flows fall silent until everything has completed, and for a random time more.
    pub burst: u64,
    /// Longest such time.
    pub pause: Nanos,
    /// Virtual time without a completion after which the run counts as stuck.
    pub patience: Nanos,
}

impl Mix {
    /// Everything at once: all kinds and sizes, 8 flows over 4 endpoints each way, receives that are sometimes late.
    pub fn everything(messages: u64) -> Self {
        Self {
            messages,
            flows: 8,
            endpoints: 4,
            both_ways: true,
            depth: 32,
            sizes: Sizes::Mixed,
            kinds: vec![
                (Kind::Send, 40),
                (Kind::Write, 15),
                (Kind::WriteImm, 10),
                (Kind::Read, 15),
                (Kind::ReadBack, 5),
                (Kind::FetchAdd, 10),
                (Kind::CompareSwap, 5),
            ],
            receives: 24,
            receive_delay: 100 * US,
            burst: 2_000,
            pause: 500 * US,
            patience: 2 * SEC,
        }
    }

    /// One-way messages of one length, for measurements.
    pub fn stream(messages: u64, len: u32) -> Self {
        Self {
            flows: 1,
            endpoints: 1,
            both_ways: false,
            depth: 256,
            sizes: Sizes::Fixed(len),
            kinds: vec![(Kind::Send, 1)],
            receives: 512,
            receive_delay: 0,
            burst: u64::MAX,
            ..Self::everything(messages)
        }
    }
}
