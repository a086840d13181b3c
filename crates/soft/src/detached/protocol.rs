//! What a detached device and its clients say to each other: one request, one reply, each one message on a
//! sequenced-packet socket.

use std::io;

use usb4_device::{DeviceError, Object};
use usb4_wire::{EpAddr, NodeId};

use crate::Error;
use crate::directory::Failure;

/// Changes with anything a client and a server of different builds could disagree about.
pub(super) const VERSION: u64 = 1;

const WORDS: usize = 8;

/// Bytes of a request, and of the fixed part of a reply.
pub(super) const MESSAGE_LEN: usize = WORDS * 8;

/// Most peers in a reply.
pub(super) const MAX_PEERS: usize = 256;

/// Bytes of a peer in a reply: node id, then state (2 bits) and process id.
pub(super) const PEER_LEN: usize = 24;

/// Longest reply.
pub(super) const REPLY_MAX: usize = MESSAGE_LEN + MAX_PEERS * PEER_LEN;

/// What a client asks for. In brackets the reply's values and descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Op {
    /// version [node low, node high; doorbell]
    Hello = 1,
    /// depth [id; memory, bell]
    CreateCq = 2,
    /// id
    DestroyCq = 3,
    /// kind, depths, CQs [id, address; submission queue, receive queue]
    CreateEndpoint = 4,
    /// id
    DestroyEndpoint = 5,
    /// address, length, access; memory [local key, remote key]
    Register = 6,
    /// local key
    Deregister = 7,
    /// endpoint, kind, address \[handle\], or pending
    AddressHandle = 8,
    /// endpoint, handle
    CloseHandle = 9,
    /// source \[address\]
    Source = 10,
    /// \[count\], then as many peers
    Peers = 11,
}

impl Op {
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::CreateCq,
        Self::DestroyCq,
        Self::CreateEndpoint,
        Self::DestroyEndpoint,
        Self::Register,
        Self::Deregister,
        Self::AddressHandle,
        Self::CloseHandle,
        Self::Source,
        Self::Peers,
    ];
}

/// A request, or a reply: a code and arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) code: u64,
    pub(super) args: [u64; WORDS - 1],
}

impl Message {
    pub(super) fn new(code: u64, args: &[u64]) -> Self {
        let mut new = Self {
            code,
            args: [0; WORDS - 1],
        };
        for (place, arg) in new.args.iter_mut().zip(args) {
            *place = *arg;
        }
        new
    }

