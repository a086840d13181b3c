//! Checked bytes between two guests, until they are to end or the link goes.

use super::net::SETTLE;
use super::rdma::Server;
use crate::lab::agent::{Output, Running, SIGKILL, Said};
use crate::lab::session::Guest;
use crate::lab::stepped::Stepped;
use anyhow::{Context, Result, bail};
use std::time::Duration;

/// What a program says whose link went: the statuses LINK_DOWN and GONE; FLUSHED of a receive whose message was arriving
/// (`Link::fail` in crates/engine).
const LINK_WENT: &[&str] = &["the peer is gone", "Receive ended with Flushed"];

/// Frames after which clients are in the middle of it: past the first of them, before which they may have nothing outstanding.
pub(super) const MOVING: u64 = 5000;

/// A client that sends to a server without end. The server checks what arrives.
pub(super) struct Load<'a> {
    server: Server<'a>,
    client: Running<'a>,
}

impl<'a> Load<'a> {
    /// Starts both. Messages are of `size` bytes.
    pub(super) fn start(from: &'a Guest, to: &'a Guest, size: u32) -> Result<Load<'a>> {
        // A peer may be stopped for a minute.
        let server = Server::start(to, "bench --patience 120")?;
        let command = format!(
            "usb4ctl bench --patience 120 --min {size} --max {size} --only bandwidth --megabytes 1000000 --by-step {}",
            server.address
        );
        let words: Vec<&str> = command.split(' ').collect();
        // Whatever another client does meanwhile: until here it has nothing outstanding but what the server is to send, of
        // which a link that goes does not tell it.
        let mut client = Stepped::start(from, &words, SETTLE)?;
        client.until("ready").context(command)?;
        client.go_on()?;
        let client = client.running;
        Ok(Load { server, client })
    }

    /// Ends both.
    ///
    /// # Errors
    /// One of them has ended by itself, or has complained.
    pub(super) fn end(mut self) -> Result<()> {
        for (whose, running) in [("client", &mut self.client), ("server", &mut self.server.running)] {
            loop {
                match running.said(Duration::ZERO)? {
                    Said::Nothing => break,
                    Said::Output(bytes) => {
                        let text = String::from_utf8_lossy(&bytes);
                        if text.contains("usb4ctl bench: ") {
                            bail!("the {whose} says: {text}");
                        }
                    }
                    Said::End(end) => bail!("the {whose} has ended: {}", Output::silent(end)),
                }
            }
        }
        self.client.signal(SIGKILL)?;
        self.client.wait(SETTLE)?;
        self.server.end()
    }

    /// Waits for the client to fail, because the link has gone; returns what it says. The server is ended.
    pub(super) fn fails(self, limit: Duration) -> Result<String> {
        let ended = self.client.wait(limit).context("work on a link that has gone")?;
        let words = String::from_utf8_lossy(&ended.stderr).trim().to_string();
        if ended.ok() || !LINK_WENT.iter().any(|part| words.contains(part)) {
            bail!("with the link gone the client says: {ended}");
        }
        self.server.end()?;
        Ok(words.lines().last().unwrap_or_default().to_string())
    }
}
