//! A cable: two shared-memory regions over which two soft devices exchange frames.
//!
//! The sender writes a frame into a slot of its own region and announces it in its TX ring. The receiver reads
//! head and payload straight from there and hands the slot back through its completion ring. Nothing the
//! neighbour writes is trusted: a ring that breaks its rules, a slot out of range or held already, a length
//! beyond a slot is [`Hostile`], and the cable is cut. Whatever it writes into a frame, reads stay within its
//! region, which cannot shrink.

mod layout;
mod port;

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::driven::{Borrowed, Driven};
use crate::faults::Faults;
use crate::fork::Descriptor;
use crate::memory::{Mapping, Sharing};
use crate::rings::{Consumer, Producer, Sleeper, Waker};
use crate::socket;

pub(crate) use crate::rings::Hostile;
use layout::{DONE_RING, FRAMES, TX_RING, WAKEUP};
pub(crate) use layout::{REGION, SLOT, SLOTS, VERSION};

/// Bytes copied at once to get at a frame's head: enough for the frame header and a few chunk headers.
pub(crate) const HEAD_FIRST: usize = 128;

/// Bytes of an arrived frame brought near while its head is looked at: those of a small message. The processor
/// notices by itself when more is copied.
const PREFETCH: usize = 320;

/// Lines of a slot that has come back which are made ours again: those of a small message.
const RECLAIM: usize = 3;

/// Slots done with that may wait to be handed back together.
const HOLD_BACK: usize = 16;

/// One side's own region, before it is joined with the neighbour's.
#[derive(Debug)]
pub(crate) struct CableEnd {
    ours: Mapping,
    fd: OwnedFd,
}

impl CableEnd {
    pub(crate) fn new() -> io::Result<Self> {
        let (ours, fd) = Mapping::create("usb4-cable", REGION, Sharing::ReadOnly)?;
        Ok(Self {
            ours: ours.dont_fork()?,
            fd,
        })
    }

    /// The region, for the neighbour.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// All of its words, for tests to write nonsense to.
    #[cfg(test)]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.ours.words(0, REGION / 8)
    }

    /// Joins it with the neighbour's region and the doorbell that wakes the neighbour.
    pub(crate) fn join(self, region: OwnedFd, doorbell: OwnedFd) -> io::Result<Cable> {
        let theirs = Mapping::open(region.as_fd(), REGION, Sharing::ReadOnly)?.dont_fork()?;
        let (our_words, their_words) = (Words::of(&self.ours)?, Words::of(&theirs)?);
        Ok(Cable {
            our_words,
            their_words,
            ours: self.ours,
            theirs,
            doorbell: Descriptor::new(doorbell)?,
            tx: Driven::new(Tx::default()),
            rx: Driven::new(Rx::default()),
            sleeper: Mutex::default(),
            waker: Waker::default(),
        })
    }
}

/// A frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The neighbour's slot it is in, below [`SLOTS`]; ours until [`Receiver::release`].
    pub(crate) slot: u16,
    /// Its length, at most [`SLOT`].
    pub(crate) len: u16,
}

/// Set of slots.
#[derive(Debug, Default)]
struct SlotSet([u64; SLOTS / 64]);

impl SlotSet {
    /// Adds a slot; false if it is out of range or in already.
    #[inline]
    fn insert(&mut self, slot: u16) -> bool {
        let bit = 1u64 << (slot % 64);
        match self.0.get_mut(usize::from(slot / 64)) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                true
            }
            _ => false,
        }
    }

    /// Removes a slot; false if it is out of range or not in.
    #[inline]
    fn remove(&mut self, slot: u16) -> bool {
        let bit = 1u64 << (slot % 64);
        match self.0.get_mut(usize::from(slot / 64)) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                true
            }
            _ => false,
        }
    }
}

#[derive(Debug, Default)]
struct Tx {
    frames: Producer,
    done: Consumer,
    posted: SlotSet,
    /// Something was sent since the last kick.
    fresh: bool,
}

