//! What a call returns to NCCL when it fails.

use std::ffi::c_int;
use std::fmt;

use nccl_net_sys::{ncclInternalError, ncclInvalidUsage, ncclRemoteError, ncclSystemError};
use usb4_ffi::{Level, log};

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The operating system, the device or the link.
    System,
    /// NCCL, or this plugin.
    Internal,
    /// The user: sizes, versions or environments that differ.
    Usage,
    /// The peer.
    Peer,
}

impl Blame {
    const fn code(self) -> c_int {
        match self {
            Self::System => ncclSystemError,
            Self::Internal => ncclInternalError,
            Self::Usage => ncclInvalidUsage,
            Self::Peer => ncclRemoteError,
        }
    }
}

/// A failure on its way to NCCL.
#[derive(Debug)]
pub(crate) struct Fault {
    blame: Blame,
    /// What the log is to say; nothing if it has said it already.
    text: Option<String>,
}

impl Fault {
    /// Somebody's fault, with a sentence for the log.
    #[cold]
    pub(crate) fn new(blame: Blame, text: impl fmt::Display) -> Self {
        Self {
            blame,
            text: Some(text.to_string()),
        }
    }

    /// NCCL's or our own.
    #[cold]
    pub(crate) fn internal(text: impl fmt::Display) -> Self {
        Self::new(Blame::Internal, text)
    }

    /// One the log has told of.
    pub(crate) const fn told(blame: Blame) -> Self {
        Self { blame, text: None }
    }

    /// Tells the log, once; the code for NCCL.
    #[cold]
    pub(crate) fn report(self) -> c_int {
        if let Some(text) = self.text {
            log(Level::Warn, format_args!("{text}"));
        }
        self.blame.code()
    }
}

impl From<usb4_ring::Error> for Fault {
    fn from(error: usb4_ring::Error) -> Self {
        Self::new(Blame::System, error)
    }
}
