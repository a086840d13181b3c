//! Children of `fork`: a device belongs to the process that opened it.
//!
//! A handler in the child counts the fork, so that every later call on an inherited device fails politely, and
//! closes the child's copies of the device's descriptors: were they kept, a peer would not see the end of the
//! parent. Mappings of cables are kept out of children altogether (`MADV_DONTFORK`), and so are those of queues, but a
//! call looks at these before it looks who is calling: the handler puts zeroed pages in their place.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Forks behind this process since the handler was installed.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Descriptors children must close; -1 = free. Fixed, because only async-signal-safe calls are allowed in the
/// child of a process with threads. One that finds no place stays open in children, as any other would.
static DESCRIPTORS: [AtomicI32; 4096] = [const { AtomicI32::new(-1) }; 4096];

/// Stretches of memory that children get zeroed: address, length; address 0 = free. One that finds no place is missing
/// in children: whoever touches it there dies.
static ZEROED: [(AtomicUsize, AtomicUsize); 4096] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 4096];

/// Where the last free place was found.
static HINT: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for place in &DESCRIPTORS {
        let fd = place.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the child's copy of a descriptor whose owner sees the new generation and forgets it.
            unsafe { libc::close(fd) };
        }
    }
    for (start, len) in &ZEROED {
        let (start, len) = (start.load(Ordering::Acquire), len.load(Ordering::Relaxed));
        if start != 0 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let start = std::ptr::without_provenance_mut(start);
            // SAFETY: nothing is mapped there in a child (`Zeroed::new`'s contract); what is, is not replaced.
            unsafe { libc::mmap(start, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        }
    }
}

/// The generation of a process, taken when a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// This process's, from now on noticing forks.
    ///
    /// # Errors
    /// The C library cannot take a fork handler.
    pub fn new() -> io::Result<Self> {
        static INSTALLED: OnceLock<i32> = OnceLock::new();
        // SAFETY: `in_child` makes only async-signal-safe calls; with the library's code gone the handler would
        // dangle, but glibc drops the handlers of an unloaded library.
        match INSTALLED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) }) {
            0 => Ok(Self(GENERATION.load(Ordering::Relaxed))),
            error => Err(io::Error::from_raw_os_error(*error)),
        }
    }

    /// Whether this is still the process it was taken in.
    #[inline]
    pub fn is_current(self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }
}

/// Memory that children find zeroed.
#[derive(Debug)]
pub(crate) struct Zeroed(Option<usize>);

impl Zeroed {
    /// For the mapping at `start`, whole pages, that children do not inherit.
    pub(crate) fn new(start: usize, len: usize) -> io::Result<Self> {
        Generation::new()?;
        let place = ZEROED.iter().position(|(place, _)| {
            // Taken with an address that cannot be mapped, until the length is there.
            place
                .compare_exchange(0, usize::MAX, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        });
        if let Some((place, length)) = place.and_then(|place| ZEROED.get(place)) {
            length.store(len, Ordering::Relaxed);
            place.store(start, Ordering::Release);
        }
        Ok(Self(place))
    }
}

impl Drop for Zeroed {
    fn drop(&mut self) {
        if let Some((place, _)) = self.0.and_then(|place| ZEROED.get(place)) {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// A descriptor that children do not inherit.
#[derive(Debug)]
pub struct Descriptor {
    fd: Option<OwnedFd>,
    place: Option<usize>,
    generation: Generation,
}

impl Descriptor {
    /// From now on.
    ///
    /// # Errors
    /// The C library cannot take a fork handler.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let generation = Generation::new()?;
        let start = HINT.load(Ordering::Relaxed) as usize;
        let place = (0..DESCRIPTORS.len())
            .map(|i| (start + i) % DESCRIPTORS.len())
            .find(|&place| {
                DESCRIPTORS[place]
                    .compare_exchange(-1, fd.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            });
        if let Some(next) = place.and_then(|place| u32::try_from(place + 1).ok()) {
            HINT.store(next, Ordering::Relaxed);
        }
        Ok(Self {
            fd: Some(fd),
            place,
            generation,
        })
    }
}

impl AsFd for Descriptor {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            // Only `drop` takes it.
            None => unreachable!("a descriptor in use has not been dropped"),
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // The handler has closed it, and its number may be somebody else's by now.
            std::mem::forget(self.fd.take());
        } else if let Some(place) = self.place {
            DESCRIPTORS[place].store(-1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_does_not_keep_the_descriptor_and_knows_it() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let writer = Descriptor::new(writer).unwrap();
        let (gate_out, gate_in) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child makes only async-signal-safe calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let inherited = !writer.generation.is_current();
            // The parent says when: the child must live while the parent's end is looked at.
            let _ = rustix::io::read(&gate_out, &mut [0; 1]);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if inherited { 7 } else { 1 }) };
        }
        drop(writer);
        // The end of file can be seen only if the child has closed its copy.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
        rustix::io::write(&gate_in, &[1]).unwrap();
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(libc::WEXITSTATUS(status), 7);
    }
}
