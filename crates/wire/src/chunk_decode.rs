//! Reading chunk headers.

use crate::bytes::{hi, lo, words};
use crate::chunk::{FIRST, IMM, LAST, kind};
use crate::{Chunk, ChunkError, FLOW_ID_LIMIT, NakCode, Request, Response, SendFirst, Seq};

impl Chunk {
    /// Reads the chunk header at the start of `bytes`; it is [`Chunk::header_len`] long.
    #[inline(always)]
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ChunkError> {
        let [a, b] = take::<2>(bytes)?;
        let [kind, flags, len_lo, len_hi, ..] = a.to_le_bytes();
        let len = u16::from_le_bytes([len_lo, len_hi]);
        let [.., epoch] = a.to_le_bytes();
        let seq = Seq {
            flow: hi(a) & (FLOW_ID_LIMIT - 1),
            epoch,
            csn: lo(b),
        };
        let arg = hi(b);

        let chunk = match kind {
            kind::SEND => Self::Request(seq, send(bytes, flags, len, arg)?),
            kind::WRITE => Self::Request(seq, write(bytes, flags, len, arg)?),
            kind::READ_DATA => {
                allow(flags, LAST)?;
                let [_, _, ext] = take::<3>(bytes)?;
                zero(hi(ext))?;
                Self::Response(
                    seq,
                    Response::ReadData {
                        req_id: arg,
                        offset: lo(ext),
                        len,
                        last: flags & LAST != 0,
                    },
                )
            }
            _ => {
                allow(flags, 0)?;
                if len != 0 {
                    return Err(ChunkError::Length);
                }
                bare(bytes, kind, seq, arg)?
            }
        };
        chunk.check()?;
        Ok(chunk)
    }
}

#[inline(always)]
fn send(bytes: &[u8], flags: u8, len: u16, offset: u32) -> Result<Request, ChunkError> {
    allow(flags, FIRST | LAST | IMM)?;
    let first = match (flags & FIRST != 0, flags & IMM != 0) {
        (false, false) => None,
        (false, true) => return Err(ChunkError::Flags),
        (true, false) => {
            let [_, _, ext] = take::<3>(bytes)?;
            zero(hi(ext))?;
            Some(SendFirst {
                total: lo(ext),
                imm: None,
            })
        }
        (true, true) => {
            let [_, _, ext, imm] = take::<4>(bytes)?;
            zero(hi(ext))?;
            Some(SendFirst {
                total: lo(ext),
                imm: Some(imm),
            })
        }
    };
    Ok(Request::Send {
        offset,
        len,
        first,
        last: flags & LAST != 0,
    })
}

#[inline(always)]
fn write(bytes: &[u8], flags: u8, len: u16, total: u32) -> Result<Request, ChunkError> {
    allow(flags, FIRST | LAST | IMM)?;
    let [_, _, remote_addr, remote_key] = take::<4>(bytes)?;
    let imm = if flags & IMM != 0 {
        let [.., imm] = take::<5>(bytes)?;
        Some(imm)
    } else {
        None
    };
    let (first, last) = (flags & FIRST != 0, flags & LAST != 0);
    Ok(Request::Write {
        total,
        len,
        remote_addr,
        remote_key,
        first,
        last,
        imm,
    })
}

/// The types without flags and payload.
#[inline(always)]
fn bare(bytes: &[u8], kind: u8, seq: Seq, arg: u32) -> Result<Chunk, ChunkError> {
    let request = match kind {
        kind::EXEC_ACK => return Ok(Chunk::Response(seq, Response::ExecAck { csn: arg })),
        kind::NAK => {
            let [_, _, ext] = take::<3>(bytes)?;
            zero(hi(ext))?;
            let code = NakCode::from_code(lo(ext)).ok_or(ChunkError::NakCode(lo(ext)))?;
            return Ok(Chunk::Response(seq, Response::Nak { csn: arg, code }));
        }
        kind::READY => return Ok(Chunk::Response(seq, Response::Ready { csn: arg })),
        kind::ATOMIC_RSP => {
            let [_, _, value] = take::<3>(bytes)?;
            return Ok(Chunk::Response(seq, Response::Atomic { req_id: arg, value }));
        }
        kind::PING => {
            unsequenced(seq, arg)?;
            return Ok(Chunk::Ping);
        }
        kind::JOIN => {
            unsequenced(seq, arg)?;
            let [_, _, nonce] = take::<3>(bytes)?;
            return Ok(Chunk::Join { nonce });
        }
        kind::READ_REQ => {
            let [_, _, remote_addr, remote_key, ext] = take::<5>(bytes)?;
            zero(hi(ext))?;
            Request::Read {
                req_id: lo(ext),
                len: arg,
                remote_addr,
                remote_key,
            }
        }
        kind::FETCH_ADD => {
            let [_, _, remote_addr, remote_key, add, reserved] = take::<6>(bytes)?;
            if reserved != 0 {
                return Err(ChunkError::Reserved);
            }
            Request::FetchAdd {
                req_id: arg,
                remote_addr,
                remote_key,
                add,
            }
        }
        kind::CMP_SWAP => {
            let [_, _, remote_addr, remote_key, swap, compare] = take::<6>(bytes)?;
            Request::CompareSwap {
                req_id: arg,
                remote_addr,
                remote_key,
                compare,
                swap,
            }
        }
        kind::FLOW_OPEN => {
            let [_, _, mid, end] = take::<4>(bytes)?;
            zero(hi(end))?;
            Request::FlowOpen {
                src_ep: arg,
                src_incarnation: lo(mid),
                dst_ep: hi(mid),
                dst_incarnation: lo(end),
            }
        }
        kind::FLOW_CLOSE => {
            zero(arg)?;
            Request::FlowClose
        }
        other => return Err(ChunkError::Type(other)),
    };
    Ok(Chunk::Request(seq, request))
}

#[inline(always)]
fn take<const N: usize>(bytes: &[u8]) -> Result<[u64; N], ChunkError> {
    words(bytes).ok_or(ChunkError::Truncated)
}

#[inline(always)]
const fn allow(flags: u8, allowed: u8) -> Result<(), ChunkError> {
    if flags & !allowed == 0 {
        Ok(())
    } else {
        Err(ChunkError::Flags)
    }
}

#[inline(always)]
const fn zero(reserved: u32) -> Result<(), ChunkError> {
    if reserved == 0 {
        Ok(())
    } else {
        Err(ChunkError::Reserved)
    }
}

/// PING and JOIN belong to no flow.
#[inline(always)]
fn unsequenced(seq: Seq, arg: u32) -> Result<(), ChunkError> {
    if seq != Seq::default() {
        return Err(ChunkError::Sequence);
    }
    zero(arg)
}
