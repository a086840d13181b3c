//! Verbs on our module: the device `usb4_0`, spoken to without libibverbs, on one guest and between two.

mod addresses;
mod faults;
mod frozen;
mod hostile;
mod rdma_cm;
mod releases;

use super::net::SETTLE;
use super::rdma;
use super::{Check, Group, Outcome, Tag};
use crate::lab::agent::{Running, SIGKILL, Said};
use crate::lab::binary;
use crate::lab::session::{Guest, Lab, Plan};
use crate::lab::switch;
use crate::lab::verbs_files;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

pub(super) fn groups() -> Vec<&'static Group> {
    [
        GROUPS,
        addresses::GROUPS,
        faults::GROUPS,
        frozen::GROUPS,
        hostile::GROUPS,
        releases::GROUPS,
    ]
    .into_iter()
    .flatten()
    .collect()
}

const GROUPS: &[Group] = &[
    Group {
        name: "alone",
        topology: "none,hosts=1",
        plan: |_| {},
        prepare: load,
        checks: &[
            check("uverbs", uverbs),
            check("no-port", no_port),
            check("unload", unload),
        ],
    },
    Group {
        name: "pair",
        topology: "pair,lanes=1",
        plan: |_| {},
        prepare,
        checks: &[
            check("tools", tools),
            check("uverbs-pair", uverbs_pair),
            check("counters", counters),
            check("port", port),
            check("unload", unload),
        ],
    },
];

const fn check(name: &'static str, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check {
        name,
        tag: Tag::Ci,
        run,
    }
}

fn seen(what: impl Into<String>) -> Result<Outcome> {
    Ok(Outcome::Seen(what.into()))
}

/// Where sysfs has the port.
const PORT: &str = "/sys/class/infiniband/usb4_0/ports/1";

/// How long the longest programs may take.
const LONG: Duration = Duration::from_secs(300);

/// Adds our programs to what guests get: that without libibverbs, and that with, and its provider.
pub(super) fn plan(plan: &mut Plan) -> Result<()> {
    let path = binary::build("usb4-testkit", "usb4-uverbs")?;
    plan.files.push(("usr/bin/usb4-uverbs".to_string(), path));
    plan.files
        .push(verbs_files::program("usb4-testkit", "usb4-verbs")?);
    plan.files.extend(verbs_files::provider()?);
    Ok(())
}

/// Loads the modules, which udev does elsewhere: the second for its device's alias, ib_uverbs for its class.
fn load(lab: &mut Lab) -> Result<()> {
    rdma::load(lab)?;
    lab.guests().iter().try_for_each(load_verbs)
}

pub(in crate::lab) fn load_verbs(guest: &Guest) -> Result<()> {
    let script = "modprobe $(cat /sys/devices/platform/usb4_rdma_ib/modalias) && modprobe ib_uverbs &&
                  [ -e /sys/class/infiniband/usb4_0 ] && [ -e /dev/infiniband/uverbs0 ]";
    guest.sh_for(script, SETTLE).map(drop)
}

/// The same, and waits for the link.
pub(super) fn prepare(lab: &mut Lab) -> Result<()> {
    let from = rdma::ends(lab);
    load(lab)?;
    rdma::up(lab, &from)
}

/// Every check of one host, the link to itself included.
fn uverbs(lab: &mut Lab) -> Result<Outcome> {
    seen(rdma::verdict(&lab.guest(0)?.sh_for("usb4-uverbs", LONG)?)?)
}

/// Without a cable the port is down.
fn no_port(lab: &mut Lab) -> Result<Outcome> {
    let state = lab.guest(0)?.sh(&format!("cat {PORT}/state"))?;
    if state != "1: DOWN" {
        bail!("without a cable the port is {state}");
    }
    seen(state)
}

/// What rdma-core's and iproute2's programs see.
fn tools(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    let link = guest.sh("rdma link show usb4_0/1")?;
    if !link.contains("state ACTIVE") {
        bail!("rdma link: {link}");
    }
    let holder = guest.start(&["usb4-uverbs", "--hold"])?;
    let mut holder = Holder::of(holder)?;
    let script = "rdma resource show qp link usb4_0/1; rdma resource show cq dev usb4_0; rdma resource show mr dev usb4_0";
    let found = guest.sh(script)?;
    for wanted in ["type RC", "state INIT", "cqe 64", "comm usb4-uverbs", "mrlen"] {
        if !found.contains(wanted) {
            bail!("rdma resource does not say {wanted}: {found}");
        }
    }
    holder.end()?;
    let left = guest.sh("rdma resource show usb4_0")?;
    // ib_mad has the queue pair for management.
    for wanted in ["pd 1", "cq 1", "qp 1", "mr 0", "ctx 0"] {
        if !left.contains(wanted) {
            bail!("something is left: {left}");
        }
    }
    seen(link.trim().to_string())
}

/// Queue pairs of one guest move data to and from those of the other.
fn uverbs_pair(lab: &mut Lab) -> Result<Outcome> {
    const PORT: u16 = 7002;
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    for guest in [one, other] {
        rdma::network(guest)?;
    }
    let address = format!("{}:{PORT}", switch::address(other.number));
    let server = other.start(&["usb4-uverbs", "--listen", &address])?;
    other.listening(PORT)?;
    let text = one.sh_for(&format!("usb4-uverbs --connect {address}"), LONG)?;
    server.signal(SIGKILL)?;
    server.wait(SETTLE)?;
    seen(rdma::verdict(&text)?)
}

