//! Control messages: how two hosts bring a rail between them up and down. They travel beside the rails (as
//! XDomain messages, or over a socket), may be lost, repeated and reordered, and are harmless when replayed.

use core::fmt;

use crate::bytes::{hi, join, lo, put, words};
use crate::{
    CONTROL_LEN, CONTROL_MAGIC, CONTROL_VERSION, ControlError, MAX_ACK_DELAY_LIMIT_US, NodeId, RING_RESERVE,
};

/// What a control message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ControlKind {
    /// I want a session with these parameters.
    Offer = 1,
    /// Your offer (named by `echo`) is good; these are my parameters.
    Accept = 2,
    /// My rings run and my paths are enabled: you may send frames.
    PathsUp = 3,
    /// I know that your paths are up.
    PathsUpAck = 4,
    /// I have stopped sending and am about to take the rail down.
    Bye = 5,
    /// I have stopped sending, and my paths are off.
    ByeAck = 6,
    /// Your frames carry a tag I do not know (`tag`): that session is over.
    Reset = 7,
    /// I do not want this session; `reason` says why.
    Refuse = 8,
}

impl ControlKind {
    /// From the number on the wire.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Offer,
            2 => Self::Accept,
            3 => Self::PathsUp,
            4 => Self::PathsUpAck,
            5 => Self::Bye,
            6 => Self::ByeAck,
            7 => Self::Reset,
            8 => Self::Refuse,
            _ => return None,
        })
    }

    /// The number on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Why a session is refused or ended, in `reason` of [`ControlKind::Refuse`] and [`ControlKind::Bye`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Reason {
    /// The version ranges do not meet.
    Version = 1,
    /// This host is not allowed to talk to that one.
    NotAllowed = 2,
    /// No ring, hop or memory is left for another session.
    Resources = 3,
    /// The host is shutting down, suspending or unloading.
    Shutdown = 4,
}

impl Reason {
    /// From the number on the wire.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Version,
            2 => Self::NotAllowed,
            3 => Self::Resources,
            4 => Self::Shutdown,
            _ => return None,
        })
    }

    /// The number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "no protocol version in common",
            Self::NotAllowed => "the peer does not allow this host",
            Self::Resources => "the peer has no ring, hop or memory left",
            Self::Shutdown => "the peer is shutting down",
        })
    }
}

/// The fields of a control message. Every kind has them all; the specification says what they mean in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ControlBody {
    /// Lowest frame version the sender speaks.
    pub ver_min: u8,
    /// Highest frame version the sender speaks.
    pub ver_max: u8,
    /// The sending host.
    pub node_id: NodeId,
    /// The sender's session tag (in RESET: the tag the sender does not know).
    pub tag: u64,
    /// The sender's nonce for this attempt.
    pub nonce: u64,
    /// The peer's nonce, sent back; 0 if none.
    pub echo: u64,
    /// Nonce received on an established rail of the link this rail wants to join; 0 if none.
    pub join: u64,
    /// HopID on which the sender's frames will leave.
    pub tx_hop: u32,
    /// Slots of the sender's receive ring; more than [`RING_RESERVE`].
    pub ring_size: u32,
    /// Longest time the sender holds an acknowledgement back, in microseconds.
    pub max_ack_delay_us: u32,
    /// Features wanted ([`crate::FEATURE_PAYLOAD_CRC`]); those both sides want are in force.
    pub features: u32,
    /// Incoming flows the sender can hold.
    pub max_flows: u32,
    /// Reads the sender answers at a time.
    pub max_reads: u32,
    /// [`Reason`] in REFUSE and BYE; 0 else.
    pub reason: u32,
}

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control {
    /// What it says.
    pub kind: ControlKind,
    /// About what.
    pub body: ControlBody,
}

