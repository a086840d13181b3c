//! How far a link has sent beyond its oldest unacknowledged frame.
//!
//! What is sent after a lost frame may all have to wait at the receiver for the frame to come again. A receiver parks
//! a limited number of chunks and drops the rest, which is loss that breeds loss: so the sender stays within that
//! number.
//!
//! Frames are acknowledged in any order. They are counted in rounds of an eighth of the limit, so that the oldest
//! unacknowledged frame is known to within one round.

use crate::MAX_CHUNKS;

/// Most chunks of a frame.
#[expect(clippy::cast_possible_truncation, reason = "16")]
const FRAME_CHUNKS: u32 = MAX_CHUNKS as u32;

/// Rounds; a power of two.
const ROUNDS: usize = 8;
const ROUND_MASK: u8 = 7;
const _: () = assert!(ROUND_MASK as usize == ROUNDS - 1);

/// Frames and chunks of one round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Frames that are not acknowledged.
    open: u32,
    /// Chunks in all of its frames.
    chunks: u32,
}

/// Chunks sent since the oldest unacknowledged frame, that frame's included.
#[derive(Debug)]
pub(crate) struct Ahead {
    rounds: [Round; ROUNDS],
    /// The oldest round, counted on for ever.
    first: u8,
    /// The newest round.
    last: u8,
    /// Chunks of all rounds from `first` to `last`.
    chunks: u32,
    limit: u32,
    /// With more chunks than that, no frame with requests is sent; they leave an eighth to responses.
    requests: u32,
    /// With more chunks than that, no frame with responses is sent.
    responses: u32,
}

impl Ahead {
    /// `limit`: chunks the peer parks.
    pub(crate) fn new(limit: u32) -> Self {
        let responses = limit.saturating_sub(FRAME_CHUNKS);
        Self {
            rounds: [Round::default(); ROUNDS],
            first: 0,
            last: 0,
            chunks: 0,
            limit,
            requests: responses.saturating_sub(limit >> 3),
            responses,
        }
    }

    /// Whether another frame with requests may be sent, however many chunks it has. The first always may.
    #[inline]
    pub(crate) fn may_request(&self) -> bool {
        self.chunks <= self.requests
    }

    /// Whether another frame with responses may be sent.
    #[inline]
    pub(crate) fn may_respond(&self) -> bool {
        self.chunks <= self.responses
    }

    /// A frame of so many chunks is sent; returns its round.
    #[inline(always)]
    pub(crate) fn sent(&mut self, chunks: u32) -> u8 {
        self.chunks = self.chunks.wrapping_add(chunks);
        let number = self.last;
        let share = self.limit >> 3;
        if let Some(round) = self.round(number) {
            let sum = round.chunks.wrapping_add(chunks);
            if sum <= share {
                round.open = round.open.wrapping_add(1);
                round.chunks = sum;
                return number;
            }
        }
        self.sent_beyond(chunks)
    }

    /// The newest round is full: the frame goes to the next, if there is one and it is not the first of its own.
    #[inline(never)]
    fn sent_beyond(&mut self, chunks: u32) -> u8 {
        let next = self.last.wrapping_add(1);
        let left = usize::from(next.wrapping_sub(self.first)) < ROUNDS;
        if left && self.round(self.last).is_some_and(|round| round.chunks != 0) {
            self.last = next;
            if let Some(round) = self.round(next) {
                *round = Round::default();
            }
        }
        if let Some(round) = self.round(self.last) {
            round.open = round.open.wrapping_add(1);
            round.chunks = round.chunks.wrapping_add(chunks);
        }
        self.last
    }

    /// A frame of that round is acknowledged, or will never be sent again.
    #[inline]
    pub(crate) fn done(&mut self, number: u8) {
        let (first, last) = (self.first, self.last);
        if let Some(round) = self.round(number) {
            round.open = round.open.saturating_sub(1);
            // Any other round has one before it that is open.
            if round.open == 0 && (number ^ first) & ROUND_MASK == 0 {
                if first == last {
                    round.chunks = 0;
                    self.chunks = 0;
                } else {
                    self.close_rounds();
                }
            }
        }
    }

    /// Ends the oldest rounds, which have no frames left.
    #[inline(never)]
    fn close_rounds(&mut self) {
        while self.chunks != 0 {
            let chunks = match self.round(self.first) {
                Some(round) if round.open == 0 => core::mem::take(&mut round.chunks),
                _ => break,
            };
            self.chunks = self.chunks.wrapping_sub(chunks);
            if self.first == self.last {
                break;
            }
            self.first = self.first.wrapping_add(1);
        }
    }

    /// There is one for every number: the compiler sees that and drops the comparison.
    #[inline(always)]
    fn round(&mut self, number: u8) -> Option<&mut Round> {
        self.rounds.get_mut(usize::from(number & ROUND_MASK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Against an account of every frame.
    #[test]
    fn the_span_is_never_below_the_truth_and_little_above() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for limit in [16u32, 64, 1000, 1024] {
            let mut ahead = Ahead::new(limit);
            // Frames in order of sending: chunks, round, acknowledged.
            let mut frames: VecDeque<(u32, u8, bool)> = VecDeque::new();
            for _ in 0..200_000 {
                while frames.front().is_some_and(|frame| frame.2) {
                    frames.pop_front();
                }
                let truth: u32 = frames.iter().map(|frame| frame.0).sum();
                assert!(ahead.chunks >= truth, "{} < {truth}", ahead.chunks);
                // The newest round takes what the others have no room for, so it may be two eighths.
                assert!(
                    ahead.chunks <= truth + (limit >> 2) + 16,
                    "{} > {truth}",
                    ahead.chunks
                );
                if random(2) == 0 && ahead.may_respond() {
                    let chunks = 1 + random(16) as u32;
                    frames.push_back((chunks, ahead.sent(chunks), false));
                    assert!(ahead.chunks <= limit.max(16));
                } else if !frames.is_empty() {
                    let at = random(frames.len() as u64) as usize;
                    if !core::mem::replace(&mut frames[at].2, true) {
                        ahead.done(frames[at].1);
                    }
                }
            }
            for frame in frames.iter().filter(|frame| !frame.2) {
                ahead.done(frame.1);
            }
            assert_eq!(ahead.chunks, 0);
        }
    }

    #[test]
    fn one_frame_may_always_go() {
        let mut ahead = Ahead::new(4);
        assert!(ahead.may_respond());
        let round = ahead.sent(16);
        assert!(!ahead.may_respond());
        ahead.done(round);
        assert!(ahead.may_respond());
    }
}
