//! What NCCL and RCCL ask vendors' libraries, answered for one GPU that is host memory.
//!
//! One shared library, to be found under each name: `libnvidia-ml.so.1` ([`nvml`], next to the CUDA of `crates/nccl-host`);
//! `libamdhip64.so.5` and `librocm_smi64.so.1` ([`hip`] and [`rsmi`], what RCCL needs to set its connections up; kernels do
//! nothing). Start at [`nvml`].

pub mod hip;
pub mod nvml;
pub mod rsmi;

use std::ffi::c_int;

/// Stores a result where a caller in C wants one; `NOT_WANTED` where it gave none.
fn put<T>(at: *mut T, value: T) -> c_int {
    if at.is_null() {
        return NOT_WANTED;
    }
    // SAFETY: not null, and the caller's variable of this type.
    unsafe { at.write(value) };
    0
}

/// An error in any of the libraries.
const NOT_WANTED: c_int = 3;
