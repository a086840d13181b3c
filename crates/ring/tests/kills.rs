//! Processes killed at random in mixed traffic: nothing is left behind and nobody hangs.
//!
//! `KILLS=1000 cargo test --release -p usb4-ring --test kills` is the long run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
#[path = "common/process.rs"]
mod process;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::{HANG, Host, fabric};
use process::Process;
use usb4_ring::{AddressHandle, Completion, EpAddr, MemoryRegion, Op, Status, WorkRequest};

/// Kills in the short run.
const KILLS: u32 = 30;

/// Processes besides the test's own.
const PROCESSES: usize = 3;

/// Bytes of a receive, and of the longest message.
const LEN: usize = 20_000;

/// Receives posted.
const RECEIVES: u64 = 32;

/// Immediate data of a message that wants an answer, and of the answer.
const PING: u64 = 1 << 32;
const PONG: u64 = 2 << 32;

/// A xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// A host that knows others, sends to them all the time and answers pings.
struct Node {
    host: Host,
    memory: MemoryRegion,
    peers: HashMap<EpAddr, AddressHandle>,
    outstanding: usize,
    random: Random,
    /// Answers to our pings, by number.
    pongs: Vec<u64>,
}

impl Node {
    fn new(host: Host, seed: u64) -> Self {
        let receives = usize::try_from(RECEIVES).unwrap();
        let memory = host.memory((receives + 1) * LEN, 1);
        let random = Random(seed | 1);
        let mut new = Self {
            host,
            memory,
            peers: HashMap::new(),
            outstanding: 0,
            random,
            pongs: Vec::new(),
        };
        (0..RECEIVES).for_each(|i| new.receive(i));
        new
    }

    fn receive(&mut self, i: u64) {
        let buffer = self
            .memory
            .buffer(usize::try_from(i).unwrap() * LEN, LEN)
            .unwrap();
        self.host.ep.post_recv(i, buffer).unwrap();
        self.host.ep.submit().unwrap();
    }

    /// The handle of a peer; `None` if it is not there any more.
    fn peer(&mut self, address: &EpAddr) -> Option<AddressHandle> {
        if let Some(handle) = self.peers.get(address) {
            return Some(*handle);
        }
        let handle = self.host.ep.address_handle(address).ok()?;
        self.peers.insert(*address, handle);
        Some(handle)
    }

    fn send(&mut self, address: &EpAddr, len: usize, imm: u64) -> bool {
        let Some(handle) = self.peer(address) else {
            return false;
        };
        let local = self
            .memory
            .buffer(usize::try_from(RECEIVES).unwrap() * LEN, len)
            .unwrap();
        let request = WorkRequest::send(handle, local).imm(imm).user_data(u64::MAX);
        let posted = self.host.ep.post(&request).is_ok();
        self.outstanding += usize::from(posted);
        self.host.ep.submit().unwrap();
        posted
    }

    /// One step: traffic to somebody, and what has completed.
    fn step(&mut self) {
        if self.outstanding < 64 && !self.peers.is_empty() {
            let address = *self
                .peers
                .keys()
                .nth(self.random.below(self.peers.len()))
                .unwrap();
            let len = self.random.below(LEN);
            self.send(&address, len, 0);
        }
        let mut out = [Completion::default(); 16];
        self.host.device.progress();
        let count = self.host.cq.poll(&mut out);
        for done in &out[..count] {
            if done.op != Op::Receive {
                self.outstanding -= 1;
                continue;
            }
            // A message cut short by its sender's end.
            let source = self
                .host
                .ep
                .source(done.source)
                .filter(|_| done.status == Status::Ok);
            match (source, done.imm.unwrap_or(0)) {
                (Some(source), imm) if imm >= PONG => {
                    let _ = source;
                    self.pongs.push(imm - PONG);
                }
                (Some(source), imm) if imm >= PING => {
                    self.send(&source, 8, imm - PING + PONG);
                }
                _ => {}
            }
            self.receive(done.user_data);
        }
    }

