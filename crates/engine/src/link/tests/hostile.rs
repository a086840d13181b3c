//! A peer that does not keep the protocol.

use std::vec;
use std::vec::Vec;

use usb4_wire::{AckBlock, Chunk, FrameHeader, NakCode, Request, Response, SendFirst, Seq};

use super::soak::Rng;
use super::world::*;
use crate::*;

/// Makes frames for side 1 of a pair whose side 0 keeps silent.
struct Forger {
    pair: Pair,
    packet: u64,
}

impl Forger {
    fn new() -> Self {
        Self {
            pair: Pair::new(),
            packet: 0,
        }
    }

    fn header(&mut self, head_len: u16) -> FrameHeader {
        self.packet += 1;
        FrameHeader {
            head_len,
            tag: 200,
            packet: self.packet,
            ack: None,
            ack_now: false,
            payload_crc: false,
        }
    }

    fn frame(&mut self, chunks: &[Chunk]) -> Vec<u8> {
        let mut head = vec![0; 4_000];
        let (mut len, mut payload) = (0, 0);
        for chunk in chunks {
            len += chunk.emit(&mut head[len..]).expect("room");
            payload += usize::from(chunk.payload_len());
        }
        let header = self.header(40 + len as u16);
        self.seal(&header, &head[..len], payload)
    }

    fn seal(&self, header: &FrameHeader, head: &[u8], payload: usize) -> Vec<u8> {
        let host = &self.pair.sides[1].host;
        let mut bytes = [0; 40];
        header.seal(
            host.crc32c(0, head),
            |crc, bytes| host.crc32c(crc, bytes),
            &mut bytes,
        );
        let mut frame = bytes.to_vec();
        frame.extend_from_slice(head);
        frame.resize(frame.len() + payload, 0xaa);
        frame
    }

    fn send(&mut self, chunks: &[Chunk]) {
        let frame = self.frame(chunks);
        self.deliver(&frame);
    }

    fn deliver(&mut self, frame: &[u8]) {
        self.pair.inject(1, 0, frame);
        self.pair.run_for(1_000);
    }

    fn counters(&self) -> Counters {
        *self.pair.sides[1].link.counters()
    }
}

fn request(csn: u32, request: Request) -> Chunk {
    Chunk::Request(
        Seq {
            flow: 0,
            epoch: 1,
            csn,
        },
        request,
    )
}

fn open() -> Chunk {
    request(
        0,
        Request::FlowOpen {
            src_ep: 1,
            src_incarnation: 1,
            dst_ep: 7,
            dst_incarnation: 1,
        },
    )
}

fn send_first(csn: u32, total: u32, len: u16, last: bool) -> Chunk {
    let first = Some(SendFirst { total, imm: None });
    request(
        csn,
        Request::Send {
            offset: 0,
            len,
            first,
            last,
        },
    )
}

fn send_next(csn: u32, offset: u32, len: u16, last: bool) -> Chunk {
    request(
        csn,
        Request::Send {
            offset,
            len,
            first: None,
            last,
        },
    )
}

#[test]
fn a_forged_message_is_taken_like_any_other() {
    let mut forger = Forger::new();
    forger.pair.receive(1, 5, 100);
    forger.send(&[open(), send_first(1, 10, 10, true)]);
    assert_eq!(forger.pair.received(1), [(5, Status::Ok, 10)]);
    assert_eq!(forger.counters().violations, 0);
}

#[test]
fn a_wrong_tag_asks_for_a_reset_and_changes_nothing() {
    let mut forger = Forger::new();
    let header = FrameHeader {
        tag: 999,
        ..forger.header(40)
    };
    let frame = forger.seal(&header, &[], 0);
    forger.deliver(&frame);
    assert_eq!(forger.counters().rx_wrong_tag, 1);
    assert_eq!(forger.pair.sides[1].link.take_reset(), Some(RailId(0)));
    assert_eq!(forger.pair.sides[1].link.take_reset(), None);
}

#[test]
fn damaged_frames_are_dropped() {
    let mut forger = Forger::new();
    let frame = forger.frame(&[open()]);
    for at in 0..frame.len() {
        let mut damaged = frame.clone();
        damaged[at] ^= 0x10;
        forger.deliver(&damaged);
    }
    let counters = forger.counters();
    assert_eq!(counters.rx_frames, 0);
    assert_eq!(counters.rx_malformed + counters.rx_corrupt, frame.len() as u64);
    forger.deliver(&frame);
    assert_eq!(forger.counters().rx_frames, 1);
}

