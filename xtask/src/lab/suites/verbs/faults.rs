//! What a cable, a controller and a peer can do to queue pairs: these end with the status that is due, and others can be
//! connected without help. No byte is wrong.

use super::{load_verbs, prepare, seen};
use crate::lab::agent::{Running, SIGKILL, Said};
use crate::lab::emulator::Emulator;
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::kmod::with_all_faults;
use crate::lab::suites::load::MOVING;
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::programs::look_at_every_byte;
use crate::lab::suites::{Check, Group, Outcome, Tag, power, rails, rdma};
use crate::lab::switch;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

pub(super) const GROUPS: &[Group] = &[Group {
    name: "faults",
    topology: "pair,lanes=1",
    plan: |_| {},
    prepare,
    checks: &[
        check("bad-cable", Ci, bad_cable),
        check("bad-cable-every-byte", Ci, bad_cable_every_byte),
        check("cable-pulled", Ci, |lab| pulled(lab, 3)),
        check("cable-pulled-fifty-times", Full, |lab| pulled(lab, 50)),
        check("process-killed", Ci, process_killed),
        check("service-unbound", Full, service_unbound),
        check("module-unloaded", Ci, module_unloaded),
        check("stopped-for-a-while", Full, stopped_for_a_while),
        check("suspended", Full, suspended),
        check("controller-unbound", Full, controller_unbound),
        check("power-lost", Ci, power_lost),
    ],
}];

const fn check(name: &'static str, tag: Tag, run: fn(&mut Lab) -> Result<Outcome>) -> Check {
    Check { name, tag, run }
}

/// How long until outstanding work of a link that went has ended.
const BOUND: Duration = Duration::from_secs(30);

const PORT: u16 = 7003;

/// Starts the other side. It looks after itself: nobody may hold on to a guest that goes.
fn serve(guest: &Guest) -> Result<String> {
    rdma::network(guest)?;
    let address = format!("{}:{PORT}", switch::address(guest.number));
    guest.sh(&format!(
        "setsid usb4-uverbs --listen {address} > /tmp/serve.log 2>&1 < /dev/null & echo $! > /tmp/serve.pid"
    ))?;
    guest.listening(PORT)?;
    Ok(address)
}

fn stop_serving(guest: &Guest) -> Result<()> {
    let script = "pid=$(cat /tmp/serve.pid); kill -KILL $pid; while [ -e /proc/$pid ]; do sleep 0.1; done";
    guest.sh_for(script, SETTLE).map(drop)
}

/// A client in guest 0 that endures all.
struct Client<'a> {
    running: Running<'a>,
    text: String,
}

