//! One direction of a cable: frames arrive in order, late, twice, broken or not at all.

use crate::faults::Faults;
use crate::profile::RailSpec;
use crate::rng::Rng;
use std::collections::VecDeque;
use usb4_engine::Nanos;

/// Longest frame, in bytes.
pub(crate) const FRAME: usize = usb4_wire::FRAME_MAX;
/// Bytes of a frame header.
pub(crate) const HEADER: usize = usb4_wire::FRAME_HEADER_LEN;

/// A frame in a buffer of its own.
pub(crate) type Buffer = Box<[u8; FRAME]>;

/// A frame on the cable or in an RX ring.
pub(crate) struct Frame {
    pub(crate) bytes: Buffer,
    pub(crate) len: u16,
    /// The receiving NIC's own CRC found it broken.
    pub(crate) broken: bool,
}

/// Spare frame buffers, so that a long run does not allocate per frame.
#[derive(Default)]
pub(crate) struct Pool(Vec<Buffer>);

impl Pool {
    #[inline]
    pub(crate) fn take(&mut self) -> Buffer {
        self.0.pop().unwrap_or_else(|| Box::new([0; FRAME]))
    }

    #[inline]
    pub(crate) fn give(&mut self, buffer: Buffer) {
        if self.0.len() < 4096 {
            self.0.push(buffer);
        }
    }

    /// A frame with these bytes, cut off at the longest a NIC can send.
    pub(crate) fn frame(&mut self, bytes: &[u8]) -> Frame {
        let mut buffer = self.take();
        let len = bytes.len().min(FRAME);
        buffer[..len].copy_from_slice(&bytes[..len]);
        Frame {
            bytes: buffer,
            len: u16::try_from(len).unwrap_or(0),
            broken: false,
        }
    }
}

/// What became of frames in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CableCounters {
    /// Frames put on the cable.
    pub frames: u64,
    /// Bytes put on the cable.
    pub bytes: u64,
    /// Frames that carried no chunks (pure acknowledgements).
    pub acks: u64,
    /// Frames that vanished.
    pub lost: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames with flipped bits.
    pub corrupted: u64,
}

/// One direction.
pub(crate) struct Direction {
    pub(crate) rail: RailSpec,
    pub(crate) faults: Faults,
    pub(crate) rng: Rng,
    pub(crate) counters: CableCounters,
    /// Frames on their way, oldest first, with the instant of their arrival.
    pub(crate) flying: VecDeque<(Nanos, Frame)>,
    last_arrival: Nanos,
    burst_until: Nanos,
    /// A test's own scalpel: frames still to pass, then frames to vanish whatever the faults say.
    pub(crate) cut: (u64, u64),
}

impl Direction {
    pub(crate) fn new(rail: RailSpec, faults: Faults, rng: Rng) -> Self {
        Self {
            rail,
            faults,
            rng,
            counters: CableCounters::default(),
            flying: VecDeque::new(),
            last_arrival: 0,
            burst_until: 0,
            cut: (0, 0),
        }
    }

    /// Time the cable is busy with `len` bytes.
    #[inline]
    pub(crate) fn wire_time(&self, len: u16) -> Nanos {
        (u64::from(len) * 8 * 1_000_000_000).div_ceil(self.rail.rate_bps)
    }

