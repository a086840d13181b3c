//! Our providers of libfabric and libibverbs, built for the programs that load them.

use crate::debian;
use crate::process;
use crate::rdma_core::Release;
use crate::ui::{Task, Verdict};
use crate::workspace::{cargo, root, target, work};
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Private ABIs of libibverbs for which the provider has a name.
const PRIVATE_ABIS: [u32; 5] = [34, 57, 59, 64, 65];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The provider of libibverbs.
    #[arg(long)]
    verbs: bool,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let line = if args.verbs {
        format!("IBV_DRIVERS={}/libusb4", verbs_folder()?.display())
    } else {
        format!("FI_PROVIDER_PATH={}", folder()?.display())
    };
    Ok(Verdict::new(true, line))
}

/// Builds the provider of libibverbs in release and returns the folder that holds it by each of its names, beside its
/// `usb4.driver`.
pub(crate) fn verbs_folder() -> Result<PathBuf> {
    let mut task = Task::start("build the provider of libibverbs", None);
    let mut command = cargo(["build", "--release", "--package", "usb4-verbs"]);
    let log = work().join("build/usb4-verbs.log");
    process::run(&mut command, Duration::from_secs(1200), &log, Some(&mut task))?.require("cargo build")?;
    let folder = target().join("verbs");
    fs::create_dir_all(&folder).context("create the provider folder")?;
    let [first, others @ ..] = PRIVATE_ABIS.map(|number| format!("libusb4-rdmav{number}.so"));
    install(&target().join("release/libusb4_verbs.so"), &folder.join(&first))?;
    for other in others {
        let link = folder.join(other);
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link).context("remove an old name of the provider")?;
        }
        symlink(&first, link).context("give the provider its names")?;
    }
    let driver = root().join("verbs-provider/usb4.driver");
    install(&driver, &folder.join("usb4.driver"))?;
    task.done("built");
    Ok(folder)
}

/// Builds the example of verbs in C against the oldest of these, so that it runs with all of them.
pub(crate) fn verbs_example(releases: &[Release]) -> Result<PathBuf> {
    debian::ensure(&["gcc", "libc6-dev"])?;
    let oldest = releases.first().context("Debian has no libibverbs")?;
    let folder = work().join("build");
    fs::create_dir_all(&folder).context("create the build folder")?;
    let program = folder.join("verbs-pingpong");
    let mut command = Command::new("gcc");
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    command.arg(&program);
    command.arg(root().join("examples/c/verbs-pingpong.c"));
    command.arg("-I").arg(&oldest.include);
    command.arg(oldest.root.join("usr/lib/x86_64-linux-gnu/libibverbs.so.1"));
    // What the library needs is with it, and not on this machine.
    command.arg("-Wl,--allow-shlib-undefined");
    let log = folder.join("verbs-pingpong.log");
    process::run(&mut command, Duration::from_secs(60), &log, None)?.require("gcc")?;
    Ok(program)
}

/// Builds the example of verbs in Rust, which finds libibverbs when it runs.
pub(crate) fn verbs_example_in_rust() -> Result<PathBuf> {
    let mut task = Task::start("build the example of verbs", None);
    let mut command = cargo(["build", "--release", "--package", "verbs-pingpong"]);
    let log = work().join("build/verbs-example.log");
    process::run(&mut command, Duration::from_secs(600), &log, Some(&mut task))?.require("cargo build")?;
    task.done("built");
    Ok(target().join("release/verbs-pingpong"))
}

/// Copies a file under another name and renames it, so that a program that has the old one mapped keeps it.
fn install(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new).with_context(|| format!("copy {}", from.display()))?;
    fs::rename(&new, to).with_context(|| format!("put {} in place", to.display()))
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
    install(
        &target().join("release/libusb4_fi.so"),
        &folder.join("libusb4-fi.so"),
    )?;
    task.done("built");
    Ok(folder)
}
