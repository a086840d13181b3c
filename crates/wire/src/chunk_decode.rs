//! Reading chunk headers.

use crate::bytes::{hi, lo, words};
use crate::chunk::{FIRST, IMM, LAST, kind, read_data_fits, send_fits, whole_or_part};
use crate::{Chunk, ChunkError, FLOW_ID_LIMIT, MAX_MESSAGE, NakCode, Request, Response, SendFirst, Seq};

/// A chunk header that has been read.
pub(crate) struct Decoded {
    /// The chunk.
    pub(crate) chunk: Chunk,
    /// [`Chunk::header_len`], known here without asking the chunk again.
    pub(crate) header_len: u16,
    /// [`Chunk::payload_len`].
    pub(crate) payload_len: u16,
}

/// The common part of a chunk header.
#[derive(Clone, Copy)]
pub(crate) struct Common {
    kind: u8,
    flags: u8,
    pub(crate) len: u16,
    pub(crate) seq: Seq,
    pub(crate) arg: u32,
}

impl Common {
    #[inline(always)]
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ChunkError> {
        let [a, b] = take::<2>(bytes)?;
        let [kind, flags, len_lo, len_hi, .., epoch] = a.to_le_bytes();
        Ok(Self {
            kind,
            flags,
            len: u16::from_le_bytes([len_lo, len_hi]),
            seq: Seq {
                flow: hi(a) & (FLOW_ID_LIMIT - 1),
                epoch,
                csn: lo(b),
            },
            arg: hi(b),
        })
    }

    /// An EXEC_ACK; of one that has not been checked, only the type is known.
    #[inline(always)]
    pub(crate) const fn is_exec_ack(&self) -> bool {
        self.kind == kind::EXEC_ACK
    }

    /// A SEND without immediate data.
    #[inline(always)]
    pub(crate) const fn is_send(&self) -> bool {
        self.kind == kind::SEND && self.flags & !(FIRST | LAST) == 0
    }

    #[inline(always)]
    pub(crate) const fn is_first(&self) -> bool {
        self.flags & FIRST != 0
    }

    #[inline(always)]
    pub(crate) const fn is_last(&self) -> bool {
        self.flags & LAST != 0
    }
}

/// Lengths of the header at the start of `bytes` and of its payload, if it is valid and of a kind that nearly all
/// frames carry. Says nothing about others: ask [`lengths`].
#[inline(always)]
pub(crate) fn quick_lengths(bytes: &[u8]) -> Option<(u16, u16)> {
    let common = Common::read(bytes).ok()?;
    if common.is_exec_ack() && common.flags == 0 && common.len == 0 {
        return Some((16, 0));
    }
    let Common { len, arg: offset, .. } = common;
    if !common.is_send() {
        return None;
    }
    if !common.is_first() {
        return send_fits(offset, len, None, common.is_last()).then_some((16, len));
    }
    let [_, _, ext] = words::<3>(bytes)?;
    let first = SendFirst {
        total: lo(ext),
        imm: None,
    };
    (hi(ext) == 0 && send_fits(offset, len, Some(first), common.is_last())).then_some((24, len))
}

/// Checks the header at the start of `bytes`: its length and its payload's.
#[inline(never)]
pub(crate) fn lengths(bytes: &[u8]) -> Result<(u16, u16), ChunkError> {
    let decoded = Decoded::read::<true>(bytes)?;
    Ok((decoded.header_len, decoded.payload_len))
}

impl Decoded {
    /// Reads the chunk header at the start of `bytes`. Without `CHECK` only lengths are looked at: for headers that
    /// have passed with `CHECK` before.
    ///
    /// Every type is one arm that tests its own rules, so that a caller who wants only the lengths pays for no more.
    #[inline(always)]
    pub(crate) fn read<const CHECK: bool>(bytes: &[u8]) -> Result<Self, ChunkError> {
        let common = Common::read(bytes)?;
        match common.kind {
            kind::SEND => send::<CHECK>(bytes, common),
            kind::WRITE => write::<CHECK>(bytes, common),
            kind::READ_DATA => read_data::<CHECK>(bytes, common),
            _ => bare::<CHECK>(bytes, common),
        }
    }
}

