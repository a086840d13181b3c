//! `cargo xtask sim ...`: the simulator, built in release; arguments are `usb4-sim`'s own.

use crate::ui::Verdict;
use crate::workspace::cargo;
use anyhow::{Context, Result};

/// Exit status of a command that was used wrongly.
const USAGE: i32 = 2;

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
    let asked = |names: [&str; 2]| {
        args.arguments
            .iter()
            .any(|argument| names.contains(&argument.as_str()))
    };
    if asked(["--help", "-h"]) || asked(["--version", "-V"]) || status.code() == Some(USAGE) {
        // Nothing was simulated, so there is no verdict.
        std::process::exit(status.code().unwrap_or(1));
    }
    Ok(Verdict::new(
        status.success(),
        format!("usb4-sim {}: {status}", args.arguments.join(" ")),
    ))
}
