//! TX and RX rings: their registers' meaning and their descriptors.

use crate::Nanos;
use crate::bits::{get, index, put};
use crate::regs::{OPTION_E2E, OPTION_ENABLE, OPTION_RAW};

/// Bytes of a descriptor: buffer address (64 bits), length, PDFs and flags (32), time (32); `struct ring_desc` in
/// `drivers/thunderbolt/nhi_regs.h`.
pub(crate) const DESCRIPTOR: usize = 16;
/// Offset of the doubleword that hands a descriptor over.
pub(crate) const STATUS_WORD: u64 = 8;
/// Largest frame; a length of 0 means this much (12 bits).
pub(crate) const FRAME_MAX: usize = 4096;

/// Flags, from bit 20 (`enum ring_desc_flags`).
pub(crate) const FLAG_CRC_ERROR: u32 = 1 << 20;
pub(crate) const FLAG_COMPLETED: u32 = 2 << 20;
/// Posted on its way in, buffer overrun on its way out.
pub(crate) const FLAG_OVERRUN: u32 = 4 << 20;
pub(crate) const FLAG_INTERRUPT: u32 = 8 << 20;

/// One ring.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring {
    pub(crate) enabled: bool,
    base: u64,
    size: u32,
    /// Next descriptor the controller uses.
    next: u32,
    /// First one the driver has not posted.
    posted: u32,
    pub(crate) raw: bool,
    pub(crate) e2e: bool,
    sof_mask: u32,
    eof_mask: u32,
    /// RX: bytes of a buffer.
    pub(crate) buffer: usize,
    /// Guest memory refused a descriptor or buffer: the ring has stopped until it is restarted.
    pub(crate) halted: bool,
    /// TX: when the driver posted what is next.
    pub(crate) posted_at: Nanos,
    /// TX: in the fabric's queue of rings to serve.
    pub(crate) queued: bool,
    /// TX: waits for something that [`crate::fabric`] will notice.
    pub(crate) held: bool,
}

/// What a ring's registers say when it is enabled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setup {
    pub(crate) base: u64,
    pub(crate) size_word: u32,
    pub(crate) options: u32,
    pub(crate) masks: u32,
    /// The driver's index.
    pub(crate) posted: u32,
}

impl Ring {
    /// The options register was written. True if the ring has just started.
    pub(crate) fn set_options(&mut self, setup: Setup, now: Nanos) -> bool {
        if setup.options & OPTION_ENABLE == 0 {
            self.stop();
            return false;
        }
        let starts = !self.enabled;
        if starts {
            self.base = setup.base;
            self.size = get(setup.size_word, 0, 16);
            self.buffer = length(get(setup.size_word, 16, 12));
            self.sof_mask = get(setup.masks, 16, 16);
            self.eof_mask = get(setup.masks, 0, 16);
            // One descriptor always stays free: a ring of one can hold nothing.
            self.enabled = self.size > 1;
            self.next = 0;
            self.halted = false;
            self.post(setup.posted, now);
        }
        // Linux sets the end-to-end flag by a second write, once the ring runs.
        self.raw = setup.options & OPTION_RAW != 0;
        self.e2e = setup.options & OPTION_E2E != 0;
        starts && self.enabled
    }

    pub(crate) fn stop(&mut self) {
        let queued = self.queued;
        *self = Self {
            queued,
            ..Self::default()
        };
    }

    /// The driver has moved its index.
    pub(crate) fn post(&mut self, index: u32, now: Nanos) {
        if !self.pending() {
            self.posted_at = now;
        }
        self.posted = index.checked_rem(self.size).unwrap_or(0);
    }

    /// Descriptors the driver has posted and the controller has not used.
    pub(crate) fn available(&self) -> u32 {
        if !self.enabled || self.halted {
            return 0;
        }
        let ahead = self.posted.saturating_add(self.size).saturating_sub(self.next);
        ahead.checked_rem(self.size).unwrap_or(0)
    }

    pub(crate) fn pending(&self) -> bool {
        self.available() != 0
    }

    /// The controller's index, as its half of the register shows.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Bus address of the descriptor in turn.
    pub(crate) fn descriptor(&self) -> u64 {
        let offset = u64::from(self.next).saturating_mul(DESCRIPTOR as u64);
        self.base.wrapping_add(offset)
    }

    /// Goes on to the next descriptor.
    pub(crate) fn step(&mut self) {
        self.next = self.next.wrapping_add(1).checked_rem(self.size).unwrap_or(0);
    }

