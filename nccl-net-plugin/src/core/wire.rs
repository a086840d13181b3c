//! What goes between two plugins: control messages, and the immediate of a message written into a granted buffer.
//!
//! A control message is a ring SEND with a prefix of three little-endian words and an immediate; only [`Message::Eager`]
//! has bytes behind the prefix. A message written in place is a ring WRITE whose immediate is a [`Placed`].
//! `docs/spec/nccl.md` says what each means.

/// Version of this protocol. Plugins of different versions do not talk to each other.
pub(crate) const VERSION: u16 = if cfg!(feature = "next-version") { 2 } else { 1 };

/// Bytes of the words in front of an eager message.
pub(crate) const PREFIX: u32 = 24;

/// Largest capacity a grant can tell; more is told as this.
pub(crate) const MAX_CAPACITY: u64 = (1 << 48) - 1;

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nobody listens there.
    NoListener,
    /// The plugins are of different versions.
    Version,
    /// Too many connections.
    Full,
}

/// Why a communicator was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Its user closed it.
    Closed,
    /// A message was longer than its buffer: how long, how large.
    TooLong { size: u64, capacity: u64 },
    /// It failed.
    Failed,
}

/// A control message. `to` is the number the receiver has given its communicator or listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// To a listener: `from` wants to send.
    Connect {
        to: u32,
        nonce: u64,
        from: u32,
        version: u16,
    },
    /// To a sender: its messages go to `from`, and so many eager ones of so many bytes may be on their way.
    Accept {
        to: u32,
        from: u32,
        credits: u16,
        eager: u32,
    },
    /// To a sender: no.
    Refuse { to: u32, why: Refusal },
    /// To a sender: receive `seq` has this buffer; so it and those before it are posted.
    Grant {
        to: u32,
        seq: u16,
        tag: u16,
        addr: u64,
        key: u64,
        capacity: u64,
    },
    /// To a sender: so many receives are posted, all for messages that have arrived.
    Credit { to: u32, posted: u32 },
    /// To a receiver: message `seq`, whose bytes follow.
    Eager { to: u32, seq: u32, tag: u32 },
    /// To a receiver: message `seq` of `size` bytes is in the buffer it was granted.
    Written { to: u32, seq: u32, tag: u32, size: u64 },
    /// To either: the other side is closed.
    Close { to: u32, why: Closing },
    /// Is anybody there?
    Ping,
}

/// The words and the immediate of a message.
pub(crate) type Encoded = ([u64; 3], u64);

impl Message {
    #[inline]
    pub(crate) fn encode(&self) -> Encoded {
        let imm = |kind: u64, to: u32| u64::from(to) | kind << 32;
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match *self {
            Self::Connect {
                to,
                nonce,
                from,
                version,
            } => ([nonce, two(from, u32::from(version)), 0], imm(1, to)),
            Self::Accept {
                to,
                from,
                credits,
                eager,
            } => ([two(from, u32::from(credits)), u64::from(eager), 0], imm(2, to)),
            Self::Refuse { to, why } => {
                let why = match why {
                    Refusal::NoListener => 1,
                    Refusal::Version => 2,
                    Refusal::Full => 3,
                };
                ([why, 0, 0], imm(3, to))
            }
            Self::Grant {
                to,
                seq,
                tag,
                addr,
                key,
                capacity,
            } => {
                let last = capacity.min(MAX_CAPACITY) | u64::from(seq) << 48;
                ([addr, key, last], imm(4, to) | u64::from(tag) << 48)
            }
            Self::Credit { to, posted } => ([u64::from(posted), 0, 0], imm(5, to)),
            Self::Eager { to, seq, tag } => ([two(seq, tag), 0, 0], imm(6, to)),
            Self::Written { to, seq, tag, size } => ([two(seq, tag), size, 0], imm(7, to)),
            Self::Close { to, why } => match why {
                Closing::Closed => ([0, 0, 0], imm(8, to)),
                Closing::TooLong { size, capacity } => ([1, size, capacity], imm(8, to)),
                Closing::Failed => ([2, 0, 0], imm(8, to)),
            },
            Self::Ping => ([0, 0, 0], imm(9, 0)),
        }
    }

