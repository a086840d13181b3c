//! Traffic with an oracle: random work on many flows, of which the oracle knows every byte, order and value.
//!
//! * Every host has a *pattern*: 2 MiB of random bytes nobody may change. Messages are parts of the sender's
//!   pattern, reads fetch parts of the target's.
//! * Every flow has a *window* in its target's memory for writes and a read buffer in its source's. What has been
//!   checked is wiped, so that anything executed twice shows as bytes that are not zero.
//! * Every host has a counter all others add 1 to: old values must all differ, and the sum must be exact. Every
//!   flow has a word of its own for compare-swap, whose every old value is known in advance.

mod check;
mod flow;
mod plan;

pub use plan::{Kind, Mix, Sizes};

use crate::apps::Buf;
use crate::host::Endpoint;
use crate::memory::{Access, Region};
use crate::profile::SEC;
use crate::rng::{Rng, mix};
use crate::world::{HostId, World};
use flow::FlowState;
use std::collections::HashMap;
use std::fmt;
use usb4_engine::{Nanos, PostError};
use usb4_wire::EpAddr;

/// Bytes of a host's pattern.
const PATTERN: usize = 2 << 20;

/// The timer that ends a pause; those of endpoints are below it.
const WAKE: u64 = Traffic::DISTURB - 1;

/// What went wrong, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Operations completed and checked.
    pub messages: u64,
    /// Payload bytes moved.
    pub bytes: u64,
    /// Virtual time from the first post to the last completion.
    pub elapsed: Nanos,
    /// Atomics among the operations.
    pub atomics: u64,
}

impl Totals {
    /// Payload bits per second of virtual time.
    pub fn goodput_bps(&self) -> f64 {
        if self.elapsed == 0 {
            0.0
        } else {
            self.bytes as f64 * 8e9 / self.elapsed as f64
        }
    }
}

/// One host's part in the traffic.
struct Party {
    host: HostId,
    pattern: Region,
    /// What the pattern must always be.
    original: Vec<u8>,
    endpoints: Vec<PartyEndpoint>,
    counter: Region,
    /// Old values of the counter seen so far, one bit each.
    seen: Vec<u64>,
    added: u64,
}

struct PartyEndpoint {
    ep: Endpoint,
    buffers: Region,
    /// Receive buffers not posted.
    idle: Vec<u64>,
}

/// Traffic under way.
pub struct Traffic {
    mix: Mix,
    rng: Rng,
    parties: Vec<Party>,
    flows: Vec<FlowState>,
    by_address: HashMap<(EpAddr, HostId, u32), usize>,
    /// Messages still to be begun.
    left: u64,
    /// Messages still to be begun before the next pause.
    burst_left: u64,
    /// A timer will end the pause.
    resting: bool,
    /// Flows that may be able to post.
    ready: Vec<usize>,
    /// Flows the engine had no room for; any completion makes some.
    blocked: Vec<usize>,
    outstanding: usize,
    totals: Totals,
    begun: Nanos,
}

impl Traffic {
    /// The first timer id that is left to whoever disturbs the traffic.
    pub const DISTURB: u64 = 1 << 63;

    /// Sets up flows between every pair of the given hosts, in both directions.
    ///
    /// # Errors
    /// A flow could not be opened.
    pub fn new(world: &mut World, hosts: &[HostId], mix: &Mix, seed: u64) -> Result<Self, Failure> {
        let mut rng = Rng::new(seed ^ 0x7261_6666_6963);
        let parties = hosts
            .iter()
            .map(|&host| Party::new(world, host, mix, &mut rng))
            .collect();
        let mut traffic = Self {
            mix: mix.clone(),
            rng,
            parties,
            flows: Vec::new(),
            by_address: HashMap::new(),
            left: mix.messages,
            burst_left: mix.burst,
            resting: false,
            ready: Vec::new(),
            blocked: Vec::new(),
            outstanding: 0,
            totals: Totals::default(),
            begun: world.now(),
        };
        for from in 0..hosts.len() {
            for to in 0..hosts.len() {
                let wanted = from != to && (mix.both_ways || from < to);
                for nth in 0..if wanted { mix.flows } else { 0 } {
                    traffic.add_flow(world, from, to, nth)?;
                }
            }
        }
        traffic.ready = (0..traffic.flows.len()).collect();
        Ok(traffic)
    }

