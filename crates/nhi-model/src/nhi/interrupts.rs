//! Interrupt status, mask, vectors and moderation of one controller.
//!
//! An event sets its status bit and owes a message. It owes it until one is sent: neither the mask, nor moderation, nor
//! a vector that is closed for a moment, nor a write to the clear register takes it back. That last one matters:
//! register writes are posted, so a driver that writes INT_CLEAR and then scans its ring (`ring_clear_msix` in
//! `nhi.c`) may do so while a frame arrives that the scan has not seen; were its event erased by the clear that
//! was issued before it, a ring without NAPI would never hear of it. A message too many is harmless.

use crate::bits::{bit64, get, halves, index, put};
use crate::regs::{THROTTLE_TICK, VECTORS};
use crate::rng::Rng;
use crate::{Counters, Nanos};

/// How messages can be sent just now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// The function is bus master and awake.
    pub(crate) allowed: bool,
    /// Sending clears the status bit.
    pub(crate) auto_clear: bool,
    /// Honour the throttle.
    pub(crate) moderation: bool,
}

/// A message that goes out, or would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) vector: u16,
    pub(crate) lost: bool,
}

/// One vector.
#[derive(Clone, Copy, Debug, Default)]
struct Vector {
    /// The front end can deliver it.
    open: bool,
    /// Ticks between two messages.
    interval: u32,
    /// No message before this time.
    quiet_until: Nanos,
    /// A message is waiting for that time.
    waiting: bool,
    /// The next so many messages are lost.
    lose: u32,
}

/// The interrupt block.
#[derive(Clone, Debug)]
pub(crate) struct Interrupts {
    hops: usize,
    /// TX rings, RX rings, RX overruns: one bit per hop each.
    status: u64,
    /// Events of the first two kinds that have not been told.
    owed: u64,
    mask: u64,
    /// The vector of each ring bit, 4 bits each, 8 to a doubleword.
    allocation: [u32; 4],
    vectors: [Vector; VECTORS],
    /// The next so many messages of any vector are lost.
    lose_any: u32,
    /// Parts per million of the messages of rings other than the control channel's that are lost.
    loss: u32,
    rng: Rng,
    /// When a moderated message may go out.
    wake: Option<Nanos>,
}

impl Interrupts {
    pub(crate) fn new(hops: usize, rng: Rng) -> Self {
        Self {
            hops,
            status: 0,
            owed: 0,
            mask: 0,
            allocation: [0; 4],
            vectors: [Vector::default(); VECTORS],
            lose_any: 0,
            loss: 0,
            rng,
            wake: None,
        }
    }

    /// Back to power-on state; vectors stay open, faults stay set.
    pub(crate) fn reset(&mut self) {
        let mut fresh = Self {
            lose_any: self.lose_any,
            loss: self.loss,
            ..Self::new(self.hops, self.rng.clone())
        };
        for (new, old) in fresh.vectors.iter_mut().zip(&self.vectors) {
            *new = Vector {
                open: old.open,
                lose: old.lose,
                ..Vector::default()
            };
        }
        *self = fresh;
    }

    fn rx_bit(&self, hop: usize) -> u64 {
        bit64(self.hops.saturating_add(hop))
    }

    fn overrun_bit(&self, hop: usize) -> u64 {
        bit64(self.hops.saturating_mul(2).saturating_add(hop))
    }

    /// A descriptor of this TX ring is complete.
    pub(crate) fn tx_event(&mut self, hop: usize) {
        self.status |= bit64(hop);
        self.owed |= bit64(hop);
    }

    /// A descriptor of this RX ring is complete.
    pub(crate) fn rx_event(&mut self, hop: usize) {
        self.status |= self.rx_bit(hop);
        self.owed |= self.rx_bit(hop);
    }

    /// A frame found no buffer. Linux reads the bit, but no message belongs to it.
    pub(crate) fn overrun_event(&mut self, hop: usize) {
        self.status |= self.overrun_bit(hop);
    }