    /// Sends a frame whose last bit leaves at `now`; returns how many arrivals follow. `silent` corruption escapes the
    /// NIC's CRC and is left to the engine's: always in the head, and in the payload too where `payload_crc` is on.
    pub(crate) fn send(&mut self, now: Nanos, mut frame: Frame, payload_crc: bool, pool: &mut Pool) -> usize {
        let bare = is_bare(&frame);
        self.counters.frames += 1;
        self.counters.bytes += u64::from(frame.len);
        self.counters.acks += u64::from(bare);
        if self.vanishes(now, bare) {
            self.counters.lost += 1;
            pool.give(frame.bytes);
            return 0;
        }
        if self.rng.chance(self.faults.corrupt) {
            self.counters.corrupted += 1;
            self.flip(&mut frame, payload_crc);
        }
        if self.rng.chance(self.faults.link_stall) {
            self.last_arrival = self.last_arrival.max(now + self.rng.below(self.faults.stall));
        }
        let twice = self.rng.chance(self.faults.dup);
        if twice {
            self.counters.duplicated += 1;
            let mut copy = pool.frame(&frame.bytes[..usize::from(frame.len)]);
            copy.broken = frame.broken;
            self.fly(now, copy);
        }
        self.fly(now, frame);
        1 + usize::from(twice)
    }

    fn fly(&mut self, now: Nanos, frame: Frame) {
        self.last_arrival = self.last_arrival.max(now + self.rail.latency);
        self.flying.push_back((self.last_arrival, frame));
    }

    fn vanishes(&mut self, now: Nanos, bare: bool) -> bool {
        match &mut self.cut {
            (_, 0) => (),
            (0, drop) => {
                *drop -= 1;
                return true;
            }
            (pass, _) => *pass -= 1,
        }
        if self.rng.chance(self.faults.burst) {
            self.burst_until = self
                .burst_until
                .max(now + self.rng.below(self.faults.burst_time) + 1);
        }
        if now < self.burst_until {
            return true;
        }
        self.rng.chance(self.faults.loss) || (bare && self.rng.chance(self.faults.ack_loss))
    }

    fn flip(&mut self, frame: &mut Frame, payload_crc: bool) {
        let head = usize::from(u16::from_le_bytes([frame.bytes[2], frame.bytes[3]]));
        let flips = self.rng.between(1, 3);
        for _ in 0..flips {
            let at = self.rng.index(usize::from(frame.len));
            frame.bytes[at] ^= 1 << self.rng.below(8);
            frame.broken |= at >= head && !payload_crc;
        }
    }

    /// Loses everything on its way (the cable was pulled out).
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        for (_, frame) in self.flying.drain(..) {
            self.counters.lost += 1;
            pool.give(frame.bytes);
        }
    }
}

/// A frame without chunks: its head is the frame header alone.
fn is_bare(frame: &Frame) -> bool {
    usize::from(u16::from_le_bytes([frame.bytes[2], frame.bytes[3]])) == HEADER
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    fn direction(faults: Faults) -> Direction {
        Direction::new(Profile::STRIX.rail(0), faults, Rng::new(3))
    }

    #[test]
    fn a_stall_does_not_reorder_frames() {
        let faults = Faults {
            link_stall: 0.3,
            dup: 0.2,
            ..Faults::NONE
        };
        let (mut direction, mut pool) = (direction(faults), Pool::default());
        for now in 0..500 {
            let frame = pool.frame(&[0; 64]);
            direction.send(now * 100, frame, false, &mut pool);
        }
        assert!(
            direction
                .flying
                .iter()
                .zip(direction.flying.iter().skip(1))
                .all(|(a, b)| a.0 <= b.0)
        );
        assert_eq!(direction.flying.len() as u64, 500 + direction.counters.duplicated);
    }

    #[test]
    fn loss_meets_its_probability_and_is_counted() {
        let (mut direction, mut pool) = (direction(Faults::loss(0.1)), Pool::default());
        for now in 0..10_000 {
            let frame = pool.frame(&[0; 64]);
            direction.send(now, frame, false, &mut pool);
        }
        assert!(
            (900..1_100).contains(&direction.counters.lost),
            "{}",
            direction.counters.lost
        );
        assert_eq!(direction.flying.len() as u64 + direction.counters.lost, 10_000);
    }

    #[test]
    fn a_full_frame_takes_its_bits_over_the_rate() {
        assert_eq!(direction(Faults::NONE).wire_time(4096), 2_731);
    }
}
