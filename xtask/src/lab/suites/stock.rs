//! The kernel's own drivers on the emulated host routers: what works on real ones works here.

use super::Tag::{Ci, Full};
use super::net::{self, SETTLE};
use super::{Check, Group, Outcome, power};
use crate::lab::perftest::{RXE, Server, Test};
use crate::lab::session::{Guest, Lab};
use anyhow::{Context, Result, bail};
use std::time::Duration;

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "pair",
        topology: "pair,lanes=1",
        plan: |_| {},
        prepare: net::up,
        checks: &[
            check("ping", Ci, ping),
            check("iperf3", Ci, iperf3),
            check("rxe", Ci, rxe),
            check("stream", Ci, stream),
            check("replug", Ci, replug),
            check("suspend", Ci, suspend),
            check("reload", Ci, reload),
            check("ten-replugs", Full, ten_replugs),
        ],
    },
    Group {
        name: "auto-clear",
        topology: "pair,lanes=1,pci=8086:ff01,hops=strix",
        plan: |_| {},
        prepare: net::up,
        checks: &[check("ping", Ci, ping), check("stream", Ci, stream)],
    },
    Group {
        name: "two-cables",
        topology: "pair2",
        plan: |_| {},
        prepare: |_| Ok(()),
        checks: &[check("ping", Ci, two_cables)],
    },
    Group {
        name: "usb4-v2",
        topology: "none,hosts=1,usb4=2",
        plan: |_| {},
        prepare: |_| Ok(()),
        checks: &[check("reset", Ci, host_router_reset)],
    },
    Group {
        name: "iommu",
        topology: "pair,lanes=1",
        plan: |plan| plan.iommu = true,
        prepare: net::up,
        checks: &[check("ping", Ci, behind_iommu)],
    },
    Group {
        name: "bounce-buffers",
        topology: "pair,lanes=1",
        plan: |plan| plan.parameters = "swiotlb=force".to_string(),
        prepare: net::up,
        checks: &[check("ping", Full, ping), check("iperf3", Full, iperf3)],
    },
];

const fn check(name: &'static str, tag: super::Tag, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check { name, tag, run }
}

fn seen(what: impl Into<String>) -> Result<Outcome> {
    Ok(Outcome::Seen(what.into()))
}

fn ping(lab: &mut Lab) -> Result<Outcome> {
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let to = net::address(1);
    let small = net::ping(one, &to, "-c 300 -i 0.003")?;
    let large = net::ping(other, &net::address(0), "-c 30 -i 0.01 -s 60000 -M do")?;
    let flood = net::ping(one, &to, "-f -c 500")?;
    seen(format!(
        "{} of 56 bytes {:.2} ms, {} of 60000 bytes {:.2} ms, flood of {} {:.2} ms, none lost",
        small.sent, small.average_ms, large.sent, large.average_ms, flood.sent, flood.average_ms
    ))
}

fn iperf3(lab: &mut Lab) -> Result<Outcome> {
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let there = net::iperf3(one, other, false, 3)?;
    let back = net::iperf3(one, other, true, 3)?;
    seen(format!("{there:.0} Mbit/s there, {back:.0} Mbit/s back"))
}

/// Soft-RoCE over thunderbolt_net, perftest's handshake beside the cable.
fn rxe(lab: &mut Lab) -> Result<Outcome> {
    for guest in lab.guests() {
        guest.network()?;
        guest.sh(
            "modprobe rdma_rxe && modprobe ib_uverbs && rdma link add rxe0 type rxe netdev thunderbolt0",
        )?;
    }
    let (client, server) = (lab.guest(0)?, lab.guest(1)?);
    let mut results = vec![];
    for (operation, bytes, count) in [("send", 64, 200), ("write", 64, 200), ("read", 4096, 100)] {
        let latency = Test::latency(operation, bytes, count);
        let row = Server::start(server, RXE, &latency)?.run(client)?;
        results.push(format!("{operation} {bytes} B {:.0} us", row.typical_us()?));
    }
    for (operation, bytes, count) in [("send", 65536, 100), ("write", 65536, 100), ("read", 65536, 100)] {
        let bandwidth = Test::bandwidth(operation, bytes, 1, count);
        let row = Server::start(server, RXE, &bandwidth)?.run(client)?;
        results.push(format!(
            "{operation} {bytes} B {:.1} MiB/s",
            row.mib_per_second()?
        ));
    }
    for guest in lab.guests() {
        guest.sh("rdma link del rxe0 && modprobe -r rdma_rxe")?;
    }
    seen(results.join(", "))
}

