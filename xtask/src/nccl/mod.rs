//! `cargo xtask nccl`: stock releases of NCCL over the net plugin, on a machine without a GPU.
//!
//! Each rank is a process of its own and a host of its own to NCCL (`crates/nccl-host`). Everything is run over NCCL's
//! socket transport first: what fails there is a fault of the emulation, not of the plugin. Start at [`checks`].

mod build;
mod checks;
mod compare;
mod job;
mod release;
mod report;
mod rules;

use crate::interrupt;
use crate::ui::Verdict;
use anyhow::Result;
use build::Built;
use checks::Tally;
use release::Release;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Releases of NCCL, and `rccl` for Debian's RCCL; those whose kernels are not emulated are only initialised.
    #[arg(long, value_delimiter = ',', default_value = "2.30.7")]
    nccl: Vec<String>,
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', default_value = "2,4", value_parser = clap::value_parser!(u8).range(2..=16))]
    ranks: Vec<u8>,
    /// Device for the ranks: `soft` (a cable of its own) or `soft:NAME`.
    #[arg(long, default_value = "soft")]
    device: String,
    /// Network: `usb4`, or `socket`, which shows that the runner itself is right.
    #[arg(long, value_enum, default_value = "usb4")]
    net: Net,
    /// Longer: larger messages, every scenario on every number of ranks, then the comparison of `--compare`.
    #[arg(long)]
    full: bool,
    /// Only time AllReduce, 8 B to 16 MiB on two ranks, over usb4 and over NCCL's sockets.
    #[arg(long)]
    compare: bool,
    /// Only test the rules R1 to R32 of a network plugin, without NCCL; with `--full` for every version of its interface.
    #[arg(long, conflicts_with_all = ["nccl", "ranks", "net", "compare"])]
    rules: bool,
}

/// What NCCL moves data with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Net {
    /// The plugin.
    Usb4,
    /// NCCL's own sockets.
    Socket,
}

impl Net {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Net::Usb4 => "usb4",
            Net::Socket => "socket",
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    interrupt::handle()?;
    let device = crate::mpi::device(&args.device)?;
    if args.rules {
        return rules::run(&build::plugin_folder()?, &device, args.full);
    }
    // Before anything is built, so that an unknown release costs nothing.
    let releases: Vec<Release> = args
        .nccl
        .iter()
        .map(|version| Release::get(version))
        .collect::<Result<_>>()?;
    let built = Built::get()?;
    let mut failures = vec![];
    let mut total = Tally::default();
    for release in &releases {
        interrupt::check()?;
        let bench = checks::Bench {
            release,
            built: &built,
            device: &device,
            net: args.net,
        };
        let mut wrong = vec![];
        if !args.compare {
            let (tally, failed) = bench.run(&args.ranks, args.full);
            total.add(&tally);
            wrong.extend(failed);
            let outcome = if wrong.is_empty() { "ok" } else { "FAILED" };
            say!(
                "NCCL {} over {}: {outcome}, {tally}",
                release.version,
                args.net.name()
            );
        }
        if (args.compare || args.full) && !release.only_init() {
            wrong.extend(compare::run(&bench)?);
        }
        failures.extend(wrong.iter().map(|what| format!("{} {what}", release.version)));
    }
    let versions = args.nccl.join(", ");
    let what = format!("NCCL {versions} over {}", args.net.name());
    if failures.is_empty() {
        Ok(Verdict::new(true, format!("{what}: {total}")))
    } else {
        Ok(Verdict::fail(format!("{what}: {}", failures.join("; "))))
    }
}
