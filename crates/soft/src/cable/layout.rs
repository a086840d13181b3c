//! Where things are in a side's shared region.
//!
//! Each side creates one region and alone writes to it; the neighbour maps it read-only. So a direction of
//! the cable is spread over both regions: A's frames and TX ring are in A's region, the completions that hand
//! A's slots back are in B's.

use usb4_wire::FRAME_MAX;

use crate::memory::PAGE;

/// Frame slots of a side, a power of two. Both sides must agree. 256 slots are 1 MiB; a stream uses them
/// most recently freed first, so that those in use stay in the second-level cache.
pub(crate) const SLOTS: usize = 256;

/// Bytes of a frame slot.
pub(crate) const SLOT: usize = FRAME_MAX;

/// Word: odd while the region's owner sleeps and must be woken through its doorbell.
pub(crate) const WAKEUP: usize = 0;

/// Ring of [`SLOTS`] words: frames the owner has sent.
pub(crate) const TX_RING: usize = 256;

/// Ring of [`SLOTS`] words: the neighbour's slots the owner has done with.
pub(crate) const DONE_RING: usize = TX_RING + SLOTS * 8 + 256;

/// The frame slots.
pub(crate) const FRAMES: usize = 2 * PAGE;

/// Bytes of a region.
pub(crate) const REGION: usize = FRAMES + SLOTS * SLOT;

const _: () = assert!(SLOTS.is_power_of_two() && SLOTS <= 1024);
const _: () = assert!(DONE_RING + SLOTS * 8 <= FRAMES);

/// Changes with anything two processes of different builds could disagree about.
pub(crate) const VERSION: u32 = 1;
