//! The module as hosts without Rust build it: by DKMS, from the folder of `cargo xtask dkms`.

use super::{check, seen};
use crate::lab::module::DkmsFolder;
use crate::lab::session::Lab;
use crate::lab::suites::Tag::Ci;
use crate::lab::suites::{Group, Outcome, rdma};
use crate::lab::tree::Tree;
use anyhow::{Context, Result, bail};
use std::fs;

pub(super) const GROUPS: &[Group] = &[Group {
    name: "dkms",
    topology: "pair,lanes=1",
    plan: |plan| plan.dkms = true,
    prepare: rdma::prepare,
    checks: &[
        check("works", Ci, works),
        check("altered-object", Ci, altered_object),
    ],
}];

/// It has loaded and brought a link up; it says what it is, and has what the kernel's mitigations and unwinder want.
fn works(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    let said = guest.sh("modinfo usb4_rdma")?;
    for field in ["filename", "license", "description", "author", "version", "alias"] {
        if !said.lines().any(|line| line.starts_with(&format!("{field}:"))) {
            bail!("modinfo has no {field}: {said}");
        }
    }
    if !said.contains("Dual MIT/GPL") || !said.contains("alias:          tbsvc:kusb4rdma") {
        bail!("modinfo says: {said}");
    }
    let sections = guest.sh("ls -A /sys/module/usb4_rdma/sections")?;
    for wanted in [".return_sites", ".orc_unwind", ".orc_unwind_ip"] {
        if !sections.split_whitespace().any(|name| name == wanted) {
            bail!("the module has no {wanted}: {sections}");
        }
    }
    // Verbs are built beside it, and found by their device.
    let verbs = guest.sh("modinfo -F alias usb4_rdma_ib")?;
    if verbs.trim() != "platform:usb4_rdma_ib" {
        bail!("the alias of usb4_rdma_ib is {verbs}");
    }
    // O is an out-of-tree module, E one without a signature; anything else is a complaint.
    let taint = guest.sh("cat /sys/module/usb4_rdma/taint")?;
    if !taint.trim().chars().all(|letter| "OE".contains(letter)) {
        bail!("the module taints the kernel with {taint}");
    }
    seen(rdma::ping(guest, lab.guest(1)?, 50)?)
}

/// An object that is not what was shipped is not built in.
fn altered_object(lab: &mut Lab) -> Result<Outcome> {
    let tree = Tree::get()?;
    let folder = DkmsFolder::make(&tree, &lab.kernel)?;
    let object = folder.sources().join("usb4_core.o_shipped");
    let mut bytes = fs::read(&object).context("read the object")?;
    bytes.push(0);
    fs::write(&object, bytes).context("alter the object")?;
    match folder.build() {
        Ok(_) => bail!("DKMS has built a module of an altered object"),
        Err(error) if format!("{error:#}").contains("FAILED") => seen("refused"),
        Err(error) => Err(error.context("DKMS has failed, but not for the sum")),
    }
}
