//! `cargo xtask checkpatch`: the kernel's own style check over `kmod/`.
//!
//! checkpatch.pl is in none of the packages that modules are built with, only in the kernel's source: of that it is kept
//! in the cache with the lists it reads.

use crate::cache;
use crate::debian;
use crate::linux_source;
use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{root, work};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What is kept of the source.
const FILES: &[&str] = &[
    "scripts/checkpatch.pl",
    "scripts/spelling.txt",
    "scripts/const_structs.checkpatch",
];

const LIMIT: Duration = Duration::from_secs(900);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Check these files instead of all of kmod/.
    files: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    debian::ensure(&["perl", "xz-utils"])?;
    let program = program()?;
    let files = if args.files.is_empty() {
        sources(&root().join("kmod"))?
    } else {
        args.files.clone()
    };
    let mut command = Command::new("perl");
    command
        .arg(&program)
        .args(["--no-tree", "--terse", "--no-summary", "--show-types", "--file"])
        .args(&files)
        .current_dir(root());
    let mut task = Task::start("checkpatch.pl", None);
    let log = work().join("checkpatch.log");
    let outcome = process::run(&mut command, LIMIT, &log, Some(&mut task))?;
    task.done("has run");
    let kinds = ["ERROR:", "WARNING:"];
    let found: Vec<&str> = outcome
        .text
        .lines()
        .filter(|line| kinds.iter().any(|kind| line.contains(kind)))
        .collect();
    found.iter().for_each(|line| say!("{line}"));
    let seen = format!("{} files, {} errors and warnings", files.len(), found.len());
    if found.is_empty() {
        // It fails for complaints only; without one it has not done what it was asked for.
        outcome.require("checkpatch.pl")?;
        return Ok(Verdict::new(true, seen));
    }
    Ok(Verdict::fail(seen))
}

/// The C files of a folder, without those that are made.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let wanted = |path: &PathBuf| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        (name.ends_with(".c") || name.ends_with(".h")) && !name.ends_with(".mod.c")
    };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(wanted)
        .collect();
    files.sort();
    if files.is_empty() {
        bail!("{} has no C files", folder.display());
    }
    Ok(files)
}

/// Where it is, unpacked if it is not there yet.
fn program() -> Result<PathBuf> {
    let parts = [linux_source::SUITE].into_iter().chain(FILES.iter().copied());
    let key = cache::key(parts.map(str::as_bytes));
    let at = cache::entry(&format!("checkpatch-{key}"), |at| linux_source::unpack(at, FILES))?;
    Ok(at.join(FILES[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_c_file_of_the_module_is_checked() {
        let files = sources(&root().join("kmod")).unwrap();
        let has = |name: &str| files.iter().any(|path| path.ends_with(name));
        assert!(has("kmod/main.c") && has("kmod/usb4_core.h"), "{files:?}");
    }
}
