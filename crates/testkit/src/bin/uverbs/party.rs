//! A queue pair at work: whoever is asked to post, to wait or to look at its memory. It is in this process, or in another
//! host's (`peer.rs`).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use serde::{Deserialize, Serialize};
use usb4_ring_abi::{
    CONSUMER_WORD, Entry, FLAGS_WORD, NEED_WAKEUP, Op, PRODUCER_WORD, Piece, RQE_WORDS, Rqe, SQE_WORDS,
    Slots, Sqe, sqe_flags, uapi,
};

use crate::context::{Context, Cq, Gid, Mr, Qp, Srq, gid};
use crate::map::Map;
use crate::states::{ALL, Change, ERR, Kind, PATIENT, Patience, To, modify, state};

/// What counts as hung.
const HANG: Duration = Duration::from_secs(30);

/// Entries of every queue.
const DEPTH: u32 = 64;

/// Elements and bytes of inline data of an entry: more is asked for than one has in itself.
const ROOM: (u32, u32) = (5, 100);

/// Where entries of a queue begin.
const ENTRIES: usize = 32;

/// Bytes of the buffer.
pub(crate) const BUFFER: usize = 4 << 20;

/// Bytes in front of a datagram.
pub(crate) const GRH: u32 = 40;

/// A queue pair for others.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) gid: Gid,
    pub(crate) number: u32,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

impl Place {
    /// Whom to connect to.
    pub(crate) fn target(&self) -> To {
        To {
            gid: self.gid,
            number: self.number,
        }
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Completion {
    pub(crate) user_data: u64,
    pub(crate) op: u8,
    pub(crate) status: u8,
    pub(crate) flags: u16,
    pub(crate) len: u32,
    pub(crate) value: u64,
    pub(crate) src: u32,
    pub(crate) ep: u32,
}

/// What a party is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// A new queue pair, whose peer may do that.
    Make {
        kind: Kind,
        access: u32,
    },
    /// To be connected.
    Connect {
        gid: Gid,
        number: u32,
    },
    /// To post a receive.
    Receive {
        at: usize,
        len: u32,
    },
    /// To post one into several places.
    ReceiveList(Vec<(usize, u32)>),
    /// To wait for a completion.
    Await,
    /// Whether there is none.
    Quiet,
    /// To send what follows from `seed`, and wait until that is complete.
    Send {
        len: u32,
        seed: u64,
    },
    Fill {
        at: usize,
        len: usize,
        seed: u64,
    },
    Verify {
        at: usize,
        len: usize,
        seed: u64,
    },
    /// A word of the buffer.
    Word {
        at: usize,
    },
    SetWord {
        at: usize,
        value: u64,
    },
    /// The queue pair's state.
    State,
    /// The next asynchronous event's type.
    Event,
    /// The same, if that is of the object with this name.
    EventOf {
        object: u64,
    },
    /// The next one of any object: that in the upper half, its type in the lower.
    AnyEvent,
    /// To have queue pairs made from now on draw from a shared receive queue.
    Share {
        entries: u32,
        sge: u32,
    },
    /// To be told when that has fewer receives.
    Limit {
        limit: u32,
    },
    /// To put its queue pair into error.
    Break,
    /// To write nonsense where the receive queue's, or the completion queue's, index of its own is.
    Corrupt {
        completions: bool,
    },
}

/// What events call things.
pub(crate) const CQ: u64 = 0x77;
pub(crate) const QP: u64 = 0x88;
pub(crate) const SRQ: u64 = 0x66;

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Made(Place),
    Completion(Completion),
    Word(u64),
    State(u8),
    Failed(String),
}

/// One.
pub(crate) struct Party {
    pub(crate) context: Context,
    pub(crate) pd: u32,
    pub(crate) gid: Gid,
    pub(crate) channel: OwnedFd,
    pub(crate) cq: Cq,
    pub(crate) buffer: Map,
    pub(crate) mr: Mr,
    pub(crate) qp: Option<Qp>,
    pub(crate) srq: Option<Srq>,
    kind: Kind,
    sent: u64,
    posted: u64,
    got: u64,
}

