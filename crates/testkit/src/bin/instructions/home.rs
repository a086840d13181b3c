//! A home whose every method is a function of its own, so that its cost can be told from the device's.

use std::cell::{Cell, Ref, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use usb4_device::{Home, Port, SpinLock};
use usb4_engine::{LinkConfig, Post, RxToken, TxSlot};
use usb4_ring_abi::{Entry, QueueGeometry};

const FRAME: usize = 4096;

/// The environment of one device.
pub(crate) struct CountedHome {
    random: AtomicU64,
}

impl CountedHome {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: AtomicU64::new(seed),
        }
    }
}

/// Zeroed words for a queue.
pub(crate) fn words<E: Entry>(depth: u32) -> Result<Arc<[AtomicU64]>> {
    let words = QueueGeometry::of::<E>(depth)
        .context("the size of a queue")?
        .words();
    Ok((0..words).map(|_| AtomicU64::new(0)).collect())
}

/// Registered memory.
pub(crate) struct Memory(Mutex<Vec<u8>>);

impl Memory {
    pub(crate) fn new(len: usize) -> Self {
        Self(Mutex::new(vec![0x5a; len]))
    }

    fn with<T>(&self, offset: u64, len: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        f(&mut bytes[from..][..len])
    }
}

impl Home for CountedHome {
    type Lock = SpinLock;
    type Queue = Arc<[AtomicU64]>;
    type Mem = Memory;
    type Waker = ();
    type Port = Wire;

    #[inline(never)]
    fn random(&self) -> u64 {
        let next = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        (next ^ (next >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[inline(never)]
    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        // No more than a value both ends agree on: the real one is the home's to pay for.
        bytes
            .len()
            .to_le_bytes()
            .iter()
            .fold(crc, |crc, byte| crc.rotate_left(5) ^ u32::from(*byte))
    }

    fn wake(&self, _: &()) {}

    fn relax(&self) {}

    fn fetch_add(&self, mem: &Memory, offset: u64, add: u64) -> u64 {
        let old = self.compare_swap(mem, offset, 0, 0);
        self.write(mem, offset, &old.wrapping_add(add).to_le_bytes());
        old
    }

    fn compare_swap(&self, mem: &Memory, offset: u64, compare: u64, swap: u64) -> u64 {
        mem.with(offset, 8, |place| {
            let mut word = [0; 8];
            word.copy_from_slice(place);
            let old = u64::from_le_bytes(word);
            if old == compare {
                place.copy_from_slice(&swap.to_le_bytes());
            }
            old
        })
    }

    fn write(&self, mem: &Memory, offset: u64, bytes: &[u8]) {
        mem.with(offset, bytes.len(), |place| place.copy_from_slice(bytes));
    }
}

/// One end of the cable: frame buffers, frames on their way, frames that have arrived.
pub(crate) struct Wire {
    slots: RefCell<Vec<[u8; FRAME]>>,
    posted: RefCell<VecDeque<(TxSlot, u16)>>,
    completed: RefCell<VecDeque<TxSlot>>,
    frames: RefCell<Vec<[u8; FRAME]>>,
    arrived: RefCell<VecDeque<(RxToken, u16)>>,
    free: RefCell<Vec<RxToken>>,
    sent: Cell<u64>,
}

impl Wire {
    pub(crate) fn new(config: &LinkConfig) -> Self {
        Self {
            slots: RefCell::new(vec![[0; FRAME]; usize::from(config.tx_slots)]),
            posted: RefCell::default(),
            completed: RefCell::default(),
            frames: RefCell::new(vec![[0; FRAME]; usize::try_from(config.rx_tokens).unwrap_or(0)]),
            arrived: RefCell::default(),
            free: RefCell::new((0..config.rx_tokens).map(RxToken).collect()),
            sent: Cell::new(0),
        }
    }

    /// Carries every posted frame to the other end.
    pub(crate) fn deliver(&self, to: &Wire) -> Result<()> {
        let slots = self.slots.borrow();
        for (slot, len) in self.posted.borrow_mut().drain(..) {
            let token = to
                .free
                .borrow_mut()
                .pop()
                .context("the receiver has no buffer left")?;
            let at = usize::try_from(token.0)?;
            to.frames.borrow_mut()[at][..usize::from(len)]
                .copy_from_slice(&slots[usize::from(slot.0)][..usize::from(len)]);
            to.arrived.borrow_mut().push_back((token, len));
            self.completed.borrow_mut().push_back(slot);
            self.sent.set(self.sent.get() + 1);
        }
        Ok(())
    }

    /// Frames carried from here.
    pub(crate) fn frames_sent(&self) -> u64 {
        self.sent.get()
    }

    #[inline(never)]
    pub(crate) fn take_completion(&self) -> Option<TxSlot> {
        self.completed.borrow_mut().pop_front()
    }

    #[inline(never)]
    pub(crate) fn take_arrival(&self) -> Option<(RxToken, u16)> {
        self.arrived.borrow_mut().pop_front()
    }

    #[inline(never)]
    pub(crate) fn frame(&self, token: RxToken) -> Ref<'_, [u8; FRAME]> {
        Ref::map(self.frames.borrow(), |frames| &frames[token.0 as usize])
    }
}

impl Port<Memory> for Wire {
    #[inline(never)]
    fn write(&self, slot: TxSlot, at: u16, bytes: &[u8]) {
        self.slots.borrow_mut()[usize::from(slot.0)][usize::from(at)..][..bytes.len()].copy_from_slice(bytes);
    }

    #[inline(never)]
    fn gather(&self, slot: TxSlot, at: u16, len: u16, mem: &Memory, offset: u64) {
        let len = usize::from(len);
        let to = &mut self.slots.borrow_mut()[usize::from(slot.0)][usize::from(at)..][..len];
        mem.with(offset, len, |from| to.copy_from_slice(from));
    }

    #[inline(never)]
    fn seal(&self, slot: TxSlot, _: u16, to: u16) {
        self.write(slot, to, &[0; 4]);
    }

    #[inline(never)]
    fn post(&self, post: &Post, header: &[u8; 40]) {
        self.write(post.slot, 0, header);
        self.posted.borrow_mut().push_back((post.slot, post.len));
    }

    #[inline(never)]
    fn scatter(&self, token: RxToken, at: u16, len: u16, mem: &Memory, offset: u64) {
        let len = usize::from(len);
        let from = &self.frames.borrow()[token.0 as usize][usize::from(at)..][..len];
        mem.with(offset, len, |to| to.copy_from_slice(from));
    }

    #[inline(never)]
    fn release(&self, token: RxToken) {
        self.free.borrow_mut().push(token);
    }
}
