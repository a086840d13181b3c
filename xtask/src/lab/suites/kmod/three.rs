//! Three hosts: each pair that a cable joins has a link of its own, and who is out of reach is named.

use super::{check, seen};
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::rdma::Server;
use crate::lab::suites::{Group, Outcome, rdma};
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "triangle",
        topology: "triangle,lanes=1",
        plan: |_| {},
        prepare: |lab| links(lab, &[2, 2, 2]),
        checks: &[
            check("all-pairs", Ci, all_pairs),
            check("one-cable-pulled", Ci, one_cable_pulled),
            check("conformance", Full, conformance),
        ],
    },
    Group {
        name: "chain",
        topology: "chain,lanes=1",
        plan: |_| {},
        prepare: |lab| links(lab, &[1, 2, 1]),
        checks: &[check("out-of-reach", Ci, out_of_reach)],
    },
];

/// Loads the module everywhere; returns when each guest has so many links.
pub(super) fn links(lab: &mut Lab, count: &[usize]) -> Result<()> {
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    for ((guest, mut from), count) in lab.guests().iter().zip(from).zip(count) {
        for _ in 0..*count {
            from = guest.console.wait(rdma::UP, from, SETTLE)? + 1;
        }
    }
    Ok(())
}

/// Pairs of the triangle, by cable.
const PAIRS: [(usize, usize); 3] = [(0, 1), (1, 2), (2, 0)];

/// Every guest sends to its neighbour, all at once.
fn all_pairs(lab: &mut Lab) -> Result<Outcome> {
    let mut running = vec![];
    for (from, to) in PAIRS {
        let server = Server::start(lab.guest(to)?, "bench")?;
        let script = format!(
            "usb4ctl bench --min 64 --max 65536 --iterations 50 --megabytes 4 {}",
            server.address
        );
        let client = lab.guest(from)?.start(&["sh", "-c", &script])?;
        running.push((server, client));
    }
    for (server, client) in running {
        let output = client.wait(rdma::LONG)?;
        if !output.ok() {
            bail!("usb4ctl bench: {output}");
        }
        server.end()?;
    }
    seen("all three pairs at once, no byte wrong")
}

/// A link that goes takes no other with it.
fn one_cable_pulled(lab: &mut Lab) -> Result<Outcome> {
    let from = rdma::ends(lab);
    lab.control("unplug 0")?;
    for (guest, from) in lab.guests().iter().zip(&from).take(2) {
        guest.console.wait(rdma::DOWN, *from, SETTLE)?;
    }
    for (one, other) in [(1, 2), (2, 0)] {
        rdma::ping(lab.guest(one)?, lab.guest(other)?, 20)?;
    }
    let words = refused(lab.guest(0)?, lab.guest(1)?)?;
    let from = rdma::ends(lab);
    lab.control("plug 0")?;
    for (guest, from) in lab.guests().iter().zip(&from).take(2) {
        guest.console.wait(rdma::UP, *from, SETTLE)?;
    }
    let answered = rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    seen(format!(
        "the others go on; over the cable that is gone: {words:?}; with it back {answered}"
    ))
}

fn conformance(lab: &mut Lab) -> Result<Outcome> {
    let mut words = vec![];
    for (one, other) in PAIRS {
        words.push(rdma::conformance_pair(lab.guest(one)?, lab.guest(other)?)?);
    }
    seen(words.join("; "))
}

/// The ends of a chain have no cable to each other: whoever tries is told so at once, and not kept waiting.
fn out_of_reach(lab: &mut Lab) -> Result<Outcome> {
    for (one, other) in [(0, 1), (2, 1)] {
        rdma::ping(lab.guest(one)?, lab.guest(other)?, 20)?;
    }
    let words = refused(lab.guest(0)?, lab.guest(2)?)?;
    seen(format!("neighbours answer; from end to end: {words:?}"))
}

/// Pings a guest that no cable leads to; returns what the program says.
fn refused(from: &Guest, to: &Guest) -> Result<String> {
    const AT_ONCE: Duration = Duration::from_secs(15);
    let server = Server::start(to, "ping")?;
    let began = Instant::now();
    let output = from.run(&format!("usb4ctl ping --count 1 {}", server.address), SETTLE)?;
    let words = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.ok() || !words.contains("no peer ") {
        bail!("pinging a host out of reach: {output}");
    }
    if began.elapsed() > AT_ONCE {
        bail!("it took {:?} to say {words:?}", began.elapsed());
    }
    server.end()?;
    let last = words.lines().last().context("it says nothing")?;
    Ok(last.to_string())
}
