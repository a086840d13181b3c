//! One turn of a link: what has arrived, what is to be sent, all under one hold of its lock where that is little.
//!
//! Payload is moved without the lock if there is enough of it to be worth the batches that takes: see [`UNLOCKED`].

use usb4_engine::{Fate, Link, MemAt, Nanos, Plan, RailId, RxToken, Slab, Source, Staged, TxSlot};

use crate::host::LinkHost;
use crate::links::{CopyPhase, LinkSlot};
use crate::sync::{Ordering, fence};
use crate::{Device, Home, LinkHeld, LinkId, LockGuard, Port};

/// Plans run per hold of the link's lock.
const PLANS: usize = 64;
/// Frames gathered per turn.
const FRAMES: usize = 4;
/// Batches of plans run per turn.
const ROUNDS: usize = 4;
/// Frames posted per hold of the link's lock.
const POSTS: usize = 64;
/// Bytes moved under the link's lock at most, per hold. To put plans or frames aside, give the lock back, take it again
/// and go through them once more costs about 150 instructions, the time in which a processor copies 1 KiB. Others
/// wait for that no longer than for a batch of frame heads.
const UNLOCKED: usize = 1024;
/// What a plan or a frame counts at least towards [`UNLOCKED`], so that their number is bounded, too.
const AT_LEAST: usize = 16;
/// How often endpoints that wait for their client are looked at when nothing else happens: 1 ms. A client that
/// polls makes it sooner.
const RETRY_INTERVAL: Nanos = 1_000_000;

/// What [`Device::turn`] works with: one per thread that calls it, 12 KiB.
#[derive(Debug)]
pub struct Scratch {
    plans: Slab<(Option<Plan>, u64)>,
    staged: Slab<Staged>,
}

impl Scratch {
    /// With memory for plans (and the value each yields) and frames: each at least one element, of which 64 and 4
    /// are used.
    pub fn new(plans: Slab<(Option<Plan>, u64)>, staged: Slab<Staged>) -> Self {
        Self { plans, staged }
    }

    /// On the heap.
    #[cfg(any(test, feature = "alloc"))]
    pub fn boxed() -> Self {
        Self::new(Slab::boxed(PLANS), Slab::boxed(FRAMES))
    }
}

/// What a turn of [`Device::turn`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serviced {
    /// Something was done.
    pub progress: bool,
    /// There may be more to do at once: call again.
    pub more: bool,
    /// Another thread is servicing this link; nothing was done.
    pub busy: bool,
    /// Clients have been shown something.
    pub shown: bool,
    /// The turn was ended for the sake of completions.
    pub early: bool,
    /// When to call again at the latest, if nothing happens.
    pub deadline: Option<Nanos>,
    /// A frame of a foreign session arrived on this rail: answer with a rate-limited RESET on the control channel.
    pub reset: Option<RailId>,
    /// The peer has given a nonce: [`Device::take_join`].
    pub joined: bool,
    /// The link has no rail, or has failed and may be removed.
    pub down: bool,
}

/// What has happened on a link's rails is told to its engine through this, under the link's lock.
pub struct Arrivals<'a, H: Home> {
    host: &'a LinkHost<'a, H>,
    link: &'a mut Link,
    now: Nanos,
    any: bool,
}

impl<H: Home> Arrivals<'_, H> {
    /// A frame has arrived and its RX descriptor has been replaced. `head` is the whole frame or at least its
    /// head; see `Link::on_frame_first`. At most 64 per call of [`Device::turn`].
    #[inline]
    pub fn frame(&mut self, rail: RailId, token: RxToken, head: &[u8], frame_len: u16) -> Fate {
        self.any = true;
        self.link
            .on_frame_first(self.now, rail, token, head, frame_len, self.host)
    }

    /// A TX descriptor has been consumed. At most 64 per call of [`Device::turn`].
    #[inline]
    pub fn completed(&mut self, rail: RailId, slot: TxSlot) {
        self.any = true;
        self.link.tx_completed(self.now, rail, slot);
    }
}

impl<H: Home> Device<H> {
    /// A frame has arrived, outside of a turn; see [`Arrivals::frame`].
    #[inline]
    pub fn receive_frame(
        &self,
        link: LinkId,
        now: Nanos,
        rail: RailId,
        token: RxToken,
        head: &[u8],
        frame_len: u16,
    ) -> Fate {
        self.with_host(link, |link, host| {
            link.on_frame(now, rail, token, head, frame_len, host)
        })
        .unwrap_or(Fate::Done)
    }

