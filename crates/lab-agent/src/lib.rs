//! How the lab runs commands in its guests: the frames that cross the guest's virtio-serial port.
//!
//! The host asks ([`Kind::Start`], [`Kind::Stdin`], [`Kind::Signal`], [`Kind::Resize`]), the agent in the guest
//! answers ([`Kind::Hello`] once, then [`Kind::Stdout`], [`Kind::Stderr`] and one [`Kind::End`] per command).
//! Commands are told apart by a number that the host chooses, so many run at once. The port keeps order and loses
//! nothing; both ends are ours, so a frame that makes no sense is an error, not something to recover from.
#![forbid(unsafe_code)]

mod frame;
mod message;

pub use frame::{BODY_MAX, Frame, Kind};
pub use message::{End, Start, Terminal};

/// Name of the virtio-serial port.
pub const PORT: &str = "lab";

/// What [`Kind::Hello`] carries; both ends are built from one source, a stale agent says another.
pub const GREETING: &[u8] = b"lab-agent 1";
