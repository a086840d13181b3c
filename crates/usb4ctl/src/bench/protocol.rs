//! What client and server tell each other before and after a run.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use usb4_ring::Remote;

/// Bytes of an encoded [`Run`].
pub(super) const RUN: usize = 40;

/// Bytes of an encoded [`Reply`]: as many as go out without a buffer.
pub(super) const REPLY: usize = 24;

const MAGIC: u32 = 0x5534_6265;

/// What a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Kind {
    /// One message there, one back.
    Latency,
    /// Many messages there, a full window of them.
    Bandwidth,
}

/// The operation measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Operation {
    /// Messages into posted receives.
    Send,
    /// RDMA writes.
    Write,
    /// RDMA reads; latency is that of the whole of one.
    Read,
}

/// One run, as the client asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// What is measured.
    pub(super) kind: Kind,
    /// The operation.
    pub(super) op: Operation,
    /// Bytes of a message.
    pub(super) size: u64,
    /// Messages.
    pub(super) count: u64,
    /// Endpoints of the client's that they are dealt out to, one after the other.
    pub(super) flows: u8,
    /// Where the client wants to be answered, if by a write.
    pub(super) answer: Remote,
}

/// The server's answer: before the run where its memory is, after it how many messages were wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// The server's buffer.
    pub(super) remote: Remote,
    /// Messages whose bytes were wrong.
    pub(super) wrong: u64,
}

impl Run {
    pub(super) fn encode(&self) -> [u8; RUN] {
        let kind = match self.kind {
            Kind::Latency => 1,
            Kind::Bandwidth => 2,
        };
        let op = match self.op {
            Operation::Send => 1,
            Operation::Write => 2,
            Operation::Read => 3,
        };
        let head = u64::from(MAGIC) | kind << 32 | op << 40 | u64::from(self.flows) << 48;
        words([head, self.size, self.count, self.answer.addr, self.answer.key])
    }

    /// # Errors
    ///
    /// When the client speaks something else.
    pub(super) fn decode(bytes: &[u8; RUN]) -> Result<Self> {
        let [head, size, count, addr, key] = unwords(bytes)?;
        let flows = u8::try_from(head >> 48).unwrap_or(0);
        ensure!(
            head & 0xffff_ffff == u64::from(MAGIC) && flows != 0,
            "the client is no usb4ctl bench of this version"
        );
        ensure!(count > 0, "the client asks for a run of no messages");
        let kind = match head >> 32 & 0xff {
            1 => Kind::Latency,
            2 => Kind::Bandwidth,
            other => anyhow::bail!("the client asks for an unknown run {other}: same usb4ctl on both sides?"),
        };
        let op = match head >> 40 & 0xff {
            1 => Operation::Send,
            2 => Operation::Write,
            3 => Operation::Read,
            other => {
                anyhow::bail!("the client asks for an unknown operation {other}: same usb4ctl on both sides?")
            }
        };
        Ok(Self {
            kind,
            op,
            size,
            count,
            flows,
            answer: Remote { addr, key },
        })
    }
}

impl Reply {
    pub(super) fn encode(&self) -> [u8; REPLY] {
        words([self.remote.addr, self.remote.key, self.wrong])
    }

    /// # Errors
    ///
    /// Never for as many bytes.
    pub(super) fn decode(bytes: &[u8; REPLY]) -> Result<Self> {
        let [addr, key, wrong] = unwords(bytes)?;
        Ok(Self {
            remote: Remote { addr, key },
            wrong,
        })
    }
}

fn words<const WORDS: usize, const LEN: usize>(words: [u64; WORDS]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn unwords<const WORDS: usize>(bytes: &[u8]) -> Result<[u64; WORDS]> {
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().context("short message")?);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_replies_survive_the_wire() {
        let run = Run {
            kind: Kind::Bandwidth,
            op: Operation::Read,
            size: 1 << 30,
            count: 7,
            flows: 4,
            answer: Remote { addr: 5, key: 6 },
        };
        assert_eq!(Run::decode(&run.encode()).unwrap(), run);
        let reply = Reply {
            remote: Remote {
                addr: u64::MAX,
                key: 3,
            },
            wrong: 9,
        };
        assert_eq!(Reply::decode(&reply.encode()).unwrap(), reply);
    }

    #[test]
    fn a_stranger_is_refused() {
        assert!(Run::decode(&[0; RUN]).is_err());
        assert!(Run::decode(&[0xff; RUN]).is_err());
        let nothing = Run {
            kind: Kind::Latency,
            op: Operation::Write,
            size: 8,
            count: 0,
            flows: 1,
            answer: Remote { addr: 0, key: 0 },
        };
        assert!(Run::decode(&nothing.encode()).is_err());
    }
}
