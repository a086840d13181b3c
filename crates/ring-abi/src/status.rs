//! Completion status codes.

use core::fmt;

/// How a submission or receive ended, as a completion entry reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CqeStatus {
    /// Done. For a submission: every byte is in target memory and its completion is visible there.
    Ok = 0,
    /// The peer never had a receive for it.
    Rnr = 1,
    /// The peer refused the access: wrong key, domain, access right or range.
    Access = 2,
    /// The message did not fit the receive (both sides see this).
    Length = 3,
    /// The peer does not support the operation.
    Unsupported = 4,
    /// The peer is out of resources for it.
    Resource = 5,
    /// The peer has no such endpoint (any more), or it takes no traffic from here.
    Gone = 6,
    /// The link died before the peer confirmed it; it may or may not have taken effect.
    LinkDown = 7,
    /// Flushed: the endpoint was destroyed, killed or in error before it was executed or confirmed.
    Flushed = 8,
    /// The entry itself is wrong: unknown operation or flag, reserved bits, local range, address handle.
    Invalid = 9,
    /// There is no link to that host.
    Unreachable = 10,
    /// Queue pairs: the peer's does not exist, or did not get ready to receive in time.
    RetryExceeded = 11,
    /// Queue pairs: the peer's had no receive in time.
    RnrRetryExceeded = 12,
    /// Queue pairs: the local key, domain or range is not valid. (Others say [`Self::Invalid`].)
    Protection = 13,
    /// Queue pairs: the message is longer than one may be. (Others say [`Self::Invalid`].)
    TooLong = 14,
}

impl CqeStatus {
    /// All codes, in numeric order.
    pub const ALL: [Self; 15] = [
        Self::Ok,
        Self::Rnr,
        Self::Access,
        Self::Length,
        Self::Unsupported,
        Self::Resource,
        Self::Gone,
        Self::LinkDown,
        Self::Flushed,
        Self::Invalid,
        Self::Unreachable,
        Self::RetryExceeded,
        Self::RnrRetryExceeded,
        Self::Protection,
        Self::TooLong,
    ];

    /// The status with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether only completions of queue pairs have it.
    pub fn is_verbs_only(self) -> bool {
        matches!(
            self,
            Self::RetryExceeded | Self::RnrRetryExceeded | Self::Protection | Self::TooLong
        )
    }

    /// The code as it stands in a completion entry.
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for CqeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "done",
            Self::Rnr => "the peer had no receive posted",
            Self::Access => "the peer refused access to that memory",
            Self::Length => "the message is longer than the receive",
            Self::Unsupported => "the peer does not support the operation",
            Self::Resource => "the peer is out of resources",
            Self::Gone => "the peer endpoint is gone or takes no traffic from here",
            Self::LinkDown => "the link to the peer went down",
            Self::Flushed => "flushed: the endpoint was closed or is in error",
            Self::Invalid => "the entry is not valid",
            Self::Unreachable => "there is no link to that host",
            Self::RetryExceeded => "the peer's queue pair does not exist or did not get ready",
            Self::RnrRetryExceeded => "the peer had no receive posted in time",
            Self::Protection => "the local key or range is not valid",
            Self::TooLong => "the message is longer than one may be",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_unknown_ones_are_refused() {
        for status in CqeStatus::ALL {
            assert_eq!(CqeStatus::from_code(status.code()), Some(status));
        }
        assert_eq!(CqeStatus::from_code(15), None);
        assert_eq!(CqeStatus::from_code(255), None);
    }
}
