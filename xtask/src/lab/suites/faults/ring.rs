//! `usb4ctl bench` over our module, all the time.

use super::{Traffic, play, two};
use crate::interrupt;
use crate::lab::agent::{Output, Running, SIGKILL, Said};
use crate::lab::emulator::Emulator;
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::fault_script::Script;
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::rdma::{self, Server};
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};
use usb4_lab_agent::End;

/// How long one run of the client may take: its own patience is 30 s for each thing that does not come, and faults make
/// everything slow.
const RUN: Duration = Duration::from_secs(240);

/// What a program says whose work failed because the link went, or was not there: the statuses LINK_DOWN, GONE and
/// UNREACHABLE, and what is said where there is no session; FLUSHED of a receive whose message was arriving (`Link::fail` in crates/engine); or the other side's
/// having failed so.
const LINK_WENT: &[&str] = &[
    "the peer is gone",
    "Receive ended with Flushed",
    "did not answer within",
    "no peer ",
    "no session with peer ",
    "did not answer the connection request",
];

const OPERATIONS: [&str; 3] = ["send", "write", "read"];

/// Bytes of messages, of runs in turn: less than a frame, more than one, many.
const SIZES: [u32; 4] = [1000, 5000, 65536, 20000];

/// How long to wait for a link after a run was broken off: work without one may fail, too, but need not all the time.
const LINK: Duration = Duration::from_secs(5);

pub(super) fn run(lab: &mut Lab, script: &Script) -> Result<String> {
    let (guests, emulator) = lab.parts();
    let guests = two(guests)?;
    let mut traffic = Ring {
        guests,
        server: None,
        client: None,
        next: 0,
        whole: 0,
        broken: 0,
        broken_at: None,
    };
    play(script, emulator, &mut traffic)?;
    traffic.heals().context("after the script")?;
    let (whole, broken) = (traffic.whole, traffic.broken);
    traffic.end_server()?;
    let answered = rdma::ping(guests[0], guests[1], 20)?;
    Ok(format!(
        "{whole} runs of usb4ctl bench whole, {broken} broken off with the link, no byte wrong; then {answered}"
    ))
}

struct Ring<'a> {
    guests: [&'a Guest; 2],
    server: Option<Server<'a>>,
    client: Option<Client<'a>>,
    /// Number of the next run.
    next: usize,
    whole: u32,
    broken: u32,
    /// When the last one was broken off.
    broken_at: Option<Instant>,
}

/// A run of the client.
struct Client<'a> {
    running: Running<'a>,
    text: String,
    began: Instant,
    /// Where consoles ended when it began.
    from: [usize; 2],
    /// Whether the link was up then.
    linked: bool,
}

impl<'a> Ring<'a> {
    fn start(&mut self) -> Result<()> {
        let [one, other] = self.guests;
        let server = match self.server.take() {
            Some(server) => server,
            None => Server::start(other, "bench")?,
        };
        let operation = OPERATIONS[self.next % OPERATIONS.len()];
        let size = SIZES[self.next % SIZES.len()];
        self.next += 1;
        let script = format!(
            "exec usb4ctl bench --op {operation} --min {size} --max {size} --iterations 20 --megabytes 1 {}",
            server.address
        );
        self.server = Some(server);
        let from = self.guests.map(|guest| guest.console.len());
        let linked = self.linked();
        self.client = Some(Client {
            running: one.start(&["sh", "-c", &script])?,
            text: String::new(),
            began: Instant::now(),
            from,
            linked,
        });
        Ok(())
    }

    /// Whether both kernels have said last that the link is up.
    fn linked(&self) -> bool {
        self.guests.iter().all(|guest| {
            let lines = guest.console.lines(0);
            let last = lines
                .iter()
                .rfind(|line| line.contains(rdma::UP) || line.contains(rdma::DOWN));
            last.is_some_and(|line| line.contains(rdma::UP))
        })
    }

    /// Whether the link has gone, or was not there, while a client ran. Its work fails before the kernel says why, so
    /// that may have yet to come.
    fn link_went(&self, client: &Client<'_>) -> Result<bool> {
        let went = |guest: &Guest, from: usize| {
            let lines = guest.console.lines(from);
            lines.iter().any(|line| line.contains(rdma::DOWN))
        };
        let deadline = Instant::now() + SETTLE;
        loop {
            interrupt::check()?;
            let mut pairs = self.guests.iter().zip(client.from);
            if !client.linked || pairs.any(|(guest, from)| went(guest, from)) {
                return Ok(true);
            }
            if Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn ended(&mut self, client: Client<'a>, end: End) -> Result<()> {
        if end == End::Status(0) {
            self.whole += 1;
            return Ok(());
        }
        let text = client.text.trim();
        let named = LINK_WENT.iter().any(|words| text.contains(words));
        if !named || !self.link_went(&client)? {
            bail!(
                "usb4ctl bench failed for no reason that it may fail for: {}\n{text}",
                Output::silent(end)
            );
        }
        self.broken += 1;
        self.broken_at = Some(Instant::now());
        // It may be in the middle of the run that has failed.
        self.end_server()
    }

    fn end_server(&mut self) -> Result<()> {
        self.server.take().map_or(Ok(()), Server::end)
    }

    fn look(&mut self, span: Duration) -> Result<()> {
        if self.client.is_none() {
            if !self.linked() && self.broken_at.is_some_and(|at| at.elapsed() < LINK) {
                // Consoles are read by threads of their own.
                std::thread::sleep(span.min(Duration::from_millis(20)));
                return Ok(());
            }
            self.start()?;
        }
        let Some(mut client) = self.client.take() else {
            return Ok(());
        };
        match client.running.said(span)? {
            Said::Output(bytes) => client.text.push_str(&String::from_utf8_lossy(&bytes)),
            Said::End(end) => return self.ended(client, end),
            Said::Nothing if client.began.elapsed() > RUN => {
                bail!("usb4ctl bench hangs\n{}", client.text)
            }
            Said::Nothing => {}
        }
        self.client = Some(client);
        Ok(())
    }

    /// Waits until every operation has worked in a run that began after now.
    fn heals(&mut self) -> Result<()> {
        let deadline = Instant::now() + RUN + SETTLE;
        let wanted = self.whole + 1 + u32::try_from(OPERATIONS.len()).unwrap_or(u32::MAX);
        while self.whole < wanted {
            if Instant::now() > deadline {
                bail!("it does not heal: {} of {wanted} runs whole", self.whole);
            }
            self.go_on(Duration::from_millis(100))?;
        }
        match self.client.take() {
            Some(client) => {
                client.running.signal(SIGKILL)?;
                client.running.wait(SETTLE).map(drop)
            }
            None => Ok(()),
        }
    }
}

impl Traffic for Ring<'_> {
    fn go_on(&mut self, span: Duration) -> Result<()> {
        let end = Instant::now() + span;
        loop {
            interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.look(left.min(Duration::from_millis(100)))?;
        }
    }

    fn reload(&mut self, guest: usize) -> Result<()> {
        if let Some(client) = self.client.take() {
            client.running.signal(SIGKILL)?;
            client
                .running
                .wait(SETTLE)
                .context("usb4ctl bench cannot be ended")?;
        }
        self.end_server()?;
        let guest = self.guests[guest];
        guest
            .sh_for(
                "rmmod usb4_rdma && modprobe -r thunderbolt && modprobe usb4_rdma",
                2 * SETTLE,
            )
            .map(drop)
    }

    fn after_round(&mut self, _: &mut Emulator) -> Result<()> {
        Ok(())
    }
}
