//! Who drives a link, and what that is.
//!
//! A link is driven by whoever has taken its [`Owner`] word: its thread, or a client inside of
//! `ENTER` (a *spinner*). Both do the same rounds: take what has arrived off the rings, have the device do a turn, until
//! there is no more. A spinner that leaves starts a timer ([`usb4_device::Grace`]); when that runs out and no spinner has
//! come back, or something has been announced, the thread takes over; sooner if none ever does come back
//! ([`usb4_device::Habit`]). The thread goes on for `LINGER` after it last found something, since every unmasking of an
//! interrupt is an MMIO read under the controller's lock; then it has interrupts unmasked, polls once more, and sleeps.
//! While others want its processor, for `YIELDS` after it last found something, it leaves as a spinner does, rather than
//! keep the link while it waits for its turn: the others may be clients that poll.
//!
//! Interrupts only announce ([`usb4_core_link_notify`]).

use core::sync::atomic::Ordering;

use usb4_device::{EndpointId, Expired, Grace, Leave, Left, LinkHeld, LinkId, Notified, Owner, Port};
use usb4_engine::{Fate, Nanos, RailId, RxToken, Slab, TxSlot};

use crate::abi::{Arrived, BATCH, Frame, Sent, Turn};
use crate::device::Core;
use crate::home::{self, KernelHome};
use crate::links::{Driven, LINK_RAILS, Link};

/// How long the thread polls after it has last found something.
const LINGER: Nanos = 50_000;

/// How long it looks by timer, while others want its processor, before it has interrupts unmasked.
const YIELDS: Nanos = 1_000_000;

/// Longest run of the thread in a read-side critical section, and while clients announce work to it and others want its
/// processor.
const SLICE: Nanos = 500_000;

/// Longest sleep of the thread: interrupts get lost. The shorter one for a link that has been used within [`RECENT`].
const FALLBACK: Nanos = 10_000_000;
const FALLBACK_IDLE: Nanos = 1_000_000_000;
const RECENT: Nanos = 1_000_000_000;

/// How often an owner looks for rails on which the peer is silent.
const WATCH: Nanos = 1_000_000_000;

/// How long a peer is silent before the C side is told: no probe is put off for longer than a tenth of it until many have
/// been lost.
const SILENT: Nanos = 2_000_000_000;

/// Turns of the device in one round at most.
const TURNS: u32 = 8;

/// Rounds of a spinner while others go on announcing work; then it is the thread's.
const ROUNDS: u32 = 8;

/// What a round found.
#[derive(Clone, Copy, Default)]
struct Round {
    /// Something was done.
    progress: bool,
    /// There may be more.
    more: bool,
    /// Clients have been shown something.
    shown: bool,
    /// Frames have arrived.
    heard: bool,
}

type Held<'a> = LinkHeld<'a, KernelHome>;

impl Link {
    /// What the hand-over timer runs for.
    fn grace(&self, away: bool) -> u32 {
        if away { Grace::AWAY } else { self.grace.get() }
    }

    /// One round, by the owner.
    fn round(&self, driven: &mut Driven, core: &Core, now: Nanos) -> Round {
        let mut round = Round::default();
        for _ in 0..TURNS {
            driven.arrived.frame_count = 0;
            driven.arrived.sent_count = 0;
            self.port.poll(&mut driven.arrived);
            let any = driven.arrived.frame_count != 0 || driven.arrived.sent_count != 0;
            let due = self.deadline.load(Ordering::Relaxed) <= now;
            if !any && !due && !round.more && !core.device.wants_service(self.id) {
                break;
            }
            if driven.arrived.frame_count != 0 {
                driven.heard = now;
                round.heard = true;
            }
            round.progress |= any;
            self.turn(driven, core, None, now, &mut round);
            if !round.more {
                break;
            }
        }
        if driven.watch_at <= now {
            driven.watch_at = now.saturating_add(WATCH);
            self.watch(core, now);
        }
        round
    }

    /// Tells the C side of rails on which the peer leaves probes unanswered.
    #[inline(never)]
    fn watch(&self, core: &Core, now: Nanos) {
        for rail in 0..LINK_RAILS {
            let status = core.device.rail_status(self.id, RailId(rail));
            let since = status.and_then(|status| status.silent_since);
            if since.is_some_and(|since| now.saturating_sub(since) >= SILENT) {
                self.port.silent(rail);
            }
        }
    }

