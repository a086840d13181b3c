//! Driving the device when nobody else does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use usb4_device::Expired;
use usb4_engine::Nanos;

use super::Keeper;
use crate::clock::now;
use crate::core::{Drivers, Port, Work};

/// How long a spinner may stay away before the keeper takes over.
pub(super) const GRACE: Nanos = 1_000_000;

/// How long the keeper polls after it has last found something to do: going to sleep and being woken costs a
/// few microseconds on both sides of a cable.
const LINGER: Nanos = 20_000;

/// The same where the keeper is the only driver.
const LINGER_ALONE: Nanos = 100_000;

/// Longest time between two looks at the sockets while the keeper polls.
const TURN: Nanos = 200_000;

/// Who drives, as far as the keeper knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The keeper should try to.
    Awake,
    /// The keeper owns.
    Owning,
    /// Somebody did a moment ago; at this time the keeper looks again.
    Watching(Nanos),
    /// Nobody: the cables are armed. The engine has something to do at this time, if any.
    Asleep(Option<Nanos>),
}

impl Keeper {
    /// When [`Keeper::drive`] must be called, at the latest.
    pub(super) fn drive_deadline(&self) -> Option<Nanos> {
        match self.mode {
            Mode::Awake | Mode::Owning => Some(0),
            Mode::Watching(until) => Some(until),
            Mode::Asleep(deadline) => deadline,
        }
    }

    /// Takes over if nobody drives, drives, and goes to sleep when there is nothing to do.
    pub(super) fn drive(&mut self) {
        let rung = std::mem::take(&mut self.rung);
        let hand_over =
            self.core.hand_over.load(Ordering::Relaxed) && self.core.hand_over.swap(false, Ordering::Acquire);
        let time = now();
        match self.mode {
            Mode::Owning => {}
            Mode::Awake => self.take_over(time),
            Mode::Asleep(_) if rung && !hand_over && self.core.owner.is_watched() => self.watch(time),
            Mode::Asleep(deadline) if rung || hand_over || deadline.is_some_and(|at| at <= time) => {
                self.take_over(time);
            }
            Mode::Watching(_) if hand_over => self.take_over(time),
            Mode::Watching(until) if until <= time => match self.core.owner.expired() {
                Expired::Again => {
                    // A caller that comes rarely would look every 16th time only.
                    self.core.overdue.store(true, Ordering::Relaxed);
                    self.watch(time);
                }
                Expired::Taken => self.mode = Mode::Owning,
                Expired::Stop => self.take_over(time),
            },
            Mode::Watching(_) | Mode::Asleep(_) => {}
        }
        if self.mode == Mode::Owning {
            self.work();
        }
    }

    fn take_over(&mut self, time: Nanos) {
        if self.core.owner.try_thread() {
            self.mode = Mode::Owning;
        } else {
            self.watch(time);
        }
    }

    fn watch(&mut self, time: Nanos) {
        self.disarm();
        self.mode = Mode::Watching(time.saturating_add(GRACE));
    }

    /// Waits until the keeper owns. A spinner holds the word for a bounded number of steps.
    pub(super) fn own(&mut self) {
        if self.mode == Mode::Owning {
            return;
        }
        while !self.core.owner.try_thread() {
            std::thread::yield_now();
        }
        self.mode = Mode::Owning;
    }

    /// Drives until there is nothing to do, then arms and sleeps; or until the sockets need a look.
    fn work(&mut self) {
        self.disarm();
        let linger = match self.core.drivers() {
            Drivers::Anybody => LINGER,
            Drivers::KeeperAlone => LINGER_ALONE,
        };
        let start = now();
        let mut busy = start;
        // Whatever was announced while nobody drove.
        let mut work = Work::Posted(start);
        loop {
            // SAFETY: the keeper owns.
            let done = unsafe { self.core.turn(work) };
            work = Work::Look;
            let time = now();
            if done {
                busy = time;
            }
            if time.saturating_sub(start) > TURN {
                return;
            }
            if time.saturating_sub(busy) < linger {
                std::hint::spin_loop();
                continue;
            }
            if let Some(deadline) = self.arm() {
                if self.core.owner.try_sleep() {
                    self.mode = Mode::Asleep(deadline);
                    return;
                }
            }
            self.disarm();
            busy = now();
            work = Work::Posted(busy);
        }
    }

    /// Asks the neighbours to ring. `None` if something has arrived meanwhile, else when the engine wants to be
    /// called.
    fn arm(&self) -> Option<Option<Nanos>> {
        let ports = self.core.ports();
        // SAFETY: the keeper owns.
        let arm = |port: &Arc<Port>| unsafe { port.cable.arm() };
        let quiet = ports.iter().map(arm).fold(true, |quiet, this| quiet & this);
        if !quiet || (self.core.drivers() == Drivers::KeeperAlone && !self.core.device.arm_all()) {
            return None;
        }
        Some(ports.iter().filter_map(|port| port.deadline()).min())
    }

    fn disarm(&self) {
        for port in self.core.ports().iter() {
            port.cable.disarm();
        }
        if self.core.drivers() == Drivers::KeeperAlone {
            self.core.device.disarm_all();
        }
    }
}
