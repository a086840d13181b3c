//! `cargo xtask ci`: everything tagged ci, step by step.
//!
//! A step that fails does not stop the others. Each step's output is in `target/xtask/ci/NAME.log`; the end of
//! it is shown when the step fails.

use crate::debian;
use crate::process;
use crate::space;
use crate::ui::{Task, Verdict, seconds};
use crate::workspace::{cargo, work};
use anyhow::{Result, bail};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What builds and tests need besides cargo: C compilers (libFuzzer is C++), make, which says what the module's build
/// lacks, libfabric's headers, with which the layouts are compared, and libibverbs, into which the verbs provider is
/// loaded. Commands install what only they need.
const PACKAGES: &[&str] = &[
    "gcc",
    "g++",
    "make",
    "libc6-dev",
    "libclang-dev",
    "libfabric-dev",
    "libibverbs1",
];

/// What a clean clone with an empty cache writes, measured, and as much again as steps may grow by before this does.
const TARGET_GIB: u64 = 5;
const CACHE_GIB: u64 = 2;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these steps.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Name the steps and stop.
    #[arg(long)]
    list: bool,
}

/// Three hosts and a little of every fault the simulator has.
const SIM_FAULTS: &str = "sim --messages 200000 --hosts 3 --loss 0.005 --dup 0.005 --burst 0.0001 --ack-loss 0.01 \
     --corrupt 0.002 --stall 0.0005 --lost-irq 0.01 --ignored-doorbell 0.001 --stranded 0.002 --plan-delay 20";

struct Step {
    name: &'static str,
    /// Minutes after which the step is ended and has failed.
    limit: u64,
    command: Command,
}

fn step(name: &'static str, limit: u64, command: Command) -> Step {
    Step { name, limit, command }
}

/// Another command of this program, as a step.
fn own(args: &str) -> Command {
    // Not current_exe(): building the workspace may replace that file meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.args(args.split_whitespace());
    command
}

fn steps() -> Vec<Step> {
    let mut docs = cargo(["doc", "--workspace", "--no-deps", "--document-private-items"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    let tests = if works(&mut cargo(["nextest", "--version"])) {
        cargo(["nextest", "run", "--workspace", "--no-fail-fast"])
    } else {
        cargo([
            "test",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--no-fail-fast",
        ])
    };
    let fuzz_seeds = cargo(["test", "--manifest-path", "fuzz/Cargo.toml"]);
    vec![
        step(
            "lock",
            2,
            cargo(["metadata", "--locked", "--format-version", "1", "--quiet"]),
        ),
        step("fmt", 2, cargo(["fmt", "--all", "--check"])),
        step(
            "clippy",
            15,
            cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        ),
        step("deny", 5, own("deny")),
        step("tests", 20, tests),
        step("doctests", 10, cargo(["test", "--workspace", "--doc"])),
        step("docs", 10, docs),
        step("loom", 20, own("loom")),
        step("freestanding", 10, own("freestanding")),
        step(
            "sim",
            15,
            own("sim --messages 1000000 --loss 0.01 --dup 0.01 --rails 2"),
        ),
        step("sim-faults", 15, own(SIM_FAULTS)),
        step("fuzz-seeds", 10, fuzz_seeds),
        step("fuzz", 10, own("fuzz --seconds 60")),
        step("conformance", 15, own("conformance")),
        step("checkpatch", 15, own("checkpatch")),
        step("lab-tree", 10, own("lab tree")),
        step("lab-module", 10, own("lab module")),
        step("lab-dkms", 10, own("lab module --dkms")),
        step("lab-stock", 15, own("lab test --suite stock")),
        step("lab-skeleton", 30, own("lab test --suite skeleton")),
        step("lab-verbs", 15, own("lab test --suite verbs")),
        step("lab-faults", 30, own("lab test --suite faults")),
        step("lab-kmod", 45, own("lab test --suite kmod")),
        step("instructions", 10, own("instructions")),
        step("nccl", 10, own("nccl --nccl 2.30.7")),
        step("nccl-rules", 15, own("nccl --rules")),
        step("nccl-headers", 10, own("nccl --headers")),
        step("rdma-core", 10, own("rdma-core")),
        step("mpi-mpich", 10, own("mpi --mpi mpich")),
        step("mpi-openmpi", 10, own("mpi --mpi openmpi")),
        step("mpi-openmpi-debian", 10, own("mpi --mpi openmpi-debian")),
        step("mpi-impi", 10, own("mpi --mpi impi")),
        step(
            "mpi-registered",
            10,
            own("mpi --mpi openmpi --device soft:registered,registered"),
        ),
    ]
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let mut steps = steps();
    if args.list {
        steps.iter().for_each(|step| say!("{}", step.name));
        return Ok(Verdict::new(true, format!("{} steps", steps.len())));
    }
    if let Some(unknown) = args
        .only
        .iter()
        .find(|name| !steps.iter().any(|step| step.name == name.as_str()))
    {
        bail!("there is no step {unknown}; --list names them");
    }
    if !args.only.is_empty() {
        steps.retain(|step| args.only.iter().any(|name| name == step.name));
    }
    space::need(TARGET_GIB, CACHE_GIB)?;
    debian::ensure(PACKAGES)?;
    let began = Instant::now();
    let total = steps.len();
    let mut times = vec![];
    let mut failed = vec![];
    for (at, step) in steps.iter_mut().enumerate() {
        let mut task = Task::start(format!("[{:2}/{total}] {}", at + 1, step.name), None);
        let log = work().join("ci").join(format!("{}.log", step.name));
        let limit = Duration::from_secs(step.limit * 60);
        let outcome = process::run(&mut step.command, limit, &log, Some(&mut task));
        let wall = match outcome {
            Ok(outcome) if outcome.ok => {
                task.done("ok");
                outcome.wall
            }
            Ok(outcome) => {
                task.done(&format!(
                    "FAILED, {}; whole output in {}",
                    outcome.how,
                    log.display()
                ));
                say!("{}", outcome.tail(60));
                failed.push(step.name);
                outcome.wall
            }
            Err(error) => {
                task.done(&format!("FAILED: {error:#}"));
                failed.push(step.name);
                Duration::ZERO
            }
        };
        times.push((step.name, wall));
    }
    say!("");
    for (name, wall) in &times {
        say!(
            "{name:<24} {:>14}  {}",
            seconds(*wall),
            if failed.contains(name) { "FAILED" } else { "ok" }
        );
    }
    let passed = total - failed.len();
    let mut verdict = if failed.is_empty() {
        Verdict::new(true, format!("{total} steps in {}", seconds(began.elapsed())))
    } else {
        Verdict::fail(format!(
            "{} of {total} steps failed: {}",
            failed.len(),
            failed.join(", ")
        ))
    };
    verdict.closing = Some(format!("{passed} passed, {} failed", failed.len()));
    Ok(verdict)
}

fn works(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
