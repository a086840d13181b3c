//! One fixture per way in which a frame or chunk header can be wrong.

use crate::common::{crc, emit_frame, header, send};
use usb4_wire::{
    AckBlock, Chunk, ChunkError, FRAME_MAX, FrameError, FrameHeader, FrameView, NakCode, Request, Response,
    SendFirst, Seq,
};

const SEQ: Seq = Seq {
    flow: 1,
    epoch: 0,
    csn: 9,
};

/// Offsets in a chunk header.
const FLAGS: usize = 1;
const LEN: usize = 2;
const FLOW: usize = 4;
const CSN: usize = 8;
const ARG: usize = 12;
const EXT: usize = 16;

#[track_caller]
fn refused(bytes: &[u8], error: FrameError) {
    assert_eq!(FrameView::parse(bytes, bytes.len()).map(|_| ()), Err(error));
}

/// Replaces bytes of the first chunk header of a frame that has only `chunk`.
#[track_caller]
fn chunk_refused(chunk: Chunk, at: usize, bytes: &[u8], error: ChunkError) {
    let mut frame = emit_frame(header(), &[chunk]);
    assert!(FrameView::parse(&frame, frame.len()).is_ok());
    frame[40 + at..][..bytes.len()].copy_from_slice(bytes);
    refused(&frame, FrameError::Chunk(error));
}

fn request(request: Request) -> Chunk {
    Chunk::Request(SEQ, request)
}

fn response(response: Response) -> Chunk {
    Chunk::Response(SEQ, response)
}

fn send_part(offset: u32, len: u16) -> Chunk {
    request(Request::Send {
        offset,
        len,
        first: None,
        last: false,
    })
}

fn write(len: u16, total: u32, first: bool, last: bool) -> Chunk {
    request(Request::Write {
        total,
        len,
        remote_addr: 0,
        remote_key: 1,
        first,
        last,
        imm: None,
    })
}

fn read() -> Chunk {
    request(Request::Read {
        req_id: 1,
        len: 1 << 30,
        remote_addr: u64::MAX,
        remote_key: 1,
    })
}

fn fetch_add() -> Chunk {
    request(Request::FetchAdd {
        req_id: 1,
        remote_addr: 8,
        remote_key: 1,
        add: 1,
    })
}

fn flow_open() -> Chunk {
    let open = Request::FlowOpen {
        src_ep: 1,
        src_incarnation: 2,
        dst_ep: 3,
        dst_incarnation: 4,
    };
    Chunk::Request(Seq { csn: 0, ..SEQ }, open)
}

fn read_data(offset: u32, len: u16, last: bool) -> Chunk {
    response(Response::ReadData {
        req_id: 1,
        offset,
        len,
        last,
    })
}

fn nak() -> Chunk {
    response(Response::Nak {
        csn: 1,
        code: NakCode::Rnr,
    })
}

#[test]
fn a_frame_shorter_than_its_header_is_refused() {
    let frame = emit_frame(header(), &[]);
    for len in 0..40 {
        refused(&frame[..len], FrameError::TooShort);
    }
}

#[test]
fn a_frame_longer_than_4096_bytes_is_refused() {
    let mut frame = emit_frame(header(), &[send(4032)]);
    assert_eq!(frame.len(), FRAME_MAX);
    assert!(FrameView::parse(&frame, frame.len()).is_ok());
    frame.push(0);
    refused(&frame, FrameError::TooLong);
    assert_eq!(
        FrameView::parse(&frame, usize::MAX).map(|_| ()),
        Err(FrameError::TooLong)
    );
}

#[test]
fn another_version_is_refused() {
    let mut frame = emit_frame(header(), &[Chunk::Ping]);
    for version in [0, 2, 255] {
        frame[0] = version;
        refused(&frame, FrameError::Version(version));
    }
}

#[test]
fn an_unknown_frame_flag_is_refused() {
    let mut frame = emit_frame(header(), &[Chunk::Ping]);
    for flag in [0x10, 0x20, 0x40, 0x80] {
        frame[1] = 0x02 | flag;
        refused(&frame, FrameError::Flags(0x02 | flag));
    }
}

#[test]
fn chunks_without_the_elicit_flag_are_refused() {
    let mut frame = emit_frame(header(), &[Chunk::Ping]);
    frame[1] = 0;
    refused(&frame, FrameError::Flags(0));
}

