//! What the device is, and its port.

use std::ffi::{c_char, c_int, c_void};
use std::io::Write as _;

use rdma_core_sys::*;
use usb4_ffi::boundary_or;

use crate::context::shared;
use crate::errno;
use crate::init::PANICKED;

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    boundary_or(PANICKED, || {
        // SAFETY: libibverbs gives a context of ours, and `attr_size` bytes at `attr`.
        errno::status(unsafe { query(context, input, attr, attr_size) })
    })
}

/// # Safety
/// As for the operation.
unsafe fn query(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let shared = unsafe { shared(context)? };
    let mut resp = ib_uverbs_ex_query_device_resp::default();
    let mut size = size_of_val(&resp);
    // SAFETY: the caller's promise; the rest is memory of this function's.
    unsafe {
        errno::check((shared.library.query_device_any)(
            context, input, attr, attr_size, &mut resp, &mut size,
        ))?;
        // The library has seen that there is room for at least this structure.
        version(resp.fw_ver, &mut (*attr).fw_ver);
    }
    Ok(())
}

/// The text of the module's version, of 16 bits each.
fn version(number: u64, text: &mut [c_char; 64]) {
    let part = |shift: u32| (number >> shift) & 0xffff;
    let mut bytes = [0u8; 64];
    // Three numbers of 16 bits fit; the last byte stays zero in any case.
    let _ = write!(&mut bytes[..63], "{}.{}.{}", part(32), part(16), part(0));
    for (to, from) in text.iter_mut().zip(bytes) {
        *to = c_char::from_ne_bytes([from]);
    }
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    boundary_or(PANICKED, || {
        let query = || {
            let mut cmd = ibv_query_port::default();
            // SAFETY: libibverbs gives a context of ours, and room for the attributes.
            unsafe {
                let shared = shared(context)?;
                let size = size_of_val(&cmd);
                errno::check((shared.library.query_port)(context, port, attr, &mut cmd, size))
            }
        };
        errno::status(query())
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_version_is_three_numbers() {
        let mut text = [1; 64];
        version(0x0001_0002_0003, &mut text);
        // SAFETY: it ends with a zero.
        assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"1.2.3");
        version(u64::MAX, &mut text);
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"65535.65535.65535");
    }
}
