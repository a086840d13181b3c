//! The bandwidth loop: a full window of messages one way.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use usb4_ring::{Access, EpAddr, MemoryRegion, Op, WorkRequest};

use super::check;
use super::protocol::{Operation, Run};
use super::server::{call, finish};
use crate::session::{Session, size};

/// Messages in flight.
pub(super) const WINDOW: u64 = 64;

/// Bytes the window's buffers take at most, so that they stay in cache as an application's would.
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

/// Buffers in use for messages of `size` bytes.
pub(super) fn slots(size: u64) -> u64 {
    (WINDOW_BYTES / size.max(1)).clamp(2, WINDOW)
}

/// Runs as the client.
///
/// # Errors
///
/// When the peer fails, or bytes arrived wrong.
pub(super) fn client(session: &mut Session, peer: EpAddr, run: &Run) -> Result<Bandwidth> {
    let to = session.handle(&peer)?;
    let (len, slots) = (size(run.size)?, slots(run.size));
    let memory = session.device.alloc(len * size(slots)?, Access::LOCAL)?;
    for slot in 0..slots {
        check::fill(&memory, size(slot)? * len, len)?;
    }
    let reply = call(session, to, run)?;
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < run.count {
        let mut any = false;
        while posted < run.count && posted < done + slots {
            let offset = size(posted % slots)? * len;
            if run.op != Operation::Read {
                check::stamp(&memory, offset, len, posted)?;
            }
            let local = memory.buffer(offset, len)?;
            let request = match run.op {
                Operation::Send => WorkRequest::send(to, local),
                Operation::Write => WorkRequest::write(to, local, reply.remote),
                Operation::Read => WorkRequest::read(to, local, reply.remote),
            };
            session.ep.post(&request)?;
            posted += 1;
            any = true;
        }
        if any {
            session.ep.submit()?;
        }
        session.answer()?;
        done += 1;
    }
    let time = start.elapsed();
    if run.op == Operation::Read {
        let mut scratch = vec![0; len];
        for slot in 0..slots.min(run.count) {
            let good = check::good(&memory, size(slot)? * len, len, 0, &mut scratch)?;
            ensure!(good, "a read of {len} bytes returned wrong ones");
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

/// Receives as the server (SEND only).
///
/// # Errors
///
/// When the client fails.
pub(super) fn absorb(session: &mut Session, memory: &MemoryRegion, run: &Run) -> Result<u64> {
    let (len, slots) = (size(run.size)?, slots(run.size));
    let mut scratch = vec![0; len];
    let mut posted = slots.min(run.count);
    let (mut wrong, mut got) = (0, 0);
    while got < run.count {
        if session.answer()?.op != Op::Receive {
            continue;
        }
        let offset = size(got % slots)? * len;
        wrong += u64::from(!check::good(memory, offset, len, got, &mut scratch)?);
        if posted < run.count {
            session.ep.post_recv(got, memory.buffer(offset, len)?)?;
            session.ep.submit()?;
            posted += 1;
        }
        got += 1;
    }
    Ok(wrong)
}
