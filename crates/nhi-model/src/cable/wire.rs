//! One direction of a cable: what is under way, and what goes wrong there.
//!
//! A path never reorders: frames arrive in the order they entered, and so do control packets.

use std::collections::{BTreeMap, VecDeque};

use crate::nhi::{PACKET_HEADER, add as count, packets, take};
use crate::rng::Rng;
use crate::{CableCounters, CableFaults, Fate, Nanos};

/// Data frames that may be under way; more wait in their TX rings.
const FRAMES_MAX: usize = 2048;
/// Control packets that may be under way; more are lost.
const CONTROL_MAX: usize = 256;
/// Transport layer packets a sender may lose into a path that does not exist before it has no credits left. The
/// driver gives a path of a USB4 host interface 14 (`TB_DMA_CREDITS` in `drivers/thunderbolt/tunnel.c`).
const CREDITS: usize = 14;
const BITS_PER_BYTE: u64 = 8;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A data frame under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flight {
    pub(crate) due: Nanos,
    /// HopID on the link.
    pub(crate) hop: u32,
    /// Lane adapter of the port it entered through, 0 or 1.
    pub(crate) lane: u32,
    pub(crate) sof: u8,
    pub(crate) eof: u8,
    pub(crate) bytes: Vec<u8>,
    pub(crate) crc_error: bool,
    /// RX ring that keeps a buffer for it.
    pub(crate) reserved: Option<usize>,
}

/// A control packet under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControlFlight {
    pub(crate) due: Nanos,
    pub(crate) pdf: u8,
    pub(crate) words: Vec<u32>,
    /// A random number that says which bit is wrong when it arrives.
    pub(crate) damage: Option<u64>,
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) faults: CableFaults,
    /// The next so many data frames are lost.
    pub(crate) lose: u32,
    pub(crate) counters: CableCounters,
    rng: Rng,
    /// The last frame has left its sender then.
    free_at: Nanos,
    frames: VecDeque<Flight>,
    control: VecDeque<ControlFlight>,
    /// Per HopID, packets lost into a path the far router does not have.
    leaks: BTreeMap<u32, usize>,
}

