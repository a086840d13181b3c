//! Measurements in virtual time: goodput under loss, recovery of one lost frame, efficiency on the wire.

use crate::cable::HEADER;
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

    /// Chooses the frame by what each cable carried when none was lost; `true` marks frames with chunks.
    fn choose(self, carried: &[Vec<bool>], rng: &mut Rng) -> Option<(usize, usize)> {
        let data = |cable: &Vec<bool>| (0..cable.len()).filter(|&at| cable[at]).collect::<Vec<_>>();
        let mut choice: Vec<(usize, usize)> = Vec::new();
        for (cable, frames) in carried.iter().enumerate() {
            let frames = data(frames);
            let (Some(&first), Some(&last)) = (frames.first(), frames.last()) else {
                continue;
            };
            match self {
                Self::Answer => choice.push((cable, first)),
                // With several rails: the last of one of them.
                Self::LastFrame => choice.push((cable, last)),
                Self::MiddleFrame => {
                    choice.extend(frames.iter().filter(|&&at| at != last).map(|&at| (cable, at)))
                }
                Self::OnlyFrame | Self::StreamFrame | Self::BulkFrame => {
                    choice.extend(frames.iter().map(|&at| (cable, at)));
                }
            }
        }
        choice.get(rng.index(choice.len())).copied()
    }
}

/// The delay that one lost frame causes: how much later than without the loss the worst hit message is received or its
/// sender told, whichever is worse.
///
/// # Errors
/// A message does not arrive at all.
pub fn recovery(profile: &Profile, lost: Lost, seed: u64) -> Result<Nanos, Failure> {
    let (clean, carried) = completion_times(profile, lost, seed, None)?;
    let cut = lost.choose(&carried, &mut Rng::new(seed));
    let (hit, _) = completion_times(profile, lost, seed, cut)?;
    let delays = clean
        .iter()
        .zip(&hit)
        .map(|(clean, hit)| hit.saturating_sub(*clean));
    Ok(delays.max().unwrap_or(0))
}

/// When each message was received, then when each sender was told, since the first was posted; and what each cable
/// carried meanwhile. `cut`: the cable and the number of the frame to be lost.
fn completion_times(
    profile: &Profile,
    lost: Lost,
    seed: u64,
    cut: Option<(usize, usize)>,
) -> Result<(Vec<Nanos>, Vec<Vec<bool>>), Failure> {
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
    let from = if lost == Lost::Answer { b } else { a };
    for &cable in &cables {
        world.tap(cable, from);
    }
    if let Some((cable, frame)) = cut {
        world.cut(cables[cable], from, frame as u64, 1);
    }
    let (messages, len) = lost.messages();
    let times = line
        .deliver(&mut world, messages, len, 10 * SEC)
        .map_err(|e| failure(e.0))?;
    let losses: u64 = cables
        .iter()
        .map(|&cable| world.cable_counters(cable, from).lost)
        .sum();
    if losses != u64::from(cut.is_some()) {
        return Err(failure(format!("{losses} frames were lost")));
    }
    let has_chunks = |frame: &Vec<u8>| usize::from(u16::from_le_bytes([frame[2], frame[3]])) > HEADER;
    let carried = cables
        .iter()
        .map(|&cable| world.tapped(cable, from).iter().map(has_chunks).collect());
    Ok((times, carried.collect()))
}

/// The value below which `percent` of the samples lie. Sorts them.
pub fn percentile(samples: &mut [Nanos], percent: usize) -> Nanos {
    samples.sort_unstable();
    let rank = (samples.len() * percent).div_ceil(100).max(1) - 1;
    samples.get(rank).copied().unwrap_or(0)
}
