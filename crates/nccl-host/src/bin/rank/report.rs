//! What a rank reports.

use serde::Serialize;
use std::io::Write;

/// One line of a report.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// NCCL is loaded.
    Loaded {
        /// This rank.
        rank: usize,
        /// NCCL's release.
        version: String,
        /// CUDA functions that work.
        implemented: usize,
        /// CUDA functions that do not.
        missing: usize,
        /// Kernels in the library.
        kernels: usize,
        /// Kernels of this release can be run.
        emulated: bool,
    },
    /// A communicator is up.
    Communicator {
        /// Its ranks.
        ranks: usize,
        /// How long that took.
        seconds: f64,
    },
    /// An operation was run and its data checked.
    Operation {
        /// Its name.
        what: String,
        /// Bytes of a rank's buffer.
        bytes: usize,
    },
    /// An operation was timed.
    Timed {
        /// Its name.
        what: String,
        /// Bytes of a rank's buffer.
        bytes: usize,
        /// How often it ran.
        runs: usize,
        /// Microseconds of one, the mean.
        micros: f64,
        /// Of these, what the emulated kernel was busy.
        busy: f64,
    },
    /// An error that was meant to happen was seen.
    Error {
        /// Seconds after what caused it.
        seconds: f64,
        /// NCCL's number.
        code: i32,
        /// NCCL's words.
        text: String,
    },
    /// A communicator was aborted.
    Aborted {
        /// How long that took.
        seconds: f64,
    },
    /// Everything was as it should be.
    Done {
        /// Operations with data checked.
        operations: usize,
        /// Bytes checked.
        bytes: usize,
    },
    /// Something was not.
    Failed {
        /// What.
        text: String,
    },
}

/// Writes a line.
pub(crate) fn say(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        // Who started this rank may have gone; the exit status still tells.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}
