//! Point-to-point operations: the parts of one message that go over one channel.

use super::layout::p2p;
use super::place::Place;
use super::transfer::Part;

/// One direction of a work item on one channel.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) send: bool,
    /// The other rank.
    pub(crate) peer: usize,
    /// It goes over LL.
    pub(crate) ll: bool,
    buffer: Place,
    /// Bytes of the part that this channel has.
    at: usize,
    end: usize,
    chunk: usize,
    begun: bool,
}

impl Message {
    /// The messages of a work item that `channel` has a part of.
    pub(crate) fn read(work: Place, channel: usize) -> Vec<Message> {
        let direction = |send| {
            let [rank, bytes, address, channels, chunk] = if send {
                [
                    p2p::SEND_RANK,
                    p2p::SEND_BYTES,
                    p2p::SEND_ADDRESS,
                    p2p::SEND_CHANNELS,
                    p2p::SEND_CHUNK,
                ]
            } else {
                [
                    p2p::RECEIVE_RANK,
                    p2p::RECEIVE_BYTES,
                    p2p::RECEIVE_ADDRESS,
                    p2p::RECEIVE_CHANNELS,
                    p2p::RECEIVE_CHUNK,
                ]
            };
            let peer = usize::try_from(work.i32(rank)).ok()?;
            let part = part(
                usize::from(work.u8(p2p::CHANNELS)),
                usize::from(work.u8(p2p::CHANNEL_BASE)),
                channel,
            );
            let parts = usize::from(work.u8(channels));
            if part >= parts {
                return None;
            }
            let (at, end) = bounds(parts, part, work.size(bytes));
            let flag = if send { p2p::SEND_LL } else { p2p::RECEIVE_LL };
            Some(Message {
                send,
                peer,
                ll: work.u8(p2p::FLAGS) & flag != 0,
                buffer: work.place(address),
                at,
                end,
                chunk: decode(work.u8(chunk)),
                begun: false,
            })
        };
        [true, false].into_iter().filter_map(direction).collect()
    }

    /// Where the message's bytes on this channel begin, and how many there are.
    pub(crate) fn span(&self) -> (Place, usize) {
        (self.buffer.at(self.at), self.end - self.at)
    }

    /// The next chunk. An empty message is one empty chunk.
    pub(crate) fn next(&mut self) -> Option<Part> {
        if self.begun && self.at == self.end {
            return None;
        }
        let len = self.chunk.min(self.end - self.at);
        let place = Some(self.buffer.at(self.at));
        self.at += len;
        self.begun = true;
        Some(Part {
            receive: !self.send,
            input: place.filter(|_| self.send),
            output: place.filter(|_| !self.send),
            send: self.send,
            len,
        })
    }
}

/// Which part of a message `channel` has: parts go to channels from `base` on in bit-reversed order.
fn part(channels: usize, base: usize, channel: usize) -> usize {
    if channels <= 1 {
        return if channel == base { 0 } else { usize::MAX };
    }
    let distance = channel.wrapping_sub(base) & (channels - 1);
    distance.reverse_bits() >> (usize::BITS - channels.trailing_zeros())
}

/// Begin and end of a part: equal shares of whole pages, the last ones shorter.
fn bounds(parts: usize, part: usize, bytes: usize) -> (usize, usize) {
    let share = bytes.div_ceil(parts.max(1)).next_multiple_of(4096);
    ((part * share).min(bytes), ((part + 1) * share).min(bytes))
}

/// A size as a floating-point number of 3 bits of mantissa and 5 of exponent.
fn decode(code: u8) -> usize {
    let (exponent, mantissa) = (code >> 3, usize::from(code & 7));
    match exponent.checked_sub(1) {
        None => mantissa,
        Some(exponent) => (mantissa | 8) << exponent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_floating_point_numbers() {
        assert_eq!(decode(0), 0);
        assert_eq!(decode(7), 7);
        assert_eq!(decode(15 << 3), 131_072);
        assert_eq!(decode(15 << 3 | 4), 196_608);
    }

    #[test]
    fn every_byte_is_in_one_part() {
        for (parts, bytes) in [(1, 0), (1, 5), (2, 4096), (2, 100_000), (4, 5000)] {
            let mut at = 0;
            for part in 0..parts {
                let (begin, end) = bounds(parts, part, bytes);
                assert_eq!(begin, at);
                at = end;
            }
            assert_eq!(at, bytes);
        }
    }

    #[test]
    fn every_part_has_a_channel() {
        let parts: Vec<usize> = (0..4).map(|channel| part(4, 1, channel)).collect();
        assert_eq!(parts, [3, 0, 2, 1]);
        assert_eq!(part(1, 3, 3), 0);
    }
}
