//! What can go wrong on a cable, in a NIC and in a host's own scheduling. Everything is off by default.

use crate::profile::{MS, US};
use usb4_engine::Nanos;

/// Probabilities and sizes of faults; each probability is per opportunity (frame, interrupt, doorbell, ...).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// A frame vanishes.
    pub loss: f64,
    /// A burst begins: this frame vanishes, and all others for a while.
    pub burst: f64,
    /// Longest burst.
    pub burst_time: Nanos,
    /// A frame that carries no chunks (a pure acknowledgement) vanishes.
    pub ack_loss: f64,
    /// A frame arrives twice.
    pub dup: f64,
    /// One to three bits of a frame flip.
    pub corrupt: f64,
    /// The cable holds everything back for a while, then delivers in order.
    pub link_stall: f64,
    /// The NIC stops working on a TX ring for a while.
    pub tx_stall: f64,
    /// Longest stall of either kind.
    pub stall: Nanos,
    /// The NIC does not notice a doorbell.
    pub ignored_doorbell: f64,
    /// An interrupt is lost.
    pub lost_irq: f64,
    /// A TX completion, and all behind it, stays unseen until the fallback timer looks.
    pub stranded: f64,
    /// Longest random delay before the home carries a copy plan out (order is kept).
    pub plan_delay: Nanos,
    /// A control message vanishes.
    pub control_loss: f64,
    /// A control message arrives twice.
    pub control_dup: f64,
    /// Longest delay of a control message; they overtake one another.
    pub control_delay: Nanos,
}

impl Faults {
    /// A perfect world: only the control channel takes its time.
    pub const NONE: Self = Self {
        loss: 0.0,
        burst: 0.0,
        burst_time: 200 * US,
        ack_loss: 0.0,
        dup: 0.0,
        corrupt: 0.0,
        link_stall: 0.0,
        tx_stall: 0.0,
        stall: 500 * US,
        ignored_doorbell: 0.0,
        lost_irq: 0.0,
        stranded: 0.0,
        plan_delay: 0,
        control_loss: 0.0,
        control_dup: 0.0,
        control_delay: MS,
    };

    /// Uniform loss of frames with probability `p`.
    pub const fn loss(p: f64) -> Self {
        Self {
            loss: p,
            ..Self::NONE
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::NONE
    }
}
