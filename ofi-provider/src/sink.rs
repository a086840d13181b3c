//! Where the completions of an endpoint go: into the buffer of the call that waits for them, or into a queue.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys::*;
use usb4_tagged::{Class, Completion, Failure, PeerId, Sink};

use crate::av::{AvState, size};
use crate::cntr::CntrState;
use crate::domain::Table;
use crate::wait::Wait;

/// No object bound.
pub(crate) const UNBOUND: u32 = u32::MAX;

/// `token` of an operation whose success only counters hear of.
pub(crate) const COUNT_ONLY: u32 = 1;

/// The queues and counters of an endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) tx_cq: u32,
    pub(crate) rx_cq: u32,
    pub(crate) tx_cntr: u32,
    pub(crate) rx_cntr: u32,
}

impl Bound {
    /// Nothing bound.
    pub(crate) const NONE: Self = Self {
        tx_cq: UNBOUND,
        rx_cq: UNBOUND,
        tx_cntr: UNBOUND,
        rx_cntr: UNBOUND,
    };

    /// Queue and counter of receives or sends.
    #[inline]
    fn of(&self, receive: bool) -> (u32, u32) {
        if receive {
            (self.rx_cq, self.rx_cntr)
        } else {
            (self.tx_cq, self.tx_cntr)
        }
    }
}

/// Sends an endpoint's completions to the caller, or to its queues and counters.
pub(crate) struct CqSink<'a> {
    pub(crate) cqs: &'a mut Table<CqState>,
    pub(crate) cntrs: &'a mut Table<CntrState>,
    pub(crate) avs: &'a Table<AvState>,
    pub(crate) av: u32,
    pub(crate) bound: &'a Bound,
    pub(crate) direct: Option<&'a mut Direct>,
}

impl Sink for CqSink<'_> {
    fn complete(&mut self, done: Completion) {
        if done.result.is_ok() && self.is_awaited(done.receive) {
            self.hand_over(done);
        } else {
            self.queue(&done);
        }
    }

    #[inline(always)]
    fn is_awaited(&self, receive: bool) -> bool {
        let (cq, cntr) = self.bound.of(receive);
        self.direct
            .as_ref()
            .is_some_and(|direct| direct.left > 0 && direct.cq == cq && cntr == UNBOUND)
    }

    #[inline(always)]
    fn hand_over(&mut self, done: Completion) {
        if let Some(direct) = &mut self.direct {
            direct.write(done, self.avs, self.av);
        }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.is_full())
    }

    #[inline]
    fn is_content(&self) -> bool {
        let some = |direct: &&mut Direct| direct.left < direct.count && direct.stop_when_full;
        self.direct.as_ref().is_some_and(some)
    }
}

impl CqSink<'_> {
    /// Puts a completion into its queue, and counts it.
    #[inline(never)]
    fn queue(&mut self, done: &Completion) {
        let (cq, cntr) = self.bound.of(done.receive);
        if cntr != UNBOUND
            && let Some(cntr) = self.cntrs.get_mut(cntr)
        {
            let count = if done.result.is_ok() {
                &mut cntr.value
            } else {
                &mut cntr.errors
            };
            *count = count.wrapping_add(1);
        }
        // That a multi-receive buffer is the application's again is said whatever it selects.
        if done.token == COUNT_ONLY && done.result.is_ok() && !done.last {
            return;
        }
        let source = address(self.avs, self.av, done.from);
        let entry = Entry::new(done, source);
        let failed = done.result.err().map(|failure| Failed {
            entry,
            truncated: done.truncated,
            error: error(failure),
        });
        self.push(cq, entry, failed);
    }

    /// Reports that a peek found nothing.
    pub(crate) fn no_message(&mut self, context: u64, tag: u64) {
        let entry = Entry {
            context,
            flags: FI_RECV | FI_TAGGED,
            len: 0,
            buf: 0,
            data: 0,
            tag,
            source: FI_ADDR_NOTAVAIL,
            failed: true,
        };
        let failed = Failed {
            entry,
            truncated: 0,
            error: FI_ENOMSG,
        };
        self.push(self.bound.rx_cq, entry, Some(failed));
    }

    #[inline]
    fn push(&mut self, cq: u32, entry: Entry, failed: Option<Failed>) {
        let Some(queue) = self.cqs.get_mut(cq) else { return };
        queue.push(entry, failed);
        if let Some(direct) = &mut self.direct
            && direct.cq == cq
        {
            // What comes later queues up behind it.
            direct.left = 0;
        }
    }
}