    /// The ring has stopped: it has nothing to say any more.
    pub(crate) fn forget(&mut self, tx: bool, hop: usize) {
        let bits = if tx {
            bit64(hop)
        } else {
            self.rx_bit(hop) | self.overrun_bit(hop)
        };
        self.status &= !bits;
        self.owed &= !bits;
    }

    /// One half of the status; reading clears it unless the driver has turned that off.
    pub(crate) fn read_status(&mut self, half: usize, clear: bool) -> u32 {
        let value = halves(self.status).get(half).copied().unwrap_or(0);
        if clear {
            self.clear(half, value);
        }
        value
    }

    /// A write to INT_CLEAR: status only, see above.
    pub(crate) fn clear(&mut self, half: usize, ones: u32) {
        self.status &= !in_half(half, ones);
    }

    pub(crate) fn mask(&self, half: usize) -> u32 {
        halves(self.mask).get(half).copied().unwrap_or(0)
    }

    pub(crate) fn set_mask(&mut self, half: usize, value: u32) {
        self.mask = self.mask & !in_half(half, u32::MAX) | in_half(half, value);
    }

    pub(crate) fn clear_mask(&mut self, half: usize, ones: u32) {
        self.mask &= !in_half(half, ones);
    }

    pub(crate) fn allocation(&self, word: usize) -> u32 {
        self.allocation.get(word).copied().unwrap_or(0)
    }

    pub(crate) fn set_allocation(&mut self, word: usize, value: u32) {
        if let Some(slot) = self.allocation.get_mut(word) {
            *slot = value;
        }
    }

    /// The throttle register: what is left of the running interval, and the interval.
    pub(crate) fn throttle(&self, vector: usize, now: Nanos) -> u32 {
        let Some(vector) = self.vectors.get(vector) else {
            return 0;
        };
        let left = vector.quiet_until.saturating_sub(now).div_ceil(THROTTLE_TICK);
        put(
            vector.interval,
            16,
            16,
            u32::try_from(left.min(0xffff)).unwrap_or(0),
        )
    }

    /// Sets both.
    pub(crate) fn set_throttle(&mut self, vector: usize, value: u32, now: Nanos) {
        if let Some(vector) = self.vectors.get_mut(vector) {
            vector.interval = get(value, 0, 16);
            let count = u64::from(get(value, 16, 16));
            vector.quiet_until = now.saturating_add(count.saturating_mul(THROTTLE_TICK));
        }
    }

    pub(crate) fn set_open(&mut self, vector: u16, open: bool) {
        if let Some(vector) = self.vectors.get_mut(usize::from(vector)) {
            vector.open = open;
        }
    }

    /// Whether a vector's message is waiting for the vector to open (a pending bit of the MSI-X array).
    pub(crate) fn pending(&self, vector: usize) -> bool {
        self.vectors.get(vector).is_some_and(|v| !v.open)
            && (0..self.hops.saturating_mul(2))
                .any(|bit| self.owed & self.mask & bit64(bit) != 0 && self.vector_of(bit) == vector)
    }

    /// Loses the next `count` messages of a vector, or of any.
    pub(crate) fn lose(&mut self, vector: Option<u16>, count: u32) {
        match vector {
            None => self.lose_any = count,
            Some(vector) => {
                if let Some(vector) = self.vectors.get_mut(usize::from(vector)) {
                    vector.lose = count;
                }
            }
        }
    }

    /// Loses messages of data rings at random, `ppm` of a million.
    pub(crate) fn lose_some(&mut self, ppm: u32) {
        self.loss = ppm;
    }

