//! The receiving half of a rail: what has arrived, and when the peer has to be told.

use usb4_wire::{ACK_BITMAP_LEN, AckBlock};

use crate::Nanos;

/// Frames that wait for an acknowledgement at most (design, "Acks").
const ACK_EVERY: u16 = 16;

/// Full acknowledgement blocks that can wait to be sent. Homes handle up to 64 frames before they post, and a
/// blocked TX ring may hold acknowledgements back for longer; what a block has no bit for counts as lost at the
/// sender, so blocks queue up. 16 cover a ring of 1024.
const BACKLOG: usize = 16;

/// The time of what is due whatever the time is.
pub(crate) const DUE: Nanos = 0;

/// The time of what is not going to be due.
pub(crate) const NEVER: Nanos = Nanos::MAX;

/// When something becomes due that is not due yet, or [`NEVER`].
#[inline(always)]
pub(crate) fn not_due(at: Nanos) -> Nanos {
    if at == DUE { NEVER } else { at }
}

/// Whether a frame is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is, and counts as received from now on.
    Accept,
    /// Its packet number is not above the largest: a rail is first in, first out, so it is a repetition.
    Duplicate,
}

/// Acknowledgement state of one rail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiver {
    current: AckBlock,
    /// Largest packet number a block sent or queued covers.
    reported: u64,
    /// Packets that want an acknowledgement and have none yet.
    pending: u16,
    /// When the oldest pending packet has waited long enough; [`DUE`] or [`NEVER`].
    due_at: Nanos,
    max_delay: Nanos,
    backlog: Backlog,
}

impl Default for Receiver {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Receiver {
    pub(crate) fn new(max_delay: Nanos) -> Self {
        Self {
            current: AckBlock::default(),
            reported: 0,
            pending: 0,
            due_at: NEVER,
            max_delay,
            backlog: Backlog::default(),
        }
    }

    /// Whether packet `number` would be accepted.
    #[inline]
    pub(crate) fn is_new(&self, number: u64) -> bool {
        number > self.current.largest
    }

    /// Notes that packet `number` is safely held.
    #[inline(always)]
    pub(crate) fn on_received(&mut self, now: Nanos, number: u64, elicits: bool, ack_now: bool) -> Verdict {
        let AckBlock { largest, bitmap } = self.current;
        if number <= largest {
            return Verdict::Duplicate;
        }
        // The oldest packet not reported yet must still have a bit in the block to come.
        if number.wrapping_sub(self.reported) > ACK_BITMAP_LEN.wrapping_add(1) {
            self.report_later();
        }
        if number.wrapping_sub(largest) == 1 {
            self.current.bitmap = bitmap << 1 | u64::from(largest != 0);
        } else {
            self.skip_to(number);
        }
        self.current.largest = number;
        if elicits {
            if self.due_at == NEVER {
                self.due_at = now.saturating_add(self.max_delay);
            }
            self.pending = self.pending.saturating_add(1);
        }
        if ack_now || self.pending >= ACK_EVERY {
            self.due_at = DUE;
        }
        Verdict::Accept
    }

    /// What has been received so far gets a block of its own, which waits to be sent.
    #[inline(never)]
    fn report_later(&mut self) {
        if self.pending > 0 {
            self.backlog.push(self.current);
            self.pending = 0;
            if self.due_at != DUE {
                self.due_at = NEVER;
            }
        }
        self.reported = self.current.largest;
    }

    /// Packets before `number` have not arrived. A gap is reported whatever arrives behind it: the lost packet may
    /// have wanted an acknowledgement.
    #[cold]
    fn skip_to(&mut self, number: u64) {
        let AckBlock { largest, bitmap } = self.current;
        let step = number.wrapping_sub(largest);
        self.current.bitmap = shift_left(bitmap, step);
        if largest != 0 {
            self.current.bitmap |= shift_left(1, step.wrapping_sub(1));
        }
        self.due_at = DUE;
    }

    /// The block for a frame that is about to be sent; from here on it counts as sent.
    #[inline(always)]
    pub(crate) fn take_block(&mut self) -> Option<AckBlock> {
        if let Some(block) = self.backlog.pop() {
            return Some(block);
        }
        self.reported = self.current.largest;
        self.pending = 0;
        self.due_at = NEVER;
        (self.current.largest != 0).then_some(self.current)
    }

    /// Whether an acknowledgement has to be sent even if nothing else is.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.due_at <= now || !self.backlog.is_empty()
    }

    /// When one becomes due that is not due yet, or [`NEVER`].
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        not_due(self.due_at)
    }

    pub(crate) fn on_timer(&mut self, now: Nanos) {
        if self.due_at <= now {
            self.due_at = DUE;
        }
    }
}

/// Blocks that wait to be sent, oldest first.
#[derive(Clone, Copy, Debug, Default)]
struct Backlog {
    blocks: [AckBlock; BACKLOG],
    first: usize,
    count: usize,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends; when full, the oldest goes: its packets are sent again, which costs time but no correctness.
    fn push(&mut self, block: AckBlock) {
        if self.count == BACKLOG {
            self.pop();
        }
        let at = self.first.wrapping_add(self.count) % BACKLOG;
        if let Some(slot) = self.blocks.get_mut(at) {
            *slot = block;
            self.count = self.count.wrapping_add(1);
        }
    }

    fn pop(&mut self) -> Option<AckBlock> {
        if self.count == 0 {
            return None;
        }
        let block = self.blocks.get(self.first).copied();
        self.first = self.first.wrapping_add(1) % BACKLOG;
        self.count = self.count.wrapping_sub(1);
        block
    }
}

/// `value << by`, 0 once everything is shifted out.
#[inline]
fn shift_left(value: u64, by: u64) -> u64 {
    u32::try_from(by)
        .ok()
        .and_then(|by| value.checked_shl(by))
        .unwrap_or(0)
}

#[cfg(test)]
#[path = "ack_tests.rs"]
mod tests;
