//! Our module in guests: brought there, loaded, its link waited for, and programs that use it.

use super::clock::Clock;
use super::net::SETTLE;
use crate::lab::agent::{Output, Running, SIGKILL, Said};
use crate::lab::binary;
use crate::lab::session::{Guest, Lab, Plan};
use crate::lab::switch;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// Programs for guests, with their packages.
const PROGRAMS: [(&str, &str); 3] = [
    ("usb4-testkit", "usb4-conformance"),
    ("usb4-testkit", "usb4-uapi"),
    ("usb4ctl", "usb4ctl"),
];

/// What the kernel says of a peer and of its link (drivers/thunderbolt/xdomain.c, kmod/rail.c).
const FOUND: &str = "new host found";
pub(super) const UP: &str = " up, rail 0 over ";
pub(super) const DOWN: &str = " down: ";

/// How long the longest programs may take. The conformance suite needs a minute of a quiet machine.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// Adds the module and what uses it to what guests get.
pub(super) fn plan(plan: &mut Plan) -> Result<()> {
    plan.module = true;
    for (package, program) in PROGRAMS {
        let path = binary::build(package, program)?;
        plan.files.push((format!("usr/bin/{program}"), path));
    }
    Ok(())
}

/// Loads the module everywhere; returns when the link is up.
pub(in crate::lab) fn prepare(lab: &mut Lab) -> Result<()> {
    let from = ends(lab);
    load(lab)?;
    up(lab, &from)
}

/// Loads the module everywhere at once. It takes no parameters.
pub(super) fn load(lab: &Lab) -> Result<()> {
    let loading: Vec<Running<'_>> = lab
        .guests()
        .iter()
        .map(|guest| guest.start(&["modprobe", "usb4_rdma"]))
        .collect::<Result<_>>()?;
    for loading in loading {
        let output = loading.wait(SETTLE).context("modprobe usb4_rdma")?;
        if !output.ok() {
            bail!("modprobe usb4_rdma: {output}");
        }
    }
    Ok(())
}

/// Where each guest's console ends: what is to come has to be after it.
pub(super) fn ends(lab: &Lab) -> Vec<usize> {
    lab.guests().iter().map(|guest| guest.console.len()).collect()
}

/// Waits until every guest has said `pattern` after `from`, and returns the lines' numbers.
pub(super) fn said(lab: &Lab, from: &[usize], pattern: &str) -> Result<Vec<usize>> {
    let pairs = lab.guests().iter().zip(from);
    pairs
        .map(|(guest, from)| guest.console.wait(pattern, *from, SETTLE))
        .collect()
}

/// Waits until every guest says that its link is up.
pub(super) fn up(lab: &Lab, from: &[usize]) -> Result<()> {
    said(lab, from, UP).map(drop)
}

/// Waits until every guest says that its link is down.
pub(super) fn down(lab: &Lab, from: &[usize]) -> Result<()> {
    said(lab, from, DOWN).map(drop)
}

/// Lets time pass in guests, by their own clocks: what these had to do meanwhile has come up, however busy this machine is.
pub(super) fn pass(guests: &[Guest], span: Duration) -> Result<()> {
    let seconds = span.as_secs().to_string();
    let running: Vec<Running<'_>> = guests
        .iter()
        .map(|guest| guest.start(&["sleep", &seconds]))
        .collect::<Result<_>>()?;
    for running in running {
        let output = running.wait(span + SETTLE)?;
        if !output.ok() {
            bail!("sleep: {output}");
        }
    }
    Ok(())
}

/// How long a link took, from the later of both guests' finding the other to the later of both links' being up.
pub(super) struct BringUp {
    /// Seconds, but for what is not known of the guests' clocks.
    pub(super) span: f64,
    /// Of these, seconds in which guests or emulator would have run, had this machine had a processor for them.
    pub(super) waited: f64,
}

/// Waits until the link is up, for which something has been done after `from`.
pub(super) fn bring_up(lab: &Lab, from: &[usize]) -> Result<BringUp> {
    let origin = Instant::now();
    let found = said(lab, from, FOUND)?;
    let before = lab.waited();
    let up = said(lab, &found, UP)?;
    let waited = lab.waited().saturating_sub(before).as_secs_f64();
    let (mut latest_found, mut latest_up, mut error) = (f64::MIN, f64::MIN, 0.0);
    for (guest, (found, up)) in lab.guests().iter().zip(found.into_iter().zip(up)) {
        let clock = Clock::compare(guest, origin)?;
        latest_found = clock.time(guest, found)?.max(latest_found);
        latest_up = clock.time(guest, up)?.max(latest_up);
        error += clock.error;
    }
    Ok(BringUp {
        span: (latest_up - latest_found - error).max(0.0),
        waited,
    })
}

