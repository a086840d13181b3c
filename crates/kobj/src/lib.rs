//! The transport as one kernel object: plain C entry points over wire, engine and device.
//!
//! `cargo xtask freestanding` compiles this crate the way Kbuild does and checks what came out. The C side of the
//! module (`kmod/`) calls `usb4_core_*`, declared in `kmod/usb4_core.h`; this side calls `usb4_home_*`, declared
//! there as well. Only integers, pointers and the `repr(C)` structures of [`abi`] cross. No pointer to a function
//! does, so the kernel's control-flow integrity has nothing to check here.
//!
//! Memory comes from C: for everything that lives longer than a call there is a function that says how much, and one
//! that makes the thing in a block of that size. Whoever gave the block gets it back from the function that ends the
//! thing.
//!
//! Where to start: [`device`] (the one there is), [`drive`] (who works, and when), [`bringup`] (rails).
#![no_std]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used
)]

pub mod abi;
mod arena;
pub mod bringup;
pub mod device;
pub mod drive;
mod errno;
mod home;
pub mod joins;
pub mod links;
pub mod objects;
pub mod qp;

pub use home::{KernelHome, KernelLock, KernelPort, Pinned, QueuePages};

/// The device as the kernel builds it.
pub type Device = usb4_device::Device<KernelHome>;
