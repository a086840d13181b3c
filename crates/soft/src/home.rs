//! What a process gives the device: locks, memory, randomness, wake-ups.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::{io, ptr};

use usb4_device::{ClientId, Home};

use crate::cable::Cable;
use crate::crc::crc32c;
use crate::fork::Descriptor;
use crate::lock::QuickLock;
use crate::memory::Mapping;
use crate::queue::QueueMemory;
use crate::socket;

/// The environment of a soft device.
#[derive(Debug, Default)]
pub(crate) struct SoftHome {
    /// A region that was in use when it was deregistered is in use no longer.
    idle_regions: AtomicBool,
}

impl SoftHome {
    /// Whether [`usb4_device::Device::reclaim`] may succeed now where it did not before.
    pub(crate) fn take_idle_regions(&self) -> bool {
        self.idle_regions.load(Ordering::Relaxed) && self.idle_regions.swap(false, Ordering::Acquire)
    }
}

impl Home for SoftHome {
    type Lock = QuickLock;
    type Queue = QueueMemory;
    type Mem = Memory;
    type Waker = Arc<Bell>;
    type Port = Cable;

    fn random(&self) -> u64 {
        random()
    }

    #[inline]
    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc32c(crc, bytes)
    }

    fn wake(&self, waker: &Arc<Bell>) {
        waker.ring();
    }

    fn relax(&self) {
        std::thread::yield_now();
    }

    fn fetch_add(&self, mem: &Memory, offset: u64, add: u64) -> u64 {
        mem.atomic(offset).fetch_add(add, Ordering::SeqCst)
    }

    fn compare_swap(&self, mem: &Memory, offset: u64, compare: u64, swap: u64) -> u64 {
        let cell = mem.atomic(offset);
        match cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(old) | Err(old) => old,
        }
    }

    fn write(&self, mem: &Memory, offset: u64, bytes: &[u8]) {
        // SAFETY: the device has checked that they are within the region.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), mem.at(offset), bytes.len()) };
    }

    fn region_idle(&self, _client: ClientId) {
        self.idle_regions.store(true, Ordering::Release);
    }
}

/// 64 bits nobody can predict.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the kernel writes at most 8 bytes to `bytes`. Requests this small are never cut short once the
    // kernel's generator is seeded, which the call waits for.
    while unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } != 8 {}
    u64::from_ne_bytes(bytes)
}

/// Memory the device may reach: where it starts in this process.
#[derive(Debug)]
pub(crate) struct Memory {
    start: *mut u8,
    /// What keeps it mapped, where that is ours to do.
    _owner: Option<Arc<Mapping>>,
}

// SAFETY: whoever made it vouched for the memory (see the constructors); the pointer itself can go anywhere.
unsafe impl Send for Memory {}
// SAFETY: accesses through it are raw copies and atomics.
unsafe impl Sync for Memory {}

impl Memory {
    /// Shared memory, kept mapped.
    pub(crate) fn mapped(mapping: Arc<Mapping>) -> Self {
        Self {
            start: mapping.as_ptr(),
            _owner: Some(mapping),
        }
    }

    /// Memory of this process from `start`.
    ///
    /// # Safety
    /// What the device is told about it (a region's length, or for `start` = null whatever entries name) stays
    /// mapped and may be read and written as long as the device has this.
    pub(crate) unsafe fn process(start: *mut u8) -> Self {
        Self { start, _owner: None }
    }

    /// The address of `offset`.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        // x86-64: an address has 64 bits. The device has checked the range.
        self.start.wrapping_add(usize::try_from(offset).unwrap_or(0))
    }

    fn atomic(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: the device has checked that the 8 bytes are within the region and aligned in it, and a region
        // peers may do atomics on starts aligned (checked when it is registered).
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }
}

/// Wakes a client that sleeps on a completion queue. The descriptor is made when it is first asked for.
#[derive(Debug, Default)]
pub struct Bell(OnceLock<Wakeup>);

#[derive(Debug)]
struct Wakeup {
    /// What is rung, and silenced by reading.
    doorbell: Descriptor,
    /// What is waited on, where that is more than the doorbell.
    wait: Option<OwnedFd>,
}

impl Bell {
    /// What somebody else rings.
    ///
    /// # Errors
    /// The C library cannot take a fork handler.
    pub fn new(doorbell: OwnedFd) -> io::Result<Self> {
        let doorbell = Descriptor::new(doorbell)?;
        let wait = None;
        Ok(Self(OnceLock::from(Wakeup { doorbell, wait })))
    }

    /// A doorbell of another process, and what to wait on for it.
    pub(crate) fn combined(doorbell: OwnedFd, wait: OwnedFd) -> io::Result<Self> {
        let doorbell = Descriptor::new(doorbell)?;
        let wait = Some(wait);
        Ok(Self(OnceLock::from(Wakeup { doorbell, wait })))
    }

    /// The descriptor to wait on.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        let wakeup = match self.0.get() {
            Some(wakeup) => wakeup,
            None => {
                let doorbell = Descriptor::new(socket::doorbell()?)?;
                let wait = None;
                self.0.get_or_init(|| Wakeup { doorbell, wait })
            }
        };
        Ok(wakeup.wait.as_ref().map_or(wakeup.doorbell.as_fd(), AsFd::as_fd))
    }

    fn ring(&self) {
        if let Some(wakeup) = self.0.get() {
            socket::ring(&wakeup.doorbell);
        }
    }

    /// Makes it unreadable until it rings again.
    pub fn silence(&self) {
        if let Some(wakeup) = self.0.get() {
            socket::silence(&wakeup.doorbell);
        }
    }
}
