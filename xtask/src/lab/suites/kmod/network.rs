//! thunderbolt_net and our module on the same controllers: each keeps its rings, whoever came first.

use super::{check, seen};
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::load::{Load, MOVING};
use crate::lab::suites::net::{self, SETTLE};
use crate::lab::suites::{Group, Outcome, rails, rdma};
use anyhow::{Result, bail};
use std::time::Duration;

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "beside-network",
        topology: "pair,lanes=1",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("network-second", Full, network_second),
            check("network-first", Full, network_first),
        ],
    },
    // Two data rings, of which one is thunderbolt_net's.
    Group {
        name: "beside-network-three-hops",
        topology: "pair,lanes=1,hops=strix",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("network-second", Ci, network_second),
            check("network-first", Ci, network_first),
        ],
    },
    // Two cables and two data rings: one for each host that offers the network, and at least one for us.
    Group {
        name: "no-ring",
        topology: "pair2,lanes=1,hops=strix",
        plan: |_| {},
        prepare: |_| Ok(()),
        checks: &[check("waits-and-gets-it", Ci, no_ring)],
    },
    // Bounce buffers of 16 MiB: as much as one rail takes, 12 for what it receives and 4 for what its link sends.
    Group {
        name: "no-buffers",
        topology: "pair2,lanes=1",
        plan: |plan| plan.parameters = "swiotlb=8192,force".to_string(),
        prepare: |_| Ok(()),
        checks: &[
            check("waits-and-gets-them", Full, no_buffers),
            check("both-take-the-same-cable", Full, same_cable),
        ],
    },
];

/// The link is up when the network comes.
fn network_second(lab: &mut Lab) -> Result<Outcome> {
    net::up(lab)?;
    both(lab)
}

/// The network has its rings when our module comes.
fn network_first(lab: &mut Lab) -> Result<Outcome> {
    for guest in lab.guests() {
        guest.sh_for("rmmod usb4_rdma", SETTLE)?;
    }
    net::up(lab)?;
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    rdma::up(lab, &from)?;
    both(lab)
}

/// iperf3 both ways over the network while checked messages cross the link; then the network goes.
fn both(lab: &mut Lab) -> Result<Outcome> {
    let from = rdma::ends(lab);
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let load = Load::start(one, other, 16384)?;
    rails::moves(emulator, 0, MOVING)?;
    let there = net::iperf3(one, other, false, 3)?;
    let back = net::iperf3(one, other, true, 3)?;
    load.end()?;
    for guest in guests {
        guest.sh("ip link set thunderbolt0 down && modprobe -r thunderbolt_net")?;
    }
    for (guest, from) in guests.iter().zip(from) {
        if guest.console.wait(rdma::DOWN, from, Duration::ZERO).is_ok() {
            bail!("guest {}: the link went down", guest.number);
        }
    }
    let answered = rdma::ping(one, other, 20)?;
    seen(format!(
        "iperf3 {there:.0} Mbit/s there, {back:.0} back beside usb4ctl bench; then {answered}"
    ))
}

/// What the kernel says of a rail that has no ring (kmod/rings.c).
const NO_RING: &str = "has no ring left";

/// A second rail finds no ring: it says so once, names the holder, and gets the ring when the first one goes.
fn no_ring(lab: &mut Lab) -> Result<Outcome> {
    for guest in lab.guests() {
        // Its service is what the ring is kept for.
        guest.sh("modprobe thunderbolt_net")?;
    }
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    let up = rdma::said(lab, &from, rdma::UP)?;
    let mut lines = vec![];
    for (guest, from) in lab.guests().iter().zip(&from) {
        let at = guest.console.wait(NO_RING, *from, SETTLE)?;
        lines.push(guest.console.lines(at).first().cloned().unwrap_or_default());
        // If the guests have begun with different cables, one has changed its mind, and then its other rail waits.
        let waits = "grep -q no-ring /sys/bus/thunderbolt/devices/*/usb4_rdma/state";
        guest.until(waits, SETTLE)?;
    }
    rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    rdma::pass(lab.guests(), TRIES)?;
    for (guest, up) in lab.guests().iter().zip(up) {
        once_each(guest, up, NO_RING)?;
    }
    // Whichever rail has the ring.
    let holder = lab
        .guest(0)?
        .sh("ls -d /sys/bus/thunderbolt/drivers/usb4_rdma/*-*.* | wc -l")?;
    let moved = [rails::frames(lab.parts().1, 0)?, rails::frames(lab.parts().1, 1)?];
    let cable = usize::from(moved[1] > moved[0]);
    let from = rdma::ends(lab);
    lab.control(&format!("unplug {cable}"))?;
    rdma::down(lab, &from)?;
    rdma::up(lab, &from)?;
    let answered = rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    lab.control(&format!("plug {cable}"))?;
    seen(format!(
        "{holder} services, one ring: {:?}; when the first cable is pulled, {answered}",
        lines.first().map_or("", |line| message(line))
    ))
}

