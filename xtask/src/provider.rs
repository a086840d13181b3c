//! Our libfabric provider, built for the programs that load it.

use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{cargo, target, work};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<Verdict> {
    Ok(Verdict::new(
        true,
        format!("FI_PROVIDER_PATH={}", folder()?.display()),
    ))
}

/// Builds the provider in release and returns the folder that holds it as `libusb4-fi.so`, the name by which
/// libfabric finds providers.
pub(crate) fn folder() -> Result<PathBuf> {
    let mut task = Task::start("build the libfabric provider", None);
    let mut command = cargo(["build", "--release", "--package", "usb4-fi"]);
    let log = work().join("build/usb4-fi.log");
    process::run(&mut command, Duration::from_secs(1200), &log, Some(&mut task))?.require("cargo build")?;
    let folder = target().join("providers");
    fs::create_dir_all(&folder).context("create the provider folder")?;
    // Copied under another name and renamed, so that a program that has the old one mapped keeps it.
    let (new, ready) = (folder.join(".new"), folder.join("libusb4-fi.so"));
    fs::copy(target().join("release/libusb4_fi.so"), &new).context("copy the provider")?;
    fs::rename(&new, &ready).context("put the provider in place")?;
    task.done("built");
    Ok(folder)
}
