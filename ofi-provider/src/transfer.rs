//! What tagged and untagged messages have in common.

use std::ffi::c_void;

use libfabric_sys::*;
use usb4_tagged::{Class, MAX_SEGMENTS, Pattern, RecvError, RecvRequest, Segment, SendError, SendRequest};

use crate::ep::Active;
use crate::sink::{COUNT_ONLY, UNBOUND};

const TOO_MANY: isize = -(FI_EINVAL as isize);

/// Buffers of one operation.
struct Segments {
    list: [Segment; MAX_SEGMENTS],
    count: usize,
}

/// One buffer.
#[inline]
fn one(buf: *const c_void, len: usize) -> [Segment; 1] {
    [Segment {
        addr: buf as u64,
        len: len as u64,
    }]
}

impl Segments {
    /// The buffers of an iovec; `None` if there are too many.
    ///
    /// # Safety
    /// `iov` has `count` elements.
    #[inline]
    unsafe fn of(iov: *const libc::iovec, count: usize) -> Option<Self> {
        if count > MAX_SEGMENTS {
            return None;
        }
        let mut list = [Segment::EMPTY; MAX_SEGMENTS];
        for (n, segment) in list.iter_mut().enumerate().take(count) {
            // SAFETY: promised by the caller.
            let element = unsafe { *iov.add(n) };
            *segment = Segment {
                addr: element.iov_base as u64,
                len: element.iov_len as u64,
            };
        }
        Some(Self { list, count })
    }

    #[inline]
    fn as_slice(&self) -> &[Segment] {
        &self.list[..self.count]
    }
}

/// What a send says beside its payload.
pub(crate) struct SendArgs {
    pub(crate) to: fi_addr_t,
    pub(crate) class: Class,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) context: *mut c_void,
}

/// What a receive takes, and from whom.
pub(crate) struct Want {
    pub(crate) from: fi_addr_t,
    pub(crate) class: Class,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
}

