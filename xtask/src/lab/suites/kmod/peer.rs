//! Peers and drivers that go, in every way there is, and come back: work on a link that has gone fails with a clear error
//! in bounded time, and the link returns without help.

use super::{check, seen};
use crate::lab::session::Lab;
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::load::{Load, MOVING};
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::{Group, Outcome, power, rails, rdma, skeleton};
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

pub(super) const GROUPS: &[Group] = &[Group {
    name: "peer",
    topology: "pair,lanes=1",
    plan: |_| {},
    prepare: rdma::prepare,
    checks: &[
        check("cable-pulled-five-times", Ci, pulled_five_times),
        check("service-unbound", Ci, service_unbound),
        check("drivers-reloaded", Full, drivers_reloaded),
        check("busy-module", Ci, busy_module),
        check("stopped-for-a-while", Ci, stopped_for_a_while),
        check("stopped-for-a-minute", Full, stopped_for_a_minute),
        check("suspended", Ci, suspended),
        // Before a guest boots anew: the driver of 7.3 leaves devices behind.
        check("controller-unbound", Ci, controller_unbound),
        check("killed", Ci, killed),
        check("cable-pulled-fifty-times", Full, pulled_fifty_times),
    ],
}];

fn pulled_five_times(lab: &mut Lab) -> Result<Outcome> {
    pulled(lab, 5)
}

fn pulled_fifty_times(lab: &mut Lab) -> Result<Outcome> {
    pulled(lab, 50)
}

fn pulled(lab: &mut Lab, times: u32) -> Result<Outcome> {
    for _ in 0..times {
        skeleton::cable_pull(lab)?;
    }
    seen(format!("{times} times"))
}

/// How long work on a link that is taken down may take to fail.
const BOUND: Duration = Duration::from_secs(30);

/// Puts a load on the link, in which guest 0 is the client; has guest 1 do something that ends the link and brings it back.
fn broken_by(lab: &mut Lab, script: &str) -> Result<Outcome> {
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let from: Vec<usize> = guests.iter().map(|guest| guest.console.len()).collect();
    let load = Load::start(one, other, 16384)?;
    rails::moves(emulator, 0, MOVING)?;
    let breaking = other.start(&["sh", "-c", script])?;
    let words = load.fails(BOUND)?;
    let broken = breaking.wait(SETTLE)?;
    if !broken.ok() {
        bail!("{script}: {broken}");
    }
    for (guest, from) in guests.iter().zip(&from) {
        let down = guest.console.wait(rdma::DOWN, *from, SETTLE)?;
        guest.console.wait(rdma::UP, down, SETTLE)?;
    }
    let answered = rdma::ping(one, other, 20)?;
    seen(format!("{words:?}; then {answered}"))
}

/// An administrator takes the cable's service from the module, and gives it back.
fn service_unbound(lab: &mut Lab) -> Result<Outcome> {
    broken_by(
        lab,
        "set -e; cd /sys/bus/thunderbolt/drivers/usb4_rdma; service=$(ls -d *-*.* | head -1)
         echo $service > unbind; sleep 1; echo $service > bind",
    )
}

