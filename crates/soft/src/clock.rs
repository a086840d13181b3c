//! The home's clock.

use usb4_engine::Nanos;

/// Nanoseconds on the machine's monotonic clock.
#[inline]
pub(crate) fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Both parts are never negative on this clock.
    let (seconds, nanos) = (time.tv_sec as u64, time.tv_nsec as u64);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}
