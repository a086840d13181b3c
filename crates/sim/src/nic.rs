//! A host's end of a cable: the rings of its NIC and what goes wrong between them and the host.

use crate::cable::{Frame, Pool};
use crate::rng::Rng;
use std::collections::VecDeque;
use usb4_engine::{Nanos, RailFsm, RailId, TxSlot};
use usb4_wire::Control;

/// A posted transmission.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) slot: TxSlot,
    pub(crate) len: u16,
    /// When the host posted it; the NIC cannot start earlier.
    pub(crate) posted: Nanos,
}

/// What became of frames at one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames handed to the host.
    pub received: u64,
    /// Frames whose corruption the NIC's own CRC caught.
    pub crc_errors: u64,
    /// Frames that found no descriptor: the sender overran the ring. Must stay 0.
    pub overruns: u64,
    /// Frames that came while the path was down or the host dead.
    pub into_the_void: u64,
    /// Interrupts raised.
    pub irqs: u64,
    /// Interrupts lost.
    pub lost_irqs: u64,
    /// Doorbells the NIC ignored.
    pub ignored_doorbells: u64,
    /// TX completions that stayed unseen until the fallback timer.
    pub stranded: u64,
    /// Times the NIC stopped working on the TX ring.
    pub tx_stalls: u64,
}

/// The TX ring.
#[derive(Default)]
pub(crate) struct TxRing {
    /// Posted, not yet sent; the NIC works on the first.
    pub(crate) queue: VecDeque<Descriptor>,
    /// A transmission is under way.
    pub(crate) busy: bool,
    /// Sent, completion visible, not yet reaped.
    pub(crate) done: VecDeque<TxSlot>,
    /// Sent, completion not visible to the host.
    pub(crate) hidden: VecDeque<TxSlot>,
    /// The NIC does nothing before this instant.
    pub(crate) stalled_until: Nanos,
    /// The path swallowed a frame it had no place for; only a replug helps.
    pub(crate) wedged: bool,
}

impl TxRing {
    /// Descriptors in use.
    pub(crate) fn used(&self) -> usize {
        self.queue.len() + self.done.len() + self.hidden.len()
    }
}

/// The RX ring.
#[derive(Default)]
pub(crate) struct RxRing {
    /// Descriptors the NIC may still fill.
    pub(crate) free: usize,
    /// Filled, not yet taken by the host, with the instant of arrival.
    pub(crate) ready: VecDeque<(Nanos, Frame)>,
}

/// A host's end of a cable.
pub(crate) struct Port {
    pub(crate) host: usize,
    pub(crate) rng: Rng,
    pub(crate) counters: PortCounters,
    /// The cable is in.
    pub(crate) plugged: bool,
    /// This side's half of the path is set up: frames find their way into the RX ring.
    pub(crate) path_up: bool,
    /// The host crashed and left its path as it was, or lost it without farewell: the peer could not know, so frames
    /// into this port are nobody's mistake.
    pub(crate) forgetful: bool,
    /// Counts resets of the rings, so that what was scheduled before one is known to be stale.
    pub(crate) epoch: u32,
    /// The same for lives of the state machine.
    pub(crate) boot: u32,
    pub(crate) tx: TxRing,
    pub(crate) rx: RxRing,
    /// The rail's bring-up state machine, while there is a cable and a living host.
    pub(crate) fsm: Option<RailFsm>,
    /// The instant for which the state machine's timer is scheduled.
    pub(crate) bringup_at: Option<Nanos>,
    /// The link the rail belongs to, and its number there.
    pub(crate) link: Option<usize>,
    pub(crate) rail: RailId,
    pub(crate) irq_pending: bool,
    pub(crate) rekick_pending: bool,
    /// Copies of every frame sent, for tests that replay or rewrite them.
    pub(crate) tap: Option<Vec<Vec<u8>>>,
    /// Copies of every control message sent, while frames are tapped.
    pub(crate) control_tap: Vec<Control>,
}

impl Port {
    pub(crate) fn new(host: usize, rng: Rng) -> Self {
        Self {
            host,
            rng,
            counters: PortCounters::default(),
            plugged: true,
            path_up: false,
            forgetful: false,
            epoch: 0,
            boot: 0,
            tx: TxRing::default(),
            rx: RxRing::default(),
            fsm: None,
            bringup_at: None,
            link: None,
            rail: RailId(0),
            irq_pending: false,
            rekick_pending: false,
            tap: None,
            control_tap: Vec::new(),
        }
    }

    /// Stops the TX ring: what was posted is not sent.
    pub(crate) fn stop_tx(&mut self) {
        self.tx = TxRing::default();
        self.epoch += 1;
        self.irq_pending = false;
        self.rekick_pending = false;
    }

    /// Stops and empties both rings.
    pub(crate) fn reset_rings(&mut self, pool: &mut Pool) {
        for (_, frame) in self.rx.ready.drain(..) {
            pool.give(frame.bytes);
        }
        self.rx.free = 0;
        self.stop_tx();
    }

    /// Forgets the rail: its state machine, its rings and its path.
    pub(crate) fn forget(&mut self, pool: &mut Pool) {
        self.reset_rings(pool);
        self.path_up = false;
        self.fsm = None;
        self.bringup_at = None;
        self.link = None;
        self.boot += 1;
    }
}
