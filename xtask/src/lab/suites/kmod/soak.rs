//! Messages both ways at once, as fast as they go: every byte is checked, and nothing is left behind.

use super::{check, seen};
use crate::interrupt;
use crate::lab::agent::Running;
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::leaks::Footprint;
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::rdma::Server;
use crate::lab::suites::{Group, Outcome, rails, rdma};
use anyhow::{Result, bail};
use std::time::Duration;

pub(super) const GROUPS: &[Group] = &[Group {
    name: "soak",
    topology: "pair,lanes=1",
    plan: |plan| plan.limit = Duration::from_secs(3600),
    prepare: rdma::prepare,
    checks: &[
        check("minute", Ci, minute),
        check("ten-minutes", Full, ten_minutes),
    ],
}];

fn minute(lab: &mut Lab) -> Result<Outcome> {
    soak(lab, 60)
}

fn ten_minutes(lab: &mut Lab) -> Result<Outcome> {
    soak(lab, 600)
}

fn soak(lab: &mut Lab, seconds: u32) -> Result<Outcome> {
    // What the first messages have the kernel make for good is no leak.
    both_ways(lab, 3)?;
    let before = lab
        .guests()
        .iter()
        .map(Footprint::of)
        .collect::<Result<Vec<_>>>()?;
    let moved = rails::frames(lab.parts().1, 0)?;
    let runs = both_ways(lab, seconds)?;
    let moved = rails::frames(lab.parts().1, 0)? - moved;
    for (guest, before) in lab.guests().iter().zip(before) {
        before.is_what_is_left_in(guest)?;
    }
    seen(format!(
        "{runs} runs of usb4ctl bench both ways in {seconds} s, {moved} frames, no byte wrong, nothing left behind"
    ))
}

/// Runs clients in both guests, again and again; returns how many runs there were.
fn both_ways(lab: &Lab, seconds: u32) -> Result<u32> {
    let [one, other] = lab.guests() else {
        bail!("two guests are wanted");
    };
    let servers = [Server::start(other, "bench")?, Server::start(one, "bench")?];
    let clients = [
        client(one, &servers[0].address, seconds)?,
        client(other, &servers[1].address, seconds)?,
    ];
    let limit = Duration::from_secs(u64::from(seconds)) + 2 * SETTLE;
    let mut runs = 0;
    for running in clients {
        let output = running.wait(limit)?;
        interrupt::check()?;
        if !output.ok() {
            bail!("usb4ctl bench: {output}");
        }
        let text = output.text();
        let last = text.lines().last().unwrap_or_default();
        runs += last.parse::<u32>().unwrap_or(0);
    }
    for server in servers {
        server.end()?;
    }
    Ok(runs)
}

/// Sizes and operations in turn, until the time is up; the last line is how many runs there were.
fn client<'a>(guest: &'a Guest, address: &str, seconds: u32) -> Result<Running<'a>> {
    let script = format!(
        "runs=0; end=$(($(cut -d. -f1 /proc/uptime) + {seconds}))
         while [ $(cut -d. -f1 /proc/uptime) -lt $end ]; do
             for operation in send write read; do
                 usb4ctl bench --op $operation --min 64 --max 65536 --iterations 20 --megabytes 4 {address} \\
                     > /tmp/bench.log || {{ cat /tmp/bench.log >&2; exit 1; }}
                 runs=$((runs + 1))
             done
         done; echo $runs"
    );
    guest.start(&["sh", "-c", &script])
}
