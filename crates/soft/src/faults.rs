//! Faults on purpose: what a real cable does to frames now and then, for tests of what is above.
//!
//! Each side spoils what arrives. A damaged frame has one bit of its head flipped, which the head's CRC finds; damaged
//! payload never gets this far on a real cable, since the ring's own CRC drops the frame. So `corrupt` of the whole
//! frame is `loss`.

use std::time::Duration;

use usb4_engine::Nanos;

use crate::Error;

/// Names what is to go wrong on the cables to other processes: comma-separated `loss=P`, `corrupt=P` (probabilities
/// per frame), `stall=LENGTH/PERIOD` (milliseconds), `cut=FRAMES` and `seed=N`.
pub const FAULTS_VARIABLE: &str = "USB4_SOFT_FAULTS";

/// What is to go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Probability that a frame is lost, in units of 2^-64.
    loss: u64,
    /// That a bit of its head is flipped.
    corrupt: u64,
    /// For so long of every so long nothing is taken off the cable.
    stall: Option<(Nanos, Nanos)>,
    /// After so many frames the cable breaks.
    cut: Option<u64>,
    seed: u64,
}

impl Plan {
    /// What [`FAULTS_VARIABLE`] says.
    pub(crate) fn from_environment() -> Result<Option<Self>, Error> {
        match std::env::var_os(FAULTS_VARIABLE).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => {
                let text = text.to_string_lossy();
                Self::parse(&text)
                    .map(Some)
                    .ok_or_else(|| Error::BadFaults(text.into_owned()))
            }
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut plan = Self::default();
        for part in text.split(',') {
            let (name, value) = part.trim().split_once('=')?;
            match name {
                "loss" => plan.loss = probability(value)?,
                "corrupt" => plan.corrupt = probability(value)?,
                "stall" => {
                    let (length, period) = value.split_once('/')?;
                    let (length, period) = (millis(length)?, millis(period)?);
                    if length == 0 || length >= period {
                        return None;
                    }
                    plan.stall = Some((length, period));
                }
                "cut" => plan.cut = Some(value.parse().ok()?),
                "seed" => plan.seed = value.parse().ok()?,
                _ => return None,
            }
        }
        Some(plan)
    }
}

/// A probability in units of 2^-64.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float to an integer saturates, and this one is not negative"
)]
fn probability(text: &str) -> Option<u64> {
    let value: f64 = text.parse().ok()?;
    (0.0..=1.0)
        .contains(&value)
        .then(|| (value * 2_f64.powi(64)) as u64)
}

fn millis(text: &str) -> Option<Nanos> {
    let time = Duration::from_millis(text.parse().ok()?);
    Nanos::try_from(time.as_nanos()).ok()
}

/// What happens to a cable at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Frames are taken off it.
    Works,
    /// They wait.
    Stalls,
    /// It is broken.
    Cut,
}

/// The faults of one cable, in one direction.
#[derive(Debug)]
pub(crate) struct Faults {
    plan: Plan,
    joined: Nanos,
    /// Frames that have arrived.
    frames: u64,
    random: u64,
}

impl Faults {
    /// Those of a cable joined at `joined` to the peer that is called `peer`.
    pub(crate) fn new(plan: Plan, joined: Nanos, peer: u64) -> Self {
        Self {
            plan,
            joined,
            frames: 0,
            random: plan.seed ^ peer,
        }
    }

    /// What the cable does at this time.
    pub(crate) fn state(&self, time: Nanos) -> State {
        if self.plan.cut.is_some_and(|after| self.frames >= after) {
            return State::Cut;
        }
        let age = time.saturating_sub(self.joined);
        match self.plan.stall {
            // At the end of each period: the first thing a cable does is to work.
            Some((length, period)) if age % period >= period - length => State::Stalls,
            _ => State::Works,
        }
    }

    /// Does to a frame, of which this is the head, what is its lot: false if it is lost.
    pub(crate) fn pass(&mut self, head: &mut [u8]) -> bool {
        self.frames = self.frames.saturating_add(1);
        if self.draw() < self.plan.loss {
            return false;
        }
        if self.draw() < self.plan.corrupt && !head.is_empty() {
            let bit = self.draw() % (head.len() as u64 * 8);
            if let Some(byte) = usize::try_from(bit / 8).ok().and_then(|at| head.get_mut(at)) {
                *byte ^= 1 << (bit % 8);
            }
        }
        true
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn a_plan_is_read_and_nonsense_refused() {
        let plan = Plan::parse("loss=0.5, corrupt=1e-3,stall=200/2000,cut=5000,seed=7").unwrap();
        assert_eq!(plan.loss, 1 << 63);
        assert_eq!(plan.stall, Some((200 * MS, 2000 * MS)));
        assert_eq!((plan.cut, plan.seed), (Some(5000), 7));
        for text in [
            "loss",
            "loss=",
            "loss=2",
            "loss=-1",
            "loss=nan",
            "stall=5",
            "stall=5/5",
            "stall=0/5",
            "lost=1",
            "seed=x",
            ",",
        ] {
            assert_eq!(Plan::parse(text), None, "{text}");
        }
    }

    #[test]
    fn frames_are_lost_and_damaged_as_often_as_asked() {
        let plan = Plan::parse("loss=0.1,corrupt=0.2").unwrap();
        let mut faults = Faults::new(plan, 0, 3);
        let (mut lost, mut damaged) = (0, 0);
        for _ in 0..10_000 {
            let mut head = [0; 64];
            let passed = faults.pass(&mut head);
            lost += usize::from(!passed);
            let flipped: u32 = head.iter().map(|byte| byte.count_ones()).sum();
            assert!(flipped == 0 || (flipped == 1 && passed));
            damaged += flipped;
        }
        assert!((900..1100).contains(&lost), "{lost}");
        assert!((1650..1950).contains(&damaged), "{damaged}");
    }

    #[test]
    fn a_cable_stalls_for_part_of_each_period() {
        let plan = Plan::parse("stall=2/10").unwrap();
        let faults = Faults::new(plan, 100 * MS, 0);
        for (age, state) in [
            (0, State::Works),
            (7, State::Works),
            (8, State::Stalls),
            (10, State::Works),
            (19, State::Stalls),
        ] {
            assert_eq!(faults.state((100 + age) * MS), state, "{age} ms");
        }
    }

    #[test]
    fn a_cable_is_cut_after_so_many_frames() {
        let mut faults = Faults::new(Plan::parse("loss=1,cut=2").unwrap(), 0, 0);
        for _ in 0..2 {
            assert_eq!(faults.state(1000 * MS), State::Works);
            faults.pass(&mut []);
        }
        assert_eq!(faults.state(0), State::Cut);
    }
}