    /// What a client has just submitted goes on its way, by the owner. What has arrived is for later: the client waits for
    /// nothing yet.
    fn flush(&self, driven: &mut Driven, core: &Core, held: Held<'_>, now: Nanos) -> Round {
        let mut round = Round::default();
        driven.arrived.frame_count = 0;
        driven.arrived.sent_count = 0;
        self.turn(driven, core, Some(held), now, &mut round);
        if round.more {
            let next = self.round(driven, core, now);
            round.shown |= next.shown;
        }
        round
    }

    /// A turn of the device with what has arrived.
    fn turn(&self, driven: &mut Driven, core: &Core, held: Option<Held<'_>>, now: Nanos, round: &mut Round) {
        let arrived = &driven.arrived;
        let port = self.port;
        let done = core.device.turn(
            self.id,
            held,
            &port,
            now,
            &mut driven.scratch,
            false,
            |arrivals| {
                for frame in arrived.frames() {
                    // SAFETY: the C side has made these bytes readable and does not touch them until the buffer is
                    // released.
                    let bytes = unsafe { core::slice::from_raw_parts(frame.bytes, usize::from(frame.len)) };
                    let token = RxToken(frame.token);
                    if arrivals.frame(RailId(frame.rail), token, bytes, frame.len) == Fate::Done {
                        port.release(token);
                    }
                }
            },
            |arrivals| {
                for sent in arrived.sent() {
                    arrivals.completed(RailId(sent.rail), TxSlot(sent.slot));
                }
            },
        );
        self.deadline
            .store(done.deadline.unwrap_or(Nanos::MAX), Ordering::Relaxed);
        round.progress |= done.progress;
        round.shown |= done.shown;
        round.more = done.more | arrived.is_full();
        if let Some(rail) = done.reset {
            port.strange(rail.0, arrived.last_tag(rail));
        }
        if done.joined {
            port.joined();
        }
        if done.down && !driven.told_down {
            driven.told_down = true;
            port.down();
        }
        let tracing = core.tracing.load(Ordering::Relaxed);
        if tracing != 0 {
            self.trace(driven, core, tracing);
        }
    }

    /// Tells what has been counted since the last turn, or since somebody began to trace.
    #[cold]
    #[inline(never)]
    fn trace(&self, driven: &mut Driven, core: &Core, tracing: u32) {
        let Some(now) = core.device.counters(self.id) else {
            return;
        };
        let turn = Turn::between(&driven.traced, &now);
        if driven.tracing == tracing && turn != Turn::default() {
            self.port.trace(&turn);
        }
        driven.tracing = tracing;
        driven.traced = now;
    }

    /// When the thread has to look again if nothing is announced.
    fn wake_at(&self, driven: &Driven, now: Nanos) -> Nanos {
        let recent = now.saturating_sub(driven.heard) < RECENT;
        let fallback = if recent { FALLBACK } else { FALLBACK_IDLE };
        self.deadline
            .load(Ordering::Relaxed)
            .min(now.saturating_add(fallback))
    }
}

impl Arrived {
    /// Room for [`BATCH`] of each, or none.
    pub(crate) fn new(mut frames: Slab<Frame>, mut sent: Slab<Sent>) -> Self {
        Self {
            frames: frames.as_mut_ptr(),
            sent: sent.as_mut_ptr(),
            frame_count: 0,
            sent_count: 0,
        }
    }

    fn frames(&self) -> &[Frame] {
        let count = BATCH.min(self.frame_count as usize);
        // SAFETY: the slab `new` was called with, which is lent for as long as the link lives.
        unsafe { core::slice::from_raw_parts(self.frames, count) }
    }

    fn sent(&self) -> &[Sent] {
        let count = BATCH.min(self.sent_count as usize);
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts(self.sent, count) }
    }

    /// There may be more where this came from.
    fn is_full(&self) -> bool {
        self.frames().len() == BATCH || self.sent().len() == BATCH
    }

    /// Tag of the last frame that arrived on a rail, 0 if there is none.
    fn last_tag(&self, rail: RailId) -> u64 {
        const TAG: usize = 8;
        let mut backwards = self.frames().iter().rev();
        let last = backwards.find(|frame| frame.rail == rail.0);
        let Some(frame) = last.filter(|frame| frame.len >= 16) else {
            return 0;
        };
        // SAFETY: the frame is longer than that, and its buffer is not given to the ring again before the next poll.
        u64::from_le(unsafe { frame.bytes.add(TAG).cast::<u64>().read_unaligned() })
    }
}