impl Party {
    pub(crate) fn new(device: &str) -> Result<Self> {
        let context = Context::new(device)?;
        let pd = context.pd().context("ALLOC_PD")?;
        let channel = context.channel().context("CREATE_COMP_CHANNEL")?;
        let cq = context.cq(DEPTH, channel.as_raw_fd())?;
        let buffer = Map::buffer(BUFFER, ProtFlags::READ | ProtFlags::WRITE)?;
        let mr = context
            .reg(pd, buffer.address(), BUFFER as u64, ALL)
            .context("REG_MR")?;
        Ok(Self {
            gid: gid(device)?,
            context,
            pd,
            channel,
            cq,
            buffer,
            mr,
            qp: None,
            srq: None,
            kind: Kind::Rc,
            sent: 0,
            posted: 0,
            got: 0,
        })
    }

    pub(crate) fn handle(&mut self, request: &Request) -> Reply {
        self.carry_out(request)
            .unwrap_or_else(|error| Reply::Failed(format!("{error:#}")))
    }

    fn carry_out(&mut self, request: &Request) -> Result<Reply> {
        match *request {
            Request::Make { kind, access } => return Ok(Reply::Made(self.make(kind, access)?)),
            Request::Connect { gid, number } => self.connect(To { gid, number }, PATIENT)?,
            Request::Receive { at, len } => self.receive(at, len)?,
            Request::ReceiveList(ref places) => self.receive_list(places)?,
            Request::Await => return Ok(Reply::Completion(self.wait()?)),
            Request::Quiet => self.quiet()?,
            Request::Send { len, seed } => {
                self.buffer.fill(0, len as usize, seed);
                let entry = self.entry(Op::Send, 0, len);
                self.post(&entry)?;
                return Ok(Reply::Completion(self.wait()?));
            }
            Request::Fill { at, len, seed } => self.buffer.fill(at, len, seed),
            Request::Verify { at, len, seed } => {
                if let Some(byte) = self.buffer.differs(at, len, seed) {
                    bail!("byte {byte} of {len} at {at} is wrong");
                }
            }
            Request::Word { at } => return Ok(Reply::Word(self.word(at)?)),
            Request::SetWord { at, value } => {
                let word = self.buffer.words().get(at / 8).context("beyond the buffer")?;
                word.store(value, Ordering::Relaxed);
            }
            Request::State => return Ok(Reply::State(self.state()?)),
            Request::Event => return Ok(Reply::Word(self.event(QP)?)),
            Request::EventOf { object } => return Ok(Reply::Word(self.event(object)?)),
            Request::AnyEvent => {
                let (object, kind) = self.any_event()?;
                return Ok(Reply::Word(object << 32 | kind));
            }
            Request::Share { entries, sge } => {
                self.srq = Some(self.context.srq(self.pd, entries, sge)?);
                self.posted = 0;
            }
            Request::Limit { limit } => {
                let srq = self.srq.context("nothing is shared")?;
                self.context.modify_srq(srq.handle, 2, 0, limit)?;
            }
            Request::Break => self.modify(&Change::to(ERR))?,
            Request::Corrupt { completions } => {
                let (words, at) = if completions {
                    (self.cq.map.words(), CONSUMER_WORD)
                } else {
                    (self.queue_pair()?.rq.words(), PRODUCER_WORD)
                };
                words[at].store(u64::MAX / 2, Ordering::Release);
            }
        }
        Ok(Reply::Done)
    }

    pub(crate) fn word(&self, at: usize) -> Result<u64> {
        let word = self.buffer.words().get(at / 8).context("beyond the buffer")?;
        Ok(word.load(Ordering::Relaxed))
    }

    pub(crate) fn queue_pair(&self) -> Result<&Qp> {
        self.qp.as_ref().context("there is no queue pair")
    }

    pub(crate) fn state(&self) -> Result<u8> {
        state(&self.context, self.queue_pair()?.handle).context("QUERY_QP")
    }

    pub(crate) fn modify(&self, change: &Change) -> Result<()> {
        let state = change.state;
        modify(&self.context, self.queue_pair()?.handle, change)
            .with_context(|| format!("MODIFY_QP to state {state}"))
    }

