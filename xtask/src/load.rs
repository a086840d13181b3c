//! How much of the machine other work had while something was measured.

use anyhow::{Context, Result};
use std::fs;

/// Share of the processors' time that others may have before figures mean little.
const QUIET: f64 = 0.1;

/// Processor time spent since the machine and this process began, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    total: u64,
    busy: u64,
    /// By this process and the children it has waited for.
    own: u64,
}

impl Load {
    /// Now.
    pub(crate) fn now() -> Result<Load> {
        let machine = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let own = fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
        Load::parse(&machine, &own).context("/proc/stat is not as expected")
    }

    fn parse(machine: &str, own: &str) -> Option<Load> {
        // "cpu user nice system idle iowait irq softirq steal ...", the whole machine in the first line.
        let ticks = machine.lines().next()?.split_ascii_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = ticks.map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let [_, _, _, idle, waiting, ..] = ticks[..] else {
            return None;
        };
        let total: u64 = ticks.iter().sum();
        // After the command name: state is the first field; utime, stime, cutime, cstime are the 12th to 15th.
        let mut fields = own.rsplit_once(") ")?.1.split_ascii_whitespace().skip(11);
        let mut own = 0;
        for _ in 0..4 {
            own += fields.next()?.parse::<u64>().ok()?;
        }
        Some(Load {
            total,
            busy: total - idle - waiting,
            own,
        })
    }

    /// What share of the processors' time others have had since, the hypervisor's other guests included.
    fn others_until(self, end: Load) -> f64 {
        let busy = end.busy.saturating_sub(self.busy);
        let others = busy.saturating_sub(end.own.saturating_sub(self.own));
        others as f64 / end.total.saturating_sub(self.total).max(1) as f64
    }

    /// If others have had too much since for figures to mean anything: how much, as a sentence's end. Says so, too.
    pub(crate) fn warn(self) -> Result<Option<String>> {
        let others = self.others_until(Load::now()?);
        if others <= QUIET {
            return Ok(None);
        }
        let percent = others * 100.0;
        say!(
            "BUSY MACHINE: other work had {percent:.0} % of the processors meanwhile; these figures mean little."
        );
        Ok(Some(format!("busy machine, {percent:.0} % other work")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "17 (a ) b) R 1 1 1 0 -1 0 0 0 0 0 10 20 30 40 20 0 1 0 99";

    #[test]
    fn the_others_are_what_is_neither_idle_nor_ours() {
        let before = Load::parse("cpu  10 0 10 500 80 0 0 0 0 0\ncpu0 1\n", OWN).unwrap();
        assert_eq!((before.total, before.busy, before.own), (600, 20, 100));
        let after = Load {
            total: 800,
            busy: 170,
            own: 200,
        };
        assert_eq!(before.others_until(after), 0.25);
    }

    #[test]
    fn a_table_that_is_another_is_no_load() {
        assert_eq!(Load::parse("cpu 1 2\n", OWN), None);
        assert_eq!(Load::parse("cpu  1 2 3 4 5 6 7 8\n", "17 (a) R 1"), None);
    }
}
