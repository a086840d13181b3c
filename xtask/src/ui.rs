//! What a person sees: progress on long work and one verdict at the end.
//!
//! On a terminal a running task is a spinner or a bar that vanishes when it is done; elsewhere it is a plain
//! line when it starts, one a minute while it lasts, and one when it ends.

use indicatif::{ProgressBar, ProgressStyle};
use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Prints a line; see [`say_line`].
macro_rules! say {
    ($($text:tt)*) => { $crate::ui::say_line(format_args!($($text)*)) };
}

/// A line could not be printed.
static UNSAID: AtomicBool = AtomicBool::new(false);

/// Prints a line. Where standard output is closed or full the work goes on and is cleaned up after; only the exit
/// status tells (see [`unsaid`]).
pub(crate) fn say_line(text: fmt::Arguments<'_>) {
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        UNSAID.store(true, Ordering::Relaxed);
    }
}

/// Whether something could not be printed.
pub(crate) fn unsaid() -> bool {
    UNSAID.load(Ordering::Relaxed)
}

/// How a command ended. Printed as the last line: `name: PASS: what was seen`.
pub(crate) struct Verdict {
    pub(crate) pass: bool,
    pub(crate) line: String,
    /// A line of its own after the verdict, for tools that read one.
    pub(crate) closing: Option<String>,
}

impl Verdict {
    pub(crate) fn new(pass: bool, line: impl Into<String>) -> Self {
        Verdict {
            pass,
            line: line.into(),
            closing: None,
        }
    }

    pub(crate) fn fail(line: impl Into<String>) -> Self {
        Verdict::new(false, line)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", if self.pass { "PASS" } else { "FAIL" }, self.line)
    }
}

/// One piece of work that takes more than a moment.
pub(crate) struct Task {
    label: String,
    bar: Option<ProgressBar>,
    started: Instant,
    said: Instant,
}

impl Task {
    /// Shows that `label` has begun. `steps` makes it a bar, `None` a spinner.
    pub(crate) fn start(label: impl Into<String>, steps: Option<u64>) -> Self {
        let label = label.into();
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let (bar, template) = match steps {
                Some(steps) => (ProgressBar::new(steps), "{bar:24} {pos}/{len} {elapsed} {msg}"),
                None => (ProgressBar::new_spinner(), "{spinner} {elapsed} {msg}"),
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(label.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if bar.is_none() {
            say!("{label} ...");
        }
        Task {
            label,
            bar,
            started: now,
            said: now,
        }
    }

    /// Moves a bar on to `position`.
    pub(crate) fn set(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// Called while waiting: away from a terminal it says once a minute that the work goes on.
    pub(crate) fn tick(&mut self) {
        if self.bar.is_none() && self.said.elapsed() >= Duration::from_secs(60) {
            self.said = Instant::now();
            say!("{} ... {}", self.label, seconds(self.started.elapsed()));
        }
    }

    /// Ends the task with what came of it.
    pub(crate) fn done(self, outcome: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        say!("{}: {outcome} ({})", self.label, seconds(self.started.elapsed()));
    }
}

/// `1.2 s` or `3 min 05 s`.
pub(crate) fn seconds(span: Duration) -> String {
    let s = span.as_secs_f64();
    if s < 99.95 {
        format!("{s:.1} s")
    } else {
        format!("{} min {:02} s", span.as_secs() / 60, span.as_secs() % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_say_them() {
        assert_eq!(seconds(Duration::from_millis(1234)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(185)), "3 min 05 s");
    }

    #[test]
    fn a_verdict_says_pass_or_fail_first() {
        assert_eq!(Verdict::new(true, "3 checks").to_string(), "PASS: 3 checks");
        assert_eq!(Verdict::fail("no gcc").to_string(), "FAIL: no gcc");
    }
}
