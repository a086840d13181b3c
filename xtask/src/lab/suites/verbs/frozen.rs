//! Neighbours that take nothing, not even what the kernel sends: frames of the network device, and management datagrams. A
//! machine that stands still is one. Others are not disturbed by it, and it is found again.

use super::addresses::{DEVICE, LIMIT, mac};
use super::{load, load_verbs, rdma_cm, seen};
use crate::lab::agent::{Running, SIGKILL};
use crate::lab::perftest::device_address as address;
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::Tag::Ci;
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::{Check, Group, Outcome};
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

pub(super) const GROUPS: &[Group] = &[Group {
    name: "frozen",
    // Guest 0 has a cable to each of the others.
    topology: "none,hosts=4,ports=3,lanes=1,cable=0.0-1.0,cable=0.1-2.0,cable=0.2-3.0",
    plan: |_| {},
    prepare: begin,
    checks: &[
        Check {
            name: "others-go-on",
            tag: Ci,
            run: others_go_on,
        },
        Check {
            name: "unload",
            tag: Ci,
            run: unload,
        },
    ],
}];

/// Those that stand still. Two, each of which may have a share of what is sent; the last one does not.
const FROZEN: [usize; 2] = [1, 2];
const HEALTHY: usize = 3;

/// Connections that are asked for at each of them: more than it has slots. With more requests than 64 unanswered ib_mad itself
/// keeps others.
const CONNECTIONS: u32 = 24;

/// How long, in milliseconds, a frame to a host that does take them may take, on a machine that has more to do. The others are
/// given up after two seconds.
const SOON: u32 = 1000;

fn begin(lab: &mut Lab) -> Result<()> {
    load(lab)?;
    for guest in lab.guests() {
        guest.sh("modprobe rdma_ucm && ip link set lo up")?;
        configure(guest)?;
    }
    all_answer(lab)
}

fn configure(guest: &Guest) -> Result<()> {
    let own = address(guest.number);
    guest.sh(&format!("ip addr add {own}/24 dev {DEVICE}")).map(drop)
}

/// Every neighbour of guest 0 does.
fn all_answer(lab: &Lab) -> Result<()> {
    let one = lab.guest(0)?;
    let mut others = lab.guests().iter().skip(1);
    others.try_for_each(|other| one.until(&answers(other.number), SETTLE))
}

fn answers(number: usize) -> String {
    format!("ping -q -c 1 -W 1 {} > /dev/null", address(number))
}

/// Programs on guest 0 that send to neighbours that stand still, faster than these would take it.
struct Pressure<'a> {
    running: Vec<Running<'a>>,
}

impl<'a> Pressure<'a> {
    fn start(lab: &'a Lab) -> Result<Self> {
        let one = lab.guest(0)?;
        for number in FROZEN {
            // So that frames are sent whether or not it answers.
            let [a, b, c, d, e, f] = mac(lab.guest(number)?)?;
            let to = address(number);
            one.sh(&format!(
                "ip neigh replace {to} dev {DEVICE} nud permanent lladdr {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"
            ))?;
        }
        for number in FROZEN {
            lab.guest(number)?.stop(true)?;
        }
        let mut running = vec![];
        for number in FROZEN {
            let to = address(number);
            for command in [
                format!("ping -q -i 0.002 {to}"),
                format!("ucmatose -s {to} -c {CONNECTIONS}"),
            ] {
                let script = format!("exec {command} > /dev/null 2>&1 < /dev/null");
                running.push(one.start(&["sh", "-c", &script])?);
            }
        }
        Ok(Self { running })
    }

    /// Neighbours go on, and programs end.
    fn end(self, lab: &Lab) -> Result<()> {
        for number in FROZEN {
            lab.guest(number)?.stop(false)?;
        }
        for running in self.running {
            // It may have ended by itself.
            running.signal(SIGKILL)?;
            running.wait(SETTLE)?;
        }
        Ok(())
    }
}

fn others_go_on(lab: &mut Lab) -> Result<Outcome> {
    let one = lab.guest(0)?;
    let lost = "cat /sys/class/infiniband/usb4_0/ports/1/hw_counters/datagrams_lost";
    let pressure = Pressure::start(lab)?;
    let to = address(HEALTHY);
    let text = one.sh_for(&format!("ping -q -c 300 -i 0.02 -W 5 {to}"), LIMIT)?;
    if !text.contains(" 0% packet loss") {
        bail!("packets to a neighbour that takes them are lost: {text}");
    }
    let longest = text.lines().find_map(|line| line.strip_prefix("rtt "));
    let longest = longest
        .and_then(|line| line.split('/').nth(5))
        .and_then(|number| number.parse::<f64>().ok())
        .with_context(|| format!("ping says {text}"))?;
    if longest > f64::from(SOON) {
        bail!("a packet to a neighbour that takes them took {longest} ms");
    }
    rdma_cm::run(
        one,
        lab.guest(HEALTHY)?,
        &format!("rping -s -a {to} -C 3"),
        &format!("rping -c -a {to} -C 3"),
    )?;
    one.until("dmesg | grep -q 'takes no datagrams'", SETTLE)?;
    one.until(&format!("[ $({lost}) -gt 0 ]"), SETTLE)?;
    pressure.end(lab)?;
    for number in FROZEN {
        one.until(&answers(number), SETTLE).context("when it goes on")?;
    }
    one.until("dmesg | grep -q 'takes datagrams again'", SETTLE)?;
    seen(format!(
        "another neighbour answers within {longest} ms; {} datagrams lost; the two answer when they go on",
        one.sh(lost)?
    ))
}

/// The device goes down, and the module away, as if nothing were on its way.
fn unload(lab: &mut Lab) -> Result<Outcome> {
    /// A host is given up after two seconds, and rdma_cm has more to do.
    const PROMPTLY: Duration = Duration::from_secs(10);
    let pressure = Pressure::start(lab)?;
    let one = lab.guest(0)?;
    let mut took = vec![];
    for script in [
        format!("sleep 0.3; ip link set {DEVICE} down"),
        format!("ip link set {DEVICE} up; sleep 0.3; rmmod usb4_rdma_ib"),
    ] {
        let began = Instant::now();
        one.sh_for(&script, SETTLE)?;
        let span = began.elapsed();
        if span > PROMPTLY {
            bail!("{script} took {span:?}");
        }
        took.push(format!("{span:.1?}"));
    }
    pressure.end(lab)?;
    load_verbs(one)?;
    configure(one)?;
    all_answer(lab)?;
    seen(format!("down and away within {}", took.join(" and ")))
}
