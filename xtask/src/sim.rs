//! `cargo xtask sim ...`: the simulator, built in release; arguments are `usb4-sim`'s own.

use crate::ui::Verdict;
use crate::workspace::cargo;
use anyhow::{Context, Result};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// See `cargo xtask sim --help`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let mut command = cargo(["run", "--release", "--package", "usb4-sim", "--"]);
    let status = command
        .args(&args.arguments)
        .status()
        .context("run the simulator")?;
    Ok(Verdict::new(
        status.success(),
        format!("usb4-sim {}: {status}", args.arguments.join(" ")),
    ))
}
