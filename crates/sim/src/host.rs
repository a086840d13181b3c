//! What spans a host's links: endpoints, receive queues, memory, completions. The simulator's `engine::Host`.

use crate::memory::{Access, Memory, Region};
use crate::rng::Rng;
use std::cell::RefCell;
use std::collections::VecDeque;
use usb4_engine::{Host, MemAt, MemRef, Plan, Receive, ReceiveDone, RemoteAccess, Target, WorkDone};
use usb4_wire::{EpAddr, NakCode, NodeId};

/// An endpoint of a host in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The host's index in the world.
    pub host: usize,
    /// The endpoint's index at its host.
    pub index: u32,
    /// Its address on the fabric.
    pub addr: EpAddr,
}

/// A completed receive, as an application would see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The endpoint's index at its host.
    pub ep: u32,
    /// The sending endpoint.
    pub from: EpAddr,
    /// What the engine reported.
    pub done: ReceiveDone,
}

struct EndpointState {
    incarnation: u32,
    open: bool,
    receives: VecDeque<Receive>,
    starved: bool,
    flows: usize,
}

struct State {
    node: NodeId,
    memory: Memory,
    endpoints: Vec<EndpointState>,
    sources: Vec<EpAddr>,
    received: VecDeque<Received>,
    finished: VecDeque<WorkDone>,
    violations: Vec<String>,
    incoming_flows: usize,
}

/// One host's shared state behind `&self`, as the engine wants it.
pub struct SimHost(RefCell<State>);

impl SimHost {
    pub(crate) fn new(index: usize, node: NodeId, mut rng: Rng) -> Self {
        Self(RefCell::new(State {
            node,
            memory: Memory::new(index, rng.fork()),
            endpoints: Vec::new(),
            sources: Vec::new(),
            received: VecDeque::new(),
            finished: VecDeque::new(),
            violations: Vec::new(),
            incoming_flows: 0,
        }))
    }

    /// The host's node id.
    pub fn node(&self) -> NodeId {
        self.0.borrow().node
    }

    pub(crate) fn open_endpoint(&self, host: usize, incarnation: u32) -> Endpoint {
        let mut state = self.0.borrow_mut();
        let index = u32::try_from(state.endpoints.len()).unwrap_or(u32::MAX);
        state.endpoints.push(EndpointState {
            incarnation,
            open: true,
            receives: VecDeque::new(),
            starved: false,
            flows: 0,
        });
        Endpoint {
            host,
            index,
            addr: EpAddr {
                node: state.node,
                ep: index,
                incarnation,
            },
        }
    }

    pub(crate) fn close_endpoint(&self, index: u32) {
        let mut state = self.0.borrow_mut();
        let endpoint = &mut state.endpoints[index as usize];
        endpoint.open = false;
        let receives = std::mem::take(&mut endpoint.receives);
        for receive in receives {
            state.release(receive.at.mem);
        }
    }

    pub(crate) fn register(&self, bytes: Vec<u8>, access: Access) -> Region {
        self.0.borrow_mut().memory.register(bytes, access)
    }

    pub(crate) fn revoke(&self, region: Region) {
        self.0.borrow_mut().memory.revoke(region);
    }

    pub(crate) fn grant(&self, region: Region, offset: u64) -> MemAt {
        self.0.borrow_mut().memory.grant(region, offset)
    }

    /// Posts a receive; true if a sender was refused for want of one, so that its flows must be told.
    pub(crate) fn post_receive(
        &self,
        ep: u32,
        region: Region,
        offset: u64,
        capacity: u32,
        cookie: u64,
    ) -> bool {
        let mut state = self.0.borrow_mut();
        let at = state.memory.grant(region, offset);
        let endpoint = &mut state.endpoints[ep as usize];
        endpoint.receives.push_back(Receive { at, capacity, cookie });
        std::mem::take(&mut endpoint.starved)
    }

    /// Receives posted and not yet taken.
    pub fn receives_posted(&self, ep: u32) -> usize {
        self.0.borrow().endpoints[ep as usize].receives.len()
    }

    /// Takes the oldest completed receive of this host.
    pub fn next_received(&self) -> Option<Received> {
        self.0.borrow_mut().received.pop_front()
    }

    /// Takes the oldest piece of finished work of this host.
    pub fn next_finished(&self) -> Option<WorkDone> {
        self.0.borrow_mut().finished.pop_front()
    }

    /// True if a completion waits to be taken.
    pub fn has_completions(&self) -> bool {
        let state = self.0.borrow();
        !state.received.is_empty() || !state.finished.is_empty()
    }

    /// Reads or changes the bytes of a region, as the application that owns it may.
    pub fn with_region<R>(&self, region: Region, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(self.0.borrow_mut().memory.bytes_mut(region))
    }

    /// Looks at the bytes of a region.
    pub fn region<R>(&self, region: Region, f: impl FnOnce(&[u8]) -> R) -> R {
        f(self.0.borrow().memory.bytes(region))
    }

    /// Memory references the engine still holds, receives that merely wait in a queue not counted.
    pub fn references(&self) -> usize {
        let state = self.0.borrow();
        let queued: usize = state.endpoints.iter().map(|e| e.receives.len()).sum();
        state.memory.live() - queued
    }