#[derive(Debug, Default)]
struct Rx {
    frames: Consumer,
    done: Producer,
    held: SlotSet,
    /// Slots done with and not handed back yet; the first `waiting` count.
    back: [u16; HOLD_BACK],
    waiting: usize,
    /// Something was handed back since the last kick.
    fresh: bool,
    /// What goes wrong on purpose.
    faults: Option<Box<Faults>>,
}

/// The shared words of a region.
#[derive(Debug)]
struct Words {
    wakeup: NonNull<AtomicU64>,
    frames: NonNull<[AtomicU64; SLOTS]>,
    done: NonNull<[AtomicU64; SLOTS]>,
}

// SAFETY: pointers to atomics in a mapping that is shared anyway.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    fn of(region: &Mapping) -> io::Result<Self> {
        let ring = |at| region.words(at, SLOTS).first_chunk::<SLOTS>().map(NonNull::from);
        let (wakeup, frames, done) = (region.words(WAKEUP, 1).first(), ring(TX_RING), ring(DONE_RING));
        match (wakeup, frames, done) {
            (Some(wakeup), Some(frames), Some(done)) => Ok(Self {
                wakeup: NonNull::from(wakeup),
                frames,
                done,
            }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Odd while the region's owner sleeps.
    #[inline]
    fn wakeup(&self) -> &AtomicU64 {
        // SAFETY: points into the mapping next to `self` in its cable; a region for reading takes loads only.
        unsafe { self.wakeup.as_ref() }
    }

    /// Frames the region's owner has sent.
    #[inline]
    fn frames(&self) -> &[AtomicU64; SLOTS] {
        // SAFETY: as above.
        unsafe { self.frames.as_ref() }
    }

    /// Slots of the other side the region's owner has done with.
    #[inline]
    fn done(&self) -> &[AtomicU64; SLOTS] {
        // SAFETY: as above.
        unsafe { self.done.as_ref() }
    }
}

/// A joined cable, as seen from one side.
#[derive(Debug)]
pub(crate) struct Cable {
    our_words: Words,
    their_words: Words,
    ours: Mapping,
    theirs: Mapping,
    /// Wakes the neighbour.
    doorbell: Descriptor,
    tx: Driven<Tx>,
    rx: Driven<Rx>,
    sleeper: Mutex<Sleeper>,
    waker: Waker,
}

impl Cable {
    /// The address of our slot `slot`, [`SLOT`] bytes; we may write it while it is not posted.
    #[inline]
    pub(crate) fn slot(&self, slot: u16) -> Option<NonNull<u8>> {
        self.ours.at(FRAMES + usize::from(slot) * SLOT, SLOT)
    }

    /// The address of `len` bytes at `at` in the neighbour's slot `slot`. To be read only, and only by raw
    /// copies: the neighbour may change them at any time.
    #[inline]
    pub(crate) fn arrived(&self, slot: u16, at: usize, len: usize) -> Option<NonNull<u8>> {
        if usize::from(slot) >= SLOTS || at.checked_add(len)? > SLOT {
            return None;
        }
        self.theirs.at(FRAMES + usize::from(slot) * SLOT + at, len)
    }

    /// Copies the head of an arrived frame (and perhaps some more of it) to `buffer`: what is checked there can
    /// no longer be changed by the neighbour. A head length beyond the frame is left for the parser to refuse.
    #[inline]
    pub(crate) fn copy_head<'a>(&self, arrival: Arrival, buffer: &'a mut [u8; SLOT]) -> &'a mut [u8] {
        let len = usize::from(arrival.len);
        let Some(frame) = self.arrived(arrival.slot, 0, SLOT) else {
            return &mut [];
        };
        // SAFETY: `HEAD_FIRST` bytes within the neighbour's slot, whatever the frame's length.
        unsafe { frame.copy_to_nonoverlapping(NonNull::from(&mut *buffer).cast(), HEAD_FIRST) };
        let head_len = usize::from(u16::from_le_bytes([buffer[2], buffer[3]]));
        if head_len <= HEAD_FIRST || head_len > len {
            return &mut buffer[..len.min(HEAD_FIRST)];
        }
        // SAFETY: a frame is no longer than its slot.
        unsafe { frame.copy_to_nonoverlapping(NonNull::from(&mut *buffer).cast(), head_len) };
        &mut buffer[..head_len]
    }

    /// Has the first lines of an arrived frame brought near, from byte `from`.
    #[inline]
    pub(crate) fn prefetch(&self, arrival: Arrival, from: usize) {
        let lines = usize::from(arrival.len)
            .min(PREFETCH)
            .saturating_sub(from)
            .div_ceil(64);
        for line in 0..lines {
            if let Some(at) = self.arrived(arrival.slot, from + line * 64, 64) {
                prefetch(at);
            }
        }
    }

    /// Has the first lines of our slot `slot`, which the neighbour has read, made ours again: it is likely to be the
    /// next that is written, and the write would wait for that.
    #[inline]
    fn reclaim(&self, slot: u16) {
        for line in 0..RECLAIM {
            if let Some(at) = self.slot(slot) {
                // SAFETY: within the slot.
                prefetch_for_writing(unsafe { at.add(line * 64) });
            }
        }
    }

    /// The sending half.
    ///
    /// # Safety
    /// The caller drives the device (or nobody else knows this cable yet), and no other `sender` of it exists.
    #[inline]
    pub(crate) unsafe fn sender(&self) -> Sender<'_> {
        // SAFETY: the caller's promise.
        let tx = unsafe { self.tx.borrow() };
        Sender { cable: self, tx }
    }

    /// The receiving half.
    ///
    /// # Safety
    /// As for [`Cable::sender`].
    #[inline]
    pub(crate) unsafe fn receiver(&self) -> Receiver<'_> {
        // SAFETY: the caller's promise.
        let rx = unsafe { self.rx.borrow() };
        Receiver { cable: self, rx }
    }

    /// Whether nothing has come from the neighbour.
    ///
    /// # Safety
    /// As for [`Cable::sender`] and [`Cable::receiver`].
    #[inline]
    pub(crate) unsafe fn is_quiet(&self) -> bool {
        // SAFETY: the caller's promise.
        let (tx, rx) = unsafe { (self.tx.borrow(), self.rx.borrow()) };
        !rx.frames.ready(self.their_words.frames()) && !tx.done.ready(self.their_words.done())
    }

    /// Whether something has been sent or handed back since the last call.
    ///
    /// # Safety
    /// As for [`Cable::sender`] and [`Cable::receiver`].
    #[inline]
    pub(crate) unsafe fn has_news(&self) -> bool {
        // SAFETY: the caller's promise.
        let (tx, rx) = unsafe { (&mut self.tx.borrow().fresh, &mut self.rx.borrow().fresh) };
        std::mem::take(tx) | std::mem::take(rx)
    }

    /// Wakes the neighbour if it sleeps; a sequentially consistent fence has come after the news.
    #[inline]
    pub(crate) fn ring_sleeper(&self) {
        if self.waker.must_wake(self.their_words.wakeup()) {
            socket::ring(&self.doorbell);
        }
    }

    /// Announces that we are about to sleep, then looks once more: true if nothing is there, so that we may.
    ///
    /// # Safety
    /// As for [`Cable::sender`] and [`Cable::receiver`].
    pub(crate) unsafe fn arm(&self) -> bool {
        self.sleeper.lock().arm(self.our_words.wakeup());
        // SAFETY: the caller's promise.
        unsafe { !self.receiver().ready() && !self.sender().ready() }
    }

    /// Withdraws [`Cable::arm`].
    pub(crate) fn disarm(&self) {
        self.sleeper.lock().disarm(self.our_words.wakeup());
    }
}

