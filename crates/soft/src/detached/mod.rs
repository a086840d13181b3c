//! Detached devices: the device in a process of its own, its clients in others.
//!
//! Clients map their queues and the device maps their memory, by memfd; everything else is asked for over a
//! socket. Sending costs a client no system call while the device polls, which it does for a while after it last
//! had something to do; else its queues say that it wants a doorbell rung.

mod client;
mod protocol;
mod server;
mod spawn;

pub(crate) use client::Detached;
pub(crate) use server::QUOTA;
pub use server::Server;
pub use spawn::{SERVER_PROGRAM, SERVER_VARIABLE, serve_in_background};