/// USB4STREAM: the kernel's character device over a cable. Its rings have no NAPI: a lost interrupt stops it for good.
fn stream(lab: &mut Lab) -> Result<Outcome> {
    const BYTES: usize = 8 << 20;
    let has = "modprobe -n thunderbolt_stream";
    if !lab.guest(0)?.run(has, Duration::from_secs(20))?.ok() {
        return Ok(Outcome::Skipped(format!(
            "{} has no thunderbolt_stream",
            lab.kernel.release
        )));
    }
    for guest in lab.guests() {
        guest.sh("modprobe thunderbolt_stream; mountpoint -q /sys/kernel/config || mount -t configfs c /sys/kernel/config")?;
    }
    for guest in lab.guests() {
        let hops = if guest.number == 0 { (9, 10) } else { (10, 9) };
        stream_up(guest, hops)?;
    }
    let (writer, reader) = (lab.guest(0)?, lab.guest(1)?);
    writer.sh(&format!("head -c {BYTES} /dev/urandom > /tmp/in"))?;
    // The reader first: frames that arrive while it posts its buffers are forgotten by the driver
    // (tbstream_dev_alloc_rx_buffers in drivers/thunderbolt/stream.c resets its counters after posting). And the writer
    // closes last: what it has not sent within half a second, or its closing frame where the ring is full, is lost
    // (tbstream_dev_stop and tbstream_dev_send_close there).
    let reading = reader.start(&["sh", "-c", &format!("head -c {BYTES} /dev/tbstream0 > /tmp/out")])?;
    reader.until(STREAM_IS_OPEN, SETTLE)?;
    let writing = writer.start(&["sh", "-c", "exec 3> /dev/tbstream0; cat /tmp/in >&3; read -r go"])?;
    let ended = reading.wait(SETTLE).with_context(|| {
        let arrived = reader.sh("wc -c < /tmp/out").unwrap_or_default();
        format!("{arrived} of {BYTES} bytes have arrived")
    })?;
    if !ended.ok() {
        bail!("the reader: {ended}");
    }
    writing.close_stdin()?;
    writing.wait(SETTLE).context("the writer")?;
    let sum = |guest: &Guest, file: &str| guest.sh(&format!("sha256sum < {file}"));
    let (sent, received) = (sum(writer, "/tmp/in")?, sum(reader, "/tmp/out")?);
    if sent != received {
        bail!(
            "{} of {BYTES} bytes arrived, or others",
            reader.sh("wc -c < /tmp/out")?
        );
    }
    let words = pingpong(writer, reader)?;
    for guest in lab.guests() {
        guest.sh(
            "rm -f /tmp/in /tmp/out; cd /sys/kernel/config/thunderbolt/stream && \
             rmdir */data && rmdir * && modprobe -r thunderbolt_stream",
        )?;
    }
    seen(format!(
        "{BYTES} bytes arrived as they were sent, {words} single frames in turn"
    ))
}

/// Somebody has opened the stream device.
const STREAM_IS_OPEN: &str = "ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q /dev/tbstream0";

/// Makes the stream device, sending on the first HopID and receiving on the other. If the other end's are known by then, it
/// has them from the beginning (`tbstream_dev_attach_stream` in drivers/thunderbolt/stream.c), and the driver refuses them
/// as taken when they are written again.
fn stream_up(guest: &Guest, (input, output): (u32, u32)) -> Result<()> {
    // A service appears when the other end offers it, too.
    let service = "$(dirname $(grep -l -x stream /sys/bus/thunderbolt/devices/*/key) | head -1)";
    guest.until("grep -q -x stream /sys/bus/thunderbolt/devices/*/key", SETTLE)?;
    guest.sh(&format!(
        "set -e
         folder=/sys/kernel/config/thunderbolt/stream/$(basename {service})/data
         mkdir -p $folder
         [ $(cat $folder/in_hopid) = {input} ] || echo {input} > $folder/in_hopid
         [ $(cat $folder/out_hopid) = {output} ] || echo {output} > $folder/out_hopid"
    ))?;
    guest.until("[ -e /dev/tbstream0 ]", SETTLE)
}