    /// Whether an RX ring takes a frame with these PDFs, and if not, why.
    pub(crate) fn wants(&self, sof: u8, eof: u8, len: usize) -> Result<(), &'static str> {
        let has = |mask: u32, pdf: u8| get(mask, u32::from(pdf), 1) != 0;
        if !self.enabled {
            Err("RX ring not enabled")
        } else if self.raw {
            Ok(())
        } else if !has(self.sof_mask, sof) || !has(self.eof_mask, eof) {
            Err("PDF not in the ring's masks")
        } else if len > PACKET_PAYLOAD && has(self.eof_mask, sof) {
            // The controller closes a frame at the first packet whose PDF is in the EOF mask.
            Err("the frame's first packet ends it: SOF PDF in the EOF mask")
        } else {
            Ok(())
        }
    }
}

/// Payload of a transport layer packet on the link; a frame is cut into these (measured on AMD and Intel hosts).
pub(crate) const PACKET_PAYLOAD: usize = 252;
/// Its header.
pub(crate) const PACKET_HEADER: usize = 4;

/// Transport layer packets of a frame.
pub(crate) fn packets(len: usize) -> usize {
    len.div_ceil(PACKET_PAYLOAD).max(1)
}

/// A 12-bit length: 0 means 4096.
fn length(field: u32) -> usize {
    if field == 0 { FRAME_MAX } else { index(field) }
}

/// A descriptor as the driver posted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) buffer: u64,
    word: u32,
}

impl Descriptor {
    pub(crate) fn parse(bytes: &[u8; DESCRIPTOR]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *bytes;
        Self {
            buffer: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            word: u32::from_le_bytes([i, j, k, l]),
        }
    }

    /// TX: bytes of the frame.
    pub(crate) fn len(self) -> usize {
        length(get(self.word, 0, 12))
    }

    pub(crate) fn eof(self) -> u8 {
        u8::try_from(get(self.word, 12, 4)).unwrap_or(0)
    }

    pub(crate) fn sof(self) -> u8 {
        u8::try_from(get(self.word, 16, 4)).unwrap_or(0)
    }

    pub(crate) fn interrupt(self) -> bool {
        self.word & FLAG_INTERRUPT != 0
    }

    /// The doubleword that hands a TX descriptor back.
    pub(crate) fn sent(self) -> u32 {
        self.word | FLAG_COMPLETED
    }
}

/// The doubleword that hands an RX descriptor back.
pub(crate) fn received(len: usize, sof: u8, eof: u8, flags: u32) -> u32 {
    let word = u32::try_from(len).unwrap_or(0) & 0xfff;
    put(put(word, 12, 4, u32::from(eof)), 16, 4, u32::from(sof)) | FLAG_COMPLETED | flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(size: u32) -> Ring {
        let mut ring = Ring::default();
        let setup = Setup {
            base: 0x1000,
            size_word: size,
            options: OPTION_ENABLE,
            masks: 2 << 16 | 4,
            posted: 0,
        };
        ring.set_options(setup, 0);
        ring
    }

    #[test]
    fn indices_go_round_and_wild_ones_stay_inside() {
        let mut ring = ring(4);
        ring.post(3, 0);
        assert_eq!((ring.available(), ring.descriptor()), (3, 0x1000));
        (0..3).for_each(|_| ring.step());
        ring.post(2, 0);
        assert_eq!((ring.available(), ring.descriptor()), (3, 0x1030));
        ring.post(0xffff, 0);
        assert!(ring.available() < 4);
    }

    #[test]
    fn a_ring_of_no_or_one_descriptor_never_runs() {
        assert!(!ring(0).enabled && !ring(1).enabled && ring(2).enabled);
    }

    #[test]
    fn the_second_options_write_does_not_restart_the_ring() {
        let mut ring = ring(8);
        ring.post(5, 0);
        ring.step();
        let again = Setup {
            options: OPTION_ENABLE | OPTION_E2E,
            ..Setup::default()
        };
        assert!(!ring.set_options(again, 0));
        assert!(ring.e2e && ring.available() == 4);
    }

    #[test]
    fn a_frame_whose_first_packet_ends_it_is_not_taken() {
        let mut ring = ring(8);
        assert_eq!(ring.wants(1, 2, 4096), Ok(()));
        assert!(ring.wants(1, 1, 10).is_err() && ring.wants(2, 2, 10).is_err());
        ring.eof_mask |= 2;
        assert_eq!(ring.wants(1, 2, 252), Ok(()));
        assert!(ring.wants(1, 2, 253).is_err());
    }

    #[test]
    fn a_length_of_zero_is_4096() {
        let mut bytes = [0; DESCRIPTOR];
        bytes[8..12].copy_from_slice(&(0xcu32 << 20 | 2 << 16 | 3 << 12).to_le_bytes());
        let descriptor = Descriptor::parse(&bytes);
        assert_eq!(
            (descriptor.len(), descriptor.sof(), descriptor.eof()),
            (4096, 2, 3)
        );
        assert!(descriptor.interrupt());
        assert_eq!(received(4096, 0, 5, 0), 0x0020_5000);
    }
}
