//! The plugin's side of the network ABI of NCCL and RCCL: `ncclNet` v6 (NCCL 2.13) to v12 (NCCL 2.30 to 2.32).
//!
//! It is not a binding for applications: nothing here links to NCCL, and `nccl.h` is not covered. Names are NCCL's own.
//! No package carries the headers, so the layouts are written by hand, and the size and every offset of each structure
//! are asserted where it is defined.
//!
//! A runtime looks for the newest version it knows: see the table in [`net`]. Where to start: [`ncclNet_v12_t`], and
//! what the older versions lack.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

/// Asserts the size of a structure, and the offset of each field.
macro_rules! layout {
    ($type:ident, $size:literal, { $($field:ident @ $offset:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
        };
    };
}

/// Asserts that a structure is these pointers, in this order, and nothing else.
macro_rules! pointers {
    ($type:ident, $size:literal, [$($field:ident),* $(,)?]) => {
        const _: () = {
            let offsets = [$(std::mem::offset_of!($type, $field)),*];
            assert!(size_of::<$type>() == $size && offsets.len() * 8 == $size);
            let mut at = 0;
            while at < offsets.len() {
                assert!(offsets[at] == at * 8);
                at += 1;
            }
        };
    };
}

mod base;
mod calls;
pub mod net;
mod properties;

pub use base::*;
pub use calls::*;
pub use net::{
    ncclNet_v6_t, ncclNet_v7_t, ncclNet_v8_t, ncclNet_v9_t, ncclNet_v10_t, ncclNet_v11_t, ncclNet_v12_t,
};
pub use properties::*;
