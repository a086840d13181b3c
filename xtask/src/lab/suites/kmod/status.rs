//! What the module shows: sysfs, tracepoints, and `usb4ctl status`.

use super::{check, seen};
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::Tag::Ci;
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::{Group, Outcome, rdma};
use anyhow::{Context, Result, bail};
use serde_json::Value;

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "status",
        topology: "pair,lanes=1",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("attributes", Ci, attributes),
            check("counters", Ci, counters),
            check("unprivileged", Ci, unprivileged),
            check("read-while-it-goes", Ci, read_while_it_goes),
            check("trace", Ci, trace),
        ],
    },
    // Of a Strix Halo's two data rings one is thunderbolt_net's, so the second cable's rail has none.
    Group {
        name: "status-no-ring",
        topology: "pair2,lanes=1,hops=strix",
        plan: |_| {},
        prepare: beside_network,
        checks: &[check("waits", Ci, waits)],
    },
];

/// The status of a guest.
fn status(guest: &Guest) -> Result<Value> {
    let text = guest.sh_for("usb4ctl status --json", SETTLE)?;
    serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
}

/// Every file that `docs/abi/sysfs-usb4_rdma.md` names is there, can be read, and has one line.
fn attributes(lab: &mut Lab) -> Result<Outcome> {
    const READ: &str = r#"
        for file in /sys/class/misc/usb4ring/{node,version,abi_version} \
            /sys/class/usb4_rdma/link0/{peer,state,rails,age_ms} \
            /sys/class/usb4_rdma/link0/statistics/* \
            /sys/bus/thunderbolt/devices/*/usb4_rdma/*
        do
            lines=$(wc -l <$file) || exit 1
            [ "$lines" = 1 ] || { echo "$file has $lines lines" >&2; exit 1; }
            [ "$(stat -c %a $file)" = 444 ] || { echo "$file can be written" >&2; exit 1; }
            echo "${file##*/} $(cat $file)"
        done"#;
    let guest = lab.guest(0)?;
    let said = guest.sh(&format!("bash -c '{READ}'"))?;
    let document = include_str!("../../../../../docs/abi/sysfs-usb4_rdma.md");
    for line in said.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        if !document.contains(&format!("`{name}`")) && !document.contains(&format!("/{name}`")) {
            bail!("{name} is not documented");
        }
    }
    let report = status(guest)?;
    let other = status(lab.guest(1)?)?;
    let (rail, link) = (&report["rails"][0], &report["links"][0]);
    let expected = [
        (&report["links"][0]["peer"], &other["module"]["node"]),
        (&rail["peer"], &other["module"]["node"]),
        (&rail["link"], &link["name"]),
        (&rail["state"], &Value::from("up")),
        (&link["state"], &Value::from("up")),
        (&link["rails"], &Value::from(1)),
        (&rail["reason"], &Value::Null),
    ];
    for (number, (one, wanted)) in expected.iter().enumerate() {
        if one != wanted || (one.is_null() && *one != &rail["reason"]) {
            bail!("value {number} is {one}, not {wanted}: {report:#}");
        }
    }
    for name in ["tx_hop", "rx_hop", "tx_ring", "rx_ring", "rate_mbps"] {
        if rail[name].as_u64().unwrap_or(0) == 0 {
            bail!("{name} is {}", rail[name]);
        }
    }
    let host = &report["hosts"][0];
    if host["tx_lanes"] != 1 || !host["rx_speed"].to_string().contains("Gb/s") {
        bail!("the cable is shown as {host}");
    }
    seen(format!("{} files", said.lines().count()))
}

/// The counters of both hosts agree with each other and with what was done.
fn counters(lab: &mut Lab) -> Result<Outcome> {
    let before = status(lab.guest(0)?)?;
    let words = rdma::ping(lab.guest(0)?, lab.guest(1)?, 100)?;
    let after = status(lab.guest(0)?)?;
    let grown = |pointer: &str| {
        let at = |report: &Value| report.pointer(pointer).and_then(Value::as_u64);
        at(&after)
            .zip(at(&before))
            .map(|(after, before)| after.saturating_sub(before))
            .with_context(|| format!("no {pointer} in {after:#}"))
    };
    for pointer in [
        "/links/0/counters/tx_frames",
        "/links/0/counters/rx_frames",
        "/links/0/counters/completed",
        "/rails/0/counters/tx_frames",
        "/rails/0/counters/rx_frames",
    ] {
        if grown(pointer)? < 100 {
            bail!("{pointer} has grown by {} in 100 round trips", grown(pointer)?);
        }
    }
    for pointer in [
        "/links/0/counters/tx_lost",
        "/links/0/counters/violations",
        "/rails/0/counters/rx_crc_errors",
    ] {
        if grown(pointer)? != 0 {
            bail!("{pointer} has grown by {}", grown(pointer)?);
        }
    }
    seen(words)
}

