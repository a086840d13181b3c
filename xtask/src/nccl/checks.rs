//! What is run on each release.

use super::Net;
use super::build::Built;
use super::job::{Cure, Job, Rank};
use super::release::Release;
use super::report::{networks, warnings};
use crate::lab::shared::Place;
use crate::ui::Task;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// A release on a device.
pub(crate) struct Bench<'a> {
    pub(crate) release: &'a Release,
    pub(crate) built: &'a Built,
    pub(crate) place: Place<'a>,
    pub(crate) device: &'a str,
    pub(crate) net: Net,
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Small messages, one protocol for each number of ranks.
    Short,
    /// What is run on each change.
    Usual,
    /// Larger messages, every scenario on every number of ranks.
    Full,
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

/// These, and `ncclInvalidUsage`: what a peer with another plugin may be called, by whoever hears of it first.
const REFUSED: [i64; 3] = [2, 5, 6];

/// Frames lost and damaged, and nothing taken off the cable for a fifth of a second out of each second.
const FAULTS: &str = "loss=1e-3,corrupt=1e-3,stall=200/1000";

/// Each cable breaks after so many frames: a few AllReduces of 1 MiB, and more than it takes to connect.
const CUT: &str = "cut=2000";
/// How long these may take.
const CUT_AFTER: f64 = 5.0;

