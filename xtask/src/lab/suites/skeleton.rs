//! Our module between two guests with a stock kernel: the link comes up, carries what the ring API promises, goes with
//! its cable and comes back, and the module leaves nothing behind.

use super::Tag::{Ci, Full};
use super::load::MOVING;
use super::net::{self, SETTLE};
use super::rails::{self, frames};
use super::rdma::{self, BringUp, LONG, Server};
use super::{Check, Group, Outcome};
use crate::interrupt;
use crate::lab::session::Lab;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::{Duration, Instant};

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "pair",
        topology: "pair,lanes=1",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("link-up", Ci, link_up),
            check("conformance-loopback", Ci, conformance_loopback),
            check("conformance-pair", Ci, conformance_pair),
            check("uapi", Ci, uapi),
            check("ping", Ci, ping),
            check("bench", Ci, bench),
            check("cable-pull", Ci, cable_pull),
            check("unload", Ci, unload),
            check("cable-pull-ten-times", Full, cable_pull_ten_times),
            check("unload-ten-times", Full, unload_ten_times),
        ],
    },
    // Without it, memory is the same to devices and processors, and a missing dma_sync shows nowhere.
    Group {
        name: "bounce-buffers",
        topology: "pair,lanes=1",
        plan: |plan| plan.parameters = "swiotlb=force".to_string(),
        prepare: rdma::prepare,
        checks: &[
            check("link-up", Full, bounced_link_up),
            check("conformance-pair", Full, conformance_pair),
            check("ping", Full, ping),
            check("bench", Full, bench),
            check("cable-pull", Full, cable_pull),
            check("unload", Full, unload),
        ],
    },
    // A Strix Halo's two data rings, one of them thunderbolt_net's, and frames into an absent path stop the sender.
    Group {
        name: "wedge",
        topology: "pair,lanes=1,hops=strix,wedge=on",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("beside-network", Ci, beside_network),
            check("cable-pull", Ci, cable_pull),
            check("unload", Ci, unload),
            check("conformance-pair", Full, conformance_pair),
            check("unload-ten-times", Full, unload_ten_times),
        ],
    },
    // One port on each of two controllers, as on a Strix Halo.
    Group {
        name: "two-cables",
        topology: "pair2,controllers=2,lanes=1,hops=strix",
        plan: |_| {},
        prepare: rails::prepare,
        checks: &[
            check("both-carry", Ci, rails::both_carry),
            check("pull-one", Ci, rails::pull_one),
            check("unload", Ci, unload),
        ],
    },
    Group {
        name: "two-cables-one-controller",
        topology: "pair2",
        plan: |_| {},
        prepare: rails::prepare,
        checks: &[
            check("both-carry", Full, rails::both_carry),
            check("pull-one", Full, rails::pull_one),
        ],
    },
    Group {
        name: "auto-clear",
        topology: "pair,pci=8086:ff01",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("conformance-pair", Full, conformance_pair),
            check("bench", Full, bench),
            check("cable-pull", Full, cable_pull),
        ],
    },
];

const fn check(name: &'static str, tag: super::Tag, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check { name, tag, run }
}

fn seen(what: impl Into<String>) -> Result<Outcome> {
    Ok(Outcome::Seen(what.into()))
}

/// From both sides' finding the other to the link's being up there may be a second.
const LINK_UP: f64 = 1.0;

/// Brings the link up three times, by loading the module and by putting the cable back.
///
/// A second is a limit for what the module waits for by itself: a timer that has to run out is as long each time, on
/// any machine. So the best of three counts, less the time in which guests and emulator were ready to run and this
/// machine had no processor for them.
fn link_up(lab: &mut Lab) -> Result<Outcome> {
    for guest in lab.guests() {
        guest.sh_for("rmmod usb4_rdma && modprobe -r thunderbolt", SETTLE)?;
    }
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    let mut all = vec![rdma::bring_up(lab, &from)?];
    for _ in 0..2 {
        let from = rdma::ends(lab);
        lab.control("unplug 0")?;
        rdma::down(lab, &from)?;
        let from = rdma::ends(lab);
        lab.control("plug 0")?;
        all.push(rdma::bring_up(lab, &from)?);
    }
    let spans: Vec<String> = all.iter().map(describe).collect();
    let spans = spans.join(", ");
    if !all.iter().any(in_time) {
        bail!(
            "from the later \"new host found\" to the later link up it took {spans}, never {LINK_UP} s or less"
        );
    }
    seen(format!(
        "from the later \"new host found\" to the later link up {spans}"
    ))
}

