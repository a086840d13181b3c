//! Completion queues.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use usb4_ring_abi::{Consumer, Cqe};
use usb4_soft::{CqParts, QueueMemory};

use crate::device::Inner;
use crate::{Completion, Error, Result};

/// A completion queue. It cannot overflow: a request is taken from its queue only when there is room for its
/// completion.
///
/// `Cq` is `Send`; polling takes `&mut self`. It is destroyed when it and the endpoints that use it are dropped.
#[derive(Debug)]
pub struct Cq {
    queue: Consumer<QueueMemory, Cqe>,
    /// Entries taken one by one whose places the device does not know to be free.
    owed: u32,
    shared: Arc<CqShared>,
}

/// Most entries taken one by one before the device is told that their places are free.
const OWED_MAX: u32 = 16;

/// What endpoints hold on to.
#[derive(Debug)]
pub(crate) struct CqShared {
    pub(crate) device: Arc<Inner>,
    pub(crate) parts: CqParts,
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.device.client.destroy_cq(&self.parts);
    }
}

impl Cq {
    pub(crate) fn create(device: Arc<Inner>, depth: u32) -> Result<Self> {
        let parts = device.client.create_cq(depth)?;
        let memory = parts.memory.clone();
        let shared = Arc::new(CqShared { device, parts });
        let queue =
            Consumer::new(memory, depth).map_err(|_| Error::Invalid("a queue has 1 to 65536 entries"))?;
        Ok(Self {
            queue,
            owed: 0,
            shared,
        })
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// Takes completions into `out`; returns how many. Does not drive the device: see
    /// [`crate::Device::progress`]. There are none any more from a device that has died: see
    /// [`crate::Device::check`].
    #[inline]
    pub fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut count = 0;
        while let Some(place) = out.get_mut(count) {
            // A device that breaks its own queue has no more to say.
            let Ok(Some(entry)) = self.queue.pop() else { break };
            *place = Completion::from_entry(&entry);
            count += 1;
        }
        if count != 0 {
            self.release();
        }
        count
    }

    /// Takes one completion; does not drive the device. The device learns after several, or when there are none, that
    /// their places are free: a caller that takes one by one goes on until it gets `None`, or [`Cq::is_empty`] says so.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Completion> {
        // As in `poll`.
        let Ok(Some(entry)) = self.queue.pop() else {
            self.release();
            return None;
        };
        self.owed += 1;
        if self.owed >= OWED_MAX {
            self.release();
        }
        Some(Completion::from_entry(&entry))
    }

    /// Whether there is nothing to take.
    #[inline(always)]
    pub fn is_empty(&mut self) -> bool {
        let empty = self.queue.available().unwrap_or(0) == 0;
        if empty && self.owed != 0 {
            self.release();
        }
        empty
    }

    #[inline(never)]
    fn release(&mut self) {
        self.owed = 0;
        self.queue.release();
    }

    /// A descriptor that becomes readable when a completion arrives after [`Cq::arm`]. For `poll(2)` and
    /// `epoll(7)` only; never read it: [`Cq::arm`] makes it unreadable again.
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn wait_fd(&mut self) -> Result<BorrowedFd<'_>> {
        self.shared.device.client.wait_fd(&self.shared.parts)
    }

    /// Asks for [`Cq::wait_fd`] to become readable at the next completion, and lets the device's own thread
    /// drive it while the caller sleeps. Returns false if completions are there already: poll instead of
    /// sleeping. The next completion is signalled all the same.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`], [`Error::Forked`], [`Error::Os`].
    pub fn arm(&mut self) -> Result<bool> {
        // Nothing may be kept from the device by one who sleeps.
        self.release();
        let client = &self.shared.device.client;
        client.check()?;
        // The descriptor is made when it is first asked for, and who would ring one that is not there yet?
        client.wait_fd(&self.shared.parts)?;
        // Before arming: a wake-up from now on is for what comes now.
        client.silence(&self.shared.parts);
        // The request stays even if completions are there: another thread may sleep on the descriptor, whose signal was
        // for one of them.
        if !self.queue.arm().map_err(|_| Error::Gone)? {
            return Ok(false);
        }
        client.hand_over();
        Ok(true)
    }

    /// Sleeps until a completion is there or `timeout` is over. Returns whether one is there.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`], [`Error::Forked`], [`Error::Os`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let inside = self.shared.device.client.sleeps_inside();
        // Where the device is driven as part of sleeping, a look is a sleep of no time.
        let mut looked = !inside;
        loop {
            let client = &self.shared.device.client;
            client.check_quick()?;
            if !inside {
                client.progress();
            }
            if self.queue.available().map_err(|_| Error::Gone)? != 0 {
                return Ok(true);
            }
            let empty = if inside { self.arm_alone()? } else { self.arm()? };
            if !empty {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if looked && left.is_some_and(|left| left.is_zero()) {
                self.queue.disarm();
                return Ok(false);
            }
            looked = true;
            self.shared.device.client.sleep(&self.shared.parts, left)?;
        }
    }

    /// Asks to be woken, without the descriptor. False if completions are there already.
    fn arm_alone(&mut self) -> Result<bool> {
        self.release();
        self.queue.arm().map_err(|_| Error::Gone)
    }
}