impl Core {
    /// Drives a link if nobody else does. Returns whether anything was done.
    fn spin(&self, id: LinkId, now: Nanos) -> bool {
        let owner = self.device.owner(id);
        owner.is_some_and(|owner| self.try_spin(owner)) && self.drive(id, None, now)
    }

    /// Takes a link's owner word as a spinner. Counts it as driven; until then it counts as not, though others may
    /// already drive it: who polls then makes a call too many, not one too few.
    fn try_spin(&self, owner: &Owner) -> bool {
        let taken = owner.try_spin();
        if taken {
            self.undriven.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }

    /// As [`Self::try_spin`], for the link's thread.
    pub(crate) fn try_thread(&self, owner: &Owner) -> bool {
        let taken = owner.try_thread();
        if taken {
            self.undriven.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }

    /// The caller has taken a link's owner word as a spinner: works, and leaves. `held` is the link's lock, if the caller
    /// has it and has submitted something.
    fn drive(&self, id: LinkId, mut held: Option<Held<'_>>, mut now: Nanos) -> bool {
        let place = self.place(id).map(|place| place.load(Ordering::Acquire));
        // SAFETY: a link that is there stays for as long as we are the owner; and its memory for as long as the C side
        // knows that we are in here.
        let link = place.and_then(|link| unsafe { link.as_ref() });
        let Some(owner) = self.device.owner(id) else {
            return false;
        };
        let mut done = false;
        let mut rounds = 0_u32;
        let mut how = if held.is_some() {
            Left::Submitted
        } else {
            Left::Nothing
        };
        if let Some(link) = link {
            // SAFETY: we are the owner.
            unsafe { link.driven() }.habit.returned();
        }
        loop {
            let mut away = false;
            if let Some(link) = link {
                // SAFETY: we are the owner.
                let driven = unsafe { link.driven() };
                let round = match held.take() {
                    Some(held) => link.flush(driven, self, held, now),
                    None => {
                        let round = link.round(driven, self, now);
                        done |= round.progress;
                        round
                    }
                };
                if round.shown {
                    how = Left::Shown;
                }
                away = driven.habit.leaves(how);
            }
            drop(held.take());
            rounds = rounds.saturating_add(1);
            // Before anybody else can take it.
            self.undriven.fetch_add(1, Ordering::Relaxed);
            match owner.leave_spin(rounds >= ROUNDS, away) {
                Leave::Work => {
                    self.undriven.fetch_sub(1, Ordering::Relaxed);
                    now = home::now();
                }
                Leave::Watched if !away => return done,
                Leave::Watched | Leave::StartTimer => {
                    if let Some(link) = link {
                        link.port.hand_over(link.grace(away));
                    }
                    return done;
                }
            }
        }
    }

    /// A link has been given work: sees to it that somebody does it.
    fn announce(&self, id: LinkId, now: Nanos) {
        let Some(owner) = self.device.owner(id) else {
            return;
        };
        // An owner looks again before it leaves.
        while owner.notify() != Notified::Owned {
            if self.try_spin(owner) {
                self.drive(id, None, now);
                return;
            }
        }
    }

    /// Takes what is posted on an endpoint's queues and sends it on its way.
    fn submit(&self, ep: EndpointId, now: Nanos) -> bool {
        let submitted = self.device.submit_held(ep, now);
        if let Some(held) = submitted.held {
            let id = held.id();
            let owner = self.device.owner(id);
            if owner.is_some_and(|owner| self.try_spin(owner)) {
                self.drive(id, Some(held), now);
            } else {
                drop(held);
                self.announce(id, now);
            }
        }
        if submitted.others {
            self.serve_touched(now);
        }
        submitted.any
    }

    /// Sees to the links that have been given something to do.
    pub(crate) fn serve_touched(&self, now: Nanos) {
        for place in 0..self.links.len() {
            let id = self.id_at(place);
            if let Some(id) = id.filter(|id| self.device.wants_service(*id)) {
                self.announce(id, now);
            }
        }
    }

    /// The name of the link at a place. Only a name: the link may be gone by the time it is used.
    fn id_at(&self, place: usize) -> Option<LinkId> {
        let link = self.links.get(place)?.load(Ordering::Acquire);
        // The owner word goes with the place, whatever link is there.
        (!link.is_null()).then(|| LinkId::from_raw(u32::try_from(place).unwrap_or(u32::MAX)))
    }
}

/// Takes what a client has posted on an endpoint's queues. True if there was anything. Must not be called with a lock
/// held; does not sleep.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_submit(core: &Core, ep: u32) -> bool {
    core.submit(EndpointId::from_raw(ep), home::now())
}

/// Drives every link that nobody drives, once; without any link, endpoints that wait. True if anything was done. Must not be called with a lock held; does not
/// sleep.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_progress(core: &Core) -> bool {
    let now = home::now();
    let mut done = false;
    let mut any = false;
    for place in 0..core.links.len() {
        if let Some(id) = core.id_at(place) {
            any = true;
            done |= core.spin(id, now);
        }
    }
    if !any {
        // No turn of a link will look at them.
        done = core.device.serve_waiting(now);
    }
    done
}