/// Has a cache line brought near for reading.
#[inline]
fn prefetch(at: NonNull<u8>) {
    // SAFETY: a hint: it has no effect but on time.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.as_ptr().cast::<i8>()) };
}

/// Has a cache line brought near for writing.
#[inline]
fn prefetch_for_writing(at: NonNull<u8>) {
    // By hand: for `_MM_HINT_ET0` the compiler falls back to a prefetch for reading unless it is told that the
    // processor has this instruction. All 64-bit ones do, or take it for a no-operation.
    // SAFETY: a hint: it has no effect but on time.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at.as_ptr(), options(nostack, preserves_flags, readonly));
    }
}

/// The sending half of a cable.
pub(crate) struct Sender<'a> {
    cable: &'a Cable,
    tx: Borrowed<'a, Tx>,
}

impl Sender<'_> {
    /// Whether the neighbour has handed a slot back.
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        self.tx.done.ready(self.cable.their_words.done())
    }

    /// Sends the frame of `len` bytes in our slot `slot`. False if the slot is still posted: a mistake of ours.
    #[inline]
    pub(crate) fn send(&mut self, slot: u16, len: u16) -> bool {
        if !self.tx.posted.insert(slot) {
            return false;
        }
        let ring = self.cable.our_words.frames();
        self.tx.frames.push(ring, u32::from(slot) | u32::from(len) << 16);
        self.tx.fresh = true;
        true
    }

    /// The next slot the neighbour has handed back.
    #[inline]
    pub(crate) fn completed(&mut self) -> Result<Option<u16>, Hostile> {
        let ring = self.cable.their_words.done();
        let Some(value) = self.tx.done.pop(ring)? else {
            return Ok(None);
        };
        let slot = u16::try_from(value).map_err(|_| Hostile)?;
        if self.tx.posted.remove(slot) {
            self.cable.reclaim(slot);
            Ok(Some(slot))
        } else {
            Err(Hostile)
        }
    }
}

