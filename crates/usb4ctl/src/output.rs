//! Standard output that may be closed or full: an error like any other, not a panic.

use std::fmt;
use std::io::{self, Write};

use anyhow::Result;

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
