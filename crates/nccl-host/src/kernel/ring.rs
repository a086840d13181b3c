//! Ring algorithms of the collectives, each as the parts that one rank does on one channel.

use super::layout::{Layout, channel, collective, comm};
use super::place::Place;
use super::transfer::Part;
use super::{Protocol, unsupported};

/// A collective whose ring algorithm is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
}

impl Collective {
    pub(crate) fn named(name: &str) -> Option<Collective> {
        Some(match name {
            "AllReduce" => Collective::AllReduce,
            "AllGather" => Collective::AllGather,
            "ReduceScatter" => Collective::ReduceScatter,
            "Broadcast" => Collective::Broadcast,
            _ => return None,
        })
    }
}

/// What one rank has to do for a collective on one channel. Counts and offsets are elements.
#[derive(Debug)]
pub(crate) struct Ring {
    what: Collective,
    element: usize,
    /// Ranks of the communicator.
    ranks: usize,
    /// This rank's place in the ring.
    index: usize,
    /// Ranks in the order of the ring, from this one on.
    order: Vec<usize>,
    root: usize,
    input: Place,
    output: Place,
    /// Elements of a rank's share in AllGather and ReduceScatter.
    total: usize,
    /// Where this channel's elements begin.
    offset: usize,
    /// How many it has.
    count: usize,
    /// How many of them a part has at most.
    chunk: usize,
    /// Elements begun.
    at: usize,
    /// Parts done of the current round.
    part: usize,
}

impl Ring {
    /// Reads a work item. `None` if the channel has no share in it.
    pub(crate) fn read(
        what: Collective,
        element: usize,
        protocol: Protocol,
        comm_place: Place,
        channel: (usize, Place),
        work: Place,
        layout: &Layout,
    ) -> Option<Ring> {
        let (id, place) = channel;
        let (first, last) = (
            usize::from(work.u8(collective::FIRST_CHANNEL)),
            usize::from(work.u8(collective::LAST_CHANNEL)),
        );
        if id < first || id > last {
            return None;
        }
        let shares = work.at(layout.by_channel);
        let [low, middle, high] = [0, 8, 16].map(|at| shares.size(collective::COUNTS + at));
        let middles = (last - first).saturating_sub(1);
        let chunks = shares.u64(collective::CHUNKS);
        let bits = collective::CHUNK_BITS;
        let (offset, count, shift) = if id == first {
            (0, low, 0)
        } else if id == last {
            (low + middles * middle, high, 2 * bits)
        } else {
            (low + (id - first - 1) * middle, middle, bits)
        };
        let grains = usize::try_from((chunks >> shift) & ((1 << bits) - 1)).unwrap_or(0);
        let grain = match protocol {
            Protocol::Ll => collective::LL_GRAIN,
            Protocol::Simple { .. } => collective::SIMPLE_GRAIN,
        };
        let total = if first == last {
            low
        } else {
            low + middles * middle + high
        };
        let ranks = comm_place.u32(comm::RANKS) as usize;
        let ring = Ring {
            what,
            element,
            ranks,
            index: place.u32(layout.ring_index) as usize,
            order: order(comm_place, place, ranks),
            root: work.u32(collective::ROOT) as usize,
            input: work.place(layout.send_buffer),
            output: work.place(layout.receive_buffer),
            total,
            offset,
            count,
            chunk: grains * grain / element,
            at: 0,
            part: 0,
        };
        if ring.chunk == 0 || ring.index >= ranks {
            unsupported("a work item that does not make sense, so its layout must be another");
        }
        Some(ring)
    }

    /// Whether this rank receives or sends anything at all.
    pub(crate) fn uses(&self) -> (bool, bool) {
        match self.what {
            Collective::Broadcast => (
                self.order.first() != Some(&self.root),
                self.order.get(1) != Some(&self.root),
            ),
            _ => (true, true),
        }
    }