    /// The home dropped a frame whose payload CRC was wrong.
    pub fn payload_corrupt(&self, link: LinkId) {
        self.with_link(link, Link::payload_corrupt);
    }

    /// A TX descriptor has been consumed, outside of a turn.
    #[inline]
    pub fn tx_completed(&self, link: LinkId, now: Nanos, rail: RailId, slot: TxSlot) {
        self.with_link(link, |link| link.tx_completed(now, rail, slot));
    }

    /// A turn in which nothing has arrived; see [`Self::turn`].
    pub fn service(&self, link: LinkId, port: &H::Port, now: Nanos, scratch: &mut Scratch) -> Serviced {
        self.turn(link, None, port, now, scratch, false, |_| (), |_| ())
    }

    /// One turn: takes what `first` says has arrived, runs plans, composes, gathers and posts frames, serves timers
    /// and endpoints that wait, and takes what `last` says has arrived and can wait for the next turn. `first` and
    /// `last` are called with the link's lock held, once, or not at all if there is no such link. `held`
    /// ([`Self::submit_held`]) is that lock, if the caller has it already. With `hurry` the turn ends once it has
    /// completions to show (`early`), without `last` and without what frames with payload say about this side's own
    /// sending; another one, without `hurry`, must follow soon. One thread at a time per link; a second one is told
    /// `busy`.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "all of one turn")]
    pub fn turn(
        &self,
        link: LinkId,
        mut held: Option<LinkHeld<'_, H>>,
        port: &H::Port,
        now: Nanos,
        scratch: &mut Scratch,
        hurry: bool,
        first: impl FnOnce(&mut Arrivals<'_, H>),
        last: impl FnOnce(&mut Arrivals<'_, H>),
    ) -> Serviced {
        let mut done = Serviced {
            down: true,
            ..Serviced::default()
        };
        let Some(slot) = self.link_slot(link) else {
            return done;
        };
        if self.has_waiting() {
            // Other locks come before this one.
            held = None;
            done.progress = self.serve_waiting(now);
            done.more = done.progress;
        }
        let held = held.filter(|held| held.id == link).map(|held| held.guard);
        let Some(guard) = held.or_else(|| slot.lock(link)) else {
            return done;
        };
        let Some(phase) = slot.turns.enter(&guard) else {
            return Serviced {
                busy: true,
                ..Serviced::default()
            };
        };
        slot.touched.store(false, Ordering::Relaxed);
        // SAFETY: the phase outlives it.
        let host = unsafe { LinkHost::new(self) };
        let turn = Turn {
            host: &host,
            slot,
            port,
            now,
            phase: &phase,
        };
        turn.run(guard, scratch, &mut done, hurry, first, last);
        done.shown = host.has_shown();
        let kick = port.must_kick();
        if kick || done.shown {
            // One for everybody who may sleep: what they wait for has been stored, their wish to be woken is looked at.
            fence(Ordering::SeqCst);
            if kick {
                port.kick();
            }
            host.wake_fenced();
        }
        drop(host);
        drop(phase);
        if done.down {
            self.look_at(link, false);
        }
        if self.has_waiting() {
            let retry = now.saturating_add(RETRY_INTERVAL);
            done.deadline = Some(done.deadline.map_or(retry, |deadline| deadline.min(retry)));
        }
        done
    }
}

/// What stays the same during a turn.
struct Turn<'a, H: Home> {
    host: &'a LinkHost<'a, H>,
    slot: &'a LinkSlot<H>,
    port: &'a H::Port,
    now: Nanos,
    phase: &'a CopyPhase<'a>,
}

type Guard<'a, H> = LockGuard<'a, <H as Home>::Lock, Option<Link>>;

impl<'a, H: Home> Turn<'a, H> {
    /// The link's lock is given up for copies only. Nothing is done to a link that was removed meanwhile.
    #[inline(always)]
    fn run(
        &self,
        mut guard: Guard<'a, H>,
        scratch: &mut Scratch,
        done: &mut Serviced,
        hurry: bool,
        first: impl FnOnce(&mut Arrivals<'_, H>),
        last: impl FnOnce(&mut Arrivals<'_, H>),
    ) {
        let Some(link) = guard.as_mut() else { return };
        done.progress |= self.arrivals(link, first);
        // What has become due since the last turn can wait until that turn's deadline, or the next turn.
        if self.slot.deadline.load(Ordering::Relaxed) <= self.now {
            link.on_timer(self.now, self.host);
        }
        let mut left = UNLOCKED;
        let ran = link.run_plans(self.now, self.host, |plan| {
            let size = match plan {
                Plan::Copy { len, .. } => AT_LEAST.max(usize::from(*len)),
                _ => AT_LEAST,
            };
            left = left.checked_sub(size)?;
            Some(self.host.device.run(plan, self.port, self.phase))
        });
        done.progress |= ran != 0;
        if let Some(plan) = link.next_plan() {
            guard = self.run_large(guard, plan, scratch, done);
            left = UNLOCKED;
        }
        let mut last = Some(last);
        loop {
            let Some(link) = guard.as_mut() else { return };
            let frames = self.stage(link, &mut left, scratch, done);
            if !frames.is_empty() {
                let crc = link.payload_crc();
                guard = self.gather_all(guard, frames, crc);
            }
            let Some(link) = guard.as_mut() else { return };
            let posted = self.post_all(link);
            done.progress |= posted != 0;
            done.more |= posted == POSTS;
            if hurry && self.host.has_shown() {
                // The rest is neither what a client nor what the peer waits for.
                self.slot.touched.store(true, Ordering::Relaxed);
                done.early = true;
                done.deadline = Some(self.now);
                done.down = false;
                return;
            }
            release_all(link, self.port);
            // Freed slots may be what frames wait for.
            let more = link.is_behind() && {
                done.progress = true;
                link.catch_up(self.host)
            };
            let arrived = last.take().is_some_and(|last| self.arrivals(link, last));
            if !more && !arrived {
                break;
            }
        }
        let Some(link) = guard.as_mut() else { return };
        done.deadline = link.deadline();
        self.slot
            .deadline
            .store(done.deadline.unwrap_or(Nanos::MAX), Ordering::Relaxed);
        done.reset = link.take_reset();
        done.joined = link.has_join();
        done.down = !link.is_up();
    }

    #[inline(always)]
    fn arrivals(&self, link: &mut Link, take: impl FnOnce(&mut Arrivals<'_, H>)) -> bool {
        let mut arrivals = Arrivals {
            host: self.host,
            link,
            now: self.now,
            any: false,
        };
        take(&mut arrivals);
        arrivals.any
    }

    /// Runs plans, the first of which is `first`, without the lock.
    #[inline(never)]
    fn run_large(
        &self,
        mut guard: Guard<'a, H>,
        first: Plan,
        scratch: &mut Scratch,
        done: &mut Serviced,
    ) -> Guard<'a, H> {
        done.progress = true;
        let mut next = Some(first);
        for _ in 0..ROUNDS {
            let Some(link) = guard.as_mut() else { break };
            let mut count = 0_usize;
            for (place, _) in scratch.plans.iter_mut().take(PLANS) {
                *place = next.take().or_else(|| link.next_plan());
                if place.is_none() {
                    break;
                }
                count = count.saturating_add(1);
            }
            done.more |= count == PLANS;
            let plans = scratch.plans.get_mut(..count).unwrap_or_default();
            if plans.is_empty() {
                break;
            }
            drop(guard);
            for (plan, value) in plans.iter_mut() {
                *value = plan
                    .as_ref()
                    .map_or(0, |plan| self.host.device.run(plan, self.port, self.phase));
            }
            guard = self.slot.link.lock();
            if let Some(link) = guard.as_mut() {
                for (_, value) in plans.iter() {
                    link.plan_done(self.now, *value, self.host);
                }
            }
        }
        guard
    }

    /// Composes frames, and writes small ones into their slots; returns those that are to be gathered without the
    /// lock.
    #[inline(always)]
    fn stage<'s>(
        &self,
        link: &mut Link,
        left: &mut usize,
        scratch: &'s mut Scratch,
        done: &mut Serviced,
    ) -> &'s [Staged] {
        let mut large = 0_usize;
        let mut count = 0_usize;
        if let Some(frame) = scratch.staged.first_mut() {
            // The usual small message is on its way at once.
            let mut header = [0; 40];
            let limit = u16::try_from(*left).unwrap_or(u16::MAX);
            if let Some(post) = link.stage_post(self.now, limit, self.host, frame, &mut header) {
                *left = left.saturating_sub(usize::from(post.len));
                self.host
                    .device
                    .gather(frame, link.payload_crc(), self.port, self.phase);
                self.port.post(&post, &header);
                count = 1;
            }
        }
        while count < FRAMES {
            let Some(frame) = scratch.staged.get_mut(large) else {
                break;
            };
            if !link.stage(self.now, self.host, frame) {
                break;
            }
            count = count.saturating_add(1);
            match left.checked_sub(usize::from(frame.len)) {
                Some(rest) if large == 0 => {
                    *left = rest;
                    self.host
                        .device
                        .gather(frame, link.payload_crc(), self.port, self.phase);
                    link.staged(self.now, frame.slot, self.host);
                }
                _ => large = large.saturating_add(1),
            }
        }
        done.progress |= count != 0;
        done.more |= count == FRAMES;
        scratch.staged.get(..large).unwrap_or_default()
    }