#[test]
fn flows_beyond_the_limit_do_not_exist() {
    let mut forger = Forger::new();
    let seq = Seq {
        flow: 8,
        epoch: 0,
        csn: 0,
    };
    forger.send(&[Chunk::Request(seq, Request::FlowClose)]);
    forger.send(&[Chunk::Response(seq, Response::ExecAck { csn: 0 })]);
    assert_eq!(forger.counters().violations, 2);
    forger.pair.assert_clean();
}

#[test]
fn responses_without_a_request_change_nothing() {
    let mut forger = Forger::new();
    let flow = forger.pair.open(1);
    let responses = [
        Response::ExecAck { csn: 1 },
        Response::Nak {
            csn: 0,
            code: NakCode::Rnr,
        },
        Response::Nak {
            csn: 0,
            code: NakCode::Gone,
        },
        Response::Atomic { req_id: 3, value: 1 },
        Response::ReadData {
            req_id: 999,
            offset: 0,
            len: 8,
            last: true,
        },
        Response::Ready { csn: 0 },
    ];
    for (csn, response) in (0..).zip(responses) {
        forger.send(&[Chunk::Response(
            Seq {
                flow: flow.index,
                epoch: 1,
                csn,
            },
            response,
        )]);
    }
    assert!(forger.pair.sides[1].link.is_open(flow));
    assert_eq!(
        (forger.counters().violations, forger.counters().rx_chunk_stale),
        (5, 1)
    );
    forger.pair.assert_clean();
}

#[test]
fn numbers_far_ahead_are_not_parked() {
    let mut forger = Forger::new();
    forger.send(&[open(), send_first(1 << 25, 10, 10, true)]);
    assert_eq!(forger.counters().violations, 1);
    assert_eq!(forger.pair.sides[1].link.usage().parked, 0);
}

#[test]
fn a_peer_cannot_park_more_than_the_limit() {
    let mut forger = Forger::new();
    for csn in 2..3_000 {
        forger.send(&[send_first(csn, 10, 10, true)]);
    }
    let usage = forger.pair.sides[1].link.usage();
    assert_eq!((usage.parked, usage.tokens), (1_024, 1_024));
    forger.pair.detach(1, 0);
    forger.pair.run();
    forger.pair.assert_clean();
}

#[test]
fn a_flow_that_is_never_opened_is_never_answered() {
    let mut forger = Forger::new();
    forger.send(&[request(0, Request::FlowClose), send_first(1, 10, 10, true)]);
    assert_eq!(forger.counters().violations, 1);
    assert_eq!(forger.counters().executed, 0);
}

#[test]
fn a_message_in_disorder_is_refused_and_gives_its_receive_back() {
    let breaks = [
        vec![send_first(1, 100, 10, false), send_next(2, 11, 10, false)],
        vec![send_first(1, 100, 10, false), send_first(2, 10, 10, true)],
        vec![send_first(1, 100, 10, false), send_next(2, 10, 10, true)],
        vec![send_first(1, 100, 10, false), send_next(2, 10, 90, false)],
        vec![send_first(1, 100, 10, false), send_next(2, 10, 91, true)],
        vec![send_next(1, 10, 10, false)],
        vec![
            send_first(1, 100, 10, false),
            request(
                2,
                Request::Read {
                    req_id: 0,
                    len: 0,
                    remote_addr: 0,
                    remote_key: 0,
                },
            ),
        ],
    ];
    for chunks in breaks {
        let mut forger = Forger::new();
        forger.pair.receive(1, 5, 100);
        forger.send(&[open()]);
        let next = chunks.len() as u32 + 1;
        forger.send(&chunks);
        assert_eq!(forger.counters().violations, 1, "{chunks:?}");
        let taken = forger.pair.received(1);
        assert!(
            taken.is_empty() || taken == [(5, Status::Flushed, 0)],
            "{chunks:?}: {taken:?}"
        );
        // A whole message behind the broken one is served, if that has ended.
        forger.pair.receive(1, 6, 100);
        forger.pair.receive(1, 7, 100);
        forger.send(&[send_next(next, 50, 1, true), send_first(next + 1, 10, 10, true)]);
        let last = forger.pair.received(1).last().copied();
        assert!(matches!(last, Some((_, Status::Ok, 10))), "{chunks:?}: {last:?}");
        forger.pair.detach(1, 0);
        forger.pair.run();
    }
}

#[test]
fn an_impossible_acknowledgement_frees_nothing() {
    let mut forger = Forger::new();
    let flow = forger.pair.open(1);
    forger.pair.send(1, flow, 1, &[1; 10]);
    forger.pair.run_for(100);
    let ack = Some(AckBlock {
        largest: 1_000,
        bitmap: u64::MAX,
    });
    let header = FrameHeader {
        ack,
        ..forger.header(40)
    };
    let frame = forger.seal(&header, &[], 0);
    forger.deliver(&frame);
    assert_eq!(forger.counters().violations, 1);
    assert!(forger.pair.sides[1].link.usage().slots > 0);
}

