//! Stock programs of verbs between two guests: libibverbs with our provider, on `usb4_0`.
//!
//! perftest does not look at what arrives, so here it shows that requests of every kind complete, and as often as they
//! were made. The pingpongs of rdma-core look at every message, and so do `usb4-verbs` and `usb4-uverbs` (suite `verbs`, group
//! `pair`). perftest sends nothing inline on a device whose vendor it does not know: `-I` only makes it say so, and what is inline is
//! for the others.

use super::Tag::{Ci, Full};
use super::applications::addresses;
use super::{Check, Group, Outcome, rdma, verbs};
use crate::lab::agent::SIGKILL;
use crate::lab::perftest::{Device, Test, USB4, USB4_BY_RDMA_CM, row_between};
use crate::lab::session::{Guest, Lab};
use crate::lab::switch;
use anyhow::{Context, Result, bail};
use std::time::Duration;

pub(super) const GROUP: Group = Group {
    name: "programs",
    topology: "pair,lanes=1",
    plan: |_| {},
    prepare,
    checks: &[
        check("devinfo", Ci, devinfo),
        check("pingpong", Ci, pingpong),
        check("every-byte", Ci, every_byte),
        check("every-byte-long", Full, every_byte_long),
        check("perftest", Ci, perftest),
        check("sweep", Full, sweep),
        check("sweep-rdma-cm", Full, sweep_rdma_cm),
    ],
};

const fn check(name: &'static str, tag: super::Tag, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check { name, tag, run }
}

/// How long one program may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How long all of our own may take.
const LONG: Duration = Duration::from_secs(900);

/// The link is up, and the network beside it.
pub(super) fn prepare(lab: &mut Lab) -> Result<()> {
    verbs::prepare(lab)?;
    lab.guests().iter().try_for_each(rdma::network)
}

/// What stock programs say of the device.
fn devinfo(lab: &mut Lab) -> Result<Outcome> {
    let guest = lab.guest(0)?;
    let devices = guest.sh("IBV_SHOW_WARNINGS=1 ibv_devices 2>&1")?;
    if devices.contains("Warning") || !devices.contains("usb4_0") {
        bail!("ibv_devices: {devices}");
    }
    let info = guest.sh("ibv_devinfo -v -d usb4_0")?;
    let said = |name: &str| {
        let line = info.lines().find(|line| line.trim().starts_with(name));
        let value = line.and_then(|line| line.split_once(':'));
        let value = value.map(|(_, value)| value.trim().to_string());
        value.with_context(|| format!("ibv_devinfo does not say {name}: {info}"))
    };
    for (name, wanted) in [
        ("state", "PORT_ACTIVE (4)"),
        ("max_mtu", "4096 (5)"),
        ("active_mtu", "4096 (5)"),
        ("vendor_id", "0x25534"),
        ("phys_port_cnt", "1"),
        ("atomic_cap", "ATOMIC_GLOB (2)"),
    ] {
        let found = said(name)?;
        if found != wanted {
            bail!("ibv_devinfo: {name} is {found} and not {wanted}");
        }
    }
    let guid = said("node_guid")?;
    let gid = said("GID[  0]")?;
    seen(format!("node {guid}, GID {gid}"))
}

/// rdma-core's examples, how many messages each sends, and options. They look at every message (`-c`).
const PINGPONGS: &[(&str, u32, &str)] = &[
    ("ibv_rc_pingpong", 100, ""),
    ("ibv_rc_pingpong", 20, "-s 1048576"),
    ("ibv_rc_pingpong", 100, "-e"),
    ("ibv_rc_pingpong", 100, "-N"),
    ("ibv_uc_pingpong", 100, ""),
    ("ibv_uc_pingpong", 50, "-s 65536 -e"),
    ("ibv_ud_pingpong", 100, "-s 2048"),
    ("ibv_ud_pingpong", 100, "-s 64 -e"),
    ("ibv_srq_pingpong", 20, "-q 16"),
    ("ibv_srq_pingpong", 20, "-q 4 -e"),
];

fn pingpong(lab: &mut Lab) -> Result<Outcome> {
    let (client, server) = (lab.guest(0)?, lab.guest(1)?);
    for (program, count, options) in PINGPONGS {
        let command = format!("{program} -c -d usb4_0 -g 0 -n {count} {options}");
        let said = between(client, server, &command, 18515)?;
        let done = format!("{count} iters in ");
        if !said.lines().any(|line| line.starts_with(&done)) {
            bail!("{command} does not say {done}: {said}");
        }
    }
    seen(format!("{} runs", PINGPONGS.len()))
}