impl Wire {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            faults: CableFaults::default(),
            lose: 0,
            counters: CableCounters::default(),
            rng,
            free_at: 0,
            frames: VecDeque::new(),
            control: VecDeque::new(),
            leaks: BTreeMap::new(),
        }
    }

    /// When the next frame can start; if the wire is full of frames, when the first of them arrives.
    pub(crate) fn free_at(&self) -> Nanos {
        match self.frames.front() {
            Some(first) if self.frames.len() >= FRAMES_MAX => self.free_at.max(first.due),
            _ => self.free_at,
        }
    }

    /// Lets no frame start before then.
    pub(crate) fn hold(&mut self, until: Nanos) {
        self.free_at = self.free_at.max(until);
    }

    /// Puts a frame on its way, or gives it back if it is lost. `start` is when it begins to leave, `rate` in bits per
    /// second, 0 = no limit; `fate` comes from [`Self::draw`].
    pub(crate) fn enter(
        &mut self,
        mut flight: Flight,
        fate: Fate,
        start: Nanos,
        rate: u64,
        latency: Nanos,
    ) -> Option<Flight> {
        self.free_at = start.saturating_add(frame_time(flight.bytes.len(), rate));
        let latency = latency.saturating_add(self.faults.delay);
        // A shorter delay than a moment ago must not let frames overtake.
        let last = self.frames.back().map_or(0, |flight| flight.due);
        flight.due = self.free_at.saturating_add(latency).max(last);
        count(&mut self.counters.frames, 1);
        count(&mut self.counters.bytes, flight.bytes.len());
        match fate {
            Fate::Dropped(_) => {
                count(&mut self.counters.lost, 1);
                return Some(flight);
            }
            Fate::Corrupted | Fate::CorruptedSilently => {
                count(&mut self.counters.corrupted, 1);
                flight.crc_error = fate == Fate::Corrupted;
                flip(&mut flight.bytes, self.rng.next());
            }
            Fate::Duplicated => {
                count(&mut self.counters.duplicated, 1);
                self.frames.push_back(flight.clone());
                flight.reserved = None;
            }
            Fate::Passed => {}
        }
        self.frames.push_back(flight);
        None
    }

    /// What becomes of the next data frame.
    pub(crate) fn draw(&mut self) -> Fate {
        let faults = self.faults;
        if take(&mut self.lose) || self.rng.hit(faults.loss) {
            Fate::Dropped("injected loss")
        } else if self.rng.hit(faults.corrupt) {
            Fate::Corrupted
        } else if self.rng.hit(faults.corrupt_silently) {
            Fate::CorruptedSilently
        } else if self.rng.hit(faults.duplicate) {
            Fate::Duplicated
        } else {
            Fate::Passed
        }
    }

    /// Puts a control packet on its way.
    pub(crate) fn enter_control(&mut self, pdf: u8, words: Vec<u32>, now: Nanos, latency: Nanos) -> Fate {
        let faults = self.faults;
        let last = self.control.back().map_or(0, |flight| flight.due);
        let due = now
            .saturating_add(latency)
            .saturating_add(faults.control_delay)
            .max(last);
        let mut flight = ControlFlight {
            due,
            pdf,
            words,
            damage: None,
        };
        let counters = &mut self.counters;
        count(&mut counters.control, 1);
        let fate = if self.control.len() >= CONTROL_MAX {
            Fate::Dropped("too many control packets under way")
        } else if self.rng.hit(faults.control_loss) {
            Fate::Dropped("injected loss")
        } else if self.rng.hit(faults.control_corrupt) {
            count(&mut counters.control_corrupted, 1);
            flight.damage = Some(self.rng.next());
            Fate::Corrupted
        } else if self.rng.hit(faults.control_duplicate) {
            count(&mut counters.control_duplicated, 1);
            self.control.push_back(flight.clone());
            Fate::Duplicated
        } else {
            Fate::Passed
        };
        if let Fate::Dropped(_) = fate {
            count(&mut counters.control_lost, 1);
        } else {
            self.control.push_back(flight);
        }
        fate
    }

    /// The next frame that has arrived.
    pub(crate) fn arrived(&mut self, now: Nanos) -> Option<Flight> {
        self.frames.pop_front_if_due(now, |flight| flight.due)
    }

    /// The next control packet that has arrived.
    pub(crate) fn arrived_control(&mut self, now: Nanos) -> Option<ControlFlight> {
        self.control.pop_front_if_due(now, |flight| flight.due)
    }

    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let frame = self.frames.front().map(|flight| flight.due);
        frame
            .into_iter()
            .chain(self.control.front().map(|flight| flight.due))
            .min()
    }

    /// Frames of a path are under way.
    pub(crate) fn busy(&self, lane: u32, hop: u32) -> bool {
        self.frames
            .iter()
            .any(|flight| (flight.lane, flight.hop) == (lane, hop))
    }

    /// A frame was lost into a path that does not exist.
    pub(crate) fn leak(&mut self, hop: u32, len: usize) {
        let leaked = self.leaks.entry(hop).or_default();
        *leaked = leaked.saturating_add(packets(len));
    }

    /// So many were that the sender has no credits left.
    pub(crate) fn wedged(&self, hop: u32) -> bool {
        self.leaks.get(&hop).is_some_and(|&leaked| leaked >= CREDITS)
    }

    /// The link went down: everything under way is lost, and credits are as new. Returns the frames.
    pub(crate) fn cut(&mut self) -> VecDeque<Flight> {
        self.free_at = 0;
        self.leaks.clear();
        let control = core::mem::take(&mut self.control);
        let frames = core::mem::take(&mut self.frames);
        count(&mut self.counters.lost, frames.len());
        count(&mut self.counters.control_lost, control.len());
        frames
    }
}

/// Taking from the front of a queue what is due.
trait PopDue<T> {
    fn pop_front_if_due(&mut self, now: Nanos, due: impl Fn(&T) -> Nanos) -> Option<T>;
}

impl<T> PopDue<T> for VecDeque<T> {
    fn pop_front_if_due(&mut self, now: Nanos, due: impl Fn(&T) -> Nanos) -> Option<T> {
        if due(self.front()?) > now {
            None
        } else {
            self.pop_front()
        }
    }
}

/// Time a frame takes to leave, its packet headers included.
fn frame_time(len: usize, rate: u64) -> Nanos {
    let bytes = len.saturating_add(packets(len).saturating_mul(PACKET_HEADER)) as u64;
    let bits = bytes.saturating_mul(BITS_PER_BYTE);
    bits.saturating_mul(NANOS_PER_SECOND)
        .checked_div(rate)
        .unwrap_or(0)
}

