//! What moves over the shared words of a cable: ring cursors and the wake-up word. Knows nothing of mappings,
//! so that loom can explore it.

mod cursor;
mod sync;
mod wakeup;

pub(crate) use cursor::{Consumer, Hostile, Producer};
pub(crate) use wakeup::{Sleeper, Waker};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
