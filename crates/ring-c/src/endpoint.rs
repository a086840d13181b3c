//! Endpoints, and what is posted to them.

use std::ffi::{c_int, c_void};

use usb4_ffi::{boundary, boundary_or};
use usb4_ring::{AddressHandle, Endpoint, EndpointConfig, EndpointKind, Rqe, SourceId, Sqe};

use crate::cq::usb4ring_cq;
use crate::device::usb4ring_device;
use crate::error::{Failure, given, run};
use crate::object::{Owned, give, take_back};
use crate::types::{usb4ring_addr, usb4ring_ep_config, usb4ring_request};

/// An endpoint.
#[derive(Debug)]
pub struct usb4ring_ep(Owned<Endpoint>);

/// Creates an endpoint.
///
/// # Safety
/// Device and queues are there, `config` is NULL or there, `out` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_create_ep(
    device: Option<&usb4ring_device>,
    config: Option<&usb4ring_ep_config>,
    send_cq: Option<&usb4ring_cq>,
    recv_cq: Option<&usb4ring_cq>,
    out: *mut *mut usb4ring_ep,
) -> c_int {
    let create = || {
        let config = config.copied().unwrap_or_default();
        if config.reserved != 0 {
            return Err(Failure::Own(libc::EINVAL, "reserved fields are 0"));
        }
        let usual = EndpointConfig::default();
        let kind = match config.kind {
            0 => EndpointKind::Datagram,
            1 => EndpointKind::Connected,
            _ => {
                return Err(Failure::Own(
                    libc::EINVAL,
                    "an endpoint's kind is USB4RING_DATAGRAM or USB4RING_CONNECTED",
                ));
            }
        };
        let depth = |wanted, usual| if wanted == 0 { usual } else { wanted };
        let wanted = EndpointConfig {
            kind,
            sq_depth: depth(config.sq_depth, usual.sq_depth),
            rq_depth: depth(config.rq_depth, usual.rq_depth),
        };
        let (send_cq, recv_cq) = (given(send_cq)?, given(recv_cq)?);
        let device = given(device)?.0.get()?;
        let endpoint = device.create_endpoint(&wanted, send_cq.0.get()?, recv_cq.0.get()?)?;
        Ok(usb4ring_ep(Owned::new(endpoint)))
    };
    // SAFETY: a place for a pointer, says the caller.
    run(|| unsafe { give(out, create) })
}

/// Closes an endpoint; NULL is none.
///
/// # Safety
/// It is there, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_destroy_ep(ep: *mut usb4ring_ep) {
    // SAFETY: the caller's promise.
    unsafe { take_back(ep) };
}

/// An endpoint's address.
///
/// # Safety
/// The endpoint is there, `addr` a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_get_addr(ep: Option<&usb4ring_ep>, addr: *mut usb4ring_addr) {
    let Some(ep) = ep else { return };
    // SAFETY: a place for it, says the caller.
    unsafe { addr.write(ep.0.anywhere().address().into()) };
}

/// Opens a handle of a peer's endpoint.
///
/// # Safety
/// The endpoint is there and no other thread uses it; `handle` is a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_open_handle(
    ep: Option<&mut usb4ring_ep>,
    peer: Option<&usb4ring_addr>,
    wait: c_int,
    handle: *mut u32,
) -> c_int {
    run(|| {
        let (ep, peer) = (given(ep)?.0.get_mut()?, (*given(peer)?).into());
        let opened = if wait == 0 {
            ep.try_address_handle(&peer)?.ok_or(Failure::Own(
                libc::EINPROGRESS,
                "the link is coming up: ask again",
            ))?
        } else {
            ep.address_handle(&peer)?
        };
        // SAFETY: a place for it, says the caller.
        unsafe { handle.write(opened.raw()) };
        Ok(0)
    })
}

/// Closes a handle.
///
/// # Safety
/// The endpoint is there and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_close_handle(ep: Option<&mut usb4ring_ep>, handle: u32) {
    boundary(|| {
        if let Some(Ok(ep)) = ep.map(|ep| ep.0.get_mut()) {
            ep.close_handle(AddressHandle::from_raw(handle));
        }
    });
}

