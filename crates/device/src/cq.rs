//! Completion queues.
//!
//! A completion queue of depth D has D places for operations in flight. Whoever posts work or takes a receive
//! reserves one, and with it the queue entry its completion will go to; so a completion always finds room, no
//! matter what the client does with its index, and a client that does not poll stops its own work only.

use usb4_engine::Slab;
use usb4_ring_abi::sync::AtomicU64 as QueueWord;
use usb4_ring_abi::{Cqe, Hostile, Producer, is_armed};

use crate::id::next_generation;
use crate::sync::{AtomicPtr, Ordering};
use crate::{ClientId, CqConfig, CqId, DeviceError, Home, Lock};

/// Place of an operation in flight (opaque; handed over with a completion queue).
#[derive(Clone, Copy, Debug, Default)]
pub struct OpSlot {
    user_data: u64,
    /// Raw [`crate::EndpointId`].
    ep: u32,
    /// Free places: the next one.
    next: u32,
    op: u8,
    flags: u8,
    taken: bool,
}

/// An operation in flight, as it was reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) user_data: u64,
    pub(crate) ep: u32,
    /// Operation code of the entry.
    pub(crate) op: u8,
    /// [`UNSIGNALED`], [`CONNECTED`], [`BEGUN`], and of queue pairs the bits of [`QP`] and [`LIFE`].
    pub(crate) flags: u8,
}

/// The entry completes only if it fails.
pub(crate) const UNSIGNALED: u8 = 1;
/// The endpoint is a connected one: errors change its state.
pub(crate) const CONNECTED: u8 = 2;

/// A link has taken the operation.
pub(crate) const BEGUN: u8 = 4;

/// The endpoint is a queue pair; which kind ([`crate::QpKind`]) in these bits.
pub(crate) const QP: u8 = 3 << 3;
/// The queue pair's life, by resets: what is left of an earlier one is not shown.
pub(crate) const LIFE: u8 = 7 << 5;

/// Why no place was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// All entries are taken by operations in flight and completions not yet polled.
    Full,
    /// The client's index is hostile, now or earlier; or the queue is gone.
    Dead,
}

/// Place of a completion queue (opaque).
#[derive(Debug)]
pub struct CqSlot<H: Home> {
    state: Lock<H::Lock, State<H>>,
    pub(crate) flags: Flags,
}

/// Where a completion queue's client says that it wants to be woken, to be looked at without the queue's lock.
#[derive(Debug)]
pub(crate) struct Flags(AtomicPtr<QueueWord>);

impl Flags {
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// `flags` is looked at from now on.
    pub(crate) fn set(&self, flags: Option<&QueueWord>) {
        let flags = flags.map_or(core::ptr::null_mut(), |flags| {
            core::ptr::from_ref(flags).cast_mut()
        });
        self.0.store(flags, Ordering::Release);
    }

    /// Whether the client must be woken; a fence comes before this (see [`is_armed`]).
    ///
    /// # Safety
    /// The caller holds the lock of a link, or is in the copy phase of one. Whoever dropped the words first called
    /// [`Self::set`] with none, then waited for copy phases (`links.rs`).
    #[inline]
    pub(crate) unsafe fn are_armed(&self) -> bool {
        // SAFETY: by this function's contract the words are there, or this is null; see `links.rs` for why the phase
        // does it.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }.is_some_and(is_armed)
    }
}

#[derive(Debug)]
struct State<H: Home> {
    generation: u16,
    cq: Option<Cq<H>>,
}

/// A completion queue.
pub(crate) struct Cq<H: Home> {
    ring: Producer<H::Queue, Cqe>,
    ops: Slab<OpSlot>,
    /// First of the places used before and free again, a linked list.
    free: u32,
    /// First place never used.
    fresh: u32,
    /// Places taken.
    taken: u32,
    /// Endpoints that use the queue, counted once per direction.
    pub(crate) users: u32,
    pub(crate) client: ClientId,
    pub(crate) waker: H::Waker,
    dead: bool,
    /// The client has been told that it is.
    told: bool,
}

impl<H: Home> core::fmt::Debug for Cq<H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cq")
            .field("taken", &self.taken)
            .field("users", &self.users)
            .finish_non_exhaustive()
    }
}

const NONE: u32 = u32::MAX;

impl<H: Home> Default for CqSlot<H> {
    fn default() -> Self {
        Self {
            state: Lock::new(State {
                generation: 0,
                cq: None,
            }),
            flags: Flags::new(),
        }
    }
}

impl<H: Home> CqSlot<H> {
    /// Puts a queue into a free place. `None`, and the queue back, if it is not free.
    pub(crate) fn put(&self, index: u16, cq: Cq<H>) -> Result<CqId, Cq<H>> {
        let mut state = self.state.lock();
        if state.cq.is_some() {
            return Err(cq);
        }
        state.generation = next_generation(state.generation);
        self.flags.set(cq.ring.flags());
        state.cq = Some(cq);
        Ok(CqId::new(index, state.generation))
    }

    /// Calls `f` with the queue of that name, under its lock.
    #[inline]
    pub(crate) fn with<T>(&self, id: CqId, f: impl FnOnce(&mut Cq<H>) -> T) -> Option<T> {
        let mut state = self.state.lock();
        let (_, generation) = crate::id::split(id.0);
        if state.generation != generation {
            return None;
        }
        state.cq.as_mut().map(f)
    }