#[test]
fn a_pure_acknowledgement_that_elicits_another_is_refused() {
    let mut frame = emit_frame(header(), &[]);
    for flags in [0x02, 0x04, 0x06] {
        frame[1] = flags;
        refused(&frame, FrameError::Flags(flags));
    }
}

#[test]
fn a_head_length_outside_the_frame_is_refused() {
    let mut frame = emit_frame(header(), &[Chunk::Ping]);
    for head_len in [0, 8, 39, 57, 64, 4096, u16::MAX] {
        frame[2..4].copy_from_slice(&head_len.to_le_bytes());
        refused(&frame, FrameError::HeadLength(head_len));
    }
}

#[test]
fn a_head_length_that_is_no_multiple_of_8_is_refused() {
    let mut frame = emit_frame(header(), &[send(8)]);
    frame[2..4].copy_from_slice(&68u16.to_le_bytes());
    refused(&frame, FrameError::HeadLength(68));
}

#[test]
fn a_head_that_was_not_fetched_whole_is_refused() {
    let frame = emit_frame(header(), &[send(8)]);
    for fetched in 40..64 {
        let got = FrameView::parse(&frame[..fetched], frame.len()).map(|_| ());
        assert_eq!(got, Err(FrameError::HeadLength(64)));
    }
    // More head than frame: the descriptor's length counts, not the buffer's.
    assert_eq!(
        FrameView::parse(&frame, 63).map(|_| ()),
        Err(FrameError::HeadLength(64))
    );
}

#[test]
fn packet_number_0_is_refused() {
    let frame = emit_frame(
        FrameHeader {
            packet: 0,
            ..header()
        },
        &[Chunk::Ping],
    );
    refused(&frame, FrameError::PacketNumber);
}

#[test]
fn an_acknowledgement_of_packets_that_cannot_exist_is_refused() {
    let with_ack = |largest, bitmap| {
        emit_frame(
            FrameHeader {
                ack: Some(AckBlock { largest, bitmap }),
                ..header()
            },
            &[],
        )
    };
    for (largest, bitmap) in [(0, 0), (0, 1), (1, 1), (2, 0b10), (64, 1 << 63)] {
        refused(&with_ack(largest, bitmap), FrameError::AckBlock);
    }
    for (largest, bitmap) in [
        (1, 0),
        (2, 0b1),
        (64, u64::MAX >> 1),
        (65, u64::MAX),
        (u64::MAX, u64::MAX),
    ] {
        let frame = with_ack(largest, bitmap);
        assert!(FrameView::parse(&frame, frame.len()).is_ok(), "largest {largest}");
    }
}

#[test]
fn acknowledgement_fields_without_the_flag_are_refused() {
    for at in [24, 32] {
        let mut frame = emit_frame(header(), &[Chunk::Ping]);
        frame[at] = 1;
        refused(&frame, FrameError::AckBlock);
    }
}

#[test]
fn payload_that_does_not_add_up_is_refused() {
    let frame = emit_frame(header(), &[send(8), send(8)]);
    refused(&frame[..frame.len() - 1], FrameError::PayloadLength);
    refused(&[&frame[..], &[0]].concat(), FrameError::PayloadLength);
    refused(
        &[&emit_frame(header(), &[])[..], &[0]].concat(),
        FrameError::PayloadLength,
    );
}

#[test]
fn a_frame_too_short_for_its_payload_crc_is_refused() {
    let frame = emit_frame(
        FrameHeader {
            payload_crc: true,
            ..header()
        },
        &[],
    );
    assert_eq!(frame.len(), 44);
    assert!(FrameView::parse(&frame, 44).is_ok());
    for len in 40..44 {
        refused(&frame[..len], FrameError::PayloadLength);
    }
}

#[test]
fn a_damaged_head_fails_its_crc() {
    let frame = emit_frame(header(), &[send(8)]);
    assert!(FrameView::parse(&frame, frame.len()).unwrap().crc_ok(crc));
    // The tag, the stored CRC, the chunk's sequence number.
    for at in [8, 4, 48] {
        let mut bad = frame.clone();
        bad[at] ^= 1;
        assert!(!FrameView::parse(&bad, bad.len()).unwrap().crc_ok(crc));
    }
}