/// A program in a guest that serves others until it is dropped.
pub(in crate::lab) struct Server<'a> {
    pub(super) running: Running<'a>,
    /// What clients name it by.
    pub(in crate::lab) address: String,
}

impl<'a> Server<'a> {
    /// Starts `usb4ctl COMMAND --serve`; the command may have options.
    pub(in crate::lab) fn start(guest: &'a Guest, command: &str) -> Result<Server<'a>> {
        let words = ["usb4ctl"]
            .into_iter()
            .chain(command.split(' '))
            .chain(["--serve"]);
        let mut running = guest.start(&words.collect::<Vec<_>>())?;
        let deadline = Instant::now() + SETTLE;
        let mut text = String::new();
        while !text.contains('\n') {
            match running.said(Duration::from_millis(100))? {
                Said::Output(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
                Said::End(end) => bail!("usb4ctl {command} --serve: {}\n{text}", Output::silent(end)),
                Said::Nothing if Instant::now() > deadline => {
                    bail!("usb4ctl {command} --serve does not say its address")
                }
                Said::Nothing => {}
            }
        }
        let address = text.lines().next().unwrap_or_default().trim().to_string();
        Ok(Server { running, address })
    }

    /// Ends it; returns when it is gone.
    pub(in crate::lab) fn end(self) -> Result<()> {
        self.running.signal(SIGKILL)?;
        self.running.wait(SETTLE).map(drop)
    }
}

/// Pings one guest from another, every byte of every answer looked at.
pub(super) fn ping(from: &Guest, to: &Guest, count: u32) -> Result<String> {
    let server = Server::start(to, "ping")?;
    let address = &server.address;
    let text = from.sh_for(
        &format!("usb4ctl ping --count {count} --interval 0 {address}"),
        SETTLE,
    )?;
    let line = text.lines().last().unwrap_or_default();
    if !line.starts_with(&format!("{count} of {count} pings answered")) {
        bail!("usb4ctl ping: {text}");
    }
    server.end()?;
    Ok(line.to_string())
}

/// Runs `usb4ctl bench` between guests, and returns what it says. The receiver checks the bytes.
pub(super) fn bench(from: &Guest, to: &Guest, arguments: &str) -> Result<String> {
    let server = Server::start(to, "bench")?;
    let script = format!("usb4ctl bench {arguments} {}", server.address);
    let text = from.sh_for(&script, 4 * SETTLE)?;
    server.end()?;
    Ok(text)
}

/// Runs the conformance suite from one guest against another; returns what it counted.
pub(super) fn conformance_pair(one: &Guest, other: &Guest) -> Result<String> {
    const PORT: u16 = 7001;
    for guest in [one, other] {
        network(guest)?;
    }
    let address = format!("{}:{PORT}", switch::address(other.number));
    let server = other.start(&["usb4-conformance", "--listen", &address])?;
    other.listening(PORT)?;
    let outcome = conformance(one, &format!("--connect {address}"))?;
    server.signal(SIGKILL)?;
    server.wait(SETTLE)?;
    Ok(outcome)
}

/// Brings up the network beside the cable, once.
pub(in crate::lab) fn network(guest: &Guest) -> Result<()> {
    if guest.run("ip addr show dev eth0 | grep -q 'inet '", SETTLE)?.ok() {
        return Ok(());
    }
    guest.network()
}

/// Runs the conformance suite in a guest.
pub(super) fn conformance(guest: &Guest, arguments: &str) -> Result<String> {
    let script = format!("usb4-conformance --device /dev/usb4ring {arguments}");
    verdict(&guest.sh_for(&script, LONG)?)
}

/// The last line of a program that counts what passed.
pub(super) fn verdict(text: &str) -> Result<String> {
    let line = text.lines().last().context("it said nothing")?;
    if !line.ends_with(", 0 failed") {
        bail!("{text}");
    }
    Ok(line.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_counts_a_failure_fails() {
        assert!(verdict("ok    a\nuapi /dev/usb4ring: 21 passed, 0 failed").is_ok());
        assert!(verdict("FAIL  a\nuapi /dev/usb4ring: 20 passed, 10 failed").is_err());
        assert!(verdict("").is_err());
    }
}
