//! The network device whose addresses are the port's GIDs, and rdma_cm, which finds hosts by them.

use super::rdma_cm::{self, run};
use super::{LONG, PORT, load_verbs, prepare, seen};
use crate::lab::agent::{Running, SIGKILL};
use crate::lab::perftest::{LISTENS, device_address as address};
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::Tag::Ci;
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::{Check, Group, Outcome, rdma};
use crate::lab::switch;
use anyhow::{Context, Result, bail};
use std::time::Duration;

pub(super) const GROUPS: &[Group] = &[Group {
    name: "addresses",
    topology: "pair,lanes=1",
    plan: |_| {},
    prepare: begin,
    checks: &[
        check("gids", gids),
        check("ping", ping),
        check("strangers", strangers),
        check("rdma-cm", rdma_cm::programs),
        check("rdma-cm-to-itself", rdma_cm::to_itself),
        check("rdma-cm-again", rdma_cm::again_and_again),
        check("perftest", rdma_cm::perftest),
        check("every-gid", every_gid),
        check("cable", cable),
        check("nobody-there", nobody_there),
        check("unload", unload),
    ],
}];

const fn check(name: &'static str, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check { name, tag: Ci, run }
}

/// The network device.
pub(super) const DEVICE: &str = "usb4rdma0";

/// How long one program may take.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

fn begin(lab: &mut Lab) -> Result<()> {
    prepare(lab)?;
    for guest in lab.guests() {
        guest.sh("modprobe rdma_ucm && ip link set lo up")?;
    }
    Ok(())
}

/// The device's MAC address.
pub(super) fn mac(guest: &Guest) -> Result<[u8; 6]> {
    let text = guest.sh(&format!("cat /sys/class/net/{DEVICE}/address"))?;
    let bytes: Result<Vec<u8>, _> = text
        .trim()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect();
    let bytes = bytes.with_context(|| format!("the address is {text}"))?;
    bytes
        .try_into()
        .ok()
        .with_context(|| format!("the address is {text}"))
}

/// The link-local address that follows from that, as sysfs writes GIDs.
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!(
        "fe80:0000:0000:0000:{:02x}{b:02x}:{c:02x}ff:fe{d:02x}:{e:02x}{f:02x}",
        a ^ 2
    )
}

/// The GIDs there are: index, GID, type.
fn table(guest: &Guest) -> Result<Vec<(u32, String, String)>> {
    let script = format!(
        "cd {PORT}; for i in $(seq 0 15); do t=$(cat gid_attrs/types/$i 2> /dev/null) && echo \"$i $(cat gids/$i) $t\"; done; true"
    );
    let text = guest.sh(&script)?;
    let line = |line: &str| {
        let (index, rest) = line.split_once(' ')?;
        let (gid, kind) = rest.split_once(' ')?;
        Some((index.parse().ok()?, gid.to_string(), kind.trim().to_string()))
    };
    let lines: Option<Vec<_>> = text.lines().map(line).collect();
    lines.with_context(|| format!("GIDs: {text}"))
}

fn has(table: &[(u32, String, String)], gid: &str, kind: &str) -> bool {
    table.iter().any(|(_, g, k)| g == gid && k == kind)
}

/// Without any setup there is the link-local GID, which follows from the MAC address; each address that is added is another,
/// and goes with it.
fn gids(lab: &mut Lab) -> Result<Outcome> {
    for guest in lab.guests() {
        let mac = mac(guest)?;
        if mac[0] & 3 != 2 {
            bail!("{mac:x?} is not a locally administered address of one host");
        }
        let own = link_local(mac);
        let first = table(guest)?;
        let wanted = [
            (0, own.clone(), "IB/RoCE v1".to_string()),
            (1, own, "RoCE v2".to_string()),
        ];
        if first != wanted {
            bail!("the GIDs are {first:?}, not {wanted:?}");
        }
        let number = guest.number + 1;
        let four = format!("0000:0000:0000:0000:0000:ffff:0a4d:{number:04x}");
        let six = format!("fd00:0000:0000:0000:0000:0000:0000:{number:04x}");
        let change = |how: &str| {
            guest.sh(&format!(
                "ip addr {how} {}/24 dev {DEVICE}; ip addr {how} fd00::{number:x}/64 dev {DEVICE}",
                address(guest.number)
            ))
        };
        change("add")?;
        let counts = |wanted: usize| {
            let script = format!("[ $(cat {PORT}/gid_attrs/types/* 2> /dev/null | wc -l) = {wanted} ]");
            guest.until(&script, SETTLE)
        };
        counts(6)?;
        let all = table(guest)?;
        for gid in [&four, &six] {
            if !has(&all, gid, "RoCE v2") || !has(&all, gid, "IB/RoCE v1") {
                bail!("{gid} is missing: {all:?}");
            }
        }
        change("del")?;
        counts(2)?;
        change("add")?;
        counts(6)?;
    }
    let link = lab.guest(0)?.sh("rdma link show usb4_0/1")?;
    if !link.contains(&format!("netdev {DEVICE}")) {
        bail!("rdma link: {link}");
    }
    seen(link.trim().to_string())
}

