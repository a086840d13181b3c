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
    /// Type, flags and payload length.
    word: u32,
    pub(crate) seq: Seq,
    pub(crate) arg: u32,
}

impl Common {
    #[inline(always)]
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ChunkError> {
        let [a, b] = take::<2>(bytes)?;
        Ok(Self {
            word: lo(a),
            seq: Seq {
                flow: hi(a) & (FLOW_ID_LIMIT - 1),
                epoch: (hi(a) >> 24) as u8,
                csn: lo(b),
            },
            arg: hi(b),
        })
    }

    #[inline(always)]
    pub(crate) const fn kind(&self) -> u8 {
        (self.word & 0xff) as u8
    }

    #[inline(always)]
    const fn flags(&self) -> u8 {
        (self.word >> 8 & 0xff) as u8
    }

    #[inline(always)]
    pub(crate) const fn len(&self) -> u16 {
        (self.word >> 16) as u16
    }

    /// A SEND without immediate data.
    #[inline(always)]
    pub(crate) const fn is_send(&self) -> bool {
        const OTHER_FLAGS: u32 = (!(FIRST | LAST) as u32) << 8;
        self.word & (OTHER_FLAGS | 0xff) == kind::SEND as u32
    }

    #[inline(always)]
    pub(crate) const fn is_first(&self) -> bool {
        self.flags() & FIRST != 0
    }

    #[inline(always)]
    pub(crate) const fn is_last(&self) -> bool {
        self.flags() & LAST != 0
    }
}

/// Length of the payloads of `chunks`, if they are valid and of the kinds that nearly all frames carry. Says nothing
/// about others.
#[inline(never)]
pub(crate) fn payload_of_plain(mut chunks: &[u8]) -> Option<u32> {
    let mut payload = 0u32;
    while !chunks.is_empty() {
        let common = Common::read(chunks).ok()?;
        let header_len = if common.word == kind::EXEC_ACK as u32 {
            // No flags, no payload.
            16
        } else if common.is_send() {
            let (len, last) = (common.len(), common.is_last());
            let (first, header_len) = if common.is_first() {
                let [_, _, ext] = words::<3>(chunks)?;
                if hi(ext) != 0 {
                    return None;
                }
                let (total, imm) = (lo(ext), None);
                (Some(SendFirst { total, imm }), 24)
            } else {
                (None, 16)
            };
            if !send_fits(common.arg, len, first, last) {
                return None;
            }
            payload = payload.wrapping_add(u32::from(len));
            header_len
        } else {
            return None;
        };
        chunks = chunks.get(header_len..)?;
    }
    Some(payload)
}

/// Length of the payloads of `chunks`, which are valid if there is one.
#[inline(never)]
pub(crate) fn payload_of(mut chunks: &[u8]) -> Result<u32, ChunkError> {
    let mut payload = 0u32;
    while !chunks.is_empty() {
        let decoded = Decoded::read::<true>(chunks)?;
        chunks = chunks
            .get(usize::from(decoded.header_len)..)
            .ok_or(ChunkError::Truncated)?;
        // At most 253 chunks of less than 2^16 bytes.
        payload = payload.wrapping_add(u32::from(decoded.payload_len));
    }
    Ok(payload)
}

impl Decoded {
    /// Reads the chunk header at the start of `bytes`. Without `CHECK` only lengths are looked at: for headers that
    /// have passed with `CHECK` before.
    ///
    /// Every type is one arm that tests its own rules, so that a caller who wants only the lengths pays for no more.
    #[inline(always)]
    pub(crate) fn read<const CHECK: bool>(bytes: &[u8]) -> Result<Self, ChunkError> {
        let common = Common::read(bytes)?;
        match common.kind() {
            kind::SEND => send::<CHECK>(bytes, common),
            kind::WRITE => write::<CHECK>(bytes, common),
            kind::READ_DATA => read_data::<CHECK>(bytes, common),
            _ => bare::<CHECK>(bytes, common),
        }
    }
}

#[inline(always)]
fn send<const CHECK: bool>(bytes: &[u8], common: Common) -> Result<Decoded, ChunkError> {
    let (flags, len) = (common.flags(), common.len());
    let Common { seq, arg: offset, .. } = common;
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
    let (flags, len) = (common.flags(), common.len());
    let Common { seq, arg: total, .. } = common;
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
    let (flags, len) = (common.flags(), common.len());
    let Common { seq, arg: req_id, .. } = common;
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
    let (flags, len) = (common.flags(), common.len());
    let Common { seq, arg, .. } = common;
    let (chunk, header_len) = match common.kind() {
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
        kind::CUT => {
            zero::<CHECK>(arg)?;
            (Chunk::Request(seq, Request::Cut), 16)
        }
        kind::READ_CUT => (Chunk::Response(seq, Response::ReadCut { req_id: arg }), 16),
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
