//! `usb4ctl doctor`: what keeps NCCL or RCCL from using USB4 here, and what mends it.
//!
//! Facts are gathered in `gather/`, which does all the I/O; `check_*.rs` turn them into findings and do none.

mod check_device;
mod check_network;
mod check_plugin;
mod check_runtime;
mod facts;
mod finding;
mod gather;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::output::{line, remark};
use facts::Facts;
use finding::{Finding, Level};

/// Finds what keeps NCCL or RCCL from using USB4, and says what mends it.
///
/// Looks at the environment it is started with: run it where the job would run, with the job's variables, in its
/// container. Exit status: 0 no problem, 1 problems found, 2 could not look.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Loads this library and tells what it is; doctor calls itself so, since a library may do anything to its process.
    #[arg(long, hide = true, value_name = "LIBRARY")]
    probe: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    problems: usize,
    notes: usize,
    findings: &'a [Finding],
}

/// What is left to do of a machine on which all is well.
const WELL: &str =
    "nothing keeps NCCL from using USB4 here; a run with NCCL_DEBUG=INFO says \"Using network USB4\"";

pub(crate) fn run(device: Option<&str>, arguments: &Arguments) -> ExitCode {
    match diagnose(device, arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            remark(format_args!("usb4ctl: {}", crate::sentence(&error)));
            ExitCode::from(2)
        }
    }
}

/// Prints the findings and returns how many are problems.
fn diagnose(device: Option<&str>, arguments: &Arguments) -> Result<usize> {
    if let Some(library) = &arguments.probe {
        line(serde_json::to_string(&gather::probe(library))?)?;
        return Ok(0);
    }
    let findings = examine(&gather::facts(device)?);
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, notes) = (count(Level::Problem), count(Level::Note));
    if arguments.json {
        let report = Report {
            problems,
            notes,
            findings: &findings,
        };
        line(serde_json::to_string_pretty(&report)?)?;
        return Ok(problems);
    }
    for finding in &findings {
        line(finding)?;
    }
    line("")?;
    match problems {
        0 => line(WELL)?,
        1 => line("1 problem")?,
        more => line(format_args!("{more} problems"))?,
    }
    Ok(problems)
}

/// All that can be said about `facts`.
fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![];
    check_device::device(facts, &mut findings);
    check_device::links(facts, &mut findings);
    check_device::memlock(facts, &mut findings);
    check_runtime::runtimes(facts, &mut findings);
    check_plugin::plugins(facts, &mut findings);
    check_plugin::network_choice(facts, &mut findings);
    check_runtime::reload_bug(facts, &mut findings);
    check_network::bootstrap(facts, &mut findings);
    check_device::container(facts, &mut findings);
    findings
}
