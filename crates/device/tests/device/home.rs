//! What a device is given: memory, locks, frame buffers; without threads, and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use usb4_device::{ClientId, EndpointId, Home, Port, QpEvent, RawLock, SpinLock};
use usb4_engine::{LinkConfig, Post, RxToken, TxSlot};

pub(crate) const FRAME: usize = 4096;

pub(crate) type Words = Arc<[AtomicU64]>;

/// Registered memory: bytes, and how often the device has used them.
#[derive(Clone, Default)]
pub(crate) struct Memory(pub(crate) Arc<Mutex<Vec<u8>>>, pub(crate) Arc<Uses>);

/// Copies to and from a [`Memory`].
#[derive(Default)]
pub(crate) struct Uses {
    pub(crate) running: AtomicU32,
    pub(crate) begun: AtomicU32,
}

impl Memory {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(Arc::new(Mutex::new(bytes.to_vec())), Arc::default())
    }

    pub(crate) fn zeroed(len: usize) -> Self {
        Self::of(&vec![0; len])
    }

    /// What the device does with it.
    fn used<T>(&self, f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.1.begun.fetch_add(1, Ordering::SeqCst);
        self.1.running.fetch_add(1, Ordering::SeqCst);
        let result = f(&mut self.0.lock().unwrap());
        self.1.running.fetch_sub(1, Ordering::SeqCst);
        result
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    fn u64_at(&self, offset: u64, f: impl FnOnce(u64) -> Option<u64>) -> u64 {
        self.used(|bytes| {
            let place = &mut bytes[offset as usize..][..8];
            let old = u64::from_le_bytes((&*place).try_into().unwrap());
            if let Some(new) = f(old) {
                place.copy_from_slice(&new.to_le_bytes());
            }
            old
        })
    }
}

std::thread_local! {
    /// Locks the thread holds.
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    /// Most of them at a wake-up, since a test set it to 0.
    pub(crate) static HELD_AT_WAKE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Counts what its thread holds.
pub(crate) struct CountedLock(SpinLock);

// SAFETY: the spin lock keeps the promise.
unsafe impl RawLock for CountedLock {
    fn new() -> Self {
        Self(RawLock::new())
    }

    fn lock(&self) {
        self.0.lock();
        HELD.set(HELD.get() + 1);
    }

    unsafe fn unlock(&self) {
        HELD.set(HELD.get() - 1);
        // SAFETY: the caller's promise.
        unsafe { self.0.unlock() }
    }
}

/// What another thread does at that moment, for a test.
pub(crate) type Happening = Box<dyn FnOnce() + Send>;

/// A home without threads.
pub(crate) struct TestHome {
    random: AtomicU64,
    pub(crate) idle: AtomicU32,
    pub(crate) events: Mutex<Vec<(EndpointId, QpEvent)>>,
    /// Completion queues that were corrupted.
    pub(crate) bad_cqs: AtomicU32,
    /// How often somebody has waited for another thread's turn.
    pub(crate) relaxed: AtomicU32,
    /// What happens, once, when a client is woken.
    pub(crate) at_wake: Mutex<Option<Happening>>,
}

impl TestHome {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: AtomicU64::new(seed),
            idle: AtomicU32::new(0),
            events: Mutex::default(),
            bad_cqs: AtomicU32::new(0),
            relaxed: AtomicU32::new(0),
            at_wake: Mutex::default(),
        }
    }
}

impl Home for TestHome {
    type Lock = CountedLock;
    type Queue = Words;
    type Mem = Memory;
    type Waker = Arc<AtomicU32>;
    type Port = TestPort;

