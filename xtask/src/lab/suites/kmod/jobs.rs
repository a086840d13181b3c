//! Jobs between guests: NCCL, and an MPI, one rank in each guest and two.

use super::{check, seen};
use crate::lab::session::Lab;
use crate::lab::shared;
use crate::lab::suites::Tag::Ci;
use crate::lab::suites::{Group, Outcome};
use crate::{mpi, nccl};
use anyhow::Result;

pub(super) const GROUPS: &[Group] = &[Group {
    name: "jobs",
    topology: "pair,lanes=1",
    plan: shared::plan,
    prepare: shared::prepare,
    checks: &[check("nccl", Ci, over_nccl), check("mpi", Ci, over_mpi)],
}];

fn over_nccl(lab: &mut Lab) -> Result<Outcome> {
    seen(nccl::in_guests(lab, &[2, 4])?)
}

fn over_mpi(lab: &mut Lab) -> Result<Outcome> {
    seen(mpi::in_guests(lab, &[2, 4])?)
}