impl<'a> Client<'a> {
    fn start(guest: &'a Guest, address: &str) -> Result<Client<'a>> {
        rdma::network(guest)?;
        let running = guest.start(&["usb4-uverbs", "--connect", address, "--endure"])?;
        let mut client = Client {
            running,
            text: String::new(),
        };
        client.says("moving", SETTLE)?;
        Ok(client)
    }

    /// The next line, which is to begin with `word`.
    fn says(&mut self, word: &str, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some((line, rest)) = self.text.split_once('\n') {
                let (line, rest) = (line.to_string(), rest.to_string());
                self.text = rest;
                if !line.starts_with(word) {
                    bail!("the client says {line:?}, not {word:?}");
                }
                return Ok(line);
            }
            match self.running.said(Duration::from_millis(100))? {
                Said::Output(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Said::End(end) => bail!("the client has ended: {end:?} {}", self.text),
                Said::Nothing if Instant::now() > deadline => bail!("the client does not say {word:?}"),
                Said::Nothing => {}
            }
        }
    }

    /// Fails if it has said anything.
    fn has_not_noticed(&mut self) -> Result<()> {
        match self.running.said(Duration::ZERO)? {
            Said::Nothing => Ok(()),
            Said::Output(bytes) => bail!("the client says {}", String::from_utf8_lossy(&bytes)),
            Said::End(end) => bail!("the client has ended: {end:?}"),
        }
    }

    fn end(self) -> Result<()> {
        self.running.signal(SIGKILL)?;
        self.running.wait(SETTLE).map(drop)
    }
}

/// Everything that queue pairs do, on a cable that loses and damages, with controllers that overlook and forget.
fn bad_cable(lab: &mut Lab) -> Result<Outcome> {
    let address = serve(lab.guest(1)?)?;
    let outcome = with_all_faults(lab, |lab| {
        let one = lab.guest(0)?;
        rdma::network(one)?;
        let text = one.sh_for(&format!("usb4-uverbs --connect {address}"), super::LONG)?;
        rdma::verdict(&text)
    })?;
    stop_serving(lab.guest(1)?)?;
    Ok(outcome)
}

/// Every combination of a reliable connection on such a cable, through libibverbs.
fn bad_cable_every_byte(lab: &mut Lab) -> Result<Outcome> {
    lab.guests().iter().try_for_each(rdma::network)?;
    with_all_faults(lab, |lab| {
        look_at_every_byte(lab.guest(0)?, lab.guest(1)?, "--filter 'RC '")
    })
}

/// Something happens to the peer, or on the way there, while messages move; they do so afterwards.
fn endured(
    lab: &mut Lab,
    happens: impl FnOnce(&mut Emulator, &Guest, &mut Client<'_>) -> Result<String>,
) -> Result<Outcome> {
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let address = serve(other)?;
    let mut client = Client::start(one, &address)?;
    rails::moves(emulator, 0, MOVING)?;
    let what = happens(emulator, other, &mut client)?;
    rails::moves(emulator, 0, MOVING).with_context(|| format!("after {what}"))?;
    client.end()?;
    stop_serving(other)?;
    seen(what)
}

fn pulled(lab: &mut Lab, times: u32) -> Result<Outcome> {
    endured(lab, |emulator, _, client| {
        let mut words = String::new();
        for time in 0..times {
            rails::moves(emulator, 0, MOVING)?;
            emulator.ask("unplug 0")?;
            words = client
                .says("lost", BOUND)
                .with_context(|| format!("pulled {time} times before"))?;
            emulator.ask("plug 0")?;
            client.says("moving", SETTLE)?;
        }
        Ok(format!("{times} times, the last time {words:?}"))
    })
}

/// Has something end the queue pairs, and bring back what they need.
fn broken_by(lab: &mut Lab, breaks: impl FnOnce(&Guest) -> Result<()>) -> Result<Outcome> {
    endured(lab, |_, other, client| {
        breaks(other)?;
        let words = client.says("lost", BOUND)?;
        client.says("moving", SETTLE)?;
        Ok(words)
    })
}

/// The peer's process dies with what it had in flight; another takes its place.
fn process_killed(lab: &mut Lab) -> Result<Outcome> {
    broken_by(lab, |other| {
        stop_serving(other)?;
        serve(other).map(drop)
    })
}

fn service_unbound(lab: &mut Lab) -> Result<Outcome> {
    broken_by(lab, |other| {
        let script = "set -e; cd /sys/bus/thunderbolt/drivers/usb4_rdma; service=$(ls -d *-*.* | head -1)
                      echo $service > unbind; sleep 1; echo $service > bind";
        other.sh_for(script, SETTLE).map(drop)
    })
}

/// Verbs go while they are in use, and come back. Whoever used them is told, and starts anew.
fn module_unloaded(lab: &mut Lab) -> Result<Outcome> {
    broken_by(lab, |other| {
        other.sh_for("rmmod usb4_rdma_ib", SETTLE)?;
        stop_serving(other)?;
        load_verbs(other)?;
        serve(other).map(drop)
    })
}

fn controller_unbound(lab: &mut Lab) -> Result<Outcome> {
    broken_by(lab, |other| {
        let script = "set -e; cd /sys/bus/pci/drivers/thunderbolt; controller=$(ls -d 0000:* | head -1)
                      echo $controller > unbind; echo $controller > bind";
        other.sh_for(script, SETTLE).map(drop)
    })
}

fn suspended(lab: &mut Lab) -> Result<Outcome> {
    broken_by(lab, |other| power::sleep(other, power::LEVELS[0]))
}

/// A peer whose machine stands still is not dead, and its queue pairs are not lost.
fn stopped_for_a_while(lab: &mut Lab) -> Result<Outcome> {
    const SPAN: Duration = Duration::from_secs(15);
    endured(lab, |emulator, other, client| {
        other.stop(true)?;
        std::thread::sleep(SPAN);
        other.stop(false)?;
        rails::moves(emulator, 0, MOVING).context("after it goes on")?;
        client.has_not_noticed()?;
        Ok(format!(
            "{} s, and the queue pairs are as they were",
            SPAN.as_secs()
        ))
    })
}

/// The peer's power fails, and comes back.
fn power_lost(lab: &mut Lab) -> Result<Outcome> {
    let address = serve(lab.guest(1)?)?;
    let one = lab.guest(0)?;
    rdma::network(one)?;
    one.sh(&format!(
        "setsid usb4-uverbs --connect {address} --endure > /tmp/endure.log 2>&1 < /dev/null & echo $! > /tmp/endure.pid"
    ))?;
    rails::moves(lab.parts().1, 0, MOVING)?;
    lab.reboot(1)?;
    let one = lab.guest(0)?;
    one.until("grep -q ^lost /tmp/endure.log", BOUND)
        .context("work with a peer that is gone")?;
    let lost = one.sh("grep ^lost /tmp/endure.log")?;
    rdma::load(lab)?;
    let other = lab.guest(1)?;
    load_verbs(other)?;
    serve(other)?;
    let one = lab.guest(0)?;
    one.until("[ $(grep -c ^moving /tmp/endure.log) = 2 ]", SETTLE)
        .with_context(|| format!("after {lost:?}"))?;
    rails::moves(lab.parts().1, 0, MOVING)?;
    lab.guest(0)?.sh("kill -KILL $(cat /tmp/endure.pid)")?;
    stop_serving(lab.guest(1)?)?;
    seen(format!("{lost:?}; it has booted again, and they are connected"))
}
