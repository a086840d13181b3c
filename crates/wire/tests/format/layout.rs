//! The exact bytes of every format: a change here is a change of the protocol.

use crate::common::crc;
use usb4_wire::{
    AckBlock, Chunk, Control, ControlBody, ControlKind, EpAddr, FrameHeader, NakCode, NodeId, Request,
    Response, SendFirst, Seq,
};

const SEQ: Seq = Seq {
    flow: 0x0c_0b0a,
    epoch: 0x0d,
    csn: 0x1413_1211,
};
const ADDR: u64 = 0x2827_2625_2423_2221;
const KEY: u64 = 0x3837_3635_3433_3231;
const IMM: u64 = 0x4847_4645_4443_4241;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
        .collect()
}

#[track_caller]
fn has_bytes(chunk: Chunk, bytes: &str) {
    let mut out = [0; 48];
    let len = chunk.emit(&mut out).unwrap();
    assert_eq!(out[..len], hex(bytes));
}

#[test]
fn request_chunks_have_the_specified_bytes() {
    let request = |request| Chunk::Request(SEQ, request);
    has_bytes(
        request(Request::Send {
            offset: 0x0403_0201,
            len: 0x0706,
            first: None,
            last: true,
        }),
        "01 02 0607 0a0b0c0d 11121314 01020304",
    );
    has_bytes(
        request(Request::Send {
            offset: 0,
            len: 0x0706,
            first: Some(SendFirst {
                total: 0x0403_0201,
                imm: None,
            }),
            last: false,
        }),
        "01 01 0607 0a0b0c0d 11121314 00000000  01020304 00000000",
    );
    has_bytes(
        request(Request::Send {
            offset: 0,
            len: 0x0706,
            first: Some(SendFirst {
                total: 0x0706,
                imm: Some(IMM),
            }),
            last: true,
        }),
        "01 07 0607 0a0b0c0d 11121314 00000000  06070000 00000000  4142434445464748",
    );
    has_bytes(
        request(Request::Write {
            total: 0x0403_0201,
            len: 0x0706,
            remote_addr: ADDR,
            remote_key: KEY,
            first: true,
            last: false,
            imm: None,
        }),
        "02 01 0607 0a0b0c0d 11121314 01020304  2122232425262728 3132333435363738",
    );
    has_bytes(
        request(Request::Write {
            total: 0x0403_0201,
            len: 0x0706,
            remote_addr: ADDR,
            remote_key: KEY,
            first: false,
            last: true,
            imm: Some(IMM),
        }),
        "02 06 0607 0a0b0c0d 11121314 01020304  2122232425262728 3132333435363738 4142434445464748",
    );
    has_bytes(
        request(Request::Read {
            req_id: 0x5453_5251,
            len: 0x0403_0201,
            remote_addr: ADDR,
            remote_key: KEY,
        }),
        "03 00 0000 0a0b0c0d 11121314 01020304  2122232425262728 3132333435363738 51525354 00000000",
    );
    has_bytes(
        request(Request::FetchAdd {
            req_id: 0x5453_5251,
            remote_addr: ADDR,
            remote_key: KEY,
            add: IMM,
        }),
        "04 00 0000 0a0b0c0d 11121314 51525354  2122232425262728 3132333435363738
         4142434445464748 0000000000000000",
    );
    has_bytes(
        request(Request::CompareSwap {
            req_id: 0x5453_5251,
            remote_addr: ADDR,
            remote_key: KEY,
            compare: 0x0102,
            swap: IMM,
        }),
        "05 00 0000 0a0b0c0d 11121314 51525354  2122232425262728 3132333435363738
         4142434445464748 0201000000000000",
    );
    has_bytes(
        Chunk::Request(
            Seq { csn: 0, ..SEQ },
            Request::FlowOpen {
                src_ep: 0x0403_0201,
                src_incarnation: 0x2423_2221,
                dst_ep: 0x3433_3231,
                dst_incarnation: 0x4443_4241,
            },
        ),
        "06 00 0000 0a0b0c0d 00000000 01020304  21222324 31323334 41424344 00000000",
    );
    has_bytes(
        request(Request::FlowClose),
        "07 00 0000 0a0b0c0d 11121314 00000000",
    );
    has_bytes(request(Request::Cut), "08 00 0000 0a0b0c0d 11121314 00000000");
}

