//! `usb4ctl lab`: what a running `usb4-nhi-emu` is asked for, and what it has recorded.
//!
//! * `stats.rs`: its counters as tables.
//! * `decode.rs`: its capture files in words.

mod decode;
mod stats;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde_json::Value;
use usb4_nhi_control::{Capture, Client, Request};

use crate::output::line;

/// Plugs, breaks and watches the emulated cables of a lab.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the emulator's sockets
    #[arg(long, env = "USB4_LAB_DIR", default_value = ".", global = true)]
    dir: PathBuf,
    /// Prints JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Ask(Request),
    /// Prints a capture in words
    Decode(decode::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::Ask(request) => ask(arguments, request.clone()),
        Command::Decode(command) => decode::run(command, arguments.json),
    }
}

fn ask(arguments: &Arguments, mut request: Request) -> Result<()> {
    if let Request::Capture(Capture::Start { file, .. }) = &mut request {
        // The emulator may run in another folder.
        *file = std::path::absolute(&*file).context("cannot tell which file is meant")?;
    }
    let answer = Client::connect(&arguments.dir)?.ask(&request)?;
    let value: Value = serde_json::from_str(&answer).context("the emulator's answer is no JSON")?;
    if arguments.json {
        line(&answer)?;
    }
    match (value["ok"].as_bool(), value["error"].as_str()) {
        (Some(true), _) if arguments.json => Ok(()),
        (Some(true), _) => stats::print(&value["stats"]),
        (_, Some(error)) => bail!("{error}"),
        _ => bail!("the emulator's answer is neither yes nor no"),
    }
}