#[test]
fn a_head_that_ends_inside_a_chunk_header_is_refused() {
    for chunk in [
        Chunk::Ping,
        send(8),
        flow_open(),
        read(),
        fetch_add(),
        nak(),
        write(8, 8, true, true),
    ] {
        let frame = emit_frame(header(), &[chunk]);
        for head_len in (48..40 + chunk.header_len()).step_by(8) {
            let mut bad = frame.clone();
            bad[2..4].copy_from_slice(&u16::try_from(head_len).unwrap().to_le_bytes());
            refused(&bad, FrameError::Chunk(ChunkError::Truncated));
        }
    }
}

#[test]
fn an_unknown_chunk_type_is_refused() {
    for kind in [0x00, 0x09, 0x10, 0x17, 0x20, 0x23, 0xff] {
        chunk_refused(Chunk::Ping, 0, &[kind], ChunkError::Type(kind));
    }
}

#[test]
fn a_flag_the_type_does_not_have_is_refused() {
    chunk_refused(send(8), FLAGS, &[0x0b], ChunkError::Flags);
    chunk_refused(write(8, 8, true, true), FLAGS, &[0x83], ChunkError::Flags);
    chunk_refused(read_data(0, 8, true), FLAGS, &[0x03], ChunkError::Flags);
    for chunk in [Chunk::Ping, read(), fetch_add(), flow_open(), nak()] {
        chunk_refused(chunk, FLAGS, &[0x01], ChunkError::Flags);
    }
}

#[test]
fn immediate_data_in_the_wrong_chunk_is_refused() {
    chunk_refused(send_part(8, 8), FLAGS, &[0x04], ChunkError::Flags);
    let imm = Request::Write {
        total: 8,
        len: 8,
        remote_addr: 0,
        remote_key: 1,
        first: true,
        last: true,
        imm: Some(5),
    };
    chunk_refused(request(imm), FLAGS, &[0x05], ChunkError::Flags);
}

#[test]
fn non_zero_reserved_bits_are_refused() {
    let one = &[1];
    chunk_refused(send(8), EXT + 4, one, ChunkError::Reserved);
    chunk_refused(read(), EXT + 20, one, ChunkError::Reserved);
    chunk_refused(fetch_add(), EXT + 24, one, ChunkError::Reserved);
    chunk_refused(flow_open(), EXT + 12, one, ChunkError::Reserved);
    chunk_refused(request(Request::FlowClose), ARG, one, ChunkError::Reserved);
    chunk_refused(read_data(0, 8, true), EXT + 4, one, ChunkError::Reserved);
    chunk_refused(nak(), EXT + 4, one, ChunkError::Reserved);
    chunk_refused(Chunk::Ping, ARG, one, ChunkError::Reserved);
}

#[test]
fn payload_where_the_type_has_none_is_refused() {
    for chunk in [Chunk::Ping, read(), fetch_add(), flow_open(), nak()] {
        let mut frame = emit_frame(header(), &[chunk]);
        frame[40 + LEN] = 8;
        frame.extend([0; 8]);
        refused(&frame, FrameError::Chunk(ChunkError::Length));
    }
}

#[test]
fn a_message_longer_than_1_gib_is_refused() {
    let too_long = ((1u32 << 30) + 1).to_le_bytes();
    let first = Some(SendFirst {
        total: 1 << 30,
        imm: None,
    });
    chunk_refused(
        request(Request::Send {
            offset: 0,
            len: 8,
            first,
            last: false,
        }),
        EXT,
        &too_long,
        ChunkError::Length,
    );
    chunk_refused(write(8, 1 << 30, true, false), ARG, &too_long, ChunkError::Length);
    chunk_refused(read(), ARG, &too_long, ChunkError::Length);
}

#[test]
fn a_chunk_that_reaches_beyond_1_gib_is_refused() {
    let limit = 1u32 << 30;
    for offset in [limit - 7, limit + 1, u32::MAX] {
        chunk_refused(
            send_part(limit - 8, 8),
            ARG,
            &offset.to_le_bytes(),
            ChunkError::Length,
        );
        chunk_refused(
            read_data(limit - 8, 8, true),
            EXT,
            &offset.to_le_bytes(),
            ChunkError::Length,
        );
    }
}

#[test]
fn a_send_whose_first_chunk_has_an_offset_is_refused() {
    chunk_refused(send(8), ARG, &[1], ChunkError::Length);
    chunk_refused(send_part(8, 8), ARG, &[0], ChunkError::Length);
}

