//! The bandwidth loop: full windows of messages one way.
//!
//! Message `n` goes out on flow `n % flows`. A flow is an endpoint of the client's; all lead to one of the server's.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use usb4_ring::{Access, AddressHandle, Endpoint, EpAddr, MemoryRegion, Op, Remote, WorkRequest};

use super::check;
use super::protocol::{Operation, Reply, Run};
use super::server::{call, finish};
use super::step::Step;
use crate::session::{Session, size};

/// Messages in flight on a flow.
pub(super) const WINDOW: u64 = 64;

/// Bytes the buffers of a flow's window take at most, so that they stay in cache as an application's would.
const WINDOW_BYTES: u64 = 4 << 20;

/// What one size reached.
pub(super) struct Bandwidth {
    /// Messages.
    pub(super) count: u64,
    /// Bytes.
    pub(super) bytes: u64,
    /// From the first post to the last completion.
    pub(super) time: Duration,
}

/// Buffers of a flow for messages of `size` bytes.
pub(super) fn slots(size: u64) -> u64 {
    (WINDOW_BYTES / size.max(1)).clamp(2, WINDOW)
}

/// One flow of the client's.
struct Flow {
    /// None for the session's own endpoint.
    ep: Option<Endpoint>,
    to: AddressHandle,
    /// Where its buffers begin.
    offset: usize,
    /// Where its writes go and its reads come from.
    remote: Remote,
    /// Number of its next message.
    next: u64,
    posted: u64,
    done: u64,
}

impl Flow {
    fn all(session: &mut Session, peer: EpAddr, run: &Run, reply: &Reply) -> Result<Vec<Self>> {
        let window = size(slots(run.size) * run.size)?;
        (0..run.flows)
            .map(|number| {
                let mut ep = None;
                if number > 0 {
                    ep = Some(session.endpoint()?);
                }
                let to = match &mut ep {
                    Some(ep) => ep.address_handle(&peer)?,
                    None => session.handle(&peer)?,
                };
                Ok(Self {
                    ep,
                    to,
                    offset: usize::from(number) * window,
                    remote: target(reply, run, number),
                    next: number.into(),
                    posted: 0,
                    done: 0,
                })
            })
            .collect()
    }

    /// Posts what its window has room for.
    fn post(&mut self, session: &mut Session, memory: &MemoryRegion, run: &Run) -> Result<()> {
        let (len, slots) = (size(run.size)?, slots(run.size));
        let ep = self.ep.as_mut().unwrap_or(&mut session.ep);
        let before = self.posted;
        while self.next < run.count && self.posted < self.done + slots {
            let offset = self.offset + size(self.posted % slots)? * len;
            if run.op != Operation::Read {
                check::stamp(memory, offset, len, self.next)?;
            }
            let local = memory.buffer(offset, len)?;
            let request = match run.op {
                Operation::Send => WorkRequest::send(self.to, local),
                Operation::Write => WorkRequest::write(self.to, local, self.remote),
                Operation::Read => WorkRequest::read(self.to, local, self.remote),
            };
            ep.post(&request.user_data(self.next))?;
            self.next += u64::from(run.flows);
            self.posted += 1;
        }
        if self.posted != before {
            ep.submit()?;
        }
        Ok(())
    }
}

/// The server's memory that is a flow's.
fn target(reply: &Reply, run: &Run, flow: u8) -> Remote {
    Remote {
        addr: reply.remote.addr + u64::from(flow) * run.size,
        ..reply.remote
    }
}

