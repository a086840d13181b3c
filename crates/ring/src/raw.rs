//! The kernel's device for a front end that gets its queues elsewhere: through uverbs, say, whose objects are made by
//! its own calls. There is a descriptor, the queues mapped through it, and `ENTER`.
//!
//! Nothing here knows what is in flight or which queue belongs to which endpoint: names are the kernel's, which checks
//! them, and lifetimes are the caller's. [`crate::Device`] stands on the same calls.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use usb4_ring_abi::QueueGeometry;
use usb4_soft::{Generation, Sharing};

use crate::kernel::Line;

pub use rustix::io::Errno;
pub use usb4_ring_abi::{
    ABI_VERSION, ARMED, CONSUMER_WORD, CQE_WORDS, Consumer, Cqe, CqeStatus, ENTRIES_WORD, Entry, FLAGS_WORD,
    Hostile, MAX_DEPTH, MAX_INLINE, MAX_MESSAGE, MAX_PIECES, OP_INVALIDATE, Op, PREFIX_MAX, PRODUCER_WORD,
    Piece, Producer, PushError, Rqe, Slots, Sqe, cqe_flags, sqe_flags, uapi,
};
pub use usb4_soft::QueueMemory;

/// Polls in a row that do nothing before the caller begins to give its time slice away, and how many to the next time:
/// whoever has something for it may be waiting for this processor.
const PATIENCE: u32 = 64;
const PAUSE_EVERY: u32 = 32;

/// An open descriptor of the device.
#[derive(Debug)]
pub struct Ring {
    line: Line,
    /// A word that is 0 while polling is of no use, if the device has that.
    notice: Option<QueueMemory>,
    generation: Generation,
    /// Polls in a row that did nothing.
    idle: AtomicU32,
}

impl Ring {
    /// The device behind `fd`, which children of `fork` will find closed. `notice` is where its notice page is
    /// ([`uapi::Info::notice_offset`]) and how many bytes that has, 0 if there is none. Nothing else is mapped.
    ///
    /// # Errors
    /// The page cannot be mapped.
    pub fn new(fd: OwnedFd, notice: (u64, u32)) -> io::Result<Self> {
        Self::on(Line::new(fd)?, notice)
    }

    pub(crate) fn on(line: Line, notice: (u64, u32)) -> io::Result<Self> {
        let (offset, bytes) = notice;
        let words = bytes as usize / 8;
        let notice = (words > uapi::NOTICE_UNDRIVEN_WORD)
            .then(|| line.map(offset, words, Sharing::ReadOnly))
            .transpose()?;
        Ok(Self {
            notice,
            generation: Generation::new()?,
            line,
            idle: AtomicU32::new(0),
        })
    }

