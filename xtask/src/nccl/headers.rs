//! `cargo xtask nccl --headers`: our declarations of the network plugin's interface next to a header.
//!
//! The only package that has one is Debian's `librccl-dev`; it need not be installed.

use super::release::SUITE;
use crate::cache;
use crate::debian::{self, Index};
use crate::process;
use crate::ui::{Task, Verdict};
use crate::workspace::{cargo, work};
use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;

const PACKAGE: &str = "librccl-dev";

pub(super) fn run() -> Result<Verdict> {
    debian::ensure(&["libclang-dev"])?;
    let include = include()?;
    let mut task = Task::start("compare structures with RCCL's header", None);
    let mut command = cargo(["test", "--package", "nccl-net-sys", "--test", "layout", "--"]);
    command.arg("--include-ignored").env("RCCL_INCLUDE", &include);
    let log = work().join("nccl/headers.log");
    let outcome = process::run(&mut command, Duration::from_secs(900), &log, Some(&mut task))?
        .require("cargo test of nccl-net-sys")?;
    task.done("compared");
    let line = outcome
        .text
        .lines()
        .find(|line| line.starts_with("test result: "));
    Ok(Verdict::new(
        true,
        format!("{}: {}", include.display(), line.unwrap_or_default()),
    ))
}

/// The folder with `nccl_net.h`.
fn include() -> Result<PathBuf> {
    let key = cache::key([SUITE, PACKAGE].map(str::as_bytes));
    let tree = cache::entry(&format!("{PACKAGE}-{SUITE}-{key}"), |at| {
        Index::read(SUITE)?.unpack(&[PACKAGE.to_string()], &[], at)
    })?;
    Ok(tree.join("usr/include/rccl"))
}