/// The address of a peer in an address vector, as far as it has one.
fn address(avs: &Table<AvState>, av: u32, peer: Option<PeerId>) -> fi_addr_t {
    match (peer, avs.get(av)) {
        (Some(peer), Some(av)) => av.address(peer),
        _ => FI_ADDR_NOTAVAIL,
    }
}

/// A completion queue's state, under the domain's lock.
pub(crate) struct CqState {
    entries: VecDeque<Entry>,
    failed: VecDeque<Failed>,
    /// Endpoints bound to it.
    pub(crate) endpoints: Vec<u32>,
    /// Which of them is driven first.
    pub(crate) turn: usize,
    pub(crate) wait: Option<Arc<Wait>>,
    /// Somebody has found nothing here and may sleep: what other threads put in must wake it.
    watched: bool,
}

impl CqState {
    pub(crate) fn new(room: usize, wait: Option<Arc<Wait>>) -> Self {
        Self {
            entries: VecDeque::with_capacity(room),
            failed: VecDeque::new(),
            endpoints: Vec::new(),
            turn: 0,
            wait,
            watched: false,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets an endpoint.
    pub(crate) fn unbind(&mut self, ep: u32) {
        self.endpoints.retain(|bound| *bound != ep);
        self.turn = 0;
    }

    #[inline]
    fn push(&mut self, entry: Entry, failed: Option<Failed>) {
        self.entries.push_back(entry);
        if let Some(failed) = failed {
            self.failed.push_back(failed);
        }
        self.wake();
    }

    /// Has a sleeper look again.
    #[inline]
    pub(crate) fn wake(&mut self) {
        if self.watched {
            self.notify();
        }
    }

    #[cold]
    fn notify(&mut self) {
        self.watched = false;
        if let Some(wait) = &self.wait {
            wait.notify();
        }
    }

    /// From now on a sleeper is woken; false if it need not sleep.
    pub(crate) fn watch(&mut self) -> bool {
        if let Some(wait) = &self.wait {
            wait.take_news();
        }
        self.watched = self.entries.is_empty();
        self.watched
    }

    /// Takes completions as long as there is room and none has failed: how many there are now, or an error number.
    #[inline(never)]
    pub(crate) fn take(&mut self, direct: &mut Direct) -> isize {
        direct.left = direct.count - direct.taken;
        while direct.left > 0
            && let Some(entry) = self.entries.front()
            && !entry.failed
        {
            direct.put(entry, entry.source);
            self.entries.pop_front();
        }
        match self.entries.front() {
            Some(entry) if entry.failed && direct.taken == 0 => -(FI_EAVAIL as isize),
            None if direct.taken == 0 => -(FI_EAGAIN as isize),
            _ => isize::try_from(direct.taken).unwrap_or(isize::MAX),
        }
    }

    /// Takes the next completion if it is a failed one.
    pub(crate) fn take_failed(&mut self) -> Option<Failed> {
        self.entries.front().filter(|entry| entry.failed)?;
        self.entries.pop_front();
        self.failed.pop_front()
    }
}

/// The buffer of a call that reads a queue: completions of that queue go there without a stay in it, in order.
pub(crate) struct Direct {
    cq: u32,
    format: c_int,
    buf: *mut c_void,
    sources: *mut fi_addr_t,
    count: usize,
    taken: usize,
    /// Entries it still takes: none once something waits in the queue.
    left: usize,
    stop_when_full: bool,
}

impl Direct {
    /// # Safety
    /// `buf` has room for `count` entries of the format, `sources` is null or has room for as many, for as long
    /// as this exists.
    #[inline]
    pub(crate) unsafe fn new(
        cq: u32,
        format: c_int,
        buf: *mut c_void,
        count: usize,
        sources: *mut fi_addr_t,
    ) -> Self {
        Self {
            cq,
            format,
            buf,
            sources,
            count,
            taken: 0,
            left: count,
            stop_when_full: false,
        }
    }

    /// No buffer.
    pub(crate) fn none() -> Self {
        let null = std::ptr::null_mut();
        // SAFETY: there is no entry.
        unsafe { Self::new(UNBOUND, FI_CQ_FORMAT_CONTEXT, null, 0, std::ptr::null_mut()) }
    }

    /// Whoever drives endpoints for it stops as soon as it is full: what they have done since waits in the
    /// endpoints for the next call, of which sleepers hear nothing.
    #[inline]
    pub(crate) fn stop_when_full(&mut self) {
        self.stop_when_full = self.count > 0;
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.left == 0 && self.stop_when_full
    }

    /// Entries written.
    #[inline]
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    #[inline(always)]
    fn write(&mut self, done: Completion, avs: &Table<AvState>, av: u32) {
        let source = if self.sources.is_null() {
            FI_ADDR_NOTAVAIL
        } else {
            address(avs, av, done.from)
        };
        self.put(&Entry::new(&done, source), source);
    }

    /// There is room.
    #[inline(always)]
    fn put(&mut self, entry: &Entry, source: fi_addr_t) {
        // SAFETY: there is room for more than `taken` entries, by the promise given to `new`.
        unsafe {
            entry.write(self.format, self.buf, self.taken);
            if !self.sources.is_null() {
                self.sources.add(self.taken).write(source);
            }
        }
        self.taken += 1;
        self.left -= 1;
    }
}

/// A completion that nobody has read yet.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) context: u64,
    pub(crate) flags: u64,
    pub(crate) len: u64,
    pub(crate) buf: u64,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) source: fi_addr_t,
    /// An error entry is next.
    failed: bool,
}

