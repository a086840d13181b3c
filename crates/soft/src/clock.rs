//! The home's clock: nanoseconds on the machine's monotonic clock.
//!
//! It is read once or twice per message. Where the kernel itself keeps time by the processor's time stamp counter,
//! this clock does so too after a short calibration, which halves its cost.

use usb4_engine::Nanos;

/// Now.
#[inline]
pub(crate) fn now() -> Nanos {
    #[cfg(target_arch = "x86_64")]
    if let Some(now) = counter::now() {
        return now;
    }
    system()
}

/// `CLOCK_MONOTONIC`: through libc, which goes without a system call and works under debuggers that hide the vDSO.
#[inline]
fn system() -> Nanos {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is written to, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    // Both parts are never negative on this clock.
    let (seconds, nanos) = (time.tv_sec as u64, time.tv_nsec as u64);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}

#[cfg(target_arch = "x86_64")]
mod counter {
    //! The time stamp counter.

    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use usb4_engine::Nanos;

    use super::system;

    /// How long the calibration takes: with samples good to 50 ns, an error of 3 ppm.
    const CALIBRATION: Nanos = 20_000_000;

    /// Which clock the kernel keeps time by: "tsc" means that it has found the counters of all processors constant,
    /// and in step.
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

    /// Nanoseconds per tick, in units of 2^-32; 0 = not calibrated, or not usable.
    static SCALE: AtomicU64 = AtomicU64::new(0);
    /// The counter, and the time then, that others are reckoned from. Written once, before `SCALE`.
    static TICKS: AtomicU64 = AtomicU64::new(0);
    static NANOS: AtomicU64 = AtomicU64::new(0);

    #[inline]
    pub(super) fn now() -> Option<Nanos> {
        let scale = SCALE.load(Ordering::Acquire);
        if scale == 0 {
            return calibrate();
        }
        let ticks = ticks().checked_sub(TICKS.load(Ordering::Relaxed));
        let Some(ticks) = ticks else { return give_up() };
        let since = (u128::from(ticks) * u128::from(scale)) >> 32;
        Some(
            NANOS
                .load(Ordering::Relaxed)
                .wrapping_add(u64::try_from(since).unwrap_or(0)),
        )
    }

    #[inline]
    fn ticks() -> u64 {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    /// The first samples, if the counter can be used.
    fn start() -> Option<(u64, Nanos)> {
        static START: OnceLock<Option<(u64, Nanos)>> = OnceLock::new();
        *START.get_or_init(|| {
            let source = std::fs::read_to_string(SOURCE).ok()?;
            (source.trim() == "tsc").then(sample)
        })
    }

    /// Counter and clock at the same moment, as nearly as a few tries give.
    fn sample() -> (u64, Nanos) {
        let once = || {
            let before = ticks();
            let nanos = system();
            let after = ticks();
            (
                after.wrapping_sub(before),
                (before.wrapping_add(after.wrapping_sub(before) / 2), nanos),
            )
        };
        let best = (0..8).map(|_| once()).min_by_key(|(width, _)| *width);
        best.map_or((0, 0), |(_, sample)| sample)
    }

    /// Calibrates once enough time has passed since the first call. Until then there is no time from here.
    #[cold]
    fn calibrate() -> Option<Nanos> {
        static ONCE: OnceLock<()> = OnceLock::new();
        let (first_ticks, first) = start()?;
        if ONCE.get().is_some() || system().saturating_sub(first) < CALIBRATION {
            return None;
        }
        ONCE.get_or_init(|| {
            let (ticks, nanos) = sample();
            let passed = ticks.wrapping_sub(first_ticks);
            let scale = (u128::from(nanos.saturating_sub(first)) << 32) / u128::from(passed.max(1));
            TICKS.store(ticks, Ordering::Relaxed);
            NANOS.store(nanos, Ordering::Relaxed);
            SCALE.store(u64::try_from(scale).unwrap_or(0), Ordering::Release);
        });
        None
    }

    /// The counter has gone back, as it may when the machine has slept.
    #[cold]
    fn give_up() -> Option<Nanos> {
        SCALE.store(0, Ordering::Relaxed);
        None
    }

    #[cfg(test)]
    pub(super) fn is_calibrated() -> bool {
        SCALE.load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_step_with_the_system() {
        let start = system();
        let mut last = now();
        while system() - start < 200_000_000 {
            let (before, now, after) = (system(), now(), system());
            // 3 ppm of the test's time, the width of a sample, and what preemption between two reads may cost is
            // outside of before and after anyway.
            assert!(
                now + 5_000 > before && now < after + 5_000,
                "{before} {now} {after}"
            );
            assert!(now + 1_000 > last, "it goes back: {last} {now}");
            last = now;
        }
        let source =
            std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        #[cfg(target_arch = "x86_64")]
        assert_eq!(
            counter::is_calibrated(),
            source.is_ok_and(|source| source.trim() == "tsc")
        );
        #[cfg(not(target_arch = "x86_64"))]
        drop(source);
    }
}
