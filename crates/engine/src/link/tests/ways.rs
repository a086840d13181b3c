//! The short ways of frames, chunks and plans against the long ones, with a peer that sends anything.

use core::cell::Cell;
use core::hash::{Hash, Hasher};
use std::boxed::Box;
use std::hash::DefaultHasher;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use usb4_wire::{AckBlock, Chunk, FrameHeader, NakCode, Request, Response, SendFirst, Seq};

use super::soak::Rng;
use super::world::*;
use crate::*;

const FLOWS: usize = 3;

/// A peer that sees the numbers whose turn it is, and mostly uses them.
struct Peer {
    rng: Rng,
    packet: u64,
    requests: [u32; FLOWS],
    offsets: [u32; FLOWS],
    epochs: [u8; FLOWS],
    responses: [u32; FLOWS],
    /// Request numbers of the link.
    staged: [u32; FLOWS],
}

impl Peer {
    fn look_at(&mut self, link: &Link) {
        for flow in 0..FLOWS {
            let (rx, tx) = (&link.rx_flows[flow], &link.tx_flows[flow]);
            self.requests[flow] = rx.next_csn;
            self.epochs[flow] = if rx.next_csn == 0 { rx.epoch + 1 } else { rx.epoch };
            self.responses[flow] = tx.response_csn;
            self.staged[flow] = tx.next_csn;
        }
    }

    /// Now and then something near `number` instead.
    fn near(&mut self, number: u32) -> u32 {
        match self.rng.below(12) {
            0 => number.wrapping_sub(1),
            1 => number.wrapping_add(1),
            2 => number.wrapping_add(self.rng.below(5) as u32),
            _ => number,
        }
    }

    fn seq(&mut self, numbers: fn(&mut Self) -> &mut [u32; FLOWS]) -> (usize, Seq) {
        let flow = self.rng.below(8).min(FLOWS as u64) as usize % FLOWS;
        let next = numbers(self)[flow];
        let csn = self.near(next);
        if csn == next {
            numbers(self)[flow] = next.wrapping_add(1);
        }
        let flow_id = if self.rng.below(50) == 0 {
            1_000
        } else {
            flow as u32
        };
        let seq = Seq {
            flow: flow_id,
            epoch: 1,
            csn,
        };
        (flow, seq)
    }

    fn request(&mut self) -> Chunk {
        let (flow, mut seq) = self.seq(|peer| &mut peer.requests);
        seq.epoch = self.epochs[flow].wrapping_add(u8::from(self.rng.below(30) == 0));
        let len = self.rng.below(120) as u16;
        let imm = (self.rng.below(6) == 0).then_some(9);
        let total = u32::from(len) + 100;
        let offset = self.offsets[flow];
        let request = match (seq.csn, self.rng.below(16)) {
            (0, _) => Request::FlowOpen {
                src_ep: 1,
                src_incarnation: 1,
                dst_ep: 7,
                dst_incarnation: 1,
            },
            (_, 0) if self.rng.below(20) == 0 => Request::FlowClose,
            (_, 1) => Request::Read {
                req_id: 5,
                len: 100,
                remote_addr: 0,
                remote_key: 0,
            },
            (_, 2 | 3) => Request::Write {
                total: u32::from(len),
                len,
                remote_addr: 0,
                remote_key: self.rng.below(2),
                first: true,
                last: true,
                imm,
            },
            (_, 4 | 5) => {
                self.offsets[flow] = u32::from(len);
                let first = Some(SendFirst { total, imm });
                Request::Send {
                    offset: 0,
                    len,
                    first,
                    last: false,
                }
            }
            (_, 6 | 7) if offset != 0 => {
                let last = self.rng.below(2) == 0;
                let len = if last { 100 } else { 40 };
                self.offsets[flow] = if last { 0 } else { offset + 40 };
                Request::Send {
                    offset,
                    len,
                    first: None,
                    last,
                }
            }
            _ => {
                let first = Some(SendFirst {
                    total: u32::from(len),
                    imm,
                });
                Request::Send {
                    offset: 0,
                    len,
                    first,
                    last: true,
                }
            }
        };
        Chunk::Request(seq, request)
    }

    fn response(&mut self) -> Chunk {
        let (flow, seq) = self.seq(|peer| &mut peer.responses);
        let staged = self.staged[flow];
        let csn = staged.wrapping_sub(self.rng.below(3) as u32);
        let csn = self.near(csn);
        let response = match self.rng.below(40) {
            0 => Response::Ready { csn },
            1 => Response::Nak {
                csn,
                code: NakCode::Rnr,
            },
            2 => Response::Nak {
                csn,
                code: NakCode::Access,
            },
            3 if self.rng.below(8) == 0 => Response::Nak {
                csn,
                code: NakCode::Gone,
            },
            _ => Response::ExecAck { csn },
        };
        Chunk::Response(seq, response)
    }

