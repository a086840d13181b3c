//! The device, its ports and who drives them.
//!
//! One [`Owner`] for all links: whoever holds it, a caller of [`Core::progress`] or the keeper thread, polls
//! every cable. A caller leaves it at the end of each call; the keeper takes over when nobody has called for a
//! grace period, arms the cables' wake-up words and sleeps.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use usb4_device::{
    Arrivals, Device, DeviceConfig, DeviceStorage, EndpointId, Leave, LinkHeld, LinkId, Notified, Owner,
    Scratch,
};
use usb4_engine::{Fate, Nanos, RailId, RxToken, TxSlot};
use usb4_wire::NodeId;

use crate::cable::{Cable, HEAD_FIRST, Hostile, SLOT};
use crate::clock::now;
use crate::driven::Driven;
use crate::faults::State;
use crate::fork::{Descriptor, Generation};
use crate::home::SoftHome;
use crate::{Error, socket};

/// The one rail of a soft link.
pub(crate) const RAIL: RailId = RailId(0);

/// No deadline.
const NEVER: Nanos = Nanos::MAX;

/// Frames taken from a cable, and turns of the engine, before the next port has its turn.
const BATCH: usize = 64;

/// Turns in a row that end with completions for a client, before there is one that does what else there is to do.
const PUT_OFF: u32 = 4;

/// Turns a caller does in one call at most while other threads go on submitting. They call again, or the keeper takes
/// over.
const TURNS_FOR_OTHERS: u32 = 64;

/// Turns between two looks at the clock while nothing arrives: about half a microsecond.
const LOOK_EVERY: u32 = 16;

/// Calls that find somebody else driving before the caller begins to give its time slice away: on a machine with
/// fewer processors than threads that somebody may be waiting for one.
const PATIENCE: u32 = 64;

/// Calls in a row that find nothing to do before the caller does so, about 100 microseconds: the peer may be waiting
/// for a processor, too.
const IDLE: u32 = 2048;

/// Most links, the loopback link included.
pub(crate) const MAX_LINKS: usize = 64;

/// A link and the cable it runs over.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) link: LinkId,
    pub(crate) cable: Arc<Cable>,
    /// When the engine wants to be called; written by the owner.
    deadline: AtomicU64,
    /// Turns in a row that ended with completions for a client, the rest put off; used by the owner.
    late: AtomicU32,
    /// The cable or the link is beyond repair; the keeper has been told.
    broken: AtomicBool,
}

impl Port {
    pub(crate) fn new(link: LinkId, cable: Arc<Cable>) -> Self {
        Self {
            link,
            cable,
            deadline: AtomicU64::new(0),
            late: AtomicU32::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// When the engine wants to be called.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        Some(self.deadline.load(Ordering::Relaxed)).filter(|deadline| *deadline != NEVER)
    }

    /// Whether it was taken out of service.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

/// Who may drive a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drivers {
    /// Whoever calls, and the keeper when nobody does: the inline device.
    Anybody,
    /// The keeper, which polls the clients' queues as well: the detached device.
    KeeperAlone,
}

/// What there is to poll.
#[derive(Clone, Debug)]
struct Roster {
    ports: Arc<[Arc<Port>]>,
    /// Endpoints whose queues are polled.
    endpoints: Arc<[EndpointId]>,
}

/// What a turn is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Nothing in particular. Work that was posted is looked for, like deadlines, from time to time.
    Look,
    /// Work has been posted, and this is the time: it is looked for at once.
    Posted(Nanos),
    /// A client has put entries on this endpoint's queues.
    Queue(EndpointId),
}

/// What there is to do on a cable in a turn.
#[derive(Clone, Copy, Debug, Default)]
struct Tasks {
    /// Frames have arrived.
    frames: bool,
    /// Slots have come back; the engine learns it after it has sent what it has to send.
    completions: bool,
    /// Once there are completions for a client, the rest can wait.
    hurry: bool,
}

/// One turn of the owner.
struct Turn {
    /// Links have been given work.
    posted: bool,
    /// Deadlines are looked at.
    look: bool,
    time: Option<Nanos>,
}