impl Control {
    /// Reads a message. `crc32c` continues a CRC32C from its first argument, 0 to begin.
    ///
    /// # Errors
    /// What is wrong with it; the message is to be ignored.
    pub fn parse(bytes: &[u8], crc32c: impl Fn(u32, &[u8]) -> u32) -> Result<Self, ControlError> {
        let bytes: &[u8; CONTROL_LEN] = bytes.try_into().map_err(|_| ControlError::Length)?;
        let [
            w0,
            w1,
            node_lo,
            node_hi,
            tag,
            nonce,
            echo,
            join,
            hop_ring,
            delay_features,
            limits,
            reserved,
        ] = words::<12>(bytes).ok_or(ControlError::Length)?;
        let [m0, m1, m2, m3, version, kind, ver_min, ver_max] = w0.to_le_bytes();
        if [m0, m1, m2, m3] != CONTROL_MAGIC {
            return Err(ControlError::Magic);
        }
        if version != CONTROL_VERSION {
            return Err(ControlError::Version(version));
        }
        if message_crc(bytes, crc32c) != lo(w1) {
            return Err(ControlError::Crc);
        }
        let kind = ControlKind::from_code(kind).ok_or(ControlError::Kind(kind))?;
        if reserved != 0 {
            return Err(ControlError::Reserved);
        }
        let body = ControlBody {
            ver_min,
            ver_max,
            node_id: NodeId::from_halves(node_lo, node_hi),
            tag,
            nonce,
            echo,
            join,
            tx_hop: lo(hop_ring),
            ring_size: hi(hop_ring),
            max_ack_delay_us: lo(delay_features),
            features: hi(delay_features),
            max_flows: lo(limits),
            max_reads: hi(limits),
            reason: hi(w1),
        };
        let message = Self { kind, body };
        message.check()?;
        Ok(message)
    }

    /// Writes the message.
    pub fn emit(&self, crc32c: impl Fn(u32, &[u8]) -> u32) -> [u8; CONTROL_LEN] {
        let mut bytes = [0; CONTROL_LEN];
        self.emit_with_crc(0, &mut bytes);
        self.emit_with_crc(crc32c(0, &bytes), &mut bytes);
        bytes
    }

    fn emit_with_crc(&self, crc: u32, out: &mut [u8; CONTROL_LEN]) {
        let body = &self.body;
        let [m0, m1, m2, m3] = CONTROL_MAGIC;
        let head = [
            m0,
            m1,
            m2,
            m3,
            CONTROL_VERSION,
            self.kind.code(),
            body.ver_min,
            body.ver_max,
        ];
        let (node_lo, node_hi) = body.node_id.halves();
        // Cannot fail: the array has room for exactly these words.
        let _ = put(
            out,
            [
                u64::from_le_bytes(head),
                join(crc, body.reason),
                node_lo,
                node_hi,
                body.tag,
                body.nonce,
                body.echo,
                body.join,
                join(body.tx_hop, body.ring_size),
                join(body.max_ack_delay_us, body.features),
                join(body.max_flows, body.max_reads),
                0,
            ],
        );
    }

    /// What an offer and its acceptance must hold for a session to be possible at all.
    fn check(&self) -> Result<(), ControlError> {
        if !matches!(self.kind, ControlKind::Offer | ControlKind::Accept) {
            return Ok(());
        }
        let body = &self.body;
        if body.ver_min == 0 || body.ver_min > body.ver_max {
            return Err(ControlError::VersionRange);
        }
        if body.tag == 0 || body.nonce == 0 || (self.kind == ControlKind::Accept && body.echo == 0) {
            return Err(ControlError::ZeroTag);
        }
        if body.ring_size <= RING_RESERVE || body.max_ack_delay_us > MAX_ACK_DELAY_LIMIT_US {
            return Err(ControlError::Limits);
        }
        Ok(())
    }
}

/// The CRC over a message whose CRC field counts as zero.
fn message_crc(bytes: &[u8; CONTROL_LEN], crc32c: impl Fn(u32, &[u8]) -> u32) -> u32 {
    let mut copy = *bytes;
    let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = &mut copy;
    (*a, *b, *c, *d) = (0, 0, 0, 0);
    crc32c(0, &copy)
}
