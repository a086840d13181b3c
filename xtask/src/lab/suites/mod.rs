//! Suites of checks in guests, and `cargo xtask lab test`, which runs them.
//!
//! Checks that need the same guests are a group and share one boot, in order. After each the kernels are asked
//! whether they have anything to complain about. A check that fails leaves guests in an unknown state, so the rest of
//! its group gets new ones.

mod applications;
mod chroot;
mod clock;
mod fault_script;
mod faults;
mod kmod;
mod leaks;
mod load;
mod more;
pub(crate) mod net;
mod power;
mod programs;
mod pyverbs;
mod qperf;
mod rails;
mod random;
pub(super) mod rdma;
mod skeleton;
mod stock;
mod unloaded;
pub(super) mod verbs;

use super::debug_kernel::Kind;
use super::session::{Lab, Plan};
use crate::interrupt;
use crate::ui::{Verdict, seconds};
use anyhow::{Result, bail};
use std::time::Instant;

/// The ring pair of the only user of a controller: the first after the control channel's (`nhi_alloc_hop` in
/// drivers/thunderbolt/nhi.c).
const RING: u16 = 1;

/// When a check is run.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Tag {
    /// On each change.
    Ci,
    /// When it is asked for.
    Full,
}

/// What a check that did not fail has to say.
pub(crate) enum Outcome {
    Seen(String),
    /// It cannot be done here, and why.
    Skipped(String),
}

/// One check in guests that have booted.
pub(crate) struct Check {
    name: &'static str,
    tag: Tag,
    run: fn(&mut Lab) -> Result<Outcome>,
}

/// Checks that share guests.
pub(crate) struct Group {
    name: &'static str,
    /// The fabric, in the text form of `usb4_nhi_model::Topology`.
    topology: &'static str,
    /// Changes to the plan.
    plan: fn(&mut Plan),
    /// Brings the guests to where every check begins.
    prepare: fn(&mut Lab) -> Result<()>,
    checks: &'static [Check],
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Suite {
    /// The kernel's own drivers on the emulated host routers.
    Stock,
    /// Our module between two guests.
    Skeleton,
    /// Our module, complete: faults, rails, neighbours, users.
    Kmod,
    /// Verbs on our module: without libibverbs, and stock programs with our provider.
    Verbs,
    /// Random faults, while checked bytes cross the cable: with thunderbolt_net, and with our module.
    Faults,
}

impl Suite {
    fn groups(self) -> Vec<&'static Group> {
        match self {
            Suite::Stock => stock::GROUPS.iter().collect(),
            Suite::Skeleton => skeleton::GROUPS.iter().collect(),
            Suite::Kmod => kmod::groups(),
            Suite::Verbs => verbs::groups()
                .into_iter()
                .chain([&programs::GROUP, &more::GROUP])
                .collect(),
            Suite::Faults => vec![],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Suite::Stock => "stock",
            Suite::Skeleton => "skeleton",
            Suite::Kmod => "kmod",
            Suite::Verbs => "verbs",
            Suite::Faults => "faults",
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to run.
    #[arg(long, value_enum)]
    suite: Suite,
    /// Run only checks whose group/name has this in it, whatever their tag.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Run those tagged full as well.
    #[arg(long)]
    full: bool,
    /// Name the checks and stop.
    #[arg(long)]
    list: bool,
    /// Kernel: `newest`, or a version such as 7.2 or 7.2.12; `kasan` or `kcsan`, which `lab debug-kernel` builds.
    #[arg(long, default_value = "newest")]
    kernel: String,
    /// Further kernel parameters, such as slab_debug=FZPU.
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        allow_hyphen_values = true
    )]
    append: String,
    /// Suite faults: run the script of this seed only.
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    if let Suite::Faults = args.suite {
        return faults::run(args);
    }
    if args.seed.is_some() {
        bail!("suite {} has no seeds", args.suite.name());
    }
    let chosen = chosen(args.suite, &args.only, args.full);
    if args.list {
        for (group, check) in chosen
            .iter()
            .flat_map(|(group, checks)| checks.iter().map(move |c| (group, c)))
        {
            let tag = if check.tag == Tag::Ci { "ci" } else { "full" };
            say!("{}/{}: {tag}, on {}", group.name, check.name, group.topology);
        }
    }
    if chosen.is_empty() {
        bail!(
            "no check of suite {} is called {}",
            args.suite.name(),
            args.only.join(", ")
        );
    }
    if args.list {
        return Ok(Verdict::new(true, "listed"));
    }
    let began = Instant::now();
    let mut tally = Tally::default();
    for (group, checks) in &chosen {
        run_group(args.suite, group, checks, &args.kernel, &args.append, &mut tally)?;
    }
    Ok(tally.verdict(began))
}