/// The receiving half of a cable.
pub(crate) struct Receiver<'a> {
    cable: &'a Cable,
    rx: Borrowed<'a, Rx>,
}

impl Receiver<'_> {
    /// Whether a frame is there.
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        self.rx.frames.ready(self.cable.their_words.frames())
    }

    /// Has the next frame brought near, which [`Self::ready`] has just found there: its first lines arrive while the
    /// clock is read and the engine's lock taken.
    #[inline]
    pub(crate) fn expect(&self) {
        let value = self.rx.frames.hint(self.cable.their_words.frames());
        let (slot, len) = ((value & 0xffff) as u16, (value >> 16) as u16);
        self.cable.prefetch(Arrival { slot, len }, 0);
    }

    /// From now on faults happen to frames.
    pub(crate) fn spoil(&mut self, faults: Faults) {
        self.rx.faults = Some(Box::new(faults));
    }

    /// Those that happen to frames.
    #[inline]
    pub(crate) fn faults(&mut self) -> Option<&mut Faults> {
        self.rx.faults.as_deref_mut()
    }

    /// The next frame.
    #[inline]
    pub(crate) fn arrival(&mut self) -> Result<Option<Arrival>, Hostile> {
        let ring = self.cable.their_words.frames();
        let Some(value) = self.rx.frames.pop(ring)? else {
            return Ok(None);
        };
        let (slot, len) = ((value & 0xffff) as u16, (value >> 16) as u16);
        if usize::from(len) > SLOT || !self.rx.held.insert(slot) {
            return Err(Hostile);
        }
        Ok(Some(Arrival { slot, len }))
    }

    /// We have done with a slot: all copies out of it are done. The neighbour learns it from
    /// [`Receiver::hand_back`], or when a few have come together.
    #[inline]
    pub(crate) fn release(&mut self, slot: u16) {
        if !self.rx.held.remove(slot) {
            return;
        }
        if self.rx.waiting == HOLD_BACK {
            self.hand_back();
        }
        let waiting = self.rx.waiting;
        if let Some(place) = self.rx.back.get_mut(waiting) {
            *place = slot;
            self.rx.waiting = waiting + 1;
        }
    }

    /// Hands the slots done with back to the neighbour. It looks at that ring all the time, so each store takes the
    /// line away from it, and whatever is stored afterwards waits for that: an answer to what was in those slots had
    /// better go first.
    #[inline]
    pub(crate) fn hand_back(&mut self) {
        let rx = &mut *self.rx;
        for slot in rx.back.iter().take(rx.waiting) {
            rx.done.push(self.cable.our_words.done(), u32::from(*slot));
            rx.fresh = true;
        }
        rx.waiting = 0;
    }
}

#[cfg(test)]
mod tests;
