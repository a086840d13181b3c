//! Suite faults: scripts of random faults (`fault_script.rs`) while checked bytes cross the cable.
//!
//! Against thunderbolt_net: files are fetched both ways all the time and compared; after each round of faults both
//! guests must reach each other again. Against our module: `usb4ctl bench` runs all the time, which checks bytes where
//! they arrive; no byte may be wrong and nothing may hang, work may fail only if the link went, and when the script has
//! ended everything works.

mod network;
mod ring;

use super::fault_script::{Act, Round, Script};
use super::{Args, Outcome, Tally, keep, rdma};
use crate::interrupt;
use crate::lab::emulator::Emulator;
use crate::lab::session::{Guest, Lab, Plan};
use crate::ui::Verdict;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

/// Seeds run on each change. Together they have every kind of fault, with one lane and with two. Against thunderbolt_net, where
/// only the emulator is tried, none are.
const CI: [u64; 2] = [47, 52];
/// Further seeds, run when asked for: 24 scripts in all.
const FULL: std::ops::RangeInclusive<u64> = 1..=10;
/// Time for all of these, after which guests are ended.
const LIMIT: Duration = Duration::from_secs(4 * 3600);

/// What carries the bytes.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    Network,
    Ring,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::Network => "thunderbolt_net",
            Target::Ring => "skeleton",
        }
    }
}

/// Most run with one lane, with which drivers find each other in two seconds; with two it takes them ten.
fn lanes(seed: u64) -> u64 {
    if seed % 4 == 0 { 2 } else { 1 }
}

pub(super) fn run(args: &Args) -> Result<Verdict> {
    let mut chosen = vec![];
    for target in [Target::Network, Target::Ring] {
        let seeds: Vec<u64> = match (args.seed, target) {
            (Some(seed), _) => vec![seed],
            (None, _) if args.full => CI.into_iter().chain(FULL).collect(),
            (None, Target::Network) => vec![],
            (None, Target::Ring) => CI.to_vec(),
        };
        for lanes_wanted in [1, 2] {
            let seeds = seeds.iter().filter(|seed| lanes(**seed) == lanes_wanted);
            let seeds: Vec<u64> = seeds
                .copied()
                .filter(|seed| {
                    let name = name(target, *seed);
                    args.only.is_empty() || args.only.iter().any(|part| name.contains(part.as_str()))
                })
                .collect();
            if !seeds.is_empty() {
                chosen.push((target, lanes_wanted, seeds));
            }
        }
    }
    if chosen.is_empty() {
        bail!("no script is called {}", args.only.join(", "));
    }
    if args.list {
        for (target, lanes, seeds) in &chosen {
            for seed in seeds {
                say!("{}: on pair,lanes={lanes}", name(*target, *seed));
                say!("{}", Script::new(*seed));
            }
        }
        return Ok(Verdict::new(true, "listed"));
    }
    let began = Instant::now();
    let mut tally = Tally::default();
    for (target, lanes, seeds) in chosen {
        let mut plan = Plan::new("", &format!("pair,lanes={lanes}"))?;
        plan.kernel.clone_from(&args.kernel);
        plan.parameters.clone_from(&args.append);
        plan.limit = LIMIT;
        if target == Target::Ring {
            rdma::plan(&mut plan)?;
        }
        scripts(target, &mut plan, &seeds, &mut tally)?;
    }
    Ok(tally.verdict(began))
}

fn name(target: Target, seed: u64) -> String {
    format!("{}/seed-{seed}", target.name())
}

/// Runs scripts in the same guests, until one fails: the next gets new ones.
fn scripts(target: Target, plan: &mut Plan, seeds: &[u64], tally: &mut Tally) -> Result<()> {
    let mut lab = None;
    for seed in seeds {
        let began = Instant::now();
        let result = one(target, plan, *seed, &mut lab);
        interrupt::check()?;
        let failed = result.is_err();
        tally.note(name(target, *seed), began, result);
        if failed {
            lab.take().as_mut().map(keep);
        }
    }
    Ok(())
}

fn one(target: Target, plan: &mut Plan, seed: u64, lab: &mut Option<Lab>) -> Result<Outcome> {
    let lab = match lab {
        Some(lab) => lab,
        none => {
            plan.name = format!("faults/{}-from-seed-{seed}", target.name());
            let new = none.insert(Lab::start(plan)?);
            match target {
                Target::Network => network::prepare(new)?,
                Target::Ring => rdma::prepare(new)?,
            }
            new
        }
    };
    let script = Script::new(seed);
    fs::write(lab.logs.join(format!("script-{seed}.txt")), script.to_string()).context("keep the script")?;
    lab.control("clear")?;
    let words = match target {
        Target::Network => network::run(lab, &script),
        Target::Ring => ring::run(lab, &script),
    }?;
    let struck = struck(&lab.control("stats")?);
    let complaints = unexpected(lab.complaints()?, &script);
    if !complaints.is_empty() {
        bail!("kernels complain:\n{}", complaints.join("\n"));
    }
    Ok(Outcome::Seen(format!(
        "{} rounds of faults ({struck}): {words}",
        script.rounds.len()
    )))
}

