//! Cables that lose and damage frames, and rings that misbehave: no byte is wrong and nothing hangs.

use super::{check, seen};
use crate::lab::session::Lab;
use crate::lab::suites::Tag::Ci;
use crate::lab::suites::{Group, Outcome, rdma};
use anyhow::{Context, Result, bail};

pub(super) const GROUPS: &[Group] = &[Group {
    name: "bad-cable",
    topology: "pair,lanes=1",
    plan: |_| {},
    prepare: rdma::prepare,
    checks: &[check("loss", Ci, loss)],
}];

/// One frame of a thousand lost, and one damaged.
fn loss(lab: &mut Lab) -> Result<Outcome> {
    faulty(lab, &["loss 0 1000", "corrupt 0 1000"], &["lost", "corrupted"])
}

/// Runs the conformance suite while the cable is as `requests` make it. Each of the cable's `counters` has to say that
/// something was struck.
fn faulty(lab: &mut Lab, requests: &[&str], counters: &[&str]) -> Result<Outcome> {
    lab.control("clear")?;
    for request in requests {
        lab.control(request)?;
    }
    let words = rdma::conformance_pair(lab.guest(0)?, lab.guest(1)?)?;
    lab.control("heal 0")?;
    let stats = lab.control("stats")?;
    let mut struck = vec![];
    for name in counters {
        let count = ["forth", "back"].map(|way| stats["stats"]["cables"][0][way][name].as_u64());
        let count: u64 = count.into_iter().sum::<Option<u64>>().context("no counter")?;
        if count == 0 {
            bail!("no frame was {name}");
        }
        struck.push(format!("{count} {name}"));
    }
    seen(format!("{words}; frames: {}", struck.join(", ")))
}