    fn add_flow(&mut self, world: &mut World, from: usize, to: usize, nth: usize) -> Result<(), Failure> {
        let eps = self.mix.endpoints;
        let source = self.parties[from].endpoints[nth % eps].ep;
        let target = self.parties[to].endpoints[(nth / eps + nth) % eps].ep;
        let flow = world
            .open_flow(source, target)
            .map_err(|e| Failure(format!("cannot open a flow: {e}")))?;
        let max = self.mix.sizes.longest();
        let state = FlowState::new(world, flow, (from, source), (to, target), max, self.rng.fork());
        let pair = (source.addr, target.host, target.index);
        if self.by_address.insert(pair, self.flows.len()).is_some() {
            let (flows, eps) = (self.mix.flows, self.mix.endpoints);
            return Err(Failure(format!(
                "{flows} flows do not each find a pair among {eps} endpoints"
            )));
        }
        self.flows.push(state);
        Ok(())
    }

    /// Runs to the end and checks everything.
    ///
    /// # Errors
    /// The first promise found broken.
    pub fn run(self, world: &mut World) -> Result<Totals, Failure> {
        self.run_disturbed(world, |_, _| ())
    }

    /// The same, while `disturb` does something to the world each time one of its timers goes off. Their ids are
    /// [`Traffic::DISTURB`] and above; the first is to be set before the run.
    ///
    /// # Errors
    /// The first promise found broken.
    pub fn run_disturbed(
        mut self,
        world: &mut World,
        mut disturb: impl FnMut(&mut World, u64),
    ) -> Result<Totals, Failure> {
        self.begun = world.now();
        self.pump(world, &mut disturb)?;
        let mut last = (self.totals.messages, world.now());
        while self.left > 0 || self.outstanding > 0 || self.flows.iter().any(FlowState::owes) {
            if !world.step() {
                return Err(self.stuck(world, "nothing is left to happen"));
            }
            self.pump(world, &mut disturb)?;
            if self.totals.messages != last.0 {
                last = (self.totals.messages, world.now());
            } else if world.now() - last.1 > self.mix.patience {
                return Err(self.stuck(world, "no operation has completed for too long"));
            }
        }
        self.totals.elapsed = world.now() - self.begun;
        // Acknowledgements, late duplicates and fallback timers get time to do damage.
        world.run_for(SEC / 5);
        self.pump(world, &mut |_, _| ())?;
        self.check_end(world)?;
        Ok(self.totals)
    }

    fn stuck(&self, world: &World, why: &str) -> Failure {
        let flows: Vec<String> = self
            .flows
            .iter()
            .enumerate()
            .filter_map(|(i, f)| f.describe(i))
            .take(8)
            .collect();
        Failure(format!(
            "stuck at {} us, {} operations done, {} outstanding, {} not begun: {why}; {}; violations: {:?}",
            world.now() / 1_000,
            self.totals.messages,
            self.outstanding,
            self.left,
            flows.join("; "),
            world.violations()
        ))
    }

    /// Takes completions and posts new work.
    fn pump(&mut self, world: &mut World, disturb: &mut impl FnMut(&mut World, u64)) -> Result<(), Failure> {
        while let Some(timer) = world.next_timer() {
            match timer {
                Self::DISTURB.. => disturb(world, timer),
                WAKE => {
                    self.resting = false;
                    self.burst_left = self.mix.burst;
                    self.ready = (0..self.flows.len()).collect();
                }
                _ => self.post_receives(world, timer),
            }
        }
        // Receives first: work must not complete before its receive is visible.
        for party in 0..self.parties.len() {
            while let Some(received) = world.host(self.parties[party].host).next_received() {
                self.on_received(world, party, &received)?;
            }
        }
        for party in 0..self.parties.len() {
            while let Some(done) = world.host(self.parties[party].host).next_finished() {
                self.on_finished(world, &done)?;
            }
        }
        while let Some(flow) = self.ready.pop() {
            self.fill(world, flow)?;
        }
        if self.burst_left == 0 && self.outstanding == 0 && self.left > 0 && !self.resting {
            self.resting = true;
            world.set_timer(world.now() + self.rng.below(self.mix.pause), WAKE);
        }
        Ok(())
    }