fn in_time(one: &BringUp) -> bool {
    one.span - one.waited <= LINK_UP
}

fn describe(one: &BringUp) -> String {
    if one.span <= LINK_UP {
        format!("{:.3} s", one.span)
    } else {
        format!("{:.3} s ({:.3} s without a processor)", one.span, one.waited)
    }
}

fn bounced_link_up(lab: &mut Lab) -> Result<Outcome> {
    for guest in lab.guests() {
        if guest.console.wait("software IO TLB", 0, Duration::ZERO).is_err() {
            bail!("guest {} has no bounce buffers", guest.number);
        }
    }
    link_up(lab)
}

fn conformance_loopback(lab: &mut Lab) -> Result<Outcome> {
    seen(rdma::conformance(lab.guest(0)?, "")?)
}

fn conformance_pair(lab: &mut Lab) -> Result<Outcome> {
    seen(rdma::conformance_pair(lab.guest(0)?, lab.guest(1)?)?)
}

fn uapi(lab: &mut Lab) -> Result<Outcome> {
    seen(rdma::verdict(&lab.guest(0)?.sh_for("usb4-uapi", LONG)?)?)
}

fn ping(lab: &mut Lab) -> Result<Outcome> {
    seen(rdma::ping(lab.guest(0)?, lab.guest(1)?, 200)?)
}

fn bench(lab: &mut Lab) -> Result<Outcome> {
    let (client, server) = (lab.guest(1)?, lab.guest(0)?);
    let mut results = vec![];
    for operation in ["send", "write", "read"] {
        let sizes = "--min 64 --max 65536 --iterations 50 --megabytes 2";
        let text = rdma::bench(client, server, &format!("--op {operation} {sizes} --json"))?;
        results.push(format!("{operation} {}", summary(&text)?));
    }
    // Frames end within such messages, and the next one begins with another flow's: receives complete out of order.
    let flows = "--op send --min 1024 --max 1024 --only bandwidth --flows 4 --megabytes 8";
    rdma::bench(client, server, flows)?;
    seen(format!("no byte wrong; 65536 B: {}", results.join(", ")))
}

/// The bandwidth of the largest message.
fn summary(json: &str) -> Result<String> {
    let report: Value = serde_json::from_str(json).with_context(|| format!("not JSON: {json}"))?;
    let row = report["rows"].as_array().and_then(|rows| rows.last());
    let rate = row.and_then(|row| row["gigabits_per_second"].as_f64());
    Ok(format!(
        "{:.3} Gbit/s",
        rate.with_context(|| format!("no rate in {json}"))?
    ))
}

/// Pulls the cable while messages cross it. What is outstanding fails and nothing else; when the cable is back, the
/// same server serves.
pub(super) fn cable_pull(lab: &mut Lab) -> Result<Outcome> {
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let pinged = Server::start(other, "ping")?;
    let server = Server::start(other, "bench")?;
    let begun = frames(emulator, 0)?;
    let endless = format!(
        "usb4ctl bench --min 4096 --max 4096 --iterations 10 --megabytes 1000000 {}",
        server.address
    );
    let client = one.start(&["sh", "-c", &endless])?;
    let deadline = Instant::now() + SETTLE;
    while frames(emulator, 0)? < begun + MOVING {
        interrupt::check()?;
        if Instant::now() > deadline {
            bail!("the client moves nothing");
        }
        // The emulator does not tell by itself.
        std::thread::sleep(Duration::from_millis(50));
    }
    let from: Vec<usize> = guests.iter().map(|guest| guest.console.len()).collect();
    emulator.ask("unplug 0")?;
    let ended = client
        .wait(SETTLE)
        .context("work outstanding when the cable went")?;
    let words = String::from_utf8_lossy(&ended.stderr).trim().to_string();
    if ended.ok() || !words.contains("the peer is gone") {
        bail!("with the cable gone the client says: {ended}");
    }
    for (guest, from) in guests.iter().zip(&from) {
        guest.console.wait(rdma::DOWN, *from, SETTLE)?;
    }
    let from: Vec<usize> = guests.iter().map(|guest| guest.console.len()).collect();
    emulator.ask("plug 0")?;
    for (guest, from) in guests.iter().zip(&from) {
        guest.console.wait(rdma::UP, *from, SETTLE)?;
    }
    // Its endpoint has outlived the link. That of `bench` is still waiting for the client whose run was broken off.
    let again = one.sh_for(&format!("usb4ctl ping --count 20 {}", pinged.address), SETTLE);
    let again = again.context("with the cable back")?;
    if !again.contains("20 of 20 pings answered") {
        bail!("with the cable back: {again}");
    }
    pinged.end()?;
    server.end()?;
    rdma::bench(one, other, "--min 4096 --max 4096 --iterations 20 --megabytes 1")?;
    seen(format!(
        "{:?} when it went; with it back the server that was there answers, and a new one",
        words.lines().last().unwrap_or_default()
    ))
}