/// Runs as the client.
///
/// # Errors
///
/// When the peer fails, or bytes arrived wrong.
pub(super) fn client(session: &mut Session, peer: EpAddr, run: &Run, step: Step) -> Result<Bandwidth> {
    let to = session.handle(&peer)?;
    let (len, slots) = (size(run.size)?, slots(run.size));
    let buffers = u64::from(run.flows) * slots;
    let memory = session.device.alloc(len * size(buffers)?, Access::LOCAL)?;
    for slot in 0..buffers {
        check::fill(&memory, size(slot)? * len, len)?;
    }
    let reply = call(session, to, run)?;
    let mut flows = Flow::all(session, peer, run, &reply)?;
    step.ready()?;
    let time = measure(session, &mut flows, &memory, run)?;
    step.done(run.count)?;
    if run.op == Operation::Read {
        let mut scratch = vec![0; len];
        for flow in &flows {
            for slot in 0..slots.min(flow.posted) {
                let offset = flow.offset + size(slot)? * len;
                let good = check::whole(&memory, offset, len, 0, &mut scratch)?;
                ensure!(good, "a read of {len} bytes returned wrong ones");
            }
        }
    }
    let end = finish(session, to)?;
    ensure!(
        end.wrong == 0,
        "{} of {} messages of {len} bytes arrived wrong",
        end.wrong,
        run.count
    );
    Ok(Bandwidth {
        count: run.count,
        bytes: run.count * run.size,
        time,
    })
}

fn measure(session: &mut Session, flows: &mut [Flow], memory: &MemoryRegion, run: &Run) -> Result<Duration> {
    let start = Instant::now();
    for flow in &mut *flows {
        flow.post(session, memory, run)?;
    }
    let mut done = 0;
    while done < run.count {
        // Whatever else has completed meanwhile makes room as well.
        let mut next = Some(session.answer()?);
        while let Some(completion) = next {
            let flow = flows.get_mut(size(completion.user_data % u64::from(run.flows))?);
            flow.context("a completion of nobody's")?.done += 1;
            done += 1;
            next = session.ready()?;
        }
        for flow in &mut *flows {
            flow.post(session, memory, run)?;
        }
    }
    Ok(start.elapsed())
}

/// Receives as the server (SEND only). Flows' messages come in any order, those of one flow one after the other; so
/// receives complete in another order than that in which they were posted, and name their buffer.
///
/// # Errors
///
/// When the client fails.
pub(super) fn absorb(session: &mut Session, memory: &MemoryRegion, run: &Run) -> Result<u64> {
    let (len, slots) = (size(run.size)?, u64::from(run.flows) * slots(run.size));
    let mut scratch = vec![0; len];
    let mut expected: Vec<u64> = (0..run.flows.into()).collect();
    let mut posted = slots.min(run.count);
    let (mut wrong, mut got) = (0, 0);
    while got < run.count {
        let done = session.answer()?;
        if done.op != Op::Receive {
            continue;
        }
        let offset = size(done.user_data)? * len;
        wrong += u64::from(!is_expected(memory, offset, len, &mut expected, &mut scratch)?);
        if posted < run.count {
            session
                .ep
                .post_recv(done.user_data, memory.buffer(offset, len)?)?;
            session.ep.submit()?;
            posted += 1;
        }
        got += 1;
    }
    Ok(wrong)
}

/// Whether a message is the next one of any flow.
fn is_expected(
    memory: &MemoryRegion,
    offset: usize,
    len: usize,
    expected: &mut [u64],
    scratch: &mut [u8],
) -> Result<bool> {
    let flows = expected.len() as u64;
    for number in expected {
        if check::good(memory, offset, len, *number, scratch)? {
            *number += flows;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Looks at what is left of a run's writes: the number of flows the last one of which has left wrong bytes.
///
/// # Errors
///
/// When `memory` is too small.
pub(super) fn wrong_writes(memory: &MemoryRegion, run: &Run) -> Result<u64> {
    let len = size(run.size)?;
    let mut scratch = vec![0; len];
    let mut wrong = 0;
    let flows = u64::from(run.flows);
    for flow in 0..flows.min(run.count) {
        let last = flow + (run.count - 1 - flow) / flows * flows;
        wrong += u64::from(!check::whole(memory, size(flow)? * len, len, last, &mut scratch)?);
    }
    Ok(wrong)
}