#[inline(always)]
fn send<const CHECK: bool>(bytes: &[u8], common: Common) -> Result<Decoded, ChunkError> {
    let Common {
        flags,
        len,
        seq,
        arg: offset,
        ..
    } = common;
    let (first, header_len) = if flags & FIRST == 0 {
        (None, 16)
    } else if flags & IMM == 0 {
        let [_, _, ext] = take::<3>(bytes)?;
        zero::<CHECK>(hi(ext))?;
        (
            Some(SendFirst {
                total: lo(ext),
                imm: None,
            }),
            24,
        )
    } else {
        let [_, _, ext, imm] = take::<4>(bytes)?;
        zero::<CHECK>(hi(ext))?;
        (
            Some(SendFirst {
                total: lo(ext),
                imm: Some(imm),
            }),
            32,
        )
    };
    let last = flags & LAST != 0;
    if CHECK {
        if flags & !(FIRST | LAST | IMM) != 0 || (first.is_none() && flags & IMM != 0) {
            return Err(ChunkError::Flags);
        }
        if !send_fits(offset, len, first, last) {
            return Err(ChunkError::Length);
        }
    }
    let chunk = Chunk::Request(
        seq,
        Request::Send {
            offset,
            len,
            first,
            last,
        },
    );
    Ok(Decoded {
        chunk,
        header_len,
        payload_len: len,
    })
}

#[inline(always)]
fn write<const CHECK: bool>(bytes: &[u8], common: Common) -> Result<Decoded, ChunkError> {
    let Common {
        flags,
        len,
        seq,
        arg: total,
        ..
    } = common;
    let [_, _, remote_addr, remote_key] = take::<4>(bytes)?;
    let (imm, header_len) = if flags & IMM == 0 {
        (None, 32)
    } else {
        let [.., imm] = take::<5>(bytes)?;
        (Some(imm), 40)
    };
    let (first, last) = (flags & FIRST != 0, flags & LAST != 0);
    if CHECK {
        if flags & !(FIRST | LAST | IMM) != 0 || (imm.is_some() && !last) {
            return Err(ChunkError::Flags);
        }
        if !whole_or_part(len, total, first, last) {
            return Err(ChunkError::Length);
        }
    }
    let chunk = Chunk::Request(
        seq,
        Request::Write {
            total,
            len,
            remote_addr,
            remote_key,
            first,
            last,
            imm,
        },
    );
    Ok(Decoded {
        chunk,
        header_len,
        payload_len: len,
    })
}

#[inline(always)]
fn read_data<const CHECK: bool>(bytes: &[u8], common: Common) -> Result<Decoded, ChunkError> {
    let Common {
        flags,
        len,
        seq,
        arg: req_id,
        ..
    } = common;
    let [_, _, ext] = take::<3>(bytes)?;
    zero::<CHECK>(hi(ext))?;
    let (offset, last) = (lo(ext), flags & LAST != 0);
    if CHECK {
        if flags & !LAST != 0 {
            return Err(ChunkError::Flags);
        }
        if !read_data_fits(offset, len, last) {
            return Err(ChunkError::Length);
        }
    }
    let chunk = Chunk::Response(
        seq,
        Response::ReadData {
            req_id,
            offset,
            len,
            last,
        },
    );
    Ok(Decoded {
        chunk,
        header_len: 24,
        payload_len: len,
    })
}

