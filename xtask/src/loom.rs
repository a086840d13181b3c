//! `cargo xtask loom`: every interleaving of the queue cursors, the owner word and the cable's rings.

use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{cargo, work};
use anyhow::Result;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {}

/// Packages with loom models, and how to run just those.
const MODELS: [(&str, &[&str]); 3] = [
    ("usb4-ring-abi", &["--test", "loom"]),
    ("usb4-device", &["--lib", "loom_tests::"]),
    ("usb4-soft", &["--lib", "loom_tests::"]),
];

pub(crate) fn run(_: &Args) -> Result<Verdict> {
    let mut total = 0;
    let mut failed = vec![];
    for (package, models) in MODELS {
        let mut task = Task::start(format!("loom models of {package}"), None);
        let mut command = cargo(["test", "--package", package]);
        // Models explore millions of interleavings, so they are optimised; everything else is built as usual.
        command
            .args(models)
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "3");
        command.env("CARGO_TARGET_DIR", work().join("loom"));
        let log = work().join("loom").join(format!("{package}.log"));
        let outcome = process::run(&mut command, Duration::from_secs(1200), &log, Some(&mut task))?;
        let passed = passed(&outcome.text);
        task.done(&format!("{passed} models, {}", outcome.how));
        total += passed;
        if !outcome.ok || passed == 0 {
            say!("{}", outcome.tail(60));
            failed.push(package);
        }
    }
    Ok(match failed.as_slice() {
        [] => Verdict::new(true, format!("{total} models")),
        _ => Verdict::fail(format!("models of {} failed", failed.join(", "))),
    })
}

/// Sum of the `N passed` of every test program.
fn passed(text: &str) -> u32 {
    let results = text.lines().filter_map(|line| line.strip_prefix("test result: "));
    results
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u32>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_models_of_all_programs_are_counted() {
        let text =
            "test result: ok. 4 passed; 0 failed; 0 ignored\nx\ntest result: FAILED. 2 passed; 1 failed\n";
        assert_eq!(super::passed(text), 6);
    }
}
