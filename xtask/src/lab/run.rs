//! `cargo xtask lab run`: one command in guests that are booted for it.

use super::agent::{Output, Said};
use super::binary;
use super::session::{Guest, Lab, Plan};
use super::verbs_files;
use crate::interrupt;
use crate::ui::Verdict;
use anyhow::{Context, Result};
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Memory of a guest. Half of it holds its root: with 256 MiB that is full once the module is in it, with 320 it is not.
const MEMORY_MIB: RangeInclusive<i64> = 384..=65536;

/// Processors of a guest, each of them a thread of QEMU's.
const CPUS: RangeInclusive<i64> = 1..=16;

/// What guests to boot.
#[derive(clap::Args)]
pub(crate) struct Guests {
    /// Guests, joined to each other by cables with one lane.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    guests: u8,
    /// Hosts and cables in place of --guests: a preset (pair, pair2, triangle, chain, chain4, none), then settings, such
    /// as pair,lanes=2,hops=strix or none,hosts=1.
    #[arg(long, conflicts_with = "guests")]
    topology: Option<String>,
    /// Kernel: `newest`, or a version such as 7.2 or 7.2.12; `kasan` or `kcsan`, which `lab debug-kernel` builds.
    #[arg(long, default_value = "newest")]
    kernel: String,
    /// Memory of each guest.
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(MEMORY_MIB))]
    memory: u32,
    /// Processors of each guest.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(CPUS))]
    cpus: u32,
    /// Further kernel parameters.
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        allow_hyphen_values = true
    )]
    append: String,
    /// Put an IOMMU between devices and memory.
    #[arg(long)]
    iommu: bool,
    /// Build kmod/ for the kernel and let the guests find it: `modprobe usb4_rdma`. They get `usb4ctl`, too.
    #[arg(long)]
    module: bool,
    /// The same with verbs: `modprobe usb4_rdma_ib && modprobe ib_uverbs`. They get the provider of libibverbs,
    /// `verbs-pingpong` and `usb4-verbs`, and a network beside the cable, on which guest N is 10.99.0.N+1.
    #[arg(long)]
    verbs: bool,
    /// Put FILE into the guests at PATH.
    #[arg(long, value_name = "PATH=FILE", value_parser = file)]
    file: Vec<(String, PathBuf)>,
}

/// What works with the module, and where guests find it.
const USB4CTL: &str = "usr/bin/usb4ctl";

fn file(text: &str) -> Result<(String, PathBuf), String> {
    let (inside, path) = text.split_once('=').ok_or("PATH=FILE is wanted")?;
    Ok((inside.to_string(), PathBuf::from(path)))
}

impl Guests {
    fn plan(&self, name: &str) -> Result<Plan> {
        let text = match (&self.topology, self.guests) {
            (Some(text), _) => text,
            (None, 1) => "none,hosts=1",
            (None, 2) => "pair,lanes=1",
            (None, 3) => "triangle,lanes=1",
            (None, _) => "chain4,lanes=1",
        };
        let mut files = self.file.clone();
        let module = self.module || self.verbs;
        if module
            && !files
                .iter()
                .any(|(inside, _)| inside.trim_start_matches('/') == USB4CTL)
        {
            files.push((USB4CTL.into(), binary::build("usb4ctl", "usb4ctl")?));
        }
        if self.verbs {
            files.extend(verbs_files::provider()?);
            files.extend(verbs_files::programs()?);
        }
        Ok(Plan {
            kernel: self.kernel.clone(),
            memory_mib: self.memory,
            cpus: self.cpus,
            parameters: self.append.clone(),
            iommu: self.iommu,
            files,
            module,
            ..Plan::new(name, text)?
        })
    }

    /// Boots them.
    pub(crate) fn start(&self, name: &str) -> Result<Lab> {
        let lab = Lab::start(&self.plan(name)?)?;
        if self.verbs {
            lab.guests().iter().try_for_each(Guest::network)?;
        }
        Ok(lab)
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    guests: Guests,
    /// Run it in every guest at once, and not in guest 0.
    #[arg(long)]
    all: bool,
    /// Afterwards copy PATH from guest 0 to FILE.
    #[arg(long, value_name = "PATH=FILE", value_parser = file)]
    get: Vec<(String, PathBuf)>,
    /// Seconds the command may take.
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// The command and its arguments; one argument is a line for the shell.
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let mut lab = args.guests.start("run")?;
    let mut argv: Vec<&str> = args.command.iter().map(String::as_str).collect();
    if argv.len() == 1 {
        argv.splice(0..0, ["sh", "-c"]);
    }
    let limit = Duration::from_secs(args.timeout);
    let outputs: Vec<(usize, Output)> = if args.all {
        let running: Vec<_> = lab
            .guests()
            .iter()
            .map(|guest| Ok((guest.number, guest.agent().start_without_input(&argv)?)))
            .collect::<Result<_>>()?;
        running
            .into_iter()
            .map(|(number, running)| Ok((number, running.wait(limit)?)))
            .collect::<Result<_>>()?
    } else {
        vec![(0, follow(lab.guest(0)?, &argv, limit)?)]
    };
    let mut failed = vec![];
    for (number, output) in &outputs {
        if args.all {
            say!("guest {number}: {output}");
        }
        if !output.ok() {
            failed.push(*number);
        }
    }
    for (inside, path) in &args.get {
        let bytes = lab.guest(0)?.get(inside)?;
        std::fs::write(path, bytes).with_context(|| format!("write {}", path.display()))?;
    }
    let complaints = lab.complaints()?;
    complaints.iter().for_each(|line| say!("{line}"));
    let line = format!(
        "{} of {} succeeded, {} complaints by kernels; logs in {}",
        outputs.len() - failed.len(),
        outputs.len(),
        complaints.len(),
        lab.logs.display()
    );
    Ok(Verdict::new(failed.is_empty() && complaints.is_empty(), line))
}

/// Runs a command and shows what it says while it runs.
fn follow(guest: &Guest, argv: &[&str], limit: Duration) -> Result<Output> {
    let mut running = guest.agent().start_without_input(argv)?;
    let deadline = std::time::Instant::now() + limit;
    loop {
        interrupt::check()?;
        match running.said(Duration::from_millis(100))? {
            Said::Output(bytes) => {
                std::io::stdout().write_all(&bytes).context("show the output")?;
                std::io::stdout().flush().context("show the output")?;
            }
            Said::End(end) => return Ok(Output::silent(end)),
            Said::Nothing if std::time::Instant::now() > deadline => return running.wait(Duration::ZERO),
            Said::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        guests: Guests,
    }

    fn parsed(option: &str, value: &str) -> Result<Guests, String> {
        let parsed = Program::try_parse_from(["run", option, value]);
        parsed
            .map(|program| program.guests)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn guests_that_cannot_boot_are_refused_with_what_is_allowed() {
        for (option, bad, allowed) in [
            ("--memory", ["0", "1", "383", "65537"], "384..=65536"),
            ("--cpus", ["0", "17", "4294967295", "4294967296"], "1..=16"),
        ] {
            for value in bad {
                let said = parsed(option, value).err().unwrap_or_default();
                assert!(said.contains(option) && said.contains(allowed), "{value}: {said}");
            }
        }
        assert_eq!(parsed("--memory", "384").unwrap().memory, 384);
        assert_eq!(parsed("--cpus", "16").unwrap().cpus, 16);
    }
}
