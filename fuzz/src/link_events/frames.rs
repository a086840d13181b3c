//! Frames no link has sent.

use usb4_wire::{
    AckBlock, CHUNK_HEADER_MAX, Chunk, FRAME_HEADER_LEN, FRAME_MAX, FrameHeader, NakCode, Request, Response,
    SendFirst, Seq,
};

use super::host::{KEY, READ_KEY};
use crate::input::Input;

/// A frame on its way: as much of it as a link looks at.
#[derive(Clone)]
pub struct Frame {
    /// The rail it is on.
    pub rail: u8,
    /// Frame header and chunk headers.
    pub head: Vec<u8>,
    /// Length of the whole frame.
    pub len: u16,
}

/// What a made-up frame needs to be taken for a good one.
pub struct Facts {
    pub tags: [u64; 2],
    /// The last packet number on each rail.
    pub packets: [u64; 2],
    pub payload_crc: bool,
}

/// A frame with good CRC and mostly good tag and number, and chunks the input chooses.
pub fn invent(facts: Facts, detail: u8, input: &mut Input<'_>) -> Frame {
    let rail = detail & 1;
    let last = facts.packets[usize::from(rail)];
    let mut heads = Vec::new();
    let mut payload = 0;
    for _ in 0..detail >> 1 & 7 {
        let chunk = chunk(input);
        let mut bytes = [0; CHUNK_HEADER_MAX];
        let Some(len) = chunk.emit(&mut bytes) else {
            continue;
        };
        let more = len + usize::from(chunk.payload_len());
        if FRAME_HEADER_LEN + heads.len() + payload + more + 4 <= FRAME_MAX {
            heads.extend_from_slice(&bytes[..len]);
            payload += usize::from(chunk.payload_len());
        }
    }
    let near = u64::from(input.byte());
    let ack = (detail & 0x10 != 0).then(|| {
        let largest = (last + 2).saturating_sub(near & 15).max(1);
        let below = u32::try_from((largest - 1).min(64)).expect("at most 64");
        let mask = 1u64.checked_shl(below).map_or(u64::MAX, |bit| bit - 1);
        AckBlock {
            largest,
            bitmap: input.u64() & mask,
        }
    });
    let header = FrameHeader {
        head_len: u16::try_from(FRAME_HEADER_LEN + heads.len()).expect("at most a frame"),
        tag: if detail & 0x60 == 0x60 {
            near
        } else {
            facts.tags[usize::from(rail)]
        },
        packet: (last + 1 + (near >> 4))
            .saturating_sub(if detail & 0x80 != 0 { 8 } else { 0 })
            .max(1),
        ack,
        ack_now: near & 0x10 != 0,
        payload_crc: facts.payload_crc,
    };
    let mut fixed = [0; FRAME_HEADER_LEN];
    header.seal(crc32c::crc32c(&heads), crc32c::crc32c_append, &mut fixed);
    let head = [&fixed[..], &heads].concat();
    let trailer = if facts.payload_crc { 4 } else { 0 };
    let len = u16::try_from(head.len() + payload + trailer).expect("at most a frame");
    Frame { rail, head, len }
}

/// Mostly small numbers, which meet something; sometimes any.
fn number(input: &mut Input<'_>) -> u32 {
    match input.byte() {
        byte @ 0..=0xdf => u32::from(byte & 31),
        0xe0..=0xe7 => u32::MAX - u32::from(input.byte()),
        _ => input.u32(),
    }
}

fn chunk(input: &mut Input<'_>) -> Chunk {
    let kind = input.byte();
    let place = input.byte();
    let seq = Seq {
        flow: if place >> 6 == 3 {
            number(input)
        } else {
            u32::from(place & 3)
        },
        epoch: place >> 2 & 3,
        csn: number(input),
    };
    let flags = input.byte();
    let (first, last) = (flags & 1 != 0, flags & 2 != 0);
    let imm = (flags & 4 != 0).then_some(9);
    let len = u16::from(flags >> 3) << (kind >> 5);
    let remote_key = if flags & 0x80 == 0 { KEY } else { READ_KEY };
    let remote_addr = u64::from(number(input)) << 3;
    match kind & 15 {
        0 | 1 => {
            let total = if first && last {
                u32::from(len)
            } else {
                number(input) << 6
            };
            let first = first.then_some(SendFirst { total, imm });
            let offset = if first.is_some() { 0 } else { number(input) << 3 };
            Chunk::Request(
                seq,
                Request::Send {
                    offset,
                    len,
                    first,
                    last,
                },
            )
        }
        2 | 3 => {
            let total = if first && last {
                u32::from(len)
            } else {
                number(input) << 6
            };
            let imm = imm.filter(|_| last);
            Chunk::Request(
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
            )
        }
        4 => {
            let read = Request::Read {
                req_id: number(input),
                len: number(input) << 6,
                remote_addr,
                remote_key,
            };
            Chunk::Request(seq, read)
        }
        5 => {
            let add = Request::FetchAdd {
                req_id: number(input),
                remote_addr,
                remote_key,
                add: 1,
            };
            Chunk::Request(seq, add)
        }
        6 => {
            let req_id = number(input);
            Chunk::Request(
                seq,
                Request::CompareSwap {
                    req_id,
                    remote_addr,
                    remote_key,
                    compare: 1,
                    swap: 2,
                },
            )
        }
        7 => {
            let dst_ep = number(input) & 3;
            let open = Request::FlowOpen {
                src_ep: 1,
                src_incarnation: 2,
                dst_ep,
                dst_incarnation: 1,
            };
            Chunk::Request(Seq { csn: 0, ..seq }, open)
        }
        8 if first => Chunk::Request(seq, Request::Cut),
        8 => Chunk::Request(seq, Request::FlowClose),
        9 => {
            let offset = number(input) << 3;
            Chunk::Response(
                seq,
                Response::ReadData {
                    req_id: number(input),
                    offset,
                    len,
                    last,
                },
            )
        }
        10 => Chunk::Response(
            seq,
            Response::Atomic {
                req_id: number(input),
                value: 5,
            },
        ),
        11 => Chunk::Response(seq, Response::ExecAck { csn: number(input) }),
        12 => {
            let code = NakCode::from_code(1 + u32::from(flags >> 3) % 7).expect("codes are 1 to 7");
            Chunk::Response(
                seq,
                Response::Nak {
                    csn: number(input),
                    code,
                },
            )
        }
        13 if first => Chunk::Response(
            seq,
            Response::ReadCut {
                req_id: number(input),
            },
        ),
        13 => Chunk::Response(seq, Response::Ready { csn: number(input) }),
        14 => Chunk::Join { nonce: 3 },
        _ => Chunk::Ping,
    }
}
