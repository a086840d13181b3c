//! The soft device: the RDMA stack in user space, over shared-memory cables between the processes of one user.
//!
//! Processes that open the same fabric name find each other by the abstract names of their Unix sockets, join a
//! cable (two shared-memory regions) when they first address each other, bring a rail up over the socket, and
//! exchange the frames of the real protocol through the cable. The device itself is `usb4-device` and
//! `usb4-engine`, unchanged; this crate is their home: memory, locks, clock, threads and cables.
//!
//! It does not know the ring API; `usb4-ring` stands on [`Client`]. What a client needs of its process whatever the
//! device ([`Descriptor`], [`QueueMemory`] and the like) serves the kernel's device there as well.
//!
//! Where to start: [`Client`]; then `core.rs` (who drives), `cable` (how frames cross) and `keeper` (calls, the
//! control channel, the end of peers).

// Under loom only what its scheduler explores is built.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod rings;

#[cfg(not(loom))]
mod cable;
#[cfg(not(loom))]
mod client;
#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod core;
#[cfg(not(loom))]
mod crc;
#[cfg(not(loom))]
mod detached;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod directory;
#[cfg(not(loom))]
mod driven;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod faults;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod greeting;
#[cfg(not(loom))]
mod home;
#[cfg(all(test, not(loom)))]
mod hostile_tests;
#[cfg(not(loom))]
mod inline;
#[cfg(not(loom))]
mod keeper;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod names;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
mod queue;
#[cfg(not(loom))]
mod socket;

#[cfg(not(loom))]
pub use client::{Client, CqParts, EndpointParts, Limits, Reach, RegionParts};
#[cfg(not(loom))]
pub use detached::{SERVER_PROGRAM, SERVER_VARIABLE, Server, serve_in_background};
#[cfg(not(loom))]
pub use error::Error;
#[cfg(not(loom))]
pub use faults::FAULTS_VARIABLE;
#[cfg(not(loom))]
pub use fork::{Descriptor, Generation};
#[cfg(not(loom))]
pub use home::Bell;
#[cfg(not(loom))]
pub use memory::{Mapping, Sharing};
#[cfg(not(loom))]
pub use names::MAX_NAME;
#[cfg(not(loom))]
pub use peer::{Peer, PeerState};
#[cfg(not(loom))]
pub use queue::QueueMemory;
#[cfg(not(loom))]
pub use usb4_device::{Access, DeviceError, EndpointKind, Object};