/// What the calls of C do, tagged or not. What most messages take is inlined in each.
impl Active<'_> {
    /// `fi_send` and its like: one buffer, the endpoint's default flags.
    ///
    /// # Safety
    /// The buffer stays readable until the completion.
    #[inline(always)]
    pub(crate) unsafe fn send_one(&mut self, buf: *const c_void, len: usize, args: &SendArgs) -> isize {
        // SAFETY: promised by the caller.
        unsafe { self.send(&one(buf, len), args, self.settings.tx_flags) }
    }

    /// `fi_inject` and its like: the buffer is free on return, and success is not reported.
    ///
    /// # Safety
    /// The buffer is readable.
    #[inline(always)]
    pub(crate) unsafe fn inject_one(&mut self, buf: *const c_void, len: usize, args: &SendArgs) -> isize {
        // SAFETY: promised by the caller.
        unsafe { self.post(&one(buf, len), args, FI_INJECT, false) }
    }

    /// `fi_sendmsg` and its like, and without flags `fi_sendv`.
    ///
    /// # Safety
    /// As [`Active::send_one`], for `count` buffers; with `FI_INJECT` they need only be readable now.
    #[inline(never)]
    pub(crate) unsafe fn send_vector(
        &mut self,
        iov: *const libc::iovec,
        count: usize,
        args: &SendArgs,
        flags: Option<u64>,
    ) -> isize {
        // SAFETY: promised by the caller.
        match unsafe { Segments::of(iov, count) } {
            // SAFETY: promised by the caller.
            Some(segments) => unsafe {
                self.send(segments.as_slice(), args, flags.unwrap_or(self.settings.tx_flags))
            },
            None => TOO_MANY,
        }
    }

    /// `fi_recv` and its like: one buffer, the endpoint's default flags.
    ///
    /// # Safety
    /// The buffer stays writable until the completion.
    #[inline(always)]
    pub(crate) unsafe fn receive_one(
        &mut self,
        buf: *mut c_void,
        len: usize,
        want: &Want,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: promised by the caller.
        unsafe { self.receive(&one(buf, len), want, context, self.settings.rx_flags) }
    }

    /// # Safety
    /// The segments stay readable until the completion, or are readable now with `FI_INJECT`.
    #[inline(always)]
    unsafe fn send(&mut self, segments: &[Segment], args: &SendArgs, flags: u64) -> isize {
        let report = !self.settings.tx_selective || flags & FI_COMPLETION != 0;
        // SAFETY: promised by the caller.
        unsafe { self.post(segments, args, flags, report) }
    }

    /// # Safety
    /// As [`Active::send`].
    #[inline(always)]
    unsafe fn post(&mut self, segments: &[Segment], args: &SendArgs, flags: u64, report: bool) -> isize {
        let Some(to) = self.peer(args.to) else {
            return -(FI_EINVAL as isize);
        };
        let request = SendRequest {
            to,
            class: args.class,
            tag: args.tag,
            data: args.data,
            segments,
            context: args.context as u64,
            token: if report { 0 } else { COUNT_ONLY },
            report: report || self.settings.bound.tx_cntr != UNBOUND,
            inject: flags & FI_INJECT != 0,
            confirm: flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE) != 0,
            more: flags & FI_MORE != 0,
        };
        // SAFETY: promised by the caller.
        match unsafe { self.messenger.send(&request) } {
            Ok(()) => 0,
            Err(error) => -isize::try_from(match error {
                SendError::Full => FI_EAGAIN,
                SendError::Unreachable => FI_EHOSTUNREACH,
                SendError::Resource => FI_ENOMEM,
                SendError::Dead => FI_EIO,
                SendError::TooLong => FI_EMSGSIZE,
            })
            .unwrap_or(FI_EOTHER as isize),
        }
    }

    /// What a receive accepts; an error number if it names a sender that does not exist.
    #[inline]
    pub(crate) fn pattern(&self, want: &Want) -> Result<Pattern, isize> {
        let from = if !self.settings.directed || want.from == FI_ADDR_UNSPEC {
            None
        } else {
            Some(self.peer(want.from).ok_or(-(FI_EINVAL as isize))?)
        };
        Ok(Pattern {
            class: want.class,
            from,
            tag: want.tag,
            ignore: want.ignore,
        })
    }

    /// # Safety
    /// The segments stay writable until the completion.
    #[inline(always)]
    unsafe fn receive(
        &mut self,
        segments: &[Segment],
        want: &Want,
        context: *mut c_void,
        flags: u64,
    ) -> isize {
        let pattern = match self.pattern(want) {
            Ok(pattern) => pattern,
            Err(error) => return error,
        };
        let request = self.recv_request(segments, pattern, context, flags);
        let (messenger, mut sink) = self.split();
        // SAFETY: promised by the caller.
        code(unsafe { messenger.receive(&request, &mut sink) })
    }

    /// `fi_recvmsg` and its like, and without flags `fi_recvv`; with `FI_CLAIM` it gets a message claimed before.
    ///
    /// # Safety
    /// As [`Active::receive_one`], for `count` buffers.
    #[inline(never)]
    pub(crate) unsafe fn receive_vector(
        &mut self,
        iov: *const libc::iovec,
        count: usize,
        want: &Want,
        context: *mut c_void,
        flags: Option<u64>,
    ) -> isize {
        let flags = flags.unwrap_or(self.settings.rx_flags);
        // SAFETY: promised by the caller.
        let Some(segments) = (unsafe { Segments::of(iov, count) }) else {
            return TOO_MANY;
        };
        if flags & FI_CLAIM == 0 {
            // SAFETY: promised by the caller.
            return unsafe { self.receive(segments.as_slice(), want, context, flags) };
        }
        let pattern = match self.pattern(want) {
            Ok(pattern) => pattern,
            Err(error) => return error,
        };
        let request = self.recv_request(segments.as_slice(), pattern, context, flags & !FI_MULTI_RECV);
        let (messenger, mut sink) = self.split();
        // SAFETY: promised by the caller.
        code(unsafe { messenger.receive_claimed(&request, &mut sink) })
    }

    #[inline]
    fn recv_request<'a>(
        &self,
        segments: &'a [Segment],
        pattern: Pattern,
        context: *mut c_void,
        flags: u64,
    ) -> RecvRequest<'a> {
        let report = !self.settings.rx_selective || flags & FI_COMPLETION != 0;
        RecvRequest {
            pattern,
            segments,
            context: context as u64,
            token: if report { 0 } else { COUNT_ONLY },
            report: report || self.settings.bound.rx_cntr != UNBOUND,
            multi: (flags & FI_MULTI_RECV != 0).then_some(self.settings.min_multi_recv),
        }
    }
}

#[inline]
fn code(result: Result<(), RecvError>) -> isize {
    match result {
        Ok(()) => 0,
        Err(RecvError::Segments) => -(FI_EINVAL as isize),
        Err(RecvError::NotClaimed) => -(FI_ENOMSG as isize),
    }
}
