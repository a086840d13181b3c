//! Jobs between guests: NCCL, and an MPI, on one rank in each guest and on two; over bad cables; among three hosts.

use super::{bad_cable, check, seen, three};
use crate::lab::session::Lab;
use crate::lab::shared;
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::{Check, Group, Outcome};
use crate::{mpi, nccl};
use anyhow::Result;

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "jobs",
        topology: "pair,lanes=1",
        plan: shared::plan,
        prepare: shared::prepare,
        checks: &[
            check("nccl", Ci, |lab| seen(nccl::in_guests(lab, &[4])?)),
            check("nccl-one-rank-each", Full, |lab| {
                seen(nccl::in_guests(lab, &[2])?)
            }),
            check("mpi", Ci, |lab| seen(mpi::in_guests(lab, &[2, 4])?)),
            check("nccl-on-a-bad-cable", Full, over_nccl_badly),
            check("mpi-on-a-bad-cable", Full, over_mpi_badly),
        ],
    },
    Group {
        name: "jobs-three-hops",
        topology: "pair,lanes=1,hops=strix,wedge=on",
        plan: shared::plan,
        prepare: shared::prepare,
        checks: ON_A_BAD_CABLE,
    },
    Group {
        name: "jobs-bounce-buffers",
        topology: "pair,lanes=1",
        plan: |plan| {
            shared::plan(plan);
            plan.parameters.push_str(" swiotlb=force");
        },
        prepare: shared::prepare,
        checks: ON_A_BAD_CABLE,
    },
    Group {
        name: "jobs-triangle",
        topology: "triangle,lanes=1",
        plan: shared::plan,
        prepare: |lab| {
            three::links(lab, &[2, 2, 2])?;
            shared::meet(lab)
        },
        checks: &[
            check("nccl", Full, |lab| seen(nccl::in_guests(lab, &[3, 6])?)),
            check("mpi", Full, |lab| seen(mpi::in_guests(lab, &[3, 6])?)),
        ],
    },
    Group {
        name: "jobs-chain",
        topology: "chain,lanes=1",
        plan: shared::plan,
        prepare: |lab| {
            three::links(lab, &[1, 2, 1])?;
            shared::meet(lab)
        },
        checks: &[
            check("nccl", Full, |lab| seen(nccl::apart_in_guests(lab, 3)?)),
            check("mpi", Full, |lab| seen(mpi::apart_in_guests(lab, 3)?)),
        ],
    },
];

const ON_A_BAD_CABLE: &[Check] = &[
    check("nccl-on-a-bad-cable", Full, over_nccl_badly),
    check("mpi-on-a-bad-cable", Full, over_mpi_badly),
];

fn over_nccl_badly(lab: &mut Lab) -> Result<Outcome> {
    bad_cable::with_all(lab, |lab| nccl::in_guests(lab, &[2, 4]))
}

fn over_mpi_badly(lab: &mut Lab) -> Result<Outcome> {
    bad_cable::with_all(lab, |lab| mpi::in_guests(lab, &[2, 4]))
}
