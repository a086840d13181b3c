//! Programs whose queue pairs rdma_cm connects, by the addresses that [`super::addresses`] gives.

use super::addresses::LIMIT;
use super::{LONG, seen};
use crate::lab::agent::{Output, Running, SIGKILL};
use crate::lab::perftest::{LISTENS, came_early, device_address as address};
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::Outcome;
use crate::lab::suites::leaks::Footprint;
use crate::lab::suites::net::SETTLE;
use anyhow::{Context, Result, bail};
use std::time::Instant;

/// A program that serves on one guest.
struct Server<'a> {
    running: Running<'a>,
    command: String,
}

impl<'a> Server<'a> {
    fn start(guest: &'a Guest, command: &str) -> Result<Server<'a>> {
        let running = guest.start(&["sh", "-c", &format!("exec {command} < /dev/null")])?;
        // Its listening rdma_cm identifier.
        guest.until(LISTENS, SETTLE)?;
        let command = command.to_string();
        Ok(Server { running, command })
    }

    fn end(self) -> Result<Output> {
        let output = self.running.wait(LIMIT).context(self.command.clone())?;
        if !output.ok() {
            bail!("{}: {output}", self.command);
        }
        Ok(output)
    }
}

/// Runs a pair of programs, and returns what the client said.
pub(super) fn run(client: &Guest, server: &Guest, serve: &str, connect: &str) -> Result<String> {
    let deadline = Instant::now() + LIMIT;
    let (serving, output) = loop {
        let serving = Server::start(server, serve)?;
        let output = client.run(&format!("{connect} < /dev/null"), LIMIT)?;
        if output.ok() || !came_early(&output.to_string()) || Instant::now() > deadline {
            break (serving, output);
        }
        serving.running.signal(SIGKILL)?;
        serving.running.wait(SETTLE)?;
    };
    if !output.ok() {
        serving.running.signal(SIGKILL)?;
        let said = serving.running.wait(SETTLE)?;
        bail!("{connect}: {output}\nserver: {said}");
    }
    serving.end()?;
    Ok(output.text())
}

/// Whatever rdma_cm connects: reliable connections with reads and writes, many of them, and datagrams; by IPv4 and IPv6.
pub(super) fn programs(lab: &mut Lab) -> Result<Outcome> {
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let mut done = vec![];
    for (client, server) in [(one, other), (other, one)] {
        let four = address(server.number);
        let six = format!("fd00::{:x}", server.number + 1);
        for address in [&four, &six] {
            let text = run(
                client,
                server,
                &format!("rping -s -a {address} -C 20 -S 4000"),
                &format!("rping -c -a {address} -C 20 -S 4000 -V -v"),
            )?;
            let pings = text.lines().filter(|line| line.contains("ping data")).count();
            if pings != 20 {
                bail!("rping has said {pings} lines: {text}");
            }
        }
        run(
            client,
            server,
            "ucmatose -c 8 -C 20 -S 1000",
            &format!("ucmatose -s {four} -c 8 -C 20 -S 1000"),
        )?;
        run(
            client,
            server,
            "udaddy -c 4 -C 20 -S 1000",
            &format!("udaddy -s {four} -c 4 -C 20 -S 1000"),
        )?;
        done.push(format!("guest {} to {}", client.number, server.number));
    }
    for guest in [one, other] {
        left(guest)?;
    }
    seen(format!(
        "rping by IPv4 and IPv6, ucmatose, udaddy: {}",
        done.join(", ")
    ))
}

/// Nothing but the kernel's own is left.
fn left(guest: &Guest) -> Result<()> {
    let wanted = "rdma resource show | grep -q 'usb4_0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0'";
    guest.until(wanted, SETTLE).with_context(|| {
        let found = guest.sh("rdma resource show");
        format!("something is left: {found:?}")
    })
}

/// The same within a host.
pub(super) fn to_itself(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    let own = address(guest.number);
    run(
        guest,
        guest,
        &format!("rping -s -a {own} -C 20"),
        &format!("rping -c -a {own} -C 20"),
    )?;
    run(guest, guest, "udaddy", &format!("udaddy -s {own}"))?;
    left(guest)?;
    seen("rping, udaddy")
}

/// Connections that come and go leave nothing in either kernel.
pub(super) fn again_and_again(lab: &mut Lab) -> Result<Outcome> {
    const TIMES: u32 = 150;
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let to = address(other.number);
    let connect = |times: u32| {
        let script = format!(
            "for i in $(seq {times}); do rping -c -a {to} -C 1 > /tmp/rping 2>&1 < /dev/null || {{ cat /tmp/rping; exit 1; }}; done"
        );
        one.sh_for(&script, LONG).map(drop)
    };
    let command = format!("exec rping -s -P -a {to} > /dev/null 2>&1 < /dev/null");
    let server = other.start(&["sh", "-c", &command])?;
    other.until(LISTENS, SETTLE)?;
    // What is kept is there then.
    connect(20)?;
    let before = [Footprint::of(one)?, Footprint::of(other)?];
    connect(TIMES)?;
    for (before, guest) in before.iter().zip([one, other]) {
        before.is_what_is_left_in(guest)?;
    }
    server.signal(SIGKILL)?;
    server.wait(SETTLE)?;
    left(other)?;
    seen(format!("{TIMES} connections"))
}

/// perftest, whose queue pairs rdma_cm connects.
pub(super) fn perftest(lab: &mut Lab) -> Result<Outcome> {
    let (one, other) = (lab.guest(0)?, lab.guest(1)?);
    let to = address(other.number);
    let tests = [
        "ib_send_lat -s 64 -n 200",
        "ib_write_bw -s 65536 -n 100",
        "ib_read_lat -s 4096 -n 100",
        "ib_send_lat -c UD -s 1024 -n 200",
    ];
    for test in tests {
        let command = format!("{test} -d usb4_0 -R -F");
        let text = run(one, other, &command, &format!("{command} {to}"))?;
        if !text.contains("rdma_cm QPs") || !text.contains("#iterations") {
            bail!("{command}: {text}");
        }
    }
    left(one)?;
    seen(tests.join(", "))
}
