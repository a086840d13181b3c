//! One conformance suite for every backend of the ring API.
//!
//! A case is a function over a [`World`] of opened devices; it knows nothing of the backend behind them. The same
//! list runs over the software device, inline and detached, and over the kernel's. Start with
//! [`cases::all`], and with `cases/send.rs` for what a case looks like.
//!
//! Not here: tests of one backend's own machinery (processes, sockets, sleeping), which live with the backend.

pub mod cases;
mod world;

pub use world::{Fabric, Peer, World};
