//! `cargo xtask lab`: guests with stock kernels on emulated USB4 host routers.
//!
//! [`tree`] unpacks what guests and their modules are made of.

mod module;
mod tree;

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
    /// Build a kernel module (kmod/ if nothing else is named) against a Debian kernel's headers.
    Module(module::Args),
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    match &args.command {
        Cmd::Tree(args) => tree::run(args),
        Cmd::Module(args) => module::run(args),
    }
}