#[test]
fn a_chunk_that_does_not_fit_its_message_is_refused() {
    // A whole message of another length; a first part as long as the whole; a part without bytes.
    chunk_refused(send(8), EXT, &[9], ChunkError::Length);
    chunk_refused(write(8, 8, true, true), ARG, &[7], ChunkError::Length);
    chunk_refused(write(8, 9, true, false), ARG, &[8], ChunkError::Length);
    chunk_refused(write(8, 9, false, true), ARG, &[8], ChunkError::Length);
    for chunk in [
        send_part(8, 8),
        write(8, 9, false, false),
        read_data(0, 8, false),
        read_data(8, 8, true),
    ] {
        let mut frame = emit_frame(header(), &[chunk]);
        frame[40 + LEN] = 0;
        frame.truncate(frame.len() - 8);
        refused(&frame, FrameError::Chunk(ChunkError::Length));
    }
}

#[test]
fn a_flow_that_opens_in_the_middle_is_refused() {
    chunk_refused(flow_open(), CSN, &[1], ChunkError::Sequence);
}

#[test]
fn a_link_chunk_with_a_flow_is_refused() {
    for chunk in [Chunk::Ping, Chunk::Join { nonce: 1 }] {
        for at in [FLOW, FLOW + 3, CSN] {
            chunk_refused(chunk, at, &[1], ChunkError::Sequence);
        }
    }
}

#[test]
fn an_unknown_nak_code_is_refused() {
    for code in [0, 8, u32::MAX] {
        chunk_refused(nak(), EXT, &code.to_le_bytes(), ChunkError::NakCode(code));
    }
}

#[test]
fn a_chunk_that_breaks_a_rule_is_not_emitted() {
    let imm = Request::Write {
        total: 16,
        len: 8,
        remote_addr: 0,
        remote_key: 1,
        first: true,
        last: false,
        imm: Some(1),
    };
    let late_open = Request::FlowOpen {
        src_ep: 1,
        src_incarnation: 2,
        dst_ep: 3,
        dst_incarnation: 4,
    };
    let no_flow = Seq { flow: 1 << 24, ..SEQ };
    let broken = [
        request(imm),
        request(late_open),
        request(Request::Read {
            req_id: 1,
            len: (1 << 30) + 1,
            remote_addr: 0,
            remote_key: 1,
        }),
        Chunk::Request(no_flow, Request::FlowClose),
        Chunk::Response(no_flow, Response::Ready { csn: 1 }),
        send_part(0, 8),
        write(8, 8, true, false),
        read_data(8, 0, true),
    ];
    for chunk in broken {
        assert_eq!(chunk.emit(&mut [0; 48]), None, "{chunk:?}");
    }
}

#[test]
fn one_bad_chunk_condemns_the_frame() {
    let mut frame = emit_frame(header(), &[send(8), nak()]);
    frame[40 + send(8).header_len()] = 0x7f;
    refused(&frame, FrameError::Chunk(ChunkError::Type(0x7f)));
}

#[test]
fn the_length_of_the_head_can_be_peeked() {
    let mut frame = emit_frame(header(), &[send(8)]);
    let peek = |frame: &[u8]| FrameHeader::peek_head_len(frame.first_chunk().unwrap());
    assert_eq!(peek(&frame), Some(64));
    for bad in [0u16, 32, 41, 4104, u16::MAX] {
        frame[2..4].copy_from_slice(&bad.to_le_bytes());
        assert_eq!(peek(&frame), None);
    }
}

#[test]
fn every_error_says_what_is_wrong() {
    let errors = [
        FrameError::TooShort,
        FrameError::TooLong,
        FrameError::Version(2),
        FrameError::Flags(0x10),
        FrameError::HeadLength(7),
        FrameError::PacketNumber,
        FrameError::AckBlock,
        FrameError::PayloadLength,
        FrameError::Chunk(ChunkError::Truncated),
        FrameError::Chunk(ChunkError::Type(9)),
        FrameError::Chunk(ChunkError::Flags),
        FrameError::Chunk(ChunkError::Reserved),
        FrameError::Chunk(ChunkError::Length),
        FrameError::Chunk(ChunkError::Sequence),
        FrameError::Chunk(ChunkError::NakCode(7)),
    ];
    let sentences: std::collections::BTreeSet<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(sentences.len(), errors.len());
    assert!(sentences.iter().all(|sentence| sentence.contains(' ')));
}
