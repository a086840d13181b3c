//! Register reads and writes.

use super::Controller;
use super::add;
use super::interrupts::take;
use super::ring::Setup;
use crate::Nanos;
use crate::bits::{get, put, word};
use crate::regs::{
    BAR0_SIZE, CAPS, DMA_MISC, DMA_MISC_NO_CLEAR_ON_READ, INMAIL_COMMAND, INT_CLEAR, INT_CLEAR_END, INT_MASK,
    INT_MASK_CLEAR, INT_MASK_CLEAR_END, INT_STATUS, INT_THROTTLE, INT_VECTOR, INT_VECTOR_END, OPTIONS_MASKS,
    OPTIONS_STRIDE, RESET, RING_BASE, RING_BASE_HIGH, RING_INDICES, RING_SIZE, RING_STRIDE, RX_OPTIONS,
    RX_RINGS, TX_OPTIONS, TX_RINGS,
};

/// What a register write asks the fabric to do. Interrupts are looked at after every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing more.
    None,
    /// This TX ring may have something to send.
    Tx(usize),
    /// This RX ring has new buffers.
    Rx(usize),
    /// A ring started or stopped.
    Rings,
    /// Host router reset.
    Reset,
}

/// A register, as far as it does anything.
#[derive(Clone, Copy, Debug)]
enum Register {
    /// Indices of a ring.
    Indices {
        tx: bool,
        hop: usize,
    },
    /// Options of a ring.
    Options {
        tx: bool,
        hop: usize,
    },
    /// Half of the interrupt status.
    Status(usize),
    Clear(usize),
    Mask(usize),
    MaskClear(usize),
    Throttle(usize),
    Vectors(usize),
    ReadOnly,
    Mailbox,
    Reset,
    Plain,
}

/// The doubleword of a block.
fn nth(offset: u64, base: u64) -> usize {
    usize::try_from(offset.saturating_sub(base) / 4).unwrap_or(usize::MAX)
}

impl Controller {
    pub(super) fn reg(&self, offset: u64) -> u32 {
        self.regs.get(nth(offset, 0)).copied().unwrap_or(0)
    }

    pub(super) fn set_reg(&mut self, offset: u64, value: u32) {
        if let Some(slot) = self.regs.get_mut(nth(offset, 0)) {
            *slot = value;
        }
    }

    /// Which ring's block of `stride` bytes at `base` an offset is in, and where in it.
    fn in_block(&self, offset: u64, base: u64, stride: u64) -> Option<(usize, u64)> {
        let inside = offset.checked_sub(base)?;
        let hop = usize::try_from(inside.checked_div(stride)?).ok()?;
        (hop < self.hops()).then_some((hop, inside.checked_rem(stride)?))
    }

    fn decode(&self, offset: u64) -> Register {
        for (base, tx) in [(TX_RINGS, true), (RX_RINGS, false)] {
            if let Some((hop, RING_INDICES)) = self.in_block(offset, base, RING_STRIDE) {
                return Register::Indices { tx, hop };
            }
        }
        for (base, tx) in [(TX_OPTIONS, true), (RX_OPTIONS, false)] {
            if let Some((hop, 0)) = self.in_block(offset, base, OPTIONS_STRIDE) {
                return Register::Options { tx, hop };
            }
        }
        match offset {
            INT_STATUS..INT_CLEAR => Register::Status(nth(offset, INT_STATUS)),
            INT_CLEAR..INT_CLEAR_END => Register::Clear(nth(offset, INT_CLEAR)),
            INT_MASK..INT_MASK_CLEAR => Register::Mask(nth(offset, INT_MASK)),
            INT_MASK_CLEAR..INT_MASK_CLEAR_END => Register::MaskClear(nth(offset, INT_MASK_CLEAR)),
            INT_THROTTLE..INT_VECTOR => Register::Throttle(nth(offset, INT_THROTTLE)),
            INT_VECTOR..INT_VECTOR_END => Register::Vectors(nth(offset, INT_VECTOR)),
            CAPS => Register::ReadOnly,
            INMAIL_COMMAND => Register::Mailbox,
            RESET => Register::Reset,
            _ => Register::Plain,
        }
    }