    fn forget(&mut self, address: &EpAddr) {
        if let Some(handle) = self.peers.remove(address) {
            self.host.ep.close_handle(handle);
        }
    }
}

/// Not a test: what the other processes do.
#[test]
fn child() {
    let Some((_, fabric)) = process::role() else {
        return;
    };
    let host = Host::open(&format!("soft:{fabric}"));
    process::announce(&host.ep.address());
    let mut node = Node::new(host, u64::from(std::process::id()));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Some(address) = process::told() {
            if tell.send(address).is_err() {
                break;
            }
        }
    });
    let mut steps = 0u32;
    loop {
        match told.try_recv() {
            Ok(address) => drop(node.peer(&address)),
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
        }
        node.step();
        steps = steps.wrapping_add(1);
        if steps % 1024 == 0 {
            // Peers that have gone, as a long-lived process must do.
            let present: Vec<_> = node.host.device.peers().iter().map(|peer| peer.node).collect();
            let gone: Vec<EpAddr> = node
                .peers
                .keys()
                .copied()
                .filter(|address| !present.contains(&address.node))
                .collect();
            gone.iter().for_each(|address| node.forget(address));
        }
    }
}

fn start(fabric: &str, node: &mut Node, others: &mut Vec<Process>) {
    let mut new = Process::start("mesh", fabric);
    new.tell(&node.host.ep.address());
    for other in others.iter_mut() {
        new.tell(&other.address);
    }
    others.push(new);
    let address = others.last().unwrap().address;
    assert!(node.peer(&address).is_some());
}

/// Everybody answers.
fn all_answer(node: &mut Node, others: &[Process], number: &mut u64) {
    let start = Instant::now();
    for other in others {
        *number += 1;
        while !node.send(&other.address, 8, PING + *number) {
            assert!(start.elapsed() < HANG, "no room to send");
            node.step();
        }
        while !node.pongs.contains(number) {
            assert!(
                start.elapsed() < HANG,
                "process {} does not answer",
                other.child.id()
            );
            node.step();
        }
    }
    node.pongs.clear();
}

#[test]
fn random_kills_leave_nothing_behind_and_nobody_hangs() {
    let kills = std::env::var("KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let fabric = fabric("kills");
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let cables = || {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .matches("memfd:usb4-cable")
            .count()
    };
    let before = (descriptors(), cables());
    {
        let mut node = Node::new(Host::open(&format!("soft:{fabric}")), 42);
        let mut random = Random(4711);
        let mut others = Vec::new();
        (0..PROCESSES).for_each(|_| start(&fabric, &mut node, &mut others));
        let mut number = 0;
        all_answer(&mut node, &others, &mut number);
        let with_peers = (descriptors(), cables());
        for kill in 0..kills {
            // Traffic for a while, then the end of one in the middle of it.
            let until = Instant::now() + Duration::from_micros(random.below(3000) as u64);
            while Instant::now() < until {
                node.step();
            }
            let victim = others.swap_remove(random.below(others.len()));
            let address = victim.address;
            drop(victim);
            all_answer(&mut node, &others, &mut number);
            node.forget(&address);
            start(&fabric, &mut node, &mut others);
            all_answer(&mut node, &others, &mut number);
            let start = Instant::now();
            // The last victim's cable goes when its end is noticed.
            while (descriptors(), cables()) != with_peers {
                assert!(
                    start.elapsed() < HANG,
                    "{:?} after {kill} kills, not {with_peers:?}",
                    (descriptors(), cables())
                );
                node.step();
            }
        }
        // What was sent to the dead has completed, too: the rest goes to the living.
        let start = Instant::now();
        node.peers.clear();
        while node.outstanding != 0 {
            assert!(
                start.elapsed() < HANG,
                "{} sends never complete",
                node.outstanding
            );
            node.step();
        }
    }
    assert_eq!((descriptors(), cables()), before);
    let names = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(!names.contains(&fabric), "a socket of the fabric is left");
}
