//! Random sequences of faults. The seed decides a script, and nothing else does.

use super::RING;
use super::random::Random;
use std::fmt;
use std::time::Duration;

/// How long a script lasts, if what it does takes no time.
const LENGTH: Duration = Duration::from_secs(60);

/// A sequence of faults.
#[derive(Debug, PartialEq)]
pub(super) struct Script {
    pub(super) seed: u64,
    pub(super) rounds: Vec<Round>,
}

/// Faults that begin and end together.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Round {
    /// Requests to the emulator, with which they begin.
    pub(super) begin: Vec<String>,
    /// How long they last.
    pub(super) hold: Duration,
    /// What ends them.
    pub(super) end: Vec<Act>,
    /// The time until the next ones.
    pub(super) pause: Duration,
}

/// What is done to end a fault.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Act {
    /// Asks the emulator.
    Ask(String),
    /// Loads the drivers of a guest anew: its router was reset under them, as when a host crashes.
    Reload(usize),
}

/// A kind of fault.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Loss,
    Corruption,
    Duplication,
    Delay,
    ControlLoss,
    ControlCorruption,
    ControlDuplication,
    ControlDelay,
    LostFrames,
    LostControl,
    LostInterrupts,
    StrandedCompletions,
    IgnoredDoorbells,
    Narrow,
    Unplug,
    /// Pulls the cable and puts it back at once: drivers find each other anew while the other fault lasts.
    Replug,
    ResetPeer,
}

/// Each kind that a round may begin with, as often as its weight says.
const KINDS: &[(Kind, u64)] = &[
    (Kind::Loss, 4),
    (Kind::Corruption, 3),
    (Kind::Duplication, 3),
    (Kind::Delay, 3),
    (Kind::ControlLoss, 2),
    (Kind::ControlCorruption, 1),
    (Kind::ControlDuplication, 1),
    (Kind::ControlDelay, 1),
    (Kind::LostFrames, 3),
    (Kind::LostControl, 1),
    (Kind::LostInterrupts, 4),
    (Kind::StrandedCompletions, 2),
    (Kind::IgnoredDoorbells, 3),
    (Kind::Narrow, 2),
    (Kind::Unplug, 3),
    (Kind::ResetPeer, 1),
];

impl Kind {
    /// Strikes control packets, by which drivers find each other.
    fn control(self) -> bool {
        matches!(
            self,
            Kind::ControlLoss
                | Kind::ControlCorruption
                | Kind::ControlDuplication
                | Kind::ControlDelay
                | Kind::LostControl
        )
    }

    /// Takes the link down, or needs it to go down to end.
    fn breaks(self) -> bool {
        matches!(self, Kind::StrandedCompletions | Kind::Unplug | Kind::ResetPeer)
    }
}

impl Script {
    pub(super) fn new(seed: u64) -> Script {
        let mut random = Random::new(seed);
        let mut rounds = vec![];
        let mut length = Duration::ZERO;
        while length < LENGTH {
            let round = round(&mut random);
            length += round.hold + round.pause;
            rounds.push(round);
        }
        Script { seed, rounds }
    }

    /// The guests whose drivers it loads anew.
    pub(super) fn reloaded(&self) -> impl Iterator<Item = usize> {
        let ends = self.rounds.iter().flat_map(|round| &round.end);
        ends.filter_map(|act| match act {
            Act::Reload(guest) => Some(*guest),
            Act::Ask(_) => None,
        })
    }
}

fn round(random: &mut Random) -> Round {
    let first = kind(random);
    let mut kinds = vec![first];
    let second = kind(random);
    if second != first && random.below(2) == 0 {
        kinds.push(second);
    }
    // Drivers send control packets when the cable is put in.
    if kinds.iter().any(|kind| kind.control()) {
        kinds.push(Kind::Replug);
    }
    let mut round = Round {
        hold: random.millis(500, 4000),
        pause: random.millis(500, 2500),
        ..Round::default()
    };
    let mut guests_to_reload = vec![];
    for kind in &kinds {
        fault(*kind, random, &mut round, &mut guests_to_reload);
    }
    // What a driver missed for lack of a control packet, it learns when the cable is put in anew; and a ring goes on
    // after a stranded completion when it is started anew, which goes with the link.
    let control = kinds.iter().any(|kind| kind.control());
    let strands = kinds.contains(&Kind::StrandedCompletions);
    round
        .end
        .extend(guests_to_reload.iter().map(|guest| Act::Reload(*guest)));
    if control || strands {
        round.end.push(ask("unplug 0"));
    }
    if control || kinds.iter().any(|kind| kind.breaks()) {
        round.end.push(ask("plug 0"));
    }
    round
}

