//! The CUDA run time on host memory: the functions that NCCL calls, by name.
//!
//! One GPU per process, whose memory the host can address. What is not here returns `cudaErrorNotSupported` and says
//! its name on standard error (see [`missing`]). Signatures and constants are those of the CUDA toolkit's
//! documentation, 12.9.

mod device;
mod driver;
mod memory;
mod stream;

pub(crate) use driver::set_kernels;
pub(crate) use stream::stream;

use std::ffi::{CStr, c_char, c_int};

/// A `cudaError_t`.
type Status = c_int;

const SUCCESS: Status = 0;
const INVALID_VALUE: Status = 1;
const OUT_OF_MEMORY: Status = 2;
const INVALID_DEVICE: Status = 101;
const PEER_ACCESS_UNSUPPORTED: Status = 217;
const NOT_READY: Status = 600;
const NOT_SUPPORTED: Status = 801;

/// The address of the function called `name`, if it is among those that work.
pub(crate) fn function(name: &str) -> Option<usize> {
    [device::TABLE, memory::TABLE, stream::TABLE, driver::TABLE]
        .into_iter()
        .flatten()
        .find(|(known, _)| *known == name)
        .map(|(_, function)| function.0 as usize)
}

/// What every other CUDA function does.
///
/// # Safety
/// `name` is a C string.
pub(crate) unsafe extern "C" fn missing(name: *const c_char) -> c_int {
    // SAFETY: as the caller vouches.
    let name = unsafe { CStr::from_ptr(name) };
    eprintln!("nccl-host: {} is not implemented", name.to_string_lossy());
    NOT_SUPPORTED
}

/// A function, whatever its signature.
#[derive(Clone, Copy)]
struct Function(*const ());

// SAFETY: the address of code, which nobody writes.
unsafe impl Sync for Function {}

type Table = &'static [(&'static str, Function)];

/// A table of functions of one module under their own names.
macro_rules! table {
    ($($name:ident)*) => {
        pub(super) const TABLE: $crate::cuda::Table =
            &[$((stringify!($name), $crate::cuda::Function($name as *const ()))),*];
    };
}
use table;

/// Stores a result where the caller wants one.
///
/// # Safety
/// `at` is null or valid for a write.
unsafe fn put<T>(at: *mut T, value: T) -> Status {
    if at.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, so valid as the caller vouches.
    unsafe { at.write(value) };
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_name_and_others_are_not() {
        assert!(function("cudaMalloc").is_some());
        assert_ne!(function("cudaMalloc"), function("cudaFree"));
        assert_eq!(function("cudaGraphLaunch"), None);
    }

    #[test]
    fn a_result_nobody_wants_is_an_invalid_value() {
        let mut count = 0;
        // SAFETY: null, or a local variable.
        unsafe {
            assert_eq!(put(std::ptr::null_mut(), 1), INVALID_VALUE);
            assert_eq!(put(&raw mut count, 7), SUCCESS);
        }
        assert_eq!(count, 7);
    }
}
