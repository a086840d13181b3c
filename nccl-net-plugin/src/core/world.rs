//! What a process has: the device, its hubs, and the contexts NCCL has made.
//!
//! Made at the first `init` and never freed, so that a call always finds it. A child of `fork` makes another one if it
//! calls `init`; what it has inherited names its parent's world, and is refused before a lock is touched.
//!
//! **Hubs.** From v11 on NCCL makes a context per communicator, and one thread moves its data: each context has a hub of
//! its own, so that no two such threads meet at a lock, until there are more contexts than hubs. Before v11 there is no
//! context; there a hub is chosen by the thread that listens or connects, which NCCL has one of per communicator. That is a
//! guess for speed only: any thread may call anything.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use nccl_net_sys::ncclDebugLogger_t;
use parking_lot::Mutex;
use usb4_ffi::Process;
use usb4_ring::Device;

use super::device::{self, Facts};
use super::fault::{Blame, Fault};
use super::hub::{Hub, Inner, Place};
use super::id::{Id, Kind};
use super::log::set_logger;
use super::params::Params;
use super::table::{Key, Table};

/// Hubs of a process. Each is an endpoint, two completion queues and about 600 KiB of buffers.
const HUBS: usize = 16;

/// Hubs that are used where there are no contexts.
const LEGACY_HUBS: u8 = 4;

/// From the first generation of one hub's objects to that of the next: some bits of any part of it differ for long.
const HUB_GENERATIONS: u32 = 0x0123_4567;

/// How long `finalize` waits until its last words have left.
const LAST_WORDS: Duration = Duration::from_millis(5);

/// A process's part of everything.
#[derive(Debug)]
pub(crate) struct World {
    process: Process,
    number: u8,
    hubs: [Hub; HUBS],
    facts: Mutex<Option<Facts>>,
    state: Mutex<State>,
    /// The hub of each. Apart from the rest, which is held while a device is opened.
    contexts: Mutex<Table<u8>>,
    /// Tells the objects of a hub from those of the one before in its place.
    generation: AtomicU32,
}

#[derive(Debug)]
struct State {
    device: Option<(Device, Params)>,
    /// Contexts per hub.
    users: [u32; HUBS],
    /// Somebody has called an `init` without contexts: nobody will say when it is over.
    legacy: bool,
}

/// This process's, or its parent's if it has not called `init`.
static WORLD: AtomicPtr<World> = AtomicPtr::new(null_mut());

