//! Why the link refuses a call.

use core::fmt;

/// Why work was not accepted. The caller keeps the reference on its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PostError {
    /// All operations of the link are in use, or the flow finishes what it has to make room for others; some complete
    /// soon.
    Full,
    /// There is no such flow, or it is closed: by [`crate::Link::close_flow`], or while it was idle because flows ran
    /// out. Open another.
    Closed,
    /// The peer's endpoint is not there, or not any more.
    Gone,
    /// The link is down.
    Down,
    /// A length or prefix outside the limits, or a buffer missing.
    Invalid,
}

/// Why a flow was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenError {
    /// All flows are in use. One is being closed, as soon as one is idle: try again.
    Full,
    /// The link is down.
    Down,
}

/// Why a rail was not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachError {
    /// The rail number is beyond [`crate::LinkConfig::max_rails`].
    NoSuchRail,
    /// The rail is attached already.
    InUse,
    /// The link has failed; a new one is needed.
    Down,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the link or the flow is busy",
            Self::Closed => "the flow is closed",
            Self::Gone => "the peer's endpoint is gone",
            Self::Down => "the link is down",
            Self::Invalid => "the work request is not valid",
        })
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "all flows of the link are in use",
            Self::Down => "the link is down",
        })
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchRail => "the rail number is beyond the link's limit",
            Self::InUse => "the rail is attached already",
            Self::Down => "the link has failed",
        })
    }
}

impl core::error::Error for PostError {}
impl core::error::Error for OpenError {}
impl core::error::Error for AttachError {}