/// Objects have been destroyed, so that links have something to say: sends it, or has it sent.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_nudge(core: &Core) {
    core.serve_touched(home::now());
}

/// The link's thread: works until there is nothing to do or others want its processor. Returns when it wants to be called
/// again at the latest, 0 for at once. Until then the C side may sleep; it calls earlier when [`usb4_core_link_notify`] or
/// [`usb4_core_link_expired`] ask for it.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_run(core: &Core, link: &Link) -> u64 {
    let start = home::now();
    let Some(owner) = core.device.owner(link.id) else {
        return u64::MAX;
    };
    if !link.threads.load(Ordering::Acquire) {
        if !core.try_thread(owner) {
            // A spinner does; when it has left, the timer says so.
            return start.saturating_add(FALLBACK);
        }
        link.threads.store(true, Ordering::Relaxed);
    }
    let mut now = start;
    loop {
        // SAFETY: we are the owner.
        let driven = unsafe { link.driven() };
        let round = link.round(driven, core, now);
        now = home::now();
        if round.progress {
            driven.busy = now;
        }
        if round.heard {
            driven.habit.served();
        }
        let quiet = now.saturating_sub(driven.busy);
        let over = now.saturating_sub(start) > SLICE;
        if quiet < YIELDS && home::must_yield() {
            // Whoever wants the processor may be the client that has just been woken, and will drive.
            let away = driven.habit.is_away();
            link.threads.store(false, Ordering::Release);
            core.undriven.fetch_add(1, Ordering::Relaxed);
            match owner.leave_thread(over) {
                Leave::Work => {
                    core.undriven.fetch_sub(1, Ordering::Relaxed);
                    link.threads.store(true, Ordering::Relaxed);
                    continue;
                }
                Leave::Watched if !away => (),
                Leave::Watched | Leave::StartTimer => link.port.hand_over(link.grace(away)),
            }
            return now.saturating_add(FALLBACK);
        }
        if over {
            return 0;
        }
        if quiet < LINGER {
            core::hint::spin_loop();
            continue;
        }
        link.port.arm();
        // What has come before the interrupt was unmasked brings none.
        if link.round(driven, core, now).progress {
            driven.busy = now;
            continue;
        }
        let wake_at = link.wake_at(driven, now);
        link.threads.store(false, Ordering::Release);
        core.undriven.fetch_add(1, Ordering::Relaxed);
        if owner.try_sleep() {
            return wake_at;
        }
        core.undriven.fetch_sub(1, Ordering::Relaxed);
        link.threads.store(true, Ordering::Relaxed);
        driven.busy = now;
    }
}

/// An interrupt, or a deadline: true if the link's thread must be woken. May be called in any context.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_notify(core: &Core, link: &Link) -> bool {
    core.device
        .owner(link.id)
        .is_some_and(|owner| owner.notify() == Notified::Idle)
}

/// The hand-over timer has run out, `late` nanoseconds after it should have. Returns the nanoseconds for which it is to run
/// again, 0 for not at all, `u64::MAX` if the thread must be woken, which owns the link. Called in the timer's context.
#[unsafe(no_mangle)]
pub extern "C" fn usb4_core_link_expired(core: &Core, link: &Link, late: u64) -> u64 {
    match core.device.owner(link.id).map(|owner| owner.expired()) {
        Some(Expired::Again) => {
            link.grace.adapt(late);
            link.grace.get().into()
        }
        Some(Expired::Taken) => {
            core.undriven.fetch_sub(1, Ordering::Relaxed);
            link.threads.store(true, Ordering::Release);
            u64::MAX
        }
        Some(Expired::Stop) | None => 0,
    }
}
