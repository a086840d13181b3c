//! Programs of this workspace that the lab runs, in guests and beside them: linked statically, since a guest has another
//! C library than this machine, except for those that load libraries of the guest's.

use crate::process;
use crate::ui::Task;
use crate::workspace::{cargo, work};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Naming the target, though it is this machine's, keeps the flags away from build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// How a program finds the C library.
#[derive(Clone, Copy, PartialEq)]
enum Linked {
    Statically,
    Dynamically,
}

/// Builds the program `binary` of `package`, once, and says where it is.
pub(crate) fn build(package: &str, binary: &str) -> Result<PathBuf> {
    build_once(package, binary, Linked::Statically)
}

/// The same for a program that loads libraries.
pub(crate) fn build_dynamic(package: &str, binary: &str) -> Result<PathBuf> {
    build_once(package, binary, Linked::Dynamically)
}

fn build_once(package: &str, binary: &str, linked: Linked) -> Result<PathBuf> {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(binary) {
        return Ok(path.clone());
    }
    let path = cargo_build(package, binary, linked)?;
    built.insert(binary.to_string(), path.clone());
    Ok(path)
}

fn cargo_build(package: &str, binary: &str, linked: Linked) -> Result<PathBuf> {
    let (folder, flags) = match linked {
        Linked::Statically => ("lab/cargo", "-C target-feature=+crt-static"),
        Linked::Dynamically => ("lab/cargo-dynamic", ""),
    };
    let folder = work().join(folder);
    let mut command = cargo([
        "build",
        "--quiet",
        "--release",
        "--target",
        TARGET,
        "--package",
        package,
    ]);
    command.args(["--bin", binary, "--target-dir"]).arg(&folder);
    command.env("RUSTFLAGS", flags);
    // Fat LTO and one codegen unit are for what is measured.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let mut task = Task::start(format!("build {binary}"), None);
    let log = folder.join(format!("{binary}.log"));
    process::run(&mut command, Duration::from_secs(600), &log, Some(&mut task))?.require("cargo build")?;
    task.done("built");
    Ok(folder.join(TARGET).join("release").join(binary))
}
