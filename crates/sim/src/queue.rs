//! Virtual time: events in order of their instant, ties in the order in which they were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use usb4_engine::Nanos;

/// What happens next. Entities are named by their index in the [`crate::World`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The port's NIC has put its current frame on the cable; stale if the rings were reset since.
    TxDone { port: usize, epoch: u32 },
    /// The oldest frame on its way to the port arrives.
    Arrive { port: usize },
    /// A control message reaches the port.
    Control { port: usize, message: usize },
    /// The port's bring-up state machine asked to be woken.
    Bringup { port: usize, epoch: u32 },
    /// The host has set up its side of the path.
    PathsEnabled { port: usize, epoch: u32 },
    /// The host has torn its side of the path down.
    PathsDisabled { port: usize, epoch: u32 },
    /// The link's thread runs.
    Service { link: usize },
    /// The host's watchdog rings the port's doorbell again.
    Rekick { port: usize },
    /// The host's fallback timer finds completions that were written but never seen.
    Unstrand { port: usize },
    /// A timer of the test or workload.
    User { id: u64 },
}

/// The event queue and the clock.
#[derive(Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    scheduled: u64,
    now: Nanos,
}

impl Queue {
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// Schedules `event`; an instant that has passed means now.
    #[inline]
    pub(crate) fn at(&mut self, when: Nanos, event: Event) {
        self.scheduled += 1;
        self.heap
            .push(Reverse((when.max(self.now), self.scheduled, event)));
    }

    /// The instant of the next event.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((when, ..))| *when)
    }

    /// Takes the next event and moves the clock to it.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let Reverse((when, _, event)) = self.heap.pop()?;
        self.now = when;
        Some(event)
    }

    /// Moves the clock on without an event.
    pub(crate) fn advance_to(&mut self, when: Nanos) {
        self.now = self.now.max(when);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_then_of_scheduling() {
        let mut queue = Queue::default();
        for (when, id) in [(30, 1), (10, 2), (30, 3), (20, 4)] {
            queue.at(when, Event::User { id });
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        let ids: Vec<u64> = order
            .iter()
            .map(|e| if let Event::User { id } = e { *id } else { 0 })
            .collect();
        assert_eq!(ids, [2, 4, 1, 3]);
        assert_eq!(queue.now(), 30);
    }
}
