//! The kernel side of the device's needs, as C functions.

use core::cell::UnsafeCell;
use core::ops::Deref;

use usb4_device::{ClientId, EndpointId, Home, Port, QpEvent, QueueWords, RawLock};
use usb4_engine::{Nanos, Post, RxToken, TxSlot};
use usb4_ring_abi::sync::AtomicU64;

use crate::abi::{Arrived, Turn};

unsafe extern "C" {
    safe fn usb4_home_now() -> u64;
    safe fn usb4_home_random() -> u64;
    fn usb4_home_crc32c(crc: u32, bytes: *const u8, len: usize) -> u32;
    safe fn usb4_home_wake(waker: usize);
    safe fn usb4_home_relax();
    safe fn usb4_home_must_yield() -> bool;
    safe fn usb4_home_fetch_add(mem: usize, offset: u64, add: u64) -> u64;
    safe fn usb4_home_compare_swap(mem: usize, offset: u64, compare: u64, swap: u64) -> u64;
    fn usb4_home_write(mem: usize, offset: u64, bytes: *const u8, len: usize);
    safe fn usb4_home_region_idle(client: u32);
    safe fn usb4_home_qp_event(client: u32, ep: u32, event: u32);
    safe fn usb4_home_cq_error(waker: usize);
    safe fn usb4_home_unpin(mem: usize);
    safe fn usb4_home_put_queue(queue: usize);
    fn usb4_home_lock_init(word: *mut u64);
    fn usb4_home_lock(word: *mut u64);
    fn usb4_home_unlock(word: *mut u64);
    fn usb4_home_port_write(port: usize, slot: u16, at: u16, bytes: *const u8, len: usize);
    safe fn usb4_home_port_gather(port: usize, slot: u16, at: u16, len: u16, mem: usize, offset: u64);
    safe fn usb4_home_port_seal(port: usize, slot: u16, from: u16, to: u16);
    fn usb4_home_port_post(port: usize, rail: u8, slot: u16, len: u16, header: *const u8);
    safe fn usb4_home_port_scatter(port: usize, token: u32, at: u16, len: u16, mem: usize, offset: u64);
    safe fn usb4_home_port_release(port: usize, token: u32);
    safe fn usb4_home_port_poll(port: usize, arrived: &mut Arrived);
    safe fn usb4_home_port_arm(port: usize);
    safe fn usb4_home_port_hand_over(port: usize, grace: u32);
    safe fn usb4_home_port_strange(port: usize, rail: u8, tag: u64);
    safe fn usb4_home_port_silent(port: usize, rail: u8);
    safe fn usb4_home_port_down(port: usize);
    safe fn usb4_home_port_joined(port: usize);
    safe fn usb4_home_port_chosen(port: usize);
    safe fn usb4_home_trace_turn(port: usize, turn: &Turn);
    safe fn usb4_home_rail_show(rail: u32, nonce: u64);
}

/// The kernel.
#[derive(Debug)]
pub struct KernelHome;

/// Pinned user memory, by the handle of the C side.
#[derive(Debug)]
pub struct Pinned(pub usize);

impl Drop for Pinned {
    fn drop(&mut self) {
        usb4_home_unpin(self.0);
    }
}

/// A queue's memory, shared with a client.
#[derive(Debug)]
pub struct QueuePages {
    words: *const AtomicU64,
    count: usize,
    /// The handle of the C side, on which this holds a reference.
    queue: usize,
}

impl QueuePages {
    /// Takes over a reference on a queue of the C side.
    ///
    /// # Safety
    /// `words` are `count` words that stay until `usb4_home_put_queue(queue)`.
    pub(crate) unsafe fn new(words: *const AtomicU64, count: usize, queue: usize) -> Self {
        Self { words, count, queue }
    }
}

impl Deref for QueuePages {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: by the contract of `new` they stay until our drop.
        unsafe { core::slice::from_raw_parts(self.words, self.count) }
    }
}

// SAFETY: see `deref`; the words are on pages of their own.
unsafe impl QueueWords for QueuePages {}
// SAFETY: atomic words and a number.
unsafe impl Send for QueuePages {}

impl Drop for QueuePages {
    fn drop(&mut self) {
        usb4_home_put_queue(self.queue);
    }
}

/// A kernel spinlock. The C side keeps it in this word if it fits, else a pointer to it; either may be moved while it is
/// not held.
#[derive(Debug)]
pub struct KernelLock(UnsafeCell<u64>);

// SAFETY: only the C side looks into the word, and it is made for several processors.
unsafe impl Send for KernelLock {}
// SAFETY: as above.
unsafe impl Sync for KernelLock {}

// SAFETY: the C side takes and gives back a spinlock, with its ordering.
unsafe impl RawLock for KernelLock {
    fn new() -> Self {
        let word = UnsafeCell::new(0);
        // SAFETY: the word is ours.
        unsafe { usb4_home_lock_init(word.get()) };
        Self(word)
    }

    #[inline]
    fn lock(&self) {
        // SAFETY: initialised by `new`.
        unsafe { usb4_home_lock(self.0.get()) }
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: initialised by `new`, and held by the caller.
        unsafe { usb4_home_unlock(self.0.get()) }
    }
}

