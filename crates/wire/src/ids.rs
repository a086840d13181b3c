//! Who is who: hosts, endpoints, and the codes with which one refuses the other.

use core::fmt;
use core::str::FromStr;

use crate::bytes::{hi, join, lo, put, words};

/// A host, for as long as its machine keeps its identity. Not the UUID of a USB4 router, of which a machine
/// has one per controller.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u128);

impl NodeId {
    /// From its 16 bytes on the wire.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }

    /// Its 16 bytes on the wire.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// The low and the high 64 bits.
    pub const fn halves(self) -> (u64, u64) {
        ((self.0 & 0xffff_ffff_ffff_ffff) as u64, (self.0 >> 64) as u64)
    }

    /// The host's Ethernet address, locally administered: what it is called where names are Ethernet's. The same on every
    /// host; two hosts may share one by a chance of 2^-46.
    pub const fn mac(self) -> [u8; 6] {
        /// The finaliser of SplitMix64: every bit of the result depends on every bit of `x`.
        const fn mix(x: u64) -> u64 {
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        }
        /// Of the first byte: not a group's address, and one that nobody has assigned.
        const GROUP: u8 = 1;
        const LOCAL: u8 = 2;
        let (lo, hi) = self.halves();
        let [_, _, a, b, c, d, e, f] = mix(mix(lo.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ hi).to_be_bytes();
        [a & !GROUP | LOCAL, b, c, d, e, f]
    }

    /// The lower 64 bits of the host's link-local GID, as a number; with [`NodeId::gid`], what a host is called where names
    /// are GIDs: those of the IPv6 address that follows from [`NodeId::mac`] (EUI-64).
    pub const fn guid(self) -> u64 {
        let [a, b, c, d, e, f] = self.mac();
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The host's link-local GID: fe80::/64 and [`NodeId::guid`], big endian.
    pub const fn gid(self) -> [u8; 16] {
        let prefix = 0xfe80_u128 << 112;
        (prefix | self.guid() as u128).to_be_bytes()
    }

    /// From the low and the high 64 bits.
    pub const fn from_halves(lo: u64, hi: u64) -> Self {
        Self(lo as u128 | (hi as u128) << 64)
    }
}

/// 32 hexadecimal digits, most significant first.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lo, hi) = self.halves();
        write!(f, "{hi:016x}{lo:016x}")
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

/// The text is not 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseNodeIdError;

impl fmt::Display for ParseNodeIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a node id is 32 hexadecimal digits")
    }
}

impl core::error::Error for ParseNodeIdError {}

impl FromStr for NodeId {
    type Err = ParseNodeIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ParseNodeIdError);
        }
        let half = |range| {
            let digits = text.get(range).ok_or(ParseNodeIdError)?;
            u64::from_str_radix(digits, 16).map_err(|_| ParseNodeIdError)
        };
        Ok(Self::from_halves(half(16..32)?, half(0..16)?))
    }
}

/// Bytes of a serialised [`EpAddr`].
pub const EP_ADDR_LEN: usize = 24;

/// An endpoint's address. The incarnation is random per endpoint, so that an address never reaches a later
/// endpoint that was given the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpAddr {
    /// The host it lives on.
    pub node: NodeId,
    /// Its number there.
    pub ep: u32,
    /// Which endpoint of that number.
    pub incarnation: u32,
}

impl EpAddr {
    /// From 16 bytes of node id, 4 of endpoint number, 4 of incarnation.
    pub fn from_bytes(bytes: &[u8; EP_ADDR_LEN]) -> Self {
        let [node_lo, node_hi, rest] = words::<3>(bytes).unwrap_or_default();
        Self {
            node: NodeId::from_halves(node_lo, node_hi),
            ep: lo(rest),
            incarnation: hi(rest),
        }
    }

    /// The inverse of [`EpAddr::from_bytes`].
    pub fn to_bytes(self) -> [u8; EP_ADDR_LEN] {
        let (node_lo, node_hi) = self.node.halves();
        let mut bytes = [0; EP_ADDR_LEN];
        let _ = put(&mut bytes, [node_lo, node_hi, join(self.ep, self.incarnation)]);
        bytes
    }
}

impl fmt::Display for EpAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{:08x}", self.node, self.ep, self.incarnation)
    }
}

/// Why the receiver of a request refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum NakCode {
    /// Receiver not ready: no receive is posted. Resumed by READY.
    Rnr = 1,
    /// The key, the range or the right asked for is not valid.
    Access = 2,
    /// The message does not fit the receive.
    Length = 3,
    /// The operation is not offered by this receiver.
    Unsupported = 4,
    /// A limit or quota of the receiver is reached.
    Resource = 5,
    /// The endpoint is not there, or not any more.
    Gone = 6,
    /// The queue pair is there and does not receive yet. Resumed by READY.
    NotReady = 7,
}

impl NakCode {
    /// From the number on the wire.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Rnr,
            2 => Self::Access,
            3 => Self::Length,
            4 => Self::Unsupported,
            5 => Self::Resource,
            6 => Self::Gone,
            7 => Self::NotReady,
            _ => return None,
        })
    }

    /// The number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Whether the sender waits for READY and resumes: all others are final.
    #[inline]
    pub const fn is_resumed(self) -> bool {
        matches!(self, Self::Rnr | Self::NotReady)
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rnr => "no receive is posted at the target",
            Self::Access => "the remote key, address or access right is not valid",
            Self::Length => "the message does not fit the receive posted for it",
            Self::Unsupported => "the target does not offer this operation",
            Self::Resource => "a limit of the target is reached",
            Self::Gone => "the target endpoint does not exist",
            Self::NotReady => "the target queue pair does not receive yet",
        })
    }
}

impl core::error::Error for NakCode {}