    /// Reads a doubleword; all ones past the end.
    pub(crate) fn read(&mut self, offset: u64, now: Nanos) -> u32 {
        add(&mut self.counters.reads, 1);
        if offset >= BAR0_SIZE {
            return u32::MAX;
        }
        match self.decode(offset) {
            Register::Indices { tx, hop } => {
                let (rings, ours) = if tx { (&self.tx, 0) } else { (&self.rx, 16) };
                let next = rings.get(hop).map_or(0, |ring| ring.next());
                put(self.reg(offset), ours, 16, next)
            }
            Register::Status(half) => {
                let clear = self.reg(DMA_MISC) & DMA_MISC_NO_CLEAR_ON_READ == 0;
                self.interrupts.read_status(half, clear)
            }
            Register::Mask(half) => self.interrupts.mask(half),
            Register::Throttle(vector) => self.interrupts.throttle(vector, now),
            Register::Vectors(which) => self.interrupts.allocation(which),
            Register::Clear(_) | Register::MaskClear(_) | Register::Reset => 0,
            Register::Options { .. } | Register::ReadOnly | Register::Mailbox | Register::Plain => {
                self.reg(offset)
            }
        }
    }

    /// Writes a doubleword that trapped.
    pub(crate) fn write(&mut self, offset: u64, value: u32, now: Nanos) -> Effect {
        add(&mut self.counters.writes, 1);
        self.store(offset, value, now)
    }

    /// Takes a doubleword over from a mapped page; None if it has not changed.
    pub(crate) fn take_over(&mut self, offset: u64, value: u32, now: Nanos) -> Option<Effect> {
        // Hardware ignores what is written to its own half of the indices.
        let (value, known) = match self.decode(offset) {
            Register::Indices { tx, .. } => {
                let low = if tx { 16 } else { 0 };
                (put(0, low, 16, get(value, low, 16)), self.reg(offset))
            }
            Register::Mask(half) => (value, self.interrupts.mask(half)),
            Register::Vectors(which) => (value, self.interrupts.allocation(which)),
            Register::Throttle(_) | Register::Plain => (value, self.reg(offset)),
            _ => return None,
        };
        (value != known).then(|| self.store(offset, value, now))
    }

    fn store(&mut self, offset: u64, value: u32, now: Nanos) -> Effect {
        match self.decode(offset) {
            Register::Indices { tx, hop } => return self.doorbell(tx, hop, offset, value, now),
            Register::Options { tx, hop } => {
                self.set_reg(offset, value);
                self.options(tx, hop, now);
                return Effect::Rings;
            }
            Register::Clear(half) => self.interrupts.clear(half, value),
            Register::Mask(half) => self.interrupts.set_mask(half, value),
            Register::MaskClear(half) => self.interrupts.clear_mask(half, value),
            Register::Throttle(vector) => {
                self.set_reg(offset, value);
                self.interrupts.set_throttle(vector, value, now);
            }
            Register::Vectors(which) => self.interrupts.set_allocation(which, value),
            Register::Mailbox => self.set_reg(offset, value & !(1 << 31)),
            Register::Reset if value & 1 != 0 => return Effect::Reset,
            Register::Reset | Register::ReadOnly | Register::Status(_) => {}
            Register::Plain => self.set_reg(offset, value),
        }
        Effect::None
    }

    fn doorbell(&mut self, tx: bool, hop: usize, offset: u64, value: u32, now: Nanos) -> Effect {
        let low = if tx { 16 } else { 0 };
        let posted = get(value, low, 16);
        self.set_reg(offset, put(0, low, 16, posted));
        let counted = self
            .faults(tx, hop)
            .is_some_and(|faults| take(&mut faults.ignore));
        if counted || (hop != 0 && self.rng.hit(self.doorbell_loss)) {
            add(&mut self.counters.ignored_doorbells, 1);
            return Effect::None;
        }
        let counter = if tx {
            &mut self.counters.tx_doorbells
        } else {
            &mut self.counters.rx_doorbells
        };
        add(counter, 1);
        let rings = if tx { &mut self.tx } else { &mut self.rx };
        if let Some(ring) = rings.get_mut(hop) {
            ring.post(posted, now);
        }
        if tx { Effect::Tx(hop) } else { Effect::Rx(hop) }
    }

