//! How far a link has sent beyond its oldest unacknowledged frame.
//!
//! What is sent after a lost frame may all have to wait at the receiver for the frame to come again. A receiver parks
//! a limited number of chunks and drops the rest, which is loss that breeds loss: so the sender stays within that
//! number.
//!
//! Frames are acknowledged in any order. They are counted in rounds of an eighth of the limit, so that the oldest
//! unacknowledged frame is known to within one round.

/// Rounds; a power of two.
const ROUNDS: usize = 8;

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
}

impl Ahead {
    /// `limit`: chunks the peer parks.
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            rounds: [Round::default(); ROUNDS],
            first: 0,
            last: 0,
            chunks: 0,
            limit,
        }
    }

    /// Chunks that requests leave to responses.
    #[inline]
    pub(crate) fn reserve(&self) -> u32 {
        self.limit >> 3
    }

    /// Whether a frame of up to `chunks` more may be sent, and `reserve` stay free for others. The first always may.
    #[inline]
    pub(crate) fn has_room(&self, chunks: u32, reserve: u32) -> bool {
        self.chunks == 0 || self.chunks.saturating_add(chunks).saturating_add(reserve) <= self.limit
    }

    /// A frame of so many chunks is sent; returns its round.
    #[inline]
    pub(crate) fn sent(&mut self, chunks: u32) -> u8 {
        let full = self.round(self.last).chunks.saturating_add(chunks) > self.limit >> 3;
        let next = self.last.wrapping_add(1);
        if full && usize::from(next.wrapping_sub(self.first)) < ROUNDS && self.round(self.last).chunks != 0 {
            self.last = next;
            *self.round(next) = Round::default();
        }
        let round = self.round(self.last);
        round.open = round.open.wrapping_add(1);
        round.chunks = round.chunks.wrapping_add(chunks);
        self.chunks = self.chunks.wrapping_add(chunks);
        self.last
    }

    /// A frame of that round is acknowledged, or will never be sent again.
    #[inline]
    pub(crate) fn done(&mut self, round: u8) {
        let round = self.round(round);
        round.open = round.open.saturating_sub(1);
        while self.round(self.first).open == 0 && self.chunks != 0 {
            let chunks = core::mem::take(&mut self.round(self.first).chunks);
            self.chunks = self.chunks.wrapping_sub(chunks);
            if self.first == self.last {
                break;
            }
            self.first = self.first.wrapping_add(1);
        }
    }

    #[inline]
    fn round(&mut self, number: u8) -> &mut Round {
        let [r0, r1, r2, r3, r4, r5, r6, r7] = &mut self.rounds;
        match number & 7 {
            0 => r0,
            1 => r1,
            2 => r2,
            3 => r3,
            4 => r4,
            5 => r5,
            6 => r6,
            _ => r7,
        }
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
                if random(2) == 0 && ahead.has_room(16, 0) {
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
        assert!(ahead.has_room(16, 0));
        let round = ahead.sent(16);
        assert!(!ahead.has_room(1, 0));
        ahead.done(round);
        assert!(ahead.has_room(16, 0));
    }
}
