//! What an environment gives the device.

use core::ops::Deref;

use usb4_engine::{Post, RxToken, TxSlot};
use usb4_ring_abi::sync::AtomicU64;

use crate::{ClientId, EndpointId, QpEvent, RawLock};

/// The words of a queue.
///
/// # Safety
/// They stay where they are until this is dropped, wherever this itself is moved.
pub unsafe trait QueueWords: Deref<Target = [AtomicU64]> + Send {}

#[cfg(any(test, feature = "alloc"))]
// SAFETY: they are on the heap.
unsafe impl QueueWords for alloc::sync::Arc<[AtomicU64]> {}

/// An environment: the kernel, a process with the soft device, a test.
///
/// Methods may be called from any thread that calls into the device, those marked *locked* while the device
/// holds a lock: they must not call back into the device or sleep for long.
pub trait Home: Sized + Send + Sync + 'static {
    /// A mutual exclusion lock; may be a spinlock.
    type Lock: RawLock;
    /// Memory of a queue shared with a client; zeroed when it is handed over. Dropped, without a lock held, when
    /// its queue is destroyed.
    type Queue: QueueWords;
    /// Registered memory: whatever [`Port::gather`] and friends need to reach it (pinned pages, a mapping).
    /// Dropped, without a lock held, when nothing can touch it any more.
    type Mem: Send + Sync;
    /// How to wake whoever sleeps on a completion queue.
    type Waker: Send;
    /// One link's frame buffers and rails; see [`Port`].
    type Port: Port<Self::Mem>;

    /// 64 random bits that a peer or another client cannot predict. *Locked.*
    fn random(&self) -> u64;
    /// CRC32C (Castagnoli) of `bytes` continued from `crc` (0 to begin). *Locked.*
    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32;
    /// Wakes the client that armed this completion queue. *Locked.*
    fn wake(&self, waker: &Self::Waker);
    /// A moment's pause while another thread finishes copying: yield or relax the processor.
    fn relax(&self);

    /// Atomically adds to the 8 bytes at `offset` (8-aligned, within the region); returns the old value.
    fn fetch_add(&self, mem: &Self::Mem, offset: u64, add: u64) -> u64;
    /// Atomically replaces the 8 bytes at `offset` (8-aligned, within the region) with `swap` if they equal
    /// `compare`; returns the old value.
    fn compare_swap(&self, mem: &Self::Mem, offset: u64, compare: u64, swap: u64) -> u64;
    /// Writes a few bytes at `offset` (within the region).
    fn write(&self, mem: &Self::Mem, offset: u64, bytes: &[u8]);

    /// The last reference on a region that was deregistered while in use is gone:
    /// [`crate::Device::reclaim`] will succeed. *Locked.*
    fn region_idle(&self, client: ClientId) {
        let _ = client;
    }

    /// A completion queue was corrupted by its client; told once. *Locked.*
    fn cq_error(&self, waker: &Self::Waker) {
        let _ = waker;
    }

    /// Something has happened to a queue pair, or a shared receive queue, that no completion tells. *Locked.*
    fn qp_event(&self, client: ClientId, qp: EndpointId, event: QpEvent) {
        let _ = (client, qp, event);
    }
}

/// The home's side of one link: its TX and RX frame buffers and its rails. Passed through
/// [`crate::Device::service`] and friends to where it is needed; the device keeps none.
///
/// Offsets into frames and regions have been checked: `at + len` is within the frame, `offset + len` within the
/// region.
pub trait Port<Mem> {
    /// Writes bytes into a TX frame at `at`.
    fn write(&self, slot: TxSlot, at: u16, bytes: &[u8]);
    /// Copies registered memory into a TX frame at `at`.
    fn gather(&self, slot: TxSlot, at: u16, len: u16, mem: &Mem, offset: u64);
    /// Writes the CRC32C of bytes `from..to` of a TX frame at `to`, little endian.
    fn seal(&self, slot: TxSlot, from: u16, to: u16);
    /// Writes the header at the start of the slot and queues the slot on the rail's TX ring. There is room: no
    /// more than the rail's `tx_depth` are pending. Called in the order in which frames must leave; *locked*.
    fn post(&self, post: &Post, header: &[u8; 40]);
    /// Whether the neighbour may have to be woken since the last [`Self::kick`].
    #[inline]
    fn must_kick(&self) -> bool {
        false
    }
    /// Wakes the neighbour if it sleeps. Called at the end of a turn, after a sequentially consistent fence, if
    /// [`Self::must_kick`].
    #[inline]
    fn kick(&self) {}
    /// Copies `len` bytes at `at` of a received frame to registered memory.
    fn scatter(&self, token: RxToken, at: u16, len: u16, mem: &Mem, offset: u64);
    /// A receive buffer the link had kept is free again. *Locked.*
    fn release(&self, token: RxToken);
}
