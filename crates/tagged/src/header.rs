//! The header in front of every message, and the body of a rendezvous request.
//!
//! Header, 24 bytes, little endian: kind u8, flags u8, status u8, 0 u8, 0 u32, tag u64, data-or-id u64.
//! A request to send (RTS) is followed by: id u64, total u64, name of the sender's control lane u64, then up to
//! four times {addr u64, key u64, len u64}. FIN and PROBE travel on control lanes, the others do not.

use crate::{MAX_SEGMENTS, Remote};

/// Bytes of the header.
pub const HEADER_LEN: usize = 24;

/// A header as three words, whose little-endian bytes it is.
pub type HeaderWords = [u64; HEADER_LEN / 8];

/// [`HEADER_LEN`], where lengths are 32 bits.
pub(crate) const HEADER_BYTES: u32 = 24;

/// Bytes of an RTS body without parts.
const RTS_MIN: usize = 24;

/// Bytes of the longest RTS body.
pub(crate) const RTS_MAX: usize = RTS_MIN + 24 * MAX_SEGMENTS;

const EAGER: u8 = 1;
const RTS: u8 = 2;
const FIN: u8 = 3;
const PROBE: u8 = 4;
const TAGGED: u8 = 1;
const DATA: u8 = 2;

/// Which of the two independent message spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Without tags, in order of posting.
    Message,
    /// Matched by tag.
    Tagged,
}

/// What a matched message carries beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Space.
    pub class: Class,
    /// Tag; 0 for [`Class::Message`].
    pub tag: u64,
    /// Data the sender gave for the receiver's completion.
    pub data: Option<u64>,
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// Payload follows.
    Eager(Envelope),
    /// An RTS body follows.
    Rts(Envelope),
    /// The receiver is done with rendezvous `id`.
    Fin { id: u64, end: End },
    /// The sender of rendezvous `id` asks whether the receiver still has it to finish; that this message arrives
    /// shows that both live.
    Probe { id: u64 },
}

/// How a rendezvous ended for its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has the message.
    Received,
    /// It could not read the message.
    Failed,
    /// It does not know such a rendezvous any more: what it said when that ended was lost with the link.
    Unknown,
}

impl Header {
    /// The header as little-endian words.
    #[inline]
    pub(crate) fn encode(&self) -> HeaderWords {
        let (kind, flags, status, tag, data) = match *self {
            Self::Eager(e) => (EAGER, e.flags(), 0, e.tag, e.data.unwrap_or(0)),
            Self::Rts(e) => (RTS, e.flags(), 0, e.tag, e.data.unwrap_or(0)),
            Self::Fin { id, end } => (FIN, 0, end as u8, 0, id),
            Self::Probe { id } => (PROBE, 0, 0, 0, id),
        };
        let first = u64::from_le_bytes([kind, flags, status, 0, 0, 0, 0, 0]);
        [first, tag, data]
    }

    /// The envelope at the start of `bytes`, if it is that of an eager message.
    #[inline]
    pub(crate) fn eager(bytes: &[u8]) -> Option<Envelope> {
        let head: &[u8; HEADER_LEN] = bytes.first_chunk()?;
        let (first, tag, data) = (word(head, 0)?, word(head, 8)?, word(head, 16)?);
        let [EAGER, flags, 0, 0, 0, 0, 0, 0] = first.to_le_bytes() else {
            return None;
        };
        Envelope::decode(flags, tag, data)
    }

    /// The header at the start of `bytes`; `None` if it is none of this protocol.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; HEADER_LEN] = bytes.first_chunk()?;
        let (first, tag, data) = (word(head, 0)?, word(head, 8)?, word(head, 16)?);
        let [kind, flags, status, 0, 0, 0, 0, 0] = first.to_le_bytes() else {
            return None;
        };
        match (kind, flags, status) {
            (EAGER, flags, 0) => Envelope::decode(flags, tag, data).map(Self::Eager),
            (RTS, flags, 0) => Envelope::decode(flags, tag, data).map(Self::Rts),
            (FIN, 0, status) if tag == 0 => Some(Self::Fin {
                id: data,
                end: End::decode(status)?,
            }),
            (PROBE, 0, 0) if tag == 0 => Some(Self::Probe { id: data }),
            _ => None,
        }
    }
}

impl End {
    fn decode(status: u8) -> Option<Self> {
        [Self::Received, Self::Failed, Self::Unknown]
            .into_iter()
            .find(|end| *end as u8 == status)
    }
}

impl Envelope {
    #[inline]
    fn flags(&self) -> u8 {
        let tagged = if self.class == Class::Tagged { TAGGED } else { 0 };
        tagged | if self.data.is_some() { DATA } else { 0 }
    }

    #[inline]
    fn decode(flags: u8, tag: u64, data: u64) -> Option<Self> {
        if flags & !(TAGGED | DATA) != 0 {
            return None;
        }
        let class = if flags & TAGGED != 0 {
            Class::Tagged
        } else {
            Class::Message
        };
        Some(Self {
            class,
            tag,
            data: (flags & DATA != 0).then_some(data),
        })
    }
}

