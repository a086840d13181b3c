//! Endpoints of a mock network, and what tests do with them.

use std::cell::RefCell;
use std::rc::Rc;

use usb4_tagged::*;

use super::mock::{Net, Wire};

pub(super) const EAGER: u32 = 512;
pub(super) const A: PeerId = PeerId(0);
pub(super) const B: PeerId = PeerId(1);

pub(super) struct World {
    pub(super) net: Rc<RefCell<Net>>,
    pub(super) hosts: Vec<Messenger<Wire>>,
    pub(super) done: Vec<Vec<Completion>>,
    pub(super) turn: usize,
    pub(super) confirm: bool,
}

impl World {
    pub(super) fn new(hosts: usize, slots: u32) -> Self {
        Self::with(hosts, slots, 1 << 20)
    }

    pub(super) fn with(hosts: usize, slots: u32, unexpected_max: usize) -> Self {
        let net = Net::new(hosts, slots, EAGER as usize + HEADER_LEN);
        let config = Config {
            eager_max: EAGER,
            max_sends: 64,
            unexpected_max,
        };
        Self {
            hosts: (0..hosts as u32)
                .map(|me| Messenger::new(Wire::new(&net, me), config).unwrap())
                .collect(),
            done: vec![Vec::new(); hosts],
            turn: 0,
            confirm: false,
            net,
        }
    }

    pub(super) fn progress(&mut self) {
        for (host, done) in self.hosts.iter_mut().zip(&mut self.done) {
            host.progress(&mut |c| done.push(c));
        }
    }

    pub(super) fn probe(&mut self, at: PeerId) {
        let done = &mut self.done[at.0 as usize];
        self.hosts[at.0 as usize].probe(&mut |c| done.push(c));
    }

    /// Moves everything that can move.
    pub(super) fn settle(&mut self) {
        loop {
            self.progress();
            self.turn += 7;
            let moved = self.net.borrow_mut().step(self.turn);
            if !moved {
                // Nobody who expects nothing looks for questions in each call.
                for _ in 0..16 {
                    self.progress();
                }
                if !self.net.borrow_mut().step(self.turn) {
                    return;
                }
            }
        }
    }

    pub(super) fn send(&mut self, from: PeerId, to: PeerId, tag: u64, bytes: &[u8], context: u64) {
        let segment = [Segment {
            addr: bytes.as_ptr() as u64,
            len: bytes.len() as u64,
        }];
        self.send_segments(from, to, tag, &segment, context, false)
            .unwrap();
    }

    pub(super) fn send_segments(
        &mut self,
        from: PeerId,
        to: PeerId,
        tag: u64,
        segments: &[Segment],
        context: u64,
        inject: bool,
    ) -> Result<(), SendError> {
        let request = SendRequest {
            to,
            class: Class::Tagged,
            tag,
            data: Some(tag + 1),
            segments,
            context,
            token: 0,
            report: true,
            inject,
            confirm: self.confirm,
            more: false,
        };
        // SAFETY: the tests keep their buffers.
        unsafe { self.hosts[from.0 as usize].send(&request) }
    }

    pub(super) fn receive(
        &mut self,
        at: PeerId,
        from: Option<PeerId>,
        tag: u64,
        ignore: u64,
        into: &mut [u8],
        context: u64,
    ) {
        let segment = [Segment {
            addr: into.as_mut_ptr() as u64,
            len: into.len() as u64,
        }];
        self.receive_segments(at, from, (tag, ignore), &segment, context, None);
    }

    pub(super) fn receive_segments(
        &mut self,
        at: PeerId,
        from: Option<PeerId>,
        (tag, ignore): (u64, u64),
        segments: &[Segment],
        context: u64,
        multi: Option<u64>,
    ) {
        let pattern = Pattern {
            class: Class::Tagged,
            from,
            tag,
            ignore,
        };
        let request = RecvRequest {
            pattern,
            segments,
            context,
            token: 0,
            report: true,
            multi,
        };
        let done = &mut self.done[at.0 as usize];
        // SAFETY: the tests keep their buffers.
        unsafe { self.hosts[at.0 as usize].receive(&request, &mut |c| done.push(c)) }.unwrap();
    }

    pub(super) fn received(&self, at: PeerId) -> Vec<Completion> {
        self.done[at.0 as usize]
            .iter()
            .filter(|c| c.receive)
            .copied()
            .collect()
    }

    pub(super) fn sent(&self, at: PeerId) -> Vec<Completion> {
        self.done[at.0 as usize]
            .iter()
            .filter(|c| !c.receive)
            .copied()
            .collect()
    }
}

pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}
