//! Drives two links back to back without copying a byte, so that an instruction counter sees the engine alone:
//!
//! ```text
//! cargo build --release -p usb4-engine --features alloc --example link_cost
//! valgrind --tool=callgrind --toggle-collect='*::counted' target/release/examples/link_cost pingpong 10000
//! ```
//!
//! Prints the number of messages and frames; the instructions per message of both sides together are the
//! collected total over the messages. Modes: `pingpong` and `stream` (64-byte messages), `bulk` (1 MiB).

#![allow(
    missing_docs,
    clippy::expect_used,
    reason = "a measuring tool: what fails ends it"
)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::env;
use std::hint::black_box;

use usb4_engine::{
    EpAddr, Fate, FlowId, Host, Link, LinkConfig, LinkStorage, MemAt, MemRef, NakCode, NodeId, Operation,
    RailConfig, RailId, Receive, ReceiveDone, RemoteAccess, RxToken, Staged, Target, Work, WorkDone,
};

/// A host that grants everything and counts.
#[derive(Default)]
struct Open {
    received: Cell<u64>,
    done: Cell<u64>,
}

impl Host for Open {
    fn open_flow(&self, _: &EpAddr, ep: u32, _: u32) -> Result<Target, NakCode> {
        Ok(Target { ep, src: 0 })
    }

    fn close_flow(&self, _: Target) {}

    fn remote_access(&self, _: Target, _: u64, addr: u64, _: u32, _: RemoteAccess) -> Result<MemAt, NakCode> {
        Ok(MemAt {
            mem: MemRef(0),
            offset: addr,
        })
    }

    fn take_receive(&self, _: Target, _: u32) -> Result<Receive, NakCode> {
        Ok(Receive {
            at: MemAt {
                mem: MemRef(0),
                offset: 0,
            },
            capacity: 1 << 20,
            cookie: 0,
        })
    }

    fn lives(&self, _: MemRef) -> bool {
        true
    }

    fn release(&self, _: MemRef) {}

    fn complete_receive(&self, _: Target, _: ReceiveDone) {
        self.received.set(self.received.get() + 1);
    }

    fn complete_work(&self, _: WorkDone) {
        self.done.set(self.done.get() + 1);
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc ^ bytes.first().map_or(0, |&byte| u32::from(byte))
    }
}

struct Side {
    link: Link,
    host: Open,
    slots: Vec<Vec<u8>>,
    staged: Box<Staged>,
    flow: FlowId,
    tokens: Vec<u32>,
}

fn side(local: u128, peer: u128) -> Side {
    let config = LinkConfig::new(NodeId(local), NodeId(peer));
    let mut link = Link::new(config, LinkStorage::boxed(&config));
    let rail = RailConfig {
        tx_tag: 1,
        rx_tag: 1,
        peer_ring: 1024,
        tx_depth: 256,
        peer_max_ack_delay: 25_000,
        rate_bps: 40_000_000_000,
        latency: 2_000,
    };
    link.attach_rail(0, RailId(0), &rail).expect("a free rail");
    let dst = EpAddr {
        node: NodeId(peer),
        ep: 1,
        incarnation: 1,
    };
    let flow = link.open_flow(0, 1, 1, &dst).expect("a free flow");
    Side {
        link,
        host: Open::default(),
        slots: vec![vec![0; 4096]; usize::from(config.tx_slots)],
        staged: Box::default(),
        flow,
        tokens: (0..config.rx_tokens).collect(),
    }
}

/// A frame on its way: its length and its first bytes, enough for the heads of this test.
#[derive(Clone, Copy)]
struct Frame {
    len: u16,
    head: [u8; 168],
}

type Wire = RefCell<VecDeque<Frame>>;

/// One turn of a home: the engine, its empty host and a few lines of glue. The calls are kept apart so that a
/// profile shows them.
#[inline(never)]
fn counted(side: &mut Side, now: u64, frame: Option<&Frame>, post: bool, len: u32, out: &Wire) {
    if let Some(frame) = frame {
        receive(side, now, frame);
        run_plans(side, now);
    }
    if post {
        post_work(side, now, len);
    }
    while stage(side, now) {}
    while transmit(side, now, out) {}
}

