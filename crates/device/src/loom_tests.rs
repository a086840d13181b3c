//! Every interleaving of the lock, the ownership word and revocation:
//! `RUSTFLAGS="--cfg loom" cargo test -p usb4-device --release --lib loom`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use std::vec::Vec;
use usb4_engine::{MemRef, Slab};

use usb4_ring_abi::Slots;
use usb4_ring_abi::sync::AtomicU64 as QueueWord;

use crate::cq::Flags;
use crate::links::Turns;
use crate::lists::{Content, Lists, ListsSlot, list_words};
use crate::memory::{Domain, Region, Regions};
use crate::srq::Draws;
use crate::{Access, ClientId, EndpointId, Expired, Leave, Lock, Notified, Owner, SpinLock};

#[test]
fn loom_two_threads_never_hold_one_lock() {
    loom::model(|| {
        let lock = Arc::new(Lock::<SpinLock, u32>::new(0));
        let other = lock.clone();
        let thread = thread::spawn(move || *other.lock() += 1);
        *lock.lock() += 1;
        thread.join().unwrap();
        assert_eq!(*lock.lock(), 2);
    });
}

/// Work announced through an [`Owner`], and what a home does about it.
struct World {
    owner: Owner,
    /// Announced and not yet done.
    pending: AtomicU32,
    /// Touched by the owner only: loom fails the model if two do.
    exclusive: UnsafeCell<u32>,
    /// The home's thread was woken.
    woken: AtomicU32,
    /// The hand-over timer was started.
    timer: AtomicU32,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            owner: Owner::new(),
            pending: AtomicU32::new(0),
            exclusive: UnsafeCell::new(0),
            woken: AtomicU32::new(0),
            timer: AtomicU32::new(0),
        })
    }

    fn work(&self) {
        self.exclusive.with_mut(|_| ());
        self.pending.swap(0, Ordering::Relaxed);
    }

    /// What a client's `ENTER` does.
    fn spin(&self) -> bool {
        if !self.owner.try_spin() {
            return false;
        }
        loop {
            self.work();
            match self.owner.leave_spin(false, false) {
                Leave::Work => {}
                Leave::Watched => return true,
                Leave::StartTimer => {
                    self.timer.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
            }
        }
    }

    /// What the home's thread does when it is awake.
    fn thread(&self) {
        if !self.owner.try_thread() {
            return;
        }
        loop {
            self.work();
            if self.owner.try_sleep() {
                return;
            }
        }
    }

    /// What the home's thread does when others want its processor. With `force` it does not look at what is announced.
    fn thread_that_gives_way(&self, force: bool) {
        if !self.owner.try_thread() {
            return;
        }
        loop {
            self.work();
            match self.owner.leave_thread(force) {
                Leave::Work => {}
                Leave::Watched => return,
                Leave::StartTimer => {
                    self.timer.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    /// An event, or an entry posted by somebody who then returns to user space.
    fn announce(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        match self.owner.notify() {
            Notified::Owned | Notified::Left => {}
            Notified::Idle => {
                self.woken.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// When all have returned, whatever was started or woken happens; then nothing may be pending.
    fn settle(&self) {
        if self.woken.load(Ordering::Relaxed) != 0 {
            self.thread();
        }
        if self.timer.load(Ordering::Relaxed) != 0 {
            for _ in 0..3 {
                match self.owner.expired() {
                    Expired::Again => {}
                    Expired::Stop => break,
                    Expired::Taken => {
                        self.work();
                        while !self.owner.try_sleep() {
                            self.work();
                        }
                        break;
                    }
                }
            }
        }
        assert_eq!(
            self.pending.load(Ordering::Relaxed),
            0,
            "work was announced and nobody came"
        );
    }
}

fn race(parts: &[fn(&World)]) -> Arc<World> {
    let world = World::new();
    let threads: Vec<_> = parts
        .iter()
        .map(|part| {
            let (world, part) = (world.clone(), *part);
            thread::spawn(move || part(&world))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    world
}

#[test]
fn loom_an_event_while_a_spinner_leaves_is_not_lost() {
    loom::model(|| {
        race(&[World::announce, |world| {
            world.spin();
        }]);
    });
}

#[test]
fn loom_an_event_while_the_thread_goes_to_sleep_is_not_lost() {
    loom::model(|| race(&[World::announce, World::thread]).settle());
}

#[test]
fn loom_a_spinner_and_the_thread_never_own_together_and_lose_nothing() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        race(&[
            World::announce,
            |world| {
                world.spin();
            },
            World::thread,
        ])
        .settle();
    });
}

#[test]
fn loom_an_event_while_the_thread_gives_way_is_not_lost() {
    let ways: [fn(&World); 2] = [
        |world| world.thread_that_gives_way(false),
        |world| world.thread_that_gives_way(true),
    ];
    for thread in ways {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            race(&[
                World::announce,
                |world| {
                    world.spin();
                },
                thread,
            ])
            .settle();
        });
    }
}

#[test]
fn loom_two_spinners_never_own_together_and_one_does_the_work_of_both() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let post_and_enter = |world: &World| {
            world.pending.fetch_add(1, Ordering::Relaxed);
            while !world.spin() {
                if world.owner.notify() == Notified::Owned {
                    break;
                }
            }
        };
        let world = race(&[post_and_enter, post_and_enter]);
        // At once, without the timer's help.
        assert_eq!(world.pending.load(Ordering::Relaxed), 0);
        world.settle();
    });
}

/// Memory that only whoever may touch it touches: loom fails the model otherwise.
struct Memory(UnsafeCell<u32>);

// SAFETY: loom checks every access.
unsafe impl Sync for Memory {}

#[test]
fn loom_memory_is_not_taken_while_a_copy_phase_uses_it() {
    loom::model(|| {
        let client = ClientId::new(0, 1);
        let regions: Regions<SpinLock, Memory> = Regions::new(Slab::boxed(1), Slab::boxed(1)).unwrap();
        let region = Region {
            domain: Domain::of(client),
            addr: 0,
            len: 8,
            access: Access::LOCAL,
            peer: None,
        };
        let keys = regions
            .insert(region, Memory(UnsafeCell::new(0)), 0)
            .ok()
            .unwrap();
        let held = regions
            .acquire_local(Domain::of(client), keys.local, (0, 8), true)
            .unwrap();
        let home = Arc::new((regions, Lock::<SpinLock, ()>::new(()), Turns::default()));

        let copier = home.clone();
        let thread = thread::spawn(move || {
            let (regions, link, turns) = &*copier;
            let link = link.lock();
            let phase = turns.enter(&link);
            drop(link);
            if let Some(_phase) = phase {
                // SAFETY: `held` is not given back before the phase ends.
                if let Some(memory) = unsafe { regions.for_copy(held.mem) } {
                    memory.0.with_mut(|_| ());
                }
            }
            regions.release(keys.local);
        });
        let (regions, link, turns) = &*home;
        assert_eq!(regions.revoke(client, keys.local, true), Ok(true));
        turns.wait(link, thread::yield_now);
        // SAFETY: revoked above, and copies that were running have ended.
        let (_, memory) = unsafe { regions.take(keys.local) }.unwrap();
        memory.0.with_mut(|_| ());
        thread.join().unwrap();
        // Both references are gone: the place is free again.
        assert!(regions.insert(region, Memory(UnsafeCell::new(0)), 0).is_ok());
        assert!(regions.release(keys.local).is_none());
    });
}

#[test]
fn loom_a_queue_is_not_dropped_while_a_turn_looks_at_its_flags() {
    loom::model(|| {
        // What is dropped with the queue, the words, and the rest of the device.
        let queue = Memory(UnsafeCell::new(0));
        let words = QueueWord::new(usb4_ring_abi::ARMED);
        let (link, turns, flags) = (Lock::<SpinLock, ()>::new(()), Turns::default(), Flags::new());
        let home = Arc::new((queue, words, link, turns, flags));
        home.4.set(Some(&home.1));

        let other = home.clone();
        let thread = thread::spawn(move || {
            let (queue, _, link, turns, flags) = &*other;
            let held = link.lock();
            let phase = turns.enter(&held);
            drop(held);
            // SAFETY: in the copy phase.
            if phase.is_some() && unsafe { flags.are_armed() } {
                queue.0.with(|_| ());
            }
        });
        let (queue, _, link, turns, flags) = &*home;
        flags.set(None);
        turns.wait(link, thread::yield_now);
        queue.0.with_mut(|_| ());
        thread.join().unwrap();
    });
}

#[test]
fn loom_the_last_reference_of_a_dead_region_is_reported_once() {
    loom::model(|| {
        let client = ClientId::new(0, 1);
        let regions: Regions<SpinLock, u8> = Regions::new(Slab::boxed(1), Slab::boxed(1)).unwrap();
        let region = Region {
            domain: Domain::of(client),
            addr: 0,
            len: 8,
            access: Access::LOCAL,
            peer: None,
        };
        let keys = regions.insert(region, 7, 0).unwrap();
        let held = regions
            .acquire_local(Domain::of(client), keys.local, (0, 8), true)
            .unwrap();
        let regions = Arc::new(regions);
        let other = regions.clone();
        let thread = thread::spawn(move || other.release(u32::try_from(held.mem.0).unwrap()));
        let idle = regions.kill(client, keys.local).unwrap();
        let told = thread.join().unwrap();
        assert_eq!(
            idle,
            told.is_none(),
            "either the kill finds it idle or the release reports it"
        );
        assert_eq!(regions.revoke(client, keys.local, false), Ok(true));
        // SAFETY: revoked above without references.
        assert_eq!(unsafe { regions.take(keys.local) }, Some((8, 7)));
    });
}

/// Two receives that were taken from a shared receive queue complete while the queue pair goes to error and a third is to
/// be taken: whoever is last tells, and nobody else.
#[test]
fn loom_one_learns_that_a_queue_pair_has_taken_its_last_receive() {
    loom::model(|| {
        let draws = Arc::new(Draws::new());
        assert!(draws.take() && draws.take());
        let threads: Vec<_> = (0..2)
            .map(|taker| {
                let draws = draws.clone();
                thread::spawn(move || {
                    let mut told = u32::from(draws.end());
                    if taker == 1 && draws.take() {
                        told += u32::from(draws.end());
                    }
                    told
                })
            })
            .collect();
        let stopped = u32::from(draws.stop());
        let told: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(told + stopped, 1);
        assert!(!draws.take());
    });
}

/// Posts inline data of 8 bytes; the place it got.
fn take_place(lists: &Lists) -> Option<MemRef> {
    let slot: [QueueWord; 8] = Default::default();
    let owner = (EndpointId(1), false);
    let taken = lists.sq.copy(owner, &slot, 8, Content::Inline, |_| None, |_| ());
    taken.ok().flatten().map(|at| at.mem)
}

fn some_lists(depth: u32) -> Lists {
    let slots = Slots::of(64).unwrap();
    let words = Slab::boxed(list_words(depth, slots));
    Lists::new((depth, slots, words), (1, Slots::NONE, Slab::empty())).unwrap()
}

#[test]
fn loom_no_place_of_a_list_is_lost_or_given_out_twice() {
    loom::model(|| {
        let lists = Arc::new(some_lists(3));
        let mut held: Vec<_> = (0..3).map(|_| take_place(&lists).unwrap()).collect();
        assert!(take_place(&lists).is_none());
        let threads: Vec<_> = held
            .drain(..2)
            .map(|mem| {
                let lists = lists.clone();
                thread::spawn(move || lists.release(mem, |_| ()))
            })
            .collect();
        held.extend(take_place(&lists));
        for thread in threads {
            thread.join().unwrap();
        }
        while let Some(mem) = take_place(&lists) {
            held.push(mem);
        }
        held.sort_by_key(|mem| mem.0);
        held.dedup();
        assert_eq!(held.len(), 3);
    });
}

#[test]
fn loom_lists_are_not_taken_out_while_a_turn_copies_by_them() {
    loom::model(|| {
        let place = ListsSlot::default();
        place.put(EndpointId(1), some_lists(1));
        let home = Arc::new((place, Lock::<SpinLock, ()>::new(()), Turns::default()));
        let copier = home.clone();
        let thread = thread::spawn(move || {
            let (place, link, turns) = &*copier;
            let link = link.lock();
            let phase = turns.enter(&link);
            drop(link);
            if phase.is_some() {
                // SAFETY: the copy phase is on.
                if let Some(lists) = unsafe { place.get(1) } {
                    assert_eq!(lists.sq.slots(), Slots::of(64).unwrap());
                }
            }
        });
        let (place, link, turns) = &*home;
        place.hide(EndpointId(1));
        turns.wait(link, thread::yield_now);
        // SAFETY: hidden above, and copies that were running have ended.
        assert!(unsafe { place.take() }.is_some());
        thread.join().unwrap();
    });
}