/// The port counts what the links do.
fn counters(lab: &mut Lab) -> Result<Outcome> {
    let script = format!("grep . {PORT}/hw_counters/*");
    let said = lab.guest(0)?.sh(&script)?;
    for wanted in ["tx_frames", "rx_frames", "completed", "executed"] {
        let line = said.lines().find(|line| line.contains(&format!("/{wanted}:")));
        let count = line.and_then(|line| line.rsplit(':').next()?.parse::<u64>().ok());
        if count.is_none_or(|count| count == 0) {
            bail!("{wanted} is {count:?}: {said}");
        }
    }
    seen(format!("{} counters", said.lines().count()))
}

/// The port follows the link: down without the cable, active with it, and no faster than that. Programs of libibverbs are told.
fn port(lab: &mut Lab) -> Result<Outcome> {
    let state = format!("cat {PORT}/state");
    let until = |guest: &Guest, wanted: &str| {
        let condition = format!("[ \"$({state})\" = '{wanted}' ]");
        guest.until(&condition, SETTLE).context(wanted.to_string())
    };
    until(lab.guest(0)?, "4: ACTIVE")?;
    let rate = lab.guest(0)?.sh(&format!("cat {PORT}/rate"))?;
    let gigabits = rate
        .split(' ')
        .next()
        .and_then(|number| number.parse::<f64>().ok());
    // What the kernel says of the cable when its link comes up (kmod/rails.c).
    let said = lab
        .guest(0)?
        .sh("dmesg | sed -n 's/.* up, rail 0 over .*, \\([0-9]*\\) Mb\\/s$/\\1/p' | tail -n 1")?;
    let mbps: f64 = said
        .trim()
        .parse()
        .with_context(|| format!("the link's rate: {said}"))?;
    if gigabits.is_none_or(|rate| rate <= 0.0 || rate * 1000.0 > mbps) {
        bail!("the port says {rate}, and its cable carries {mbps} Mb/s");
    }
    let told = |guest: &Guest, wanted: &str| {
        let condition = format!("grep -q '{wanted}' /tmp/async.log");
        guest.until(&condition, SETTLE).context(wanted.to_string())
    };
    lab.guest(0)?
        .sh("setsid ibv_asyncwatch -d usb4_0 > /tmp/async.log 2>&1 < /dev/null & echo $! > /tmp/async.pid")?;
    told(lab.guest(0)?, "async event FD")?;
    let from = rdma::ends(lab);
    lab.control("unplug 0")?;
    rdma::down(lab, &from)?;
    until(lab.guest(0)?, "1: DOWN")?;
    told(lab.guest(0)?, "(10), port 1")?;
    let from = rdma::ends(lab);
    lab.control("plug 0")?;
    rdma::up(lab, &from)?;
    until(lab.guest(0)?, "4: ACTIVE")?;
    told(lab.guest(0)?, "(9), port 1")?;
    lab.guest(0)?.sh("kill $(cat /tmp/async.pid)")?;
    seen(format!(
        "{rate}; down without the cable, active with it, and ibv_asyncwatch is told"
    ))
}

/// A process that has one of every object.
struct Holder<'a> {
    running: Running<'a>,
}

impl<'a> Holder<'a> {
    /// Waits until it has.
    fn of(running: Running<'a>) -> Result<Self> {
        let mut holder = Self { running };
        holder.says("holding")?;
        Ok(holder)
    }

    fn says(&mut self, wanted: &str) -> Result<()> {
        let deadline = Instant::now() + SETTLE;
        let mut text = String::new();
        while Instant::now() < deadline {
            match self.running.said(Duration::from_millis(100))? {
                Said::Output(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
                Said::End(_) => bail!("usb4-uverbs --hold has ended: {text}"),
                Said::Nothing => {}
            }
            if text.contains(wanted) {
                return Ok(());
            }
        }
        bail!("usb4-uverbs --hold does not say {wanted}: {text}")
    }

    fn end(&mut self) -> Result<()> {
        self.running.signal(SIGKILL)?;
        let deadline = Instant::now() + SETTLE;
        while Instant::now() < deadline {
            if let Said::End(_) = self.running.said(Duration::from_millis(100))? {
                return Ok(());
            }
        }
        bail!("usb4-uverbs --hold does not end")
    }
}

/// usb4_rdma stays while verbs are there. These go also while a process has objects, which it is told, and come back.
fn unload(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    let refused = guest.run("rmmod usb4_rdma", SETTLE)?;
    if refused.ok() || !refused.to_string().contains("in use") {
        bail!("while verbs are there, rmmod usb4_rdma says: {refused}");
    }
    let mut holder = Holder::of(guest.start(&["usb4-uverbs", "--hold"])?)?;
    guest.sh_for(
        "rmmod usb4_rdma_ib && [ ! -e /sys/class/infiniband/usb4_0 ]",
        SETTLE,
    )?;
    holder.says("let go")?;
    let refused = guest.run("rmmod usb4_rdma", SETTLE)?;
    if refused.ok() {
        bail!("the descriptor of a context does not hold the module");
    }
    holder.end()?;
    guest.until("rmmod usb4_rdma 2> /dev/null", SETTLE)?;
    guest.sh("modprobe usb4_rdma")?;
    load_verbs(guest)?;
    let text = guest.sh_for("usb4-uverbs --filter rc_sends", LONG)?;
    seen(format!(
        "unloaded in use, and loaded again: {}",
        rdma::verdict(&text)?
    ))
}