    fn options(&mut self, tx: bool, hop: usize, now: Nanos) {
        let (rings, options) = if tx {
            (TX_RINGS, TX_OPTIONS)
        } else {
            (RX_RINGS, RX_OPTIONS)
        };
        let at = |base: u64, stride: u64, offset: u64| {
            let start = u64::from(word(hop)).saturating_mul(stride);
            base.saturating_add(start).saturating_add(offset)
        };
        let ring_reg = |offset| self.reg(at(rings, RING_STRIDE, offset));
        let setup = Setup {
            base: u64::from(ring_reg(RING_BASE)) | u64::from(ring_reg(RING_BASE_HIGH)) << 32,
            size_word: ring_reg(RING_SIZE),
            options: self.reg(at(options, OPTIONS_STRIDE, 0)),
            masks: self.reg(at(options, OPTIONS_STRIDE, OPTIONS_MASKS)),
            posted: get(ring_reg(RING_INDICES), if tx { 16 } else { 0 }, 16),
        };
        let rings = if tx { &mut self.tx } else { &mut self.rx };
        let Some(ring) = rings.get_mut(hop) else { return };
        let started = ring.set_options(setup, now);
        let stopped = !ring.enabled;
        if stopped {
            self.interrupts.forget(tx, hop);
        }
        if hop == 0 && !tx {
            if started {
                // The host is back: the router leaves sleep.
                self.router.wake();
            } else if stopped {
                self.outgoing.clear();
            }
        }
    }