    /// The next part, until the channel's share is done.
    pub(crate) fn next(&mut self) -> Option<Part> {
        let left = self.count.checked_sub(self.at).filter(|left| *left > 0)?;
        let (part, parts, round) = match self.what {
            Collective::AllReduce => self.all_reduce(left),
            Collective::AllGather => self.all_gather(left),
            Collective::ReduceScatter => self.reduce_scatter(left),
            Collective::Broadcast => self.broadcast(left),
        };
        self.part += 1;
        if self.part == parts {
            self.part = 0;
            self.at += round;
        }
        Some(part)
    }

    /// The part, how many a round has, and the elements of a round.
    fn all_reduce(&self, left: usize) -> (Part, usize, usize) {
        let (n, j) = (self.ranks, self.part);
        let round = n * self.chunk;
        // The last round shares out what is left, in units of 16 bytes.
        let chunk = if left < round {
            left.div_ceil(n).next_multiple_of((16 / self.element).max(1))
        } else {
            self.chunk
        };
        let begin = ((self.index + 2 * n - 1 - j) % n) * chunk;
        let len = left.saturating_sub(begin).min(chunk);
        let at = self.offset + self.at + begin;
        let (input, output) = (self.place(self.input, at), self.place(self.output, at));
        let part = self.made(
            j > 0,
            (j < n).then_some(input),
            (j + 1 >= n).then_some(output),
            j < 2 * n - 2,
            len,
        );
        (part, 2 * n - 1, round)
    }

    fn all_gather(&self, left: usize) -> (Part, usize, usize) {
        let (n, j) = (self.ranks, self.part);
        let len = left.min(self.chunk);
        let at = self.offset + self.at;
        let of = self.rank((n - j) % n);
        let output = self.place(self.output, of * self.total + at);
        let input = (j == 0).then(|| self.place(self.input, at));
        (
            self.made(j > 0, input, Some(output), j + 1 < n, len),
            n,
            self.chunk,
        )
    }

    fn reduce_scatter(&self, left: usize) -> (Part, usize, usize) {
        let (n, j) = (self.ranks, self.part);
        let len = left.min(self.chunk);
        let at = self.offset + self.at;
        let input = self.place(self.input, self.rank(n - 1 - j) * self.total + at);
        let output = (j + 1 == n).then(|| self.place(self.output, at));
        (
            self.made(j > 0, Some(input), output, j + 1 < n, len),
            n,
            self.chunk,
        )
    }

    fn broadcast(&self, left: usize) -> (Part, usize, usize) {
        let len = left.min(self.chunk);
        let at = self.offset + self.at;
        let (receives, sends) = self.uses();
        let input = (!receives).then(|| self.place(self.input, at));
        let output = Some(self.place(self.output, at));
        (self.made(receives, input, output, sends, len), 1, self.chunk)
    }

    fn made(
        &self,
        receive: bool,
        input: Option<Place>,
        output: Option<Place>,
        send: bool,
        len: usize,
    ) -> Part {
        Part {
            receive,
            input,
            output,
            send,
            len: len * self.element,
        }
    }

    fn place(&self, buffer: Place, at: usize) -> Place {
        buffer.at(at * self.element)
    }

    fn rank(&self, at: usize) -> usize {
        self.order.get(at).copied().unwrap_or(0)
    }
}

