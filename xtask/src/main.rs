//! Developer commands: `cargo xtask COMMAND`.
//!
//! One file per command; each ends with one verdict line and exits 0 only if that verdict is PASS. What a
//! command fetches lands in the cache (see [`cache`]), what it builds or logs in `target/xtask`.
//! Start reading at [`ci`], the list of everything that runs on each change.

#[macro_use]
mod ui;

mod bench;
mod cache;
mod checkpatch;
mod ci;
mod conformance;
mod debian;
mod demo;
mod deny;
mod dkms;
mod freestanding;
mod fuzz;
mod instructions;
mod interrupt;
mod lab;
mod linux_source;
mod load;
mod loom;
mod mpi;
mod nccl;
mod objcheck;
mod process;
mod provider;
mod rdma_core;
mod sim;
mod space;
mod wheel;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use ui::Verdict;

/// Build, check and measure the USB4 RDMA transport.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Run everything tagged ci: what `ci/test` calls.
    Ci(ci::Args),
    /// Compile wire, engine and device for the kernel and check the object.
    Freestanding(freestanding::Args),
    /// Check the style of the kernel module's C with the kernel's checkpatch.pl.
    Checkpatch(checkpatch::Args),
    /// Write the folder from which DKMS builds the kernel module, without Rust.
    Dkms(dkms::Args),
    /// Run an MPI job over usb4, then show usb4 next to tcp and shm: what `ci/demo` calls.
    Demo(demo::Args),
    /// Measure usb4 next to shm and tcp.
    Bench(bench::Args),
    /// Check licences, bans and sources of dependencies.
    Deny(deny::Args),
    /// Run the simulator: random traffic over faulty cables in virtual time.
    #[command(disable_help_flag = true)]
    Sim(sim::Args),
    /// Run the ring API's conformance suite.
    Conformance(conformance::Args),
    /// Count instructions per message and per frame.
    Instructions(instructions::Args),
    /// Run the loom models.
    Loom(loom::Args),
    /// Build the libfabric provider, or that of libibverbs, and say where it is.
    Provider(provider::Args),
    /// Compare what the verbs provider shares with libibverbs with the headers and sources of Debian's rdma-core.
    RdmaCore(rdma_core::Args),
    /// Run MPI benchmarks with every byte checked.
    Mpi(mpi::Args),
    /// Run a stock NCCL, without a GPU, over the net plugin.
    Nccl(nccl::Args),
    /// Boot guests on emulated USB4 host routers: stock kernels, run under QEMU.
    Lab(lab::Args),
    /// Feed hostile input to everything that reads what a peer or a process wrote.
    Fuzz(fuzz::Args),
}

impl Cmd {
    fn name(&self) -> &'static str {
        match self {
            Cmd::Ci(_) => "ci",
            Cmd::Freestanding(_) => "freestanding",
            Cmd::Mpi(_) => "mpi",
            Cmd::Instructions(_) => "instructions",
            Cmd::Loom(_) => "loom",
            Cmd::Provider(_) => "provider",
            Cmd::RdmaCore(_) => "rdma-core",
            Cmd::Checkpatch(_) => "checkpatch",
            Cmd::Deny(_) => "deny",
            Cmd::Dkms(_) => "dkms",
            Cmd::Sim(_) => "sim",
            Cmd::Conformance(_) => "conformance",
            Cmd::Demo(_) => "demo",
            Cmd::Bench(_) => "bench",
            Cmd::Fuzz(_) => "fuzz",
            Cmd::Lab(_) => "lab",
            Cmd::Nccl(_) => "nccl",
        }
    }

    fn run(self) -> anyhow::Result<Verdict> {
        match self {
            Cmd::Ci(args) => ci::run(&args),
            Cmd::Freestanding(args) => freestanding::run(&args),
            Cmd::Mpi(args) => mpi::run(&args),
            Cmd::Instructions(args) => instructions::run(&args),
            Cmd::Loom(args) => loom::run(&args),
            Cmd::Provider(args) => provider::run(&args),
            Cmd::RdmaCore(args) => rdma_core::run(&args),
            Cmd::Checkpatch(args) => checkpatch::run(&args),
            Cmd::Deny(args) => deny::run(&args),
            Cmd::Dkms(args) => dkms::run(&args),
            Cmd::Sim(args) => sim::run(&args),
            Cmd::Conformance(args) => conformance::run(&args),
            Cmd::Demo(args) => demo::run(&args),
            Cmd::Bench(args) => bench::run(&args),
            Cmd::Fuzz(args) => fuzz::run(&args),
            Cmd::Lab(args) => lab::run(&args),
            Cmd::Nccl(args) => nccl::run(&args),
        }
    }
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let name = command.name();
    if let Err(error) = process::adopt_orphans() {
        eprintln!("{name}: cannot become the reaper of its own jobs: {error}");
    }
    let verdict = command
        .run()
        .unwrap_or_else(|error| Verdict::fail(format!("{error:#}")));
    say!("{name}: {verdict}");
    if let Some(closing) = &verdict.closing {
        say!("{closing}");
    }
    if verdict.pass && !ui::unsaid() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
