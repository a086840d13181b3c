//! rdma-core's own tests of verbs, in Python, on `usb4_0`: each device with itself.
//!
//! `pyverbs.txt` names those that cannot pass, and why. What skips itself is counted by the reason it gives.

use super::{Outcome, chroot};
use crate::lab::session::{Lab, Plan};
use crate::workspace::root;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long all of them may take.
const LIMIT: Duration = Duration::from_secs(900);

/// Tests that fail, each with the reason.
const EXPECTED: &str = include_str!("pyverbs.txt");

/// Where guests have the program that runs them.
const RUNNER: &str = "tmp/run-pyverbs.py";

/// Adds what runs them to what guests get.
pub(super) fn plan(plan: &mut Plan) {
    let path = root().join("xtask/src/lab/suites/pyverbs.py");
    plan.files.push((RUNNER.to_string(), path));
}

/// Runs all of them in one guest.
pub(super) fn itself(lab: &mut Lab) -> Result<Outcome> {
    // They are in the tree, packed.
    let tests = lab.programs().join("usr/share/doc/rdma-core/tests");
    let script = format!("cp -r '{}' /tmp/tests && gunzip /tmp/tests/*.gz", tests.display());
    lab.guest(0)?.sh(&script)?;
    let command = chroot::inside(lab, &format!("python3 /{RUNNER} usb4_0 0"));
    let output = lab.guest(0)?.run(&command, LIMIT)?;
    std::fs::write(lab.logs.join("pyverbs.log"), &output.stdout)?;
    std::fs::write(lab.logs.join("pyverbs.err"), &output.stderr)?;
    if !output.ok() {
        bail!("{output}");
    }
    let summary = judge(&output.text(), EXPECTED)?;
    Ok(Outcome::Seen(summary))
}

/// Holds what tests said against what is expected.
fn judge(said: &str, expected: &str) -> Result<String> {
    let expected: BTreeMap<&str, &str> = expected
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .collect();
    let (mut passed, mut begun) = (0, 0);
    let mut skipped: BTreeMap<String, usize> = BTreeMap::new();
    let (mut wrong, mut failed) = (vec![], vec![]);
    for line in said.lines() {
        let Some((outcome, rest)) = line.split_once(' ') else {
            continue;
        };
        let (id, reason) = rest.split_once(": ").unwrap_or((rest, ""));
        match outcome {
            "begin" => begun += 1,
            "ok" => {
                passed += 1;
                if expected.contains_key(id) {
                    wrong.push(format!("{id} passes, and pyverbs.txt says it does not"));
                }
            }
            "skip" => *skipped.entry(reason.to_string()).or_default() += 1,
            "fail" if expected.contains_key(id) => failed.push(id),
            "fail" => wrong.push(format!("{id}: {reason}")),
            _ => {}
        }
    }
    let skips: usize = skipped.values().sum();
    if begun == 0 || begun != passed + skips + failed.len() + wrong.len() {
        wrong.push(format!("of {begun} tests not all have ended"));
    }
    if !wrong.is_empty() {
        bail!("{passed} passed, {skips} skipped\n{}", wrong.join("\n"));
    }
    Ok(format!(
        "{passed} passed, {skips} skipped for {} reasons, {} failed as they must",
        skipped.len(),
        failed.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str =
        "begin a.x\nok a.x\nnoise\nbegin a.y\nskip a.y: no ODP: at all\nbegin a.z\nfail a.z: E: why\n";

    #[test]
    fn a_failure_is_one_unless_it_is_expected() {
        assert!(judge(SAID, "").unwrap_err().to_string().contains("a.z: E: why"));
        let said = judge(SAID, "# comment\n\na.z: cannot\n").unwrap();
        assert_eq!(said, "1 passed, 1 skipped for 1 reasons, 1 failed as they must");
    }

    #[test]
    fn a_test_that_passes_against_the_list_is_told_of() {
        let error = judge(SAID, "a.x: cannot\na.z: cannot\n").unwrap_err().to_string();
        assert!(error.contains("a.x passes"), "{error}");
    }

    #[test]
    fn a_test_that_does_not_end_is_missed() {
        assert!(judge("begin a.x\nok a.x\nbegin a.y\n", "").is_err());
        assert!(judge("", "").is_err());
    }

    #[test]
    fn every_expected_failure_has_a_reason() {
        for line in EXPECTED
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let (id, reason) = line.split_once(": ").unwrap();
            assert!(id.starts_with("tests.test_") && reason.len() > 10, "{line}");
        }
    }
}