/// Frames of every size cross both ways: to the link-local address that needs no setup, to all hosts, and with IPv4.
fn ping(lab: &mut Lab) -> Result<Outcome> {
    let guests = lab.guests();
    for (guest, other) in guests.iter().zip(guests.iter().rev()) {
        let [a, b, c, d, e, f] = mac(other)?;
        let six = format!(
            "fe80::{:x}:{:x}:{:x}:{:x}%{DEVICE}",
            u16::from_be_bytes([a ^ 2, b]),
            u16::from_be_bytes([c, 0xff]),
            u16::from_be_bytes([0xfe, d]),
            u16::from_be_bytes([e, f]),
        );
        let four = address(other.number);
        let script = format!(
            "ip -6 neigh flush dev {DEVICE}; ping -c 3 -W 5 {six} && ping -c 2 -W 5 ff02::1%{DEVICE} &&
             ping -c 100 -i 0.01 -W 5 -q {four} && ping -c 20 -i 0.01 -W 5 -q -M do -s 4050 {four} &&
             ping -c 10 -i 0.05 -W 5 -q -s 20000 {four}"
        );
        let text = guest.sh_for(&script, LONG)?;
        let lost = text.lines().filter(|line| line.contains("packet loss"));
        let lost: Vec<&str> = lost.filter(|line| !line.contains(" 0% packet loss")).collect();
        if !lost.is_empty() {
            bail!("packets are lost: {lost:?}");
        }
    }
    let said = lab.guest(0)?.sh(&format!("ip -s link show {DEVICE}"))?;
    seen(said.lines().last().unwrap_or_default().trim().to_string())
}

/// What a host sends in another's name is dropped and counted, and so is what is for nobody.
fn strangers(lab: &mut Lab) -> Result<Outcome> {
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let count = |guest: &Guest, what: &str| -> Result<u64> {
        let text = guest.sh(&format!("cat /sys/class/net/{DEVICE}/statistics/{what}"))?;
        text.trim().parse().with_context(|| format!("{what} is {text}"))
    };
    let before = count(other, "rx_errors")?;
    // A device on top with an address of its own sends frames from that.
    one.sh(&format!(
        "modprobe macvlan && ip link add link {DEVICE} name stranger type macvlan && ip link set stranger up &&
         ip addr add 10.78.0.1/24 dev stranger; ping -c 3 -W 1 10.78.0.2; ip link del stranger"
    ))?;
    let errors = count(other, "rx_errors")? - before;
    if errors == 0 {
        bail!("frames from another address than the host's are taken");
    }
    let before = count(one, "tx_dropped")?;
    one.sh(&format!(
        "ip neigh replace 10.77.0.99 lladdr 02:00:00:00:00:01 dev {DEVICE}; ping -c 3 -W 1 10.77.0.99; ip neigh del 10.77.0.99 dev {DEVICE}"
    ))?;
    let dropped = count(one, "tx_dropped")? - before;
    if dropped < 3 {
        bail!("{dropped} frames to nobody are counted");
    }
    seen(format!("{errors} and {dropped} dropped"))
}

/// The link-local GID of RoCE v1 works with the device down, that of v2 whatever link-local address the device has, and that
/// of an IPv4 address as ARP finds it.
fn every_gid(lab: &mut Lab) -> Result<Outcome> {
    let guests = lab.guests();
    let each = |script: &dyn Fn(usize) -> String| {
        let mut guests = guests.iter();
        guests.try_for_each(|guest| guest.sh(&script(guest.number)).map(drop))
    };
    for guest in guests {
        rdma::network(guest)?;
    }
    let pingpong = |gid: u32| -> Result<()> {
        let (one, other) = (lab.guest(0)?, lab.guest(1)?);
        let command = format!("ibv_rc_pingpong -d usb4_0 -g {gid} -n 200");
        let serving = other.start(&["sh", "-c", &format!("exec {command}")])?;
        other.listening(18515)?;
        let said = one.run(&format!("{command} {}", switch::address(other.number)), LIMIT)?;
        if !said.ok() {
            serving.signal(SIGKILL)?;
            bail!("{command}: {said}");
        }
        let said = serving.wait(LIMIT)?;
        if !said.ok() {
            bail!("{command}, server: {said}");
        }
        Ok(())
    };
    each(&|_| format!("ip link set {DEVICE} down"))?;
    pingpong(0).context("with the device down")?;
    each(&|n| {
        format!(
            "ip link set {DEVICE} addrgenmode none && ip link set {DEVICE} up &&
             ip addr add fe80::77:{n}/64 dev {DEVICE} nodad; ip addr add {}/24 dev {DEVICE} 2> /dev/null;
             [ -z \"$(ip addr show dev {DEVICE} | grep ff:fe)\" ]",
            address(n)
        )
    })?;
    pingpong(1).context("with another link-local address")?;
    let number = |guest: &Guest| -> Result<u32> {
        let own = format!("0000:0000:0000:0000:0000:ffff:0a4d:{:04x}", guest.number + 1);
        let table = table(guest)?;
        let found = table
            .iter()
            .find(|(_, gid, kind)| *gid == own && kind == "RoCE v2");
        found.map(|(index, ..)| *index).context("there is no IPv4 GID")
    };
    let (one, other) = (number(lab.guest(0)?)?, number(lab.guest(1)?)?);
    if one != other {
        bail!("the IPv4 GID is {one} here and {other} there");
    }
    pingpong(one).context("with an IPv4 address")?;
    each(&|n| {
        format!(
            "ip link set {DEVICE} down; ip link set {DEVICE} addrgenmode eui64; ip link set {DEVICE} up
             ip addr add fd00::{:x}/64 dev {DEVICE}",
            n + 1
        )
    })?;
    seen(format!("GIDs 0, 1 and {one}"))
}

/// The device has no carrier without a cable, and a connection over it ends; with the cable it goes on by itself.
fn cable(lab: &mut Lab) -> Result<Outcome> {
    let carrier = |guest: &Guest, wanted: u8| {
        let script = format!("[ \"$(cat /sys/class/net/{DEVICE}/carrier)\" = {wanted} ]");
        guest
            .until(&script, SETTLE)
            .with_context(|| format!("carrier {wanted}"))
    };
    let from = rdma::ends(lab);
    {
        let (guests, emulator) = lab.parts();
        let [one, other] = guests else {
            bail!("two guests are wanted");
        };
        let busy = Busy::start(one, other)?;
        emulator.ask("unplug 0")?;
        guests.iter().try_for_each(|guest| carrier(guest, 0))?;
        busy.end()?;
    }
    rdma::down(lab, &from)?;
    let from = rdma::ends(lab);
    lab.control("plug 0")?;
    rdma::up(lab, &from)?;
    lab.guests().iter().try_for_each(|guest| carrier(guest, 1))?;
    works(lab)
}

/// A connection over which there is always something under way, a listener, and packets.
struct Busy<'a> {
    running: Vec<Running<'a>>,
}

