//! A client at work, through bare queues: one endpoint, empty messages.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mm::MapFlags;
use usb4_ring_abi::{ARMED, CONSUMER_WORD, Entry, FLAGS_WORD, Op, PRODUCER_WORD, Sqe, sqe_flags, uapi};

use crate::Rig;
use crate::client::{Client, Map};

/// What counts as hung.
const HANG: Duration = Duration::from_secs(10);

/// A client with one endpoint and one address handle.
pub(crate) struct Party {
    pub(crate) client: Client,
    pub(crate) cq: u32,
    pub(crate) ep: uapi::CreateEp,
    /// Submission, receive and completion queue.
    pub(crate) maps: [Map; 3],
    sent: u64,
    posted: u64,
    got: u64,
}

impl Party {
    pub(crate) fn new(rig: &Rig) -> Result<Self> {
        let client = Client::open(rig)?;
        let (cq, completions) = client.mapped_cq(64)?;
        let ep = client.ep(uapi::EP_DATAGRAM, cq)?;
        let map = |offset, bytes| client.map(offset, bytes, MapFlags::SHARED);
        let maps = [
            map(ep.sq_offset, ep.sq_bytes)?,
            map(ep.rq_offset, ep.rq_bytes)?,
            completions,
        ];
        Ok(Self {
            client,
            cq,
            ep,
            maps,
            sent: 0,
            posted: 0,
            got: 0,
        })
    }

    /// Will send to `addr`, whose handle is 0.
    pub(crate) fn address(&self, addr: uapi::Addr) -> Result<()> {
        let ah = self.client.ah(self.ep.ep, addr)?;
        ensure!(ah == 0, "the first handle is {ah}");
        Ok(())
    }

    /// Posts a receive of no bytes.
    pub(crate) fn receive(&mut self) {
        self.posted += 1;
        self.maps[1].words()[PRODUCER_WORD].store(self.posted, Ordering::Release);
    }

    /// Sends an empty message, whose completion is not wanted.
    pub(crate) fn send(&mut self) -> Result<()> {
        self.post(&Sqe {
            op: Op::Send.code(),
            flags: sqe_flags::UNSIGNALED,
            ..Sqe::default()
        })
    }

    /// Submits an entry.
    pub(crate) fn post(&mut self, entry: &Sqe) -> Result<()> {
        let sq = self.maps[0].words();
        let at = usize::try_from(self.sent % 8)?;
        let place = sq.get(32 + 8 * at..).context("a queue of 8 is larger")?;
        entry.store(place).context("an entry has 8 words")?;
        self.sent += 1;
        sq[PRODUCER_WORD].store(self.sent, Ordering::Release);
        let flags = uapi::ENTER_SUBMIT | uapi::ENTER_PROGRESS;
        self.client.enter(flags, self.ep.ep, 0, 0)?;
        Ok(())
    }

    /// Submits an entry, waits until it is completed, and says with which status.
    pub(crate) fn status_of(&mut self, entry: &Sqe) -> Result<u8> {
        self.post(entry)?;
        self.poll()?;
        self.status()
    }

    /// Takes the next completion, driving the device.
    pub(crate) fn poll(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.take() {
            ensure!(start.elapsed() < HANG, "no message within {HANG:?}");
            self.client.enter(uapi::ENTER_PROGRESS, 0, 0, 0)?;
        }
        Ok(())
    }

    /// Takes the next completion, sleeping in the device until it is there.
    pub(crate) fn sleep(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.take() {
            let left = HANG.saturating_sub(start.elapsed());
            ensure!(!left.is_zero(), "nobody woke the sleeper within {HANG:?}");
            self.maps[2].words()[FLAGS_WORD].store(ARMED, Ordering::SeqCst);
            if self.is_empty() {
                let flags = uapi::ENTER_PROGRESS | uapi::ENTER_WAIT;
                self.client
                    .enter(flags, 0, self.cq, u64::try_from(left.as_nanos())?)?;
            }
        }
        Ok(())
    }

    /// Status of the completion taken last.
    fn status(&self) -> Result<u8> {
        Ok(self.word(1)?.to_le_bytes()[1])
    }

    /// Source of the completion taken last.
    pub(crate) fn source(&self) -> Result<u32> {
        Ok(u32::try_from(self.word(3)? & u64::from(u32::MAX))?)
    }

    /// A word of the completion taken last.
    fn word(&self, number: usize) -> Result<u64> {
        let at = usize::try_from((self.got - 1) % 64)?;
        let word = self.maps[2].words().get(32 + 4 * at + number);
        Ok(word.context("a queue of 64 is larger")?.load(Ordering::Relaxed))
    }

    fn is_empty(&self) -> bool {
        self.maps[2].words()[PRODUCER_WORD].load(Ordering::SeqCst) == self.got
    }

    fn take(&mut self) -> bool {
        if self.is_empty() {
            return false;
        }
        self.got += 1;
        self.maps[2].words()[CONSUMER_WORD].store(self.got, Ordering::Release);
        true
    }
}