/// One link's rails with their buffers and rings, by the handle of the C side.
#[derive(Clone, Copy, Debug)]
pub struct KernelPort(pub usize);

impl KernelPort {
    /// Takes what has arrived off the rings.
    #[inline]
    pub(crate) fn poll(self, arrived: &mut Arrived) {
        usb4_home_port_poll(self.0, arrived);
    }

    /// Has an interrupt come with the next frame. What came before is found by one more poll.
    pub(crate) fn arm(self) {
        usb4_home_port_arm(self.0);
    }

    /// Starts the hand-over timer, for so many nanoseconds.
    pub(crate) fn hand_over(self, grace: u32) {
        usb4_home_port_hand_over(self.0, grace);
    }

    /// Frames of a session nobody knows arrive on a rail.
    pub(crate) fn strange(self, rail: u8, tag: u64) {
        usb4_home_port_strange(self.0, rail, tag);
    }

    /// The peer answers nothing on a rail.
    pub(crate) fn silent(self, rail: u8) {
        usb4_home_port_silent(self.0, rail);
    }

    /// The link has failed.
    pub(crate) fn down(self) {
        usb4_home_port_down(self.0);
    }

    /// Clients have got the link.
    pub(crate) fn chosen(self) {
        usb4_home_port_chosen(self.0);
    }

    /// Something was counted, and somebody traces.
    pub(crate) fn trace(self, turn: &Turn) {
        usb4_home_trace_turn(self.0, turn);
    }

    /// The peer has given a nonce: [`crate::joins::usb4_core_link_joined`] is to be called.
    pub(crate) fn joined(self) {
        usb4_home_port_joined(self.0);
    }
}

impl Home for KernelHome {
    type Lock = KernelLock;
    type Queue = QueuePages;
    type Mem = Pinned;
    type Waker = usize;
    type Port = KernelPort;

    fn random(&self) -> u64 {
        usb4_home_random()
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc32c(crc, bytes)
    }

    fn wake(&self, waker: &usize) {
        usb4_home_wake(*waker);
    }

    fn relax(&self) {
        usb4_home_relax();
    }

    fn fetch_add(&self, mem: &Pinned, offset: u64, add: u64) -> u64 {
        usb4_home_fetch_add(mem.0, offset, add)
    }

    fn compare_swap(&self, mem: &Pinned, offset: u64, compare: u64, swap: u64) -> u64 {
        usb4_home_compare_swap(mem.0, offset, compare, swap)
    }

    fn write(&self, mem: &Pinned, offset: u64, bytes: &[u8]) {
        // SAFETY: the bytes are borrowed for the call.
        unsafe { usb4_home_write(mem.0, offset, bytes.as_ptr(), bytes.len()) }
    }

    fn region_idle(&self, client: ClientId) {
        usb4_home_region_idle(client.raw());
    }

    fn cq_error(&self, waker: &usize) {
        usb4_home_cq_error(*waker);
    }

    fn qp_event(&self, client: ClientId, qp: EndpointId, event: QpEvent) {
        usb4_home_qp_event(client.raw(), qp.raw(), crate::qp::event(event));
    }
}

impl Port<Pinned> for KernelPort {
    fn write(&self, slot: TxSlot, at: u16, bytes: &[u8]) {
        // SAFETY: the bytes are borrowed for the call.
        unsafe { usb4_home_port_write(self.0, slot.0, at, bytes.as_ptr(), bytes.len()) }
    }

    fn gather(&self, slot: TxSlot, at: u16, len: u16, mem: &Pinned, offset: u64) {
        usb4_home_port_gather(self.0, slot.0, at, len, mem.0, offset);
    }

    fn seal(&self, slot: TxSlot, from: u16, to: u16) {
        usb4_home_port_seal(self.0, slot.0, from, to);
    }

    fn post(&self, post: &Post, header: &[u8; 40]) {
        // SAFETY: the header is borrowed for the call.
        unsafe { usb4_home_port_post(self.0, post.rail.0, post.slot.0, post.len, header.as_ptr()) }
    }

    fn scatter(&self, token: RxToken, at: u16, len: u16, mem: &Pinned, offset: u64) {
        usb4_home_port_scatter(self.0, token.0, at, len, mem.0, offset);
    }

    fn release(&self, token: RxToken) {
        usb4_home_port_release(self.0, token.0);
    }
}

/// The kernel's CRC32C.
pub(crate) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: the bytes are borrowed for the call.
    unsafe { usb4_home_crc32c(crc, bytes.as_ptr(), bytes.len()) }
}

/// The kernel's random numbers.
pub(crate) fn random() -> u64 {
    usb4_home_random()
}

/// Has a rail's state machine told [`crate::bringup::RAIL_SHOW`].
pub(crate) fn rail_show(rail: u32, nonce: u64) {
    usb4_home_rail_show(rail, nonce);
}

/// A moment's pause, in which the caller may sleep.
pub(crate) fn relax() {
    usb4_home_relax();
}

/// Whether somebody else waits for this processor.
pub(crate) fn must_yield() -> bool {
    usb4_home_must_yield()
}

/// The kernel's monotonic clock.
pub(crate) fn now() -> Nanos {
    usb4_home_now()
}
