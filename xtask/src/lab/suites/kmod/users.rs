//! Local processes that mean it ill: kernel, peer and other processes are unharmed, and nothing is left behind.

use super::{check, seen};
use crate::lab::session::Lab;
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::leaks::Footprint;
use crate::lab::suites::load::{Load, MOVING};
use crate::lab::suites::{Group, Outcome, rails, rdma};
use anyhow::{Result, bail};
use std::time::Duration;

pub(super) const GROUPS: &[Group] = &[Group {
    name: "hostile-user",
    topology: "pair,lanes=1",
    plan: |plan| plan.limit = Duration::from_secs(3600),
    prepare: rdma::prepare,
    checks: &[
        check("twenty-five", Ci, twenty_five),
        check("a-thousand", Full, a_thousand),
    ],
}];

fn twenty_five(lab: &mut Lab) -> Result<Outcome> {
    hostile(lab, 25)
}

fn a_thousand(lab: &mut Lab) -> Result<Outcome> {
    hostile(lab, 1000)
}

/// Hostile processes on guest 0, while checked messages leave it.
fn hostile(lab: &mut Lab, count: u32) -> Result<Outcome> {
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let run = |count: u32| {
        let script = format!("usb4-uapi --chaos {count} --seed {count}");
        one.sh_for(&script, Duration::from_secs(120 + u64::from(count)))
    };
    run(3)?;
    let before = Footprint::of(one)?;
    let load = Load::start(one, other, 16384)?;
    rails::moves(emulator, 0, MOVING)?;
    let words = run(count)?;
    rails::moves(emulator, 0, 1000)?;
    load.end()?;
    before.is_what_is_left_in(one)?;
    let answered = rdma::ping(one, other, 20)?;
    seen(format!("{words}, nothing left behind; {answered}"))
}
