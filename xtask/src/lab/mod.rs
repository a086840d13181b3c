//! `cargo xtask lab`: guests with stock kernels on emulated USB4 host routers.
//!
//! [`tree`] unpacks what guests and their modules are made of; [`image`] makes their root file system of it;
//! [`session`] boots them, with the emulator ([`emulator`]) between them, and runs commands in them over [`agent`].
//! [`shared`] makes them the hosts of jobs that could as well run on this machine.

mod agent;
mod bench;
mod binary;
mod bzimage;
mod child;
mod console;
mod cpio;
mod debug_kernel;
mod emulator;
mod folder;
mod image;
mod kernel_log;
mod matrix;
mod module;
mod perftest;
mod pool;
mod preflight;
mod qemu;
mod run;
pub(crate) mod session;
pub(crate) mod shared;
mod shell;
mod stepped;
mod suites;
mod switch;
mod ticks;
mod tree;
mod verbs_files;

use crate::interrupt;
use crate::ui::Verdict;
use anyhow::Result;
use clap::Subcommand;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Unpack what the lab runs on from Debian: QEMU, a compiler, programs for guests, a kernel with its headers.
    Tree(tree::Args),
    /// Boot guests, run a command in them, and end them.
    Run(run::Args),
    /// Boot guests and type commands in them.
    Shell(shell::Args),
    /// Run a suite of checks in guests.
    Test(suites::Args),
    /// Measure RDMA between guests, and count what it costs.
    Bench(bench::Args),
    /// Run checks on every supported kernel that Debian has.
    Matrix(matrix::Args),
    /// Build a kernel module (kmod/ if nothing else is named) against a Debian kernel's headers.
    ///
    /// The folder needs a Kbuild file or a Makefile. It is copied, so the sources stay clean; the module and make's other
    /// products are in target/xtask/lab/module/KERNEL/. For kmod/ the Rust object (cargo xtask freestanding) is built,
    /// too, and put beside the sources as usb4_core.o_shipped. With --dkms, Debian's DKMS builds it.
    ///
    /// To try the module: cargo xtask lab run --all --module -- 'modprobe usb4_rdma; sleep 5; dmesg | grep usb4_rdma'
    Module(module::Args),
    /// Build kernels that look for mistakes, from Debian's source; `--kernel kasan` and `--kernel kcsan` choose them.
    DebugKernel(debug_kernel::Args),
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    interrupt::handle()?;
    match &args.command {
        Cmd::Tree(args) => tree::run(args),
        Cmd::Run(args) => run::run(args),
        Cmd::Shell(args) => shell::run(args),
        Cmd::Test(args) => suites::run(args),
        Cmd::Bench(args) => bench::run(args),
        Cmd::Matrix(args) => matrix::run(args),
        Cmd::Module(args) => module::run(args),
        Cmd::DebugKernel(args) => debug_kernel::run(args),
    }
}