impl Turn {
    /// The time, as of the first question in this turn: a clock costs more than a look at an empty cable.
    #[inline]
    fn time(&mut self) -> Nanos {
        *self.time.get_or_insert_with(now)
    }
}

/// What the owner works with.
struct Poller {
    version: u64,
    turns: u32,
    roster: Roster,
    scratch: Scratch,
    head: Box<[u8; SLOT]>,
}

/// A soft device's inner part, shared by its users and its keeper.
pub(crate) struct Core {
    pub(crate) device: Device<SoftHome>,
    pub(crate) owner: Owner,
    poller: Driven<Poller>,
    roster: Mutex<Roster>,
    /// Counts the changes of `roster`.
    version: AtomicU64,
    drivers: Drivers,
    /// Wakes the keeper; peers have it too.
    bell: Descriptor,
    generation: Generation,
    /// Calls that found somebody else driving.
    refused: AtomicU32,
    /// Calls in a row that found nothing to do.
    idle: AtomicU32,
    /// Somebody is about to sleep: the keeper should take over at once.
    pub(crate) hand_over: AtomicBool,
    /// Whoever drives next looks at deadlines: set by the keeper each time it finds that others drive.
    pub(crate) overdue: AtomicBool,
    /// A port is broken.
    pub(crate) trouble: AtomicBool,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("owner", &self.owner)
            .field("roster", &self.roster)
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(node: NodeId, drivers: Drivers) -> Result<Self, Error> {
        let config = DeviceConfig {
            max_links: MAX_LINKS,
            ..DeviceConfig::new(node)
        };
        let device = Device::new(SoftHome::default(), &config, DeviceStorage::boxed(&config))?;
        let bell = socket::doorbell()
            .and_then(Descriptor::new)
            .map_err(Error::os("create an eventfd"))?;
        let roster = Roster {
            ports: Arc::new([]),
            endpoints: Arc::new([]),
        };
        let poller = Poller {
            version: 0,
            turns: 0,
            roster: roster.clone(),
            scratch: Scratch::boxed(),
            head: Box::new([0; SLOT]),
        };
        Ok(Self {
            device,
            owner: Owner::new(),
            poller: Driven::new(poller),
            roster: Mutex::new(roster),
            version: AtomicU64::new(0),
            drivers,
            bell,
            generation: Generation::new().map_err(Error::os("register a fork handler"))?,
            refused: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            hand_over: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            trouble: AtomicBool::new(false),
        })
    }