#[test]
fn an_impossible_acknowledgement_is_not_put_off_until_it_is_possible() {
    let mut forger = Forger::new();
    forger.pair.sides[1].under_lock = true;
    let mut head = [0; 200];
    let mut len = 0;
    for chunk in [open(), send_first(1, 10, 10, true)] {
        len += chunk.emit(&mut head[len..]).expect("room");
    }
    let ack = Some(AckBlock {
        largest: 1,
        bitmap: 0,
    });
    let header = FrameHeader {
        ack,
        ..forger.header(40 + len as u16)
    };
    let frame = forger.seal(&header, &head[..len], 10);
    forger.deliver(&frame);
    // That there is no receive has been said in packet 1.
    assert_eq!(forger.pair.frames, [0, 1]);
    assert_eq!(forger.counters().violations, 1);
    assert_eq!(forger.pair.sides[1].link.usage().slots, 1);
}

#[test]
fn read_data_in_disorder_never_leaves_the_buffer() {
    let mut forger = Forger::new();
    let flow = forger.pair.open(1);
    let into = forger.pair.sides[1].host.region(vec![0; 100]);
    let work = forger.pair.sides[1].read(1, into, 100, MemRef(0), 0);
    forger.pair.post(1, flow, work);
    forger.pair.run_for(100);
    let bad = [
        (50, 50, true),
        (0, 101, true),
        (0, 50, true),
        (0, 100, false),
        (u32::MAX - 200, 100, true),
    ];
    for (csn, (offset, len, last)) in (0..).zip(bad) {
        let data = Response::ReadData {
            req_id: 0,
            offset,
            len,
            last,
        };
        let seq = Seq {
            flow: flow.index,
            epoch: 1,
            csn,
        };
        if (Chunk::Response(seq, data)).emit(&mut [0; 64]).is_some() {
            forger.send(&[Chunk::Response(seq, data)]);
        }
    }
    assert_eq!(forger.pair.sides[1].host.bytes(into), [0; 100]);
    assert!(forger.pair.done(1).is_empty());
}

#[test]
fn a_peer_that_confirms_too_early_frees_no_memory_in_use() {
    let mut forger = Forger::new();
    let flow = forger.pair.open(1);
    forger.pair.sides[1].hold_gather = true;
    forger.pair.send(1, flow, 1, &[1; 10]);
    forger.pair.settle();
    forger.send(&[Chunk::Response(
        Seq {
            flow: flow.index,
            epoch: 1,
            csn: 0,
        },
        Response::ExecAck { csn: 2 },
    )]);
    assert!(forger.pair.done(1).is_empty());
    // The test's memory checks that the gather still holds a reference.
    forger.pair.sides[1].hold_gather = false;
    forger.pair.run_for(1_000);
    assert_eq!(forger.pair.done(1).len(), 1);
}

/// Random chunks with plausible numbers, against a link with work of its own.
#[test]
fn random_chunks_never_get_more_than_their_share() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut forger = Forger::new();
        let shared = forger.pair.sides[1].share(vec![0; 4_096], true);
        let flow = forger.pair.open(1);
        for n in 0..400 {
            let mut chunks = Vec::new();
            for _ in 0..=rng.below(4) {
                let seq = Seq {
                    flow: rng.below(3) as u32,
                    epoch: 1 + (rng.below(10) == 0) as u8,
                    csn: (n / 4 + rng.below(3)) as u32,
                };
                let chunk = random_chunk(&mut rng, seq, shared);
                if chunk.emit(&mut [0; 64]).is_some() {
                    chunks.push(chunk);
                }
            }
            if n == 0 {
                chunks.insert(0, open());
            }
            forger.send(&chunks);
            match rng.below(8) {
                0 => {
                    forger.pair.receive(1, n, 3_000);
                }
                1 => {
                    let work = match rng.below(3) {
                        0 => forger.pair.sides[1].message(n, &[1; 50], None),
                        1 => forger.pair.sides[1].write(n, &pattern(9_000, 1), MemRef(5), 0, Some(3)),
                        _ => {
                            let into = forger.pair.sides[1].host.region(vec![0; 100]);
                            forger.pair.sides[1].read(n, into, 100, MemRef(5), 0)
                        }
                    };
                    let mem = work.local.map(|at| at.mem);
                    let now = forger.pair.now;
                    let side = &mut forger.pair.sides[1];
                    if side.link.post(now, flow, work).is_err() {
                        side.host.release(mem.expect("all have a buffer"));
                    }
                }
                _ => {}
            }
        }
        forger.pair.detach(1, 0);
        forger.pair.run();
        let side = &forger.pair.sides[1];
        assert!(side.link.is_quiet(), "seed {seed}: {:?}", side.link.usage());
        assert_eq!(side.host.0.borrow().flows, 0);
        forger.pair.drop_receives(1);
        let side = &forger.pair.sides[1];
        assert_eq!(side.host.outstanding(), 0, "seed {seed}");
    }
}

