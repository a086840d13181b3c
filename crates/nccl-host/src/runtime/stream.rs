//! Streams: a queue of work, and the thread that does it in order.
//!
//! Kernels, and what only has to do with events, are done by whoever comes by: to wake a thread for each of them would
//! take longer than what is emulated.

use super::Progress;
use super::event::Event;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

type Work = Box<dyn FnOnce() + Send>;
type Task = Box<dyn FnMut() -> Progress + Send>;

/// An in-order queue of work with a thread of its own, started with the first work. Clones are the same stream.
#[derive(Clone, Default)]
pub struct Stream(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// There is something for the thread, or the stream was closed.
    ready: Condvar,
    /// There is nothing left to do.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Item>,
    /// What was first in the queue is being done.
    busy: bool,
    /// The event that the first in the queue waits for knows of this stream.
    held_up: bool,
    /// The first in the queue is a task that has begun.
    begun: bool,
    started: bool,
    /// The thread sleeps until it is woken, as it had nothing to look after.
    asleep: bool,
    closed: bool,
}

/// What is in a queue.
enum Item {
    /// For the stream's thread.
    Work(Work),
    /// For whoever comes by; to be called until it says that it is done.
    Task(Task),
    /// This record of an event is done.
    Mark(Event, u64),
    /// This record of an event is waited for.
    Wait(Event, u64),
}

/// How long the thread of a stream, or who waits for one, looks before it sleeps: waking costs more than most work.
const LOOK: Duration = Duration::from_micros(50);

/// How often the thread of a stream looks after a task that nobody else comes by for.
const FALLBACK: Duration = Duration::from_millis(1);

/// Streams whose tasks have begun and are not done.
static BEGUN: Mutex<Vec<Stream>> = Mutex::new(Vec::new());

/// Goes on with the tasks that have begun, on whatever streams. Whether anything was done.
pub(crate) fn advance_tasks() -> bool {
    let mut moved = false;
    let mut at = 0;
    loop {
        let Some(begun) = BEGUN.try_lock() else {
            return moved;
        };
        let Some(stream) = begun.get(at).cloned() else {
            return moved;
        };
        drop(begun);
        moved |= stream.advance();
        at += 1;
    }
}

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

    /// Puts a task behind what is there, which is called, on any thread, until it says that it is done.
    pub(crate) fn push_task(&self, task: impl FnMut() -> Progress + Send + 'static) {
        self.put(Item::Task(Box::new(task)));
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

    /// Goes on with this stream, and with those that have waited for it, as far as its thread is not needed. Whether a
    /// task has done anything.
    fn advance(&self) -> bool {
        let mut moved = false;
        let mut streams = vec![self.clone()];
        while let Some(stream) = streams.pop() {
            moved |= stream.step(&mut streams);
        }
        moved
    }

    /// Goes on with this stream; adds those that have waited for it. Whether a task has done anything.
    fn step(&self, released: &mut Vec<Stream>) -> bool {
        let mut moved = false;
        let mut state = self.0.state.lock();
        while !state.busy {
            match state.queue.pop_front() {
                Some(Item::Mark(event, mark)) => event.reach(mark, released),
                Some(Item::Wait(event, mark)) => {
                    let is_over = match state.held_up {
                        true => event.is_reached(mark),
                        false => !event.hold(mark, self),
                    };
                    state.held_up = !is_over;
                    if !is_over {
                        state.queue.push_front(Item::Wait(event, mark));
                        break;
                    }
                }
                Some(Item::Task(mut task)) => {
                    state.busy = true;
                    drop(state);
                    let progress = task();
                    state = self.0.state.lock();
                    state.busy = false;
                    moved |= progress != Progress::Stuck;
                    let done = progress == Progress::Done;
                    if state.begun == done {
                        state.begun = !done;
                        self.note(!done);
                    }
                    if !done {
                        state.queue.push_front(Item::Task(task));
                        self.0.need(&mut state);
                        break;
                    }
                }
                Some(work @ Item::Work(_)) => {
                    state.queue.push_front(work);
                    self.0.need(&mut state);
                    break;
                }
                None => {
                    self.0.idle.notify_all();
                    if state.closed {
                        self.0.ready.notify_all();
                    }
                    break;
                }
            }
        }
        moved
    }

    /// Notes whether its task has begun.
    fn note(&self, begun: bool) {
        let mut streams = BEGUN.lock();
        match begun {
            true => streams.push(self.clone()),
            false => streams.retain(|other| !Arc::ptr_eq(&other.0, &self.0)),
        }
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.busy
    }

    fn has_work(&self) -> bool {
        !self.busy && matches!(self.queue.front(), Some(Item::Work(_)))
    }

    fn has_task(&self) -> bool {
        !self.busy && matches!(self.queue.front(), Some(Item::Task(_)))
    }

    fn has_ended(&self) -> bool {
        self.closed && self.is_idle()
    }
}

impl Inner {
    /// There is something for the thread.
    fn need(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.started, true) {
            let inner = Arc::clone(self);
            thread::spawn(move || inner.work());
        }
        let asleep = std::mem::take(&mut state.asleep);
        if state.has_work() || asleep {
            self.ready.notify_all();
        }
    }

    fn work(self: Arc<Self>) {
        let stream = Stream(Arc::clone(&self));
        loop {
            self.look(|state| state.has_work() || state.has_ended());
            let mut state = self.state.lock();
            let work = loop {
                if state.has_work()
                    && let Some(Item::Work(work)) = state.queue.pop_front()
                {
                    state.busy = true;
                    break Some(work);
                }
                if state.has_ended() {
                    return;
                }
                if state.queue.is_empty() && !state.busy {
                    state.asleep = true;
                    self.ready.wait(&mut state);
                    state.asleep = false;
                } else if self.ready.wait_for(&mut state, FALLBACK).timed_out() && state.has_task() {
                    break None;
                }
            };
            drop(state);
            if let Some(work) = work {
                work();
                self.state.lock().busy = false;
            }
            stream.advance();
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
    fn a_task_is_looked_after_by_whoever_comes_and_by_the_thread_if_nobody_does() {
        let stream = Stream::new();
        let (go, wait) = mpsc::channel::<()>();
        stream.push_task(move || match wait.try_recv() {
            Ok(()) => Progress::Done,
            Err(_) => Progress::Stuck,
        });
        let (say, hear) = mpsc::channel();
        let early = say.clone();
        stream.push_task(move || {
            early.send(thread::current().id()).unwrap();
            Progress::Done
        });
        assert!(!advance_tasks() && !stream.is_idle());
        go.send(()).unwrap();
        // The thread may have come first.
        advance_tasks();
        stream.synchronize();
        hear.recv().unwrap();
        let mut calls = 0;
        stream.push_task(move || {
            calls += 1;
            if calls < 3 {
                return Progress::Moved;
            }
            say.send(thread::current().id()).unwrap();
            Progress::Done
        });
        stream.synchronize();
        assert_ne!(hear.recv().unwrap(), thread::current().id());
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