/// The module and the thunderbolt driver are loaded anew as soon as their users are gone.
fn drivers_reloaded(lab: &mut Lab) -> Result<Outcome> {
    broken_by(
        lab,
        "set -e
         for process in /proc/[0-9]*; do
             if grep -q -x usb4ctl $process/comm; then kill -KILL ${process#/proc/}; fi
         done
         while ! rmmod usb4_rdma 2> /dev/null; do sleep 0.1; done
         modprobe -r thunderbolt; modprobe usb4_rdma",
    )
}

/// An administrator takes the controller from the thunderbolt driver, and gives it back. What the driver leaves behind is no
/// cable to a module that is loaded anew.
fn controller_unbound(lab: &mut Lab) -> Result<Outcome> {
    let outcome = broken_by(
        lab,
        "set -e; cd /sys/bus/pci/drivers/thunderbolt; controller=$(ls -d 0000:* | head -1)
         echo $controller > unbind; echo $controller > bind",
    )?;
    for guest in lab.guests() {
        guest.sh_for("rmmod usb4_rdma", SETTLE)?;
    }
    rdma::prepare(lab)?;
    rdma::ping(lab.guest(0)?, lab.guest(1)?, 20).context("loaded anew")?;
    Ok(outcome)
}

/// Unloading is refused at once while anybody uses the module, whatever the link is doing.
fn busy_module(lab: &mut Lab) -> Result<Outcome> {
    const AT_ONCE: Duration = Duration::from_secs(5);
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let load = Load::start(one, other, 16384)?;
    rails::moves(emulator, 0, MOVING)?;
    for guest in guests {
        let began = Instant::now();
        let refused = guest.run("rmmod usb4_rdma", SETTLE)?;
        if refused.ok() || !refused.to_string().contains("in use") || began.elapsed() > AT_ONCE {
            bail!("after {:?} rmmod says: {refused}", began.elapsed());
        }
    }
    rails::moves(emulator, 0, 1000)?;
    load.end()?;
    seen("refused at once on both sides, and the client has not noticed")
}

/// Long enough for the sender to have asked whether the peer is there.
fn stopped_for_a_while(lab: &mut Lab) -> Result<Outcome> {
    stopped(lab, Duration::from_secs(15))
}

fn stopped_for_a_minute(lab: &mut Lab) -> Result<Outcome> {
    stopped(lab, Duration::from_secs(60))
}

/// A peer whose machine stands still is not dead.
fn stopped(lab: &mut Lab, span: Duration) -> Result<Outcome> {
    let from = rdma::ends(lab);
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let load = Load::start(one, other, 16384)?;
    rails::moves(emulator, 0, MOVING)?;
    other.stop(true)?;
    std::thread::sleep(span);
    other.stop(false)?;
    rails::moves(emulator, 0, 1000).context("after it goes on")?;
    // Time in which who takes the other for dead would say so: a rail that is silent goes after some 8 s.
    rdma::pass(guests, Duration::from_secs(10))?;
    load.end()?;
    for (guest, from) in guests.iter().zip(from) {
        if guest.console.wait(rdma::DOWN, from, Duration::ZERO).is_ok() {
            bail!("guest {} has taken it for dead", guest.number);
        }
    }
    seen(format!("{} s, and the client has not noticed", span.as_secs()))
}

/// System sleep of one guest while messages cross the link, of others' programs and of its own.
fn suspended(lab: &mut Lab) -> Result<Outcome> {
    for level in power::LEVELS {
        let from = rdma::ends(lab);
        let (guests, emulator) = lab.parts();
        let [sleeper, other] = guests else {
            bail!("two guests are wanted");
        };
        let load = Load::start(other, sleeper, 16384)?;
        let own = Load::start(sleeper, other, 16384)?;
        rails::moves(emulator, 0, 2 * MOVING)?;
        power::sleep(sleeper, level)?;
        load.fails(BOUND)
            .with_context(|| format!("while the peer sleeps: {level}"))?;
        own.fails(BOUND)
            .with_context(|| format!("after sleep: {level}"))?;
        for (guest, from) in guests.iter().zip(from) {
            let down = guest.console.wait(rdma::DOWN, from, SETTLE)?;
            guest.console.wait(rdma::UP, down, SETTLE)?;
        }
        rdma::ping(sleeper, other, 20).with_context(|| format!("after sleep: {level}"))?;
    }
    seen(format!(
        "{}; work fails when the peer goes, and the link is back each time",
        power::LEVELS.join(", ")
    ))
}

/// The peer's power fails, and comes back.
fn killed(lab: &mut Lab) -> Result<Outcome> {
    // Nobody may hold on to a guest that goes, so programs look after themselves.
    let other = lab.guest(1)?;
    other.sh("setsid usb4ctl bench --serve > /tmp/address 2> /tmp/server.log < /dev/null &")?;
    other.until("grep -q . /tmp/address", SETTLE)?;
    let address = other.sh("head -1 /tmp/address")?;
    let one = lab.guest(0)?;
    one.sh(&format!(
        "rm -f /tmp/load.*
         setsid sh -c 'usb4ctl bench --patience 120 --min 16384 --max 16384 --iterations 10 --megabytes 1000000 {address}
                       echo $? > /tmp/load.end' > /tmp/load.log 2>&1 < /dev/null &"
    ))?;
    rails::moves(lab.parts().1, 0, MOVING)?;
    let from = lab.guest(0)?.console.len();
    lab.reboot(1)?;
    let one = lab.guest(0)?;
    let down = one.console.wait(rdma::DOWN, from, SETTLE)?;
    one.until("[ -s /tmp/load.end ]", BOUND)
        .context("work with a peer that is gone")?;
    let said = one.sh("cat /tmp/load.log")?;
    if !said.contains("the peer is gone") {
        bail!("with the peer gone the client says: {said}");
    }
    rdma::load(lab)?;
    lab.guest(0)?.console.wait(rdma::UP, down, SETTLE)?;
    lab.guest(1)?.console.wait(rdma::UP, 0, SETTLE)?;
    let answered = rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    seen(format!(
        "{:?}; it has booted again, and {answered}",
        said.lines().last().unwrap_or_default()
    ))
}