/// A frame that arrives in the last moment finds the module in any state.
fn cable_pull_ten_times(lab: &mut Lab) -> Result<Outcome> {
    for _ in 0..10 {
        cable_pull(lab)?;
    }
    seen("ten times")
}

/// Unloads the module: refused while a client has the device, clean when none has; and loads it again.
pub(super) fn unload(lab: &mut Lab) -> Result<Outcome> {
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let holder = Server::start(other, "ping")?;
    let refused = other.run("rmmod usb4_rdma", SETTLE)?;
    if refused.ok() || !refused.to_string().contains("in use") {
        bail!("while a client has the device, rmmod says: {refused}");
    }
    // Refused is refused: nothing has changed for the client.
    let text = one.sh_for(&format!("usb4ctl ping --count 3 {}", holder.address), SETTLE)?;
    if !text.contains("3 of 3 pings answered") {
        bail!("after the refusal: {text}");
    }
    holder.end()?;
    reload(lab, &[1])?;
    reload(lab, &[0, 1])?;
    let answered = rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    seen(format!(
        "refused while a client has the device; unloaded on one side, on both, loaded again, {answered}"
    ))
}

fn unload_ten_times(lab: &mut Lab) -> Result<Outcome> {
    for round in 0..10 {
        reload(lab, if round % 2 == 0 { &[0] } else { &[1] })?;
    }
    seen(rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?)
}

/// Unloads and loads the module in some guests.
fn reload(lab: &mut Lab, which: &[usize]) -> Result<()> {
    let from = rdma::ends(lab);
    for number in which {
        lab.guest(*number)?.sh_for(
            "rmmod usb4_rdma && [ ! -e /dev/usb4ring ] && ! grep -q usb4_rdma /proc/modules",
            SETTLE,
        )?;
    }
    rdma::down(lab, &from)?;
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    rdma::up(lab, &from)
}

/// The network keeps the ring that is its own, and both work at the same time.
fn beside_network(lab: &mut Lab) -> Result<Outcome> {
    net::up(lab)?;
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let server = Server::start(other, "bench")?;
    let script = format!(
        "usb4ctl bench --min 4096 --max 16384 --iterations 50 --megabytes 4 {}",
        server.address
    );
    let moving = one.start(&["sh", "-c", &script])?;
    let answered = net::ping(one, &net::address(1), "-c 200 -i 0.01")?;
    let moved = moving.wait(LONG)?;
    if !moved.ok() {
        bail!("usb4ctl bench beside the network: {moved}");
    }
    server.end()?;
    for guest in lab.guests() {
        guest.sh("ip link set thunderbolt0 down && modprobe -r thunderbolt_net")?;
    }
    seen(format!(
        "{} pings of the network answered while usb4ctl bench ran beside it",
        answered.sent
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_machine_is_not_taken_for_a_slow_module() {
        let one = |span, waited| BringUp { span, waited };
        assert!(in_time(&one(0.4, 0.0)));
        assert!(in_time(&one(3.0, 2.5)));
        assert!(!in_time(&one(1.2, 0.1)));
    }
}