    fn may_begin(&self) -> bool {
        self.left > 0 && self.burst_left > 0
    }

    /// Posts work on a flow until it has its share outstanding.
    fn fill(&mut self, world: &mut World, index: usize) -> Result<(), Failure> {
        while (self.may_begin() || self.flows[index].owes())
            && self.flows[index].outstanding() < self.mix.depth
        {
            let flow = &mut self.flows[index];
            let Some(op) = flow.next_op(&self.mix) else {
                return Ok(());
            };
            let (from, to) = (&self.parties[flow.from], &self.parties[flow.to]);
            let (operation, local) = flow.request(&op, from, to);
            let cookie = (index as u64) << 40 | op.seq;
            match world.post(flow.flow, cookie, operation, local) {
                Ok(()) => {
                    self.parties[flow.to].added += u64::from(op.kind == Kind::FetchAdd);
                    flow.posted(op);
                    self.left = self.left.saturating_sub(1);
                    self.burst_left = self.burst_left.saturating_sub(1);
                    self.outstanding += 1;
                }
                Err(PostError::Full) => {
                    flow.unpost(op);
                    self.blocked.push(index);
                    return Ok(());
                }
                Err(error) => return Err(Failure(format!("flow {index}: post refused: {error}"))),
            }
        }
        Ok(())
    }

    /// Posts the receives whose time has come; `timer` names party and endpoint.
    fn post_receives(&mut self, world: &mut World, timer: u64) {
        let (party, ep) = (
            (timer >> 32) as usize,
            usize::try_from(timer & 0xffff_ffff).unwrap_or(0),
        );
        let max = self.mix.sizes.longest();
        let endpoint = &mut self.parties[party].endpoints[ep];
        for slot in std::mem::take(&mut endpoint.idle) {
            world.post_receive(endpoint.ep, receive_buffer(endpoint.buffers, slot, max), slot);
        }
    }
}

/// The receive buffer number `slot`: 8 bytes longer apart than the longest message, to see an overrun.
fn receive_buffer(buffers: Region, slot: u64, max: u32) -> Buf {
    buffers.at(slot * (u64::from(max) + 8), max)
}

impl Party {
    fn new(world: &mut World, host: HostId, mix: &Mix, rng: &mut Rng) -> Self {
        let seed = rng.next_u64();
        let original = pattern_bytes(seed);
        let pattern = world.memory(
            host,
            original.clone(),
            Access {
                read: true,
                ..Access::LOCAL
            },
        );
        let counter = world.memory(
            host,
            vec![0; 8],
            Access {
                atomic: true,
                ..Access::LOCAL
            },
        );
        let max = mix.sizes.longest();
        let endpoints = (0..mix.endpoints)
            .map(|_| {
                let ep = world.endpoint(host);
                let bytes = mix.receives * (max as usize + 8);
                let buffers = world.memory(host, vec![0; bytes], Access::LOCAL);
                for slot in 0..mix.receives as u64 {
                    world.post_receive(ep, receive_buffer(buffers, slot, max), slot);
                }
                PartyEndpoint {
                    ep,
                    buffers,
                    idle: Vec::new(),
                }
            })
            .collect();
        Self {
            host,
            pattern,
            original,
            endpoints,
            counter,
            seen: Vec::new(),
            added: 0,
        }
    }
}

impl Party {
    /// Part of the pattern.
    fn bytes(&self, at: u64, len: u32) -> &[u8] {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        &self.original[at..at + len as usize]
    }
}

fn pattern_bytes(seed: u64) -> Vec<u8> {
    (0..PATTERN as u64 / 8)
        .flat_map(|i| mix(seed.wrapping_add(i.wrapping_mul(0x9e37_79b9))).to_le_bytes())
        .collect()
}