/// More than one try for what a rail lacks takes (`RETRY_MS` in kmod/rail.h).
const TRIES: Duration = Duration::from_secs(5);

/// What the kernel says of a rail that has no memory for frames (kmod/rings.c).
const NO_BUFFERS: &str = "no frame buffers";

/// A second rail finds no memory for its frames: it says so once, and gets it when the first one goes. One that waits can
/// be unloaded, and then all memory is back.
fn no_buffers(lab: &mut Lab) -> Result<Outcome> {
    let bounced = "cat /sys/kernel/debug/swiotlb/io_tlb_used";
    // The thunderbolt driver comes with ours, and finds the first cable alone.
    lab.control("unplug 1")?;
    let before = lab.guest(0)?.sh(bounced)?;
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    rdma::up(lab, &from)?;
    lab.control("plug 1")?;
    let line = waits_for_buffers(lab, &from)?;
    rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    let from = rdma::ends(lab);
    lab.control("unplug 0")?;
    rdma::down(lab, &from)?;
    rdma::up(lab, &from)?;
    let answered = rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    let from = rdma::ends(lab);
    lab.control("plug 0")?;
    waits_for_buffers(lab, &from)?;
    for guest in lab.guests() {
        guest.sh_for("rmmod usb4_rdma", SETTLE)?;
    }
    let after = lab.guest(0)?.sh(bounced)?;
    if after != before {
        bail!("{before} bounce buffers in use before, {after} after");
    }
    seen(format!("{line:?}; when the first cable is pulled, {answered}"))
}

/// One guest gives a cable up, and has memory for the other one then; the peer's is where nobody answers any more.
fn same_cable(lab: &mut Lab) -> Result<Outcome> {
    const DRIVER: &str = "/sys/bus/thunderbolt/drivers/usb4_rdma";
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    rdma::up(lab, &from)?;
    let guest = lab.guest(0)?;
    let service = guest
        .sh("cd /sys/bus/thunderbolt/devices && dirname $(grep -lx up */usb4_rdma/state) | cut -d/ -f1")?;
    let from = rdma::ends(lab);
    guest.sh(&format!("echo {service} > {DRIVER}/unbind"))?;
    rdma::down(lab, &from)?;
    rdma::up(lab, &from)?;
    let answered = rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    for guest in lab.guests() {
        guest.sh_for("rmmod usb4_rdma", SETTLE)?;
    }
    seen(format!("without {service}, {answered}"))
}

/// Waits until every guest has a rail without buffers, and returns what one has said: once, whatever it has tried since.
fn waits_for_buffers(lab: &Lab, from: &[usize]) -> Result<String> {
    let at = rdma::said(lab, from, NO_BUFFERS)?;
    rdma::pass(lab.guests(), TRIES)?;
    let mut line = String::new();
    for (guest, at) in lab.guests().iter().zip(at) {
        guest.sh("grep -q no-buffers /sys/bus/thunderbolt/devices/*/usb4_rdma/state")?;
        once_each(guest, at, NO_BUFFERS)?;
        let said = guest.console.lines(at);
        line = said.first().map_or("", |line| message(line)).to_string();
    }
    Ok(line)
}

/// No rail of a guest has said it twice from that line on. One that has given way says it after another one has.
fn once_each(guest: &Guest, from: usize, what: &str) -> Result<()> {
    let lines = guest.console.lines(from);
    let said = lines.iter().filter(|line| line.contains(what));
    let mut rails: Vec<&str> = said
        .map(|line| message(line).split(": ").next().unwrap_or_default())
        .collect();
    rails.sort_unstable();
    if let Some([rail, _]) = rails.windows(2).find(|two| two[0] == two[1]) {
        bail!("guest {}: {rail} says more than once {what:?}", guest.number);
    }
    Ok(())
}

/// A line without its time.
fn message(line: &str) -> &str {
    line.rsplit_once("] ").map_or(line, |(_, message)| message)
}
