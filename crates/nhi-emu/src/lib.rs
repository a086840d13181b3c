//! Emulated USB4 host routers for QEMU: [`usb4_nhi_model`] behind vfio-user.
//!
//! One process is one fabric: all controllers and the cables between them. QEMU attaches to a controller as
//! `-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"DIR/nhi0.sock"}}'`, with its memory in a file it
//! can pass on (`-object memory-backend-memfd,share=on`). No privilege is needed.
//!
//! One thread does everything ([`Emulator::run`]): there is one model, so a thread per guest would only wait for its
//! lock, and what happens in one guest cannot be reordered against another. It sleeps until a client has said
//! something or the model's deadline has come. Registers trap, that is, each access is a message; with
//! [`Options::map`] the guest writes doorbells into a page it shares with us, which is then looked at all the time.
//!
//! The server is our own. The crate `vfio_user` was used first and works, but it makes three system calls and two
//! allocations for every register write, takes one file descriptor per message and knows no batched writes: a doorbell
//! cost 5.0 us with it, as the guest sees it, and 1.9 us with one `recvmsg` for whatever waits (QEMU 11.1.3, TCG).
//!
//! Where to start: `emulator.rs` (the loop), `session.rs` (what a client can say), `machine.rs` (what it means).
//! `protocol/` is the wire format, `connection.rs` its socket, `memory.rs` the guest's memory, `pages.rs` mapped
//! registers, `board.rs` what the model calls back, `control/` the socket for commands,
//! `recording.rs` capture files.
#![forbid(unsafe_code)]

mod board;
mod connection;
mod control;
mod emulator;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod machine;
mod memory;
mod pages;
mod protocol;
mod recording;
mod session;
mod sockets;

pub use emulator::{Emulator, Map, Options, StartError};
