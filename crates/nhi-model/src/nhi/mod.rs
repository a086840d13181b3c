//! One controller: PCI function, registers, rings, interrupts, and the router behind it.

mod bar0;
mod channel;
mod frames;
mod interrupts;
mod msix;
mod ring;

pub(crate) use bar0::Effect;
pub(crate) use channel::Plug;
pub(crate) use frames::{Arrival, Taken};
pub(crate) use interrupts::take;
pub(crate) use ring::{FRAME_MAX, PACKET_HEADER, packets};

use std::collections::VecDeque;

use crate::bits::word;
use crate::pci::PciConfig;
use crate::regs::{
    BAR0_SIZE, CAPS, CAPS_VERSION_PER_MAJOR, CAPS_VERSION_SHIFT, DMA_MISC, DMA_MISC_AUTO_CLEAR,
    DMA_MISC_NO_CLEAR_ON_READ,
};
use crate::rng::Rng;
use crate::router::{Router, RouterConfig};
use crate::{Counters, Env, Event, Nanos, Nhi, Topology};
use channel::Outgoing;
use interrupts::{Interrupts, Message, Sending};
use msix::Msix;
use ring::Ring;

/// One controller.
#[derive(Debug)]
pub(crate) struct Controller {
    id: Nhi,
    pub(crate) connected: bool,
    pub(crate) pci: PciConfig,
    pub(crate) router: Router,
    pub(crate) counters: Counters,
    version: u32,
    moderation: bool,
    msix: Msix,
    /// Registers that only store, and the driver's half of those that do not.
    regs: Vec<u32>,
    interrupts: Interrupts,
    tx: Vec<Ring>,
    rx: Vec<Ring>,
    tx_faults: Vec<RingFaults>,
    rx_faults: Vec<RingFaults>,
    /// Per RX ring, frames on their way that a buffer is kept for (end-to-end flow control).
    reserved: Vec<u32>,
    /// Control packets towards the host, waiting for a buffer on ring 0.
    outgoing: VecDeque<Outgoing>,
    /// Plug events the host has not acknowledged.
    pub(crate) plugs: VecDeque<Plug>,
    /// The next so many control packets from and to the host are lost.
    pub(crate) lose_control: [u32; 2],
    /// Parts per million of the doorbells of rings other than the control channel's that are ignored.
    pub(crate) doorbell_loss: u32,
    rng: Rng,
}

/// Faults a command has set on a ring. They outlive restarts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RingFaults {
    /// The next so many doorbells are ignored.
    pub(crate) ignore: u32,
    /// The next so many completions are withheld.
    pub(crate) strand: u32,
}

impl Controller {
    pub(crate) fn new(id: Nhi, topology: &Topology, mut rng: Rng) -> Self {
        let hops = usize::from(topology.hops);
        let mut controller = Self {
            id,
            connected: false,
            pci: PciConfig::new(topology.pci),
            router: Router::new(RouterConfig::new(id, topology)),
            counters: Counters::default(),
            version: u32::from(topology.usb4).saturating_mul(CAPS_VERSION_PER_MAJOR),
            moderation: topology.moderation,
            msix: Msix::default(),
            regs: vec![0; usize::try_from(BAR0_SIZE / 4).unwrap_or(0)],
            interrupts: Interrupts::new(hops, rng.fork()),
            tx: vec![Ring::default(); hops],
            rx: vec![Ring::default(); hops],
            tx_faults: vec![RingFaults::default(); hops],
            rx_faults: vec![RingFaults::default(); hops],
            reserved: vec![0; hops],
            outgoing: VecDeque::new(),
            plugs: VecDeque::new(),
            lose_control: [0; 2],
            doorbell_loss: 0,
            rng,
        };
        controller.reset_router();
        controller
    }

    pub(crate) fn hops(&self) -> usize {
        self.tx.len()
    }

    /// Function reset: everything but the vectors the front end has opened.
    pub(crate) fn reset_function(&mut self) {
        self.pci.reset();
        self.msix = Msix::default();
        self.reset_router();
    }

    /// Host router reset: everything but the PCI function.
    pub(crate) fn reset_router(&mut self) {
        self.regs.fill(0);
        self.set_reg(CAPS, word(self.hops()) | self.version << CAPS_VERSION_SHIFT);
        for ring in self.tx.iter_mut().chain(&mut self.rx) {
            ring.stop();
        }
        self.interrupts.reset();
        self.router.reset();
        self.outgoing.clear();
        self.plugs.clear();
    }

    pub(crate) fn faults(&mut self, tx: bool, hop: usize) -> Option<&mut RingFaults> {
        if tx {
            self.tx_faults.get_mut(hop)
        } else {
            self.rx_faults.get_mut(hop)
        }
    }

    /// The control channel can carry packets to the host.
    pub(crate) fn listening(&self) -> bool {
        self.rx.first().is_some_and(|ring| ring.enabled)
    }

    // ---- interrupts ----

    pub(crate) fn set_vector(&mut self, vector: u16, open: bool) {
        self.interrupts.set_open(vector, open);
    }

    pub(crate) fn close_vectors(&mut self) {
        (0u16..)
            .take(crate::VECTORS)
            .for_each(|vector| self.interrupts.set_open(vector, false));
    }

    pub(crate) fn lose_interrupts(&mut self, vector: Option<u16>, count: u32) {
        self.interrupts.lose(vector, count);
    }

    pub(crate) fn lose_some_interrupts(&mut self, ppm: u32) {
        self.interrupts.lose_some(ppm);
    }

    pub(crate) fn interrupt_deadline(&self) -> Option<Nanos> {
        self.interrupts.deadline()
    }

    /// Sends the messages that are owed and may be sent.
    pub(crate) fn send_interrupts(&mut self, now: Nanos, env: &mut dyn Env) {
        let misc = self.reg(DMA_MISC);
        let how = Sending {
            allowed: self.pci.may_dma(),
            auto_clear: misc & DMA_MISC_AUTO_CLEAR != 0 && misc & DMA_MISC_NO_CLEAR_ON_READ == 0,
            moderation: self.moderation,
        };
        let nhi = self.id;
        self.interrupts
            .send(now, how, &mut self.counters, &mut |Message { vector, lost }| {
                if !lost {
                    env.interrupt(nhi, vector);
                }
                env.observe(now, &Event::Interrupt { nhi, vector, lost });
            });
    }

    // ---- memory ----

    fn dma_read(&mut self, addr: u64, buf: &mut [u8], env: &mut dyn Env) -> bool {
        let ok = self.pci.may_dma() && env.read(self.id, addr, buf);
        self.count_fault(ok)
    }

    fn dma_write(&mut self, addr: u64, bytes: &[u8], env: &mut dyn Env) -> bool {
        let ok = self.pci.may_dma() && env.write(self.id, addr, bytes);
        self.count_fault(ok)
    }

    fn count_fault(&mut self, ok: bool) -> bool {
        if !ok {
            add(&mut self.counters.dma_faults, 1);
        }
        ok
    }
}

/// Counts.
pub(crate) fn add(counter: &mut u64, amount: usize) {
    *counter = counter.wrapping_add(u64::try_from(amount).unwrap_or(0));
}