/// The checks to be run: those named, or those tagged ci, or all.
pub(crate) fn chosen(
    suite: Suite,
    only: &[String],
    full: bool,
) -> Vec<(&'static Group, Vec<&'static Check>)> {
    let wanted = |group: &Group, check: &Check| {
        if only.is_empty() {
            full || check.tag == Tag::Ci
        } else {
            let name = format!("{}/{}", group.name, check.name);
            only.iter().any(|part| name.contains(part.as_str()))
        }
    };
    let groups = suite.groups();
    groups
        .into_iter()
        .map(|group| {
            (
                group,
                group
                    .checks
                    .iter()
                    .filter(|check| wanted(group, check))
                    .collect::<Vec<_>>(),
            )
        })
        .filter(|(_, checks)| !checks.is_empty())
        .collect()
}

/// How checks went.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) skipped: usize,
    pub(crate) failed: Vec<String>,
}

impl Tally {
    /// Notes how one check went, and says so.
    fn note(&mut self, name: String, began: Instant, result: Result<Outcome>) {
        let time = seconds(began.elapsed());
        match result {
            Ok(Outcome::Seen(what)) => {
                self.passed += 1;
                say!("PASS {name} ({time}): {what}");
            }
            Ok(Outcome::Skipped(why)) => {
                self.skipped += 1;
                say!("SKIP {name} ({time}): {why}");
            }
            Err(error) => {
                say!("FAIL {name} ({time}): {error:#}");
                self.failed.push(name);
            }
        }
    }

    fn verdict(&self, began: Instant) -> Verdict {
        let line = format!(
            "{} passed, {} failed, {} skipped in {}",
            self.passed,
            self.failed.len(),
            self.skipped,
            seconds(began.elapsed())
        );
        match self.failed.as_slice() {
            [] => Verdict::new(true, line),
            failed => Verdict::fail(format!("{line}: {}", failed.join(", "))),
        }
    }
}

/// Keeps and names what may tell why a check failed.
fn keep(lab: &mut Lab) {
    if let Err(error) = lab.keep_stats() {
        say!("{error:#}");
    }
    say!("logs: {}", lab.logs.display());
}

/// Runs checks of a group, counting in `tally` how they went.
pub(crate) fn run_group(
    suite: Suite,
    group: &Group,
    checks: &[&Check],
    kernel: &str,
    parameters: &str,
    tally: &mut Tally,
) -> Result<()> {
    let mut plan = Plan::new(&format!("{}/{}", suite.name(), group.name), group.topology)?;
    plan.kernel = kernel.to_string();
    (group.plan)(&mut plan);
    plan.parameters = format!("{} {parameters}", plan.parameters).trim().to_string();
    if let Suite::Skeleton | Suite::Kmod | Suite::Verbs = suite {
        rdma::plan(&mut plan)?;
    }
    if let Suite::Verbs = suite {
        verbs::plan(&mut plan)?;
    }
    let mut lab = None;
    for check in checks {
        let began = Instant::now();
        let result = one(&mut lab, &plan, group, check);
        interrupt::check()?;
        let failed = result.is_err();
        tally.note(format!("{}/{}", group.name, check.name), began, result);
        if failed {
            lab.take().as_mut().map(keep);
            plan.name = format!("{}/{}-after-{}", suite.name(), group.name, check.name);
        }
    }
    if lab.is_some() && Kind::named(kernel).is_some() {
        let began = Instant::now();
        let result = one(&mut lab, &plan, group, &unloaded::CHECK);
        interrupt::check()?;
        tally.note(format!("{}/{}", group.name, unloaded::CHECK.name), began, result);
    }
    Ok(())
}

/// Runs a check, in new guests if there are none.
fn one(lab: &mut Option<Lab>, plan: &Plan, group: &Group, check: &Check) -> Result<Outcome> {
    let lab = match lab {
        Some(lab) => lab,
        none => {
            let new = none.insert(Lab::start(plan)?);
            (group.prepare)(new)?;
            new
        }
    };
    let outcome = (check.run)(lab)?;
    let complaints = lab.complaints()?;
    if !complaints.is_empty() {
        bail!("kernels complain:\n{}", complaints.join("\n"));
    }
    Ok(outcome)
}