/// A sender's offer of memory to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rts {
    /// The sender's name for it.
    pub(crate) id: u64,
    /// Bytes in all.
    pub(crate) total: u64,
    /// [`Transport::lane`](crate::Lanes::lane) of the sender.
    pub(crate) lane: u64,
    /// Where they are.
    pub(crate) parts: [(Remote, u64); MAX_SEGMENTS],
    /// How many parts count.
    pub(crate) count: usize,
}

impl Rts {
    /// Writes the body; returns its length. `out` holds [`RTS_MAX`] bytes.
    pub(crate) fn encode(&self, out: &mut [u8]) -> usize {
        out[..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..16].copy_from_slice(&self.total.to_le_bytes());
        out[16..24].copy_from_slice(&self.lane.to_le_bytes());
        let mut at = RTS_MIN;
        for (remote, len) in &self.parts[..self.count] {
            for value in [remote.addr, remote.key, *len] {
                out[at..at + 8].copy_from_slice(&value.to_le_bytes());
                at += 8;
            }
        }
        at
    }

    /// The body in `bytes`; `None` if its length, count or sum is wrong.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let count = bytes.len().checked_sub(RTS_MIN)? / 24;
        if bytes.len() != RTS_MIN + 24 * count || count > MAX_SEGMENTS {
            return None;
        }
        let mut parts = [(Remote { addr: 0, key: 0 }, 0); MAX_SEGMENTS];
        let mut sum: u64 = 0;
        for (index, part) in parts[..count].iter_mut().enumerate() {
            let at = RTS_MIN + 24 * index;
            let len = word(bytes, at + 16)?;
            *part = (
                Remote {
                    addr: word(bytes, at)?,
                    key: word(bytes, at + 8)?,
                },
                len,
            );
            sum = sum.checked_add(len)?;
        }
        let total = word(bytes, 8)?;
        (sum == total).then_some(Self {
            id: word(bytes, 0)?,
            total,
            lane: word(bytes, 16)?,
            parts,
            count,
        })
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope() -> Envelope {
        Envelope {
            class: Class::Tagged,
            tag: 0x0102_0304_0506_0708,
            data: Some(9),
        }
    }

    fn bytes(header: &Header) -> Vec<u8> {
        header
            .encode()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    #[test]
    fn headers_survive_their_bytes() {
        for header in [
            Header::Eager(envelope()),
            Header::Eager(Envelope {
                class: Class::Message,
                tag: 0,
                data: None,
            }),
            Header::Rts(Envelope {
                data: None,
                ..envelope()
            }),
            Header::Fin {
                id: 77,
                end: End::Received,
            },
            Header::Fin {
                id: 78,
                end: End::Failed,
            },
            Header::Fin {
                id: 79,
                end: End::Unknown,
            },
            Header::Probe { id: 80 },
        ] {
            assert_eq!(Header::decode(&bytes(&header)), Some(header));
            let eager = match header {
                Header::Eager(envelope) => Some(envelope),
                _ => None,
            };
            assert_eq!(Header::eager(&bytes(&header)), eager);
        }
    }

    #[test]
    fn unknown_kinds_flags_and_reserved_bytes_are_refused() {
        let good = bytes(&Header::Eager(envelope()));
        for (at, value) in [(0, 0), (0, 9), (1, 4), (2, 1), (3, 1), (4, 1), (7, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Header::decode(&bad), None, "byte {at} = {value}");
            assert_eq!(Header::eager(&bad), None, "byte {at} = {value}");
        }
        assert_eq!(Header::decode(&good[..23]), None);
        let mut fin = bytes(&Header::Fin {
            id: 1,
            end: End::Unknown,
        });
        fin[2] += 1;
        assert_eq!(Header::decode(&fin), None, "an end that does not exist");
    }

    #[test]
    fn a_request_whose_parts_do_not_add_up_is_refused() {
        let mut parts = [(Remote { addr: 0, key: 0 }, 0); MAX_SEGMENTS];
        parts[0] = (Remote { addr: 1, key: 2 }, 100);
        parts[1] = (Remote { addr: 3, key: 4 }, 50);
        let rts = Rts {
            id: 5,
            total: 150,
            lane: 6,
            parts,
            count: 2,
        };
        let mut bytes = [0; RTS_MAX];
        let len = rts.encode(&mut bytes);
        assert_eq!(Rts::decode(&bytes[..len]), Some(rts));
        assert_eq!(Rts::decode(&bytes[..len - 1]), None);
        assert_eq!(Rts::decode(&bytes[..RTS_MIN]), None, "no parts, but bytes");
        bytes[8] = 151;
        assert_eq!(Rts::decode(&bytes[..len]), None);
        for byte in &mut bytes[RTS_MIN + 16..RTS_MIN + 24] {
            *byte = 0xff;
        }
        assert_eq!(Rts::decode(&bytes[..len]), None, "a sum that wraps");
    }
}
