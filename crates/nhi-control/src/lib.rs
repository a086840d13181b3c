//! How to talk to a running `usb4-nhi-emu`, and what it records.
//!
//! * [`Request`]: a line on the control socket `DIR/ctl.sock`, answered by one line of JSON:
//!   `{"ok":true}`, with `"stats"` where they were asked for, or `{"ok":false,"error":"..."}`.
//! * [`Client`]: the other end of that socket.
//! * [`capture`]: the file in which `capture start FILE` records what crosses the cables. A [`capture::Record`] prints
//!   itself decoded.
//!
//! It is not the emulator: `usb4-nhi-emu` carries requests out. `usb4ctl lab` puts them to it.

pub mod capture;
mod client;
mod decode;
mod request;

pub use client::{CONTROL_SOCKET, Client, ClientError, MARK_SOCKET};
pub use request::{Capture, Hex, Inject, Name, On, Request, RequestError, RingKind, Span, Towards, Way};
