//! Frames: what parses is consistent, and re-emits to the same bytes.

use usb4_wire::{
    AckBlock, CHUNK_HEADER_MAX, Chunk, FRAME_HEADER_LEN, FrameHeader, FrameView, NakCode, Request, Response,
    SendFirst, Seq,
};

/// Parses the input as a frame, and its first half as the head of one.
pub fn run(data: &[u8]) {
    check(data, data.len());
    check(&data[..data.len() / 2], data.len());
}

/// Panics if what is accepted is not what it seems.
pub fn check(head: &[u8], frame_len: usize) {
    let Ok(view) = FrameView::parse(head, frame_len) else {
        return;
    };
    let _ = view.crc_ok(crc32c::crc32c_append);
    let header = view.header();
    let head_len = usize::from(header.head_len);

    let mut again = vec![0; FRAME_HEADER_LEN];
    let mut at = header.head_len;
    for item in view.chunks() {
        assert_eq!(usize::from(item.header_at), again.len());
        assert_eq!(item.at, at);
        at += item.chunk.payload_len();
        let mut bytes = [0; CHUNK_HEADER_MAX];
        let len = item.chunk.emit(&mut bytes).expect("what parses can be emitted");
        assert_eq!(len, item.chunk.header_len());
        again.extend_from_slice(&bytes[..len]);
    }
    let mut fixed = [0; FRAME_HEADER_LEN];
    header.emit(&mut fixed);
    fixed[4..8].copy_from_slice(&view.head_crc().to_le_bytes());
    again[..FRAME_HEADER_LEN].copy_from_slice(&fixed);

    assert_eq!(again, head[..head_len]);
    assert_eq!(view.payload(), header.head_len..at);
    assert_eq!(
        usize::from(at) + if header.payload_crc { 4 } else { 0 },
        frame_len
    );
}

/// One frame per chunk type, and one with all of them.
pub fn seeds() -> Vec<Vec<u8>> {
    let chunks = chunks();
    let header = FrameHeader {
        head_len: 0,
        tag: 1,
        packet: 100,
        ack: Some(AckBlock {
            largest: 70,
            bitmap: u64::MAX,
        }),
        ack_now: true,
        payload_crc: false,
    };
    let mut seeds: Vec<Vec<u8>> = chunks.iter().map(|chunk| frame(&header, &[*chunk])).collect();
    seeds.push(frame(&header, &chunks));
    seeds.push(frame(
        &FrameHeader {
            payload_crc: true,
            ..header
        },
        &chunks,
    ));
    seeds.push(frame(&FrameHeader { ack: None, ..header }, &[]));
    seeds
}

/// A frame of these chunks with a payload of zeros and right CRCs.
pub fn frame(header: &FrameHeader, chunks: &[Chunk]) -> Vec<u8> {
    let mut heads = Vec::new();
    for chunk in chunks {
        let mut bytes = [0; CHUNK_HEADER_MAX];
        let len = chunk.emit(&mut bytes).expect("the seed's chunk is valid");
        heads.extend_from_slice(&bytes[..len]);
    }
    let head_len = u16::try_from(FRAME_HEADER_LEN + heads.len()).expect("a seed fits a frame");
    let mut fixed = [0; FRAME_HEADER_LEN];
    let chunks_crc = crc32c::crc32c(&heads);
    FrameHeader { head_len, ..*header }.seal(chunks_crc, crc32c::crc32c_append, &mut fixed);
    let payload = vec![0; chunks.iter().map(|chunk| usize::from(chunk.payload_len())).sum()];
    let mut frame = [&fixed[..], &heads, &payload].concat();
    if header.payload_crc {
        frame.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
    }
    frame
}

/// One chunk of each type.
pub fn chunks() -> Vec<Chunk> {
    let seq = Seq {
        flow: 0,
        epoch: 0,
        csn: 1,
    };
    let (remote_addr, remote_key) = (0x1000, 7);
    let requests = [
        Request::FlowOpen {
            src_ep: 1,
            src_incarnation: 2,
            dst_ep: 3,
            dst_incarnation: 4,
        },
        Request::Send {
            offset: 0,
            len: 8,
            first: Some(SendFirst {
                total: 8,
                imm: Some(5),
            }),
            last: true,
        },
        Request::Send {
            offset: 0,
            len: 8,
            first: Some(SendFirst { total: 24, imm: None }),
            last: false,
        },
        Request::Send {
            offset: 8,
            len: 8,
            first: None,
            last: false,
        },
        Request::Write {
            total: 16,
            len: 8,
            remote_addr,
            remote_key,
            first: true,
            last: false,
            imm: None,
        },
        Request::Write {
            total: 16,
            len: 8,
            remote_addr,
            remote_key,
            first: false,
            last: true,
            imm: Some(9),
        },
        Request::Read {
            req_id: 1,
            len: 64,
            remote_addr,
            remote_key,
        },
        Request::FetchAdd {
            req_id: 2,
            remote_addr,
            remote_key,
            add: 1,
        },
        Request::CompareSwap {
            req_id: 3,
            remote_addr,
            remote_key,
            compare: 1,
            swap: 2,
        },
        Request::FlowClose,
        Request::Cut,
    ];
    let responses = [
        Response::ReadData {
            req_id: 1,
            offset: 0,
            len: 8,
            last: false,
        },
        Response::Atomic { req_id: 2, value: 1 },
        Response::ExecAck { csn: 4 },
        Response::Nak {
            csn: 4,
            code: NakCode::Rnr,
        },
        Response::Ready { csn: 4 },
        Response::ReadCut { req_id: 1 },
    ];
    let open = |request: &Request| matches!(request, Request::FlowOpen { .. });
    requests
        .iter()
        .map(|request| {
            Chunk::Request(
                Seq {
                    csn: if open(request) { 0 } else { 1 },
                    ..seq
                },
                *request,
            )
        })
        .chain(responses.iter().map(|response| Chunk::Response(seq, *response)))
        .chain([Chunk::Ping, Chunk::Join { nonce: 1 }])
        .collect()
}
