//! What is emitted parses, what parses is re-emitted byte for byte, and nothing panics.

use crate::common::{any_chunk, any_control, any_frame, crc, emit_again, emit_frame, header};
use proptest::prelude::*;
use usb4_wire::{
    CONTROL_LEN, Chunk, ChunkRef, Chunks, Control, EpAddr, FRAME_MAX, FrameView, NodeId, Request, Response,
    SendFirst, Seq,
};

/// Chunks whose fields may break any rule.
fn careless_chunk() -> impl Strategy<Value = Chunk> {
    let seq = (0..1u32 << 25, any::<u8>(), prop_oneof![Just(0), any::<u32>()])
        .prop_map(|(flow, epoch, csn)| Seq { flow, epoch, csn });
    let small = || {
        prop_oneof![
            0..3u32,
            0..5000u32,
            (1 << 30) - 5000..(1u32 << 30) + 5000,
            any::<u32>()
        ]
    };
    let len = || prop_oneof![0..3u16, 0..5000u16, any::<u16>()];
    let flags = any::<(bool, bool, Option<u64>)>;
    prop_oneof![
        (seq.clone(), small(), small(), len(), flags()).prop_map(
            |(seq, offset, total, len, (first, last, imm))| {
                let first = first.then_some(SendFirst { total, imm });
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
        ),
        (seq.clone(), small(), len(), flags(), any::<[u64; 2]>()).prop_map(
            |(seq, total, len, (first, last, imm), [remote_addr, remote_key])| {
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
        ),
        (seq.clone(), small(), small(), len(), any::<bool>()).prop_map(|(seq, req_id, offset, len, last)| {
            Chunk::Response(
                seq,
                Response::ReadData {
                    req_id,
                    offset,
                    len,
                    last,
                },
            )
        }),
        (seq.clone(), small(), small(), any::<[u64; 2]>()).prop_map(
            |(seq, req_id, len, [remote_addr, remote_key])| {
                Chunk::Request(
                    seq,
                    Request::Read {
                        req_id,
                        len,
                        remote_addr,
                        remote_key,
                    },
                )
            }
        ),
        (seq, any::<[u32; 4]>()).prop_map(|(seq, [src_ep, src_incarnation, dst_ep, dst_incarnation])| {
            Chunk::Request(
                seq,
                Request::FlowOpen {
                    src_ep,
                    src_incarnation,
                    dst_ep,
                    dst_incarnation,
                },
            )
        }),
        any_chunk(),
    ]
}

/// Damage to a frame: bytes replaced, then a length cut to or extended to.
fn damage() -> impl Strategy<Value = (Vec<(prop::sample::Index, u8)>, Option<usize>)> {
    let bytes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (bytes, prop::option::of(0..FRAME_MAX + 100))
}

/// The chunks, asked for by kind where there is a question for it.
fn by_kind(mut chunks: Chunks<'_>) -> impl Iterator<Item = ChunkRef> {
    std::iter::from_fn(move || {
        let next = chunks.clone().next();
        assert_eq!(next.is_none(), chunks.is_empty());
        let (chunk, at) = if let Some((seq, csn)) = chunks.next_exec_ack() {
            (Chunk::Response(seq, Response::ExecAck { csn }), next?.at)
        } else if let Some(send) = chunks.next_send() {
            let request = Request::Send {
                offset: send.offset,
                len: send.len,
                first: send.total.map(|total| SendFirst { total, imm: None }),
                last: send.last,
            };
            (Chunk::Request(send.seq, request), send.at)
        } else {
            return chunks.next();
        };
        let header_at = next?.header_at;
        Some(ChunkRef { chunk, at, header_at })
    })
}

fn check_accepted(bytes: &[u8]) {
    if let Ok(view) = FrameView::parse(bytes, bytes.len()) {
        let head_len = usize::from(view.header().head_len);
        assert_eq!(emit_again(&view), bytes[..head_len]);
        let mut at = view.payload().start;
        for item in view.chunks() {
            assert_eq!(item.at, at);
            at += item.chunk.payload_len();
        }
        assert_eq!(at, view.payload().end);
        assert!(by_kind(view.chunks()).eq(view.chunks()));
        let trailer = if view.header().payload_crc { 4 } else { 0 };
        assert_eq!(usize::from(at) + trailer, bytes.len());
        // The head alone is enough, and nothing after it matters.
        let again = FrameView::parse(&bytes[..head_len], bytes.len()).expect("the head alone parses");
        assert_eq!(again.header(), view.header());
    }
}

/// The cases are cheap: more of them than usual.
fn many() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: config.cases.saturating_mul(8),
        ..config
    }
}

