//! One flow between two hosts with memory at both ends: what most tests need.

use crate::apps::{Buf, Flow};
use crate::host::Endpoint;
use crate::memory::{Access, Region};
use crate::profile::SEC;
use crate::rng::mix;
use crate::traffic::Failure;
use crate::world::{HostId, LinkId, World};
use std::sync::OnceLock;
use usb4_engine::{Nanos, OpenError, Status};

/// Messages that may be outstanding at once.
const DEPTH: usize = 64;

/// Longest message of a line.
const LONGEST: u32 = 1 << 20;

/// A flow, its endpoints and memory. Message number `n` is the part of `source` that begins at byte `n % 4096`.
#[derive(Clone, Debug)]
pub struct Line {
    /// The flow.
    pub flow: Flow,
    /// Where it begins.
    pub from: Endpoint,
    /// Where it ends.
    pub to: Endpoint,
    /// The sender's memory: random bytes.
    pub source: Region,
    /// The receiver's memory, open to reads, writes and atomics.
    pub target: Region,
    sent: u64,
}

impl Line {
    /// Over the link the two hosts have.
    ///
    /// # Errors
    /// There is none.
    pub fn new(world: &mut World, from: HostId, to: HostId) -> Result<Self, OpenError> {
        let link = world.link_between(from, to).ok_or(OpenError::Down)?;
        Self::over(world, link, from, to)
    }

    /// Over a particular link.
    ///
    /// # Errors
    /// The link is down.
    pub fn over(world: &mut World, link: LinkId, from: HostId, to: HostId) -> Result<Self, OpenError> {
        let source = world.memory(from, random_bytes().to_vec(), Access::ALL);
        let target = world.memory(to, vec![0; LONGEST as usize], Access::ALL);
        let (from, to) = (world.endpoint(from), world.endpoint(to));
        let flow = world.open_flow_on(link, from, to)?;
        Ok(Self {
            flow,
            from,
            to,
            source,
            target,
            sent: 0,
        })
    }

    /// Posts a receive and the next message for it, without waiting.
    ///
    /// # Errors
    /// The engine does not take it.
    pub fn post(&mut self, world: &mut World, len: u32) -> Result<(), Failure> {
        let slot = self.slot(self.sent, len);
        world.post_receive(self.to, slot, self.sent);
        let message = self.message(self.sent, len);
        world
            .send(self.flow, self.sent, message)
            .map_err(|e| Failure(format!("message {}: {e}", self.sent)))?;
        self.sent += 1;
        Ok(())
    }

    /// Sends messages and waits until all have arrived, in order and intact, and the sender knows. Returns when each
    /// was received and then when its sender was told, counted from the first post.
    ///
    /// # Errors
    /// Something is lost, repeated, out of order, broken, or not there within `budget`.
    pub fn deliver(
        &mut self,
        world: &mut World,
        messages: u64,
        len: u32,
        budget: Nanos,
    ) -> Result<Vec<Nanos>, Failure> {
        let begun = world.now();
        let first = self.sent;
        let (mut received, mut told) = (Vec::new(), Vec::new());
        let mut failure = None;
        let all = usize::try_from(messages).unwrap_or(usize::MAX);
        let waited = world.run_until(budget, |world| {
            let step = self.deliver_step(world, (first, messages, len), &mut received, &mut told, begun);
            failure = step.err();
            failure.is_some() || (received.len() == all && told.len() == all)
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        waited.map_err(|late| {
            Failure(format!(
                "{} of {all} received, {} told: {late}",
                received.len(),
                told.len()
            ))
        })?;
        received.append(&mut told);
        Ok(received)
    }

    fn deliver_step(
        &mut self,
        world: &mut World,
        (first, messages, len): (u64, u64, u32),
        received: &mut Vec<Nanos>,
        told: &mut Vec<Nanos>,
        begun: Nanos,
    ) -> Result<(), Failure> {
        while self.sent < first + messages && self.sent - first - (told.len() as u64) < self.depth(len) {
            self.post(world, len)?;
        }
        while let Some(got) = world.host(self.to.host).next_received() {
            if got.ep != self.to.index {
                continue;
            }
            let expected = first + received.len() as u64;
            self.check(world, expected, len, got.done.cookie, got.done.status)?;
            received.push(world.now() - begun);
        }
        while let Some(done) = world.host(self.from.host).next_finished() {
            let expected = first + told.len() as u64;
            if (done.cookie, done.status) != (expected, Status::Ok) {
                return Err(Failure(format!("{done:?} instead of message {expected}")));
            }
            told.push(world.now() - begun);
        }
        Ok(())
    }

    fn check(
        &self,
        world: &World,
        expected: u64,
        len: u32,
        cookie: u64,
        status: Status,
    ) -> Result<(), Failure> {
        let (message, slot) = (self.message(expected, len), self.slot(expected, len));
        let bytes = world
            .host(self.from.host)
            .region(self.source, |source| part(source, message).to_vec());
        let equal = world
            .host(self.to.host)
            .region(self.target, |target| part(target, slot) == bytes);
        if (cookie, status, equal) == (expected, Status::Ok, true) {
            return Ok(());
        }
        Err(Failure(format!(
            "{status:?} for receive {cookie} instead of message {expected}, bytes equal: {equal}"
        )))
    }

    /// How the oldest piece of work ends.
    ///
    /// # Errors
    /// It does not end within `budget`.
    pub fn outcome(&self, world: &mut World, budget: Nanos) -> Result<Status, Failure> {
        let mut ended = None;
        let waited = world.run_until(budget, |world| {
            ended = world.host(self.from.host).next_finished();
            ended.is_some()
        });
        waited.map_err(|late| Failure(format!("the work does not end: {late}")))?;
        Ok(ended.map_or(Status::Flushed, |done| done.status))
    }

    /// Delivers a few messages, to see that all is well.
    ///
    /// # Errors
    /// It is not.
    pub fn works(&mut self, world: &mut World) -> Result<(), Failure> {
        self.deliver(world, 20, 5000, SEC).map(|_| ())
    }

    fn depth(&self, len: u32) -> u64 {
        (u64::from(LONGEST) / u64::from(len.max(1))).clamp(1, DEPTH as u64)
    }

    fn message(&self, number: u64, len: u32) -> Buf {
        self.source.at(number % 4096, len)
    }

    fn slot(&self, number: u64, len: u32) -> Buf {
        self.target.at(number % self.depth(len) * u64::from(len), len)
    }
}

fn part(bytes: &[u8], buf: Buf) -> &[u8] {
    let at = usize::try_from(buf.offset).unwrap_or(usize::MAX);
    &bytes[at..at + buf.len as usize]
}

/// What every line's source holds; made once.
fn random_bytes() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        (0..u64::from(LONGEST + 4096) / 8)
            .flat_map(|word| mix(word).to_le_bytes())
            .collect()
    })
}
