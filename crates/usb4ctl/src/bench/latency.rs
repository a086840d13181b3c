//! The latency loop.
//!
//! SEND: half a round trip of a message answered by one of the same size. WRITE and READ: one operation, to its
//! completion (a WRITE's includes the acknowledgement that its bytes are in place).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use usb4_ring::{Access, AddressHandle, EpAddr, MemoryRegion, WorkRequest};

use super::check;
use super::protocol::{Operation, Reply, Run};
use super::server::call;
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

/// Runs as the client.
///
/// # Errors
///
/// When the peer fails, or bytes are wrong.
pub(super) fn client(session: &mut Session, peer: EpAddr, run: &Run) -> Result<Latency> {
    let to = session.handle(&peer)?;
    let len = size(run.size)?;
    let memory = session.device.alloc(2 * len, Access::LOCAL)?;
    let mut scratch = vec![0; len];
    check::fill(&memory, 0, len)?;
    let total = Run {
        count: run.count + WARM_UP,
        ..*run
    };
    let reply = call(session, to, &total)?;
    let mut times = Vec::with_capacity(size(run.count)?);
    for n in 0..total.count {
        check::stamp(&memory, 0, len, n)?;
        let start = Instant::now();
        round(session, to, &memory, len, run.op, &reply)?;
        let spent = start.elapsed();
        let number = match run.op {
            Operation::Send => Some(n),
            Operation::Read => Some(0),
            Operation::Write => None,
        };
        if let Some(number) = number {
            let good = check::good(&memory, len, len, number, &mut scratch)?;
            ensure!(good, "round {n} of {len} bytes came back wrong");
        }
        if n >= WARM_UP {
            times.push(nanos(spent) / if run.op == Operation::Send { 2 } else { 1 });
        }
    }
    let end = super::server::finish(session, to)?;
    ensure!(
        end.wrong == 0,
        "{} messages of {len} bytes arrived wrong",
        end.wrong
    );
    times.sort_unstable();
    Ok(Latency(times))
}

fn round(
    session: &mut Session,
    to: AddressHandle,
    memory: &MemoryRegion,
    len: usize,
    op: Operation,
    reply: &Reply,
) -> Result<()> {
    let local = memory.buffer(0, len)?;
    match op {
        Operation::Send => {
            session.ep.post_recv(1, memory.buffer(len, len)?)?;
            session.ep.post(&WorkRequest::send(to, local).unsignaled())?;
        }
        Operation::Write => session.ep.post(&WorkRequest::write(to, local, reply.remote))?,
        Operation::Read => session
            .ep
            .post(&WorkRequest::read(to, memory.buffer(len, len)?, reply.remote))?,
    }
    session.ep.submit()?;
    session.answer()?;
    Ok(())
}

/// Answers as the server (SEND only; writes and reads need no help).
///
/// # Errors
///
/// When the client fails.
pub(super) fn answer(
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
        wrong += u64::from(!check::good(memory, here, len, n, &mut scratch)?);
    }
    Ok(wrong)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
