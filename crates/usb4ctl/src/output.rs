//! Standard output that may be closed or full, an error like any other, and standard error, where that must not matter.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use usb4_ring::EpAddr;

/// Standard output cannot be written.
#[derive(Debug)]
pub(crate) struct Unwritable(io::Error);

impl Unwritable {
    /// Its reader has gone: nothing to tell anybody.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for Unwritable {}

/// Prints a line at once.
///
/// # Errors
///
/// [`Unwritable`].
pub(crate) fn line(text: impl fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    Ok(writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(Unwritable)?)
}

/// Prints a line to standard error. If that cannot be written, there is nobody to tell.
pub(crate) fn remark(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a server's address, alone for programs; people are told what to do with it.
///
/// # Errors
///
/// [`Unwritable`].
pub(crate) fn announce(command: &str, address: &EpAddr) -> Result<()> {
    line(address)?;
    if io::stdout().is_terminal() {
        remark(format_args!("at the other end: usb4ctl {command} {address}"));
    }
    Ok(())
}
