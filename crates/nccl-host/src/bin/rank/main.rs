//! One rank of an NCCL job without a GPU: `cargo xtask nccl` starts several.
//!
//! What it does and how it went is on standard output, one JSON object a line (see [`report`]). The exit status is 0 only
//! if everything was as it should be.

mod buffers;
mod meet;
mod operations;
mod report;
mod scenarios;

use clap::Parser;
use meet::Meeting;
use report::{Event, say};
use scenarios::{Job, Scenario};
use std::panic;
use std::path::PathBuf;
use std::process::{self, ExitCode};
use usb4_nccl_host::Nccl;

/// One rank of an NCCL job without a GPU.
#[derive(Parser)]
struct Args {
    /// NCCL's library, as its wheel ships it.
    #[arg(long)]
    library: PathBuf,
    /// Which rank this is.
    #[arg(long)]
    rank: usize,
    /// How many there are.
    #[arg(long)]
    ranks: usize,
    /// Folder, empty at first, in which the ranks find each other's communicators.
    #[arg(long)]
    meet: PathBuf,
    /// What to do.
    #[command(subcommand)]
    scenario: Scenario,
}

fn main() -> ExitCode {
    // A stream whose thread is gone would be a hang.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        hook(info);
        process::exit(70);
    }));
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&Event::Failed {
                text: format!("{error:#}"),
            });
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let nccl = Nccl::load(&args.library)?;
    let version = nccl.version();
    let patched = nccl.patched();
    say(&Event::Loaded {
        rank: args.rank,
        version: format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100),
        implemented: patched.implemented,
        missing: patched.missing,
        kernels: patched.kernels,
        emulated: patched.emulated,
    });
    let mut job = Job {
        nccl,
        rank: args.rank,
        ranks: args.ranks,
        meeting: Meeting::new(&args.meet),
    };
    args.scenario.run(&mut job)
}
