//! Files fetched over thunderbolt_net, both ways, all the time.

use super::{Traffic, play, two};
use crate::interrupt;
use crate::lab::agent::{Running, SIGKILL, Said};
use crate::lab::emulator::Emulator;
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::fault_script::Script;
use crate::lab::suites::net::{self, SETTLE};
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// Makes the file that both guests have, and serves it. It holds the numbers of its lines, so no part is like another.
const SERVE: &str = "mkdir -p /tmp/www && seq 100000 150000 > /tmp/www/file && httpd -p 80 -h /tmp/www";

/// Fetches a file from the other guest and compares it, again and again. A fetch may fail; bytes may not be wrong.
fn fetches(to: usize) -> String {
    format!(
        "while :; do
             if timeout 20 wget -q -T 5 -O /tmp/got http://{}/file 2> /dev/null; then
                 cmp -s /tmp/got /tmp/www/file && echo ok || echo WRONG
             else
                 echo failed; sleep 0.2
             fi
         done",
        net::address(to)
    )
}

pub(super) fn prepare(lab: &mut Lab) -> Result<()> {
    net::up(lab)?;
    for guest in lab.guests() {
        guest.sh(SERVE)?;
    }
    Ok(())
}

pub(super) fn run(lab: &mut Lab, script: &Script) -> Result<String> {
    let (guests, emulator) = lab.parts();
    let guests = two(guests)?;
    let fetches = |from: usize, to: usize| -> Result<Fetches<'_>> {
        let guest = guests[from];
        Ok(Fetches {
            guest,
            running: guest.start(&["sh", "-c", &fetches(to)])?,
            text: String::new(),
            good: 0,
            failed: 0,
        })
    };
    let mut traffic = Network {
        ways: [fetches(0, 1)?, fetches(1, 0)?],
    };
    play(script, emulator, &mut traffic)?;
    traffic.reached(emulator)?;
    let counts: Vec<String> = traffic
        .ways
        .iter()
        .map(|way| format!("{} fetched and {} given up on", way.good, way.failed))
        .collect();
    let [there, back] = traffic.ways;
    there.end()?;
    back.end()?;
    Ok(format!(
        "files {} one way, {} the other; none wrong",
        counts[0], counts[1]
    ))
}

/// The fetches of one guest.
struct Fetches<'a> {
    guest: &'a Guest,
    running: Running<'a>,
    /// What it has said of the fetch that it is at.
    text: String,
    good: u32,
    failed: u32,
}

impl Fetches<'_> {
    fn look(&mut self, span: Duration) -> Result<()> {
        match self.running.said(span)? {
            Said::Output(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
            Said::End(_) => bail!("guest {} has stopped fetching", self.guest.number),
            Said::Nothing => {}
        }
        while let Some((line, rest)) = self.text.split_once('\n') {
            match line {
                "ok" => self.good += 1,
                "failed" => self.failed += 1,
                _ => bail!("guest {} fetched a file with wrong bytes", self.guest.number),
            }
            self.text = rest.to_string();
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        self.running.signal(SIGKILL)?;
        self.running.wait(SETTLE).map(drop)
    }
}

struct Network<'a> {
    ways: [Fetches<'a>; 2],
}

impl Network<'_> {
    /// Waits until both ways have fetched a file that was begun after now. No fault strikes meanwhile.
    fn reached(&mut self, emulator: &mut Emulator) -> Result<()> {
        // The one that is being fetched now was begun before.
        let wanted: Vec<u32> = self.ways.iter().map(|way| way.good + 2).collect();
        let deadline = Instant::now() + 2 * SETTLE;
        let mut set_up = Instant::now();
        loop {
            self.go_on(Duration::from_millis(100))?;
            if self
                .ways
                .iter()
                .zip(&wanted)
                .all(|(way, wanted)| way.good >= *wanted)
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the guests do not reach each other again");
            }
            if Instant::now() >= set_up {
                let [there, back] = &self.ways;
                net::set_up([there.guest, back.guest], emulator)?;
                set_up = Instant::now() + Duration::from_secs(1);
            }
        }
    }
}

impl Traffic for Network<'_> {
    fn go_on(&mut self, span: Duration) -> Result<()> {
        let end = Instant::now() + span;
        while Instant::now() < end {
            interrupt::check()?;
            for way in &mut self.ways {
                way.look(Duration::from_millis(20))?;
            }
        }
        Ok(())
    }

    fn reload(&mut self, guest: usize) -> Result<()> {
        let guest = self.ways[guest].guest;
        guest
            .sh_for(
                "ip link set thunderbolt0 down 2> /dev/null
                 modprobe -r thunderbolt_net && modprobe -r thunderbolt && modprobe thunderbolt_net",
                2 * SETTLE,
            )
            .map(drop)
    }

    fn after_round(&mut self, emulator: &mut Emulator) -> Result<()> {
        self.reached(emulator).context("after the faults")
    }
}
