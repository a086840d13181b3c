//! Streams: a queue of work, and the thread that does it in order.
//!
//! What only has to do with events is done by whoever comes by: NCCL has streams that hold nothing else, and to wake a
//! thread for each of them would take longer than what is emulated.

use super::event::Event;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

type Work = Box<dyn FnOnce() + Send>;

/// An in-order queue of work with a thread of its own, started with the first work. Clones are the same stream.
#[derive(Clone, Default)]
pub struct Stream(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// The first in the queue is work, or the stream was closed.
    ready: Condvar,
    /// There is nothing left to do.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Item>,
    /// Work taken from the queue is being done.
    busy: bool,
    /// The event that the first in the queue waits for knows of this stream.
    held_up: bool,
    started: bool,
    closed: bool,
}

/// What is in a queue.
enum Item {
    /// For the stream's thread.
    Work(Work),
    /// This record of an event is done.
    Mark(Event, u64),
    /// This record of an event is waited for.
    Wait(Event, u64),
}

/// How long the thread of a stream, or who waits for one, looks before it sleeps: waking costs more than most work.
const LOOK: Duration = Duration::from_micros(50);

impl Stream {
    /// A stream with nothing in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts work behind what is there.
    pub fn push(&self, work: impl FnOnce() + Send + 'static) {
        self.put(Item::Work(Box::new(work)));
    }

    /// Marks a record of an event once everything before is done.
    pub(super) fn mark(&self, event: Event, mark: u64) {
        self.put(Item::Mark(event, mark));
    }

    /// Lets what comes behind wait for a record of an event.
    pub(super) fn wait(&self, event: Event, mark: u64) {
        self.put(Item::Wait(event, mark));
    }

    fn put(&self, item: Item) {
        self.0.state.lock().queue.push_back(item);
        self.advance();
    }

    /// Everything pushed so far is done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.0.state.lock().is_idle()
    }

    /// Waits until everything pushed is done.
    pub fn synchronize(&self) {
        if self.0.look(State::is_idle) {
            return;
        }
        let mut state = self.0.state.lock();
        while !state.is_idle() {
            self.0.idle.wait(&mut state);
        }
    }

    /// Lets the thread end once the queue is empty.
    pub fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.ready.notify_all();
    }

    /// Goes on with this stream, and with those that have waited for it, as far as no thread is needed.
    fn advance(&self) {
        let mut streams = vec![self.clone()];
        while let Some(stream) = streams.pop() {
            stream.step(&mut streams);
        }
    }

    /// Goes on with this stream; adds those that have waited for it.
    fn step(&self, released: &mut Vec<Stream>) {
        let mut state = self.0.state.lock();
        while !state.busy {
            match state.queue.front() {
                Some(Item::Mark(event, mark)) => event.reach(*mark, released),
                Some(Item::Wait(event, mark)) => {
                    let is_over = match state.held_up {
                        true => event.is_reached(*mark),
                        false => !event.hold(*mark, self),
                    };
                    state.held_up = !is_over;
                    if !is_over {
                        return;
                    }
                }
                Some(Item::Work(_)) => {
                    if !std::mem::replace(&mut state.started, true) {
                        let inner = Arc::clone(&self.0);
                        thread::spawn(move || inner.work());
                    }
                    self.0.ready.notify_all();
                    return;
                }
                None => {
                    self.0.idle.notify_all();
                    return;
                }
            }
            state.queue.pop_front();
        }
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.busy
    }

    fn has_work(&self) -> bool {
        matches!(self.queue.front(), Some(Item::Work(_)))
    }
}

impl Inner {
    fn work(self: Arc<Self>) {
        loop {
            self.look(|state| state.has_work() || (state.closed && state.queue.is_empty()));
            let mut state = self.state.lock();
            let work = loop {
                if state.has_work()
                    && let Some(Item::Work(work)) = state.queue.pop_front()
                {
                    break work;
                }
                if state.closed && state.queue.is_empty() {
                    return;
                }
                self.ready.wait(&mut state);
            };
            state.busy = true;
            drop(state);
            work();
            self.state.lock().busy = false;
            Stream(Arc::clone(&self)).advance();
        }
    }

    /// Looks a short time for `wanted` without sleeping.
    fn look(&self, wanted: impl Fn(&State) -> bool) -> bool {
        let began = Instant::now();
        while began.elapsed() < LOOK {
            if wanted(&self.state.lock()) {
                return true;
            }
            thread::yield_now();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn work_is_done_in_the_order_it_was_pushed() {
        let stream = Stream::new();
        let (sender, receiver) = mpsc::channel();
        for n in 0..100 {
            let sender = sender.clone();
            stream.push(move || sender.send(n).unwrap());
        }
        stream.synchronize();
        assert!(stream.is_idle());
        assert_eq!(
            receiver.try_iter().collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
        stream.close();
    }

    #[test]
    fn a_stream_is_not_idle_while_its_last_work_is_being_done() {
        let stream = Stream::new();
        let (go, wait) = mpsc::channel::<()>();
        stream.push(move || wait.recv().unwrap());
        while !stream.0.state.lock().busy {
            thread::yield_now();
        }
        assert!(!stream.is_idle());
        go.send(()).unwrap();
        stream.synchronize();
        stream.close();
    }
}