    /// `None`: it is not one of ours. What is reserved must be 0.
    #[inline]
    pub(crate) fn decode((words, imm): Encoded) -> Option<Self> {
        let [a, b, c] = words;
        let (to, high) = halves(imm);
        let (kind, tag) = (high & 0xffff, high >> 16);
        if tag != 0 && kind != 4 {
            return None;
        }
        let none = |rest: &[u64]| rest.iter().all(|word| *word == 0).then_some(());
        Some(match kind {
            1 => {
                let (from, version) = halves(b);
                none(&[c])?;
                Self::Connect {
                    to,
                    nonce: a,
                    from,
                    version: u16::try_from(version).ok()?,
                }
            }
            2 => {
                let (from, credits) = halves(a);
                none(&[c])?;
                let (credits, eager) = (u16::try_from(credits).ok()?, u32::try_from(b).ok()?);
                Self::Accept {
                    to,
                    from,
                    credits,
                    eager,
                }
            }
            3 => {
                none(&[b, c])?;
                let why = match a {
                    1 => Refusal::NoListener,
                    2 => Refusal::Version,
                    3 => Refusal::Full,
                    _ => return None,
                };
                Self::Refuse { to, why }
            }
            4 => Self::Grant {
                to,
                seq: low16(halves(c).1 >> 16),
                tag: low16(tag),
                addr: a,
                key: b,
                capacity: c & MAX_CAPACITY,
            },
            5 => {
                none(&[b, c])?;
                Self::Credit {
                    to,
                    posted: u32::try_from(a).ok()?,
                }
            }
            6 => {
                none(&[b, c])?;
                let (seq, tag) = halves(a);
                Self::Eager { to, seq, tag }
            }
            7 => {
                none(&[c])?;
                let (seq, tag) = halves(a);
                Self::Written {
                    to,
                    seq,
                    tag,
                    size: b,
                }
            }
            8 => {
                let why = match a {
                    0 => Closing::Closed,
                    1 => Closing::TooLong { size: b, capacity: c },
                    2 => Closing::Failed,
                    _ => return None,
                };
                if a != 1 {
                    none(&[b, c])?;
                }
                Self::Close { to, why }
            }
            9 => {
                none(&[a, b, c, u64::from(to)])?;
                Self::Ping
            }
            _ => return None,
        })
    }
}

/// The immediate of a message that was written into the buffer it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) to: u32,
    pub(crate) seq: u16,
    pub(crate) tag: u16,
}

impl Placed {
    #[inline]
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.to) | u64::from(self.seq) << 32 | u64::from(self.tag) << 48
    }

    #[inline]
    pub(crate) fn decode(imm: u64) -> Self {
        let (to, high) = halves(imm);
        Self {
            to,
            seq: low16(high),
            tag: low16(high >> 16),
        }
    }
}

/// The lower 16 bits.
#[inline]
pub(crate) const fn low16(value: u32) -> u16 {
    let [low, high, _, _] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}

#[inline]
pub(crate) const fn halves(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Message; 15] = [
        Message::Connect {
            to: 1,
            nonce: u64::MAX,
            from: 3,
            version: 0xffff,
        },
        Message::Accept {
            to: u32::MAX,
            from: 2,
            credits: 8,
            eager: 2048,
        },
        Message::Refuse {
            to: 5,
            why: Refusal::NoListener,
        },
        Message::Refuse {
            to: 5,
            why: Refusal::Version,
        },
        Message::Refuse {
            to: 5,
            why: Refusal::Full,
        },
        Message::Grant {
            to: 7,
            seq: 0xffff,
            tag: 0xabcd,
            addr: u64::MAX,
            key: 9,
            capacity: MAX_CAPACITY,
        },
        Message::Credit {
            to: 7,
            posted: u32::MAX,
        },
        Message::Eager {
            to: 7,
            seq: 8,
            tag: 9,
        },
        Message::Eager {
            to: 0,
            seq: u32::MAX,
            tag: u32::MAX,
        },
        Message::Written {
            to: 7,
            seq: 8,
            tag: 9,
            size: u64::MAX,
        },
        Message::Close {
            to: 7,
            why: Closing::Closed,
        },
        Message::Close {
            to: 7,
            why: Closing::TooLong { size: 2, capacity: 1 },
        },
        Message::Close {
            to: 7,
            why: Closing::Failed,
        },
        Message::Ping,
        Message::Connect {
            to: 0,
            nonce: 0,
            from: 0,
            version: 0,
        },
    ];

    #[test]
    fn every_message_is_read_as_it_was_written() {
        for message in ALL {
            assert_eq!(Message::decode(message.encode()), Some(message));
        }
        let placed = Placed {
            to: 0x0102_0304,
            seq: 0x0506,
            tag: 0x0708,
        };
        assert_eq!(Placed::decode(placed.encode()), placed);
    }

    #[test]
    fn what_is_reserved_or_unknown_is_refused() {
        for kind in [0, 10, 0xff, 0x100, 0xffff] {
            assert_eq!(Message::decode(([0; 3], kind << 32)), None);
        }
        assert_eq!(Message::decode(([0; 3], 9 << 32 | 1)), None);
        assert_eq!(Message::decode(([0; 3], 6 << 32 | 1 << 48)), None);
        assert_eq!(Message::decode(([0, 0, 1], 6 << 32)), None);
        assert_eq!(Message::decode(([9, 0, 0], 3 << 32)), None);
        assert_eq!(Message::decode(([0, 1, 0], 8 << 32)), None);
        assert_eq!(Message::decode(([0, u64::MAX, 0], 2 << 32)), None);
    }

    #[test]
    fn a_capacity_that_does_not_fit_is_told_smaller() {
        let grant = Message::Grant {
            to: 1,
            seq: 2,
            tag: 3,
            addr: 4,
            key: 5,
            capacity: u64::MAX,
        };
        let Some(Message::Grant { capacity, seq: 2, .. }) = Message::decode(grant.encode()) else {
            panic!("a grant")
        };
        assert_eq!(capacity, MAX_CAPACITY);
    }
}