/// The types without flags and payload.
#[inline(always)]
fn bare<const CHECK: bool>(bytes: &[u8], common: Common) -> Result<Decoded, ChunkError> {
    let Common {
        kind,
        flags,
        len,
        seq,
        arg,
    } = common;
    let (chunk, header_len) = match kind {
        kind::EXEC_ACK => (Chunk::Response(seq, Response::ExecAck { csn: arg }), 16),
        kind::NAK => {
            let [_, _, ext] = take::<3>(bytes)?;
            zero::<CHECK>(hi(ext))?;
            let code = NakCode::from_code(lo(ext)).ok_or(ChunkError::NakCode(lo(ext)))?;
            (Chunk::Response(seq, Response::Nak { csn: arg, code }), 24)
        }
        kind::READY => (Chunk::Response(seq, Response::Ready { csn: arg }), 16),
        kind::ATOMIC_RSP => {
            let [_, _, value] = take::<3>(bytes)?;
            (Chunk::Response(seq, Response::Atomic { req_id: arg, value }), 24)
        }
        kind::READ_REQ => {
            let [_, _, remote_addr, remote_key, ext] = take::<5>(bytes)?;
            zero::<CHECK>(hi(ext))?;
            if CHECK && arg > MAX_MESSAGE {
                return Err(ChunkError::Length);
            }
            let read = Request::Read {
                req_id: lo(ext),
                len: arg,
                remote_addr,
                remote_key,
            };
            (Chunk::Request(seq, read), 40)
        }
        kind::FETCH_ADD => {
            let [_, _, remote_addr, remote_key, add, reserved] = take::<6>(bytes)?;
            if CHECK && reserved != 0 {
                return Err(ChunkError::Reserved);
            }
            (
                Chunk::Request(
                    seq,
                    Request::FetchAdd {
                        req_id: arg,
                        remote_addr,
                        remote_key,
                        add,
                    },
                ),
                48,
            )
        }
        kind::CMP_SWAP => {
            let [_, _, remote_addr, remote_key, swap, compare] = take::<6>(bytes)?;
            let swap = Request::CompareSwap {
                req_id: arg,
                remote_addr,
                remote_key,
                compare,
                swap,
            };
            (Chunk::Request(seq, swap), 48)
        }
        kind::FLOW_OPEN => {
            let [_, _, mid, end] = take::<4>(bytes)?;
            zero::<CHECK>(hi(end))?;
            if CHECK && seq.csn != 0 {
                return Err(ChunkError::Sequence);
            }
            let open = Request::FlowOpen {
                src_ep: arg,
                src_incarnation: lo(mid),
                dst_ep: hi(mid),
                dst_incarnation: lo(end),
            };
            (Chunk::Request(seq, open), 32)
        }
        kind::FLOW_CLOSE => {
            zero::<CHECK>(arg)?;
            (Chunk::Request(seq, Request::FlowClose), 16)
        }
        kind::PING => {
            unsequenced::<CHECK>(seq, arg)?;
            (Chunk::Ping, 16)
        }
        kind::JOIN => {
            unsequenced::<CHECK>(seq, arg)?;
            let [_, _, nonce] = take::<3>(bytes)?;
            (Chunk::Join { nonce }, 24)
        }
        other => return Err(ChunkError::Type(other)),
    };
    if CHECK {
        if flags != 0 {
            return Err(ChunkError::Flags);
        }
        if len != 0 {
            return Err(ChunkError::Length);
        }
    }
    Ok(Decoded {
        chunk,
        header_len,
        payload_len: 0,
    })
}

#[inline(always)]
fn take<const N: usize>(bytes: &[u8]) -> Result<[u64; N], ChunkError> {
    words(bytes).ok_or(ChunkError::Truncated)
}

#[inline(always)]
const fn zero<const CHECK: bool>(reserved: u32) -> Result<(), ChunkError> {
    if CHECK && reserved != 0 {
        Err(ChunkError::Reserved)
    } else {
        Ok(())
    }
}

/// PING and JOIN belong to no flow.
#[inline(always)]
fn unsequenced<const CHECK: bool>(seq: Seq, arg: u32) -> Result<(), ChunkError> {
    if CHECK && seq != Seq::default() {
        return Err(ChunkError::Sequence);
    }
    zero::<CHECK>(arg)
}
