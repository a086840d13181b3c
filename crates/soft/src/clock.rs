//! The home's clock.

use usb4_engine::Nanos;

/// Nanoseconds on the machine's monotonic clock.
#[inline]
pub(crate) fn now() -> Nanos {
    // Through libc, which goes without a system call and works under debuggers that hide the vDSO.
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