    /// When [`Self::send`] must be called next.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.wake
    }

    fn vector_of(&self, bit: usize) -> usize {
        let word = self.allocation.get(bit / 8).copied().unwrap_or(0);
        index(get(
            word,
            u32::try_from(bit % 8).unwrap_or(0).saturating_mul(4),
            4,
        ))
    }

    /// Sends what is owed and may be sent: at most one message per vector.
    pub(crate) fn send(
        &mut self,
        now: Nanos,
        how: Sending,
        counters: &mut Counters,
        out: &mut dyn FnMut(Message),
    ) {
        self.wake = None;
        let ready = self.owed & self.mask;
        if ready == 0 || !how.allowed {
            return;
        }
        let mut bits = [0u64; VECTORS];
        for ring in (0..self.hops.saturating_mul(2)).filter(|&ring| ready & bit64(ring) != 0) {
            if let Some(bits) = bits.get_mut(self.vector_of(ring)) {
                *bits |= bit64(ring);
            }
        }
        for (number, bits) in (0u16..).zip(bits).filter(|&(_, bits)| bits != 0) {
            let Some(vector) = self.vectors.get_mut(usize::from(number)) else {
                continue;
            };
            if !vector.open {
                continue;
            }
            if how.moderation && vector.quiet_until > now {
                counters.moderated = counters.moderated.saturating_add(u64::from(!vector.waiting));
                vector.waiting = true;
                self.wake = Some(
                    self.wake
                        .map_or(vector.quiet_until, |wake| wake.min(vector.quiet_until)),
                );
                continue;
            }
            vector.waiting = false;
            let interval = u64::from(vector.interval).saturating_mul(THROTTLE_TICK);
            vector.quiet_until = now.saturating_add(interval);
            self.owed &= !bits;
            if how.auto_clear {
                self.status &= !bits;
            }
            let control = bit64(0) | bit64(self.hops);
            let lost = take(&mut vector.lose)
                || take(&mut self.lose_any)
                || (bits & control == 0 && self.rng.hit(self.loss));
            let counter = if lost {
                &mut counters.lost_interrupts
            } else {
                &mut counters.interrupts
            };
            *counter = counter.saturating_add(1);
            out(Message { vector: number, lost });
        }
    }
}

/// Counts down; true while there was something to take.
pub(crate) fn take(left: &mut u32) -> bool {
    let some = *left != 0;
    *left = left.saturating_sub(1);
    some
}

