//! Writing chunk headers.

use crate::bytes::{join, put};
use crate::chunk::{FIRST, IMM, LAST, kind, read_data_fits, send_fits, whole_or_part};
use crate::{Chunk, FLOW_ID_LIMIT, MAX_MESSAGE, Request, Response, SendFirst, Seq};

impl Chunk {
    /// Writes the header at the start of `out` and returns its length, [`Chunk::header_len`]. `None` if `out` is
    /// too short or the fields break a rule of the format: what is emitted always parses.
    ///
    /// Always inlined: where the kind is known, nothing is left but the words of that kind.
    #[inline(always)]
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        match *self {
            Self::Request(seq, request) if seq.flow < FLOW_ID_LIMIT => request.emit(seq, out),
            Self::Response(seq, response) if seq.flow < FLOW_ID_LIMIT => response.emit(seq, out),
            Self::Request(..) | Self::Response(..) => None,
            Self::Ping => put(out, common(kind::PING, 0, 0, Seq::default(), 0)),
            Self::Join { nonce } => {
                let [a, b] = common(kind::JOIN, 0, 0, Seq::default(), 0);
                put(out, [a, b, nonce])
            }
        }
    }
}

impl Request {
    #[inline(always)]
    fn emit(self, seq: Seq, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Send {
                offset,
                len,
                first,
                last,
            } => {
                require(send_fits(offset, len, first, last))?;
                let flags = flag(LAST, last) | flag(FIRST, first.is_some());
                match first {
                    None => put(out, common(kind::SEND, flags, len, seq, offset)),
                    Some(SendFirst { total, imm: None }) => {
                        let [a, b] = common(kind::SEND, flags, len, seq, offset);
                        put(out, [a, b, u64::from(total)])
                    }
                    Some(SendFirst {
                        total,
                        imm: Some(imm),
                    }) => {
                        let [a, b] = common(kind::SEND, flags | IMM, len, seq, offset);
                        put(out, [a, b, u64::from(total), imm])
                    }
                }
            }
            Self::Write {
                total,
                len,
                remote_addr,
                remote_key,
                first,
                last,
                imm,
            } => {
                require(whole_or_part(len, total, first, last) && (last || imm.is_none()))?;
                let flags = flag(FIRST, first) | flag(LAST, last) | flag(IMM, imm.is_some());
                let [a, b] = common(kind::WRITE, flags, len, seq, total);
                match imm {
                    None => put(out, [a, b, remote_addr, remote_key]),
                    Some(imm) => put(out, [a, b, remote_addr, remote_key, imm]),
                }
            }
            Self::Read {
                req_id,
                len,
                remote_addr,
                remote_key,
            } => {
                require(len <= MAX_MESSAGE)?;
                let [a, b] = common(kind::READ_REQ, 0, 0, seq, len);
                put(out, [a, b, remote_addr, remote_key, u64::from(req_id)])
            }
            Self::FetchAdd {
                req_id,
                remote_addr,
                remote_key,
                add,
            } => {
                let [a, b] = common(kind::FETCH_ADD, 0, 0, seq, req_id);
                put(out, [a, b, remote_addr, remote_key, add, 0])
            }
            Self::CompareSwap {
                req_id,
                remote_addr,
                remote_key,
                compare,
                swap,
            } => {
                let [a, b] = common(kind::CMP_SWAP, 0, 0, seq, req_id);
                put(out, [a, b, remote_addr, remote_key, swap, compare])
            }
            Self::FlowOpen {
                src_ep,
                src_incarnation,
                dst_ep,
                dst_incarnation,
            } => {
                require(seq.csn == 0)?;
                let [a, b] = common(kind::FLOW_OPEN, 0, 0, seq, src_ep);
                put(
                    out,
                    [a, b, join(src_incarnation, dst_ep), u64::from(dst_incarnation)],
                )
            }
            Self::FlowClose => put(out, common(kind::FLOW_CLOSE, 0, 0, seq, 0)),
            Self::Cut => put(out, common(kind::CUT, 0, 0, seq, 0)),
        }
    }
}

impl Response {
    #[inline(always)]
    fn emit(self, seq: Seq, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::ReadData {
                req_id,
                offset,
                len,
                last,
            } => {
                require(read_data_fits(offset, len, last))?;
                let [a, b] = common(kind::READ_DATA, flag(LAST, last), len, seq, req_id);
                put(out, [a, b, u64::from(offset)])
            }
            Self::Atomic { req_id, value } => {
                let [a, b] = common(kind::ATOMIC_RSP, 0, 0, seq, req_id);
                put(out, [a, b, value])
            }
            Self::ExecAck { csn } => put(out, common(kind::EXEC_ACK, 0, 0, seq, csn)),
            Self::Nak { csn, code } => {
                let [a, b] = common(kind::NAK, 0, 0, seq, csn);
                put(out, [a, b, u64::from(code.code())])
            }
            Self::Ready { csn } => put(out, common(kind::READY, 0, 0, seq, csn)),
            Self::ReadCut { req_id } => put(out, common(kind::READ_CUT, 0, 0, seq, req_id)),
        }
    }
}

#[inline(always)]
const fn require(rule: bool) -> Option<()> {
    if rule { Some(()) } else { None }
}

#[inline(always)]
const fn flag(bit: u8, on: bool) -> u8 {
    if on { bit } else { 0 }
}

/// The 16 bytes every chunk header begins with.
#[inline(always)]
fn common(kind: u8, flags: u8, len: u16, seq: Seq, arg: u32) -> [u64; 2] {
    let flow = seq.flow | u32::from(seq.epoch) << 24;
    let first = u32::from(kind) | u32::from(flags) << 8 | u32::from(len) << 16;
    [join(first, flow), join(seq.csn, arg)]
}