fn ask(line: impl Into<String>) -> Act {
    Act::Ask(line.into())
}

fn fault(kind: Kind, random: &mut Random, round: &mut Round, guests_to_reload: &mut Vec<usize>) {
    let rate = |name: &str, ppm: u64, option: &str| {
        (format!("{name} 0 {ppm}{option}"), format!("{name} 0 0{option}"))
    };
    let nhi = random.below(2);
    let ring = format!(
        "{} {} {RING}",
        nhi,
        if random.below(2) == 0 { "tx" } else { "rx" }
    );
    let way = ["", " --way forth", " --way back"][random.index(3)];
    let (begin, end) = match kind {
        Kind::Loss => rate("loss", random.between(1_000, 100_000), way),
        Kind::Corruption => rate("corrupt", random.between(1_000, 100_000), way),
        Kind::Duplication => rate("duplicate", random.between(1_000, 200_000), way),
        Kind::Delay => {
            let us = random.between(100, 20_000);
            (format!("delay 0 {us}us{way}"), format!("delay 0 0{way}"))
        }
        Kind::ControlLoss => rate("loss", random.between(50_000, 400_000), " --control"),
        Kind::ControlCorruption => rate("corrupt", random.between(50_000, 400_000), " --control"),
        Kind::ControlDuplication => rate("duplicate", random.between(50_000, 500_000), " --control"),
        Kind::ControlDelay => {
            let ms = random.between(1, 50);
            (
                format!("delay 0 {ms}ms --control"),
                "delay 0 0 --control".to_string(),
            )
        }
        Kind::LostFrames => {
            let way = ["forth", "back"][random.index(2)];
            let count = random.between(1, 200);
            (
                format!("lose-frames 0 {way} {count}"),
                format!("lose-frames 0 {way} 0"),
            )
        }
        Kind::LostControl => {
            let towards = ["host", "router"][random.index(2)];
            let count = random.between(1, 3);
            (
                format!("lose-control {nhi} {towards} {count}"),
                format!("lose-control {nhi} {towards} 0"),
            )
        }
        Kind::LostInterrupts => {
            let count = random.between(1, 5);
            (
                format!("lose-interrupt {nhi} {count}"),
                format!("lose-interrupt {nhi} 0"),
            )
        }
        Kind::StrandedCompletions => {
            let count = random.between(1, 3);
            (
                format!("strand-completion {ring} {count}"),
                format!("strand-completion {ring} 0"),
            )
        }
        Kind::IgnoredDoorbells => {
            let count = random.between(1, 5);
            (
                format!("ignore-doorbell {ring} {count}"),
                format!("ignore-doorbell {ring} 0"),
            )
        }
        Kind::Narrow => ("narrow 0 1".to_string(), "narrow 0 2".to_string()),
        // The end of these is that of the round.
        Kind::Unplug => {
            round.begin.push("unplug 0".to_string());
            return;
        }
        Kind::Replug => {
            round.begin.extend(["unplug 0", "plug 0"].map(str::to_string));
            return;
        }
        Kind::ResetPeer => {
            guests_to_reload.push(random.index(2));
            let nhi = guests_to_reload.last().copied().unwrap_or(0);
            round.begin.push(format!("reset-peer {nhi}"));
            return;
        }
    };
    round.begin.push(begin);
    round.end.push(ask(end));
}

