//! The kernel side of the device's needs, as C functions.

use core::ops::Deref;
use usb4_device::{ClientId, Home, Port, QueueWords, RawLock};
use usb4_engine::{Post, RxToken, TxSlot};
use usb4_ring_abi::sync::AtomicU64;

unsafe extern "C" {
    safe fn usb4_home_random() -> u64;
    fn usb4_home_crc32c(crc: u32, bytes: *const u8, len: usize) -> u32;
    safe fn usb4_home_wake(waker: usize);
    safe fn usb4_home_relax();
    safe fn usb4_home_fetch_add(mem: usize, offset: u64, add: u64) -> u64;
    safe fn usb4_home_compare_swap(mem: usize, offset: u64, compare: u64, swap: u64) -> u64;
    safe fn usb4_home_store(mem: usize, offset: u64, value: u64);
    safe fn usb4_home_region_idle(client: u32);
    safe fn usb4_home_unpin(mem: usize);
    safe fn usb4_home_unmap_queue(queue: usize);
    safe fn usb4_home_queue_words(queue: usize) -> Pages;
    safe fn usb4_home_lock_new() -> usize;
    safe fn usb4_home_lock(lock: usize);
    safe fn usb4_home_unlock(lock: usize);
    safe fn usb4_home_lock_free(lock: usize);
    fn usb4_home_port_write(port: usize, slot: u16, at: u16, bytes: *const u8, len: usize);
    safe fn usb4_home_port_gather(port: usize, slot: u16, at: u16, len: u16, mem: usize, offset: u64);
    safe fn usb4_home_port_seal(port: usize, slot: u16, from: u16, to: u16);
    fn usb4_home_port_post(port: usize, rail: u8, slot: u16, len: u16, header: *const u8);
    safe fn usb4_home_port_scatter(port: usize, token: u32, at: u16, len: u16, mem: usize, offset: u64);
    safe fn usb4_home_port_release(port: usize, token: u32);
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

/// Where a queue's words are.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Pages {
    words: *const AtomicU64,
    count: usize,
}

/// A queue's memory, shared with a client, by the handle of the C side.
#[derive(Debug)]
pub struct QueuePages(pub usize);

impl Deref for QueuePages {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        let pages = usb4_home_queue_words(self.0);
        // SAFETY: the C side keeps these words mapped until `usb4_home_unmap_queue`, which comes with our drop.
        unsafe { core::slice::from_raw_parts(pages.words, pages.count) }
    }
}

// SAFETY: see `deref`.
unsafe impl QueueWords for QueuePages {}

impl Drop for QueuePages {
    fn drop(&mut self) {
        usb4_home_unmap_queue(self.0);
    }
}

/// A kernel spinlock, by the handle of the C side.
#[derive(Debug)]
pub struct KernelLock(usize);

// SAFETY: the C side takes and gives back a spinlock, with its ordering.
unsafe impl RawLock for KernelLock {
    fn new() -> Self {
        Self(usb4_home_lock_new())
    }

    fn lock(&self) {
        usb4_home_lock(self.0);
    }

    unsafe fn unlock(&self) {
        usb4_home_unlock(self.0);
    }
}

impl Drop for KernelLock {
    fn drop(&mut self) {
        usb4_home_lock_free(self.0);
    }
}

/// One link's buffers and rings, by the handle of the C side.
#[derive(Debug)]
pub struct KernelPort(pub usize);

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

    fn store(&self, mem: &Pinned, offset: u64, value: u64) {
        usb4_home_store(mem.0, offset, value);
    }

    fn region_idle(&self, client: ClientId) {
        usb4_home_region_idle(client.raw());
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
