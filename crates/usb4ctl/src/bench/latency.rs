//! The latency loop.
//!
//! SEND and WRITE: half a round trip of a message answered by one of the same size and kind. Who is written to looks at
//! the last bytes of his memory. READ: one operation, to its completion.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use usb4_ring::{Access, AddressHandle, EpAddr, MemoryRegion, Remote, SourceId, WorkRequest};

use super::check;
use super::protocol::{Operation, Reply, Run};
use super::server::{Requests, Seen, call, finish};
use super::step::Step;
use crate::session::{Session, size};

/// Rounds before the clock counts.
const WARM_UP: u64 = 200;

/// Sorted times of one size, in nanoseconds.
pub(super) struct Latency(Vec<u64>);

impl Latency {
    /// The time that `share` of all stayed at or below, in microseconds.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    pub(super) fn percentile(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let index = (last as f64 * share).round() as usize;
        self.0.get(index).map_or(0.0, |ns| *ns as f64 / 1e3)
    }
}

/// What is sent, and behind it where answers come to.
struct Buffers {
    memory: MemoryRegion,
    len: usize,
}

impl Buffers {
    fn new(session: &Session, run: &Run) -> Result<Self> {
        let len = size(run.size)?;
        let access = match run.op {
            Operation::Write => Access::REMOTE_WRITE,
            _ => Access::LOCAL,
        };
        let memory = session.device.alloc(2 * len, access)?;
        check::fill(&memory, 0, 2 * len)?;
        Ok(Self { memory, len })
    }

    fn answer(&self) -> Remote {
        Remote {
            addr: self.memory.addr() + self.len as u64,
            key: self.memory.remote_key(),
        }
    }
}

/// Message `n` of a run has this number: memory begins as that of none.
fn number(n: u64) -> u64 {
    n + 1
}

/// Runs as the client.
///
/// # Errors
///
/// When the peer fails, or bytes are wrong.
pub(super) fn client(session: &mut Session, peer: EpAddr, run: &Run, step: Step) -> Result<Latency> {
    let to = session.handle(&peer)?;
    let buffers = Buffers::new(session, run)?;
    let (memory, len) = (&buffers.memory, buffers.len);
    let mut scratch = vec![0; len];
    let total = Run {
        count: run.count + WARM_UP,
        answer: buffers.answer(),
        ..*run
    };
    let reply = call(session, to, &total)?;
    let mut times = Vec::with_capacity(size(run.count)?);
    for n in 0..total.count {
        if n == WARM_UP {
            step.ready()?;
        }
        check::stamp(memory, 0, len, number(n))?;
        let start = Instant::now();
        round(session, to, &buffers, run.op, &reply, n)?;
        let spent = start.elapsed();
        let expected = match run.op {
            Operation::Read => 0,
            Operation::Send | Operation::Write => number(n),
        };
        let good = check::good(memory, len, len, expected, &mut scratch)?;
        ensure!(good, "round {n} of {len} bytes came back wrong");
        if n >= WARM_UP {
            times.push(nanos(spent) / ways(run.op));
        }
    }
    step.done(ways(run.op) * run.count)?;
    let end = finish(session, to)?;
    ensure!(
        end.wrong == 0,
        "{} messages of {len} bytes arrived wrong",
        end.wrong
    );
    times.sort_unstable();
    Ok(Latency(times))
}

/// Messages of a round.
fn ways(op: Operation) -> u64 {
    match op {
        Operation::Send | Operation::Write => 2,
        Operation::Read => 1,
    }
}

fn round(
    session: &mut Session,
    to: AddressHandle,
    buffers: &Buffers,
    op: Operation,
    reply: &Reply,
    n: u64,
) -> Result<()> {
    let (memory, len) = (&buffers.memory, buffers.len);
    let local = memory.buffer(0, len)?;
    match op {
        Operation::Send => {
            session.ep.post_recv(1, memory.buffer(len, len)?)?;
            session.ep.post(&WorkRequest::send(to, local).unsignaled())?;
        }
        Operation::Write => session
            .ep
            .post(&WorkRequest::write(to, local, reply.remote).unsignaled())?,
        Operation::Read => session
            .ep
            .post(&WorkRequest::read(to, memory.buffer(len, len)?, reply.remote))?,
    }
    session.ep.submit()?;
    match op {
        Operation::Write => session.watch(|| check::ends(memory, len, len, number(n))),
        Operation::Send | Operation::Read => session.answer().map(drop),
    }
}

/// Answers sends as the server. Returns how many arrived wrong.
///
/// # Errors
///
/// When the client fails.
pub(super) fn answer_sends(
    session: &mut Session,
    to: AddressHandle,
    memory: &MemoryRegion,
    run: &Run,
) -> Result<u64> {
    let len = size(run.size)?;
    let mut scratch = vec![0; len];
    let mut wrong = 0;
    for n in 0..run.count {
        session.answer()?;
        // The receive of the next round is posted before the answer lets the client begin it.
        let (here, there) = (size(n % 2)? * len, size((n + 1) % 2)? * len);
        if n + 1 < run.count {
            session.ep.post_recv(1, memory.buffer(there, len)?)?;
        }
        session
            .ep
            .post(&WorkRequest::send(to, memory.buffer(here, len)?).unsignaled())?;
        session.ep.submit()?;
        wrong += u64::from(!check::good(memory, here, len, number(n), &mut scratch)?);
    }
    Ok(wrong)
}

/// Answers writes as the server. What is under their ends is looked at when all is over ([`wrong_write`]). Returns who has
/// asked for another run before that.
///
/// # Errors
///
/// When the client fails.
pub(super) fn answer_writes(
    session: &mut Session,
    requests: &mut Requests,
    to: AddressHandle,
    memory: &MemoryRegion,
    run: &Run,
) -> Result<Option<SourceId>> {
    let len = size(run.size)?;
    for n in 0..run.count {
        match requests.until(session, || check::ends(memory, 0, len, number(n)))? {
            Seen::It => {}
            Seen::Request(source) => return Ok(Some(source)),
            Seen::Nothing => bail!("the client has stopped after {n} of {} writes", run.count),
        }
        check::stamp(memory, len, len, number(n))?;
        let back = WorkRequest::write(to, memory.buffer(len, len)?, run.answer);
        session.ep.post(&back.unsignaled())?;
        session.ep.submit()?;
    }
    Ok(None)
}

/// Looks at what the last write of a run has left: 1 if it is wrong.
///
/// # Errors
///
/// When `memory` is too small.
pub(super) fn wrong_write(memory: &MemoryRegion, run: &Run) -> Result<u64> {
    let len = size(run.size)?;
    let good = check::whole(memory, 0, len, number(run.count - 1), &mut vec![0; len])?;
    Ok(u64::from(!good))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
