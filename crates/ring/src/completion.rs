//! Completions.

/// What has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// A posted send.
    Send,
    /// A posted RDMA write.
    Write,
    /// A posted RDMA read.
    Read,
    /// A posted fetch-add.
    FetchAdd,
    /// A posted compare-swap.
    CompareSwap,
    /// A posted receive, by a peer's send.
    Receive,
    /// A posted receive, by a peer's write with immediate.
    ReceiveWrite,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Done: for a send, write or atomic every byte is in target memory and the target's completion, if any,
    /// is visible.
    Ok,
    /// The remote key, its range or its access did not allow it.
    Access,
    /// The message did not fit the receive. A truncated receive reports the whole message's length.
    Length,
    /// The peer does not do this operation.
    Unsupported,
    /// The peer ran out of a resource.
    Resource,
    /// The target endpoint is closed.
    Gone,
    /// The link died before the peer confirmed.
    LinkDown,
    /// The endpoint was closed, or is in error.
    Flushed,
    /// The entry was malformed, or its local buffer is not one of the poster's.
    Invalid,
    /// The address handle has no link to its peer.
    Unreachable,
    /// The peer had no receive posted and the sender did not want to wait.
    NotReady,
    /// A status this library does not know.
    Unknown(u8),
}

/// An endpoint's name for a sending endpoint: see [`crate::Endpoint::source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId(pub u32);

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As given with the work request or receive.
    pub user_data: u64,
    /// What has completed.
    pub op: Op,
    /// How it ended.
    pub status: Status,
    /// Bytes: of the message for a receive, else of the operation.
    pub len: u32,
    /// Immediate data the sender gave (receives only).
    pub imm: Option<u64>,
    /// Atomics: the value before the operation, else 0.
    pub value: u64,
    /// Receives: who sent it.
    pub source: SourceId,
}

impl Default for Completion {
    fn default() -> Self {
        Self {
            user_data: 0,
            op: Op::Send,
            status: Status::Ok,
            len: 0,
            imm: None,
            value: 0,
            source: SourceId(0),
        }
    }
}
