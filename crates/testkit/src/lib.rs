//! One conformance suite for every backend of the ring API.
//!
//! A case is a function over a [`World`] of opened devices; it knows nothing of the backend behind them, nor on which
//! host they are: every call goes through an agent, in this process or, over TCP, on another host. The same list runs
//! over the software device, inline and detached, and over the kernel's, on one host or between two. Start with
//! [`cases::all`], and with `cases/send.rs` for what a case looks like.
//!
//! Not here: tests of one backend's own machinery (processes, sockets, sleeping), which live with the backend.

mod agent;
pub mod cases;
mod host;
mod world;

pub use agent::{Failure, FailureKind, Remote, serve};
pub use host::{Cq, Device, Endpoint, Host, Region};
pub use world::{Fabric, Peer, World};
