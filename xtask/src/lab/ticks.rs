//! How fast the guests' time stamp counters run.
//!
//! Under emulation a guest reads this machine's (QEMU: `cpu_get_host_ticks`), and would measure it against a timer that
//! QEMU's main loop keeps. On a busy machine it now and then gets a seventh of the truth, and its clock is as much too
//! fast. So it is told.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long is measured. Looks are some microseconds wide at worst, so this is good to a part in ten thousand.
const SPAN: Duration = Duration::from_millis(50);

/// Looks of which the closest counts.
const LOOKS: u32 = 20;

/// Ticks in a millisecond, where guests have this machine's counter.
pub(super) fn per_millisecond() -> Option<u64> {
    static MEASURED: OnceLock<Option<u64>> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let origin = Instant::now();
        let (began, from) = look(origin)?;
        std::thread::sleep(SPAN);
        let (ended, to) = look(origin)?;
        let ticks = u128::from(to.checked_sub(from)?) * 1_000_000;
        u64::try_from(ticks.checked_div((ended - began).as_nanos())?).ok()
    })
}

/// The counter, and when it was read.
fn look(origin: Instant) -> Option<(Duration, u64)> {
    let looks = (0..LOOKS).filter_map(|_| {
        let before = origin.elapsed();
        let ticks = counter()?;
        let width = origin.elapsed() - before;
        Some((width, before + width / 2, ticks))
    });
    let (_, at, ticks) = looks.min()?;
    Some((at, ticks))
}

#[cfg(target_arch = "x86_64")]
fn counter() -> Option<u64> {
    // SAFETY: all x86-64 processors have the instruction, and Linux lets programs use it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_measured_once_and_runs_at_the_speed_of_a_processor() {
        let measured = per_millisecond();
        assert_eq!(measured, per_millisecond());
        if cfg!(target_arch = "x86_64") {
            // From 500 MHz to 10 GHz.
            assert!(measured.is_some_and(|ticks| (500_000..10_000_000).contains(&ticks)));
        }
    }
}