    pub(super) fn to_bytes(self) -> [u8; MESSAGE_LEN] {
        let mut bytes = [0; MESSAGE_LEN];
        let words = [self.code].into_iter().chain(self.args);
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<MESSAGE_LEN>()?;
        let mut words = [0; WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        let [code, args @ ..] = words;
        Some(Self { code, args })
    }

    /// The operation of a request.
    pub(super) fn op(&self) -> Option<Op> {
        Op::ALL.into_iter().find(|op| *op as u64 == self.code)
    }

    /// Argument `i` as 32 bits.
    pub(super) fn u32(&self, i: usize) -> u32 {
        (self.args[i] & 0xffff_ffff) as u32
    }

    /// An endpoint's address from argument `i`.
    pub(super) fn address(&self, i: usize) -> EpAddr {
        let [ep, incarnation] = split(self.args[i + 2]);
        EpAddr {
            node: NodeId::from_halves(self.args[i], self.args[i + 1]),
            ep,
            incarnation,
        }
    }
}

/// An endpoint's address as three arguments.
pub(super) fn address_args(address: &EpAddr) -> [u64; 3] {
    let (low, high) = address.node.halves();
    [low, high, join(address.ep, address.incarnation)]
}

/// Two 32-bit values in an argument.
pub(super) fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The inverse of [`join`].
pub(super) fn split(word: u64) -> [u32; 2] {
    [(word & 0xffff_ffff) as u32, (word >> 32) as u32]
}

// Codes of replies.
pub(super) const OK: u64 = 0;
pub(super) const PENDING: u64 = 1;
const VERSION_MISMATCH: u64 = 2;
const UNREACHABLE: u64 = 3;
const FOREIGN: u64 = 4;
const PEER_VERSION: u64 = 5;
const TOO_MANY_PEERS: u64 = 6;
const OS: u64 = 7;
const INVALID: u64 = 8;
/// The request is none: the server ends the connection after this.
pub(super) const MALFORMED: u64 = 9;
/// And above: what the device refused for.
const DEVICE: u64 = 32;

/// The errors of the device a client can meet, by code.
const DEVICE_ERRORS: [DeviceError; 25] = [
    DeviceError::NoClient,
    DeviceError::NoCq,
    DeviceError::NoEndpoint,
    DeviceError::NoRegion,
    DeviceError::NoHandle,
    DeviceError::NoLink,
    DeviceError::Unreachable,
    DeviceError::Busy,
    DeviceError::State,
    DeviceError::Exists,
    DeviceError::Range,
    DeviceError::Quota(Object::Client),
    DeviceError::Quota(Object::Endpoint),
    DeviceError::Quota(Object::Cq),
    DeviceError::Quota(Object::CqEntry),
    DeviceError::Quota(Object::Region),
    DeviceError::Quota(Object::RegionByte),
    DeviceError::Quota(Object::Handle),
    DeviceError::Full(Object::Client),
    DeviceError::Full(Object::Endpoint),
    DeviceError::Full(Object::Cq),
    DeviceError::Full(Object::Region),
    DeviceError::Full(Object::Handle),
    DeviceError::Full(Object::Link),
    // Stands for all others: they do not depend on what a client does.
    DeviceError::Storage,
];

/// An error as a reply.
pub(super) fn refusal(error: &Error) -> Message {
    let code = match error {
        Error::Unreachable(_) | Error::ConnectTimeout(_) => UNREACHABLE,
        Error::Foreign { uid, .. } => return Message::new(FOREIGN, &[u64::from(*uid)]),
        Error::Version(_) => PEER_VERSION,
        Error::TooManyPeers(_) => TOO_MANY_PEERS,
        Error::Os { source, .. } => {
            let errno = source.raw_os_error().unwrap_or(libc::EIO).unsigned_abs();
            return Message::new(OS, &[u64::from(errno)]);
        }
        Error::Device(error) => {
            let last = DEVICE_ERRORS.len() - 1;
            let index = DEVICE_ERRORS
                .iter()
                .position(|known| known == error)
                .unwrap_or(last);
            DEVICE + index as u64
        }
        Error::ServerVersion => VERSION_MISMATCH,
        _ => INVALID,
    };
    Message::new(code, &[])
}

/// The inverse of [`refusal`]; `node` is whom the request was about.
pub(super) fn error_of(reply: &Message, what: &'static str, node: NodeId) -> Error {
    let failure = match reply.code {
        UNREACHABLE => Failure::Unreachable,
        FOREIGN => Failure::Foreign(reply.u32(0)),
        PEER_VERSION => Failure::Version,
        TOO_MANY_PEERS => Failure::Full,
        OS => Failure::Os(what, io::Error::from_raw_os_error(reply.u32(0) as i32)),
        VERSION_MISMATCH => return Error::ServerVersion,
        INVALID | MALFORMED => return Error::Invalid("the device does not understand the request"),
        code => {
            let known = usize::try_from(code.wrapping_sub(DEVICE))
                .ok()
                .and_then(|i| DEVICE_ERRORS.get(i));
            Failure::Device(*known.unwrap_or(&DeviceError::Storage))
        }
    };
    failure.into_error(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_bytes() {
        let message = Message::new(Op::Peers as u64, &[1, u64::MAX, 3]);
        assert_eq!(Message::parse(&message.to_bytes()), Some(message));
        assert_eq!(message.op(), Some(Op::Peers));
        assert_eq!(Message::parse(&message.to_bytes()[1..]), None);
        assert_eq!(Message::new(99, &[]).op(), None);
    }

    #[test]
    fn addresses_survive_their_arguments() {
        let address = EpAddr {
            node: NodeId(1 << 100 | 7),
            ep: 3,
            incarnation: u32::MAX,
        };
        assert_eq!(Message::new(0, &address_args(&address)).address(0), address);
    }

    #[test]
    fn a_client_sees_the_device_s_own_error() {
        for error in DEVICE_ERRORS {
            let reply = refusal(&Error::Device(error));
            assert!(matches!(error_of(&reply, "ask", NodeId(1)), Error::Device(same) if same == error));
        }
        let refused = Error::Os {
            what: "ask",
            source: io::Error::from_raw_os_error(libc::EMFILE),
        };
        let seen = error_of(&refusal(&refused), "ask", NodeId(1));
        assert_eq!(seen.to_string(), refused.to_string());
        let unreachable = refusal(&Error::Unreachable(NodeId(1)));
        assert!(matches!(
            error_of(&unreachable, "ask", NodeId(1)),
            Error::Unreachable(NodeId(1))
        ));
    }
}