    /// Writes composed frames into their slots without the lock, then tells the link.
    #[inline(never)]
    fn gather_all(&self, guard: Guard<'a, H>, frames: &[Staged], crc: bool) -> Guard<'a, H> {
        drop(guard);
        for frame in frames {
            self.host.device.gather(frame, crc, self.port, self.phase);
        }
        let mut guard = self.slot.link.lock();
        if let Some(link) = guard.as_mut() {
            for frame in frames {
                link.staged(self.now, frame.slot, self.host);
            }
        }
        guard
    }

    #[inline(always)]
    fn post_all(&self, link: &mut Link) -> usize {
        let mut header = [0; 40];
        let mut count = 0_usize;
        while count < POSTS {
            let Some(post) = link.next_post(self.now, self.host, &mut header) else {
                break;
            };
            self.port.post(&post, &header);
            count = count.saturating_add(1);
        }
        count
    }
}

impl<H: Home> Device<H> {
    /// Writes a composed frame into its slot.
    #[inline]
    fn gather(&self, frame: &Staged, crc: bool, port: &H::Port, phase: &CopyPhase<'_>) {
        const HEADER: u16 = 40;
        port.write(frame.slot, HEADER, frame.head());
        for seg in frame.segs() {
            match seg.source {
                Source::Bytes(bytes) => {
                    port.write(
                        frame.slot,
                        seg.at,
                        bytes.get(..usize::from(seg.len)).unwrap_or_default(),
                    );
                }
                Source::Mem(at) => {
                    if let Some(mem) = self.source_of(at, phase) {
                        port.gather(frame.slot, seg.at, seg.len, mem, at.offset);
                    } else {
                        self.gather_list(frame.slot, seg, port, phase);
                    }
                }
            }
        }
        if crc {
            let from = HEADER.saturating_add(frame.head_len);
            port.seal(frame.slot, from, frame.len.saturating_sub(4));
        }
    }