    /// Incoming flows the engine opened and has not closed.
    pub fn incoming_flows(&self) -> usize {
        self.0.borrow().incoming_flows
    }

    /// Broken promises of the engine towards this host; empty if all is well.
    pub fn violations(&self) -> Vec<String> {
        self.0.borrow().violations.clone()
    }

    /// Copies `out.len()` bytes from memory into a frame.
    pub(crate) fn gather(&self, from: MemAt, out: &mut [u8]) {
        let mut state = self.0.borrow_mut();
        match state.memory.at(from, out.len()) {
            Ok(bytes) => out.copy_from_slice(bytes),
            Err(what) => state.violations.push(format!("gather: {what}")),
        }
    }

    /// Carries a plan out, `frame` being the frame it copies from; returns the old value an atomic reports.
    pub(crate) fn run(&self, plan: &Plan, frame: Option<&[u8]>) -> u64 {
        let mut state = self.0.borrow_mut();
        let done = match *plan {
            Plan::Copy { at, len, to, .. } => state.copy_in(frame, usize::from(at), usize::from(len), to),
            Plan::FetchAdd { at, add } => state.atomic(at, |old| old.wrapping_add(add)),
            Plan::CompareSwap { at, compare, swap } => {
                state.atomic(at, |old| if old == compare { swap } else { old })
            }
            Plan::Store { to, value } => state
                .memory
                .at(to, 8)
                .map(|bytes| bytes.copy_from_slice(&value.to_le_bytes()))
                .map(|()| 0),
            Plan::Nothing => Ok(0),
        };
        done.unwrap_or_else(|what| {
            state.violations.push(format!("{plan:?}: {what}"));
            0
        })
    }
}

impl State {
    fn release(&mut self, mem: MemRef) {
        if let Err(what) = self.memory.release(mem) {
            self.violations.push(format!("release: {what}"));
        }
    }

    fn copy_in(&mut self, frame: Option<&[u8]>, at: usize, len: usize, to: MemAt) -> Result<u64, String> {
        let source = frame
            .and_then(|frame| frame.get(at..at + len))
            .ok_or_else(|| format!("{len} bytes at {at} are not in the frame"))?;
        self.memory.at(to, len)?.copy_from_slice(source);
        Ok(0)
    }

    fn atomic(&mut self, at: MemAt, change: impl FnOnce(u64) -> u64) -> Result<u64, String> {
        let bytes = self.memory.at(at, 8)?;
        let old = bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
        bytes.copy_from_slice(&change(old).to_le_bytes());
        Ok(old)
    }
}

impl Host for SimHost {
    fn open_flow(&self, src: &EpAddr, dst_ep: u32, dst_inc: u32) -> Result<Target, NakCode> {
        let mut state = self.0.borrow_mut();
        let src_index = u32::try_from(state.sources.len()).map_err(|_| NakCode::Resource)?;
        let endpoint = state.endpoints.get_mut(dst_ep as usize).ok_or(NakCode::Gone)?;
        if !endpoint.open || endpoint.incarnation != dst_inc {
            return Err(NakCode::Gone);
        }
        endpoint.flows += 1;
        state.incoming_flows += 1;
        state.sources.push(*src);
        Ok(Target {
            ep: dst_ep,
            src: src_index,
        })
    }

    fn close_flow(&self, target: Target) {
        let mut state = self.0.borrow_mut();
        let State {
            endpoints,
            violations,
            incoming_flows,
            ..
        } = &mut *state;
        match endpoints.get_mut(target.ep as usize) {
            Some(endpoint) if endpoint.flows > 0 => {
                endpoint.flows -= 1;
                *incoming_flows -= 1;
            }
            _ => violations.push(format!("close_flow of {target:?}, which is not open")),
        }
    }

    fn remote_access(
        &self,
        _target: Target,
        key: u64,
        addr: u64,
        len: u32,
        access: RemoteAccess,
    ) -> Result<MemAt, NakCode> {
        self.0.borrow_mut().memory.remote(key, addr, len, access)
    }

    fn take_receive(&self, target: Target, _len: u32) -> Result<Receive, NakCode> {
        let mut state = self.0.borrow_mut();
        let endpoint = state.endpoints.get_mut(target.ep as usize).ok_or(NakCode::Gone)?;
        if !endpoint.open {
            return Err(NakCode::Gone);
        }
        endpoint.receives.pop_front().ok_or_else(|| {
            endpoint.starved = true;
            NakCode::Rnr
        })
    }

    fn lives(&self, _: MemRef) -> bool {
        true
    }

    fn release(&self, mem: MemRef) {
        self.0.borrow_mut().release(mem);
    }

    fn complete_receive(&self, target: Target, done: ReceiveDone) {
        let mut state = self.0.borrow_mut();
        let State {
            sources,
            received,
            violations,
            ..
        } = &mut *state;
        match sources.get(target.src as usize) {
            Some(&from) => received.push_back(Received {
                ep: target.ep,
                from,
                done,
            }),
            None => violations.push(format!(
                "receive completed for {target:?}, which was never opened"
            )),
        }
    }

    fn complete_work(&self, done: WorkDone) {
        self.0.borrow_mut().finished.push_back(done);
    }

    fn crc32c(&self, crc: u32, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc, bytes)
    }
}
