//! How to talk to a running `usb4-nhi-emu`, and what it records.
//!
//! * [`Request`]: a line on the control socket `DIR/ctl.sock`, answered by one line of JSON:
//!   `{"ok":true}`, with `"stats"` where they were asked for, or `{"ok":false,"error":"..."}`.
//! * [`Client`]: the other end of that socket.
//!
//! It is not the emulator: `usb4-nhi-emu` carries requests out. `usb4ctl lab` puts them to it.

mod client;
mod request;

pub use client::{CONTROL_SOCKET, Client, ClientError, MARK_SOCKET};
pub use request::{Capture, Hex, Inject, Name, On, Request, RequestError, RingKind, Span, Towards, Way};
