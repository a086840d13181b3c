//! One turn of a link: payload is moved without its lock, everything else under it.

use usb4_engine::{Fate, Link, MemAt, Nanos, Plan, RailId, RxToken, Slab, Source, Staged, TxSlot};

use crate::links::{CopyPhase, LinkSlot};
use crate::sync::Ordering;
use crate::{Device, Home, LinkId, LockGuard, Port};

/// Plans run per hold of the link's lock.
const PLANS: usize = 64;
/// Frames gathered per hold of the link's lock.
const FRAMES: usize = 4;
/// Batches of plans run per turn.
const ROUNDS: usize = 4;
/// Frames posted per hold of the link's lock.
const POSTS: usize = 64;
/// How often endpoints that wait for their client are looked at when nothing else happens: 1 ms. A client that
/// polls makes it sooner.
const RETRY_INTERVAL: Nanos = 1_000_000;

/// What [`Device::service`] works with: one per thread that calls it, 12 KiB.
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

/// What a turn of [`Device::service`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serviced {
    /// Something was done.
    pub progress: bool,
    /// There may be more to do at once: call again.
    pub more: bool,
    /// Another thread is servicing this link; nothing was done.
    pub busy: bool,
    /// When to call again at the latest, if nothing happens.
    pub deadline: Option<Nanos>,
    /// A frame of a foreign session arrived on this rail: answer with a rate-limited RESET on the control channel.
    pub reset: Option<RailId>,
    /// The link has no rail, or has failed and may be removed.
    pub down: bool,
}

impl<H: Home> Device<H> {
    /// A frame has arrived and its RX descriptor has been replaced. `head` is the whole frame or at least its
    /// head; see `Link::on_frame`.
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
        self.with_link(link, |link| {
            link.on_frame(now, rail, token, head, frame_len, self)
        })
        .unwrap_or(Fate::Done)
    }

    /// Takes several frames under one hold of the link's lock: `next` gets a function to call for each, at most 64
    /// times. False, without a call, if there is no such link.
    #[inline]
    pub fn receive_frames(
        &self,
        link: LinkId,
        now: Nanos,
        next: impl FnOnce(&mut dyn FnMut(RailId, RxToken, &[u8], u16) -> Fate),
    ) -> bool {
        self.with_link(link, |link| {
            next(&mut |rail, token, head, frame_len| link.on_frame(now, rail, token, head, frame_len, self));
        })
        .is_some()
    }

    /// The home dropped a frame whose payload CRC was wrong.
    pub fn payload_corrupt(&self, link: LinkId) {
        self.with_link(link, Link::payload_corrupt);
    }

    /// A TX descriptor has been consumed.
    #[inline]
    pub fn tx_completed(&self, link: LinkId, now: Nanos, rail: RailId, slot: TxSlot) {
        self.with_link(link, |link| link.tx_completed(now, rail, slot));
    }

    /// Several TX descriptors have been consumed, under one hold of the link's lock.
    #[inline]
    pub fn tx_completed_all(
        &self,
        link: LinkId,
        now: Nanos,
        rail: RailId,
        slots: impl IntoIterator<Item = TxSlot>,
    ) {
        self.with_link(link, |link| {
            slots
                .into_iter()
                .for_each(|slot| link.tx_completed(now, rail, slot))
        });
    }

    /// One turn: runs plans, composes, gathers and posts frames, serves timers and endpoints that wait. One
    /// thread at a time per link; a second one is told `busy`.
    pub fn service(&self, link: LinkId, port: &H::Port, now: Nanos, scratch: &mut Scratch) -> Serviced {
        let mut done = Serviced {
            down: true,
            ..Serviced::default()
        };
        let Some(slot) = self.link_slot(link) else {
            return done;
        };
        let Some(phase) = slot.turns.enter() else {
            return Serviced {
                busy: true,
                ..Serviced::default()
            };
        };
        slot.touched.store(false, Ordering::Relaxed);
        if self.has_waiting() {
            done.progress = self.serve_waiting(now);
            done.more = done.progress;
        }
        let turn = Turn {
            device: self,
            slot,
            id: link,
            port,
            now,
            phase: &phase,
        };
        turn.run(scratch, &mut done);
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
    device: &'a Device<H>,
    slot: &'a LinkSlot<H>,
    id: LinkId,
    port: &'a H::Port,
    now: Nanos,
    phase: &'a CopyPhase<'a>,
}

type Guard<'a, H> = LockGuard<'a, <H as Home>::Lock, Option<Link>>;

