//! Posted operations: one slab for all flows of a link, threaded per flow.

use usb4_wire::{NakCode, csn_before};

use crate::list::{Linked, List, NONE, OUT, at, at_mut};
use crate::{Host, MemAt, MemRef, Operation, Slab, Status, Work};

/// A posted operation.
///
/// Its chunks have the request numbers `first_csn ..= last_csn`, and a replay can begin at two places only: at
/// the first chunk (a SEND, or any operation behind a refused one), or at the last chunk of a WRITE with
/// immediate data, which is where the target takes the receive. So `last_offset` is all that has to be
/// remembered to resume in the middle.
#[derive(Debug)]
pub struct Op {
    pub(crate) link: u32,
    pub(crate) flow: u32,
    pub(crate) work: Work,
    /// Bytes of the message, prefix included.
    pub(crate) total: u32,
    /// Bytes staged so far.
    pub(crate) sent: u32,
    /// `sent` before the last chunk was staged.
    pub(crate) last_offset: u32,
    pub(crate) first_csn: u32,
    pub(crate) last_csn: u32,
    /// Reads: bytes received so far.
    pub(crate) received: u32,
    /// Plans that write into the local buffer.
    pub(crate) plans: u32,
    /// The latest staging whose gather reads the local buffer.
    pub(crate) gather: u64,
    /// Atomics: the result.
    pub(crate) value: u64,
    pub(crate) status: Status,
    /// It does not start before earlier reads and atomics of its flow are done.
    pub(crate) fenced: bool,
    /// The first chunk has been staged.
    pub(crate) started: bool,
    /// The last chunk has been staged.
    pub(crate) finished: bool,
    /// All response bytes have been received (reads, atomics).
    pub(crate) answered: bool,
    /// It completes in its turn, whatever the peer has executed.
    pub(crate) done: bool,
}

impl Linked<0> for Op {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.link
    }
}

impl Default for Op {
    fn default() -> Self {
        let op = Operation::Read {
            remote_addr: 0,
            remote_key: 0,
        };
        Self {
            link: OUT,
            flow: NONE,
            work: Work {
                cookie: 0,
                op,
                local: None,
                len: 0,
            },
            total: 0,
            sent: 0,
            last_offset: 0,
            first_csn: 0,
            last_csn: 0,
            received: 0,
            plans: 0,
            gather: 0,
            value: 0,
            status: Status::Ok,
            fenced: false,
            started: false,
            finished: false,
            answered: false,
            done: false,
        }
    }
}

impl Op {
    /// Whether it ends with an answer of its own instead of an EXEC_ACK.
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        !matches!(self.work.op, Operation::Send { .. } | Operation::Write { .. })
    }

    /// Whether it holds one of the peer's read slots.
    #[inline]
    pub(crate) fn holds_read(&self) -> bool {
        self.is_read() && self.started && !self.answered
    }

    /// Whether it completes in its turn, when the peer has executed every chunk before `executed`.
    #[inline(always)]
    pub(crate) fn is_complete(&self, executed: u32) -> bool {
        self.done || (self.finished && csn_before(self.last_csn, executed) && !self.is_read())
    }

    /// A chunk with `len` more bytes of it has been staged.
    #[inline]
    pub(crate) fn staged(&mut self, csn: u32, len: u16, last: bool) {
        if !self.started {
            self.started = true;
            self.first_csn = csn;
        }
        self.last_offset = self.sent;
        self.sent = self.sent.wrapping_add(u32::from(len));
        if last {
            self.finished = true;
            self.last_csn = csn;
        }
    }

    /// Takes back what was staged: a replay begins with its first chunk.
    pub(crate) fn rewind(&mut self) {
        self.sent = 0;
        self.received = 0;
        self.started = false;
        self.finished = false;
        self.answered = false;
    }

    /// Where byte `offset` of the message lies in local memory.
    #[inline]
    pub(crate) fn local_at(&self, offset: u32) -> Option<MemAt> {
        let at = self.work.local?;
        Some(MemAt {
            mem: at.mem,
            offset: at.offset.wrapping_add(u64::from(offset)),
        })
    }

    /// Whether the memory it sends from, if any, may still be read.
    #[inline]
    pub(crate) fn can_be_read<H: Host + ?Sized>(&self, host: &H) -> bool {
        self.work.local.is_none_or(|at| host.lives(at.mem))
    }

    /// The reference it owns.
    #[inline]
    pub(crate) fn mem(&self) -> Option<MemRef> {
        self.work.local.map(|at| at.mem)
    }

    /// The peer refused it.
    pub(crate) fn refuse(&mut self, code: NakCode) {
        if self.status == Status::Ok {
            self.status = Status::Refused(code);
        }
    }
}

/// All operations of a link.
#[derive(Debug)]
pub(crate) struct Ops {
    pub(crate) slab: Slab<Op>,
    free: List<0>,
    used: u32,
    /// With that many in use, few are left.
    low: u32,
}

impl Ops {
    pub(crate) fn new(mut slab: Slab<Op>) -> Self {
        let mut free = List::default();
        for op in slab.iter_mut() {
            *op = Op::default();
        }
        for index in (0..NONE).take(slab.len()).rev() {
            free.push_front(&mut slab, index);
        }
        let count = u32::try_from(slab.len()).unwrap_or(NONE);
        Self {
            slab,
            free,
            used: 0,
            low: count.wrapping_sub(count >> 3),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Op> {
        at(&self.slab, index)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Op> {
        at_mut(&mut self.slab, index)
    }

    /// Operations in use.
    #[inline]
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Whether few are left, so that their completion is urgent.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.used >= self.low
    }

    /// Puts work into a free operation.
    #[inline(always)]
    pub(crate) fn alloc(&mut self, flow: u32, work: &Work, total: u32, fenced: bool) -> Option<u32> {
        let index = self.free.pop(&mut self.slab)?;
        let op = at_mut(&mut self.slab, index)?;
        op.flow = flow;
        op.work = *work;
        op.total = total;
        op.last_offset = 0;
        op.plans = 0;
        op.gather = 0;
        op.value = 0;
        op.status = Status::Ok;
        op.fenced = fenced;
        op.done = false;
        op.rewind();
        self.used = self.used.wrapping_add(1);
        Some(index)
    }

    /// Takes the first operation off a list and gives it back.
    #[inline]
    pub(crate) fn free_first(&mut self, list: &mut List<0>) {
        if let Some(op) = list.pop_to(&mut self.free, &mut self.slab) {
            op.flow = NONE;
            self.used = self.used.wrapping_sub(1);
        }
    }
}
