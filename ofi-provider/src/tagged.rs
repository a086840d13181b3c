//! Tagged messages.

use std::ffi::c_void;

use libfabric_sys::*;
use usb4_tagged::{Class, Completion, Pattern, Peek, Sink};

use crate::ep::{Active, with};
use crate::transfer::{SendArgs, Want};

/// The operations.
pub(crate) static OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

#[inline]
fn args(to: fi_addr_t, tag: u64, data: Option<u64>, context: *mut c_void) -> SendArgs {
    SendArgs {
        to,
        class: Class::Tagged,
        tag,
        data,
        context,
    }
}

#[inline]
fn want(from: fi_addr_t, tag: u64, ignore: u64) -> Want {
    Want {
        from,
        class: Class::Tagged,
        tag,
        ignore,
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours; the application leaves the buffer to us until the completion.
    unsafe {
        with(ep, |mut ep| {
            ep.receive_one(buf, len, &want(from, tag, ignore), context)
        })
    }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as `recv`, with `count` elements.
    unsafe {
        with(ep, |mut ep| {
            ep.receive_vector(iov, count, &want(from, tag, ignore), context, None)
        })
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as `recv`, with the elements the message names; a peek uses none.
    unsafe {
        with(ep, |mut ep| {
            let Some(msg) = msg.as_ref() else {
                return -(FI_EINVAL as isize);
            };
            let want = want(msg.addr, msg.tag, msg.ignore);
            let pattern = match ep.pattern(&want) {
                Ok(pattern) => pattern,
                Err(error) => return error,
            };
            if flags & FI_PEEK != 0 {
                return peek(&mut ep, &pattern, msg.context, flags);
            }
            if flags & FI_CLAIM != 0 && flags & FI_DISCARD != 0 {
                return discard(&mut ep, &pattern, msg.context);
            }
            ep.receive_vector(msg.msg_iov, msg.iov_count, &want, msg.context, Some(flags))
        })
    }
}

/// Looks for an unexpected message and reports it, or that there is none, on the completion queue.
fn peek(ep: &mut Active<'_>, pattern: &Pattern, context: *mut c_void, flags: u64) -> isize {
    let (messenger, mut sink) = ep.split();
    messenger.progress(&mut sink);
    let what = match (flags & FI_CLAIM != 0, flags & FI_DISCARD != 0) {
        (true, _) => Peek::Claim {
            context: context as u64,
        },
        (false, true) => Peek::Discard,
        (false, false) => Peek::Look,
    };
    match messenger.peek(pattern, what) {
        Some(found) => sink.complete(Completion {
            receive: true,
            context: context as u64,
            token: 0,
            class: Class::Tagged,
            len: found.len,
            truncated: 0,
            addr: 0,
            tag: found.envelope.tag,
            data: found.envelope.data,
            from: Some(found.from),
            last: false,
            result: Ok(()),
        }),
        None => sink.no_message(context as u64, pattern.tag),
    }
    0
}

fn discard(ep: &mut Active<'_>, pattern: &Pattern, context: *mut c_void) -> isize {
    let (messenger, mut sink) = ep.split();
    if !messenger.discard_claimed(context as u64) {
        return -(FI_ENOMSG as isize);
    }
    sink.complete(Completion {
        receive: true,
        context: context as u64,
        token: 0,
        class: Class::Tagged,
        len: 0,
        truncated: 0,
        addr: 0,
        tag: pattern.tag,
        data: None,
        from: None,
        last: false,
        result: Ok(()),
    });
    0
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours; the application leaves the buffer as it is until the completion.
    unsafe { with(ep, |mut ep| ep.send_one(buf, len, &args(to, tag, None, context))) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as `send`, with `count` elements.
    unsafe {
        with(ep, |mut ep| {
            ep.send_vector(iov, count, &args(to, tag, None, context), None)
        })
    }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as `send`, with the elements the message names.
    unsafe {
        let Some(msg) = msg.as_ref() else {
            return -(FI_EINVAL as isize);
        };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        let args = args(msg.addr, msg.tag, data, msg.context);
        with(ep, |mut ep| {
            ep.send_vector(msg.msg_iov, msg.iov_count, &args, Some(flags))
        })
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: an endpoint of ours and a readable buffer.
    unsafe {
        with(ep, |mut ep| {
            ep.inject_one(buf, len, &args(to, tag, None, std::ptr::null_mut()))
        })
    }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as `send`.
    unsafe {
        with(ep, |mut ep| {
            ep.send_one(buf, len, &args(to, tag, Some(data), context))
        })
    }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: as `inject`.
    unsafe {
        with(ep, |mut ep| {
            ep.inject_one(buf, len, &args(to, tag, Some(data), std::ptr::null_mut()))
        })
    }
}