    /// A queue pair in place of the one there was, in INIT; completions that are left are of that one.
    pub(crate) fn make(&mut self, kind: Kind, access: u32) -> Result<Place> {
        if let Some(old) = self.qp.take() {
            self.context.destroy_qp(old.handle).context("DESTROY_QP")?;
        }
        while self.take().is_some() {}
        let (pd, cq) = (self.pd, self.cq.handle);
        let qp = self.context.qp_of(kind as u8, pd, cq, DEPTH, ROOM, self.srq)?;
        (self.sent, self.kind) = (0, kind);
        if self.srq.is_none() {
            self.posted = 0;
        }
        let number = qp.number;
        self.qp = Some(qp);
        self.modify(&Change::init(kind, access))?;
        Ok(Place {
            gid: self.gid,
            number,
            addr: self.buffer.address(),
            rkey: self.mr.rkey,
        })
    }

    /// To RTR and RTS.
    pub(crate) fn connect(&self, to: To, patience: Patience) -> Result<()> {
        self.modify(&Change::rtr(self.kind, to))?;
        self.modify(&Change::rts(self.kind, patience))
    }

    /// An entry for bytes at `at` of the buffer.
    pub(crate) fn entry(&self, op: Op, at: u64, len: u32) -> Sqe {
        Sqe {
            op: op.code(),
            user_data: self.sent,
            local_addr: self.buffer.address() + at,
            local_key: self.mr.lkey,
            len,
            ..Sqe::default()
        }
    }

    /// The same, to or from a peer's memory.
    pub(crate) fn remote(&self, op: Op, at: u64, len: u32, place: &Place, to: u64) -> Sqe {
        let mut entry = self.entry(op, at, len);
        entry.args = [place.addr + to, u64::from(place.rkey), 0, 0];
        entry
    }

    fn enter(&self, flags: u32) -> Result<()> {
        self.enter_for(self.queue_pair()?.ep, flags)
    }

    fn enter_for(&self, ep: u32, flags: u32) -> Result<()> {
        let mut enter = uapi::Enter {
            flags,
            ep,
            ..uapi::Enter::new()
        };
        self.context.call(uapi::IOC_ENTER, &mut enter).context("ENTER")?;
        Ok(())
    }

    pub(crate) fn post(&mut self, entry: &Sqe) -> Result<()> {
        let qp = self.queue_pair()?;
        put(
            &qp.sq,
            self.sent,
            qp.sq_depth,
            entry,
            Sqe::default().to_words().len(),
        )?;
        self.sent += 1;
        self.queue_pair()?.sq.words()[PRODUCER_WORD].store(self.sent, Ordering::Release);
        self.enter(uapi::ENTER_SUBMIT | uapi::ENTER_PROGRESS)
    }

    /// Pieces of the buffer.
    pub(crate) fn pieces(&self, places: &[(usize, u32)]) -> Vec<Piece> {
        let piece = |&(at, len): &(usize, u32)| Piece {
            addr: self.buffer.address() + at as u64,
            local_key: self.mr.lkey,
            len,
        };
        places.iter().map(piece).collect()
    }

    /// Posts an entry whose buffer is a list; then writes to its slot.
    pub(crate) fn post_list(&mut self, entry: &Sqe, pieces: &[Piece]) -> Result<()> {
        let entry = Sqe {
            flags: entry.flags | sqe_flags::LIST,
            local_addr: 0,
            local_key: u32::try_from(pieces.len())?,
            len: pieces.iter().map(|piece| piece.len).sum(),
            ..*entry
        };
        self.post_with_slot(&entry, &flat(pieces))
    }

    /// Posts an entry with what it sends; then writes to its slot.
    pub(crate) fn post_inline(&mut self, entry: &Sqe, bytes: &[u8]) -> Result<()> {
        let entry = Sqe {
            flags: entry.flags | sqe_flags::INLINE,
            local_addr: 0,
            local_key: 0,
            len: u32::try_from(bytes.len())?,
            ..*entry
        };
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        self.post_with_slot(&entry, &words.collect::<Vec<_>>())
    }

