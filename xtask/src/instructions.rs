//! `cargo xtask instructions`: how many instructions engine and device take per message and per full frame.
//!
//! Runs `usb4-instructions` (two devices back to back, no threads) under callgrind, twice with different numbers
//! of messages, so that start-up cancels out. Counts do not depend on the machine's speed or load, so they gate: more
//! than 5 % above `ci/instructions.txt` fails. They depend on the compiler a little.

use crate::debian;
use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{cargo, root, target, work};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the figures found to `ci/instructions.txt`.
    #[arg(long)]
    accept: bool,
}

/// What is counted: name, traffic, numbers of messages, units of work in a message, the design's budget.
struct Figure {
    name: &'static str,
    function: &'static str,
    traffic: &'static str,
    messages: (u32, u32),
    per_message: f64,
    budget: f64,
    what: &'static str,
}

/// Payload of a full frame: 4096 bytes less the frame header and one chunk header.
const FRAMES_PER_LARGE: f64 = (1 << 20) as f64 / (4096.0 - 40.0 - 16.0);

const FIGURES: [Figure; 6] = [
    small("small-send", "small", "count_small_send", "sender, 64 B message"),
    small(
        "small-receive",
        "small",
        "count_small_receive",
        "receiver, 64 B message",
    ),
    small(
        "verbs-send",
        "verbs",
        "count_small_send",
        "sender, 64 B over verbs",
    ),
    small(
        "verbs-receive",
        "verbs",
        "count_small_receive",
        "receiver, 64 B over verbs",
    ),
    large("large-send", "count_large_send", "sender, full frame"),
    large("large-receive", "count_large_receive", "receiver, full frame"),
];

const fn small(
    name: &'static str,
    traffic: &'static str,
    function: &'static str,
    what: &'static str,
) -> Figure {
    Figure {
        name,
        function,
        traffic,
        messages: (500, 2500),
        per_message: 1.0,
        budget: 900.0,
        what,
    }
}

const fn large(name: &'static str, function: &'static str, what: &'static str) -> Figure {
    let (messages, per_message) = ((2, 8), FRAMES_PER_LARGE);
    Figure {
        name,
        function,
        traffic: "large",
        messages,
        per_message,
        budget: 500.0,
        what,
    }
}

/// Growth over the committed figure that fails.
const TOLERANCE: f64 = 1.05;

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    debian::ensure(&["valgrind"])?;
    let program = build()?;
    let path = root().join("ci/instructions.txt");
    let committed = read(&path)?;
    let mut text = String::from(
        "# Instructions of engine and device, without copies and CRC, per 64 B message and per full frame.\n\
         # Written by `cargo xtask instructions --accept`; CI fails at 5 % more.\n",
    );
    let mut worse = vec![];
    let mut over = vec![];
    let mut all = BTreeMap::new();
    say!("{:<24} {:>9} {:>10} {:>8}", "", "found", "recorded", "budget");
    for figure in &FIGURES {
        let mut task = Task::start(format!("callgrind: {}", figure.what), None);
        let few = figure.count(&program, figure.messages.0, &mut task)?;
        let many = figure.count(&program, figure.messages.1, &mut task)?;
        let units = f64::from(figure.messages.1 - figure.messages.0) * figure.per_message;
        let found = (many.saturating_sub(few)) as f64 / units;
        task.done(&format!("{found:.0} instructions"));
        let before = committed.get(figure.name).copied();
        if found > figure.budget {
            over.push(found / figure.budget);
        }
        say!(
            "{:<24} {found:>9.0} {:>10} {:>8.0}{}",
            figure.what,
            before.map_or("none".to_string(), |n| format!("{n:.0}")),
            figure.budget,
            if found > figure.budget {
                "  over budget"
            } else {
                ""
            },
        );
        if before.is_none_or(|before| found > before * TOLERANCE) {
            worse.push(figure.name);
        }
        writeln!(text, "{} {found:.0}", figure.name).context("format a figure")?;
        all.insert(figure.name.to_string(), found);
    }
    worse.extend(dearer(&all));
    if args.accept {
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        return Ok(Verdict::new(true, format!("{} written", path.display())));
    }
    Ok(verdict(&worse, &over))
}

/// Whatever of the ring API takes more instructions than the same over verbs, which are made of it.
fn dearer(found: &BTreeMap<String, f64>) -> impl Iterator<Item = &'static str> {
    let pairs = [
        ("small-send", "verbs-send", "small-send above verbs"),
        ("small-receive", "verbs-receive", "small-receive above verbs"),
    ];
    pairs
        .into_iter()
        .filter(|(ring, verbs, _)| found.get(*ring) > found.get(*verbs))
        .map(|(.., what)| what)
}

/// What the figures come to: `worse` names those above the record, `over` has the multiples of the budget of those
/// above it. The budget does not gate: it is a goal, the record is what must not be lost.
fn verdict(worse: &[&str], over: &[f64]) -> Verdict {
    let least = over.iter().copied().fold(f64::INFINITY, f64::min);
    let most = over.iter().copied().fold(0.0, f64::max);
    let budget = match over.len() {
        0 => "the design's budget is met".to_string(),
        missed => format!(
            "the design's budget is missed by {missed} of {}, {least:.1} to {most:.1} times it",
            FIGURES.len()
        ),
    };
    match worse {
        [] => Verdict::new(true, format!("no more than recorded (5 % allowed); {budget}")),
        _ => Verdict::fail(format!(
            "more than 5 % above the record: {}; {budget}",
            worse.join(", ")
        )),
    }
}

