//! `libusb4ring`: the ring API for C.
//!
//! `include/usb4ring.h` is the documentation; here each of its functions is made of one or two calls of `usb4-ring`.
//! There is no state but the last error of each thread. `USB4_RING_H` of the kernel module is something else: the
//! interface below this one, which has no promises for programs.
//!
//! Where to start: `types.rs` has what C sees; `tests/c/` has programs in C.

#![allow(non_camel_case_types, reason = "the names of the C header")]

mod cq;
mod device;
mod endpoint;
mod error;
mod memory;
mod object;
mod types;

pub use cq::*;
pub use device::*;
pub use endpoint::*;
pub use error::*;
pub use memory::*;
pub use types::*;
