//! `cargo xtask lab bench`: RDMA between two guests, with what it costs on the emulated host routers.
//!
//! RXE over thunderbolt_net and our module run in the same guests, one after the other for each test; our module through the
//! ring API, or through verbs by the same programs as RXE. Times are those of an
//! emulated processor: only ratios within one run, and counts, mean anything. The emulator's counters are cleared before
//! each test, and nothing but the test crosses the cable until they are read, so the counts are the test's own.

mod counts;
mod report;
mod ring;
mod rows;
mod stock;

use super::binary;
use super::perftest::USB4;
use super::session::{Lab, Plan};
use super::suites::{net, rdma, verbs};
use super::verbs_files;
use crate::interrupt;
use crate::load::Load;
use crate::ui::{Task, Verdict};
use crate::workspace::work;
use anyhow::{Context, Result, bail};
use counts::Counts;
use report::Test;
use rows::Row;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure only what the stock kernel has: RXE over thunderbolt_net, and the network itself.
    #[arg(long)]
    stock: bool,
    /// Measure our module through verbs, by the programs that measure RXE, and not through the ring API.
    #[arg(long, conflicts_with = "stock")]
    verbs: bool,
    /// Only tests with TEXT in their names.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Times each test is run, in turns; the median counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Only a few sizes, without moderation: to see that the bench works.
    #[arg(long)]
    quick: bool,
    /// Kernel: `newest`, or a version such as 7.2 or 7.2.12.
    #[arg(long, default_value = "newest")]
    kernel: String,
}

/// What moderates interrupts: nothing, so that each event is one at once; or the controller, as the driver has set it.
const MODES: [(&str, &str); 2] = [("unthrottled", "off"), ("throttled", "on")];

/// How our module is measured beside RXE.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ours {
    /// Not at all.
    Not,
    /// `usb4ctl bench`.
    Ring,
    /// perftest.
    Verbs,
}

impl Ours {
    fn of(args: &Args) -> Ours {
        match (args.stock, args.verbs) {
            (true, _) => Ours::Not,
            (_, true) => Ours::Verbs,
            _ => Ours::Ring,
        }
    }

    /// What tables call it.
    fn name(self) -> &'static str {
        match self {
            Ours::Not => "",
            Ours::Ring => "usb4_rdma",
            Ours::Verbs => "usb4_0",
        }
    }

    /// The file of the tables.
    fn file(self) -> &'static str {
        match self {
            Ours::Not => "lab/bench-stock.md",
            Ours::Ring => "lab/bench.md",
            Ours::Verbs => "lab/bench-verbs.md",
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let began = Load::now()?;
    let ours = Ours::of(args);
    let only = args.only.as_deref().unwrap_or_default();
    let rows: Vec<Row> = rows::all(args.quick, args.stock)
        .into_iter()
        .filter(|row| row.name().contains(only))
        .collect();
    if rows.is_empty() {
        bail!("no test has {only:?} in its name");
    }
    let modes = if args.quick { &MODES[..1] } else { &MODES[..] };
    let mut report = String::new();
    let (mut failures, mut missed, mut wanted) = (0, 0, 0);
    for (mode, moderation) in modes {
        let fabric = format!("pair,lanes=1,pci=8086:ff01,moderation={moderation}");
        let mut lab = start(args, mode, &fabric)?;
        let tests = measure(&mut lab, args, mode, rows.clone())?;
        report.push_str(&format!(
            "## {mode}: kernel {}, topology {fabric}\n\n",
            lab.kernel.release
        ));
        if ours == Ours::Not {
            report.push_str(&report::counted(&tests, |test| &test.stock));
        } else {
            let budgets = report::budgets(&tests, ours);
            missed += budgets.missed;
            wanted += budgets.all;
            report.push_str(&budgets.text);
            report.push_str("RXE over thunderbolt_net:\n\n");
            report.push_str(&report::counted(&tests, |test| &test.stock));
            report.push_str(&format!("{}:\n\n", ours.name()));
            report.push_str(&report::counted(&tests, |test| &test.ours));
        }
        let complaints = lab.complaints()?;
        complaints.iter().for_each(|line| say!("{line}"));
        failures += complaints.len();
        let results = tests.iter().flat_map(|test| test.stock.iter().chain(&test.ours));
        failures += results.filter(|result| result.is_err()).count();
    }
    say!("{report}");
    let file = work().join(ours.file());
    std::fs::write(&file, &report).with_context(|| format!("write {}", file.display()))?;
    let busy = began.warn()?.map_or(String::new(), |busy| format!(" ({busy})"));
    let budgets = if ours == Ours::Not {
        String::new()
    } else {
        format!("{missed} of {wanted} budgets missed, ")
    };
    let line = format!(
        "{budgets}{failures} failures or complaints by kernels; tables in {}{busy}",
        file.display()
    );
    Ok(Verdict::new(failures == 0 && missed == 0, line))
}

/// Boots two guests in which everything that is to be measured is up.
fn start(args: &Args, mode: &str, fabric: &str) -> Result<Lab> {
    let mut plan = Plan::new(&format!("bench/{mode}"), fabric)?;
    plan.kernel.clone_from(&args.kernel);
    plan.memory_mib = 768;
    plan.limit = Duration::from_secs(3600);
    if !args.stock {
        plan.module = true;
        let program = binary::build("usb4ctl", "usb4ctl")?;
        plan.files.push(("usr/bin/usb4ctl".to_string(), program));
        plan.files.extend(verbs_files::provider()?);
    }
    let mut lab = Lab::start(&plan)?;
    net::up(&mut lab)?;
    for guest in lab.guests() {
        guest.network()?;
        guest.sh(
            "modprobe rdma_rxe && modprobe ib_uverbs && rdma link add rxe0 type rxe netdev thunderbolt0",
        )?;
    }
    if !args.stock {
        rdma::prepare(&mut lab)?;
        lab.guests().iter().try_for_each(verbs::load_verbs)?;
    }
    Ok(lab)
}

/// Runs every test as often as wanted, in turns.
fn measure(lab: &mut Lab, args: &Args, mode: &str, rows: Vec<Row>) -> Result<Vec<Test>> {
    let steps = u64::from(args.repeat) * rows.len() as u64;
    let mut task = Task::start(format!("measure {mode}"), Some(steps));
    let mut tests: Vec<Test> = rows.into_iter().map(Test::new).collect();
    let mut step = 0;
    for _ in 0..args.repeat {
        for test in &mut tests {
            task.tick();
            test.stock.push(stock::measure(lab, &test.row));
            if let Row::Rdma(rdma) = &test.row {
                match Ours::of(args) {
                    Ours::Not => {}
                    Ours::Ring => test.ours.push(ring::measure(lab, rdma)),
                    Ours::Verbs => test.ours.push(stock::perftest(lab, USB4, rdma)),
                }
            }
            interrupt::check()?;
            step += 1;
            task.set(step);
        }
    }
    task.done(&format!("{steps} tests"));
    Ok(tests)
}

/// What one run of a test gave.
struct Measured {
    value: f64,
    /// None where messages are not counted.
    counts: Option<Counts>,
}