/// Frames one at a time there and back, each waiting for the one before: if an interrupt is lost, nothing more comes.
fn pingpong(one: &Guest, other: &Guest) -> Result<u32> {
    const ROUNDS: u32 = 200;
    let echo = other.start(&[
        "sh",
        "-c",
        &format!("exec 3<>/dev/tbstream0; {}", echo_script(ROUNDS)),
    ])?;
    other.until(STREAM_IS_OPEN, SETTLE)?;
    let script = format!(
        "exec 3<>/dev/tbstream0; i=0
         while [ $i -lt {ROUNDS} ]; do
             printf '%08d' $i >&3; dd bs=8 count=1 <&3 2>/dev/null > /tmp/word
             [ \"$(cat /tmp/word)\" = \"$(printf '%08d' $i)\" ] || exit 1
             i=$((i+1))
         done"
    );
    one.sh_for(&script, SETTLE).context("frames in turn")?;
    echo.wait(SETTLE).context("the echo of frames")?;
    Ok(ROUNDS)
}

fn echo_script(rounds: u32) -> String {
    format!("i=0; while [ $i -lt {rounds} ]; do dd bs=8 count=1 <&3 >&3 2>/dev/null; i=$((i+1)); done")
}

/// Pulls the cable and puts it back.
fn replug(lab: &mut Lab) -> Result<Outcome> {
    lab.control("unplug 0")?;
    for guest in lab.guests() {
        guest.until("[ ! -e /sys/class/net/thunderbolt0 ]", SETTLE)?;
    }
    lab.control("plug 0")?;
    net::join(lab)?;
    net::ping(lab.guest(0)?, &net::address(1), "-c 50 -i 0.01")?;
    seen("the network device goes with the cable and comes back with it")
}

fn ten_replugs(lab: &mut Lab) -> Result<Outcome> {
    for _ in 0..10 {
        replug(lab)?;
    }
    seen("ten times")
}

/// System sleep of one guest.
fn suspend(lab: &mut Lab) -> Result<Outcome> {
    for level in power::LEVELS {
        power::sleep(lab.guest(0)?, level)?;
        let again = net::join(lab);
        let again = again.and_then(|()| net::ping(lab.guest(1)?, &net::address(0), "-c 50 -i 0.01"));
        again.with_context(|| format!("after sleep: {level}"))?;
    }
    seen(format!(
        "{}; the connection is back each time",
        power::LEVELS.join(", ")
    ))
}

/// Unloads the drivers and loads them again.
fn reload(lab: &mut Lab) -> Result<Outcome> {
    let one = lab.guest(0)?;
    one.sh("ip link set thunderbolt0 down && modprobe -r thunderbolt_net && modprobe -r thunderbolt")?;
    one.sh("[ ! -e /sys/bus/thunderbolt ] && modprobe thunderbolt_net")?;
    net::join(lab)?;
    net::ping(lab.guest(0)?, &net::address(1), "-c 50 -i 0.01")?;
    seen("unloaded, loaded, connected again")
}

/// Two cables between two hosts, with two lanes each: two network devices, bonded lanes.
fn two_cables(lab: &mut Lab) -> Result<Outcome> {
    for guest in lab.guests() {
        guest.sh("modprobe thunderbolt_net")?;
    }
    for guest in lab.guests() {
        guest.until(
            "[ -e /sys/class/net/thunderbolt0 ] && [ -e /sys/class/net/thunderbolt1 ]",
            SETTLE,
        )?;
    }
    let (guests, emulator) = lab.parts();
    net::quietly(emulator, 2, || {
        for guest in guests {
            // The network device of port P is 0-P.N; each cable is a network of its own.
            guest.sh(&format!(
                "set -e; for path in /sys/class/net/thunderbolt*; do
                     service=$(basename $(readlink -f $path/device)); port=${{service#*-}}; port=${{port%%.*}}
                     ip addr add 10.8.$port.{}/24 dev $(basename $path); ip link set $(basename $path) up
                 done",
                guest.number + 1
            ))?;
        }
        Ok(())
    })?;
    for guest in lab.guests() {
        net::carrier(guest, "thunderbolt0")?;
        net::carrier(guest, "thunderbolt1")?;
    }
    let one = lab.guest(0)?;
    for port in [1, 3] {
        net::ping(one, &format!("10.8.{port}.2"), "-c 100 -i 0.005")?;
    }
    let lanes =
        one.sh("cat /sys/bus/thunderbolt/devices/0-1/rx_lanes /sys/bus/thunderbolt/devices/0-3/rx_lanes")?;
    if lanes.split_whitespace().any(|count| count != "2") {
        bail!("lanes are not bonded: {lanes}");
    }
    seen("100 pings over each, none lost; lanes bonded")
}

fn host_router_reset(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    guest.sh("modprobe thunderbolt")?;
    guest.console.wait("host router reset successful", 0, SETTLE)?;
    seen("the driver resets the router through its register")
}

/// The IOMMU translates what the routers read and write: maps and unmaps of single frames reach the emulator.
fn behind_iommu(lab: &mut Lab) -> Result<Outcome> {
    for guest in lab.guests() {
        let kind = guest.sh("cat /sys/bus/pci/drivers/thunderbolt/0000:*/iommu_group/type")?;
        if !kind.starts_with("DMA") {
            bail!(
                "guest {}: the router's IOMMU domain is of type {kind}",
                guest.number
            );
        }
    }
    ping(lab)
}
