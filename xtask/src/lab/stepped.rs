//! `usb4ctl bench --by-step` in a guest, which waits for its cue before and after what it measures.

use super::agent::{Output, Running, Said};
use super::session::Guest;
use crate::interrupt;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::{Duration, Instant};

/// One that runs.
pub(super) struct Stepped<'a> {
    pub(super) running: Running<'a>,
    /// What it has said and nobody has looked at.
    said: String,
    deadline: Instant,
}

impl<'a> Stepped<'a> {
    /// Starts it. `limit` is for everything that is waited for here.
    pub(super) fn start(guest: &'a Guest, words: &[&str], limit: Duration) -> Result<Self> {
        Ok(Self {
            running: guest.start(words)?,
            said: String::new(),
            deadline: Instant::now() + limit,
        })
    }

    /// Waits for more of what it says. Its end is an error but for what is returned.
    fn more(&mut self) -> Result<Option<Output>> {
        interrupt::check()?;
        match self.running.said(Duration::from_millis(100))? {
            Said::Output(bytes) => self.said.push_str(&String::from_utf8_lossy(&bytes)),
            Said::End(end) => return Ok(Some(Output::silent(end))),
            Said::Nothing if Instant::now() > self.deadline => {
                bail!("it hangs; it has said {:?}", self.said)
            }
            Said::Nothing => {}
        }
        Ok(None)
    }

    /// Waits for a line that begins so, and returns what comes after that.
    pub(super) fn until(&mut self, begin: &str) -> Result<String> {
        loop {
            while let Some((line, rest)) = self.said.split_once('\n') {
                let found = line.strip_prefix(begin).map(str::to_string);
                self.said = rest.to_string();
                if let Some(found) = found {
                    return Ok(found);
                }
            }
            if let Some(end) = self.more()? {
                bail!("{end}\n{}", self.said);
            }
        }
    }

    /// Gives it its cue.
    pub(super) fn go_on(&self) -> Result<()> {
        self.running.write(b"\n")
    }

    /// Waits for its end, before which it prints its report.
    pub(super) fn report(&mut self) -> Result<Value> {
        let end = loop {
            if let Some(end) = self.more()? {
                break end;
            }
        };
        if !end.ok() {
            bail!("{end}\n{}", self.said);
        }
        let report = self.said.find('{').and_then(|at| self.said.get(at..));
        serde_json::from_str(report.unwrap_or_default()).with_context(|| format!("no report: {}", self.said))
    }
}