/// The script in words, for logs.
impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "script of seed {}", self.seed)?;
        for round in &self.rounds {
            writeln!(f, "{round}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end: Vec<String> = self
            .end
            .iter()
            .map(|act| match act {
                Act::Ask(line) => line.clone(),
                Act::Reload(guest) => format!("reload the drivers of guest {guest}"),
            })
            .collect();
        write!(
            f,
            "{}; after {} ms {}; then {} ms nothing",
            self.begin.join(", "),
            self.hold.as_millis(),
            end.join(", "),
            self.pause.as_millis()
        )
    }
}

fn kind(random: &mut Random) -> Kind {
    let total: u64 = KINDS.iter().map(|(_, weight)| weight).sum();
    let mut left = random.below(total);
    for (kind, weight) in KINDS {
        match left.checked_sub(*weight) {
            None => return *kind,
            Some(rest) => left = rest,
        }
    }
    Kind::Loss
}

#[cfg(test)]
mod tests {
    use super::*;
    use usb4_nhi_control::Request;

    const MANY: u64 = 500;

    #[test]
    fn a_seed_gives_the_same_script_and_another_seed_another() {
        for seed in 0..MANY {
            assert_eq!(Script::new(seed), Script::new(seed));
            assert_ne!(Script::new(seed).rounds, Script::new(seed + 1).rounds);
        }
        // On every machine and in every version.
        let first = Script::new(1).rounds[0].to_string();
        assert_eq!(first, FIRST_OF_SEED_1);
    }

    const FIRST_OF_SEED_1: &str = "strand-completion 0 rx 1 1, lose-frames 0 forth 123; after 1708 ms strand-completion 0 rx 1 0, lose-frames 0 forth 0, unplug 0, plug 0; then 2351 ms nothing";

    #[test]
    fn the_emulator_knows_every_request() {
        for round in (0..MANY).flat_map(|seed| Script::new(seed).rounds) {
            let ends = round.end.iter().filter_map(|act| match act {
                Act::Ask(line) => Some(line),
                Act::Reload(_) => None,
            });
            for line in round.begin.iter().chain(ends) {
                line.parse::<Request>().unwrap();
            }
        }
    }

    #[test]
    fn a_round_leaves_no_fault_behind_and_one_of_control_packets_strikes_some() {
        for round in (0..MANY).flat_map(|seed| Script::new(seed).rounds) {
            let ends: Vec<&str> = round
                .end
                .iter()
                .map(|act| match act {
                    Act::Ask(line) => line.as_str(),
                    Act::Reload(_) => "reload",
                })
                .collect();
            for begin in &round.begin {
                let name = begin.split(' ').next().unwrap();
                let wanted = match name {
                    "unplug" => "plug 0",
                    "reset-peer" => "reload",
                    name => name,
                };
                assert!(ends.iter().any(|end| end.starts_with(wanted)), "{round}");
            }
            // What strikes control packets strikes while drivers find each other.
            if round.begin.iter().any(|begin| begin.contains("control")) {
                assert!(
                    round
                        .begin
                        .ends_with(&["unplug 0".to_string(), "plug 0".to_string()]),
                    "{round}"
                );
            }
            let last_cable = ends.iter().rfind(|end| end.contains("plug 0"));
            assert!(last_cable.is_none_or(|end| *end == "plug 0"), "{round}");
        }
    }

    #[test]
    fn every_kind_of_fault_comes_and_a_script_lasts_a_minute() {
        let scripts: Vec<Script> = (0..MANY).map(Script::new).collect();
        for name in [
            "loss",
            "corrupt",
            "duplicate",
            "delay",
            "lose-frames",
            "lose-control",
            "lose-interrupt",
            "strand-completion",
            "ignore-doorbell",
            "narrow",
            "unplug",
            "reset-peer",
        ] {
            let begins = scripts.iter().flat_map(|s| &s.rounds).flat_map(|r| &r.begin);
            assert!(begins.into_iter().any(|line| line.starts_with(name)), "{name}");
        }
        for script in scripts {
            let length: Duration = script.rounds.iter().map(|r| r.hold + r.pause).sum();
            assert!(length >= LENGTH && length < LENGTH + Duration::from_secs(7));
        }
    }
}