    /// Does what a plan says; returns the value an atomic found. Nothing happens to revoked memory.
    #[inline]
    fn run(&self, plan: &Plan, port: &H::Port, phase: &CopyPhase<'_>) -> u64 {
        match *plan {
            Plan::Copy { from, at, len, to } => {
                if let Some(mem) = self.memory(to, phase) {
                    port.scatter(from, at, len, mem, to.offset);
                } else {
                    self.scatter_list(plan, port, phase);
                }
            }
            Plan::FetchAdd { at, add } => {
                return self
                    .memory(at, phase)
                    .map_or(0, |mem| self.home.fetch_add(mem, at.offset, add));
            }
            Plan::CompareSwap { at, compare, swap } => {
                return self
                    .memory(at, phase)
                    .map_or(0, |mem| self.home.compare_swap(mem, at.offset, compare, swap));
            }
            Plan::Store { to, value } => {
                if let Some(mem) = self.memory(to, phase) {
                    self.home.write(mem, to.offset, &value.to_le_bytes());
                }
            }
            Plan::Nothing => {}
        }
        0
    }

    /// As [`Self::memory`], for what the engine has composed in this phase, after it has asked whether the region lives.
    #[inline]
    pub(crate) fn source_of<'a>(&'a self, at: MemAt, _phase: &'a CopyPhase<'_>) -> Option<&'a H::Mem> {
        // SAFETY: as in `memory`; and frames are gathered in the phase in which they are composed.
        unsafe { self.regions.for_gather(at.mem) }
    }

    /// How the home reaches a region, for as long as the copy phase lasts.
    #[inline]
    pub(crate) fn memory<'a>(&'a self, at: MemAt, _phase: &'a CopyPhase<'_>) -> Option<&'a H::Mem> {
        // SAFETY: the engine holds the reference until `plan_done` or `staged`, which come later in this turn, or, for a
        // frame of `stage_post`, at least until the next call of the link; the borrow of the phase keeps the result
        // from outliving it.
        unsafe { self.regions.for_copy(at.mem) }
    }
}

/// Gives back the receive buffers the link needs no more.
fn release_all<Mem>(link: &mut Link, port: &impl Port<Mem>) {
    while let Some(token) = link.next_released() {
        port.release(token);
    }
}
