//! Our providers of libfabric and libibverbs, built for the programs that load them.

use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{cargo, root, target, work};
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
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
