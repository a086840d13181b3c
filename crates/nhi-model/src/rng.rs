//! The only source of chance: everything random in a fabric comes from its seed.

/// SplitMix64 (Steele, Lea, Flood 2014): small, quick, and any seed is a good one.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

/// Parts in a whole, for rates in parts per million.
pub(crate) const MILLION: u32 = 1_000_000;

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent generator for one concern, so that drawing more numbers for one does not shift another.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = self.0;
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `n` (0 if `n` is 0).
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next().checked_rem(n).unwrap_or(0)
    }

    /// True in `ppm` of a million cases; draws nothing when that is 0.
    pub(crate) fn hit(&mut self, ppm: u32) -> bool {
        ppm != 0 && self.below(u64::from(MILLION)) < u64::from(ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.next() == b.next()));
    }

    #[test]
    fn a_rate_is_met_and_its_ends_are_certain() {
        let mut rng = Rng::new(1);
        let hits = (0..100_000).filter(|_| rng.hit(100_000)).count();
        assert!((9_500..10_500).contains(&hits), "{hits}");
        assert!((0..1_000).all(|_| rng.hit(MILLION) && !rng.hit(0)));
    }
}