#[test]
fn response_chunks_have_the_specified_bytes() {
    let response = |response| Chunk::Response(SEQ, response);
    has_bytes(
        response(Response::ReadCut { req_id: 0x5453_5251 }),
        "16 00 0000 0a0b0c0d 11121314 51525354",
    );
    has_bytes(
        response(Response::ReadData {
            req_id: 0x5453_5251,
            offset: 0x0403_0201,
            len: 0x0706,
            last: true,
        }),
        "11 02 0607 0a0b0c0d 11121314 51525354  01020304 00000000",
    );
    has_bytes(
        response(Response::Atomic {
            req_id: 0x5453_5251,
            value: IMM,
        }),
        "12 00 0000 0a0b0c0d 11121314 51525354  4142434445464748",
    );
    has_bytes(
        response(Response::ExecAck { csn: 0x5453_5251 }),
        "13 00 0000 0a0b0c0d 11121314 51525354",
    );
    for (code, byte) in [
        (NakCode::Rnr, "01"),
        (NakCode::Access, "02"),
        (NakCode::Length, "03"),
        (NakCode::Unsupported, "04"),
        (NakCode::Resource, "05"),
        (NakCode::Gone, "06"),
        (NakCode::NotReady, "07"),
    ] {
        has_bytes(
            response(Response::Nak {
                csn: 0x5453_5251,
                code,
            }),
            &format!("14 00 0000 0a0b0c0d 11121314 51525354  {byte}000000 00000000"),
        );
    }
    has_bytes(
        response(Response::Ready { csn: 0x5453_5251 }),
        "15 00 0000 0a0b0c0d 11121314 51525354",
    );
}

#[test]
fn link_chunks_have_the_specified_bytes() {
    has_bytes(Chunk::Ping, "21 00 0000 00000000 00000000 00000000");
    has_bytes(
        Chunk::Join { nonce: IMM },
        "22 00 0000 00000000 00000000 00000000  4142434445464748",
    );
}

#[test]
fn the_frame_header_has_the_specified_bytes() {
    let header = FrameHeader {
        head_len: 0x0108,
        tag: ADDR,
        packet: KEY,
        ack: Some(AckBlock {
            largest: 0x80,
            bitmap: IMM,
        }),
        ack_now: true,
        payload_crc: true,
    };
    let mut out = [0xff; 40];
    header.emit(&mut out);
    let bytes =
        hex("01 0f 0801 00000000 2122232425262728 3132333435363738 8000000000000000 4142434445464748");
    assert_eq!(out[..], bytes);

    FrameHeader {
        ack: None,
        ack_now: false,
        payload_crc: false,
        ..header
    }
    .emit(&mut out);
    let bytes =
        hex("01 02 0801 00000000 2122232425262728 3132333435363738 0000000000000000 0000000000000000");
    assert_eq!(out[..], bytes);
}

#[test]
fn a_frame_without_chunks_asks_for_no_acknowledgement() {
    let header = FrameHeader {
        head_len: 40,
        tag: 1,
        packet: 1,
        ack: None,
        ack_now: true,
        payload_crc: false,
    };
    let mut out = [0; 40];
    header.emit(&mut out);
    assert_eq!(out[1], 0);
}

#[test]
fn the_head_crc_covers_the_chunk_headers_first() {
    let header = FrameHeader {
        head_len: 56,
        tag: 1,
        packet: 1,
        ack: None,
        ack_now: false,
        payload_crc: false,
    };
    let mut chunk = [0; 16];
    Chunk::Ping.emit(&mut chunk).unwrap();
    let mut plain = [0; 40];
    header.emit(&mut plain);
    let mut sealed = [0; 40];
    header.seal(crc(0, &chunk), crc, &mut sealed);
    let expected = crc(0, &[&chunk[..], &plain[..]].concat());
    assert_eq!(sealed[4..8], expected.to_le_bytes());
    assert_eq!((&sealed[..4], &sealed[8..]), (&plain[..4], &plain[8..]));
    // CRC32C, Castagnoli: the check value of its definition.
    assert_eq!(crc(0, b"123456789"), 0xe306_9283);
}

#[test]
fn a_control_message_has_the_specified_bytes() {
    let body = ControlBody {
        ver_min: 1,
        ver_max: 2,
        node_id: NodeId(0x6f6e_6d6c_6b6a_6968_6766_6564_6362_6160),
        tag: ADDR,
        nonce: KEY,
        echo: IMM,
        join: 0x5857_5655_5453_5251,
        tx_hop: 8,
        ring_size: 0x0400,
        max_ack_delay_us: 20,
        features: 1,
        max_flows: 0x1000,
        max_reads: 0x10,
        reason: 3,
    };
    let mut bytes = Control {
        kind: ControlKind::Accept,
        body,
    }
    .emit(crc);
    let sum = bytes[8..12].to_vec();
    bytes[8..12].fill(0);
    assert_eq!(sum, crc(0, &bytes).to_le_bytes());
    let expected = hex("55345244 01 02 01 02  00000000 03000000
         6061626364656667 68696a6b6c6d6e6f
         2122232425262728 3132333435363738 4142434445464748 5152535455565758
         08000000 00040000  14000000 01000000  00100000 10000000  0000000000000000");
    assert_eq!(bytes[..], expected);
}

#[test]
fn an_endpoint_address_has_the_specified_bytes() {
    let addr = EpAddr {
        node: NodeId(0x6f6e_6d6c_6b6a_6968_6766_6564_6362_6160),
        ep: 0x0403_0201,
        incarnation: 0x0807_0605,
    };
    assert_eq!(
        addr.to_bytes()[..],
        hex("6061626364656667 68696a6b6c6d6e6f 01020304 05060708")
    );
    assert_eq!(
        addr.to_string(),
        "6f6e6d6c6b6a69686766656463626160/67305985.08070605"
    );
}
