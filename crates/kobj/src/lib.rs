//! The transport as one kernel object: plain C entry points over wire, engine and device.
//!
//! `cargo xtask freestanding` compiles this crate the way Kbuild does and checks what came out: every public
//! operation of the device and of rail bring-up is reachable from here, over a [`Home`](usb4_device::Home) whose
//! methods are C functions named `usb4_home_*`. It holds no decisions: every call goes straight to the crates
//! that the soft device runs too.
#![no_std]

mod bringup;
mod frames;
mod home;
mod objects;

pub use bringup::*;
pub use frames::*;
pub use home::{KernelHome, KernelLock, KernelPort, Pages, Pinned, QueuePages};
pub use objects::*;

/// The device as the kernel builds it.
pub type Device = usb4_device::Device<KernelHome>;