impl Bench<'_> {
    /// Runs all checks; returns what was checked and what failed.
    pub(crate) fn run(&self, ranks: &[u8], extent: Extent) -> (Tally, Vec<String>) {
        let mut tally = Tally::default();
        let mut failed = vec![];
        let mut said = false;
        for check in self.plan(ranks, extent) {
            let mut what = format!(
                "NCCL {} over {}, {} ranks, {}, {}",
                self.release.version,
                check.net.name(),
                check.ranks,
                check.protocol,
                check.scenario.join(" ")
            );
            if let Some(faults) = check.faults {
                what += &format!(", {faults}");
            }
            if check.cure == Cure::Name {
                what += ", also as libnccl-net.so";
            }
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

    fn plan(&self, ranks: &[u8], extent: Extent) -> Vec<Check> {
        let protocols = ["LL", "Simple"];
        let check = Check::new;
        if self.release.only_init() {
            return ranks
                .iter()
                .map(|&n| check(self.net, n, "Simple", &["init"]))
                .collect();
        }
        let mut plan = vec![];
        let largest = match extent {
            Extent::Short => "65540",
            Extent::Usual => "1048576",
            Extent::Full => "16777216",
        };
        let full = extent == Extent::Full;
        let self_check = ["verify", "--largest", "65540"];
        if extent == Extent::Short {
            let verify = ["verify", "--largest", largest];
            let protocols = ranks.iter().zip(protocols.into_iter().cycle());
            return protocols
                .map(|(&n, protocol)| check(self.net, n, protocol, &verify))
                .collect();
        }
        // What the emulation is at fault for shows on this machine.
        if self.net != Net::Socket && matches!(self.place, Place::Here) {
            let few = ranks.iter().copied().min().unwrap_or(2);
            plan.extend(protocols.map(|protocol| check(Net::Socket, few, protocol, &self_check)));
            plan.push(check(Net::Socket, few, "Simple", &["abort"]));
        }
        for &n in ranks {
            let verify = ["verify", "--largest", largest];
            plan.extend(protocols.map(|protocol| check(self.net, n, protocol, &verify)));
            let smallest = ranks.iter().min() == Some(&n);
            if full || smallest {
                plan.push(check(self.net, n, "Simple", &["abort"]));
                plan.push(check(self.net, n, "LL", &self.ends("kill")));
                let seconds = if full { "60" } else { "3" };
                plan.push(check(self.net, n, "Simple", &["pause", "--seconds", seconds]));
                if self.net == Net::Usb4 && n == 2 {
                    // Of more ranks some only see that others have given up.
                    plan.push(check(self.net, n, "Simple", &["mixed"]));
                    if self.release.reloads() {
                        plan.push(Check {
                            cure: Cure::Name,
                            ..check(self.net, n, "Simple", &self_check)
                        });
                    }
                }
                // The soft device takes orders for faults.
                if self.net == Net::Usb4 && self.device.starts_with("soft") {
                    let faulty = |protocol, scenario: &[&'static str], faults| Check {
                        faults: Some(faults),
                        ..check(self.net, n, protocol, scenario)
                    };
                    plan.extend(protocols.map(|protocol| faulty(protocol, &verify, FAULTS)));
                    plan.push(faulty("Simple", &self.ends("cut"), CUT));
                }
            }
        }
        plan
    }

    /// Runs ranks of which the first and the last have no cable to each other; what they are told.
    pub(crate) fn apart(&self, ranks: u8) -> Result<String> {
        let check = Check::new(self.net, ranks, "Simple", &["apart"]);
        let mut task = Task::start(format!("NCCL, {ranks} ranks, apart"), None);
        let (_, seen) = self.check(&check, &mut task)?;
        task.done(&seen);
        Ok(seen)
    }

    /// A scenario in which NCCL is to tell of an error, unless it tells nobody.
    fn ends(&self, scenario: &'static str) -> Vec<&'static str> {
        match self.release.mutes_errors() {
            true => vec![scenario, "--mute"],
            false => vec![scenario],
        }
    }

    fn check(&self, check: &Check, task: &mut Task) -> Result<(Vec<Rank>, String)> {
        let scenario = check.scenario.first().copied().unwrap_or_default();
        let job = Job {
            release: self.release,
            built: self.built,
            place: &self.place,
            net: check.net,
            device: self.device,
            ranks: check.ranks,
            protocol: check.protocol,
            buffer: None,
            scenario: &check.scenario,
            faults: check.faults,
            cure: check.cure,
            limit: Duration::from_secs(300),
        };
        let ranks = job.run(task)?;
        let mute = self.release.mutes_errors();
        let seen = if let "kill" | "cut" = scenario {
            let lost = Expected {
                within: ERROR_WITHIN + if scenario == "cut" { CUT_AFTER } else { 0.0 },
                codes: &LOST,
                mute,
            };
            lost.judge(&ranks, check.net)?
        } else if scenario == "apart" {
            apart(&ranks)?
        } else if scenario == "mixed" {
            let refused = Expected {
                within: ERROR_WITHIN + ABORT_WITHIN,
                codes: &REFUSED,
                mute,
            };
            refused.judge(&ranks, check.net)?
        } else if let Some(seconds) = slowest_abort(&ranks)? {
            format!("aborted within {seconds:.1} s")
        } else if scenario == "init" {
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
    /// On the soft cable.
    faults: Option<&'static str>,
    cure: Cure,
}

impl Check {
    fn new(net: Net, ranks: u8, protocol: &'static str, scenario: &[&'static str]) -> Check {
        Check {
            net,
            ranks,
            protocol,
            scenario: scenario.to_vec(),
            faults: None,
            cure: Cure::Count,
        }
    }
}

/// The error that every rank is to see.
struct Expected {
    /// In so many seconds at most.
    within: f64,
    /// NCCL's numbers for it.
    codes: &'static [i64],
    /// NCCL tells nobody but its log.
    mute: bool,
}

impl Expected {
    /// Every rank learnt in time of what has happened, and why.
    fn judge(&self, ranks: &[Rank], net: Net) -> Result<String> {
        let aborted = slowest_abort(ranks)?.unwrap_or_default();
        if self.mute {
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
            if seconds > self.within {
                bail!("rank {at} saw the error only after {seconds:.1} s");
            }
            if !self.codes.contains(&code) {
                bail!("rank {at} saw result {code} ({text}), which is not what this is called");
            }
            // NCCL's own transport is not ours to judge.
            if net == Net::Usb4 {
                told = only_one_each(&rank.log)
                    .with_context(|| format!("rank {at} saw result {code}, and should be told why once"))?;
            } else if told.is_empty() {
                told = warnings(&rank.log).first().copied().unwrap_or(text);
            }
            latest = latest.max(seconds);
        }
        Ok(format!(
            "error within {latest:.1} s, aborted within {aborted:.1} s; warning: {told}"
        ))
    }
}

/// Every rank that does not wait for ever learnt in time that two have no cable to each other, and which two.
fn apart(ranks: &[Rank]) -> Result<String> {
    let mut latest = 0.0_f64;
    for (at, rank) in ranks.iter().enumerate() {
        match rank.report.error() {
            Some((seconds, ..)) if seconds > ERROR_WITHIN + ABORT_WITHIN => {
                bail!("rank {} saw the error only after {seconds:.1} s", at + 1)
            }
            Some((seconds, ..)) => latest = latest.max(seconds),
            None => bail!("rank {} saw no error", at + 1),
        }
    }
    let last = ranks.last().context("no rank ended by itself")?;
    let told = only_one_each(&last.log)?;
    if !told.contains(": no peer ") {
        bail!("the last rank was told {told:?}");
    }
    Ok(format!("error within {latest:.1} s; warning: {told}"))
}

/// The plugin's first warning, which names peer and rail. There is not more than one about each peer.
fn only_one_each(log: &str) -> Result<&str> {
    let warnings = warnings(log);
    let about = |text: &&str| {
        let (_, rest) = text.split_once(": peer ")?;
        Some(rest.split_once(" rail ")?.0.to_string())
    };
    let mut peers: Vec<String> = warnings.iter().filter_map(about).collect();
    let count = peers.len();
    peers.sort_unstable();
    peers.dedup();
    match warnings.iter().find(|text| about(text).is_some()) {
        Some(first) if peers.len() == count => Ok(first),
        Some(_) => bail!("the plugin has warned of a peer more than once: {warnings:?}"),
        None => bail!("the plugin has warned of no peer: {warnings:?}"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_warned_of_once() {
        let line = |peer| {
            format!("vm:1:2 [0] core/a.rs:12 NCCL WARN NET/USB4: peer {peer} rail soft:x: it is gone\n")
        };
        let other = "vm:1:2 [0] NCCL WARN [Service thread] Error encountered progressing operation=Connect\n";
        let log = line("1") + other + &line("2");
        assert_eq!(
            only_one_each(&log).unwrap(),
            "NET/USB4: peer 1 rail soft:x: it is gone"
        );
        assert!(only_one_each(&(log + &line("1"))).is_err());
        assert!(only_one_each(other).is_err());
    }
}
