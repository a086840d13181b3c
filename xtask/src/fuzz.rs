//! `cargo xtask fuzz`: every target of `fuzz/` under libFuzzer, for an equal share of the time each.
//!
//! The targets are built with the toolchain in use: coverage instrumentation is a stable code generation
//! option, and what is fuzzed is safe Rust, built with overflow checks and debug assertions, so a sanitizer would
//! add little. What libFuzzer finds worth keeping stays in `target/xtask/fuzz/corpus` for the next run.

use crate::debian;
use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{cargo, root, work};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds for all targets together; each gets at least one, and libFuzzer rounds up.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Fuzz only these targets.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// A target and the longest input it can make use of.
const TARGETS: [(&str, u32); 8] = [
    ("frame_parse", 4100),
    ("control_parse", 100),
    ("rail_control", 1024),
    ("link_events", 1024),
    ("queue_hostile", 512),
    ("verbs_hostile", 768),
    ("nhi_hostile", 1024),
    ("emu_client", 1024),
];

/// Instrumentation for libFuzzer: edge counters, and the operands of comparisons to steer by.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Seconds after which libFuzzer takes one input for a hang.
const INPUT_LIMIT: u32 = 10;

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    for name in &args.only {
        if !TARGETS.iter().any(|(target, _)| target == name) {
            bail!("there is no fuzz target {name}");
        }
    }
    let chosen = TARGETS
        .iter()
        .filter(|(target, _)| args.only.is_empty() || args.only.iter().any(|name| name == target));
    let chosen: Vec<_> = chosen.collect();
    let dir = work().join("fuzz");
    let bins = build(&dir)?;
    let share = (args.seconds / chosen.len().max(1) as u64).max(1);
    let mut inputs = 0;
    let mut failed = vec![];
    for (target, longest) in &chosen {
        match fuzz(&dir, &bins, target, *longest, share)? {
            Some(runs) => inputs += runs,
            None => failed.push(*target),
        }
    }
    let count = chosen.len();
    Ok(if failed.is_empty() {
        Verdict::new(true, format!("{inputs} inputs over {count} targets, no crash"))
    } else {
        Verdict::fail(format!("crash or hang in {}", failed.join(", ")))
    })
}

/// Builds all targets and returns the folder they are in.
fn build(dir: &Path) -> Result<std::path::PathBuf> {
    debian::ensure(&["g++"])?;
    let mut task = Task::start("build the fuzz targets (the first time takes minutes)", None);
    // With --target, the flags do not reach build scripts.
    let triple = host()?;
    let mut command = cargo(["build", "--release", "--bins", "--locked", "--target"]);
    command
        .arg(&triple)
        .arg("--manifest-path")
        .arg(root().join("fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(dir)
        .env("RUSTFLAGS", RUSTFLAGS)
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let outcome = process::run(
        &mut command,
        Duration::from_secs(600),
        &dir.join("build.log"),
        Some(&mut task),
    )?;
    outcome.require("building the fuzz targets")?;
    task.done("built");
    Ok(dir.join(triple).join("release"))
}

/// Fuzzes one target; the number of inputs tried, or `None` if one of them crashed it.
fn fuzz(dir: &Path, bins: &Path, target: &str, longest: u32, seconds: u64) -> Result<Option<u64>> {
    let corpus = dir.join("corpus").join(target);
    let artifacts = dir.join("artifacts");
    std::fs::create_dir_all(&artifacts).with_context(|| format!("create {}", artifacts.display()))?;
    let bin = bins.join(target);
    let log = dir.join(format!("{target}.log"));
    let minute = Duration::from_secs(60);
    process::run(
        Command::new(&bin).env("USB4_FUZZ_SEEDS", &corpus),
        minute,
        &log,
        None,
    )?
    .require("writing the seeds")?;

    let mut task = Task::start(format!("fuzz {target}"), None);
    let mut command = Command::new(&bin);
    command
        .current_dir(dir)
        .arg(&corpus)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={longest}"))
        .arg(format!("-timeout={INPUT_LIMIT}"))
        .arg(format!("-artifact_prefix={}/{target}-", artifacts.display()))
        .arg("-print_final_stats=1");
    let outcome = process::run(
        &mut command,
        Duration::from_secs(seconds) + 2 * minute,
        &log,
        Some(&mut task),
    )?;
    if !outcome.ok {
        task.done(&format!("{}, log {}", outcome.how, log.display()));
        say!("{}", outcome.tail(30));
        return Ok(None);
    }
    let runs = executed(&outcome.text).context("libFuzzer did not say how much it did")?;
    task.done(&format!("{runs} inputs"));
    Ok(Some(runs))
}

/// The number of inputs in libFuzzer's final statistics.
fn executed(log: &str) -> Option<u64> {
    let line = log
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    line.trim().parse().ok()
}

/// The triple this machine's compiler builds for by default.
fn host() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("run rustc -vV")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_inputs_is_read_from_the_statistics() {
        let log = "Done 7 runs in 1 second(s)\nstat::number_of_executed_units: 1234\nstat::x: 1";
        assert_eq!(executed(log), Some(1234));
        assert_eq!(executed("no statistics"), None);
    }
}
