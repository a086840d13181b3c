//! Events: how often one was recorded, and how many of the records are done.

use super::stream::Stream;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// A point in a stream that others can wait for. Clones are the same event.
#[derive(Clone, Default)]
pub struct Event(Arc<Inner>);

#[derive(Default)]
struct Inner {
    counts: Mutex<Counts>,
    reached: Condvar,
}

#[derive(Default)]
struct Counts {
    recorded: u64,
    done: u64,
    /// Streams that wait for a record.
    held: Vec<(u64, Stream)>,
}

impl Event {
    /// An event that was never recorded, which counts as done.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Marks the end of what `stream` holds now.
    pub fn record(&self, stream: &Stream) {
        let mut counts = self.0.counts.lock();
        counts.recorded += 1;
        let mark = counts.recorded;
        drop(counts);
        stream.mark(self.clone(), mark);
    }

    /// Lets what is pushed to `stream` from now on wait for the last record.
    pub fn hold_up(&self, stream: &Stream) {
        let mark = self.0.counts.lock().recorded;
        if mark > 0 {
            stream.wait(self.clone(), mark);
        }
    }

    /// A record is done; adds the streams that have waited for it.
    pub(super) fn reach(&self, mark: u64, released: &mut Vec<Stream>) {
        let mut counts = self.0.counts.lock();
        counts.done = counts.done.max(mark);
        let done = counts.done;
        counts.held.retain(|(mark, stream)| {
            let is_over = *mark <= done;
            if is_over {
                released.push(stream.clone());
            }
            !is_over
        });
        self.0.reached.notify_all();
    }

    /// A record is done.
    pub(super) fn is_reached(&self, mark: u64) -> bool {
        self.0.counts.lock().done >= mark
    }

    /// Unless a record is done, keeps a stream until it is: whether it does.
    pub(super) fn hold(&self, mark: u64, stream: &Stream) -> bool {
        let mut counts = self.0.counts.lock();
        let is_held = counts.done < mark;
        if is_held {
            counts.held.push((mark, stream.clone()));
        }
        is_held
    }

    /// The last record is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let counts = self.0.counts.lock();
        counts.done >= counts.recorded
    }

    /// Waits for the last record.
    pub fn synchronize(&self) {
        let mut counts = self.0.counts.lock();
        let mark = counts.recorded;
        while counts.done < mark {
            self.0.reached.wait(&mut counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_stream_waits_for_an_event_of_another() {
        let (first, second) = (Stream::new(), Stream::new());
        let (go, wait) = mpsc::channel::<()>();
        let (say, hear) = mpsc::channel();
        let event = Event::new();
        assert!(event.is_done());
        let early = say.clone();
        first.push(move || {
            wait.recv().unwrap();
            early.send("first").unwrap();
        });
        event.record(&first);
        event.hold_up(&second);
        second.push(move || say.send("second").unwrap());
        assert!(!event.is_done());
        go.send(()).unwrap();
        second.synchronize();
        assert_eq!(hear.try_iter().collect::<Vec<_>>(), ["first", "second"]);
        event.synchronize();
        first.close();
        second.close();
    }
}