    /// The offsets of a mapped page that mean something, for [`crate::Fabric::poll`].
    pub(crate) fn mapped_offsets(&self, page: crate::MappedPage) -> impl Iterator<Item = u64> + use<> {
        let hops = u64::from(word(self.hops()));
        let (base, words) = match page {
            crate::MappedPage::TxRings => (TX_RINGS, hops.saturating_mul(RING_STRIDE / 4)),
            crate::MappedPage::RxRings => (RX_RINGS, hops.saturating_mul(RING_STRIDE / 4)),
            crate::MappedPage::Interrupts => (INT_MASK, 2),
        };
        let throttle_and_vectors = (INT_THROTTLE..INT_VECTOR_END).step_by(4);
        let more = (page == crate::MappedPage::Interrupts).then_some(throttle_and_vectors);
        // Indices come last in their ring: base and size must be there when a doorbell is acted on.
        let first = (0..words).map(move |n| base.saturating_add(n.saturating_mul(4)));
        let ordered = [true, false].into_iter().flat_map(move |plain| {
            first
                .clone()
                .filter(move |offset| (offset % RING_STRIDE != RING_INDICES) == plain)
        });
        more.into_iter().flatten().chain(ordered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::{MappedPage, Nhi, PciId, Topology};

    fn controller(hops: u8) -> Controller {
        Controller::new(
            Nhi(0),
            &Topology {
                hops,
                pci: PciId::OTHER,
                ..Topology::pair()
            },
            Rng::new(1),
        )
    }

    fn start(c: &mut Controller, tx: bool, hop: u64) {
        let (rings, options) = if tx {
            (TX_RINGS, TX_OPTIONS)
        } else {
            (RX_RINGS, RX_OPTIONS)
        };
        c.write(rings + 16 * hop, 0x1000, 0);
        c.write(rings + 16 * hop + 12, 16, 0);
        assert_eq!(c.write(options + 32 * hop, 1 << 31, 0), Effect::Rings);
    }

    #[test]
    fn capabilities_tell_hops_and_version_and_are_read_only() {
        for hops in [3, 12] {
            let mut c = controller(hops);
            c.write(CAPS, 0, 0);
            assert_eq!(c.read(CAPS, 0), 0x20_0000 | u32::from(hops));
        }
    }

    #[test]
    fn a_doorbell_write_leaves_the_controllers_index_alone() {
        let mut c = controller(12);
        start(&mut c, true, 1);
        assert_eq!(c.write(0x18, 5 << 16, 0), Effect::Tx(1));
        c.tx[1].step();
        assert_eq!(c.read(0x18, 0), 5 << 16 | 1);
        start(&mut c, false, 2);
        assert_eq!(c.write(RX_RINGS + 0x28, 7 | 9 << 16, 0), Effect::Rx(2));
        assert_eq!(c.read(RX_RINGS + 0x28, 0), 7);
    }

    #[test]
    fn rings_beyond_the_hop_count_do_nothing() {
        let mut c = controller(3);
        assert_eq!(c.write(TX_RINGS + 3 * 16 + 8, 1 << 16, 0), Effect::None);
        assert_eq!(c.write(TX_OPTIONS + 3 * 32, 1 << 31, 0), Effect::None);
    }

    #[test]
    fn mask_and_mask_clear_work_on_both_words() {
        let mut c = controller(16);
        c.write(INT_MASK, 0xff, 0);
        c.write(INT_MASK + 4, 0xff, 0);
        c.write(INT_MASK_CLEAR + 4, 0x0f, 0);
        assert_eq!((c.read(INT_MASK, 0), c.read(INT_MASK + 4, 0)), (0xff, 0xf0));
        assert_eq!(c.read(INT_MASK_CLEAR, 0), 0);
    }

    #[test]
    fn an_ignored_doorbell_is_made_up_for_by_a_second_one() {
        let mut c = controller(12);
        start(&mut c, true, 1);
        c.faults(true, 1).unwrap().ignore = 1;
        assert_eq!(c.write(0x18, 5 << 16, 0), Effect::None);
        assert!(!c.tx[1].pending());
        assert_eq!(c.write(0x18, 5 << 16, 0), Effect::Tx(1));
        assert_eq!(c.tx[1].available(), 5);
    }

    #[test]
    fn doorbells_of_data_rings_are_ignored_at_random() {
        let mut c = controller(12);
        start(&mut c, true, 0);
        start(&mut c, true, 1);
        c.doorbell_loss = 500_000;
        let heard = |c: &mut Controller, offset| {
            let rung = (0..100).filter(|_| c.write(offset, 5 << 16, 0) != Effect::None);
            rung.count()
        };
        assert!((30..70).contains(&heard(&mut c, 0x18)));
        assert_eq!(heard(&mut c, 0x08), 100, "none of the control channel's");
    }

    #[test]
    fn mapped_pages_yield_changes_once_and_ignore_our_half() {
        let mut c = controller(12);
        start(&mut c, true, 1);
        let guest = |offset| {
            if offset == 0x18 {
                3 << 16 | 0x77
            } else {
                c_reg(offset)
            }
        };
        fn c_reg(offset: u64) -> u32 {
            match offset {
                0x10 => 0x1000,
                0x1c => 16,
                _ => 0,
            }
        }
        let offsets: Vec<u64> = c.mapped_offsets(MappedPage::TxRings).collect();
        assert_eq!(offsets.len(), 48);
        let poll = |c: &mut Controller| -> Vec<Effect> {
            offsets
                .iter()
                .filter_map(|&offset| c.take_over(offset, guest(offset), 0))
                .collect()
        };
        assert_eq!(poll(&mut c), [Effect::Tx(1)]);
        assert_eq!(poll(&mut c), []);
        assert_eq!(c.tx[1].available(), 3);
    }

    #[test]
    fn reads_and_writes_past_the_end_are_harmless() {
        let mut c = controller(12);
        assert_eq!(c.write(BAR0_SIZE, 1, 0), Effect::None);
        assert_eq!(c.write(u64::MAX, 1, 0), Effect::None);
        assert_eq!(c.read(!3, 0), u32::MAX);
    }
}
