//! What the suite asks of a host, and the answers.

use serde::{Deserialize, Serialize};
use usb4_ring::{Access, Completion, EpAddr, Op, SourceId, Status};

/// Name of an object an agent holds.
pub(crate) type Id = u64;

/// Something to do on a host.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Call {
    /// Opens a device: [`Answer::Id`].
    Open {
        spec: String,
    },
    /// [`Answer::Id`].
    CreateCq {
        device: Id,
        depth: u32,
    },
    /// [`Answer::Endpoint`].
    CreateEndpoint {
        device: Id,
        cq: Id,
        connected: bool,
        sq_depth: u32,
        rq_depth: u32,
    },
    /// [`Answer::Number`].
    AddressHandle {
        endpoint: Id,
        peer: Address,
    },
    /// Puts an entry on the submission queue.
    Post {
        endpoint: Id,
        words: [u64; 8],
    },
    /// Puts one on the receive queue; key 0 is for no bytes.
    PostRecv {
        endpoint: Id,
        user_data: u64,
        addr: u64,
        key: u32,
        len: u32,
    },
    Submit {
        endpoint: Id,
    },
    /// Free entries of the receive queue: [`Answer::Number`].
    RecvSpace {
        endpoint: Id,
    },
    /// [`Answer::Address`].
    Source {
        endpoint: Id,
        source: u32,
    },
    /// [`Answer::Region`].
    Alloc {
        device: Id,
        len: usize,
        access: u8,
    },
    /// The answer's data are the bytes.
    Read {
        region: Id,
        offset: usize,
        len: usize,
    },
    /// The call's data are the bytes.
    Write {
        region: Id,
        offset: usize,
    },
    /// Drives the queue's device, then takes completions: [`Answer::Completions`].
    Poll {
        cq: Id,
        max: usize,
    },
    /// Sleeps in the ring API: [`Answer::Number`], 1 if something is there.
    Wait {
        cq: Id,
        timeout_ms: u64,
    },
    /// Sleeps on the queue's descriptor: [`Answer::Number`], 1 if it became readable or something was there before.
    WaitReadable {
        cq: Id,
        timeout_ms: u64,
    },
    /// Gives an object up.
    Drop {
        id: Id,
    },
}

/// What became of a [`Call`].
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Answer {
    Done,
    Id(Id),
    Number(u32),
    Address(Option<Address>),
    Endpoint {
        id: Id,
        address: Address,
    },
    Region {
        id: Id,
        addr: u64,
        local_key: u32,
        remote_key: u64,
    },
    Completions(Vec<Entry>),
    Failed(Failure),
}

/// Why a call failed.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// What cases tell apart.
    pub kind: FailureKind,
    /// The ring API's sentence.
    pub text: String,
}

/// The errors that cases expect.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum FailureKind {
    /// The queue has no free entry.
    QueueFull,
    /// No such host.
    Unreachable,
    /// The endpoint was closed by the device.
    EndpointError,
    /// Any other.
    Other,
}

impl From<usb4_ring::Error> for Failure {
    fn from(error: usb4_ring::Error) -> Self {
        let kind = match &error {
            usb4_ring::Error::QueueFull => FailureKind::QueueFull,
            usb4_ring::Error::Unreachable(_) | usb4_ring::Error::RefusedPeer(..) => FailureKind::Unreachable,
            usb4_ring::Error::EndpointError => FailureKind::EndpointError,
            _ => FailureKind::Other,
        };
        Self {
            kind,
            text: error.to_string(),
        }
    }
}

impl Failure {
    /// One that is not the ring API's.
    pub(crate) fn other(text: impl ToString) -> Self {
        Self {
            kind: FailureKind::Other,
            text: text.to_string(),
        }
    }
}

/// An endpoint's address.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Address([u8; 24]);

impl From<EpAddr> for Address {
    fn from(address: EpAddr) -> Self {
        Self(address.to_bytes())
    }
}

impl From<Address> for EpAddr {
    fn from(address: Address) -> Self {
        Self::from_bytes(&address.0)
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    user_data: u64,
    op: usize,
    status: usize,
    len: u32,
    imm: Option<u64>,
    value: u64,
    source: u32,
}

/// By number.
const OPS: [Op; 7] = [
    Op::Send,
    Op::Write,
    Op::Read,
    Op::FetchAdd,
    Op::CompareSwap,
    Op::Receive,
    Op::ReceiveWrite,
];

/// By number.
const STATUSES: [Status; 11] = [
    Status::Ok,
    Status::Access,
    Status::Length,
    Status::Unsupported,
    Status::Resource,
    Status::Gone,
    Status::LinkDown,
    Status::Flushed,
    Status::Invalid,
    Status::Unreachable,
    Status::NotReady,
];

impl From<Completion> for Entry {
    fn from(done: Completion) -> Self {
        let op = OPS.iter().position(|op| *op == done.op);
        let status = STATUSES.iter().position(|status| *status == done.status);
        Self {
            user_data: done.user_data,
            op: op.unwrap_or(0),
            status: status.unwrap_or(usize::MAX),
            len: done.len,
            imm: done.imm,
            value: done.value,
            source: done.source.0,
        }
    }
}

impl From<Entry> for Completion {
    fn from(entry: Entry) -> Self {
        Self {
            user_data: entry.user_data,
            op: OPS.get(entry.op).copied().unwrap_or(Op::Send),
            status: STATUSES
                .get(entry.status)
                .copied()
                .unwrap_or(Status::Unknown(u8::MAX)),
            len: entry.len,
            imm: entry.imm,
            value: entry.value,
            source: SourceId(entry.source),
        }
    }
}

/// Rights as bits, and back.
const RIGHTS: [(u8, Access); 3] = [
    (1, Access::REMOTE_READ),
    (2, Access::REMOTE_WRITE),
    (4, Access::REMOTE_ATOMIC),
];

pub(crate) fn access_bits(access: Access) -> u8 {
    let bits = RIGHTS.iter().filter(|(_, right)| access.contains(*right));
    bits.fold(0, |bits, (bit, _)| bits | bit)
}

pub(crate) fn access_of(bits: u8) -> Access {
    let rights = RIGHTS.iter().filter(|(bit, _)| bits & bit != 0);
    rights.fold(Access::LOCAL, |access, (_, right)| access | *right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_and_rights_survive_the_way() {
        for (op, status) in OPS.into_iter().zip(STATUSES) {
            let done = Completion {
                user_data: u64::MAX,
                op,
                status,
                len: 7,
                imm: Some(3),
                value: 9,
                source: SourceId(4),
            };
            let text = serde_json::to_string(&Entry::from(done)).unwrap();
            let back: Entry = serde_json::from_str(&text).unwrap();
            assert_eq!(Completion::from(back), done);
        }
        for bits in 0..8 {
            assert_eq!(access_bits(access_of(bits)), bits);
        }
    }
}