    /// Wakes whoever sleeps on the queue that is here.
    #[cold]
    pub(crate) fn wake(&self, home: &H) {
        if let Some(cq) = &self.state.lock().cq {
            if cq.take_armed() {
                home.wake(&cq.waker);
            }
        }
    }

    /// Takes the queue of that name out if `f` allows it. Its flags may be looked at for as long as copy phases that
    /// are on now: these are to be waited for before it is dropped.
    pub(crate) fn take(
        &self,
        id: CqId,
        f: impl FnOnce(&Cq<H>) -> Result<(), DeviceError>,
    ) -> Result<Cq<H>, DeviceError> {
        let mut state = self.state.lock();
        let (_, generation) = crate::id::split(id.0);
        match &state.cq {
            Some(cq) if state.generation == generation => f(cq)?,
            _ => return Err(DeviceError::NoCq),
        }
        self.flags.set(None);
        state.cq.take().ok_or(DeviceError::NoCq)
    }

    /// The name of a client's queue that is here.
    pub(crate) fn of(&self, index: u16, client: ClientId) -> Option<CqId> {
        let state = self.state.lock();
        let mine = state.cq.as_ref().is_some_and(|cq| cq.client == client);
        mine.then(|| CqId::new(index, state.generation))
    }
}

impl<H: Home> Cq<H> {
    pub(crate) fn new(client: ClientId, config: CqConfig<H>) -> Result<Self, DeviceError> {
        let CqConfig {
            depth,
            memory,
            ops,
            waker,
        } = config;
        if ops.len() < depth as usize {
            return Err(DeviceError::Storage);
        }
        let ring = Producer::new(memory, depth)?;
        Ok(Self {
            ring,
            ops,
            free: NONE,
            fresh: 0,
            taken: 0,
            users: 0,
            client,
            waker,
            dead: false,
            told: false,
        })
    }

    pub(crate) fn depth(&self) -> u32 {
        self.ring.depth()
    }

    /// Reserves a place and a queue entry.
    #[inline]
    pub(crate) fn reserve(&mut self, op: Op) -> Result<u32, NoRoom> {
        self.check_room()?;
        let recycled = self.free != NONE;
        let index = if recycled { self.free } else { self.fresh };
        let slot = self.ops.get_mut(index as usize).ok_or(NoRoom::Full)?;
        if recycled {
            self.free = slot.next;
        } else {
            self.fresh = self.fresh.saturating_add(1);
        }
        let Op {
            user_data,
            ep,
            op,
            flags,
        } = op;
        *slot = OpSlot {
            user_data,
            ep,
            next: NONE,
            op,
            flags,
            taken: true,
        };
        self.taken = self.taken.saturating_add(1);
        Ok(index)
    }

    /// Gives a place back; returns what it held. `None` if it was not taken.
    #[inline]
    pub(crate) fn end(&mut self, index: u32) -> Option<Op> {
        let slot = self.ops.get_mut(index as usize).filter(|slot| slot.taken)?;
        let OpSlot {
            user_data,
            ep,
            op,
            flags,
            ..
        } = *slot;
        slot.taken = false;
        slot.next = self.free;
        self.free = index;
        self.taken = self.taken.saturating_sub(1);
        Some(Op {
            user_data,
            ep,
            op,
            flags,
        })
    }

    /// Makes a completion visible whose place has just been given back. Whether the client sleeps on the queue is to
    /// be looked at after that.
    #[inline]
    pub(crate) fn push(&mut self, cqe: &Cqe) {
        // A place was reserved, so the entry is known to be free whatever the client's index says now.
        if self.ring.push(cqe).is_err() {
            self.dead = true;
            return;
        }
        self.ring.publish();
    }

    /// What was made visible last is solicited, or an error of a queue pair's.
    #[cold]
    pub(crate) fn solicit(&self) {
        self.ring.solicit();
    }

    /// Makes a completion visible that had no place. Returns whether the client sleeps on the queue and must be woken.
    pub(crate) fn push_now(&mut self, cqe: &Cqe) -> Result<bool, NoRoom> {
        self.check_room()?;
        self.push(cqe);
        if cqe.ep != 0 {
            self.solicit();
        }
        Ok(self.take_armed())
    }

    /// Whether the client is to be told that the queue is dead: true once.
    pub(crate) fn take_dead(&mut self) -> bool {
        self.dead && !core::mem::replace(&mut self.told, true)
    }

    /// Whether the client sleeps on the queue and must be woken: true once per sleep.
    pub(crate) fn take_armed(&self) -> bool {
        self.ring.take_armed()
    }

    /// Whether a place is free (or the queue is dead, so that waiting is no use).
    pub(crate) fn has_room(&mut self) -> bool {
        self.check_room() != Err(NoRoom::Full)
    }

    #[inline]
    fn check_room(&mut self) -> Result<(), NoRoom> {
        if self.dead {
            return Err(NoRoom::Dead);
        }
        match self.ring.free(self.taken.saturating_add(1)) {
            Ok(free) if free > self.taken => Ok(()),
            Ok(_) => Err(NoRoom::Full),
            Err(Hostile { .. }) => {
                self.dead = true;
                Err(NoRoom::Dead)
            }
        }
    }
}