/// Runs a program in one guest, and with the address of that in the other. Both have to succeed; returns what the other said.
pub(super) fn between(client: &Guest, server: &Guest, command: &str, port: u16) -> Result<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let running = server.agent().start_without_input(&words)?;
    server.listening(port)?;
    let output = client.run(&format!("{command} {}", switch::address(server.number)), LIMIT)?;
    if !output.ok() {
        let server = running.wait(Duration::from_secs(5));
        let server = server.map_or_else(|error| format!("{error:#}"), |output| output.to_string());
        bail!("{command}: {output}\nserver: {server}");
    }
    let served = running.wait(LIMIT)?;
    if !served.ok() {
        bail!("{command}, server: {served}");
    }
    Ok(output.text())
}

/// Our own program over libibverbs (crates/testkit/src/bin/verbs): every operation over every transport, both ways at once, with 1,
/// 4 and 32 queue pairs, inline and not, with and without shared receive queues, each byte looked at.
fn every_byte(lab: &mut Lab) -> Result<Outcome> {
    seen(look_at_every_byte(lab.guest(0)?, lab.guest(1)?, "")?)
}

/// The same, longer.
fn every_byte_long(lab: &mut Lab) -> Result<Outcome> {
    seen(look_at_every_byte(lab.guest(0)?, lab.guest(1)?, "--times 10")?)
}

/// What the program says in the end.
pub(super) fn look_at_every_byte(client: &Guest, server: &Guest, options: &str) -> Result<String> {
    const PORT: u16 = 7004;
    let address = format!("{}:{PORT}", switch::address(server.number));
    let serving = server
        .agent()
        .start_without_input(&["usb4-verbs", "--listen", &address])?;
    server.listening(PORT)?;
    let said = client.run(&format!("usb4-verbs --connect {address} {options}"), LONG)?;
    serving.signal(SIGKILL)?;
    let served = serving.wait(LIMIT)?;
    if !said.ok() {
        bail!("{said}\nserver: {served}");
    }
    rdma::verdict(&said.text())
}

/// What perftest does on each change.
const FEW: &[&str] = &[
    "ib_write_lat -s 200 -n 200 -I 200",
    "ib_write_lat -s 64 -n 200 -c UC",
    "ib_read_lat -s 4096 -n 100",
    "ib_send_lat -s 64 -n 200",
    "ib_send_lat -s 64 -n 200 -c UC -I 64",
    "ib_send_lat -s 1024 -n 200 -c UD",
    "ib_send_lat -s 64 -n 100 -e --use_old_post_send",
    "ib_atomic_lat -n 100",
    "ib_write_bw -s 65536 -n 100 -b",
    "ib_write_bw -s 4096 -n 50 -q 32",
    "ib_write_bw -s 65536 -n 100 -c UC",
    "ib_read_bw -s 65536 -n 50 -q 4",
    "ib_send_bw -s 4096 -n 100 -q 4 -b",
    "ib_send_bw -s 65536 -n 50 -c UC",
    "ib_send_bw -s 4096 -n 100 -c UD -b",
    "ib_send_bw -s 4096 -n 100 -q 4 --use-srq",
    "ib_atomic_bw -n 100 -q 2",
];

fn perftest(lab: &mut Lab) -> Result<Outcome> {
    let tests: Vec<String> = FEW.iter().map(|words| words.to_string()).collect();
    run(lab, USB4, &tests)
}

/// Every operation over every transport that has it, as latency and bandwidth, with the options that change how it is posted.
fn sweep(lab: &mut Lab) -> Result<Outcome> {
    run(lab, USB4, &all())
}

/// The same with queue pairs that rdma_cm connects; it connects none of UC. Over UD perftest posts a receive to the queue pair
/// itself, which has none where they are shared.
fn sweep_rdma_cm(lab: &mut Lab) -> Result<Outcome> {
    addresses(lab)?;
    let mut tests = all();
    tests.retain(|test| !test.contains("-c UC") && !test.contains("-c UD --use-srq"));
    run(lab, USB4_BY_RDMA_CM, &tests)
}

