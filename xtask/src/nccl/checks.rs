//! What is run on each release.

use super::Net;
use super::build::Built;
use super::job::{Job, Rank};
use super::release::Release;
use super::report::{networks, warnings};
use crate::ui::Task;
use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// A release on a device.
pub(crate) struct Bench<'a> {
    pub(crate) release: &'a Release,
    pub(crate) built: &'a Built,
    pub(crate) device: &'a str,
    pub(crate) net: Net,
}

/// What was checked.
#[derive(Default)]
pub(crate) struct Tally {
    jobs: u64,
    communicators: usize,
    operations: u64,
    bytes: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.jobs += other.jobs;
        self.communicators += other.communicators;
        self.operations += other.operations;
        self.bytes += other.bytes;
    }

    fn count(&mut self, ranks: &[Rank]) {
        self.jobs += 1;
        for rank in ranks {
            let (operations, bytes) = rank.report.checked();
            self.operations += operations;
            self.bytes += bytes;
            self.communicators += rank.report.communicators();
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (j, c, o, mb) = (
            self.jobs,
            self.communicators,
            self.operations,
            self.bytes / 1_000_000,
        );
        write!(f, "{j} jobs, {c} communicators, {o} operations, {mb} MB checked")
    }
}

/// How long the killed rank's peers may take to learn of it, and an abort: R23 and R25 of the plugin's rules, on a machine
/// that has other work.
const ERROR_WITHIN: f64 = 5.0;
const ABORT_WITHIN: f64 = 10.0;

/// `ncclSystemError` and `ncclRemoteError`: what a lost peer may be called.
const LOST: [i64; 2] = [2, 6];

impl Bench<'_> {
    /// Runs all checks; returns what was checked and what failed.
    pub(crate) fn run(&self, ranks: &[u8], full: bool) -> (Tally, Vec<String>) {
        let mut tally = Tally::default();
        let mut failed = vec![];
        let mut said = false;
        for check in self.plan(ranks, full) {
            let what = format!(
                "NCCL {} over {}, {} ranks, {}, {}",
                self.release.version,
                check.net.name(),
                check.ranks,
                check.protocol,
                check.scenario.join(" ")
            );
            let mut task = Task::start(&what, None);
            match self.check(&check, &mut task) {
                Ok((ranks, seen)) => {
                    task.done(&seen);
                    if check.net == self.net && !said {
                        said = true;
                        let used: BTreeSet<&str> =
                            ranks.iter().flat_map(|rank| networks(&rank.log)).collect();
                        say!("NCCL says of its connections: {used:?}");
                    }
                    tally.count(&ranks);
                }
                Err(error) => {
                    task.done("FAILED");
                    say!("{error:#}");
                    failed.push(format!(
                        "{} on {} ranks over {} with {}",
                        check.scenario.first().copied().unwrap_or_default(),
                        check.ranks,
                        check.net.name(),
                        check.protocol
                    ));
                    if check.net != self.net {
                        say!("that is the emulation's fault, so the plugin is not tried");
                        break;
                    }
                }
            }
        }
        (tally, failed)
    }

    fn plan(&self, ranks: &[u8], full: bool) -> Vec<Check> {
        let protocols = ["LL", "Simple"];
        let check = |net, ranks, protocol, scenario: &[&'static str]| Check {
            net,
            ranks,
            protocol,
            scenario: scenario.to_vec(),
        };
        if self.release.only_init() {
            return ranks
                .iter()
                .map(|&n| check(self.net, n, "Simple", &["init"]))
                .collect();
        }
        let mut plan = vec![];
        let largest = if full { "16777216" } else { "1048576" };
        if self.net != Net::Socket {
            let few = ranks.iter().copied().min().unwrap_or(2);
            let self_check = ["verify", "--largest", "65540"];
            plan.extend(protocols.map(|protocol| check(Net::Socket, few, protocol, &self_check)));
            plan.push(check(Net::Socket, few, "Simple", &["abort"]));
        }
        for &n in ranks {
            let verify = ["verify", "--largest", largest];
            plan.extend(protocols.map(|protocol| check(self.net, n, protocol, &verify)));
            let smallest = ranks.iter().min() == Some(&n);
            if full || smallest {
                plan.push(check(self.net, n, "Simple", &["abort"]));
                let kill: &[&str] = match self.release.mutes_errors() {
                    true => &["kill", "--mute"],
                    false => &["kill"],
                };
                plan.push(check(self.net, n, "LL", kill));
                let seconds = if full { "60" } else { "3" };
                plan.push(check(self.net, n, "Simple", &["pause", "--seconds", seconds]));
            }
        }
        plan
    }

    fn check(&self, check: &Check, task: &mut Task) -> Result<(Vec<Rank>, String)> {
        let kills_last = check.scenario.first() == Some(&"kill");
        let job = Job {
            release: self.release,
            built: self.built,
            net: check.net,
            device: self.device,
            ranks: check.ranks,
            protocol: check.protocol,
            scenario: &check.scenario,
            kills_last,
            limit: Duration::from_secs(300),
        };
        let ranks = job.run(task)?;
        let seen = if kills_last {
            judge_kill(&ranks, check.net, self.release.mutes_errors())?
        } else if let Some(seconds) = slowest_abort(&ranks)? {
            format!("aborted within {seconds:.1} s")
        } else if check.scenario.first() == Some(&"init") {
            if !ranks.iter().all(|rank| rank.log.contains("Connected all rings")) {
                bail!("NCCL's log does not say that all rings were connected");
            }
            "all rings connected".to_string()
        } else {
            let operations: u64 = ranks.iter().map(|rank| rank.report.checked().0).sum();
            format!("{operations} operations")
        };
        Ok((ranks, seen))
    }
}

