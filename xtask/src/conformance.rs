//! `cargo xtask conformance`: the ring API's conformance suite against one backend.

use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{cargo, target, work};
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Backends: `soft` is the device in the calling process, `soft,detached` in one of its own; both if not given.
    /// `/dev/usb4ring` is the kernel module's.
    #[arg(long)]
    device: Vec<String>,
    /// Run the suite this many times.
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Has every second peer on the host where `usb4-conformance --listen` runs.
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let both = ["soft".to_string(), "soft,detached".to_string()];
    let devices = if args.device.is_empty() {
        &both[..]
    } else {
        &args.device
    };
    let bins = build()?;
    let mut lines = vec![];
    let mut failed = false;
    for device in devices {
        let mut task = Task::start(format!("conformance on {device}"), None);
        let mut command = Command::new(bins.join("usb4-conformance"));
        command.args(["--device", device, "--repeat", &args.repeat.to_string()]);
        if let Some(second) = &args.connect {
            command.args(["--connect", second]);
        }
        command.env("USB4_SOFTD", bins.join("usb4-softd"));
        let log = work()
            .join("conformance")
            .join(format!("{}.log", device.replace([',', '/'], "-")));
        let outcome = process::run(&mut command, Duration::from_secs(1200), &log, Some(&mut task))?;
        let line = outcome
            .text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("conformance "))
            .unwrap_or(&outcome.how);
        task.done(line);
        lines.push(line.to_string());
        if !outcome.ok {
            failed = true;
            say!("{}", outcome.text.trim_end());
        }
    }
    Ok(Verdict::new(!failed, lines.join("; ")))
}

/// Builds the suite and the process that holds detached devices.
fn build() -> Result<PathBuf> {
    let mut task = Task::start("build the conformance suite", None);
    let mut command = cargo([
        "build",
        "--release",
        "--package",
        "usb4-testkit",
        "--package",
        "usb4-soft",
        "--bins",
    ]);
    let log = work().join("build/conformance.log");
    process::run(&mut command, Duration::from_secs(1200), &log, Some(&mut task))?.require("cargo build")?;
    task.done("built");
    Ok(target().join("release"))
}