fn all() -> Vec<String> {
    let transports = |operation| match operation {
        "send" => &["RC", "UC", "UD"][..],
        "write" => &["RC", "UC"],
        _ => &["RC"],
    };
    let mut tests = vec![];
    for operation in ["send", "write", "read", "atomic"] {
        for transport in transports(operation) {
            let sizes: &[&str] = match (operation, *transport) {
                ("atomic", _) => &[""],
                (_, "UD") => &["-s 8 ", "-s 4096 "],
                _ => &["-s 8 ", "-s 4096 ", "-s 1048576 "],
            };
            for size in sizes {
                let long = size.contains("1048576");
                let count = if long { 20 } else { 100 };
                let common = format!("{size}-n {count} -c {transport}");
                tests.push(format!("ib_{operation}_lat {common}"));
                // The last are chains, of which perftest wants whole ones.
                let more = ["", " -b", " -q 2", " -q 8 -b", " -q 32", " -l 10"];
                let few = if long { 3 } else { more.len() };
                for more in more.iter().take(few) {
                    tests.push(format!("ib_{operation}_bw {common}{more}"));
                }
            }
            let size = if operation == "atomic" { "" } else { "-s 1024 " };
            let common = format!("{size}-n 100 -c {transport}");
            // perftest waits for events where both sides complete something.
            if operation == "send" {
                tests.push(format!("ib_send_lat {common} -e"));
            }
            if operation != "write" {
                tests.push(format!("ib_{operation}_bw {common} -e"));
            }
            tests.push(format!("ib_{operation}_bw {common} -t 1"));
            tests.push(format!("ib_{operation}_bw {common} -Q 1"));
            // ibv_post_send in place of ibv_wr_*.
            tests.push(format!("ib_{operation}_bw {common} --use_old_post_send -q 2"));
        }
    }
    tests.extend(["FETCH_AND_ADD", "CMP_AND_SWAP"].map(|kind| format!("ib_atomic_bw -n 100 -A {kind}")));
    for operation in ["send", "write"] {
        for transport in transports(operation) {
            for (size, inline) in [(8, 64), (64, 64), (200, 200), (256, 256)] {
                let common = format!("-s {size} -n 100 -c {transport} -I {inline}");
                tests.push(format!("ib_{operation}_lat {common}"));
                tests.push(format!("ib_{operation}_bw {common} -q 2 -l 10"));
            }
            // Longer than what is inline.
            tests.push(format!(
                "ib_{operation}_bw -s 1024 -n 100 -c {transport} -I 64 -b"
            ));
        }
    }
    for transport in ["RC", "UC", "UD"] {
        let common = format!("-n 100 -c {transport} --use-srq");
        for more in ["-s 64", "-s 64 -I 64", "-s 4096", "-s 64 -e"] {
            tests.push(format!("ib_send_lat {common} {more}"));
        }
        // perftest shares out the receives of one queue pair, so several run out of them: over UC and UD that loses messages,
        // for which it waits for ever.
        let bandwidth = [
            "-s 4096 -b",
            "-s 64 -I 64 -q 2",
            "-s 4096 -q 2 -e",
            "-s 4096 -q 8 -b",
            "-s 4096 -q 32",
        ];
        let lossless = if transport == "RC" { bandwidth.len() } else { 1 };
        for more in bandwidth.iter().take(lossless) {
            tests.push(format!("ib_send_bw {common} {more}"));
        }
    }
    tests.extend(["send", "write"].map(|kind| format!("ib_{kind}_bw -a -n 20")));
    tests.push("ib_read_bw -a -n 20".to_string());
    tests.push("ib_send_bw -a -n 20 -c UD".to_string());
    tests
}

fn run(lab: &mut Lab, device: Device, tests: &[String]) -> Result<Outcome> {
    let (client, server) = (lab.guest(0)?, lab.guest(1)?);
    let mut requests = 0;
    let mut failed = vec![];
    for words in tests {
        let test = Test::words(words);
        match row_between(client, server, device, &test) {
            Ok(_) => requests += test.messages,
            Err(error) => {
                say!("perftest: {error:#}");
                failed.push(words.as_str());
            }
        }
    }
    if !failed.is_empty() {
        bail!(
            "{} of {} failed:\n{}",
            failed.len(),
            tests.len(),
            failed.join("\n")
        );
    }
    seen(format!("{} runs, {requests} requests", tests.len()))
}

fn seen(what: impl Into<String>) -> Result<Outcome> {
    Ok(Outcome::Seen(what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_run_over_every_transport_that_has_it() {
        let all = all();
        for wanted in [
            "ib_send_lat -s 8 -n 100 -c UD",
            "ib_send_bw -s 4096 -n 100 -c UC -q 8 -b",
            "ib_write_bw -s 1048576 -n 20 -c UC -q 2",
            "ib_read_bw -s 8 -n 100 -c RC -l 10",
            "ib_atomic_lat -n 100 -c RC",
            "ib_send_lat -s 200 -n 100 -c UD -I 200",
        ] {
            assert!(all.iter().any(|test| test == wanted), "{wanted}");
        }
        assert!(
            !all.iter()
                .any(|test| test.contains("write") && test.contains("UD"))
        );
        let mut once = all.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), all.len());
    }
}
