//! What guests' kernel logs say of when, on one clock.
//!
//! A guest's log has its own time. A line that it is told to write comes between two looks at this machine's clock, so
//! the difference of the two clocks is known as well as these looks are close.

use crate::lab::session::Guest;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// How often the clocks are compared: the closest looks count.
const LOOKS: usize = 7;

/// The clock of a guest's kernel log, against this machine's.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    /// What the log said when this machine's clock said `origin`, in seconds.
    offset: f64,
    /// By how much that may be wrong, either way.
    pub(super) error: f64,
}

impl Clock {
    /// Compares the clocks. `origin` is where times of [`Clock::time`] count from.
    pub(super) fn compare(guest: &Guest, origin: Instant) -> Result<Clock> {
        let mut best: Option<Clock> = None;
        for look in 0..LOOKS {
            let from = guest.console.len();
            let mark = format!("lab: look {look}");
            let before = origin.elapsed().as_secs_f64();
            guest.sh(&format!("echo '<6>{mark}' > /dev/kmsg"))?;
            let after = origin.elapsed().as_secs_f64();
            let at = guest.console.wait_end(&mark, from, Duration::from_secs(60))?;
            let clock = Clock {
                offset: stamp_at(guest, at)? - (before + after) / 2.0,
                error: (after - before) / 2.0,
            };
            if best.is_none_or(|known| clock.error < known.error) {
                best = Some(clock);
            }
        }
        best.context("the clocks were not compared")
    }

    /// When line `number` of a guest's console was written, in seconds from `origin`.
    pub(super) fn time(&self, guest: &Guest, number: usize) -> Result<f64> {
        Ok(stamp_at(guest, number)? - self.offset)
    }
}

fn stamp_at(guest: &Guest, number: usize) -> Result<f64> {
    let lines = guest.console.lines(number);
    let line = lines.first().context("the console has no such line")?;
    stamp(line).with_context(|| format!("no time in {line:?}"))
}

/// The time that begins a line, as in `[    1.266071][   T12] usb4_rdma: ...`.
fn stamp(line: &str) -> Option<f64> {
    let (stamp, _) = line.split_once('[')?.1.split_once(']')?;
    stamp.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_line_is_read() {
        let found = "[    5.266071] thunderbolt 0-1: new host found, vendor=0x1 device=0x1";
        assert_eq!(stamp(found), Some(5.266_071));
        assert_eq!(stamp("[ 1234.500000][  T12] usb4_rdma: up"), Some(1234.5));
        assert_eq!(stamp("lab: the agent has ended"), None);
        assert_eq!(stamp("[x] y"), None);
    }
}
