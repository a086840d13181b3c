//! The provider's side of libfabric's ABI: the structures, operation tables and constants that cross the
//! border between the libfabric core, an application and a provider, for interface versions 1.14 to 2.6.
//!
//! It is not a binding for applications: nothing here links to libfabric, and the header's inline calls
//! (`fi_send` and friends) are jumps through the tables below. Names are libfabric's own, so that its manual
//! pages apply.
//!
//! **Growth.** Later libfabric versions only append. Structures here have the fields of 2.6; what an older
//! application hands over ends earlier, so a provider reads fields marked with a version only if the
//! application asked for at least that version (`fid_fabric.api_version`), and the same before it writes to
//! [`fi_cq_err_entry::src_addr`]. Operation tables say their own size; the slots declared `Option` are those
//! the header checks before it calls, every other slot must be filled.
//!
//! `tests/layout.rs` compares each size and offset with the headers that are installed.

#![allow(non_camel_case_types)]

mod domain;
mod ep;
mod eq;
mod errno;
mod fabric;
mod prov;

pub use domain::*;
pub use ep::*;
pub use eq::*;
pub use errno::*;
pub use fabric::*;
pub use prov::*;
