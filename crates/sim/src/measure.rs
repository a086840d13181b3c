//! Measurements in virtual time: goodput under loss, recovery of one lost frame, efficiency on the wire.

use crate::faults::Faults;
use crate::line::Line;
use crate::profile::{MS, Profile, SEC};
use crate::rng::Rng;
use crate::scenario::{Scenario, Summary};
use crate::traffic::{Failure, Mix};
use crate::world::World;
use usb4_engine::Nanos;

/// One-way traffic over the profile's own rails (one, or its pair).
///
/// # Errors
/// A promise found broken on the way.
pub fn stream(profile: &Profile, mix: Mix, faults: Faults, seed: u64) -> Result<Summary, Failure> {
    let scenario = Scenario {
        rails: profile.rails.len(),
        mix,
        ..Scenario::new(profile, 0, faults, seed)
    };
    scenario.run()
}

/// Which frame is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The only frame of a message, with nothing behind it.
    OnlyFrame,
    /// The last frame of a 64 KiB message, with nothing behind it.
    LastFrame,
    /// A frame in the midst of a 64 KiB message.
    MiddleFrame,
    /// A frame of a stream of 4 KiB messages, 64 of them outstanding.
    StreamFrame,
    /// A frame of a stream that keeps the TX ring full.
    BulkFrame,
    /// The first frame of the answer to a message: its acknowledgement.
    Answer,
}

impl Lost {
    /// Every case.
    pub const ALL: [Self; 6] = [
        Self::OnlyFrame,
        Self::LastFrame,
        Self::MiddleFrame,
        Self::StreamFrame,
        Self::BulkFrame,
        Self::Answer,
    ];

    /// Messages of the case, and their length.
    fn messages(self) -> (u64, u32) {
        match self {
            Self::OnlyFrame | Self::Answer => (1, 256),
            Self::LastFrame | Self::MiddleFrame => (1, 64 << 10),
            Self::StreamFrame => (300, 4_000),
            Self::BulkFrame => (40, 64 << 10),
        }
    }

    /// Frames that pass before the lost one.
    fn passes(self, rails: usize, rng: &mut Rng) -> u64 {
        // Rails share the frames of a message; what a rail carries of 17 frames is at least 4 on every profile.
        let last = if rails == 1 { 16 } else { 3 };
        match self {
            Self::OnlyFrame | Self::Answer => 0,
            Self::LastFrame => last,
            Self::MiddleFrame => rng.below(last),
            Self::StreamFrame | Self::BulkFrame => rng.below(60),
        }
    }
}

/// The delay that one lost frame causes: how much later than without the loss the worst hit message is received or its
/// sender told, whichever is worse.
///
/// # Errors
/// A message does not arrive at all.
pub fn recovery(profile: &Profile, lost: Lost, seed: u64) -> Result<Nanos, Failure> {
    let clean = completion_times(profile, lost, seed, false)?;
    let hit = completion_times(profile, lost, seed, true)?;
    Ok(clean
        .iter()
        .zip(&hit)
        .map(|(clean, hit)| hit.saturating_sub(*clean))
        .max()
        .unwrap_or(0))
}

/// When each message was received, then when each sender was told, since the first was posted.
fn completion_times(profile: &Profile, lost: Lost, seed: u64, cut: bool) -> Result<Vec<Nanos>, Failure> {
    let mut rng = Rng::new(seed);
    let rails = profile.rails.len();
    let failure = |what: String| Failure(format!("{} {lost:?}, seed {seed}: {what}", profile.name));
    let (mut world, a, b) =
        World::pair(seed, profile, rails, Faults::NONE).map_err(|late| failure(late.to_string()))?;
    let mut line = Line::new(&mut world, a, b).map_err(|e| failure(e.to_string()))?;
    // Half of all cases hit a session that has measured its round trip, half a fresh one.
    let warm = if rng.below(2) == 0 { 30 } else { 0 };
    for _ in 0..warm {
        line.deliver(&mut world, 1, 256, SEC).map_err(|e| failure(e.0))?;
    }
    world.run_for(rng.below(2 * MS));
    let cables = world.cables_between(a, b);
    let cable = cables[rng.index(cables.len())];
    let passes = lost.passes(rails, &mut rng);
    if cut {
        let from = if lost == Lost::Answer { b } else { a };
        // A single frame takes the quicker rail; lose it wherever it goes.
        let everywhere = matches!(lost, Lost::OnlyFrame | Lost::Answer);
        for &cable in cables.iter().filter(|&&other| everywhere || other == cable) {
            world.cut(cable, from, passes, 1);
        }
    }
    let (messages, len) = lost.messages();
    line.deliver(&mut world, messages, len, 10 * SEC)
        .map_err(|e| failure(e.0))
}

/// The value below which `percent` of the samples lie. Sorts them.
pub fn percentile(samples: &mut [Nanos], percent: usize) -> Nanos {
    samples.sort_unstable();
    let rank = (samples.len() * percent).div_ceil(100).max(1) - 1;
    samples.get(rank).copied().unwrap_or(0)
}
