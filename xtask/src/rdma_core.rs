//! `cargo xtask rdma-core`: what `rdma-core-sys` says of the border between libibverbs and its providers, next to Debian's
//! rdma-core: the headers its `libibverbs-dev` installs, those it does not, from the source package, and the library,
//! with which the provider is used.
//!
//! What cannot be had is named as skipped; a source tree of rdma-core's own (`--source`) will do, too.

use crate::cache;
use crate::debian::{self, Index};
use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{cargo, work};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const SUITES: [&str; 3] = ["bookworm", "trixie", "forky"];

const PACKAGE: &str = "libibverbs-dev";

/// The headers, the library, and what it and a program of this machine need.
const NEEDED: [&str; 6] = [
    PACKAGE,
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libc6",
    "libgcc-s1",
];

const LIBRARY: &str = "usr/lib/x86_64-linux-gnu/libibverbs.so.1";

/// First and last release of each layout (`rdma_core_sys::Layout`).
const LAYOUTS: [(u32, u32); 6] = [(36, 56), (57, 58), (59, 61), (62, 63), (64, 64), (65, 65)];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with this source tree of rdma-core's, too.
    #[arg(long, value_name = "FOLDER")]
    source: Vec<PathBuf>,
}

/// What a suite has.
pub(crate) struct Release {
    pub(crate) major: u32,
    /// What `libibverbs-dev` installs.
    pub(crate) include: PathBuf,
    /// libibverbs and what it and a program of this machine need, as a root folder.
    pub(crate) root: PathBuf,
    /// rdma-core's source, if it could be had.
    source: Option<PathBuf>,
}

/// Names of what a suite has, as the tests want them.
fn each(releases: &[Release], what: impl Fn(&Release) -> PathBuf) -> String {
    let each = releases
        .iter()
        .map(|release| format!("{}={}", release.major, what(release).display()));
    each.collect::<Vec<_>>().join(":")
}

fn folders(folders: impl Iterator<Item = PathBuf>) -> String {
    let names = folders.map(|folder| folder.display().to_string());
    names.collect::<Vec<_>>().join(":")
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    debian::ensure(&["gcc", "binutils", "libc6-dev", "python3"])?;
    let releases = releases()?;
    let mut sources = vec![];
    for folder in &args.source {
        sources.push(folder.canonicalize().context("a source tree")?);
    }
    sources.extend(releases.iter().filter_map(|release| release.source.clone()));
    if sources.is_empty() {
        return Ok(Verdict::fail(
            "there is no source of rdma-core: --source FOLDER takes one",
        ));
    }
    let mut command = cargo(["test", "--package", "rdma-core-sys", "--test", "layout", "--"]);
    command
        .args(["--include-ignored", "--nocapture"])
        .env(
            "RDMA_CORE_INCLUDE",
            each(&releases, |release| release.include.clone()),
        )
        .env(
            "RDMA_CORE_LIBRARY",
            each(&releases, |release| release.root.join(LIBRARY)),
        )
        .env("RDMA_CORE_SOURCE", folders(sources.into_iter()));
    let compared = compared(&test("compare structures with rdma-core", command)?);
    for (what, facts) in &compared {
        say!("{what}: {facts} facts");
    }
    let mut command = cargo([
        "test",
        "--package",
        "usb4-verbs",
        "--test",
        "load",
        "--test",
        "uverbs",
    ]);
    command.args(["--", "--nocapture"]);
    let roots = folders(releases.iter().map(|release| release.root.clone()));
    command.env("RDMA_CORE_ROOTS", roots);
    let text = test("use the provider with libibverbs", command)?;
    let used = text
        .lines()
        .filter(|line| line.contains("uverbs: with libibverbs of /"));
    let used = used.inspect(|line| say!("{line}")).count();
    for line in text.lines().filter(|line| line.contains("skipped: ")) {
        say!("{line}");
    }
    let without: Vec<String> = LAYOUTS
        .iter()
        .filter(|(first, last)| !seen(&compared, *first, *last))
        .map(|(first, last)| format!("{first} to {last}"))
        .collect();
    if !without.is_empty() {
        say!(
            "skipped: driver.h of rdma-core {}, of which Debian has no source now; --source FOLDER takes one",
            without.join(", ")
        );
    }
    let facts: u32 = compared.values().sum();
    // Where nothing was compared, or a library could not be used (no mount namespace, say), nothing is known.
    Ok(Verdict::new(
        facts > 0 && without.len() < LAYOUTS.len() && used == releases.len(),
        format!(
            "{facts} facts; driver.h of {} of {} layouts; used with {used} of {} libraries of Debian's",
            LAYOUTS.len() - without.len(),
            LAYOUTS.len(),
            releases.len()
        ),
    ))
}

/// Runs tests; what they say.
fn test(what: &str, mut command: Command) -> Result<String> {
    let mut task = Task::start(what, None);
    let log = work().join("rdma-core.log");
    let outcome = process::run(&mut command, Duration::from_secs(500), &log, Some(&mut task))?;
    let text = outcome.require("cargo test")?.text;
    task.done("done");
    Ok(text)
}

/// What the tests say they have compared: `compared private-44: 300 facts`.
fn compared(text: &str) -> BTreeMap<String, u32> {
    let lines = text.lines().filter_map(|line| {
        let (what, rest) = line.split_once("compared ")?.1.split_once(": ")?;
        Some((what.to_string(), rest.strip_suffix(" facts")?.parse().ok()?))
    });
    lines.collect()
}

/// Whether the private header of one of the releases from `first` to `last` was compared.
fn seen(compared: &BTreeMap<String, u32>, first: u32, last: u32) -> bool {
    (first..=last).any(|major| compared.contains_key(&format!("private-{major}")))
}

/// Debian's rdma-cores, the oldest first.
pub(crate) fn releases() -> Result<Vec<Release>> {
    SUITES.into_iter().map(fetch).collect()
}

fn fetch(suite: &str) -> Result<Release> {
    let index = Index::read_with_sources(suite)?;
    let version = index.version(PACKAGE)?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    let major = digits.parse().with_context(|| format!("{PACKAGE} {version}"))?;
    let packages: Vec<String> = NEEDED.iter().map(|name| name.to_string()).collect();
    let key = cache::key(
        packages
            .iter()
            .map(String::as_str)
            .chain([version.as_str()])
            .map(str::as_bytes),
    );
    let root = cache::entry(&format!("libibverbs-{version}-{key}"), |at| {
        index.unpack(&packages, &[], at)
    })?;
    let source = cache::entry(&format!("rdma-core-{version}-{key}"), |at| {
        index.upstream("rdma-core", at)
    });
    if let Err(error) = &source {
        let lines = error.to_string();
        let why = lines
            .lines()
            .find(|line| line.starts_with("E: "))
            .unwrap_or(&lines);
        say!("skipped: driver.h of rdma-core in {suite}: {why}");
    }
    Ok(Release {
        major,
        include: root.join("usr/include"),
        root,
        source: source.ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_compared_is_read_from_the_tests() {
        let text =
            "running 2 tests\ntest x ... compared private-44: 300 facts\ncompared public-56: 20 facts\nok";
        let compared = compared(text);
        assert_eq!(compared.get("private-44"), Some(&300));
        assert!(seen(&compared, 36, 56));
        assert!(!seen(&compared, 57, 58));
    }
}
