//! The serving end, and the client's calls to it.

use std::time::Duration;

use anyhow::{Result, ensure};
use usb4_ring::{Access, AddressHandle, Buffer, MemoryRegion, Op, Remote, Status, WorkRequest};

use super::protocol::{Kind, LEN, Operation, Reply, Run};
use super::{bandwidth, check, latency};
use crate::output::announce;
use crate::session::{Session, message_len, size};

/// How long one end waits for the other before it gives up.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Serves one client after another until interrupted.
///
/// # Errors
///
/// When the device fails.
pub(super) fn serve(mut session: Session) -> Result<()> {
    announce("bench", &session.ep.address())?;
    let mut requests = Requests {
        memory: session.device.alloc(LEN, Access::LOCAL)?,
        posted: false,
    };
    loop {
        requests.post(&mut session)?;
        let done = session.sleep()?;
        // What a run that was broken off has left behind comes back here.
        if done.op != Op::Receive || done.user_data != REQUEST {
            continue;
        }
        requests.posted = false;
        if done.status != Status::Ok {
            continue;
        }
        if let Err(error) = one(&mut session, &mut requests, done.source) {
            eprintln!("usb4ctl bench: {error:#}");
        }
    }
}

/// Names the receive of a request.
const REQUEST: u64 = u64::MAX;

/// Where clients' requests arrive.
struct Requests {
    memory: MemoryRegion,
    /// A receive is posted.
    posted: bool,
}

impl Requests {
    fn post(&mut self, session: &mut Session) -> Result<()> {
        if !self.posted {
            session.ep.post_recv(REQUEST, self.memory.buffer(0, LEN)?)?;
            session.ep.submit()?;
            self.posted = true;
        }
        Ok(())
    }
}

fn one(session: &mut Session, requests: &mut Requests, source: usb4_ring::SourceId) -> Result<()> {
    let mut bytes = [0; LEN];
    requests.memory.read(0, &mut bytes)?;
    let run = Run::decode(&bytes)?;
    let len = size(message_len(&session.device, run.size)?.into())?;
    let Some(client) = session.ep.source(source) else {
        return Ok(());
    };
    let to = session.handle(&client)?;
    let slots = match run.kind {
        Kind::Latency => 2,
        Kind::Bandwidth => bandwidth::slots(run.size),
    };
    let memory = session
        .device
        .alloc(len * size(slots)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    check::fill(&memory, 0, len)?;
    check::stamp(&memory, 0, len, 0)?;
    let receives = match (run.op, run.kind) {
        (Operation::Send, Kind::Latency) => 1,
        (Operation::Send, Kind::Bandwidth) => slots.min(run.count),
        _ => 0,
    };
    for slot in 0..receives {
        session
            .ep
            .post_recv(slot, memory.buffer(size(slot)? * len, len)?)?;
    }
    let remote = Remote {
        addr: memory.addr(),
        key: memory.remote_key(),
    };
    reply(session, to, &Reply { remote, wrong: 0 })?;
    let wrong = match (run.op, run.kind) {
        (Operation::Send, Kind::Latency) => latency::answer(session, to, &memory, &run)?,
        (Operation::Send, Kind::Bandwidth) => bandwidth::absorb(session, &memory, &run)?,
        _ => 0,
    };
    // The client says when it is done, so that the memory stays until then.
    requests.post(session)?;
    while session.next(PATIENCE)?.op != Op::Receive {}
    requests.posted = false;
    let wrong = match run.op {
        Operation::Write => {
            let last = run.count - 1;
            let offset = 0;
            let mut scratch = vec![0; len];
            wrong + u64::from(!check::good(&memory, offset, len, last, &mut scratch)?)
        }
        _ => wrong,
    };
    reply(session, to, &Reply { remote, wrong })
}

fn reply(session: &mut Session, to: AddressHandle, reply: &Reply) -> Result<()> {
    session.ep.post(
        &WorkRequest::send(to, Buffer::EMPTY)
            .prefix(&reply.encode())
            .unsignaled(),
    )?;
    Ok(session.ep.submit()?)
}

/// Asks the server for a run and waits until it is ready.
///
/// # Errors
///
/// When the server does not answer.
pub(super) fn call(session: &mut Session, to: AddressHandle, run: &Run) -> Result<Reply> {
    ask(
        session,
        WorkRequest::send(to, Buffer::EMPTY).prefix(&run.encode()),
    )
}

/// Ends a run; the answer says how many messages arrived wrong.
///
/// # Errors
///
/// When the server does not answer.
pub(super) fn finish(session: &mut Session, to: AddressHandle) -> Result<Reply> {
    ask(session, WorkRequest::send(to, Buffer::EMPTY))
}

fn ask(session: &mut Session, request: WorkRequest) -> Result<Reply> {
    let answer = session.device.alloc(LEN, Access::LOCAL)?;
    session.ep.post_recv(0, answer.buffer(0, LEN)?)?;
    session.ep.post(&request.unsignaled())?;
    session.ep.submit()?;
    let done = session.next(PATIENCE)?;
    ensure!(
        done.op == Op::Receive && size(done.len.into())? == LEN,
        "the other end is no bench server: start `usb4ctl bench --serve` there, of the same version"
    );
    let mut bytes = [0; LEN];
    answer.read(0, &mut bytes)?;
    Reply::decode(&bytes)
}