    /// Fails in a child process.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.generation.is_current() {
            Ok(())
        } else {
            Err(Error::Forked)
        }
    }

    /// What wakes the keeper.
    pub(crate) fn bell(&self) -> &Descriptor {
        &self.bell
    }

    /// Wakes the keeper.
    pub(crate) fn wake_keeper(&self) {
        socket::ring(&self.bell);
    }

    /// Who drives it.
    pub(crate) fn drivers(&self) -> Drivers {
        self.drivers
    }

    /// The ports there are now.
    pub(crate) fn ports(&self) -> Arc<[Arc<Port>]> {
        Arc::clone(&self.roster.lock().ports)
    }

    /// Adds a port; the owner polls it from its next turn on, before those added earlier: the loopback port, which
    /// is the first and the least pressing, comes last.
    pub(crate) fn add_port(&self, port: Port) {
        self.change(|roster| {
            roster.ports = [Arc::new(port)]
                .into_iter()
                .chain(roster.ports.iter().cloned())
                .collect();
        });
    }

    /// Removes the port of a link; the owner may finish a turn with it.
    pub(crate) fn remove_port(&self, link: LinkId) {
        self.change(|roster| {
            let others = roster.ports.iter().filter(|port| port.link != link);
            roster.ports = others.cloned().collect();
        });
    }

    /// Has an endpoint's queues polled.
    pub(crate) fn add_endpoint(&self, endpoint: EndpointId) {
        self.change(|roster| {
            roster.endpoints = roster.endpoints.iter().copied().chain([endpoint]).collect();
        });
    }

    /// Ends [`Core::add_endpoint`].
    pub(crate) fn remove_endpoint(&self, endpoint: EndpointId) {
        self.change(|roster| {
            let others = roster.endpoints.iter().filter(|other| **other != endpoint);
            roster.endpoints = others.copied().collect();
        });
    }

    fn change(&self, change: impl FnOnce(&mut Roster)) {
        let mut roster = self.roster.lock();
        change(&mut roster);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Drives the device once, if nobody else does. Returns whether anything was done.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        if !self.owner.try_spin() {
            self.be_patient(&self.refused, PATIENCE);
            return false;
        }
        // SAFETY: we are the owner.
        let done = if unsafe { self.is_quiet() } {
            match self.owner.leave_spin(false, false) {
                Leave::Watched => false,
                Leave::StartTimer => {
                    self.wake_keeper();
                    false
                }
                Leave::Work => self.spin(Work::Posted(now())),
            }
        } else {
            self.spin(Work::Look)
        };
        if done {
            self.idle.store(0, Ordering::Relaxed);
        } else {
            self.be_patient(&self.idle, IDLE);
        }
        done
    }

    /// Takes what has been posted on an endpoint's queues and sends it on its way.
    #[inline]
    pub(crate) fn submit(&self, endpoint: EndpointId) {
        if self.owner.try_spin() {
            self.spin(Work::Queue(endpoint));
            return;
        }
        let time = now();
        if !self.device.submit(endpoint, time) {
            return;
        }
        loop {
            match self.owner.notify() {
                // It looks at everything again before it leaves.
                Notified::Owned => return,
                Notified::Idle | Notified::Left => {}
            }
            if self.owner.try_spin() {
                self.spin(Work::Posted(time));
                return;
            }
        }
    }

    /// Links have got something to say outside of the data path: sends it.
    pub(crate) fn nudge(&self) {
        if self.drivers == Drivers::Anybody && self.owner.try_spin() {
            self.spin(Work::Posted(now()));
        } else {
            // Whoever owns looks again; if nobody does any more, the keeper.
            let _ = self.owner.notify();
            self.hand_over.store(true, Ordering::Release);
            self.wake_keeper();
        }
    }

    /// The calling thread has taken the owner word as a spinner: works and leaves. See [`Core::turn`].
    #[inline(never)]
    fn spin(&self, mut work: Work) -> bool {
        let mut done = false;
        let mut turns = 0;
        loop {
            // SAFETY: we are the owner.
            done |= unsafe { self.turn(work) };
            turns += 1;
            match self.owner.leave_spin(turns >= TURNS_FOR_OTHERS, false) {
                Leave::Work => work = Work::Posted(now()),
                Leave::Watched => return done,
                Leave::StartTimer => {
                    self.wake_keeper();
                    return done;
                }
            }
        }
    }

    /// Counts calls in vain; after `patience` of them, gives the time slice away at every 32nd.
    #[inline]
    fn be_patient(&self, vain: &AtomicU32, patience: u32) {
        // Not a read-modify-write: a count lost to another thread does no harm.
        let count = vain.load(Ordering::Relaxed).wrapping_add(1);
        if count < patience {
            vain.store(count, Ordering::Relaxed);
        } else {
            vain.store(patience.saturating_sub(32), Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Whether there is nothing for a turn to do: what most calls find. False as well when it is time to look closely.
    ///
    /// # Safety
    /// The caller is the owner.
    #[inline]
    unsafe fn is_quiet(&self) -> bool {
        // SAFETY: the caller is the owner.
        let mut poller = unsafe { self.poller.borrow() };
        let turns = poller.turns.wrapping_add(1);
        if turns % LOOK_EVERY == 0
            || poller.version != self.version.load(Ordering::Acquire)
            || self.overdue.load(Ordering::Relaxed)
            || !poller.roster.endpoints.is_empty()
        {
            return false;
        }
        poller.turns = turns;
        // SAFETY: the caller is the owner.
        let quiet = |port: &Arc<Port>| unsafe { port.cable.is_quiet() };
        poller
            .roster
            .ports
            .iter()
            .all(|port| quiet(port) && port.late.load(Ordering::Relaxed) == 0)
    }

    /// Looks at every port once: serves those where something has arrived, those that have been given work, and
    /// those whose deadline has passed. Returns whether anything was done.
    ///
    /// # Safety
    /// The caller is the owner.
    #[inline]
    pub(crate) unsafe fn turn(&self, work: Work) -> bool {
        // SAFETY: the caller is the owner.
        let mut poller = unsafe { self.poller.borrow() };
        let poller = &mut *poller;
        let version = self.version.load(Ordering::Acquire);
        if poller.version != version {
            poller.roster = self.roster.lock().clone();
            poller.version = version;
        }
        poller.turns = poller.turns.wrapping_add(1);
        let mut turn = Turn {
            posted: false,
            look: poller.turns % LOOK_EVERY == 0 || self.overdue.load(Ordering::Relaxed),
            time: None,
        };
        if turn.look {
            self.overdue.store(false, Ordering::Relaxed);
        }
        let mut done = false;
        match work {
            Work::Look => {}
            Work::Posted(time) => {
                turn.time = Some(time);
                turn.posted = true;
            }
            Work::Queue(endpoint) => {
                let submitted = self.device.submit_held(endpoint, turn.time());
                if let Some(held) = submitted.held {
                    let port = poller.roster.ports.iter().find(|port| port.link == held.id());
                    if let Some(port) = port.filter(|port| !port.is_broken()) {
                        // SAFETY: the caller is the owner.
                        unsafe {
                            let tasks = Tasks {
                                completions: port.cable.sender().ready(),
                                ..Tasks::default()
                            };
                            let (scratch, head) = (&mut poller.scratch, &mut poller.head);
                            self.serve(port, Some(held), tasks, turn.time(), scratch, head);
                        }
                    }
                }
                if submitted.any && !submitted.others && !turn.look {
                    // The client waits for nothing yet.
                    return true;
                }
                done |= submitted.any;
                turn.posted = submitted.any;
            }
        }
        for endpoint in poller.roster.endpoints.iter() {
            done |= self.device.submit(*endpoint, turn.time());
        }
        turn.posted |= done;
        for port in poller.roster.ports.iter() {
            // SAFETY: the caller is the owner.
            done |= unsafe { self.poll(port, &mut turn, &mut poller.scratch, &mut poller.head) };
            if done && !turn.posted && port.late.load(Ordering::Relaxed) != 0 {
                // A client has completions; the other ports come first when this one has done all it had to do.
                break;
            }
        }
        done
    }

    /// # Safety
    /// The caller is the owner.
    #[inline]
    unsafe fn poll(
        &self,
        port: &Port,
        turn: &mut Turn,
        scratch: &mut Scratch,
        head: &mut [u8; SLOT],
    ) -> bool {
        let cable = &*port.cable;
        // SAFETY: the caller is the owner.
        let (completions, frames) = unsafe { (cable.sender().ready(), cable.receiver().ready()) };
        let late = port.late.load(Ordering::Relaxed);
        if !(completions | frames | (late != 0)) {
            if !turn.posted && !turn.look {
                return false;
            }
            let mut due = || turn.look && port.deadline.load(Ordering::Relaxed) <= turn.time();
            if !self.device.wants_service(port.link) && !due() {
                return false;
            }
        }
        if frames {
            // SAFETY: the caller is the owner.
            unsafe { cable.receiver() }.expect();
        }
        if port.is_broken() {
            return false;
        }
        // What a client waits for comes first; the rest can wait for a turn or two.
        let hurry = frames && late < PUT_OFF;
        let tasks = Tasks {
            frames,
            completions,
            hurry,
        };
        // SAFETY: the caller is the owner.
        completions | frames | unsafe { self.serve(port, None, tasks, turn.time(), scratch, head) }
    }

    /// Has the engine do what there is to do on a link, whose lock may be held already, and do what the cable wants
    /// done. Returns whether the engine did anything.
    ///
    /// # Safety
    /// The caller is the owner.
    #[inline(never)]
    unsafe fn serve(
        &self,
        port: &Port,
        mut held: Option<LinkHeld<'_, SoftHome>>,
        mut tasks: Tasks,
        time: Nanos,
        scratch: &mut Scratch,
        head: &mut [u8; SLOT],
    ) -> bool {
        let cable = &*port.cable;
        let mut done = false;
        for _ in 0..BATCH {
            let (mut received, mut completed) = (Ok(()), Ok(()));
            let serviced = self.device.turn(
                port.link,
                held.take(),
                cable,
                time,
                scratch,
                tasks.hurry,
                |arrivals| {
                    if tasks.frames {
                        // SAFETY: the caller is the owner.
                        received = unsafe { take_frames(cable, arrivals, head, time) };
                    }
                },
                |arrivals| {
                    // SAFETY: the caller is the owner.
                    unsafe {
                        if tasks.completions {
                            completed = take_completions(cable, arrivals);
                        }
                        cable.receiver().hand_back();
                    }
                },
            );
            let deadline = serviced.deadline.unwrap_or(NEVER);
            port.deadline.store(deadline, Ordering::Relaxed);
            done |= serviced.progress;
            if serviced.early {
                let late = port.late.load(Ordering::Relaxed);
                port.late.store(late.saturating_add(1), Ordering::Relaxed);
                return true;
            }
            if serviced.down | received.and(completed).is_err() {
                self.break_port(port);
                break;
            }
            if serviced.busy {
                break;
            }
            port.late.store(0, Ordering::Relaxed);
            if !serviced.more {
                break;
            }
            tasks = Tasks::default();
        }
        done
    }

    /// Takes a port out of service and tells the keeper, which ends its link.
    #[cold]
    fn break_port(&self, port: &Port) {
        port.broken.store(true, Ordering::Relaxed);
        self.trouble.store(true, Ordering::Release);
        self.wake_keeper();
    }
}

/// Tells the engine which frames the neighbour has done with.
///
/// # Safety
/// The caller is the owner.
#[inline]
unsafe fn take_completions(cable: &Cable, arrivals: &mut Arrivals<'_, SoftHome>) -> Result<(), Hostile> {
    // SAFETY: the caller is the owner; the engine does not use the port for this.
    let mut sender = unsafe { cable.sender() };
    for _ in 0..BATCH {
        let Some(slot) = sender.completed()? else { break };
        arrivals.completed(RAIL, TxSlot(slot));
    }
    Ok(())
}

/// Hands the frames that have arrived to the engine.
///
/// # Safety
/// The caller is the owner.
#[inline]
unsafe fn take_frames(
    cable: &Cable,
    arrivals: &mut Arrivals<'_, SoftHome>,
    head: &mut [u8; SLOT],
    time: Nanos,
) -> Result<(), Hostile> {
    // SAFETY: the caller is the owner; the engine does not use the port for this.
    let mut receiver = unsafe { cable.receiver() };
    if let Some(faults) = receiver.faults() {
        match faults.state(time) {
            State::Works => {}
            State::Stalls => return Ok(()),
            State::Cut => return Err(Hostile),
        }
    }
    for _ in 0..BATCH {
        let Some(arrival) = receiver.arrival()? else { break };
        cable.prefetch(arrival, HEAD_FIRST);
        let head = cable.copy_head(arrival, head);
        if let Some(faults) = receiver.faults()
            && !faults.pass(head)
        {
            receiver.release(arrival.slot);
            continue;
        }
        let token = RxToken(u32::from(arrival.slot));
        if arrivals.frame(RAIL, token, head, arrival.len) == Fate::Done {
            receiver.release(arrival.slot);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::SoftDevice;
    use crate::names::Fabric;

    #[test]
    fn a_caller_that_comes_rarely_still_sees_to_deadlines() {
        let fabric = Fabric::new(&format!("rarely-{}", std::process::id())).unwrap();
        let device = SoftDevice::start(fabric, Drivers::Anybody).unwrap();
        let [port] = &*device.core.ports() else { panic!() };
        let mut calls: Vec<u32> = (0..9)
            .map(|_| {
                port.deadline.store(1, Ordering::Relaxed);
                let mut calls = 0;
                while port.deadline.load(Ordering::Relaxed) == 1 {
                    device.core.progress();
                    calls += 1;
                    std::thread::sleep(Duration::from_micros(300));
                }
                calls
            })
            .collect();
        calls.sort_unstable();
        // The keeper looks every millisecond; a thread may get its processor late.
        assert!(calls[4] <= 8, "{calls:?}");
    }
}
