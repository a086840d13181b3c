//! Data frames: ours, and those of `thunderbolt_net`.

use std::fmt::Write;

use usb4_wire::{AckBlock, Chunk, FrameView, Request, Response, Seq};

use super::crc32c;

/// A frame in words.
pub(super) fn text(sof: u8, eof: u8, bytes: &[u8]) -> String {
    ours(bytes)
        .or_else(|| network(sof, eof, bytes))
        .unwrap_or_else(|| format!("sof {sof} eof {eof}, {} bytes", bytes.len()))
}

/// A frame of the wire protocol, if it is one in all its parts.
fn ours(bytes: &[u8]) -> Option<String> {
    let view = FrameView::parse(bytes, bytes.len()).ok()?;
    if !view.crc_ok(crc32c) {
        return None;
    }
    let header = view.header();
    let mut text = format!("packet {} tag {:x}", header.packet, header.tag);
    if let Some(AckBlock { largest, bitmap }) = header.ack {
        write!(text, " ack {largest}/{bitmap:x}").ok()?;
    }
    if header.ack_now {
        text.push_str(" now");
    }
    for chunk in view.chunks() {
        text.push_str("; ");
        text.push_str(&chunk_text(&chunk.chunk));
    }
    Some(text)
}

fn chunk_text(chunk: &Chunk) -> String {
    match chunk {
        Chunk::Request(seq, request) => format!("{} {}", seq_text(seq), request_text(request)),
        Chunk::Response(seq, response) => format!("{} {}", seq_text(seq), response_text(response)),
        Chunk::Ping => "PING".to_owned(),
        Chunk::Join { nonce } => format!("JOIN {nonce:x}"),
    }
}

/// Flow, epoch and sequence number.
fn seq_text(seq: &Seq) -> String {
    format!("{}.{}:{}", seq.flow, seq.epoch, seq.csn)
}

fn request_text(request: &Request) -> String {
    match request {
        Request::Send {
            offset,
            len,
            first,
            last,
        } => {
            let total = first
                .map(|first| format!(" of {}", first.total))
                .unwrap_or_default();
            let imm = first
                .and_then(|first| first.imm)
                .map(|imm| format!(" imm {imm:x}"))
                .unwrap_or_default();
            format!("SEND {offset}+{len}{total}{imm}{}", last_text(*last))
        }
        Request::Write {
            total,
            len,
            remote_addr,
            remote_key,
            last,
            imm,
            ..
        } => {
            let imm = imm.map(|imm| format!(" imm {imm:x}")).unwrap_or_default();
            format!(
                "WRITE {remote_addr:x}+{len} of {total} key {remote_key:x}{imm}{}",
                last_text(*last)
            )
        }
        Request::Read {
            req_id,
            len,
            remote_addr,
            remote_key,
        } => format!("READ {req_id} {remote_addr:x}+{len} key {remote_key:x}"),
        Request::FetchAdd {
            req_id,
            remote_addr,
            remote_key,
            add,
        } => format!("FETCH_ADD {req_id} {remote_addr:x} key {remote_key:x} add {add:x}"),
        Request::CompareSwap {
            req_id,
            remote_addr,
            remote_key,
            compare,
            swap,
        } => format!("CMP_SWAP {req_id} {remote_addr:x} key {remote_key:x} {compare:x} -> {swap:x}"),
        Request::FlowOpen {
            src_ep,
            src_incarnation,
            dst_ep,
            dst_incarnation,
        } => format!("FLOW_OPEN {src_ep}.{src_incarnation} -> {dst_ep}.{dst_incarnation}"),
        Request::FlowClose => "FLOW_CLOSE".to_owned(),
        Request::Cut => "CUT".to_owned(),
    }
}

fn response_text(response: &Response) -> String {
    match response {
        Response::ReadData {
            req_id,
            offset,
            len,
            last,
        } => format!("READ_DATA {req_id} {offset}+{len}{}", last_text(*last)),
        Response::Atomic { req_id, value } => format!("ATOMIC_RSP {req_id} {value:x}"),
        Response::ReadCut { req_id } => format!("READ_CUT {req_id}"),
        Response::ExecAck { csn } => format!("EXEC_ACK {csn}"),
        Response::Nak { csn, code } => format!("NAK {csn}: {code}"),
        Response::Ready { csn } => format!("READY {csn}"),
    }
}

fn last_text(last: bool) -> &'static str {
    if last { " last" } else { "" }
}

/// `struct thunderbolt_ip_frame_header` and the PDFs of `drivers/net/thunderbolt/main.c`: size, index, id, count.
fn network(sof: u8, eof: u8, bytes: &[u8]) -> Option<String> {
    const FRAME_START: u8 = 1;
    const FRAME_END: u8 = 2;
    const HEADER: usize = 12;
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let [s0, s1, s2, s3, i0, i1, d0, d1, c0, c1, c2, c3] = *header;
    let size = u32::from_le_bytes([s0, s1, s2, s3]);
    let fits =
        (sof, eof) == (FRAME_START, FRAME_END) && usize::try_from(size).is_ok_and(|size| size <= rest.len());
    fits.then(|| {
        format!(
            "network packet {} frame {} of {}, {size} bytes",
            u16::from_le_bytes([d0, d1]),
            u16::from_le_bytes([i0, i1]),
            u32::from_le_bytes([c0, c1, c2, c3])
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use usb4_wire::{FrameHeader, SendFirst};

    fn frame() -> Vec<u8> {
        let chunk = Chunk::Request(
            Seq {
                flow: 3,
                epoch: 1,
                csn: 9,
            },
            Request::Send {
                offset: 0,
                len: 2,
                first: Some(SendFirst { total: 2, imm: None }),
                last: true,
            },
        );
        let mut bytes = vec![0; 40 + chunk.header_len()];
        chunk.emit(&mut bytes[40..]).unwrap();
        let header = FrameHeader {
            head_len: u16::try_from(bytes.len()).unwrap(),
            tag: 0xbeef,
            packet: 5,
            ack: Some(AckBlock {
                largest: 4,
                bitmap: 7,
            }),
            ack_now: false,
            payload_crc: false,
        };
        let mut head = [0; 40];
        header.emit(&mut head);
        let crc = crc32c(crc32c(0, &bytes[40..]), &head);
        bytes[..40].copy_from_slice(&head);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(b"hi");
        bytes
    }

    #[test]
    fn our_frames_are_told_chunk_by_chunk() {
        assert_eq!(
            text(4, 5, &frame()),
            "packet 5 tag beef ack 4/7; 3.1:9 SEND 0+2 of 2 last"
        );
    }

    #[test]
    fn a_frame_with_a_wrong_crc_is_not_taken_for_ours() {
        let mut bytes = frame();
        bytes[45] ^= 1;
        assert_eq!(text(4, 5, &bytes), format!("sof 4 eof 5, {} bytes", bytes.len()));
    }

    #[test]
    fn a_network_frame_is_told_by_its_pdfs() {
        let mut bytes = vec![3, 0, 0, 0, 1, 0, 7, 0, 2, 0, 0, 0];
        bytes.extend_from_slice(b"abc");
        assert_eq!(text(1, 2, &bytes), "network packet 7 frame 1 of 2, 3 bytes");
        bytes.pop();
        assert_eq!(text(1, 2, &bytes), "sof 1 eof 2, 14 bytes");
    }
}