    fn random(&self) -> u64 {
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc, bytes)
    }

    fn wake(&self, waker: &Self::Waker) {
        HELD_AT_WAKE.set(HELD_AT_WAKE.get().max(HELD.get()));
        waker.fetch_add(1, Ordering::Relaxed);
        if let Some(happen) = self.at_wake.lock().unwrap().take() {
            happen();
        }
    }

    fn relax(&self) {
        self.relaxed.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
    }

    fn fetch_add(&self, mem: &Memory, offset: u64, add: u64) -> u64 {
        mem.u64_at(offset, |old| Some(old.wrapping_add(add)))
    }

    fn compare_swap(&self, mem: &Memory, offset: u64, compare: u64, swap: u64) -> u64 {
        mem.u64_at(offset, |old| (old == compare).then_some(swap))
    }

    fn write(&self, mem: &Memory, offset: u64, bytes: &[u8]) {
        mem.used(|memory| memory[offset as usize..][..bytes.len()].copy_from_slice(bytes));
    }

    fn region_idle(&self, _client: ClientId) {
        self.idle.fetch_add(1, Ordering::Relaxed);
    }

    fn cq_error(&self, _waker: &Self::Waker) {
        self.bad_cqs.fetch_add(1, Ordering::Relaxed);
    }

    fn qp_event(&self, _client: ClientId, qp: EndpointId, event: QpEvent) {
        self.events.lock().unwrap().push((qp, event));
    }
}

/// Frame buffers of one link, and the frames posted and not yet delivered.
pub(crate) struct TestPort {
    slots: Mutex<Vec<Vec<u8>>>,
    pub(crate) sent: Mutex<VecDeque<(TxSlot, Vec<u8>)>>,
    pub(crate) received: Mutex<Vec<Vec<u8>>>,
    pub(crate) free: Mutex<Vec<RxToken>>,
    /// What happens, once, when the head of a frame has been written, without locks, whose payload is to follow.
    pub(crate) at_head: Mutex<Option<Happening>>,
}

impl TestPort {
    pub(crate) fn new(config: &LinkConfig) -> Self {
        Self {
            slots: Mutex::new(vec![vec![0; FRAME]; usize::from(config.tx_slots)]),
            sent: Mutex::default(),
            received: Mutex::new(vec![Vec::new(); config.rx_tokens as usize]),
            free: Mutex::new((0..config.rx_tokens).rev().map(RxToken).collect()),
            at_head: Mutex::default(),
        }
    }

    pub(crate) fn free_tokens(&self) -> usize {
        self.free.lock().unwrap().len()
    }
}

impl Port<Memory> for TestPort {
    fn write(&self, slot: TxSlot, at: u16, bytes: &[u8]) {
        self.slots.lock().unwrap()[usize::from(slot.0)][usize::from(at)..][..bytes.len()]
            .copy_from_slice(bytes);
        if at == 40 && HELD.get() == 0 {
            if let Some(happen) = self.at_head.lock().unwrap().take() {
                happen();
            }
        }
    }

    fn gather(&self, slot: TxSlot, at: u16, len: u16, mem: &Memory, offset: u64) {
        let bytes = mem.used(|bytes| bytes[offset as usize..][..usize::from(len)].to_vec());
        self.write(slot, at, &bytes);
    }

    fn seal(&self, slot: TxSlot, from: u16, to: u16) {
        let crc = crc32c::crc32c(
            &self.slots.lock().unwrap()[usize::from(slot.0)][usize::from(from)..usize::from(to)],
        );
        self.write(slot, to, &crc.to_le_bytes());
    }

    fn post(&self, post: &Post, header: &[u8; 40]) {
        self.write(post.slot, 0, header);
        let frame = self.slots.lock().unwrap()[usize::from(post.slot.0)][..usize::from(post.len)].to_vec();
        self.sent.lock().unwrap().push_back((post.slot, frame));
    }

    fn scatter(&self, token: RxToken, at: u16, len: u16, mem: &Memory, offset: u64) {
        let frames = self.received.lock().unwrap();
        let bytes = &frames[token.0 as usize][usize::from(at)..][..usize::from(len)];
        mem.used(|memory| memory[offset as usize..][..bytes.len()].copy_from_slice(bytes));
    }

    fn release(&self, token: RxToken) {
        self.free.lock().unwrap().push(token);
    }
}