fn in_half(half: usize, word: u32) -> u64 {
    match half {
        0 => u64::from(word),
        1 => u64::from(word) << 32,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sending = Sending {
        allowed: true,
        auto_clear: false,
        moderation: true,
    };
    const INTEL: Sending = Sending {
        allowed: true,
        auto_clear: true,
        moderation: true,
    };

    /// 12 hops, RX ring 1 on vector 3, enabled and open.
    fn rx1() -> Interrupts {
        let mut irq = Interrupts::new(12, Rng::new(1));
        irq.set_allocation(1, 3 << 20); // ring bit 13
        irq.set_mask(0, 1 << 13);
        irq.set_open(3, true);
        irq
    }

    fn sent(irq: &mut Interrupts, now: Nanos, how: Sending) -> Vec<u16> {
        let mut all = Vec::new();
        irq.send(now, how, &mut Counters::default(), &mut |message| {
            if !message.lost {
                all.push(message.vector);
            }
        });
        all
    }

    #[test]
    fn a_clear_issued_before_an_event_does_not_swallow_it() {
        for how in [PLAIN, INTEL] {
            let mut irq = rx1();
            irq.rx_event(1);
            assert_eq!(sent(&mut irq, 0, how), [3]);
            // The driver has issued INT_CLEAR and scans; a frame completes behind its back; the clear arrives.
            irq.rx_event(1);
            irq.clear(0, u32::MAX);
            assert_eq!(sent(&mut irq, 1, how), [3], "{how:?}");
        }
    }

    #[test]
    fn a_clear_does_not_swallow_a_moderated_event() {
        let mut irq = rx1();
        irq.set_throttle(3, 500, 0);
        irq.rx_event(1);
        assert_eq!(sent(&mut irq, 0, PLAIN), [3]);
        irq.rx_event(1);
        assert_eq!(sent(&mut irq, 10, PLAIN), []);
        irq.clear(0, u32::MAX);
        assert_eq!(irq.deadline(), Some(128_000));
        assert_eq!(sent(&mut irq, 128_000, PLAIN), [3]);
    }

    #[test]
    fn every_event_may_send_a_message_while_its_status_bit_is_set() {
        let mut irq = rx1();
        for _ in 0..3 {
            irq.rx_event(1);
            assert_eq!(sent(&mut irq, 0, PLAIN), [3]);
        }
        assert_eq!(irq.read_status(0, false), 1 << 13);
    }

    #[test]
    fn a_masked_event_fires_when_it_is_unmasked() {
        let mut irq = rx1();
        irq.clear_mask(0, 1 << 13);
        irq.rx_event(1);
        assert_eq!(sent(&mut irq, 0, PLAIN), []);
        irq.set_mask(0, 1 << 13);
        assert_eq!(sent(&mut irq, 0, PLAIN), [3]);
        assert_eq!(sent(&mut irq, 0, PLAIN), [], "once");
    }

    #[test]
    fn an_event_waits_for_its_vector_to_open() {
        let mut irq = rx1();
        irq.set_open(3, false);
        irq.rx_event(1);
        assert_eq!(sent(&mut irq, 0, INTEL), []);
        assert!(irq.pending(3) && !irq.pending(2));
        irq.set_open(3, true);
        assert_eq!(sent(&mut irq, 0, INTEL), [3]);
    }

    #[test]
    fn messages_keep_their_distance_and_the_register_counts_down() {
        let mut irq = rx1();
        irq.set_throttle(3, 4, 0);
        irq.rx_event(1);
        assert_eq!(sent(&mut irq, 0, PLAIN), [3], "the first at once");
        assert_eq!(irq.throttle(3, 256), 3 << 16 | 4);
        irq.rx_event(1);
        assert_eq!(sent(&mut irq, 1023, PLAIN), []);
        assert_eq!(sent(&mut irq, 1024, PLAIN), [3]);
        irq.rx_event(1);
        let free = Sending {
            moderation: false,
            ..PLAIN
        };
        assert_eq!(sent(&mut irq, 1025, free), [3], "unless moderation is off");
    }

    #[test]
    fn auto_clear_and_clear_on_read_empty_the_status() {
        let mut irq = rx1();
        irq.rx_event(1);
        sent(&mut irq, 0, INTEL);
        assert_eq!(irq.read_status(0, true), 0);
        irq.overrun_event(11); // bit 35
        assert_eq!((irq.read_status(1, true), irq.read_status(1, true)), (1 << 3, 0));
    }

    #[test]
    fn a_lost_message_is_not_sent_later() {
        let mut irq = rx1();
        irq.lose(Some(3), 1);
        irq.rx_event(1);
        assert_eq!(sent(&mut irq, 0, PLAIN), []);
        assert_eq!(sent(&mut irq, 1_000_000, PLAIN), []);
        irq.rx_event(1);
        assert_eq!(sent(&mut irq, 1_000_000, PLAIN), [3]);
    }

    #[test]
    fn a_stopped_ring_owes_nothing() {
        let mut irq = rx1();
        irq.clear_mask(0, u32::MAX);
        irq.rx_event(1);
        irq.forget(false, 1);
        irq.set_mask(0, u32::MAX);
        assert_eq!(sent(&mut irq, 0, PLAIN), []);
    }

    #[test]
    fn three_hops_have_their_rx_bits_in_the_first_word() {
        let mut irq = Interrupts::new(3, Rng::new(1));
        irq.set_open(0, true);
        irq.set_mask(0, 0b11_1111);
        irq.rx_event(2);
        assert_eq!(irq.read_status(0, false), 1 << 5);
        assert_eq!(sent(&mut irq, 0, PLAIN), [0]);
    }
}