/// A failed completion that nobody has read yet.
#[derive(Clone, Copy)]
pub(crate) struct Failed {
    pub(crate) entry: Entry,
    pub(crate) truncated: u64,
    pub(crate) error: c_int,
}

impl Entry {
    #[inline(always)]
    fn new(done: &Completion, source: fi_addr_t) -> Self {
        let class = if done.class == Class::Tagged {
            FI_TAGGED
        } else {
            FI_MSG
        };
        let direction = if done.receive { FI_RECV } else { FI_SEND };
        let data = if done.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        let last = if done.last { FI_MULTI_RECV } else { 0 };
        Self {
            context: done.context,
            flags: class | direction | data | last,
            len: done.len,
            buf: done.addr,
            data: done.data.unwrap_or(0),
            tag: done.tag,
            source,
            failed: done.result.is_err(),
        }
    }

    /// # Safety
    /// `buf` has room for more than `at` entries of the format.
    #[inline(always)]
    unsafe fn write(&self, format: c_int, buf: *mut c_void, at: usize) {
        let op_context = self.context as *mut c_void;
        let (flags, len, buf_) = (self.flags, size(self.len), self.buf as *mut c_void);
        // SAFETY: promised by the caller.
        unsafe {
            match format {
                FI_CQ_FORMAT_CONTEXT => buf
                    .cast::<fi_cq_entry>()
                    .add(at)
                    .write(fi_cq_entry { op_context }),
                FI_CQ_FORMAT_MSG => {
                    buf.cast::<fi_cq_msg_entry>().add(at).write(fi_cq_msg_entry {
                        op_context,
                        flags,
                        len,
                    });
                }
                FI_CQ_FORMAT_DATA => buf.cast::<fi_cq_data_entry>().add(at).write(fi_cq_data_entry {
                    op_context,
                    flags,
                    len,
                    buf: buf_,
                    data: self.data,
                }),
                _ => buf
                    .cast::<fi_cq_tagged_entry>()
                    .add(at)
                    .write(fi_cq_tagged_entry {
                        op_context,
                        flags,
                        len,
                        buf: buf_,
                        data: self.data,
                        tag: self.tag,
                    }),
            }
        }
    }
}

/// The error number of a failure.
fn error(failure: Failure) -> c_int {
    match failure {
        Failure::PeerLost => FI_ECONNRESET,
        Failure::Access => FI_EACCES,
        Failure::Truncated => FI_ETRUNC,
        Failure::Resource => FI_ENOBUFS,
        Failure::Cancelled => FI_ECANCELED,
        Failure::Flushed => FI_ECONNABORTED,
        Failure::Protocol => FI_EPROTO,
        Failure::Other => FI_EOTHER,
    }
}
