//! Streams: a queue of work and the thread that does it in order.

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
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    /// Work taken from the queue is being done.
    busy: bool,
    started: bool,
    closed: bool,
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
        let mut state = self.0.state.lock();
        state.queue.push_back(Box::new(work));
        if state.started {
            self.0.changed.notify_all();
            return;
        }
        state.started = true;
        let inner = Arc::clone(&self.0);
        thread::spawn(move || inner.work());
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
            self.0.changed.wait(&mut state);
        }
    }

    /// Lets the thread end once the queue is empty.
    pub fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.busy
    }
}

impl Inner {
    fn work(&self) {
        loop {
            self.look(|state| state.closed || !state.queue.is_empty());
            let mut state = self.state.lock();
            let work = loop {
                match state.queue.pop_front() {
                    Some(work) => break work,
                    None if state.closed => return,
                    None => self.changed.wait(&mut state),
                }
            };
            state.busy = true;
            drop(state);
            work();
            self.state.lock().busy = false;
            self.changed.notify_all();
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
