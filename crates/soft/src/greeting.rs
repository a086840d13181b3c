//! The messages with which two soft devices join a cable, before control messages of the transport follow on
//! the same socket.
//!
//! The caller sends HELLO with its region and its doorbell, the callee answers WELCOME with its own, or REFUSE.
//! Two devices that call each other at once keep the call of the one with the lower node id: it refuses the
//! other's, and the other gives its own up when it sees either.

use usb4_wire::NodeId;

use crate::cable::{REGION, SLOT, SLOTS, VERSION};

/// Bytes of a greeting.
pub(crate) const GREETING_LEN: usize = 64;

const MAGIC: [u8; 4] = *b"U4SC";

/// What a greeting says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Let us join a cable; comes with region and doorbell.
    Hello,
    /// Yes; comes with region and doorbell.
    Welcome,
    /// No.
    Refuse(Refusal),
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// We are calling you at this moment, and ours is the call that counts.
    Crossed,
    /// We have a cable already.
    Joined,
    /// Another version, or another shape of the region.
    Version,
    /// No room for another peer.
    Full,
    /// It was meant for another device.
    NotMe,
}

impl Refusal {
    const ALL: [Self; 5] = [
        Self::Crossed,
        Self::Joined,
        Self::Version,
        Self::Full,
        Self::NotMe,
    ];
}

/// A greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) kind: Kind,
    /// Who sends it.
    pub(crate) from: NodeId,
    /// Whom it is for.
    pub(crate) to: NodeId,
}

/// A message that is not a greeting of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GreetingError {
    /// Not a greeting at all.
    Malformed,
    /// A greeting of another version.
    Version,
}

impl Greeting {
    pub(crate) fn to_bytes(self) -> [u8; GREETING_LEN] {
        let (kind, reason) = match self.kind {
            Kind::Hello => (1, 0),
            Kind::Welcome => (2, 0),
            Kind::Refuse(refusal) => (3, refusal as u32),
        };
        let mut bytes = [0; GREETING_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        for (i, word) in [VERSION, kind, reason].into_iter().chain(SHAPE).enumerate() {
            bytes[4 + 4 * i..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..48].copy_from_slice(&self.from.to_bytes());
        bytes[48..].copy_from_slice(&self.to.to_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, GreetingError> {
        let bytes: &[u8; GREETING_LEN] = bytes.try_into().map_err(|_| GreetingError::Malformed)?;
        let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let node = |i: usize| {
            let mut node = [0; 16];
            node.copy_from_slice(&bytes[i..i + 16]);
            NodeId::from_bytes(node)
        };
        if bytes[..4] != MAGIC {
            return Err(GreetingError::Malformed);
        }
        if word(4) != VERSION || [word(16), word(20), word(24)] != SHAPE {
            return Err(GreetingError::Version);
        }
        let kind = match (word(8), word(12) as usize) {
            (1, 0) => Kind::Hello,
            (2, 0) => Kind::Welcome,
            (3, reason) => Kind::Refuse(*Refusal::ALL.get(reason).ok_or(GreetingError::Malformed)?),
            _ => return Err(GreetingError::Malformed),
        };
        Ok(Self {
            kind,
            from: node(32),
            to: node(48),
        })
    }
}

/// What both sides' regions must agree in.
#[expect(clippy::cast_possible_truncation, reason = "a region is a few MiB")]
const SHAPE: [u32; 3] = [SLOTS as u32, SLOT as u32, REGION as u32];

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(kind: Kind) -> Greeting {
        Greeting {
            kind,
            from: NodeId(1),
            to: NodeId(2),
        }
    }

    #[test]
    fn greetings_survive_their_bytes() {
        let refusals = Refusal::ALL.into_iter().map(Kind::Refuse);
        for kind in [Kind::Hello, Kind::Welcome].into_iter().chain(refusals) {
            assert_eq!(Greeting::parse(&greeting(kind).to_bytes()), Ok(greeting(kind)));
        }
    }

    #[test]
    fn garbage_and_other_versions_are_told_apart() {
        let good = greeting(Kind::Hello).to_bytes();
        for len in 0..GREETING_LEN {
            assert_eq!(Greeting::parse(&good[..len]), Err(GreetingError::Malformed));
        }
        for (at, error) in [
            (0, GreetingError::Malformed),
            (4, GreetingError::Version),
            (8, GreetingError::Malformed),
            (12, GreetingError::Malformed),
            (16, GreetingError::Version),
        ] {
            let mut bad = good;
            bad[at] ^= 0x40;
            assert_eq!(Greeting::parse(&bad), Err(error), "byte {at}");
        }
    }
}