    fn frame(&mut self, host: &TestHost) -> Vec<u8> {
        let mut head = vec![0; 1_000];
        let (mut len, mut payload) = (0, 0);
        for _ in 0..1 + self.rng.below(4) {
            let chunk = match self.rng.below(20) {
                0 => Chunk::Ping,
                1..=7 => self.response(),
                _ => self.request(),
            };
            if let Some(header) = chunk.emit(&mut head[len..]) {
                len += header;
                payload += usize::from(chunk.payload_len());
            }
        }
        self.packet += if self.rng.below(15) == 0 { 2 } else { 1 };
        let largest = self.rng.below(40);
        let bitmap = self.rng.next() & (1u64 << (largest.max(1) - 1)).wrapping_sub(1);
        let header = FrameHeader {
            head_len: 40 + len as u16,
            tag: 200,
            packet: self.packet,
            ack: (largest != 0).then_some(AckBlock { largest, bitmap }),
            ack_now: self.rng.below(3) == 0,
            payload_crc: false,
        };
        let mut bytes = [0; 40];
        header.seal(
            host.crc32c(0, &head[..len]),
            |crc, bytes| host.crc32c(crc, bytes),
            &mut bytes,
        );
        let mut frame = [&bytes[..], &head[..len]].concat();
        frame.resize(40 + len + payload, 0xaa);
        frame
    }
}

/// Everything that can be seen of a link.
#[derive(Debug, PartialEq)]
struct Seen {
    counters: Counters,
    usage: Usage,
    received: Vec<(u64, Status, u32)>,
    done: Vec<(u64, Status)>,
    /// All frames it has sent, in a number.
    frames: u64,
}

/// What is seen of a link that meets such a peer.
fn run(seed: u64, long_way: bool) -> Seen {
    let mut pair = Pair::new();
    pair.sides[1].link.long_way = long_way;
    let trace = Rc::new(Cell::new(0));
    let so_far = trace.clone();
    pair.script = Box::new(move |sent| {
        let mut hasher = DefaultHasher::new();
        (so_far.get(), sent.from, sent.frame).hash(&mut hasher);
        so_far.set(hasher.finish());
        Fault::Drop
    });
    let mut peer = Peer {
        rng: Rng::new(seed),
        packet: 0,
        requests: [0; FLOWS],
        offsets: [0; FLOWS],
        epochs: [1; FLOWS],
        responses: [0; FLOWS],
        staged: [0; FLOWS],
    };
    pair.sides[1].share(vec![0; 1_000], true);
    let flows = [0; 2].map(|_| pair.open(1));
    for cookie in 0..150 {
        match peer.rng.below(10) {
            0 => {
                let side = &mut pair.sides[1];
                side.hold_plans = !side.hold_plans;
            }
            1 => {
                let side = &mut pair.sides[1];
                side.under_lock = !side.under_lock;
            }
            2 | 3 => {
                let flow = flows[peer.rng.below(2) as usize];
                if pair.sides[1].link.is_open(flow) {
                    pair.send(1, flow, cookie, &[1; 30]);
                }
            }
            4..=6 => {
                let capacity = peer.rng.below(300) as u32;
                pair.receive(1, cookie, capacity);
            }
            7 if peer.rng.below(30) == 0 => {
                let now = pair.now;
                let side = &mut pair.sides[1];
                side.link.close_target(now, 7, &side.host);
            }
            _ => {}
        }
        peer.look_at(&pair.sides[1].link);
        let frame = peer.frame(&pair.sides[1].host);
        pair.inject(1, 0, &frame);
        pair.run_for(peer.rng.below(10_000));
    }
    pair.sides[1].hold_plans = false;
    pair.run_for(100_000);
    let link = &pair.sides[1].link;
    Seen {
        counters: *link.counters(),
        usage: link.usage(),
        received: pair.received(1),
        done: pair.done(1),
        frames: trace.get(),
    }
}

#[test]
fn a_peer_that_sends_anything_cannot_tell_the_ways_apart() {
    let (mut executed, mut completed) = (0, 0);
    for seed in 0..300 {
        let [short, long] = [false, true].map(|long_way| run(seed, long_way));
        executed += short.counters.executed;
        completed += short.counters.completed;
        assert_eq!(short, long, "seed {seed}");
    }
    assert!(
        executed > 20_000 && completed > 2_000,
        "{executed} executed, {completed} completed: too wild"
    );
}
