//! The kernel's source, as Debian packages it.

use crate::debian::Index;
use crate::process;
use crate::ui::Task;
use crate::workspace::work;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Where the newest is. All of the suite's kernels are built from it.
pub(crate) const SUITE: &str = "trixie-backports";

const LIMIT: Duration = Duration::from_secs(900);

/// Unpacks the newest source to `at`, or only `files` of it.
pub(crate) fn unpack(at: &Path, files: &[&str]) -> Result<()> {
    let index = Index::read(SUITE)?;
    let names = index.names("^linux-source-[0-9]+[.][0-9]+$")?;
    let name = newest(names).context("Debian has no source of a kernel")?;
    let whole = at.with_extension("whole");
    index.unpack(std::slice::from_ref(&name), &[], &whole)?;
    let archive = whole.join("usr/src").join(format!("{name}.tar.xz"));
    fs::create_dir_all(at).context("create the folder for the kernel's source")?;
    let mut command = Command::new("tar");
    command
        .arg("-xJf")
        .arg(&archive)
        .arg("-C")
        .arg(at)
        .arg("--strip-components=1")
        .args(files.iter().map(|file| format!("{name}/{file}")));
    let mut task = Task::start(format!("unpack {name}"), None);
    let log = work().join("linux-source.log");
    process::run(&mut command, LIMIT, &log, Some(&mut task))?.require("tar")?;
    task.done("unpacked");
    fs::remove_dir_all(&whole).context("remove the packed source")
}

fn newest(names: Vec<String>) -> Option<String> {
    names.into_iter().max_by_key(|name| {
        let version = name.trim_start_matches("linux-source-");
        let numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        numbers.collect::<Vec<u32>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let names = ["linux-source-6.12", "linux-source-7.10", "linux-source-7.9"];
        let names = names.map(str::to_string).to_vec();
        assert_eq!(newest(names).as_deref(), Some("linux-source-7.10"));
        assert_eq!(newest(vec![]), None);
    }
}
