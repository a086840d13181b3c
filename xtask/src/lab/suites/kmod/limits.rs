//! What users may have, and who is one: pinned memory and quotas, the memory cgroup, the device's mode. And with the same
//! guests what is said of neighbours, and memory of other drivers. With another one, all the memory of queues that a user
//! may have.

use super::{check, dmabuf, peers, seen};
use crate::lab::session::Lab;
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::leaks::Footprint;
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::{Group, Outcome, rdma};
use anyhow::{Context, Result, bail};

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "users",
        topology: "pair,lanes=1",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("limits", Ci, limits),
            check("memory-cgroup", Ci, memory_cgroup),
            check("who-may-open", Ci, who_may_open),
            check("dma-buf", Ci, dmabuf::dma_buf),
            check("rules", Ci, peers::rules),
            check("peers", Ci, peers::peers),
            check("peers-after-reload", Ci, peers::peers_after_reload),
        ],
    },
    // One host, with more memory than its users may have in queues.
    Group {
        name: "queue-memory",
        topology: "none,hosts=1",
        plan: |plan| plan.memory_mib = 1536,
        prepare: |lab| rdma::load(lab),
        checks: &[check("of-a-user", Full, queue_memory_of_a_user)],
    },
];

/// Some of the checks of the ABI.
pub(super) fn uapi(lab: &Lab, filter: &str) -> Result<Outcome> {
    let script = format!("usb4-uapi --filter {filter}");
    seen(rdma::verdict(&lab.guest(0)?.sh_for(&script, rdma::LONG)?)?)
}

fn limits(lab: &mut Lab) -> Result<Outcome> {
    uapi(lab, "limits::")
}

/// Queues are charged to their client's memory cgroup, and given back with it.
fn memory_cgroup(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    let group = "/sys/fs/cgroup/client";
    guest.sh(&format!(
        "[ -e /sys/fs/cgroup/cgroup.procs ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup
         echo +memory > /sys/fs/cgroup/cgroup.subtree_control && mkdir -p {group}"
    ))?;
    let script = format!("echo $$ > {group}/cgroup.procs && exec usb4-uapi --act charge");
    let text = guest.sh_for(&script, SETTLE)?;
    let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
    let [queues, charged] = numbers.as_slice() else {
        bail!("usb4-uapi --act charge: {text}");
    };
    if charged < queues {
        bail!("{queues} bytes of queues, {charged} bytes charged");
    }
    guest
        .until(
            &format!("[ $(cat {group}/memory.current) -lt {} ]", queues / 4),
            SETTLE,
        )
        .context("what a client was charged, after its end")?;
    guest.sh(&format!("rmdir {group}"))?;
    seen(format!(
        "{} KiB of queues charged as {} KiB, and given back",
        queues >> 10,
        charged >> 10
    ))
}

/// A user who takes all there is for one is refused more, others are not; and all of it comes back.
fn queue_memory_of_a_user(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    // What the first message has the kernel make for good is no leak.
    guest.sh("usb4-uapi --act greet-itself")?;
    let before = Footprint::of(guest)?;
    let text = guest.sh_for("usb4-uapi --act exhaust-queue-memory", rdma::LONG)?;
    before.is_what_is_left_in(guest)?;
    seen(text)
}

/// A user of no account.
const STRANGER: &str = "unshare --setgid 4242 --setuid 4242";

/// Root, and whoever udev's rules say; others are told what to do. So is who may not pin enough.
fn who_may_open(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    let refused = guest.run(&format!("{STRANGER} usb4ctl devices"), SETTLE)?;
    let words = String::from_utf8_lossy(&refused.stderr).trim().to_string();
    if refused.ok() || !words.contains("no permission to open /dev/usb4ring") {
        bail!("a stranger: {refused}");
    }
    // As the rule in packaging/udev has it done.
    guest.sh("chgrp 4242 /dev/usb4ring")?;
    guest
        .sh(&format!("{STRANGER} usb4ctl devices"))
        .context("of its group")?;
    let bench = "usb4ctl bench --min 4096 --max 4096 --iterations 1 --megabytes 1";
    let script = format!("ulimit -l 8; exec {STRANGER} {bench}");
    let pinned = guest.run(&script, SETTLE)?;
    let limit = String::from_utf8_lossy(&pinned.stderr).trim().to_string();
    if pinned.ok() || !limit.contains("RLIMIT_MEMLOCK") {
        bail!("with 8 KiB to pin: {pinned}");
    }
    guest.sh("chgrp 0 /dev/usb4ring")?;
    seen(format!("{words:?}; {limit:?}"))
}
