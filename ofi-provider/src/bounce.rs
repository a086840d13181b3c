//! Memory of messages where the device reaches only what is registered, as the kernel module does.
//!
//! A short message is copied to a buffer of ours. Of a long one the sender exposes its memory and the receiver registers
//! its own, for as long as the message takes: what a process unmaps between messages is not known here, so nothing is
//! kept registered.
//!
//! What cannot be pinned (memory that is read-only, or a file's) is copied as well: by the sender as a whole, by the
//! receiver through a few buffers that are there from the beginning. So a read can always go on, whatever the process
//! may pin; else two hosts that have each exposed all they may would wait for each other.

use std::sync::atomic::{AtomicU32, Ordering};

use usb4_ffi::{Level, log};
use usb4_ring::{Access, Buffer, Device, Error, MemoryRegion, Registration};
use usb4_tagged::{PostError, STAGE_LEN, Segment};

/// Buffers for parts of messages that are read: how many, and their bytes.
const READS: usize = 8;
const READ_LEN: usize = 32 << 10;

/// Buffers for messages that are allocated first; then as many again as there are.
const FIRST: usize = 16;

/// Registrations of this process that end with the message they are made for.
static PINNED: AtomicU32 = AtomicU32::new(0);

/// Memory of a message, registered.
#[derive(Debug)]
pub(crate) struct Pinned(Registration);

