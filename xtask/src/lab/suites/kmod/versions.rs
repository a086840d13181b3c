//! Hosts and programs of different releases: they work together, or say in one line why not. The other release is this one
//! with the next numbers (`freestanding::Release::Next`).

use super::{check, seen};
use crate::lab::session::{Lab, NEXT_MODULE};
use crate::lab::suites::Tag::Ci;
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::{Group, Outcome, rdma};
use anyhow::{Context, Result, bail};

pub(super) const GROUPS: &[Group] = &[Group {
    name: "mixed-versions",
    topology: "pair,lanes=1",
    plan: |plan| plan.next_module = true,
    prepare,
    checks: &[
        check("wire", Ci, wire),
        check("abi", Ci, abi),
        check("upgraded", Ci, upgraded),
    ],
}];

/// What each guest's kernel says of the other, with the version it is told first.
const SAYS: [&str; 2] = [
    "no session with the host at the other end: it speaks version 2 of the protocol, this host version 1",
    "no session with the host at the other end: it speaks version 1 of the protocol, this host version 2",
];

/// Guest 0 has this release, guest 1 the next one.
fn prepare(lab: &mut Lab) -> Result<()> {
    let from = rdma::ends(lab);
    lab.guest(0)?.sh("modprobe usb4_rdma")?;
    lab.guest(1)?
        .sh(&format!("modprobe thunderbolt && insmod {NEXT_MODULE}"))?;
    for ((guest, from), says) in lab.guests().iter().zip(from).zip(SAYS) {
        guest.console.wait(says, from, SETTLE)?;
    }
    Ok(())
}

/// Hosts whose frames differ have no link; both kernels, `usb4ctl status` and who wants to connect say why.
fn wire(lab: &mut Lab) -> Result<Outcome> {
    let node = lab
        .guest(1)?
        .sh("cat /sys/class/misc/usb4ring/node")
        .context("the node id of guest 1")?;
    let guest = lab.guest(0)?;
    let status = guest.sh("usb4ctl status")?;
    let (_, why) = SAYS[0].split_once(": ").context("no reason")?;
    let line = status.lines().find(|line| line.contains(why));
    let Some(line) = line else {
        bail!("usb4ctl status does not say {why:?}:\n{status}");
    };
    let peers = guest.sh("usb4ctl peers list")?;
    if !peers.contains("no protocol version in common") {
        bail!("usb4ctl peers list:\n{peers}");
    }
    let address = format!("{}/1.1", node.trim());
    let ping = guest.run(&format!("usb4ctl ping {address}"), SETTLE)?;
    let words = String::from_utf8_lossy(&ping.stderr).trim().to_string();
    if ping.ok() || !words.contains("no protocol version in common") {
        bail!("usb4ctl ping {address}: {ping}");
    }
    seen(format!("{line:?}; {words:?}"))
}

/// A program and a module whose interfaces differ.
fn abi(lab: &mut Lab) -> Result<Outcome> {
    let refused = lab.guest(1)?.run("usb4ctl devices", SETTLE)?;
    let words = String::from_utf8_lossy(&refused.stderr).trim().to_string();
    if refused.ok() || !words.contains("speaks version 2 of the ring interface and this program version 1") {
        bail!("usb4ctl devices: {refused}");
    }
    seen(format!("{words:?}"))
}

/// The link comes up by itself when the module is replaced.
fn upgraded(lab: &mut Lab) -> Result<Outcome> {
    let from = rdma::ends(lab);
    lab.guest(1)?.sh("rmmod usb4_rdma && modprobe usb4_rdma")?;
    rdma::up(lab, &from)?;
    seen(rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?)
}
