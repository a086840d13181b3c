//! Taking frames from TX rings and putting them into RX rings.

use super::ring::{
    DESCRIPTOR, Descriptor, FLAG_CRC_ERROR, FLAG_OVERRUN, FRAME_MAX, Ring, STATUS_WORD, received,
};
use super::{Controller, add, take};
use crate::Env;

/// A frame that reaches an RX ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) sof: u8,
    pub(crate) eof: u8,
    pub(crate) bytes: &'a [u8],
    pub(crate) crc_error: bool,
}

/// The descriptor in turn of a TX ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    descriptor: Descriptor,
    /// Bytes of the frame.
    pub(crate) len: usize,
    pub(crate) sof: u8,
    pub(crate) eof: u8,
}

/// An RX ring has no buffer.
pub(super) const NO_BUFFER: &str = "no RX buffer";
const OUTSIDE: &str = "RX descriptor or buffer outside memory";

impl Controller {
    pub(crate) fn tx_ring(&mut self, hop: usize) -> Option<&mut Ring> {
        self.tx.get_mut(hop)
    }

    pub(crate) fn tx_rings(&self) -> impl Iterator<Item = &Ring> {
        self.tx.iter()
    }

    /// Whether an RX ring wants end-to-end flow control of its senders.
    pub(crate) fn rx_e2e(&self, hop: usize) -> bool {
        self.rx.get(hop).is_some_and(|ring| ring.enabled && ring.e2e)
    }

    /// Whether an RX ring has a buffer that is not kept for a frame under way.
    pub(crate) fn rx_room(&self, hop: usize) -> bool {
        let reserved = self.reserved.get(hop).copied().unwrap_or(0);
        self.rx.get(hop).is_some_and(|ring| ring.available() > reserved)
    }

    /// Keeps a buffer for a frame under way.
    pub(crate) fn reserve(&mut self, hop: usize) {
        if let Some(reserved) = self.reserved.get_mut(hop) {
            *reserved = reserved.saturating_add(1);
        }
    }

    /// That frame has arrived, or never will.
    pub(crate) fn release(&mut self, hop: usize) {
        if let Some(reserved) = self.reserved.get_mut(hop) {
            *reserved = reserved.saturating_sub(1);
        }
    }

    /// Reads the descriptor in turn of a TX ring. The ring halts if it cannot.
    pub(crate) fn tx_peek(&mut self, hop: usize, env: &mut dyn Env) -> Option<Taken> {
        let ring = self.tx.get(hop).filter(|ring| ring.pending())?;
        let at = ring.descriptor();
        let mut bytes = [0; DESCRIPTOR];
        if !self.dma_read(at, &mut bytes, env) {
            self.tx.get_mut(hop)?.halted = true;
            return None;
        }
        let descriptor = Descriptor::parse(&bytes);
        Some(Taken {
            descriptor,
            len: descriptor.len(),
            sof: descriptor.sof(),
            eof: descriptor.eof(),
        })
    }

    /// Reads the frame's bytes; false if guest memory refuses.
    pub(crate) fn tx_fetch(&mut self, taken: &Taken, into: &mut Vec<u8>, env: &mut dyn Env) -> bool {
        into.clear();
        into.resize(taken.len, 0);
        self.dma_read(taken.descriptor.buffer, into, env)
    }

    /// Hands the descriptor back to the driver.
    pub(crate) fn tx_complete(&mut self, hop: usize, taken: &Taken, env: &mut dyn Env) {
        let stranded = self
            .faults(true, hop)
            .is_some_and(|faults| take(&mut faults.strand));
        let Some(ring) = self.tx.get_mut(hop) else { return };
        let status = ring.descriptor().wrapping_add(STATUS_WORD);
        ring.step();
        if stranded {
            add(&mut self.counters.stranded, 1);
            return;
        }
        if !self.dma_write(status, &taken.descriptor.sent().to_le_bytes(), env) {
            if let Some(ring) = self.tx.get_mut(hop) {
                ring.halted = true;
            }
        } else if taken.descriptor.interrupt() {
            self.interrupts.tx_event(hop);
        }
    }

    /// Puts a frame into the next buffer of an RX ring; if it cannot, says why.
    ///
    /// On success, how many bytes fitted.
    pub(crate) fn put_frame(
        &mut self,
        hop: usize,
        frame: Arrival<'_>,
        env: &mut dyn Env,
    ) -> Result<usize, &'static str> {
        let ring = self.rx.get(hop).ok_or("no such RX ring")?;
        ring.wants(frame.sof, frame.eof, frame.bytes.len())?;
        if !ring.pending() {
            return Err(if ring.halted { OUTSIDE } else { NO_BUFFER });
        }
        let (at, room) = (ring.descriptor(), ring.buffer.min(FRAME_MAX));
        let fits = frame.bytes.get(..room).unwrap_or(frame.bytes);
        let mut bytes = [0; DESCRIPTOR];
        let ok = self.dma_read(at, &mut bytes, env);
        let descriptor = Descriptor::parse(&bytes);
        if !ok || !self.dma_write(descriptor.buffer, fits, env) {
            self.halt_rx(hop);
            return Err(OUTSIDE);
        }
        let overrun = if fits.len() < frame.bytes.len() {
            FLAG_OVERRUN
        } else {
            0
        };
        let crc = if frame.crc_error { FLAG_CRC_ERROR } else { 0 };
        let word = received(fits.len(), frame.sof, frame.eof, overrun | crc);
        if let Some(ring) = self.rx.get_mut(hop) {
            ring.step();
        }
        if self
            .faults(false, hop)
            .is_some_and(|faults| take(&mut faults.strand))
        {
            add(&mut self.counters.stranded, 1);
            return Ok(fits.len());
        }
        if !self.dma_write(at.wrapping_add(STATUS_WORD), &word.to_le_bytes(), env) {
            self.halt_rx(hop);
            return Err(OUTSIDE);
        }
        if descriptor.interrupt() {
            self.interrupts.rx_event(hop);
        }
        Ok(fits.len())
    }

    fn halt_rx(&mut self, hop: usize) {
        if let Some(ring) = self.rx.get_mut(hop) {
            ring.halted = true;
        }
    }

    /// Puts a data frame into an RX ring and counts what became of it.
    pub(crate) fn receive(
        &mut self,
        hop: usize,
        frame: Arrival<'_>,
        env: &mut dyn Env,
    ) -> Result<(), &'static str> {
        match self.put_frame(hop, frame, env) {
            Ok(len) => {
                add(&mut self.counters.rx_frames, 1);
                add(&mut self.counters.rx_bytes, len);
                add(&mut self.counters.rx_crc_errors, usize::from(frame.crc_error));
                add(
                    &mut self.counters.rx_truncated,
                    usize::from(len < frame.bytes.len()),
                );
                Ok(())
            }
            Err(NO_BUFFER) => {
                if !self.rx_e2e(hop) {
                    self.interrupts.overrun_event(hop);
                }
                add(&mut self.counters.rx_overruns, 1);
                Err(NO_BUFFER)
            }
            Err(why) => {
                add(&mut self.counters.dropped, 1);
                Err(why)
            }
        }
    }
}
