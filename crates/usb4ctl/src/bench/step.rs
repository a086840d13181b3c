//! Stopping before and after what is measured.

use std::io::stdin;

use anyhow::{Context, Result, ensure};

use crate::output::line;

/// Lets whoever counts elsewhere, such as in a kernel or an emulator, do so for the measured part alone.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) by_step: bool,
}

impl Step {
    /// What comes now is measured.
    ///
    /// # Errors
    ///
    /// Nobody is there any more.
    pub(super) fn ready(self) -> Result<()> {
        if self.by_step {
            said("ready".to_string())?;
        }
        Ok(())
    }

    /// `messages` were measured.
    ///
    /// # Errors
    ///
    /// As [`Step::ready`].
    pub(super) fn done(self, messages: u64) -> Result<()> {
        if self.by_step {
            said(format!("done {messages}"))?;
        }
        Ok(())
    }
}

fn said(what: String) -> Result<()> {
    line(what)?;
    let mut answer = String::new();
    let read = stdin().read_line(&mut answer);
    let any = read.context("wait for a line of standard input")? != 0;
    ensure!(any, "standard input has ended before the benchmark");
    Ok(())
}