proptest! {
    #![proptest_config(many())]

    #[test]
    fn every_frame_survives_a_round_trip((header, chunks) in any_frame()) {
        let bytes = emit_frame(header, &chunks);
        let view = FrameView::parse(&bytes, bytes.len()).unwrap();
        let sent = usb4_wire::FrameHeader { head_len: view.header().head_len, ..header };
        prop_assert_eq!(view.header(), &sent);
        prop_assert_eq!(view.header().elicits_ack(), !chunks.is_empty());
        prop_assert!(view.crc_ok(crc));
        let got: Vec<Chunk> = view.chunks().map(|item| item.chunk).collect();
        prop_assert_eq!(got, chunks);
        check_accepted(&bytes);
    }

    #[test]
    fn every_control_message_survives_a_round_trip(message in any_control()) {
        let bytes = message.emit(crc);
        prop_assert_eq!(Control::parse(&bytes, crc), Ok(message));
    }

    #[test]
    fn a_chunk_is_emitted_exactly_if_it_parses(chunk in careless_chunk()) {
        let mut bytes = [0; 48];
        match chunk.emit(&mut bytes) {
            None => {
                let broken = !matches!(chunk, Chunk::Ping | Chunk::Join { .. });
                prop_assert!(broken, "{chunk:?} breaks no rule");
            }
            Some(len) => {
                prop_assert_eq!(len, chunk.header_len());
                let frame = emit_frame(header(), &[chunk]);
                prop_assume!(frame.len() <= FRAME_MAX);
                let view = FrameView::parse(&frame, frame.len()).unwrap();
                prop_assert_eq!(view.chunks().next().unwrap().chunk, chunk);
            }
        }
    }

    #[test]
    fn a_chunk_is_not_emitted_into_too_little_room(chunk in any_chunk(), room in 0..48usize) {
        let mut bytes = [0; 48];
        let emitted = chunk.emit(&mut bytes[..room]);
        prop_assert_eq!(emitted, Some(chunk.header_len()).filter(|len| *len <= room));
    }

    #[test]
    fn a_damaged_frame_never_parses_to_something_else((header, chunks) in any_frame(), (hits, cut) in damage()) {
        let mut bytes = emit_frame(header, &chunks);
        for (index, value) in hits {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(len) = cut {
            bytes.resize(len, 0);
        }
        check_accepted(&bytes);
    }

    #[test]
    fn one_flipped_bit_in_the_head_fails_the_crc((header, chunks) in any_frame(), bit in any::<prop::sample::Index>()) {
        let mut bytes = emit_frame(header, &chunks);
        let head_len = usize::from(FrameView::parse(&bytes, bytes.len()).unwrap().header().head_len);
        let bit = bit.index(head_len * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(view) = FrameView::parse(&bytes, bytes.len()) {
            prop_assert!(!view.crc_ok(crc));
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..FRAME_MAX + 8)) {
        check_accepted(&bytes);
        let _ = Control::parse(&bytes, crc);
    }

    #[test]
    fn random_chunk_headers_never_panic(body in prop::collection::vec(any::<u8>(), 0..300), kind in 0..0x24u8) {
        let mut bytes = emit_frame(header(), &[Chunk::Ping]);
        bytes.truncate(40);
        bytes.push(kind);
        bytes.extend(body);
        for head_len in (40..bytes.len()).step_by(8) {
            bytes[2..4].copy_from_slice(&u16::try_from(head_len).unwrap().to_le_bytes());
            check_accepted(&bytes);
        }
    }

    #[test]
    fn a_damaged_control_message_never_parses(
        message in any_control(), at in 0..CONTROL_LEN, flip in 1..=255u8,
    ) {
        let mut bytes = message.emit(crc);
        bytes[at] ^= flip;
        prop_assert!(Control::parse(&bytes, crc).is_err());
    }

    #[test]
    fn a_control_message_re_emits_what_it_was_parsed_from(words in any::<[u64; 12]>(), kind in 0..10u8) {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes[..6].copy_from_slice(&[b'U', b'4', b'R', b'D', 1, kind]);
        bytes[88..].fill(0);
        bytes[8..12].fill(0);
        let sum = crc(0, &bytes);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        if let Ok(message) = Control::parse(&bytes, crc) {
            prop_assert_eq!(&message.emit(crc)[..], &bytes[..]);
        }
    }

    #[test]
    fn addresses_survive_a_round_trip(node in any::<u128>(), ep in any::<u32>(), incarnation in any::<u32>()) {
        let addr = EpAddr { node: NodeId(node), ep, incarnation };
        prop_assert_eq!(EpAddr::from_bytes(&addr.to_bytes()), addr);
        prop_assert_eq!(addr.node.to_string().parse::<NodeId>(), Ok(addr.node));
        prop_assert_eq!(NodeId::from_bytes(addr.node.to_bytes()), addr.node);
    }
}
