//! Two cables between two guests: one link, whose rails share the work and replace each other.

use super::Outcome;
use super::net::SETTLE;
use super::rdma::{self, Server};
use crate::interrupt;
use crate::lab::agent::SIGKILL;
use crate::lab::emulator::Emulator;
use crate::lab::session::{Guest, Lab};
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// What the kernel says of a link's second rail, when it joins and when it goes (kmod/rails.c, kmod/join.c).
const JOINED: &str = " up, rail ";
const LOST: &str = " loses rail ";

/// Loads the module everywhere; returns when both cables are rails of one link.
pub(super) fn prepare(lab: &mut Lab) -> Result<()> {
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    for (guest, from) in lab.guests().iter().zip(&from) {
        let first = guest.console.wait(JOINED, *from, SETTLE)?;
        guest.console.wait(JOINED, first + 1, SETTLE)?;
    }
    Ok(())
}

/// Frames that have crossed a cable.
pub(super) fn frames(emulator: &mut Emulator, cable: usize) -> Result<u64> {
    let answer = emulator.ask("stats")?;
    let cable = &answer["stats"]["cables"][cable];
    let count = |way: &str| cable[way]["frames"].as_u64();
    let both = count("forth").zip(count("back"));
    both.map(|(forth, back)| forth + back)
        .context("the emulator counts no frames")
}

/// Both guests count two rails, and each cable carries a good part of large messages.
pub(super) fn both_carry(lab: &mut Lab) -> Result<Outcome> {
    /// Frames of one cable out of a hundred, at least: they are alike.
    const SHARE: u64 = 20;
    let before = [0, 1].map(|cable| frames(lab.parts().1, cable));
    for guest in lab.guests() {
        let text = guest.sh_for("usb4ctl devices --json", SETTLE)?;
        if !text.contains("\"rails\": 2") {
            bail!("usb4ctl devices does not show two rails: {text}");
        }
    }
    let sizes = "--min 65536 --max 262144 --iterations 50 --megabytes 8";
    rdma::bench(lab.guest(1)?, lab.guest(0)?, sizes)?;
    let mut carried = [0; 2];
    for (cable, before) in before.into_iter().enumerate() {
        carried[cable] = frames(lab.parts().1, cable)? - before?;
    }
    if carried
        .iter()
        .any(|&count| count * 100 < SHARE * carried.iter().sum::<u64>())
    {
        bail!("one cable carries nearly everything: {carried:?} frames");
    }
    Ok(Outcome::Seen(format!(
        "no byte wrong; {} and {} frames",
        carried[0], carried[1]
    )))
}

/// Pulls each cable in turn, and puts it back, while messages cross both: nobody notices.
pub(super) fn pull_one(lab: &mut Lab) -> Result<Outcome> {
    /// Frames on the cable that is left before the other one comes back, and on that before it goes.
    const MOVING: u64 = 1000;
    const PULLS: usize = 4;
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let pinged = Server::start(other, "ping")?;
    let server = Server::start(other, "bench")?;
    let endless = format!(
        "usb4ctl bench --min 65536 --max 65536 --iterations 10 --megabytes 1000000 {}",
        server.address
    );
    let client = one.start(&["sh", "-c", &endless])?;
    for pull in 0..PULLS {
        let (gone, left) = (pull % 2, 1 - pull % 2);
        moves(emulator, gone, MOVING)?;
        let from: Vec<usize> = guests.iter().map(|guest| guest.console.len()).collect();
        emulator.ask(&format!("unplug {gone}"))?;
        say(guests, LOST, &from)?;
        moves(emulator, left, MOVING)?;
        let from: Vec<usize> = guests.iter().map(|guest| guest.console.len()).collect();
        emulator.ask(&format!("plug {gone}"))?;
        say(guests, JOINED, &from)?;
    }
    client.signal(SIGKILL)?;
    let ended = client.wait(SETTLE)?;
    if !ended.stderr.is_empty() {
        bail!("the client has noticed: {ended}");
    }
    server.end()?;
    let again = one.sh_for(&format!("usb4ctl ping --count 20 {}", pinged.address), SETTLE)?;
    if !again.contains("20 of 20 pings answered") {
        bail!("after the last pull: {again}");
    }
    pinged.end()?;
    rdma::bench(
        one,
        other,
        "--min 65536 --max 65536 --iterations 20 --megabytes 4",
    )?;
    Ok(Outcome::Seen(format!(
        "{PULLS} pulls, and a client that noticed none of them"
    )))
}

fn say(guests: &[Guest], pattern: &str, from: &[usize]) -> Result<()> {
    for (guest, from) in guests.iter().zip(from) {
        guest.console.wait(pattern, *from, SETTLE)?;
    }
    Ok(())
}

/// Waits until that many more frames have crossed a cable.
pub(super) fn moves(emulator: &mut Emulator, cable: usize, count: u64) -> Result<()> {
    let begun = frames(emulator, cable)?;
    let deadline = Instant::now() + SETTLE;
    while frames(emulator, cable)? < begun + count {
        interrupt::check()?;
        if Instant::now() > deadline {
            bail!("nothing moves on cable {cable}");
        }
        // The emulator does not tell by itself.
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