fn build() -> Result<PathBuf> {
    let mut task = Task::start("build usb4-instructions", None);
    let mut command = cargo([
        "build",
        "--release",
        "--package",
        "usb4-testkit",
        "--bin",
        "usb4-instructions",
    ]);
    let log = work().join("build/instructions.log");
    process::run(&mut command, Duration::from_secs(1200), &log, Some(&mut task))?.require("cargo build")?;
    task.done("built");
    Ok(target().join("release/usb4-instructions"))
}

/// `name figure` lines; none if there is no file yet.
fn read(path: &Path) -> Result<BTreeMap<String, f64>> {
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let (name, figure) = line
                .split_once(' ')
                .with_context(|| format!("not a figure: {line}"))?;
            Ok((
                name.to_string(),
                figure
                    .trim()
                    .parse()
                    .with_context(|| format!("not a figure: {line}"))?,
            ))
        })
        .collect()
}

impl Figure {
    /// Instructions inside the figure's function, less those in the home.
    fn count(&self, program: &Path, messages: u32, task: &mut Task) -> Result<u64> {
        let folder = work().join("instructions");
        let stem = format!("{}-{messages}", self.name);
        let profile = folder.join(format!("{stem}.callgrind"));
        let mut command = Command::new("valgrind");
        command.args([
            "--tool=callgrind",
            "--compress-strings=no",
            "--compress-pos=no",
            "--collect-atstart=no",
        ]);
        command.arg(format!("--toggle-collect=*{}*", self.function));
        command.arg(format!("--callgrind-out-file={}", profile.display()));
        command.arg(program).args([self.traffic, &messages.to_string()]);
        let log = folder.join(format!("{stem}.log"));
        process::run(&mut command, Duration::from_secs(600), &log, Some(task))?.require("callgrind")?;
        let text = fs::read_to_string(&profile).context("read callgrind's profile")?;
        let cost = Cost::read(&text)?;
        if cost.total == 0 {
            bail!(
                "callgrind saw no call of {} (log: {})",
                self.function,
                log.display()
            );
        }
        Ok(cost.total - cost.home)
    }
}

/// What a callgrind profile (without compressed names) says.
#[derive(Debug, PartialEq)]
struct Cost {
    total: u64,
    /// Inclusive cost of calls from elsewhere into functions of the home.
    home: u64,
}

impl Cost {
    fn read(text: &str) -> Result<Cost> {
        let home = |name: &str| {
            name.trim_start_matches('<')
                .starts_with("usb4_instructions::home::")
        };
        let mut cost = Cost { total: 0, home: 0 };
        let mut in_home = false;
        let mut callee_in_home = false;
        let mut after_call = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                in_home = home(name);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee_in_home = home(name);
            } else if line.starts_with("calls=") {
                after_call = true;
            } else if line.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-' || c == '*') {
                let mut words = line.split_whitespace().skip(1);
                let events: u64 = words
                    .next()
                    .unwrap_or("0")
                    .parse()
                    .with_context(|| format!("cost line {line}"))?;
                if !after_call {
                    cost.total += events;
                } else if callee_in_home && !in_home {
                    cost.home += events;
                }
                after_call = false;
            }
        }
        Ok(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_budget_is_named_and_does_not_fail() {
        let verdict = super::verdict(&[], &[2.1, 2.9]);
        assert!(verdict.pass);
        assert_eq!(
            verdict.line,
            "no more than recorded (5 % allowed); the design's budget is missed by 2 of 6, 2.1 to 2.9 times it"
        );
        assert!(!super::verdict(&["small-send"], &[]).pass);
    }

    #[test]
    fn a_ring_api_dearer_than_verbs_is_named() {
        let found = |ring, verbs| {
            let figures = [("small-send", ring), ("verbs-send", verbs)];
            figures.map(|(name, n)| (name.to_string(), n)).into()
        };
        assert_eq!(dearer(&found(1500.0, 1500.0)).count(), 0);
        let named: Vec<_> = dearer(&found(1501.0, 1500.0)).collect();
        assert_eq!(named, ["small-send above verbs"]);
    }

    #[test]
    fn calls_into_the_home_are_taken_off_once() {
        let profile = "events: Ir\n\nfn=count_small_send\n10 5\ncfn=usb4_instructions::home::post\ncalls=2 20\n10 40\n\
                       cfn=other\ncalls=1 30\n11 9\n\nfn=usb4_instructions::home::post\n20 30\n\
                       cfn=usb4_instructions::home::write\ncalls=2 21\n20 10\n\n\
                       fn=usb4_instructions::home::write\n21 10\n\nfn=other\n30 9\n\nsummary: 54\n";
        assert_eq!(Cost::read(profile).unwrap(), Cost { total: 54, home: 40 });
    }
}
