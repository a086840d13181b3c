//! More stock software on `usb4_0`: what uses verbs, and is run from the tree (`chroot.rs`) or, Open MPI, from this machine's
//! folders.

use super::Tag::Full;
use super::{Check, Group, Outcome, Tag, applications, chroot, pyverbs, qperf, verbs};
use crate::lab::session::{Lab, Plan};
use crate::lab::shared;
use anyhow::Result;

pub(super) const GROUP: Group = Group {
    name: "more",
    topology: "pair,lanes=1",
    plan,
    prepare,
    checks: &[
        check("pyverbs", Full, pyverbs::itself),
        check("mpi-over-ucx", Full, applications::mpi),
        check("ucx", Full, applications::ucx),
        check("libfabric", Full, applications::libfabric),
        check("qperf", Full, qperf::qperf),
    ],
};

const fn check(name: &'static str, tag: Tag, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check { name, tag, run }
}

fn plan(plan: &mut Plan) {
    chroot::plan(plan);
    pyverbs::plan(plan);
}

fn prepare(lab: &mut Lab) -> Result<()> {
    verbs::prepare(lab)?;
    shared::meet(lab)?;
    chroot::prepare(lab)
}
