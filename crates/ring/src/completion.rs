//! Completions.

use usb4_ring_abi::{Cqe, CqeStatus, Op as AbiOp, cqe_flags};

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

impl Completion {
    #[inline]
    pub(crate) fn from_entry(entry: &Cqe) -> Self {
        let has = |flag| entry.flags & flag != 0;
        let receive = has(cqe_flags::RECV);
        let op = match AbiOp::from_code(entry.op) {
            _ if receive && has(cqe_flags::WRITE_IMM) => Op::ReceiveWrite,
            _ if receive => Op::Receive,
            Some(AbiOp::Write) => Op::Write,
            Some(AbiOp::Read) => Op::Read,
            Some(AbiOp::FetchAdd) => Op::FetchAdd,
            Some(AbiOp::CompareSwap) => Op::CompareSwap,
            // An entry with an operation that does not exist completes as invalid under its own code.
            Some(AbiOp::Send) | None => Op::Send,
        };
        let imm = has(cqe_flags::IMM);
        Self {
            user_data: entry.user_data,
            op,
            status: Status::from_code(entry.status),
            len: entry.len,
            imm: imm.then_some(entry.value),
            value: if imm { 0 } else { entry.value },
            source: SourceId(entry.src),
        }
    }
}

impl Status {
    #[inline]
    fn from_code(code: u8) -> Self {
        if code == CqeStatus::Ok.code() {
            return Self::Ok;
        }
        Self::from_failure(code)
    }

    #[cold]
    fn from_failure(code: u8) -> Self {
        match CqeStatus::from_code(code) {
            Some(CqeStatus::Ok) => Self::Ok,
            Some(CqeStatus::Rnr) => Self::NotReady,
            Some(CqeStatus::Access) => Self::Access,
            Some(CqeStatus::Length) => Self::Length,
            Some(CqeStatus::Unsupported) => Self::Unsupported,
            Some(CqeStatus::Resource) => Self::Resource,
            Some(CqeStatus::Gone) => Self::Gone,
            Some(CqeStatus::LinkDown) => Self::LinkDown,
            Some(CqeStatus::Flushed) => Self::Flushed,
            Some(CqeStatus::Invalid) => Self::Invalid,
            Some(CqeStatus::Unreachable) => Self::Unreachable,
            // What only queue pairs have does not come here.
            Some(
                CqeStatus::RetryExceeded
                | CqeStatus::RnrRetryExceeded
                | CqeStatus::Protection
                | CqeStatus::TooLong,
            )
            | None => Self::Unknown(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_name() {
        for status in CqeStatus::ALL
            .into_iter()
            .filter(|status| !status.is_verbs_only())
        {
            assert!(
                !matches!(Status::from_code(status.code()), Status::Unknown(_)),
                "{status}"
            );
        }
        assert_eq!(Status::from_code(200), Status::Unknown(200));
    }

    #[test]
    fn an_immediate_is_not_taken_for_an_old_value() {
        let receive = Cqe {
            flags: cqe_flags::RECV | cqe_flags::IMM,
            op: AbiOp::Send.code(),
            value: 9,
            src: 3,
            ..Cqe::default()
        };
        let done = Completion::from_entry(&receive);
        assert_eq!(
            (done.op, done.imm, done.value, done.source),
            (Op::Receive, Some(9), 0, SourceId(3))
        );
        let atomic = Cqe {
            op: AbiOp::FetchAdd.code(),
            value: 9,
            ..Cqe::default()
        };
        let done = Completion::from_entry(&atomic);
        assert_eq!((done.op, done.imm, done.value), (Op::FetchAdd, None, 9));
    }
}
