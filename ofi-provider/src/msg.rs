//! Untagged messages.

use std::ffi::c_void;

use libfabric_sys::*;
use usb4_tagged::Class;

use crate::ep::with;
use crate::transfer::{SendArgs, Want};

/// The operations.
pub(crate) static OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
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
fn args(to: fi_addr_t, data: Option<u64>, context: *mut c_void) -> SendArgs {
    SendArgs {
        to,
        class: Class::Message,
        tag: 0,
        data,
        context,
    }
}

#[inline]
fn want(from: fi_addr_t) -> Want {
    Want {
        from,
        class: Class::Message,
        tag: 0,
        ignore: u64::MAX,
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours; the application leaves the buffer to us until the completion.
    unsafe { with(ep, |mut ep| ep.receive_one(buf, len, &want(from), context)) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: as `recv`, with `count` elements.
    unsafe {
        with(ep, |mut ep| {
            ep.receive_vector(iov, count, &want(from), context, None)
        })
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: as `recv`, with the elements the message names.
    unsafe {
        with(ep, |mut ep| {
            let Some(msg) = msg.as_ref() else {
                return -(FI_EINVAL as isize);
            };
            // Only tagged messages are claimed.
            let flags = flags & !FI_CLAIM;
            ep.receive_vector(
                msg.msg_iov,
                msg.iov_count,
                &want(msg.addr),
                msg.context,
                Some(flags),
            )
        })
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: an endpoint of ours; the application leaves the buffer as it is until the completion.
    unsafe { with(ep, |mut ep| ep.send_one(buf, len, &args(to, None, context))) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: as `send`, with `count` elements.
    unsafe {
        with(ep, |mut ep| {
            ep.send_vector(iov, count, &args(to, None, context), None)
        })
    }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: as `send`, with the elements the message names.
    unsafe {
        let Some(msg) = msg.as_ref() else {
            return -(FI_EINVAL as isize);
        };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        let args = args(msg.addr, data, msg.context);
        with(ep, |mut ep| {
            ep.send_vector(msg.msg_iov, msg.iov_count, &args, Some(flags))
        })
    }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, to: fi_addr_t) -> isize {
    // SAFETY: an endpoint of ours and a readable buffer.
    unsafe {
        with(ep, |mut ep| {
            ep.inject_one(buf, len, &args(to, None, std::ptr::null_mut()))
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
    context: *mut c_void,
) -> isize {
    // SAFETY: as `send`.
    unsafe { with(ep, |mut ep| ep.send_one(buf, len, &args(to, Some(data), context))) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
) -> isize {
    // SAFETY: as `inject`.
    unsafe {
        with(ep, |mut ep| {
            ep.inject_one(buf, len, &args(to, Some(data), std::ptr::null_mut()))
        })
    }
}