/// Posts a request.
///
/// # Safety
/// The endpoint is there and no other thread uses it. Plain memory that the request names stays as it is, mapped, until
/// the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_post(
    ep: Option<&mut usb4ring_ep>,
    request: Option<&usb4ring_request>,
) -> c_int {
    run(|| {
        let (ep, entry) = (given(ep)?.0.get_mut()?, entry(given(request)?)?);
        // SAFETY: the caller's promise.
        unsafe { ep.post_raw(&entry)? };
        Ok(0)
    })
}

/// The entry of a request. The device checks the rest of it: what is wrong there is the completion's status.
#[inline]
fn entry(request: &usb4ring_request) -> Result<Sqe, Failure> {
    let mut entry = Sqe {
        op: request.op,
        flags: request.flags,
        prefix_len: request.prefix_len,
        reserved: request.reserved,
        ah: request.handle,
        user_data: request.user_data,
        local_addr: request.addr.addr() as u64,
        local_key: request.local_key,
        len: request.len,
        args: [request.remote_addr, request.remote_key, 0, 0],
    };
    match request.op {
        SEND => {
            if usize::from(request.prefix_len) > request.prefix.len() {
                return Err(Failure::Own(
                    libc::EINVAL,
                    "a prefix has at most USB4RING_MAX_PREFIX bytes",
                ));
            }
            for (word, bytes) in entry.args.iter_mut().zip(request.prefix.chunks_exact(8)) {
                *word = bytes
                    .iter()
                    .rev()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte));
            }
            entry.args[3] = immediate(request);
        }
        WRITE => entry.args[3] = immediate(request),
        FETCH_ADD => entry.args[2] = request.operand,
        COMPARE_SWAP => [entry.args[2], entry.args[3]] = [request.operand, request.compare],
        _ => {}
    }
    Ok(entry)
}

const SEND: u8 = 1;
const WRITE: u8 = 2;
const FETCH_ADD: u8 = 4;
const COMPARE_SWAP: u8 = 5;
const IMM: u8 = 1;

fn immediate(request: &usb4ring_request) -> u64 {
    if request.flags & IMM == 0 { 0 } else { request.imm }
}

/// Posts a receive.
///
/// # Safety
/// As for [`usb4ring_post`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_post_recv(
    ep: Option<&mut usb4ring_ep>,
    user_data: u64,
    addr: *mut c_void,
    local_key: u32,
    len: u32,
) -> c_int {
    run(|| {
        let entry = Rqe {
            user_data,
            addr: addr.addr() as u64,
            local_key,
            len,
            reserved: 0,
        };
        let ep = given(ep)?.0.get_mut()?;
        // SAFETY: the caller's promise.
        unsafe { ep.post_recv_raw(&entry)? };
        Ok(0)
    })
}

/// Makes what was posted visible to the device.
///
/// # Safety
/// The endpoint is there and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_submit(ep: Option<&mut usb4ring_ep>) -> c_int {
    run(|| {
        given(ep)?.0.get_mut()?.submit()?;
        Ok(0)
    })
}

/// Free entries of the submission queue.
///
/// # Safety
/// The endpoint is there and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_send_space(ep: Option<&mut usb4ring_ep>) -> u32 {
    boundary_or(0, || space(ep, Endpoint::send_space))
}

/// Free entries of the receive queue.
///
/// # Safety
/// The endpoint is there and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_recv_space(ep: Option<&mut usb4ring_ep>) -> u32 {
    boundary_or(0, || space(ep, Endpoint::recv_space))
}

fn space(ep: Option<&mut usb4ring_ep>, of: impl FnOnce(&mut Endpoint) -> u32) -> u32 {
    ep.and_then(|ep| ep.0.get_mut().ok()).map_or(0, of)
}

/// Whom a completion's source names.
///
/// # Safety
/// The endpoint is there and no other thread uses it; `addr` is a place for the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usb4ring_source(
    ep: Option<&mut usb4ring_ep>,
    source: u32,
    addr: *mut usb4ring_addr,
) -> c_int {
    run(|| {
        let found = given(ep)?
            .0
            .get_mut()?
            .source(SourceId(source))
            .ok_or(Failure::Own(
                libc::ENOENT,
                "the device has forgotten this source: ask when the completion comes",
            ))?;
        // SAFETY: a place for it, says the caller.
        unsafe { addr.write(found.into()) };
        Ok(0)
    })
}