/// One job of the plan.
struct Check {
    net: Net,
    ranks: u8,
    protocol: &'static str,
    scenario: Vec<&'static str>,
}

/// Every rank learnt in time that another was killed, and why.
fn judge_kill(ranks: &[Rank], net: Net, mute: bool) -> Result<String> {
    let aborted = slowest_abort(ranks)?.unwrap_or_default();
    if mute {
        let Some(told) = ranks.iter().find_map(|rank| warnings(&rank.log).first().copied()) else {
            bail!("no rank has a warning in NCCL's log");
        };
        return Ok(format!(
            "this release tells nobody but its log; aborted within {aborted:.1} s; first warning: {told}"
        ));
    }
    let mut latest = 0.0_f64;
    let mut told = "";
    for (at, rank) in ranks.iter().enumerate() {
        let Some((seconds, code, text)) = rank.report.error() else {
            bail!("rank {at} saw no error");
        };
        if seconds > ERROR_WITHIN {
            bail!("rank {at} saw the error only after {seconds:.1} s");
        }
        if !LOST.contains(&code) {
            bail!("rank {at} saw result {code} ({text}), which is not what a lost peer is called");
        }
        // NCCL's own transport is not ours to judge.
        if net == Net::Usb4 && warnings(&rank.log).is_empty() {
            bail!("rank {at} saw result {code} and no warning in NCCL's log");
        }
        latest = latest.max(seconds);
        told = warnings(&rank.log).first().copied().unwrap_or(text);
    }
    Ok(format!(
        "error within {latest:.1} s, aborted within {aborted:.1} s; first warning: {told}"
    ))
}

fn slowest_abort(ranks: &[Rank]) -> Result<Option<f64>> {
    let slowest = ranks
        .iter()
        .filter_map(|rank| rank.report.abort())
        .reduce(f64::max);
    if let Some(seconds) = slowest.filter(|seconds| *seconds > ABORT_WITHIN) {
        bail!("an abort took {seconds:.1} s");
    }
    Ok(slowest)
}