fn random_chunk(rng: &mut Rng, seq: Seq, shared: MemRef) -> Chunk {
    let len = rng.below(300) as u16;
    let total = if rng.below(2) == 0 {
        u32::from(len)
    } else {
        rng.below(4_000) as u32
    };
    let (first, last) = (rng.below(2) == 0, rng.below(2) == 0);
    let (remote_addr, remote_key) = (rng.below(5_000) & !7, shared.0 + rng.below(2));
    let req_id = rng.below(4) as u32;
    let offset = if first { 0 } else { rng.below(600) as u32 };
    let imm = (rng.below(3) == 0).then_some(1);
    let csn = rng.below(200) as u32;
    let codes = [
        NakCode::Rnr,
        NakCode::Access,
        NakCode::Length,
        NakCode::Resource,
        NakCode::Gone,
    ];
    match rng.below(14) {
        0..=3 => {
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
        4 | 5 => {
            let imm = if last { imm } else { None };
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
        6 => Chunk::Request(
            seq,
            Request::Read {
                req_id,
                len: total,
                remote_addr,
                remote_key,
            },
        ),
        7 => Chunk::Request(
            seq,
            Request::FetchAdd {
                req_id,
                remote_addr,
                remote_key,
                add: 1,
            },
        ),
        8 => match rng.below(8) {
            0 => Chunk::Request(seq, Request::FlowClose),
            1 => Chunk::Ping,
            2 => Chunk::Request(seq, Request::Cut),
            3 => Chunk::Response(seq, Response::ReadCut { req_id }),
            _ => Chunk::Request(
                Seq { csn: 0, ..seq },
                Request::FlowOpen {
                    src_ep: 1,
                    src_incarnation: 1,
                    dst_ep: 7,
                    dst_incarnation: 1,
                },
            ),
        },
        9 => Chunk::Response(
            seq,
            Response::ReadData {
                req_id,
                offset,
                len,
                last,
            },
        ),
        10 => Chunk::Response(seq, Response::Atomic { req_id, value: 5 }),
        11 => Chunk::Response(seq, Response::ExecAck { csn }),
        12 => {
            let known = if rng.below(10) == 0 { 5 } else { 4 };
            let code = codes[rng.below(known) as usize];
            Chunk::Response(seq, Response::Nak { csn, code })
        }
        _ => Chunk::Response(seq, Response::Ready { csn }),
    }
}

fn cut(csn: u32) -> Chunk {
    request(csn, Request::Cut)
}

/// A flow that waits for chunk 1, and behind it all that may wait, in frames of `each` chunks that come in this order.
fn parked(each: u32, order: impl Iterator<Item = u32>) -> Forger {
    let mut forger = Forger::new();
    forger.send(&[open()]);
    for frame in order {
        let first = 2 + frame * each;
        let chunks: Vec<Chunk> = (first..first + each).map(cut).collect();
        forger.send(&chunks);
    }
    assert_eq!(forger.pair.sides[1].link.usage().parked, 1024);
    assert_eq!(forger.counters().rx_no_room, 0);
    forger
}

#[test]
fn a_frame_has_no_chunk_after_chunk_looked_for_among_all_that_are_parked() {
    const FRAMES: u64 = 64;
    let mut forger = parked(128, 0..8);
    for _ in 0..FRAMES {
        forger.send(&[cut(1023); 200]);
    }
    let counters = forger.counters();
    assert_eq!(counters.rx_no_room, FRAMES);
    assert!(counters.rx_chunk_duplicate <= 2 * FRAMES, "{counters:?}");
    forger.send(&[cut(1)]);
    assert_eq!(forger.pair.sides[1].link.usage().parked, 0);
}

#[test]
fn frames_of_an_honest_peer_are_taken_in_any_order_and_again() {
    let evens = (0..64).step_by(2);
    let odds = (1..64).step_by(2);
    for mut forger in [
        parked(16, (0..64).rev()),
        parked(16, odds.clone().chain(evens.clone())),
        parked(16, evens.rev().chain(odds)),
    ] {
        for first in (2..1026).step_by(16) {
            let again: Vec<Chunk> = (first..first + 16).map(cut).collect();
            forger.send(&again);
        }
        let counters = forger.counters();
        assert_eq!((counters.rx_no_room, counters.rx_chunk_duplicate), (0, 1024));
        forger.send(&[cut(1)]);
        assert_eq!(forger.pair.sides[1].link.usage().parked, 0);
    }
}