/// The ranks in the order of the ring, checked against the neighbours that the channel names.
fn order(comm_place: Place, place: Place, ranks: usize) -> Vec<usize> {
    let list = place.place(channel::RING_RANKS);
    let order: Vec<usize> = (0..ranks).map(|at| list.u32(4 * at) as usize).collect();
    let neighbours = [
        comm_place.u32(comm::RANK),
        place.u32(channel::RING_NEXT),
        place.u32(channel::RING_PREVIOUS),
    ];
    let listed = [order.first(), order.get(1), order.last()];
    if !neighbours
        .iter()
        .zip(listed)
        .all(|(wanted, rank)| rank == Some(&(*wanted as usize)))
    {
        unsupported("a ring whose order does not fit its neighbours, so its layout must be another");
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::combine::{Element, combine};
    use super::*;
    use std::collections::VecDeque;

    /// Runs a collective on `n` ranks whose rings are queues of parts in memory.
    fn run(
        what: Collective,
        n: usize,
        count: usize,
        chunk: usize,
        input: usize,
        output: usize,
    ) -> Vec<Vec<u32>> {
        let mut inputs: Vec<Vec<u32>> = (0..n)
            .map(|rank| {
                (0..input)
                    .map(|at| u32::try_from(rank * 1000 + at).unwrap())
                    .collect()
            })
            .collect();
        let mut outputs = vec![vec![0_u32; output]; n];
        let mut rings: Vec<Ring> = (0..n)
            .map(|rank| Ring {
                what,
                element: 4,
                ranks: n,
                index: rank,
                order: (0..n).map(|at| (rank + at) % n).collect(),
                root: 1,
                // SAFETY: the buffers outlive the rings.
                input: unsafe { Place::new(inputs[rank].as_mut_ptr().cast()) },
                // SAFETY: as above.
                output: unsafe { Place::new(outputs[rank].as_mut_ptr().cast()) },
                total: count,
                offset: 0,
                count,
                chunk,
                at: 0,
                part: 0,
            })
            .collect();
        let mut wires = vec![VecDeque::<Vec<u8>>::new(); n];
        let mut next: Vec<Option<Part>> = rings.iter_mut().map(Ring::next).collect();
        while next.iter().any(Option::is_some) {
            let mut moved = false;
            for rank in 0..n {
                let Some(part) = next[rank] else { continue };
                let received = match part.receive {
                    true => match wires[(rank + n - 1) % n].pop_front() {
                        Some(bytes) => Some(bytes),
                        None => continue,
                    },
                    false => None,
                };
                if let Some(bytes) = &received {
                    assert_eq!(bytes.len(), part.len, "both sides cut alike");
                }
                let mut sent = vec![0; part.len];
                // SAFETY: parts lie within the buffers.
                unsafe {
                    combine(
                        Element::U32,
                        received.as_ref().map(|bytes| bytes.as_ptr()),
                        part.input.map(|place| place.bytes().cast_const()),
                        [part.output.map(Place::bytes), Some(sent.as_mut_ptr())],
                        part.len,
                    );
                }
                if part.send {
                    wires[rank].push_back(sent);
                }
                next[rank] = rings[rank].next();
                moved = true;
            }
            assert!(moved, "the ring is stuck");
        }
        assert!(
            wires.iter().all(VecDeque::is_empty),
            "all that was sent was received"
        );
        outputs
    }

    fn sum(n: usize, at: usize) -> u32 {
        (0..n).map(|rank| u32::try_from(rank * 1000 + at).unwrap()).sum()
    }

    #[test]
    fn every_rank_has_the_sum() {
        for (n, count) in [(2, 1), (2, 64), (3, 100), (4, 3), (4, 131)] {
            let outputs = run(Collective::AllReduce, n, count, 8, count, count);
            let wanted: Vec<u32> = (0..count).map(|at| sum(n, at)).collect();
            assert!(outputs.iter().all(|output| *output == wanted), "{n} {count}");
        }
    }

    #[test]
    fn every_rank_has_everybodys_part() {
        for n in [2, 3, 4] {
            let outputs = run(Collective::AllGather, n, 21, 8, 21, 21 * n);
            let wanted: Vec<u32> = (0..21 * n)
                .map(|at| u32::try_from(at / 21 * 1000 + at % 21).unwrap())
                .collect();
            assert!(outputs.iter().all(|output| *output == wanted), "{n}");
        }
    }

    #[test]
    fn every_rank_has_its_part_of_the_sum() {
        for n in [2, 3, 4] {
            let outputs = run(Collective::ReduceScatter, n, 21, 8, 21 * n, 21);
            for (rank, output) in outputs.iter().enumerate() {
                let wanted: Vec<u32> = (0..21).map(|at| sum(n, rank * 21 + at)).collect();
                assert_eq!(*output, wanted, "{n} {rank}");
            }
        }
    }

    #[test]
    fn every_rank_has_what_the_root_had() {
        for n in [2, 3, 4] {
            let outputs = run(Collective::Broadcast, n, 21, 8, 21, 21);
            let wanted: Vec<u32> = (1000..1021).collect();
            assert!(outputs.iter().all(|output| *output == wanted), "{n}");
        }
    }
}
