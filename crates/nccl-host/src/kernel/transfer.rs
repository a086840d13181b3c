//! One part of an operation: receive, add, keep and send, over either protocol, as far as slots allow.

use super::combine::{Element, combine};
use super::fifo::{Receiver, Sender};
use super::place::Place;
use super::{Progress, Protocol};
use std::sync::atomic::{AtomicU64, Ordering};

/// What is to be done with some bytes. What was received is added to `input` where both are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) receive: bool,
    pub(crate) input: Option<Place>,
    pub(crate) output: Option<Place>,
    pub(crate) send: bool,
    pub(crate) len: usize,
}

/// The connections that parts go over.
pub(crate) struct Ends {
    pub(crate) receiver: Option<Receiver>,
    pub(crate) sender: Option<Sender>,
}

/// A part on its way.
pub(crate) struct Transfer {
    part: Part,
    /// Bytes done.
    done: usize,
    /// Slices done, Simple only.
    slice: u32,
    /// The slot to be filled, LL only.
    lines: Option<Place>,
}

impl Transfer {
    pub(crate) fn new(part: Part) -> Transfer {
        Transfer {
            part,
            done: 0,
            slice: 0,
            lines: None,
        }
    }

    /// Does what can be done now.
    pub(crate) fn step(&mut self, ends: &mut Ends, protocol: Protocol, element: Element) -> Progress {
        match protocol {
            Protocol::Simple { slices, steps } => self.simple(ends, element, slices, steps),
            Protocol::Ll => self.ll(ends, element),
        }
    }

    /// One slice. The part is cut into `slices`, of which each takes `steps` slots, also where nothing is left for it.
    fn simple(&mut self, ends: &mut Ends, element: Element, slices: u32, steps: u64) -> Progress {
        let part = self.part;
        let from = match (part.receive, &ends.receiver) {
            (true, Some(receiver)) => match receiver.slot(steps) {
                None => return Progress::Stuck,
                slot => slot,
            },
            _ => None,
        };
        let to = match (part.send, &ends.sender) {
            (true, Some(sender)) => match sender.slot(steps) {
                None => return Progress::Stuck,
                slot => slot,
            },
            _ => None,
        };
        let most = part.len.div_ceil(slices as usize).next_multiple_of(16);
        let len = most.min(part.len - self.done);
        let at = |place: Option<Place>| place.map(|place| place.at(self.done).bytes());
        // SAFETY: slots hold a slice, the user's buffers the whole part, which is whole elements.
        unsafe {
            combine(
                element,
                from.map(|slot| slot.bytes().cast_const()),
                at(part.input).map(<*mut u8>::cast_const),
                [at(part.output), to.map(Place::bytes)],
                len,
            );
        }
        if let (Some(_), Some(receiver)) = (from, &mut ends.receiver) {
            receiver.advance(steps);
        }
        if let (Some(_), Some(sender)) = (to, &mut ends.sender) {
            sender.size(len);
            sender.advance(steps, true);
        }
        self.done += len;
        self.slice += 1;
        if self.slice == slices {
            Progress::Done
        } else {
            Progress::Moved
        }
    }

    /// The lines that are there, up to a batch. A part takes one slot.
    fn ll(&mut self, ends: &mut Ends, element: Element) -> Progress {
        let part = self.part;
        let sends = part.send && ends.sender.is_some();
        if sends && self.lines.is_none() {
            let Some(sender) = &ends.sender else {
                return Progress::Stuck;
            };
            let Some(slot) = sender.slot(1) else {
                return Progress::Stuck;
            };
            sender.size(part.len.div_ceil(DATA) * LINE);
            self.lines = Some(slot);
        }
        let mut data = [0; BATCH * DATA];
        let mut len = data.len().min(part.len - self.done);
        let first = self.done / DATA;
        if part.receive
            && let Some(receiver) = &ends.receiver
        {
            let came = read_lines(receiver.lines().at(first * LINE), receiver.flag(), &mut data, len);
            len = len.min(came * DATA);
            if len == 0 && part.len > self.done {
                return Progress::Stuck;
            }
        }
        let at = |place: Option<Place>| place.map(|place| place.at(self.done).bytes());
        let mut out = [0; BATCH * DATA];
        // SAFETY: the batches have BATCH lines, the user's buffers the whole part, which is whole elements.
        unsafe {
            combine(
                element,
                part.receive.then_some(data.as_ptr()),
                at(part.input).map(<*mut u8>::cast_const),
                [at(part.output), sends.then_some(out.as_mut_ptr())],
                len,
            );
        }
        if let (true, Some(slot), Some(sender)) = (sends, self.lines, &ends.sender) {
            write_lines(slot.at(first * LINE), sender.flag(), &out, len);
        }
        self.done += len;
        if self.done < part.len {
            return Progress::Moved;
        }
        if part.receive
            && let Some(receiver) = &mut ends.receiver
        {
            receiver.advance(1);
        }
        if sends && let Some(sender) = &mut ends.sender {
            sender.advance(1, false);
        }
        Progress::Done
    }
}

/// An LL line: 4 bytes of data, a flag, 4 bytes of data, the flag again.
const LINE: usize = 16;
/// Data in a line.
const DATA: usize = 8;
/// Lines handled at once.
const BATCH: usize = 512;

fn word(place: Place) -> &'static AtomicU64 {
    // SAFETY: an aligned word of a slot, which stays mapped while the kernel runs and is accessed by whole words.
    unsafe { AtomicU64::from_ptr(place.bytes().cast()) }
}

/// Copies the data of the lines that carry `flag`, of the first `len` bytes; returns how many lines.
fn read_lines(lines: Place, flag: u32, data: &mut [u8; BATCH * DATA], len: usize) -> usize {
    for (line, pair) in data.chunks_exact_mut(DATA).enumerate().take(len.div_ceil(DATA)) {
        for (half, chunk) in pair.chunks_exact_mut(4).enumerate() {
            // Data and flag come in one word: by the time the flag is there, so is the data in front of it.
            let value = word(lines.at(line * LINE + half * 8)).load(Ordering::Acquire);
            if value >> 32 != u64::from(flag) {
                return line;
            }
            chunk.copy_from_slice(value.to_le_bytes().get(..4).unwrap_or_default());
        }
    }
    len.div_ceil(DATA)
}

/// Writes the first `len` bytes of `data` as lines.
fn write_lines(lines: Place, flag: u32, data: &[u8; BATCH * DATA], len: usize) {
    for (line, pair) in data.chunks_exact(DATA).enumerate().take(len.div_ceil(DATA)) {
        for (half, chunk) in pair.chunks_exact(4).enumerate() {
            let data = chunk.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            let value = u64::from(flag) << 32 | u64::from(data);
            word(lines.at(line * LINE + half * 8)).store(value, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_carry_their_data_and_only_those_that_came_are_read() {
        let mut slot = [0_u64; 2 * 8];
        // SAFETY: the slot has eight lines and outlives what reads and writes them.
        let place = unsafe { Place::new(slot.as_mut_ptr().cast()) };
        let mut data = [0; BATCH * DATA];
        data[..20].copy_from_slice(b"twenty bytes of data");
        write_lines(place, 7, &data, 20);
        let mut back = [0; BATCH * DATA];
        assert_eq!(read_lines(place, 7, &mut back, 20), 3);
        assert_eq!(back[..20], data[..20]);
        assert_eq!(read_lines(place, 7, &mut back, 40), 3);
        assert_eq!(read_lines(place, 8, &mut back, 20), 0);
    }
}
