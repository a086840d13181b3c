//! The client's end of a completion queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rdma_core_sys::{IBV_WC_RETRY_EXC_ERR, ibv_wc};
use usb4_ring::raw::{
    ARMED, CONSUMER_WORD, CQE_WORDS, Consumer, Cqe, ENTRIES_WORD, FLAGS_WORD, Hostile, PRODUCER_WORD,
    QueueMemory,
};

use crate::wc;

/// In a completion queue's flags: the client wants to be woken for what was sent solicited, and for failures.
const ARMED_SOLICITED: u64 = 2;

/// In place of an operation's code: this entry is not to be seen. It is written here, by nobody else.
const GONE: u8 = 0xff;

/// Completions, in the order in which the device has put them there.
#[derive(Debug)]
pub(crate) struct Completions {
    queue: Consumer<QueueMemory, Cqe>,
    memory: QueueMemory,
    /// Sends that came to nothing because of their link, on any queue of the context.
    failures: Arc<AtomicU32>,
    /// The one that an extended queue's `read_*` tell of.
    pub(crate) current: ibv_wc,
}

impl Completions {
    /// Of a new queue; none if the memory is too small.
    pub(crate) fn new(memory: QueueMemory, depth: u32, failures: Arc<AtomicU32>) -> Option<Self> {
        Some(Self {
            queue: Consumer::new(memory.clone(), depth).ok()?,
            memory,
            failures,
            current: ibv_wc::default(),
        })
    }

    /// Takes the next one. The device learns of it with [`Completions::release`].
    #[inline]
    pub(crate) fn take(&mut self) -> Result<Option<ibv_wc>, Hostile> {
        while let Some(entry) = self.queue.pop()? {
            if entry.op != GONE {
                let wc = wc::completion(&entry);
                if wc.status == IBV_WC_RETRY_EXC_ERR {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(Some(wc));
            }
        }
        Ok(None)
    }

    /// Tells the device that the places of those taken are free.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.queue.release();
    }

    /// Has those of queue pair `qpn` that nobody has taken not be seen any more: it is reset, or no more. Everything
    /// taken must have been released.
    pub(crate) fn forget(&self, qpn: u32) {
        let word = |at: usize| self.memory.get(at);
        let index = |at| word(at).map_or(0, |word| word.load(Ordering::Acquire));
        let (first, end) = (index(CONSUMER_WORD), index(PRODUCER_WORD));
        let depth = u64::from(self.queue.depth());
        // Whatever the indices are, there are no more than its entries.
        for at in (0..end.wrapping_sub(first).min(depth)).map(|at| first.wrapping_add(at)) {
            let slot = usize::try_from(at % depth).unwrap_or(0);
            let place = ENTRIES_WORD + slot * CQE_WORDS;
            let Some(words) = self.memory.get(place..place + CQE_WORDS) else {
                return;
            };
            let [.., kind, _, who] = words else { return };
            if who.load(Ordering::Relaxed) >> 32 == u64::from(qpn) {
                // The first byte of the word is the operation's code.
                kind.fetch_or(u64::from(GONE), Ordering::Relaxed);
            }
        }
    }
}

/// Asks for an event when something is put into the queue in `memory`: anything, or what was sent solicited. Who wants
/// anything already goes on to.
pub(crate) fn arm(memory: &QueueMemory, solicited: bool) {
    let wanted = if solicited { ARMED_SOLICITED } else { ARMED };
    if let Some(flags) = memory.get(FLAGS_WORD) {
        flags.fetch_or(wanted, Ordering::Release);
        // Before the caller's next look at the queue; pairs with the device's between its entry and its look at the flags.
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use usb4_ring::raw::{CqeStatus, Op, Producer};

    use super::*;
    use crate::fake::{memory, of};

    fn entry(user_data: u64, qpn: u32) -> Cqe {
        let entry = Cqe {
            user_data,
            op: Op::Write.code(),
            ..Cqe::default()
        };
        of(qpn, &entry)
    }

    fn ids(completions: &mut Completions) -> Vec<u64> {
        let mut ids = vec![];
        while let Some(wc) = completions.take().unwrap() {
            ids.push(wc.wr_id);
        }
        completions.release();
        ids
    }

    #[test]
    fn those_of_a_queue_pair_that_was_reset_are_not_seen_and_later_ones_are() {
        let memory = memory::<Cqe>(4);
        let mut device = Producer::<_, Cqe>::new(memory.clone(), 4).unwrap();
        let mut client = Completions::new(memory, 4, Arc::default()).unwrap();
        // Around the end of the queue.
        for (first, round) in [(0, 0), (10, 1), (20, 2)] {
            for (at, qpn) in [(0, 5), (1, 6), (2, 5)] {
                device.push(&entry(first + at, qpn)).unwrap();
            }
            device.publish();
            client.forget(5);
            device.push(&entry(first + 3, 5)).unwrap();
            device.publish();
            assert_eq!(ids(&mut client), [first + 1, first + 3], "round {round}");
        }
        assert_eq!(ids(&mut client), []);
    }

    #[test]
    fn indices_that_make_no_sense_harm_nobody() {
        let memory = memory::<Cqe>(4);
        let mut client = Completions::new(memory.clone(), 4, Arc::default()).unwrap();
        memory[PRODUCER_WORD].store(u64::MAX, Ordering::Relaxed);
        client.forget(5);
        assert!(client.take().is_err());
    }

    #[test]
    fn sends_that_came_to_nothing_are_counted() {
        let (memory, failures) = (memory::<Cqe>(4), Arc::default());
        let mut device = Producer::<_, Cqe>::new(memory.clone(), 4).unwrap();
        let mut client = Completions::new(memory, 4, Arc::clone(&failures)).unwrap();
        for status in [CqeStatus::Ok, CqeStatus::LinkDown, CqeStatus::Access] {
            let entry = Cqe {
                status: status.code(),
                ..entry(1, 5)
            };
            device.push(&entry).unwrap();
        }
        device.publish();
        assert_eq!(ids(&mut client).len(), 3);
        assert_eq!(failures.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn who_wants_any_event_is_not_put_off_with_solicited_ones() {
        let memory = memory::<Cqe>(4);
        let flags = || memory[FLAGS_WORD].load(Ordering::Relaxed);
        arm(&memory, true);
        assert_eq!(flags(), ARMED_SOLICITED);
        arm(&memory, false);
        assert_eq!(flags() & ARMED, ARMED);
        arm(&memory, true);
        assert_eq!(flags() & ARMED, ARMED);
        // The device wakes, and clears.
        let device = Producer::<_, Cqe>::new(memory.clone(), 4).unwrap();
        assert!(device.take_armed());
        assert_eq!(flags(), 0);
    }
}
