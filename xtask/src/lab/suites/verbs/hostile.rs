//! Local processes that mean it ill, at the uverbs device, at a context's descriptor, and at the queues these lead to.

use super::{prepare, seen};
use crate::lab::session::Lab;
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::leaks::Footprint;
use crate::lab::suites::load::{Load, MOVING};
use crate::lab::suites::{Check, Group, Outcome, rails, rdma};
use anyhow::{Result, bail};
use std::time::Duration;

pub(super) const GROUPS: &[Group] = &[Group {
    name: "hostile-user",
    topology: "pair,lanes=1",
    plan: |plan| plan.limit = Duration::from_secs(3600),
    prepare,
    checks: &[
        Check {
            name: "two-minutes",
            tag: Ci,
            run: |lab| hostile(lab, 120),
        },
        Check {
            name: "twenty-minutes",
            tag: Full,
            run: |lab| hostile(lab, 1200),
        },
    ],
}];

/// Hostile processes on guest 0, while checked messages of the ring API leave it.
fn hostile(lab: &mut Lab, seconds: u64) -> Result<Outcome> {
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let run = |seconds: u64| {
        let script = format!("usb4-uverbs --chaos {seconds} --seed {seconds}");
        one.sh_for(&script, Duration::from_secs(120 + 2 * seconds))
    };
    run(3)?;
    let before = Footprint::of(one)?;
    let load = Load::start(one, other, 16384)?;
    rails::moves(emulator, 0, MOVING)?;
    let words = run(seconds)?;
    rails::moves(emulator, 0, 1000)?;
    load.end()?;
    before.is_what_is_left_in(one)?;
    let answered = rdma::ping(one, other, 20)?;
    seen(format!("{}, nothing left behind; {answered}", words.trim()))
}
