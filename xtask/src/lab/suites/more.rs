//! More stock software on `usb4_0`: what uses verbs, and is run from the tree (`chroot.rs`).

use super::Tag::Full;
use super::{Check, Group, Outcome, Tag, chroot, programs, pyverbs};
use crate::lab::session::{Lab, Plan};
use anyhow::Result;

pub(super) const GROUP: Group = Group {
    name: "more",
    topology: "pair,lanes=1",
    plan,
    prepare,
    checks: &[check("pyverbs", Full, pyverbs::itself)],
};

const fn check(name: &'static str, tag: Tag, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check { name, tag, run }
}

fn plan(plan: &mut Plan) {
    chroot::plan(plan);
    pyverbs::plan(plan);
}

fn prepare(lab: &mut Lab) -> Result<()> {
    programs::prepare(lab)?;
    chroot::prepare(lab)
}