impl<'a> Busy<'a> {
    fn start(client: &'a Guest, server: &'a Guest) -> Result<Busy<'a>> {
        let run = |guest: &'a Guest, command: &str| {
            guest.start(&[
                "sh",
                "-c",
                &format!("exec {command} > /dev/null 2>&1 < /dev/null"),
            ])
        };
        let to = address(server.number);
        let serving = run(server, &format!("rping -s -a {to}"))?;
        server.until(LISTENS, SETTLE)?;
        let connected = run(client, &format!("rping -c -a {to}"))?;
        client.until("rdma resource show qp | grep -q 'type RC state RTS'", SETTLE)?;
        let flood = run(client, &format!("ping -q -i 0.002 {to}"))?;
        Ok(Busy {
            running: vec![serving, connected, flood],
        })
    }

    fn end(self) -> Result<()> {
        for running in self.running {
            // It may have ended by itself.
            running.signal(SIGKILL)?;
            running.wait(SETTLE)?;
        }
        Ok(())
    }
}

/// Whether a new connection is made, and works.
fn works(lab: &mut Lab) -> Result<Outcome> {
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let to = address(other.number);
    one.until(&format!("ping -c 1 -W 1 {to}"), SETTLE)?;
    let text = run(
        one,
        other,
        &format!("rping -s -a {to} -C 3"),
        &format!("rping -c -a {to} -C 3 -v"),
    )?;
    seen(text.lines().next().unwrap_or_default().to_string())
}

/// A peer without this module is not found, and costs nothing; with it, it is.
fn nobody_there(lab: &mut Lab) -> Result<Outcome> {
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let to = address(other.number);
    other.sh_for("rmmod usb4_rdma_ib", SETTLE)?;
    one.sh(&format!("ip neigh flush dev {DEVICE}"))?;
    let said = one.run(&format!("ping -c 3 -W 2 {to}"), SETTLE)?;
    if said.ok() || !said.to_string().contains("Unreachable") {
        bail!("without the module the peer answers: {said}");
    }
    let said = one.run(&format!("rping -c -a {to} -C 1 < /dev/null"), LIMIT)?;
    if said.ok() {
        bail!("without the module the peer is connected to: {said}");
    }
    load_verbs(other)?;
    other.sh(&format!("ip addr add {to}/24 dev {DEVICE}"))?;
    works(lab)
}

/// The module goes with connections, listeners, addresses and frames under way, and comes back.
fn unload(lab: &mut Lab) -> Result<Outcome> {
    {
        let (one, other) = (lab.guest(0)?, lab.guest(1)?);
        let busy = Busy::start(one, other)?;
        let gone = format!("rmmod usb4_rdma_ib && [ ! -e /sys/class/net/{DEVICE} ]");
        one.sh_for(&gone, SETTLE)?;
        other.sh_for(&gone, SETTLE)?;
        busy.end()?;
        for guest in [one, other] {
            guest.until("rmmod usb4_rdma 2> /dev/null", SETTLE)?;
        }
    }
    let from = rdma::ends(lab);
    super::load(lab)?;
    rdma::up(lab, &from)?;
    for guest in lab.guests() {
        let own = address(guest.number);
        guest.sh(&format!("ip addr add {own}/24 dev {DEVICE}"))?;
    }
    works(lab)
}
