//! Building blocks of the format tests.

use proptest::prelude::*;
use usb4_wire::{
    AckBlock, Chunk, Control, ControlBody, ControlKind, FLOW_ID_LIMIT, FRAME_HEADER_LEN, FRAME_MAX,
    FrameHeader, FrameView, MAX_MESSAGE, NakCode, NodeId, PAYLOAD_CRC_LEN, Request, Response, SendFirst, Seq,
};

pub(crate) fn crc(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// A header for `emit_frame`, which fills in `head_len`.
pub(crate) fn header() -> FrameHeader {
    FrameHeader {
        head_len: 0,
        tag: 0x1122_3344_5566_7788,
        packet: 7,
        ack: None,
        ack_now: false,
        payload_crc: false,
    }
}

/// A frame of these chunks, with a payload of counting bytes and a right head CRC.
pub(crate) fn emit_frame(mut header: FrameHeader, chunks: &[Chunk]) -> Vec<u8> {
    let mut heads = Vec::new();
    for chunk in chunks {
        let mut bytes = [0; 48];
        let len = chunk.emit(&mut bytes).expect("the test's chunk can be emitted");
        heads.extend_from_slice(&bytes[..len]);
    }
    header.head_len = u16::try_from(FRAME_HEADER_LEN + heads.len()).unwrap();
    let mut fixed = [0; FRAME_HEADER_LEN];
    header.seal(crc(0, &heads), crc, &mut fixed);
    let payload: usize = chunks.iter().map(|chunk| usize::from(chunk.payload_len())).sum();
    let payload: Vec<u8> = (0..=255).cycle().take(payload).collect();
    let mut frame = [&fixed[..], &heads, &payload].concat();
    if header.payload_crc {
        frame.extend_from_slice(&crc(0, &payload).to_le_bytes());
    }
    frame
}

/// The head of `view` as its parsed form says it.
pub(crate) fn emit_again(view: &FrameView<'_>) -> Vec<u8> {
    let mut head = vec![0; FRAME_HEADER_LEN];
    for item in view.chunks() {
        assert_eq!(usize::from(item.header_at), head.len());
        let mut bytes = [0; 48];
        let len = item.chunk.emit(&mut bytes).expect("what parses can be emitted");
        assert_eq!(len, item.chunk.header_len());
        head.extend_from_slice(&bytes[..len]);
    }
    let mut fixed = [0; FRAME_HEADER_LEN];
    view.header().emit(&mut fixed);
    fixed[4..8].copy_from_slice(&view.head_crc().to_le_bytes());
    head[..FRAME_HEADER_LEN].copy_from_slice(&fixed);
    head
}

/// A SEND that is a whole message.
pub(crate) fn send(len: u16) -> Chunk {
    let first = Some(SendFirst {
        total: u32::from(len),
        imm: None,
    });
    Chunk::Request(
        Seq {
            flow: 3,
            epoch: 1,
            csn: 5,
        },
        Request::Send {
            offset: 0,
            len,
            first,
            last: true,
        },
    )
}

pub(crate) fn any_seq() -> impl Strategy<Value = Seq> {
    (0..FLOW_ID_LIMIT, any::<u8>(), any::<u32>()).prop_map(|(flow, epoch, csn)| Seq { flow, epoch, csn })
}

/// Payload lengths, mostly short so that several chunks fit a frame.
fn any_len() -> impl Strategy<Value = u16> {
    prop_oneof![4 => 0..200u16, 1 => 0..=4040u16]
}

/// A chunk's payload length, the length of the message it is part of, and whether it is the first and last.
fn any_part() -> impl Strategy<Value = (u16, u32, bool, bool)> {
    (any_len(), any::<bool>(), any::<bool>(), 1..MAX_MESSAGE - 5000).prop_map(|(len, first, last, more)| {
        if first && last {
            (len, u32::from(len), true, true)
        } else {
            (len.max(1), u32::from(len.max(1)) + more, first, last)
        }
    })
}

fn any_send() -> impl Strategy<Value = Request> {
    (any_part(), any::<Option<u64>>(), 1..MAX_MESSAGE - 5000).prop_map(
        |((len, total, first, last), imm, offset)| {
            let first = first.then_some(SendFirst { total, imm });
            let offset = if first.is_some() { 0 } else { offset };
            Request::Send {
                offset,
                len: if first.is_none() { len.max(1) } else { len },
                first,
                last,
            }
        },
    )
}

fn any_write() -> impl Strategy<Value = Request> {
    (any_part(), any::<u64>(), any::<u64>(), any::<Option<u64>>()).prop_map(
        |((len, total, first, last), remote_addr, remote_key, imm)| {
            let imm = imm.filter(|_| last);
            Request::Write {
                total,
                len,
                remote_addr,
                remote_key,
                first,
                last,
                imm,
            }
        },
    )
}

pub(crate) fn any_request() -> impl Strategy<Value = (Seq, Request)> {
    let words = any::<(u32, u64, u64, u64, u64)>;
    let request = prop_oneof![
        any_send(),
        any_write(),
        (words(), 0..=MAX_MESSAGE).prop_map(|((req_id, remote_addr, remote_key, ..), len)| Request::Read {
            req_id,
            len,
            remote_addr,
            remote_key
        }),
        words().prop_map(|(req_id, remote_addr, remote_key, add, _)| Request::FetchAdd {
            req_id,
            remote_addr,
            remote_key,
            add
        }),
        words().prop_map(
            |(req_id, remote_addr, remote_key, compare, swap)| Request::CompareSwap {
                req_id,
                remote_addr,
                remote_key,
                compare,
                swap
            }
        ),
        any::<[u32; 4]>().prop_map(|[src_ep, src_incarnation, dst_ep, dst_incarnation]| {
            Request::FlowOpen {
                src_ep,
                src_incarnation,
                dst_ep,
                dst_incarnation,
            }
        }),
        Just(Request::FlowClose),
    ];
    (any_seq(), request).prop_map(|(mut seq, request)| {
        if let Request::FlowOpen { .. } = request {
            seq.csn = 0;
        }
        (seq, request)
    })
}

pub(crate) fn any_response() -> impl Strategy<Value = Response> {
    let code = (1..=7u32).prop_map(|code| NakCode::from_code(code).unwrap());
    prop_oneof![
        (any::<u32>(), any_len(), any::<bool>(), 0..MAX_MESSAGE - 5000).prop_map(
            |(req_id, len, last, offset)| {
                let (offset, last) = if len == 0 { (0, true) } else { (offset, last) };
                Response::ReadData {
                    req_id,
                    offset,
                    len,
                    last,
                }
            }
        ),
        any::<(u32, u64)>().prop_map(|(req_id, value)| Response::Atomic { req_id, value }),
        any::<u32>().prop_map(|csn| Response::ExecAck { csn }),
        (any::<u32>(), code).prop_map(|(csn, code)| Response::Nak { csn, code }),
        any::<u32>().prop_map(|csn| Response::Ready { csn }),
    ]
}

/// A chunk that keeps every rule.
pub(crate) fn any_chunk() -> impl Strategy<Value = Chunk> {
    prop_oneof![
        8 => any_request().prop_map(|(seq, request)| Chunk::Request(seq, request)),
        5 => (any_seq(), any_response()).prop_map(|(seq, response)| Chunk::Response(seq, response)),
        1 => Just(Chunk::Ping),
        1 => any::<u64>().prop_map(|nonce| Chunk::Join { nonce }),
    ]
}

/// A header that keeps every rule, for `emit_frame`.
pub(crate) fn any_header() -> impl Strategy<Value = FrameHeader> {
    let ack = prop::option::of((1..=u64::MAX, any::<u64>()).prop_flat_map(|(largest, bitmap)| {
        prop_oneof![Just(largest), 1..=70u64].prop_map(move |largest| {
            let below = largest - 1;
            let bitmap = if below >= 64 {
                bitmap
            } else {
                bitmap & ((1 << below) - 1)
            };
            AckBlock { largest, bitmap }
        })
    }));
    (any::<u64>(), 1..=u64::MAX, ack, any::<bool>(), any::<bool>()).prop_map(
        |(tag, packet, ack, ack_now, payload_crc)| FrameHeader {
            head_len: 0,
            tag,
            packet,
            ack,
            ack_now,
            payload_crc,
        },
    )
}

/// A header and as many of some random chunks as one frame holds.
pub(crate) fn any_frame() -> impl Strategy<Value = (FrameHeader, Vec<Chunk>)> {
    (any_header(), prop::collection::vec(any_chunk(), 0..12)).prop_map(|(mut header, mut chunks)| {
        let mut room = FRAME_MAX - FRAME_HEADER_LEN - PAYLOAD_CRC_LEN;
        chunks.retain(|chunk| {
            let len = chunk.header_len() + usize::from(chunk.payload_len());
            let fits = len <= room;
            room -= if fits { len } else { 0 };
            fits
        });
        // A header without chunks cannot ask for an acknowledgement.
        header.ack_now &= !chunks.is_empty();
        (header, chunks)
    })
}

/// A control message that keeps every rule.
pub(crate) fn any_control() -> impl Strategy<Value = Control> {
    let words = any::<([u64; 4], [u32; 5], u128)>();
    (
        1..=8u8,
        (1..=255u8, 1..=255u8),
        words,
        33..=u32::MAX,
        0..=1_000_000u32,
    )
        .prop_map(
            |(kind, (low, high), ([tag, nonce, echo, join], small, node), ring_size, max_ack_delay_us)| {
                let [tx_hop, features, max_flows, max_reads, reason] = small;
                let body = ControlBody {
                    ver_min: low.min(high),
                    ver_max: low.max(high),
                    node_id: NodeId(node),
                    tag: tag | 1,
                    nonce: nonce | 1,
                    echo: echo | 1,
                    join,
                    tx_hop,
                    ring_size,
                    max_ack_delay_us,
                    features,
                    max_flows,
                    max_reads,
                    reason,
                };
                Control {
                    kind: ControlKind::from_code(kind).unwrap(),
                    body,
                }
            },
        )
}
