//! The transport as one kernel object: plain C entry points over wire, engine and device.
//!
//! `cargo xtask freestanding` compiles this crate the way Kbuild does and checks what came out. It holds no
//! decisions: pointers become slices here, and every call goes to the crates that the soft device runs too.
#![no_std]

mod parse;

pub use parse::usb4_core_check_frame;