/// A user without any rights sees the same.
fn unprivileged(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    let text = guest.sh_for("setpriv --reuid 65534 --clear-groups usb4ctl status", SETTLE)?;
    for wanted in ["usb4_rdma", "link0", "rail, up in link0", "controller "] {
        if !text.contains(wanted) {
            bail!("no \"{wanted}\" in: {text}");
        }
    }
    seen(format!("{} lines", text.lines().count()))
}

/// Readers neither hold up nor survive what they read of.
fn read_while_it_goes(lab: &mut Lab) -> Result<Outcome> {
    const PULLS: usize = 3;
    const READ: &str = "while true; do cat /sys/class/usb4_rdma/*/* /sys/class/usb4_rdma/*/statistics/* \
         /sys/bus/thunderbolt/devices/*/usb4_rdma/* >/dev/null 2>&1; done";
    let readers = [0, 1].map(|guest| {
        let guest = lab.guest(guest)?;
        guest.sh(&format!("({READ}) </dev/null >/dev/null 2>&1 & echo $!"))
    });
    let readers = readers.into_iter().collect::<Result<Vec<String>>>()?;
    for _ in 0..PULLS {
        let from = rdma::ends(lab);
        lab.control("unplug 0")?;
        rdma::down(lab, &from)?;
        let from = rdma::ends(lab);
        lab.control("plug 0")?;
        rdma::up(lab, &from)?;
    }
    for guest in lab.guests() {
        guest.sh_for("rmmod usb4_rdma", SETTLE)?;
        guest.sh("! ls -d /sys/class/usb4_rdma /sys/bus/thunderbolt/devices/*/usb4_rdma 2>/dev/null")?;
    }
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    rdma::up(lab, &from)?;
    for (guest, reader) in lab.guests().iter().zip(readers) {
        guest.sh(&format!("kill {}", reader.trim()))?;
    }
    seen(format!("{PULLS} pulls and an unload under readers"))
}

/// Each tracepoint tells of what it is for, and none when it is off.
fn trace(lab: &mut Lab) -> Result<Outcome> {
    const TRACING: &str = "/sys/kernel/tracing";
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    one.sh(&format!("echo 1 >{TRACING}/events/usb4_rdma/enable"))?;
    rdma::ping(one, other, 20)?;
    let from = rdma::ends(lab);
    lab.control("loss 0 20000")?;
    let lossy = rdma::bench(
        lab.guest(1)?,
        lab.guest(0)?,
        "--min 65536 --max 65536 --iterations 50 --megabytes 4",
    );
    lab.control("heal 0")?;
    lossy?;
    lab.control("unplug 0")?;
    rdma::down(lab, &from)?;
    let from = rdma::ends(lab);
    lab.control("plug 0")?;
    rdma::up(lab, &from)?;
    let guest = lab.guest(0)?;
    let names =
        "u4_enter u4_frame_tx u4_frame_rx u4_frame_sent u4_complete u4_loss u4_park u4_rail_up u4_rail_down";
    let counts = guest.sh(&format!(
        "cd {TRACING}; echo 0 >events/usb4_rdma/enable; for name in {names}; do \
         echo $name $(grep -c \" $name: \" trace); done; echo >trace"
    ))?;
    for line in counts.lines() {
        if line.ends_with(" 0") {
            bail!("a tracepoint has told nothing: {counts}");
        }
    }
    rdma::ping(guest, lab.guest(1)?, 20)?;
    let quiet = guest.sh(&format!("grep -c u4_ {TRACING}/trace || true"))?;
    if quiet.trim() != "0" {
        bail!("{} events while they were off", quiet.trim());
    }
    seen(counts.lines().collect::<Vec<_>>().join(", "))
}

/// Loads the module when both cables have shown that the peer wants a network over them.
fn beside_network(lab: &mut Lab) -> Result<()> {
    for guest in lab.guests() {
        guest.sh_for("modprobe thunderbolt_net", SETTLE)?;
    }
    for guest in lab.guests() {
        let both = "[ $(grep -l network /sys/bus/thunderbolt/devices/*/key | wc -l) = 2 ]";
        guest.until(both, SETTLE)?;
    }
    rdma::prepare(lab)
}

/// A rail for which there is no ring says so, and for how long it waits.
fn waits(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    let report = status(guest)?;
    let rails = report["rails"].as_array().context("no rails")?;
    let Some(rail) = rails.iter().find(|rail| rail["state"] == "no-ring") else {
        bail!("no rail is without a ring: {report:#}");
    };
    let reason = rail["reason"].as_str().unwrap_or_default();
    let retry = rail["retry_ms"].as_u64().unwrap_or(u64::MAX);
    if !reason.contains("rings") || retry > 2100 || rail["tx_ring"] != 0 {
        bail!("the rail says {rail:#}");
    }
    seen(format!("{reason}; tried again in {retry} ms"))
}