impl World {
    fn latest() -> Option<&'static Self> {
        // SAFETY: NULL, or a box that was leaked.
        unsafe { WORLD.load(Ordering::Acquire).as_ref() }
    }

    /// This process's.
    #[inline]
    pub(crate) fn current() -> Result<&'static Self, Fault> {
        match Self::latest() {
            Some(world) if world.process.is_current() => Ok(world),
            // Nothing is logged: a thread that is not there in the child may hold NCCL's lock.
            Some(_) => Err(Fault::told(Blame::System)),
            None => Err(Fault::internal("called before init()")),
        }
    }

    /// This process's, from now on.
    fn make() -> &'static Self {
        let latest = Self::latest();
        if let Some(world) = latest.filter(|world| world.process.is_current()) {
            return world;
        }
        let new = Box::leak(Box::new(Self {
            process: Process::current(),
            number: latest.map_or(0, |world| world.number.wrapping_add(1) & 0xf),
            hubs: Default::default(),
            facts: Mutex::default(),
            state: Mutex::new(State {
                device: None,
                users: [0; HUBS],
                legacy: false,
            }),
            contexts: Mutex::new(Table::new(u32::MAX, 0)),
            generation: AtomicU32::new(0),
        }));
        let before = latest.map_or(null_mut(), |world| std::ptr::from_ref(world).cast_mut());
        match WORLD.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            // Another thread was quicker; what is lost are a few hundred bytes.
            Err(_) => Self::latest().unwrap_or(new),
        }
    }

    /// The hub an object is in.
    #[inline]
    pub(crate) fn hub_of(id: Id, kind: Kind) -> Result<&'static Hub, Fault> {
        let world = Self::current()?;
        if id.is(kind) && id.world() == world.number {
            if let Some(hub) = world.hubs.get(usize::from(id.hub())) {
                return Ok(hub);
            }
        } else if Self::is_inherited(id, world) {
            return Err(Fault::told(Blame::System));
        }
        Err(Fault::internal("called with a pointer that is none of ours"))
    }

    /// Whether it was made by the process this one was forked from.
    fn is_inherited(id: Id, world: &Self) -> bool {
        id.raw() != 0 && id.world() != world.number && id.world() < world.number
    }

    /// A call has waited in vain: what it waits for may be up to another hub of this process whose thread does not call, or
    /// is the same.
    #[cold]
    pub(crate) fn look_around(but: &Hub) {
        let Ok(world) = Self::current() else { return };
        for hub in &world.hubs {
            if !std::ptr::eq(hub, but) {
                hub.look_in();
            }
        }
    }

    fn hub(&self, hub: u8) -> &Hub {
        &self.hubs[usize::from(hub) % HUBS]
    }

    fn place(&self, hub: u8) -> Place {
        Place {
            world: self.number,
            hub,
        }
    }

    /// `init` before v11.
    pub(crate) fn init(logger: ncclDebugLogger_t) -> Result<(), Fault> {
        set_logger(logger);
        let world = Self::make();
        let mut state = world.state.lock();
        world.open_device(&mut state)?;
        state.legacy = true;
        world.open_hub(&state, legacy_hub())
    }

    /// `init` from v11 on.
    pub(crate) fn init_context(logger: ncclDebugLogger_t) -> Result<Id, Fault> {
        set_logger(logger);
        let world = Self::make();
        let mut state = world.state.lock();
        let result = world.add_context(&mut state);
        world.close_device(&mut state);
        result
    }

    fn add_context(&self, state: &mut State) -> Result<Id, Fault> {
        self.open_device(state)?;
        let quietest = (0..).zip(&state.users).min_by_key(|(_, users)| **users);
        let hub = quietest.map_or(0, |(hub, _)| hub);
        self.open_hub(state, hub)?;
        let context = self.contexts.lock().insert(hub);
        let context = context.map_err(|_| Fault::new(Blame::System, "too many contexts"))?;
        state.users[usize::from(hub)] += 1;
        Ok(self.place(hub).id(Kind::Context, context))
    }

    /// Makes sure that there is a device which works.
    fn open_device(&self, state: &mut State) -> Result<(), Fault> {
        let params = Params::from_env()?;
        let device = match &state.device {
            Some((device, _)) if device.check().is_ok() => {
                device::check(device)?;
                device.clone()
            }
            _ => device::open()?,
        };
        *self.facts.lock() = Some(device::facts(&device, &params));
        state.device = Some((device, params));
        Ok(())
    }

    /// Lets go of a device nobody needs.
    fn close_device(&self, state: &mut State) {
        if self.contexts.lock().is_empty() && !state.legacy {
            state.device = None;
        }
    }

    /// Makes sure that a hub can be used.
    fn open_hub(&self, state: &State, hub: u8) -> Result<(), Fault> {
        if self.hub(hub).is_usable() {
            return Ok(());
        }
        let Some((device, params)) = &state.device else {
            return Err(Fault::internal("called without a device"));
        };
        let first = self.generation.fetch_add(HUB_GENERATIONS, Ordering::Relaxed);
        let inner = Inner::new(self.place(hub), device, params.eager, first);
        let inner = inner.map_err(|error| {
            Fault::new(
                Blame::System,
                format_args!("rail {}: cannot make an endpoint: {error}", device.info().name),
            )
        })?;
        drop(self.hub(hub).put(Box::new(inner)));
        Ok(())
    }

    /// How many devices there are.
    pub(crate) fn devices() -> Result<i32, Fault> {
        Ok(i32::from(Self::current()?.facts.lock().is_some()))
    }

    /// What device 0 is.
    pub(crate) fn facts(device: i32) -> Result<Facts, Fault> {
        let facts = *Self::current()?.facts.lock();
        facts
            .filter(|_| device == 0)
            .ok_or_else(|| Fault::internal(format_args!("there is no device {device}")))
    }

    /// The hub and the context of a call with a context.
    pub(crate) fn context(context: *mut c_void) -> Result<(&'static Hub, Place, u64), Fault> {
        let id = Id::from_pointer(context);
        let hub = Self::hub_of(id, Kind::Context)?;
        let world = Self::current()?;
        if world.contexts.lock().get(id.key()).is_none() {
            return Err(Fault::internal("called with a context that has been finalized"));
        }
        Ok((hub, world.place(id.hub()), id.raw()))
    }

    /// The hub of a call without one.
    pub(crate) fn legacy() -> Result<(&'static Hub, Place, u64), Fault> {
        let world = Self::current()?;
        let number = legacy_hub();
        let hub = world.hub(number);
        if !hub.is_open() {
            world.open_hub(&world.state.lock(), number)?;
        }
        Ok((hub, world.place(number), 0))
    }

    /// `finalize`.
    pub(crate) fn finalize(context: *mut c_void) -> Result<(), Fault> {
        let id = Id::from_pointer(context);
        let hub = Self::hub_of(id, Kind::Context)?;
        let world = Self::current()?;
        let mut state = world.state.lock();
        let Some(number) = world.contexts.lock().remove(id.key()) else {
            return Err(Fault::internal("finalize() of a context that has been finalized"));
        };
        let users = &mut state.users[usize::from(number) % HUBS];
        *users = users.saturating_sub(1);
        let is_last = *users == 0 && !(state.legacy && number < LEGACY_HUBS);
        drop(hub.with(|inner| inner.close_context(id.raw()))?);
        if is_last {
            let place = world.place(number);
            hub.with(|inner| {
                inner
                    .peers
                    .probe_all(&mut inner.port, |peer: Key| place.id(Kind::Probe, peer));
            })?;
            hub.drain(LAST_WORDS, |inner| !inner.peers.are_probing())?;
            drop(hub.take());
        }
        world.close_device(&mut state);
        if world.contexts.lock().is_empty() && !state.legacy {
            *world.facts.lock() = None;
            set_logger(None);
        }
        Ok(())
    }
}

/// The hub of the calling thread.
fn legacy_hub() -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    thread_local! {
        static MINE: Cell<Option<u8>> = const { Cell::new(None) };
    }
    MINE.get().unwrap_or_else(|| {
        let mine = NEXT.fetch_add(1, Ordering::Relaxed) % LEGACY_HUBS;
        MINE.set(Some(mine));
        mine
    })
}