#[inline(never)]
fn receive(side: &mut Side, now: u64, frame: &Frame) {
    let token = side.tokens.pop().expect("a receive buffer");
    let fate = side
        .link
        .on_frame(now, RailId(0), RxToken(token), &frame.head, frame.len, &side.host);
    if fate == Fate::Done {
        side.tokens.push(token);
    }
}

#[inline(never)]
fn run_plans(side: &mut Side, now: u64) {
    while let Some(plan) = side.link.next_plan() {
        black_box(&plan);
        side.link.plan_done(now, 0, &side.host);
    }
    while let Some(token) = side.link.next_released() {
        side.tokens.push(token.0);
    }
}

#[inline(never)]
fn post_work(side: &mut Side, now: u64, len: u32) {
    let op = Operation::Send {
        imm: None,
        prefix: [0; 24],
        prefix_len: 0,
    };
    let local = Some(MemAt {
        mem: MemRef(0),
        offset: 0,
    });
    side.link
        .post(
            now,
            side.flow,
            Work {
                cookie: 1,
                op,
                local,
                len,
            },
        )
        .expect("room for work");
}

#[inline(never)]
fn stage(side: &mut Side, now: u64) -> bool {
    if !side.link.stage(now, &side.host, &mut side.staged) {
        return false;
    }
    let slot = &mut side.slots[usize::from(side.staged.slot.0)];
    slot[40..][..side.staged.head().len()].copy_from_slice(side.staged.head());
    side.link.staged(now, side.staged.slot, &side.host);
    true
}

#[inline(never)]
fn transmit(side: &mut Side, now: u64, out: &Wire) -> bool {
    let mut header = [0; 40];
    let Some(post) = side.link.next_post(now, &side.host, &mut header) else {
        return false;
    };
    let slot = &mut side.slots[usize::from(post.slot.0)];
    slot[..40].copy_from_slice(&header);
    side.link.tx_completed(now, RailId(0), post.slot);
    emit(out, post.len, slot);
    true
}

#[inline(never)]
fn emit(out: &Wire, len: u16, slot: &[u8]) {
    let mut head = [0; 168];
    head.copy_from_slice(&slot[..168]);
    out.borrow_mut().push_back(Frame { len, head });
}

fn main() {
    let mut args = env::args().skip(1);
    let mode = args.next().unwrap_or_else(|| "pingpong".into());
    let count: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let (len, window, echo) = match mode.as_str() {
        "pingpong" => (64, 1, true),
        "stream" => (64, 256, false),
        "bulk" => (1 << 20, 8, false),
        other => panic!("{other}: not a mode"),
    };
    let (mut a, mut b) = (side(1, 2), side(2, 1));
    let (to_b, to_a) = (Wire::default(), Wire::default());
    let (mut now, mut frames, mut sent, mut echoed) = (1_000, 0u64, 0u64, 0u64);
    while a.host.done.get() < count || (echo && b.host.done.get() < count) {
        now += 1_000;
        for side in [&mut a, &mut b] {
            if side.link.deadline().is_some_and(|at| at <= now) {
                side.link.on_timer(now, &side.host);
            }
        }
        let answered = if echo {
            a.host.received.get()
        } else {
            a.host.done.get()
        };
        let burst = window - sent.saturating_sub(answered).min(window);
        for _ in 0..burst.max(1) {
            let post = sent < count && sent < answered + window;
            sent += u64::from(post);
            counted(&mut a, now, None, post, len, &to_b);
        }
        loop {
            let Some(frame) = to_b.borrow_mut().pop_front() else {
                break;
            };
            frames += 1;
            counted(&mut b, now, Some(&frame), false, len, &to_a);
            while echo && echoed < b.host.received.get() {
                echoed += 1;
                counted(&mut b, now, None, true, len, &to_a);
            }
        }
        loop {
            let Some(frame) = to_a.borrow_mut().pop_front() else {
                break;
            };
            frames += 1;
            counted(&mut a, now, Some(&frame), false, len, &to_b);
        }
    }
    println!("{mode}: {sent} messages, {frames} frames");
}
