//! What every C-facing plugin of this workspace needs at its border: a panic boundary, typed handle casts,
//! a log sink, and knowing children of `fork`.
//!
//! It holds no protocol and no plugin's tables. A plugin wraps the body of every exported function in
//! [`boundary`] (or [`boundary_or`], where the type alone does not say what a failure looks like), turns the
//! pointers it gets into references with [`Handle`], and logs with [`log()`] after it has called [`set_sink`]
//! once. What it opens remembers its [`Process`].

mod fork;
mod handle;
mod log;
mod panic;

pub use fork::Process;
pub use handle::Handle;
pub use log::{Level, Sink, enabled, log, set_sink};
pub use panic::{PanicValue, boundary, boundary_or, log_panics};