impl Pinned {
    fn new(registration: Registration) -> Self {
        PINNED.fetch_add(1, Ordering::Relaxed);
        Self(registration)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        PINNED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Memory that peers may read.
#[derive(Debug)]
pub(crate) enum Exposed {
    InPlace(Pinned),
    Copied(MemoryRegion),
}

impl Exposed {
    /// # Errors
    /// [`PostError::Full`]: once messages under way have ended it may be registered. [`PostError::Resource`]: it cannot.
    ///
    /// # Safety
    /// The memory stays readable until the result is dropped.
    pub(crate) unsafe fn new(device: &Device, memory: Segment) -> Result<Self, PostError> {
        let len = bytes(memory.len);
        let rights = Access::REMOTE_READ | Access::READ_ONLY;
        // SAFETY: promised by the caller.
        let refused = match unsafe { device.expose(memory.addr as *mut u8, len, rights) } {
            Ok(registration) => return Ok(Self::InPlace(Pinned::new(registration))),
            Err(error) => error,
        };
        if !cannot_be_pinned(&refused) {
            return Err(explain(&refused, len, PINNED.load(Ordering::Relaxed) > 0));
        }
        let busy = PINNED.load(Ordering::Relaxed) > 0;
        let copy = device.alloc(len, Access::REMOTE_READ);
        let copy = copy.map_err(|error| explain(&error, len, busy))?;
        // SAFETY: readable by the caller's promise, and no part of what was allocated just now.
        unsafe { std::ptr::copy_nonoverlapping(memory.addr as *const u8, copy.as_ptr(), len) };
        Ok(Self::Copied(copy))
    }

    pub(crate) fn remote(&self) -> usb4_tagged::Remote {
        let (addr, key) = match self {
            Self::InPlace(Pinned(registration)) => (registration.addr(), registration.remote_key()),
            Self::Copied(region) => (region.addr(), region.remote_key()),
        };
        usb4_tagged::Remote { addr, key }
    }
}

/// A length, in memory.
fn bytes(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Whether it is the memory that the device cannot use, and not that there is too much of it.
fn cannot_be_pinned(error: &Error) -> bool {
    matches!(error, Error::Os { source, .. } if source.raw_os_error() == Some(libc::EFAULT))
}

/// What a refusal to register `len` bytes means to the messenger. `busy`: others are registered at the moment.
#[cold]
fn explain(error: &Error, len: usize, busy: bool) -> PostError {
    match error {
        Error::Limit(_) | Error::Pin { .. } if busy => PostError::Full,
        Error::Gone | Error::Forked => PostError::Dead,
        error => {
            log(Level::Warn, format_args!("cannot register {len} bytes: {error}"));
            PostError::Resource
        }
    }
}

/// What work under way uses.
#[derive(Debug)]
enum Held {
    Nothing,
    /// A short message.
    Small(usize),
    /// A longer one.
    Large(usize),
    /// The target of a read.
    Target {
        _pinned: Pinned,
    },
    /// A buffer in its place, and where its bytes belong.
    Part {
        buffer: usize,
        to: Segment,
    },
}

/// Work under way.
#[derive(Debug)]
struct Work {
    cookie: u64,
    held: Held,
}

/// Buffers of an endpoint, and which work uses which.
#[derive(Debug)]
pub(crate) struct Bounce {
    device: Device,
    works: Vec<Work>,
    free: Vec<usize>,
    small: Pool,
    large: Pool,
    reads: Pool,
}

impl Bounce {
    /// For an endpoint with messages of up to `eager` bytes, and for one with reads, which sends no bytes.
    ///
    /// # Errors
    /// No memory for reads.
    pub(crate) fn new(device: &Device, eager: usize) -> Result<Self, Error> {
        let mut reads = Pool::new(READ_LEN);
        if eager == 0 {
            reads.add(device, READS)?;
        }
        Ok(Self {
            device: device.clone(),
            works: Vec::new(),
            free: Vec::new(),
            small: Pool::new(STAGE_LEN.min(eager)),
            large: Pool::new(eager),
            reads,
        })
    }

    /// The payload of a message where the device reaches it, and the cookie under which it is to be posted.
    ///
    /// # Errors
    /// As [`Exposed::new`].
    ///
    /// # Safety
    /// The payload is readable.
    pub(crate) unsafe fn message(
        &mut self,
        payload: Segment,
        cookie: u64,
    ) -> Result<(Buffer, u64), PostError> {
        if payload.len == 0 {
            return Ok((Buffer::EMPTY, self.begin(cookie, Held::Nothing)));
        }
        let is_small = payload.len <= self.small.size as u64;
        let pool = if is_small {
            &mut self.small
        } else {
            &mut self.large
        };
        if payload.len > pool.size as u64 {
            return Err(PostError::Resource);
        }
        let buffer = pool.take(&self.device)?;
        // SAFETY: readable by the caller's promise, and not longer than the buffer.
        let place = unsafe { pool.fill(buffer, payload) };
        let held = if is_small { Held::Small } else { Held::Large };
        Ok((place, self.begin(cookie, held(buffer))))
    }

    /// Where a read may put bytes that belong to `into`, of which it may be the first part only; and its cookie.
    ///
    /// # Errors
    /// [`PostError::Full`]: the memory cannot be registered, or not now, and all buffers are in use.
    ///
    /// # Safety
    /// `into` stays writable until [`Bounce::end`], and nobody else uses it.
    pub(crate) unsafe fn target(&mut self, into: Segment, cookie: u64) -> Result<(Buffer, u64), PostError> {
        let len = bytes(into.len);
        // SAFETY: promised by the caller.
        match unsafe { self.device.expose(into.addr as *mut u8, len, Access::LOCAL) } {
            Ok(registration) => {
                let place = registration.buffer(0, len).map_err(|_| PostError::Resource)?;
                let held = Held::Target {
                    _pinned: Pinned::new(registration),
                };
                return Ok((place, self.begin(cookie, held)));
            }
            Err(Error::Gone | Error::Forked) => return Err(PostError::Dead),
            Err(_) => {}
        }
        let buffer = self.reads.free.pop().ok_or(PostError::Full)?;
        let to = Segment {
            addr: into.addr,
            len: into.len.min(READ_LEN as u64),
        };
        let place = self.reads.part(buffer, to.len);
        Ok((place, self.begin(cookie, Held::Part { buffer, to })))
    }

    fn begin(&mut self, cookie: u64, held: Held) -> u64 {
        let work = Work { cookie, held };
        if let Some(index) = self.free.pop() {
            self.works[index] = work;
            return index as u64;
        }
        self.works.push(work);
        self.works.len() as u64 - 1
    }

    /// Work has ended, `well` or not; its own cookie.
    pub(crate) fn end(&mut self, index: u64, well: bool) -> u64 {
        let index = bytes(index);
        let Some(work) = self.works.get_mut(index) else {
            return 0;
        };
        self.free.push(index);
        match std::mem::replace(&mut work.held, Held::Nothing) {
            Held::Nothing | Held::Target { .. } => {}
            Held::Small(buffer) => self.small.free.push(buffer),
            Held::Large(buffer) => self.large.free.push(buffer),
            Held::Part { buffer, to } => {
                if well {
                    // SAFETY: the poster of the read promised that it is writable until now.
                    unsafe { self.reads.copy_out(buffer, to) };
                }
                self.reads.free.push(buffer);
            }
        }
        work.cookie
    }
}

/// Registered buffers of one size.
#[derive(Debug)]
struct Pool {
    size: usize,
    regions: Vec<MemoryRegion>,
    places: Vec<Buffer>,
    free: Vec<usize>,
}

impl Pool {
    fn new(size: usize) -> Self {
        Self {
            size,
            regions: Vec::new(),
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    fn add(&mut self, device: &Device, count: usize) -> Result<(), Error> {
        let stride = self.size.next_multiple_of(64);
        let region = device.alloc(stride * count, Access::LOCAL)?;
        for at in 0..count {
            self.free.push(self.places.len());
            self.places.push(region.buffer(at * stride, self.size)?);
        }
        self.regions.push(region);
        Ok(())
    }

    fn take(&mut self, device: &Device) -> Result<usize, PostError> {
        if let Some(buffer) = self.free.pop() {
            return Ok(buffer);
        }
        let count = self.places.len().max(FIRST);
        // What is in use now comes back.
        let busy = !self.places.is_empty();
        self.add(device, count)
            .map_err(|error| explain(&error, count * self.size, busy))?;
        self.free.pop().ok_or(PostError::Full)
    }

    /// The first `len` bytes of a buffer, which has as many.
    fn part(&self, buffer: usize, len: u64) -> Buffer {
        let whole = self.places[buffer];
        match whole.local_key() {
            Some(key) => Buffer::of_key(
                whole.addr(),
                key,
                whole.len().min(u32::try_from(len).unwrap_or(u32::MAX)),
            ),
            None => Buffer::EMPTY,
        }
    }

    /// Copies a payload to a buffer.
    ///
    /// # Safety
    /// It is readable and fits.
    unsafe fn fill(&self, buffer: usize, payload: Segment) -> Buffer {
        let place = self.part(buffer, payload.len);
        let (from, to) = (payload.addr as *const u8, place.addr() as *mut u8);
        // SAFETY: promised by the caller; what is to be sent is no part of a buffer in nobody's use.
        unsafe { std::ptr::copy_nonoverlapping(from, to, place.len() as usize) };
        place
    }

    /// Copies a buffer to where its bytes belong.
    ///
    /// # Safety
    /// As many are writable there, and no more than it has.
    unsafe fn copy_out(&self, buffer: usize, to: Segment) {
        let place = self.part(buffer, to.len);
        let (from, to) = (place.addr() as *const u8, to.addr as *mut u8);
        // SAFETY: promised by the caller; the target is the application's.
        unsafe { std::ptr::copy_nonoverlapping(from, to, place.len() as usize) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    use super::*;

    fn device(name: &str) -> Device {
        Device::open(&format!("soft:{name}-{},registered", std::process::id())).unwrap()
    }

    fn of(bytes: &[u8]) -> Segment {
        Segment {
            addr: bytes.as_ptr() as u64,
            len: bytes.len() as u64,
        }
    }

    #[test]
    fn buffers_of_messages_are_used_again_and_more_are_made_when_all_are_in_use() {
        let device = device("bounce-messages");
        let mut bounce = Bounce::new(&device, 4096).unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(4096).collect();
        for len in [1, 256, 257, 4096] {
            for _ in 0..2 {
                let mut posted = Vec::new();
                for n in 0..FIRST as u64 + 1 {
                    // SAFETY: it is readable.
                    let (buffer, index) = unsafe { bounce.message(of(&bytes[..len]), n) }.unwrap();
                    assert!(buffer.local_key().is_some() && buffer.len() as usize == len);
                    // SAFETY: a buffer of ours that holds as many.
                    let copy = unsafe { std::slice::from_raw_parts(buffer.addr() as *const u8, len) };
                    assert_eq!(copy, &bytes[..len]);
                    posted.push(index);
                }
                for (n, index) in posted.iter().enumerate() {
                    assert_eq!(bounce.end(*index, true), n as u64);
                }
            }
        }
        assert_eq!((bounce.small.places.len(), bounce.large.places.len()), (32, 32));
        // SAFETY: it is refused.
        let refused = unsafe { bounce.message(of(&[0; 4097]), 1) };
        assert_eq!(refused.unwrap_err(), PostError::Resource);
    }

    #[test]
    fn what_cannot_be_pinned_is_read_in_parts_through_what_is_there() {
        const LEN: usize = 1 << 20;
        let device = device("bounce-reads");
        let mut bounce = Bounce::new(&device, 0).unwrap();
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping, which stays.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, ProtFlags::READ, flags) }.unwrap();
        let into = Segment {
            addr: start as u64,
            len: LEN as u64,
        };
        // SAFETY: nobody reads into it before it is writable.
        let mut read = || unsafe { bounce.target(into, 7) };
        let parts: Vec<_> = (0..READS).map(|_| read().unwrap()).collect();
        assert_eq!(read().unwrap_err(), PostError::Full);
        let (part, first) = parts[0];
        assert_eq!(part.len() as usize, READ_LEN);
        assert_eq!(bounce.end(parts[1].1, false), 7);
        // SAFETY: our own mapping; and a buffer of ours.
        unsafe {
            mprotect(start, LEN, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            (part.addr() as *mut u8).write_bytes(9, READ_LEN);
        }
        assert_eq!(bounce.end(first, true), 7);
        // SAFETY: our own mapping.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), READ_LEN + 1) };
        assert_eq!((bytes[0], bytes[READ_LEN - 1], bytes[READ_LEN]), (9, 9, 0));
        // SAFETY: it is writable now.
        let (whole, index) = unsafe { bounce.target(into, 8) }.unwrap();
        assert_eq!((whole.addr(), whole.len() as usize), (into.addr, LEN));
        assert_eq!(bounce.end(index, true), 8);
    }

    #[test]
    fn a_refusal_that_passes_is_told_from_one_that_does_not() {
        let pin = Error::Pin {
            bytes: 1,
            pinned: 1,
            limit: 1,
        };
        assert_eq!(explain(&pin, 1, true), PostError::Full);
        assert_eq!(explain(&pin, 1, false), PostError::Resource);
        assert_eq!(explain(&Error::Gone, 1, true), PostError::Dead);
    }
}
