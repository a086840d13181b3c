//! `cargo xtask nccl`: stock releases of NCCL over the net plugin, on a machine without a GPU.
//!
//! Each rank is a process of its own and a host of its own to NCCL (`crates/nccl-host`), on this machine or in guests of the
//! lab. On this machine everything is run over NCCL's socket transport first: what fails there is a fault of the emulation,
//! not of the plugin. Start at [`checks`].

mod build;
mod checks;
mod compare;
mod headers;
mod job;
mod release;
mod report;
mod rules;

use crate::interrupt;
use crate::lab::session::Lab;
use crate::lab::shared::{self, Place};
use crate::ui::Verdict;
use anyhow::{Result, ensure};
use build::Built;
use checks::{Extent, Tally};
use release::Release;

/// The release that is run where there is no word of another.
const NEWEST: &str = "2.30.7";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Releases of NCCL, and `rccl` for Debian's RCCL; those whose kernels are not emulated are only initialised. If none is
    /// named: 2.30.7, or all of them with `--full`.
    #[arg(long, value_delimiter = ',')]
    nccl: Vec<String>,
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', default_value = "2,4", value_parser = clap::value_parser!(u8).range(2..=16))]
    ranks: Vec<u8>,
    /// Device for the ranks: `soft` (a cable of its own), `soft:NAME`, or `lab` (`/dev/usb4ring` of two guests, among which
    /// ranks are dealt out).
    #[arg(long, default_value = "soft")]
    device: String,
    /// Network: `usb4`, or `socket`, which shows that the runner itself is right.
    #[arg(long, value_enum, default_value = "usb4")]
    net: Net,
    /// Longer: larger messages, every scenario on every number of ranks, then the comparison of `--compare`. If no release is
    /// named, of all releases, and the rules of `--rules`, too.
    #[arg(long)]
    full: bool,
    /// Only time AllReduce, 8 B to 16 MiB on two ranks, over usb4 and over NCCL's sockets.
    #[arg(long)]
    compare: bool,
    /// Only test the rules R1 to R32 of a network plugin, without NCCL; with `--full` for every version of its interface.
    #[arg(long, conflicts_with_all = ["nccl", "ranks", "net", "compare"])]
    rules: bool,
    /// Only compare the structures of the plugin's interface with those of RCCL's header.
    #[arg(long, conflicts_with_all = ["nccl", "ranks", "net", "compare", "rules", "full"])]
    headers: bool,
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
    if args.headers {
        return headers::run();
    }
    let in_lab = args.device == "lab";
    if args.rules {
        let device = crate::mpi::device(&args.device)?;
        return rules::run(&build::plugin_folder()?, &device, args.full);
    }
    let device = match in_lab {
        true => shared::DEVICE.to_string(),
        false => crate::mpi::device(&args.device)?,
    };
    // Before anything is built, so that an unknown release costs nothing.
    let everything = args.full && !args.compare && args.nccl.is_empty();
    let versions = match args.nccl.as_slice() {
        [] if everything => Release::all(),
        [] => vec![NEWEST.to_string()],
        named => named.to_vec(),
    };
    let releases: Vec<Release> = versions
        .iter()
        .map(|version| Release::get(version))
        .collect::<Result<_>>()?;
    let built = Built::get()?;
    let lab = in_lab.then(|| shared::start("nccl")).transpose()?;
    let extent = if args.full { Extent::Full } else { Extent::Usual };
    let mut failures = vec![];
    let mut total = Tally::default();
    for release in &releases {
        interrupt::check()?;
        let bench = checks::Bench {
            release,
            built: &built,
            place: lab.as_ref().map_or(Place::Here, Place::guests),
            device: &device,
            net: args.net,
        };
        let mut wrong = vec![];
        if !args.compare {
            let (tally, failed) = bench.run(&args.ranks, extent);
            total.add(&tally);
            wrong.extend(failed);
            let outcome = if wrong.is_empty() { "ok" } else { "FAILED" };
            say!(
                "NCCL {} over {}: {outcome}, {tally}",
                release.version,
                args.net.name()
            );
        }
        if (args.compare || args.full) && !release.only_init() && !in_lab {
            wrong.extend(compare::run(&bench)?);
        }
        failures.extend(wrong.iter().map(|what| format!("{} {what}", release.version)));
    }
    if let Some(mut lab) = lab {
        failures.extend(lab.complaints()?);
    }
    let mut passed = vec![total.to_string()];
    if everything && !in_lab && args.net == Net::Usb4 {
        let rules = rules::run(&built.plugin, &device, true)?;
        let list = if rules.pass { &mut passed } else { &mut failures };
        list.push(format!("rules: {}", rules.line));
    }
    let what = format!("NCCL {} over {}", versions.join(", "), args.net.name());
    if failures.is_empty() {
        Ok(Verdict::new(true, format!("{what}: {}", passed.join("; "))))
    } else {
        Ok(Verdict::fail(format!("{what}: {}", failures.join("; "))))
    }
}

/// Runs a short job on `ranks` in guests that are ready for jobs; what was checked.
pub(crate) fn in_guests(lab: &Lab, ranks: &[u8]) -> Result<String> {
    with_guests(lab, |bench| {
        let (tally, failed) = bench.run(ranks, Extent::Short);
        ensure!(failed.is_empty(), "NCCL {NEWEST}: {}", failed.join("; "));
        Ok(format!("NCCL {NEWEST}: {tally}"))
    })
}

/// Runs a job with a rank in each guest, of which the first and the last have no cable to each other; what ranks are told.
pub(crate) fn apart_in_guests(lab: &Lab, ranks: u8) -> Result<String> {
    with_guests(lab, |bench| bench.apart(ranks))
}

fn with_guests(lab: &Lab, run: impl FnOnce(&checks::Bench<'_>) -> Result<String>) -> Result<String> {
    let release = Release::get(NEWEST)?;
    let built = Built::get()?;
    run(&checks::Bench {
        release: &release,
        built: &built,
        place: Place::guests(lab),
        device: shared::DEVICE,
        net: Net::Usb4,
    })
}