/// What faults have struck, by the emulator's counters.
const STRUCK: [(&str, &str, &str); 8] = [
    ("cables", "lost", "frames lost"),
    ("cables", "corrupted", "damaged"),
    ("cables", "duplicated", "doubled"),
    ("cables", "control_lost", "control packets lost"),
    ("cables", "control_corrupted", "damaged"),
    ("nhis", "lost_interrupts", "interrupts lost"),
    ("nhis", "stranded", "completions stranded"),
    ("nhis", "ignored_doorbells", "doorbells ignored"),
];

fn struck(answer: &Value) -> String {
    let words = STRUCK.iter().map(|(of, name, words)| {
        let all = answer["stats"][*of].as_array().into_iter().flatten();
        let parts = all.flat_map(|one| [&one["counters"], &one["forth"], &one["back"]]);
        let count: u64 = parts.filter_map(|part| part[*name].as_u64()).sum();
        format!("{count} {words}")
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The complaints but for those that a script must cause.
///
/// When a router was reset under its driver, the driver finds its registers cleared as it stops its rings, and warns
/// (`ring_interrupt_active` in drivers/thunderbolt/nhi.c: "interrupt for RX ring 1 is already disabled").
fn unexpected(complaints: Vec<String>, script: &Script) -> Vec<String> {
    let mut left = complaints;
    for guest in script.reloaded() {
        let of_guest = |line: &String| line.starts_with(&format!("guest {guest}: "));
        left.retain(|line| !(of_guest(line) && line.contains(" at ring_interrupt_active")));
        // The trace that came with it. One of something else would have come after a line that is still there.
        if left
            .iter()
            .filter(|line| of_guest(line))
            .all(|line| line.ends_with(": Call Trace:"))
        {
            left.retain(|line| !of_guest(line));
        }
    }
    left
}

/// What carries bytes while faults strike.
trait Traffic {
    /// Looks after it for `span`.
    ///
    /// # Errors
    /// A byte is wrong, something hangs, or fails for no reason.
    fn go_on(&mut self, span: Duration) -> Result<()>;

    /// Loads the drivers of a guest anew.
    fn reload(&mut self, guest: usize) -> Result<()>;

    /// A round has ended.
    fn after_round(&mut self, emulator: &mut Emulator) -> Result<()>;
}

/// Runs the script.
fn play(script: &Script, emulator: &mut Emulator, traffic: &mut dyn Traffic) -> Result<()> {
    for (number, round) in script.rounds.iter().enumerate() {
        play_round(round, emulator, traffic)
            .with_context(|| format!("seed {}, round {}: {round}", script.seed, number + 1))?;
    }
    Ok(())
}

fn play_round(round: &Round, emulator: &mut Emulator, traffic: &mut dyn Traffic) -> Result<()> {
    for line in &round.begin {
        emulator.ask(line)?;
    }
    traffic.go_on(round.hold)?;
    for act in &round.end {
        match act {
            Act::Ask(line) => emulator.ask(line).map(drop)?,
            Act::Reload(guest) => traffic.reload(*guest)?,
        }
    }
    traffic.after_round(emulator)?;
    traffic.go_on(round.pause)
}

/// Guests 0 and 1.
fn two(guests: &[Guest]) -> Result<[&Guest; 2]> {
    match guests {
        [one, other, ..] => Ok([one, other]),
        _ => bail!("two guests are wanted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_struck_is_counted_over_controllers_and_both_ways() {
        let answer = json!({"ok": true, "stats": {
            "nhis": [{"counters": {"stranded": 1}}, {"counters": {"stranded": 2, "lost_interrupts": 4}}],
            "cables": [{"forth": {"lost": 8}, "back": {"lost": 16, "corrupted": 32}}],
        }});
        let words = struck(&answer);
        assert!(
            words.starts_with("24 frames lost, 32 damaged, 0 doubled, "),
            "{words}"
        );
        assert!(
            words.contains("4 interrupts lost, 3 completions stranded"),
            "{words}"
        );
    }

    #[test]
    fn only_a_reset_router_excuses_a_warning_and_only_its_own() {
        let resets = |guest| {
            (1..)
                .map(Script::new)
                .find(|script| script.reloaded().eq([guest]))
        };
        let script = resets(1).unwrap();
        let lines = |lines: &[&str]| lines.iter().map(|line| line.to_string()).collect::<Vec<_>>();
        let warning =
            "WARNING: drivers/thunderbolt/nhi.c:143 at ring_interrupt_active+0x280/0x320 [thunderbolt]";
        let expected = lines(&[&format!("guest 1: {warning}"), "guest 1: Call Trace:"]);
        assert!(unexpected(expected.clone(), &script).is_empty());
        assert_eq!(unexpected(expected.clone(), &resets(0).unwrap()), expected);
        let more = lines(&[
            &format!("guest 1: {warning}"),
            "guest 1: BUG: x",
            "guest 1: Call Trace:",
        ]);
        assert_eq!(unexpected(more.clone(), &script), more[1..]);
        let other = lines(&["guest 0: Call Trace:"]);
        assert_eq!(unexpected(other.clone(), &script), other);
    }
}