    /// The entry is taken when the call returns, so what happens to the slot afterwards does not matter to it.
    fn post_with_slot(&mut self, entry: &Sqe, words: &[u64]) -> Result<()> {
        let index = self.sent;
        let qp = self.queue_pair()?;
        let slot = slot(&qp.sq, index, qp.sq_depth, SQE_WORDS, qp.sq_slots)?;
        ensure!(words.len() <= slot.len(), "the slot is short");
        for (place, word) in slot.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
        self.post(entry)?;
        let qp = self.queue_pair()?;
        let taken = qp.sq.words()[CONSUMER_WORD].load(Ordering::Acquire);
        if taken > index {
            let slot = self::slot(&qp.sq, index, qp.sq_depth, SQE_WORDS, qp.sq_slots)?;
            for place in slot {
                place.store(0x5a5a_5a5a_5a5a_5a5a, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    pub(crate) fn receive(&mut self, at: usize, len: u32) -> Result<()> {
        self.post_receive(Rqe {
            addr: self.buffer.address() + at as u64,
            local_key: self.mr.lkey,
            len,
            ..Rqe::default()
        })
    }

    fn receive_list(&mut self, places: &[(usize, u32)]) -> Result<()> {
        let (pieces, qp) = (self.pieces(places), self.queue_pair()?);
        let slot = slot(&qp.rq, self.posted, qp.rq_depth, RQE_WORDS, qp.rq_slots)?;
        let words = flat(&pieces);
        ensure!(words.len() <= slot.len(), "the slot is short");
        for (place, word) in slot.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.post_receive(Rqe {
            len: pieces.iter().map(|piece| piece.len).sum(),
            reserved: pieces.len() as u64,
            ..Rqe::default()
        })
    }

    fn post_receive(&mut self, entry: Rqe) -> Result<()> {
        let entry = Rqe {
            user_data: self.posted,
            ..entry
        };
        let qp = self.queue_pair()?;
        put(&qp.rq, self.posted, qp.rq_depth, &entry, 4)?;
        self.posted += 1;
        let words = self.queue_pair()?.rq.words();
        words[PRODUCER_WORD].store(self.posted, Ordering::SeqCst);
        if words[FLAGS_WORD].load(Ordering::SeqCst) & NEED_WAKEUP != 0 {
            self.enter_for(self.queue_pair()?.receives, uapi::ENTER_SUBMIT)?;
        }
        Ok(())
    }

    fn take(&mut self) -> Option<Completion> {
        let words = self.cq.map.words();
        if words[PRODUCER_WORD].load(Ordering::Acquire) == self.got {
            return None;
        }
        let at = usize::try_from(self.got & u64::from(self.cq.depth - 1)).ok()?;
        let word = |number: usize| {
            let word = words.get(ENTRIES + 4 * at + number);
            word.map_or(0, |word| word.load(Ordering::Relaxed))
        };
        let [op, status, f0, f1, l0, l1, l2, l3] = word(1).to_le_bytes();
        let [s0, s1, s2, s3, e0, e1, e2, e3] = word(3).to_le_bytes();
        let completion = Completion {
            user_data: word(0),
            op,
            status,
            flags: u16::from_le_bytes([f0, f1]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            value: word(2),
            src: u32::from_le_bytes([s0, s1, s2, s3]),
            ep: u32::from_le_bytes([e0, e1, e2, e3]),
        };
        self.got += 1;
        words[CONSUMER_WORD].store(self.got, Ordering::Release);
        Some(completion)
    }

    /// The next completion of the queue pair, driving the device.
    pub(crate) fn wait(&mut self) -> Result<Completion> {
        let start = Instant::now();
        loop {
            if let Some(found) = self.take() {
                let number = self.queue_pair()?.number;
                ensure!(found.ep == number, "{found:?} is not of queue pair {number}");
                return Ok(found);
            }
            ensure!(start.elapsed() < HANG, "no completion within {HANG:?}");
            self.enter(uapi::ENTER_PROGRESS)?;
        }
    }

    /// Sees that nothing completes for a while.
    pub(crate) fn quiet(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            self.enter(uapi::ENTER_PROGRESS)?;
            if let Some(found) = self.take() {
                bail!("{found:?} was not to come");
            }
        }
        Ok(())
    }

    /// Sleeps until the completion channel says that the queue has an entry.
    pub(crate) fn sleep(&self) -> Result<()> {
        let read = wait_read(&self.channel, 8)?;
        ensure!(
            read == 0x77_u64.to_le_bytes(),
            "the channel names another queue: {read:?}"
        );
        Ok(())
    }

    /// Waits until the device is gone, however long that takes, and sees that everything else is.
    pub(crate) fn outlive(&mut self) -> Result<()> {
        /// `IB_EVENT_DEVICE_FATAL`.
        const GONE: [u8; 4] = 8_u32.to_le_bytes();
        let mut event = [0; 16];
        rustix::io::read(&self.context.events, &mut event)?;
        ensure!(event[8..12] == GONE, "another event: {event:?}");
        let said = self.context.pd();
        ensure!(said == Err(Errno::IO), "uverbs goes on: {said:?}");
        let mut enter = uapi::Enter {
            flags: uapi::ENTER_SUBMIT,
            ep: self.queue_pair()?.ep,
            ..uapi::Enter::new()
        };
        let said = self.context.call(uapi::IOC_ENTER, &mut enter);
        ensure!(said == Err(Errno::NOENT), "the queue pair is there: {said:?}");
        Ok(())
    }

    /// Whether the completion channel has said anything.
    pub(crate) fn has_woken(&self) -> Result<bool> {
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        Ok(poll(&mut [PollFd::new(&self.channel, PollFlags::IN)], Some(&limit))? == 1)
    }

    /// The type of the next asynchronous event (`enum ib_event_type`), which is to be that object's.
    fn event(&self, object: u64) -> Result<u64> {
        let (whose, kind) = self.any_event()?;
        ensure!(whose == object, "event {kind} of {whose:#x}, not {object:#x}");
        Ok(kind)
    }

    fn any_event(&self) -> Result<(u64, u64)> {
        let read = wait_read(&self.context.events, 16)?;
        let word = |at: usize| {
            let bytes = read.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        Ok((word(0), word(8) & u64::from(u32::MAX)))
    }
}

/// Reads `len` bytes as soon as there are some.
fn wait_read(fd: &OwnedFd, len: usize) -> Result<Vec<u8>> {
    let limit = Timespec {
        tv_sec: i64::try_from(HANG.as_secs())?,
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit))?;
    ensure!(ready == 1, "nothing within {HANG:?}");
    let mut bytes = vec![0; len];
    let read = rustix::io::read(fd, &mut bytes)?;
    ensure!(read == len, "{read} bytes, not {len}");
    Ok(bytes)
}

/// Writes an entry of `words` words to its place.
fn put(map: &Map, index: u64, depth: u32, entry: &impl Entry, words: usize) -> Result<()> {
    let at = usize::try_from(index & u64::from(depth - 1))?;
    let place = map
        .words()
        .get(ENTRIES + words * at..)
        .context("the queue is short")?;
    entry.store(place).context("the queue is short")
}

/// The slot of an entry, behind all entries.
fn slot(map: &Map, index: u64, depth: u32, words: usize, slots: Slots) -> Result<&[AtomicU64]> {
    let at = usize::try_from(index & u64::from(depth - 1))?;
    let from = ENTRIES + words * depth as usize + slots.words() * at;
    let slot = map.words().get(from..from + slots.words());
    slot.context("the queue has no slots")
}

fn flat(pieces: &[Piece]) -> Vec<u64> {
    pieces.iter().flat_map(|piece| piece.to_words()).collect()
}

/// The immediate data of a SEND or WRITE.
pub(crate) fn with_immediate(mut entry: Sqe, value: u32) -> Sqe {
    entry.flags |= sqe_flags::IMM;
    let [_, _, _, immediate] = &mut entry.args;
    *immediate = u64::from(value);
    entry
}