/// Changes one bit.
pub(crate) fn flip(bytes: &mut [u8], random: u64) {
    let bits = (bytes.len() as u64).saturating_mul(BITS_PER_BYTE);
    let bit = random.checked_rem(bits).unwrap_or(0);
    let at = usize::try_from(bit / BITS_PER_BYTE).unwrap_or(0);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1u8.wrapping_shl(u32::try_from(bit % BITS_PER_BYTE).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::MILLION;

    const GBPS: u64 = 1_000_000_000;

    fn wire() -> Wire {
        Wire::new(Rng::new(1))
    }

    /// Lets a frame in as the fabric does.
    fn enter(wire: &mut Wire, flight: Flight, start: Nanos, rate: u64, latency: Nanos) -> Fate {
        let fate = wire.draw();
        wire.enter(flight, fate, start, rate, latency);
        fate
    }

    fn frame(len: usize) -> Flight {
        let bytes = vec![0; len];
        Flight {
            due: 0,
            hop: 8,
            lane: 0,
            sof: 1,
            eof: 2,
            bytes,
            crc_error: false,
            reserved: None,
        }
    }

    #[test]
    fn frames_take_their_time_and_queue_behind_one_another() {
        let mut wire = wire();
        // 252 bytes and a header are 2048 bits: 51.2 ns at 40 Gb/s.
        enter(&mut wire, frame(252), 100, 40 * GBPS, 1000);
        assert_eq!(wire.free_at(), 151);
        let next = wire.free_at();
        enter(&mut wire, frame(252), next, 40 * GBPS, 1000);
        assert_eq!(wire.arrived(1150), None);
        assert_eq!(wire.deadline(), Some(1151));
        assert!(wire.arrived(1151).is_some() && wire.arrived(1151).is_none() && wire.arrived(1202).is_some());
    }

    #[test]
    fn a_delay_taken_back_does_not_reorder() {
        let mut wire = wire();
        wire.faults.delay = 500;
        enter(&mut wire, frame(1), 0, 0, 0);
        wire.faults.delay = 0;
        enter(&mut wire, frame(2), 10, 0, 0);
        assert!(wire.arrived(499).is_none());
        assert_eq!(
            (
                wire.arrived(500).unwrap().bytes.len(),
                wire.arrived(500).unwrap().bytes.len()
            ),
            (1, 2)
        );
    }

    #[test]
    fn a_full_wire_makes_its_senders_wait_for_an_arrival() {
        let mut wire = wire();
        for _ in 0..FRAMES_MAX {
            assert_eq!(wire.free_at(), 0);
            enter(&mut wire, frame(1), 0, 0, 700);
        }
        assert_eq!(wire.free_at(), 700);
        wire.arrived(700);
        assert_eq!(wire.free_at(), 0);
    }

    #[test]
    fn faults_do_what_their_names_say() {
        let mut wire = wire();
        wire.lose = 1;
        assert!(matches!(enter(&mut wire, frame(4), 0, 0, 0), Fate::Dropped(_)));
        wire.faults.corrupt = MILLION;
        enter(&mut wire, frame(4), 0, 0, 0);
        let damaged = wire.arrived(0).unwrap();
        assert!(damaged.crc_error && damaged.bytes.iter().map(|byte| byte.count_ones()).sum::<u32>() == 1);
        wire.faults = CableFaults {
            duplicate: MILLION,
            ..CableFaults::default()
        };
        enter(
            &mut wire,
            Flight {
                reserved: Some(1),
                ..frame(4)
            },
            0,
            0,
            0,
        );
        let copies = (
            wire.arrived(0).unwrap().reserved,
            wire.arrived(0).unwrap().reserved,
        );
        assert_eq!(copies, (Some(1), None), "one buffer is kept, not two");
        assert_eq!(
            (
                wire.counters.lost,
                wire.counters.corrupted,
                wire.counters.duplicated
            ),
            (1, 1, 1)
        );
    }

    #[test]
    fn the_same_seed_loses_the_same_frames() {
        let lost = || {
            let mut wire = Wire::new(Rng::new(9));
            wire.faults.loss = MILLION / 3;
            (0..50)
                .map(|_| enter(&mut wire, frame(1), 0, 0, 0) == Fate::Passed)
                .collect::<Vec<_>>()
        };
        assert_eq!(lost(), lost());
        assert!(lost().contains(&true) && lost().contains(&false));
    }

    #[test]
    fn a_cut_loses_what_is_under_way_and_mends_a_wedge() {
        let mut wire = wire();
        enter(&mut wire, frame(1), 0, 0, 5);
        wire.enter_control(6, vec![0, 0], 0, 5);
        wire.leak(8, 4096);
        assert!(wire.wedged(8) && !wire.wedged(9));
        assert_eq!(wire.cut().len(), 1);
        assert!(!wire.wedged(8) && wire.deadline().is_none());
        assert_eq!((wire.counters.lost, wire.counters.control_lost), (1, 1));
    }
}