    /// Whether this is the process that opened it. In another its queues are empty memory.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.generation.is_current()
    }

    /// Memory of the queue of `depth` entries that the device has at `offset`, where it says there are `bytes` bytes.
    ///
    /// # Errors
    /// The depth is none, there are fewer bytes than such a queue has, or it cannot be mapped.
    pub fn map<E: Entry>(&self, depth: u32, offset: u64, bytes: u64) -> io::Result<QueueMemory> {
        self.map_with::<E>(depth, Slots::NONE, offset, bytes)
    }

    /// The same of a queue with slots behind its entries.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub fn map_with<E: Entry>(
        &self,
        depth: u32,
        slots: Slots,
        offset: u64,
        bytes: u64,
    ) -> io::Result<QueueMemory> {
        let geometry = QueueGeometry::of::<E>(depth)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?
            .with_slots(slots);
        // To touch what is not there would end the process.
        if bytes < geometry.bytes() as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.map_words(offset, geometry.words())
    }

    pub(crate) fn map_words(&self, offset: u64, words: usize) -> io::Result<QueueMemory> {
        self.line.map(offset, words, Sharing::ReadWrite)
    }

    /// The ioctl `number`; what it returns.
    #[inline]
    pub(crate) fn call<T: uapi::Argument>(&self, number: u32, argument: &mut T) -> Result<i32, Errno> {
        self.line.call(number, argument)
    }

    /// Has the device take what is published on the queues of endpoint `ep`, and drives the links that nobody drives.
    ///
    /// # Errors
    /// The kernel's.
    #[inline]
    pub fn submit(&self, ep: u32) -> Result<(), Errno> {
        self.enter(uapi::Enter {
            flags: uapi::ENTER_SUBMIT | uapi::ENTER_PROGRESS,
            ep,
            ..uapi::Enter::new()
        })
        .map(drop)
    }

    /// `ENTER`; what it returns.
    ///
    /// # Errors
    /// The kernel's.
    #[inline]
    pub fn enter(&self, mut what: uapi::Enter) -> Result<i32, Errno> {
        self.call(uapi::IOC_ENTER, &mut what)
    }

    /// Drives the device once, unless others drive all of it. Returns whether anything was done.
    ///
    /// # Errors
    /// The kernel's: nothing was done.
    #[inline]
    pub fn progress(&self) -> Result<bool, Errno> {
        let done = if self.is_undriven() {
            self.enter(uapi::Enter {
                flags: uapi::ENTER_PROGRESS,
                ..uapi::Enter::new()
            })
            .map(|done| done & uapi::ENTERED_PROGRESS != 0)
        } else {
            Ok(false)
        };
        if done == Ok(true) {
            self.idle.store(0, Ordering::Relaxed);
        } else {
            self.be_patient();
        }
        done
    }

    /// Whether a link may be there that nobody drives.
    #[inline]
    fn is_undriven(&self) -> bool {
        let word = self
            .notice
            .as_ref()
            .and_then(|notice| notice.get(uapi::NOTICE_UNDRIVEN_WORD));
        word.is_none_or(|undriven| undriven.load(Ordering::Relaxed) != 0)
    }

    #[inline]
    fn be_patient(&self) {
        // Not a read-modify-write: a count lost to another thread does no harm.
        let idle = self.idle.load(Ordering::Relaxed).wrapping_add(1);
        if idle < PATIENCE {
            self.idle.store(idle, Ordering::Relaxed);
        } else {
            self.idle
                .store(PATIENCE.saturating_sub(PAUSE_EVERY), Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    /// Makes an address handle with which endpoint `ep` sends to `addr`; waits for a link for `timeout_ns` at most.
    ///
    /// # Errors
    /// The kernel's, as [`uapi::IOC_CREATE_AH`] has them.
    pub fn create_ah(&self, ep: u32, addr: uapi::Addr, timeout_ns: u64) -> Result<u32, Errno> {
        let mut ah = uapi::CreateAh {
            ep,
            addr,
            timeout_ns,
            ..uapi::CreateAh::new()
        };
        self.call(uapi::IOC_CREATE_AH, &mut ah)?;
        Ok(ah.ah)
    }

    /// Gives an address handle back.
    ///
    /// # Errors
    /// The kernel's.
    pub fn destroy_ah(&self, ep: u32, ah: u32) -> Result<(), Errno> {
        let mut what = uapi::DestroyAh {
            ep,
            ah,
            ..uapi::DestroyAh::new()
        };
        self.call(uapi::IOC_DESTROY_AH, &mut what).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(bytes: u64) -> OwnedFd {
        let file = memfd_create("raw", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        file
    }

    #[test]
    fn a_queue_is_mapped_where_the_device_says_and_both_ends_see_it() {
        let ring = Ring::new(file(3 * 4096), (0, 0)).unwrap();
        let memory = ring.map::<Sqe>(4, 4096, 4096).unwrap();
        let same = ring.map::<Sqe>(4, 4096, 4096).unwrap();
        let mut ours = Producer::<_, Sqe>::new(memory, 4).unwrap();
        let mut theirs = Consumer::<_, Sqe>::new(same, 4).unwrap();
        let entry = Sqe {
            user_data: 7,
            ..Sqe::default()
        };
        ours.push(&entry).unwrap();
        ours.publish();
        assert_eq!(theirs.pop().unwrap(), Some(entry));
        let other = ring.map::<Sqe>(4, 8192, 4096).unwrap();
        assert_eq!(other[usb4_ring_abi::PRODUCER_WORD].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_queue_smaller_than_its_depth_needs_is_not_mapped() {
        let ring = Ring::new(file(4096), (0, 0)).unwrap();
        let bytes = QueueGeometry::of::<Rqe>(8).unwrap().bytes() as u64;
        assert!(ring.map::<Rqe>(8, 0, bytes).is_ok());
        assert!(ring.map::<Rqe>(8, 0, bytes - 1).is_err());
        assert!(ring.map::<Rqe>(7, 0, bytes).is_err());
    }

    #[test]
    fn while_others_drive_a_poll_makes_no_call() {
        // A file knows no `ENTER`, so a call that is made fails.
        let ring = Ring::new(file(4096), (0, 4096)).unwrap();
        assert_eq!(ring.progress(), Ok(false));
        let page = ring.map_words(0, 1).unwrap();
        page[uapi::NOTICE_UNDRIVEN_WORD].store(1, Ordering::Relaxed);
        assert_eq!(ring.progress(), Err(Errno::NOTTY));
        assert_eq!(ring.submit(1), Err(Errno::NOTTY));
        assert_eq!(ring.create_ah(1, uapi::Addr::default(), 0), Err(Errno::NOTTY));
    }
}