impl<'a, H: Home> Turn<'a, H> {
    /// The link's lock is given up for copies only. Nothing is done to a link that was removed meanwhile.
    fn run(&self, scratch: &mut Scratch, done: &mut Serviced) {
        let Some(mut guard) = self.slot.lock(self.id) else {
            return;
        };
        if let Some(link) = guard.as_mut() {
            // What has become due since the last turn can wait until that turn's deadline, or the next turn.
            if self.slot.deadline.load(Ordering::Relaxed) <= self.now {
                link.on_timer(self.now);
            }
        }
        for _ in 0..ROUNDS {
            let count = collect_plans(&mut guard, scratch);
            done.more |= count == PLANS;
            if count == 0 {
                break;
            }
            done.progress = true;
            let plans = scratch.plans.get_mut(..count).unwrap_or_default();
            guard = self.run_plans(guard, plans);
        }
        let Some(link) = guard.as_mut() else { return };
        release_all(link, self.port);
        let frames = stage(link, self.device, self.now, scratch);
        if !frames.is_empty() {
            done.progress = true;
            done.more |= frames.len() == FRAMES;
            let crc = link.payload_crc();
            guard = self.gather_all(guard, frames, crc);
        }
        let Some(link) = guard.as_mut() else { return };
        let posted = self.post_all(link);
        done.progress |= posted != 0;
        done.more |= posted == POSTS;
        done.deadline = link.deadline();
        self.slot
            .deadline
            .store(done.deadline.unwrap_or(Nanos::MAX), Ordering::Relaxed);
        done.reset = link.take_reset();
        done.down = !link.is_up();
    }

    /// Does what the plans say without the lock, then tells the link.
    fn run_plans(&self, guard: Guard<'a, H>, plans: &mut [(Option<Plan>, u64)]) -> Guard<'a, H> {
        drop(guard);
        for (plan, value) in plans.iter_mut() {
            *value = plan
                .as_ref()
                .map_or(0, |plan| self.device.run(plan, self.port, self.phase));
        }
        let mut guard = self.slot.link.lock();
        if let Some(link) = guard.as_mut() {
            for (_, value) in plans.iter() {
                link.plan_done(self.now, *value, self.device);
            }
        }
        guard
    }

    /// Writes composed frames into their slots without the lock, then tells the link.
    fn gather_all(&self, guard: Guard<'a, H>, frames: &[Staged], crc: bool) -> Guard<'a, H> {
        drop(guard);
        for frame in frames {
            self.device.gather(frame, crc, self.port, self.phase);
        }
        let mut guard = self.slot.link.lock();
        if let Some(link) = guard.as_mut() {
            for frame in frames {
                link.staged(self.now, frame.slot, self.device);
            }
        }
        guard
    }

    fn post_all(&self, link: &mut Link) -> usize {
        let mut header = [0; 40];
        let mut count = 0_usize;
        while count < POSTS {
            let Some(post) = link.next_post(self.now, self.device, &mut header) else {
                break;
            };
            self.port.post(&post, &header);
            count = count.saturating_add(1);
        }
        count
    }
}

/// Takes plans, at most a batch.
fn collect_plans(link: &mut Option<Link>, scratch: &mut Scratch) -> usize {
    let Some(link) = link.as_mut() else { return 0 };
    let mut count = 0_usize;
    for (place, _) in scratch.plans.iter_mut().take(PLANS) {
        let plan = link.next_plan();
        if plan.is_none() {
            break;
        }
        *place = plan;
        count = count.saturating_add(1);
    }
    count
}

/// Composes frames, at most a batch.
fn stage<'s, H: Home>(
    link: &mut Link,
    device: &Device<H>,
    now: Nanos,
    scratch: &'s mut Scratch,
) -> &'s [Staged] {
    let mut count = 0_usize;
    for staged in scratch.staged.iter_mut().take(FRAMES) {
        if !link.stage(now, device, staged) {
            break;
        }
        count = count.saturating_add(1);
    }
    scratch.staged.get(..count).unwrap_or_default()
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
                Source::Mem(at) => match self.memory(at, phase) {
                    Some(mem) => port.gather(frame.slot, seg.at, seg.len, mem, at.offset),
                    None => blank(port, frame.slot, seg.at, seg.len),
                },
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
                    self.home.store(mem, to.offset, value);
                }
            }
            Plan::Nothing => {}
        }
        0
    }

    /// How the home reaches a region, for as long as the copy phase lasts.
    #[inline]
    fn memory<'a>(&'a self, at: MemAt, _phase: &'a CopyPhase<'_>) -> Option<&'a H::Mem> {
        // SAFETY: the engine holds the reference until `plan_done` or `staged`, which come later in this turn; the
        // borrow of the phase keeps the result from outliving it.
        unsafe { self.regions.for_copy(at.mem) }
    }
}

/// Gives back the receive buffers the link needs no more.
fn release_all<Mem>(link: &mut Link, port: &impl Port<Mem>) {
    while let Some(token) = link.next_released() {
        port.release(token);
    }
}

/// Fills a stretch of a frame whose memory was revoked before it was gathered.
#[cold]
fn blank<Mem>(port: &impl Port<Mem>, slot: TxSlot, at: u16, len: u16) {
    const ZEROS: [u8; 64] = [0; 64];
    let mut done = 0_u16;
    while done < len {
        let step = len.saturating_sub(done).min(64);
        port.write(
            slot,
            at.saturating_add(done),
            ZEROS.get(..usize::from(step)).unwrap_or_default(),
        );
        done = done.saturating_add(step);
    }
}
