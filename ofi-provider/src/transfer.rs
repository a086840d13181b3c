//! What tagged and untagged messages have in common.

use std::ffi::c_void;

use libfabric_sys::*;
use usb4_tagged::{
    Class, MAX_SEGMENTS, Pattern, PeerId, RecvError, RecvRequest, Segment, SendError, SendRequest,
};

use crate::ep::Active;
use crate::sink::{COUNT_ONLY, UNBOUND};

/// Buffers of one operation.
pub(crate) struct Segments {
    list: [Segment; MAX_SEGMENTS],
    count: usize,
}

/// One buffer.
#[inline]
pub(crate) fn one(buf: *const c_void, len: usize) -> [Segment; 1] {
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
    pub(crate) unsafe fn of(iov: *const libc::iovec, count: usize) -> Option<Self> {
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
    pub(crate) fn as_slice(&self) -> &[Segment] {
        &self.list[..self.count]
    }
}

/// How a send call differs from the plain one.
pub(crate) struct SendArgs {
    pub(crate) to: fi_addr_t,
    pub(crate) class: Class,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) context: *mut c_void,
}

impl Active<'_> {
    /// Sends with the endpoint's default flags.
    ///
    /// # Safety
    /// The segments stay readable until the completion.
    #[inline(always)]
    pub(crate) unsafe fn send(&mut self, segments: &[Segment], args: &SendArgs) -> isize {
        // SAFETY: promised by the caller.
        unsafe { self.send_flags(segments, args, self.settings.tx_flags) }
    }

    /// Sends with flags.
    ///
    /// # Safety
    /// The segments stay readable until the completion, or are readable now with `FI_INJECT`.
    #[inline]
    pub(crate) unsafe fn send_flags(&mut self, segments: &[Segment], args: &SendArgs, flags: u64) -> isize {
        let report = !self.settings.tx_selective || flags & FI_COMPLETION != 0;
        // SAFETY: promised by the caller.
        unsafe { self.post(segments, args, flags, report) }
    }

    /// Sends a buffer that is free on return, without completion.
    ///
    /// # Safety
    /// The segments are readable.
    #[inline(always)]
    pub(crate) unsafe fn inject(&mut self, segments: &[Segment], args: &SendArgs) -> isize {
        // SAFETY: promised by the caller.
        unsafe { self.post(segments, args, FI_INJECT, false) }
    }

    /// # Safety
    /// As [`Active::send_flags`].
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
                SendError::Dead => FI_EIO,
                SendError::TooLong => FI_EMSGSIZE,
            })
            .unwrap_or(FI_EOTHER as isize),
        }
    }

    /// The sender a receive names; `Err` if it names one that does not exist.
    #[inline]
    pub(crate) fn sender(&self, from: fi_addr_t) -> Result<Option<PeerId>, isize> {
        if !self.settings.directed || from == FI_ADDR_UNSPEC {
            return Ok(None);
        }
        self.peer(from).map(Some).ok_or(-(FI_EINVAL as isize))
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The segments stay writable until the completion.
    #[inline(always)]
    pub(crate) unsafe fn receive(
        &mut self,
        segments: &[Segment],
        pattern: Pattern,
        context: *mut c_void,
        flags: u64,
    ) -> isize {
        let request = self.recv_request(segments, pattern, context, flags);
        let (messenger, mut sink) = self.split();
        // SAFETY: promised by the caller.
        code(unsafe { messenger.receive(&request, &mut sink) })
    }

    /// Receives a message claimed before.
    ///
    /// # Safety
    /// As [`Active::receive`].
    pub(crate) unsafe fn receive_claimed(
        &mut self,
        segments: &[Segment],
        pattern: Pattern,
        context: *mut c_void,
        flags: u64,
    ) -> isize {
        let request = self.recv_request(segments, pattern, context, flags & !FI_MULTI_RECV);
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
