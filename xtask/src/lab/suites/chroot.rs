//! Programs of the tree that are not in the guests' root: there the tree is a folder, by 9p, that they are run in.

use crate::lab::session::{Lab, Plan};
use crate::lab::shared;
use anyhow::Result;

/// Lets guests see the tree.
pub(super) fn plan(plan: &mut Plan) {
    shared::plan(plan);
}

/// What of a guest programs in the tree have, too: its own devices, processes and files, and providers of libibverbs.
const FOLDERS: &[&str] = &[
    "/dev",
    "/proc",
    "/sys",
    "/tmp",
    "/run",
    "/etc/libibverbs.d",
    "/usr/lib/x86_64-linux-gnu/libibverbs",
];

/// Sets it up in every guest.
pub(super) fn prepare(lab: &Lab) -> Result<()> {
    let root = lab.programs().display();
    let binds: Vec<String> = FOLDERS
        .iter()
        .map(|folder| format!("mount --rbind {folder} '{root}'{folder}"))
        .collect();
    let script = binds.join(" && ");
    lab.guests()
        .iter()
        .try_for_each(|guest| guest.sh(&script).map(drop))
}

/// A shell command that is run there.
pub(super) fn inside(lab: &Lab, command: &str) -> String {
    format!("chroot '{}' {command}", lab.programs().display())
}
