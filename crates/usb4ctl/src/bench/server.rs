//! The serving end, and the client's calls to it.

use std::time::Instant;

use anyhow::{Result, ensure};
use usb4_ring::{
    Access, AddressHandle, Buffer, Completion, MemoryRegion, Op, Remote, SourceId, Status, WorkRequest,
};

use super::protocol::{Kind, Operation, REPLY, RUN, Reply, Run};
use super::{bandwidth, check, latency};
use crate::output::{announce, remark};
use crate::session::{ALONE, Session, message_len, size};

/// Serves one client after another until interrupted.
///
/// # Errors
///
/// When the device fails.
pub(super) fn serve(mut session: Session) -> Result<()> {
    let mut requests = Requests {
        memory: session.device.alloc(RUN, Access::LOCAL)?,
        posted: false,
    };
    announce("bench", &session.ep.address())?;
    let mut next = None;
    loop {
        let source = match next.take() {
            Some(source) => source,
            None => requests.wait(&mut session)?,
        };
        match one(&mut session, &mut requests, source) {
            Ok(another) => next = another,
            Err(error) => remark(format_args!("usb4ctl bench: {error:#}")),
        }
    }
}

/// Names the receive of a request.
const REQUEST: u64 = u64::MAX;

/// What [`Requests::until`] has come upon.
pub(super) enum Seen {
    /// What was waited for.
    It,
    Request(SourceId),
    Nothing,
}

/// Where clients' requests arrive.
pub(super) struct Requests {
    memory: MemoryRegion,
    /// A receive is posted.
    posted: bool,
}

impl Requests {
    fn post(&mut self, session: &mut Session) -> Result<()> {
        if !self.posted {
            session.ep.post_recv(REQUEST, self.memory.buffer(0, RUN)?)?;
            session.ep.submit()?;
            self.posted = true;
        }
        Ok(())
    }

    /// Polls until there is one, for the sake of what the client does meanwhile; but not for ever: it may have gone.
    fn watch(&mut self, session: &mut Session) -> Result<SourceId> {
        match self.until(session, || Ok(false))? {
            Seen::Request(source) => Ok(source),
            Seen::It | Seen::Nothing => self.wait(session),
        }
    }

    /// Polls until memory shows what is waited for, or there is a request, or nothing moves any more.
    pub(super) fn until(
        &mut self,
        session: &mut Session,
        mut seen: impl FnMut() -> Result<bool>,
    ) -> Result<Seen> {
        self.post(session)?;
        let mut moved = Instant::now();
        while moved.elapsed() < session.patience {
            if seen()? {
                return Ok(Seen::It);
            }
            if session.device.progress() {
                moved = Instant::now();
            } else if moved.elapsed() > ALONE {
                std::thread::yield_now();
            }
            if let Some(source) = session.take().and_then(|done| self.take(&done)) {
                return Ok(Seen::Request(source));
            }
        }
        Ok(Seen::Nothing)
    }

    /// Sleeps until there is one, and says whose.
    fn wait(&mut self, session: &mut Session) -> Result<SourceId> {
        loop {
            self.post(session)?;
            let done = session.sleep()?;
            if let Some(source) = self.take(&done) {
                return Ok(source);
            }
        }
    }

    /// Who has sent the request that has come with this, if one has.
    fn take(&mut self, done: &Completion) -> Option<SourceId> {
        // What a run that was broken off has left behind comes back here.
        if done.op != Op::Receive || done.user_data != REQUEST {
            return None;
        }
        self.posted = false;
        (done.status == Status::Ok).then_some(done.source)
    }
}

/// One run. Returns who has asked for another one before this one was over: its client has gone.
fn one(session: &mut Session, requests: &mut Requests, source: SourceId) -> Result<Option<SourceId>> {
    let mut bytes = [0; RUN];
    requests.memory.read(0, &mut bytes)?;
    let run = Run::decode(&bytes)?;
    let len = size(message_len(&session.device, run.size)?.into())?;
    let Some(client) = session.ep.source(source) else {
        return Ok(None);
    };
    let to = session.handle(&client)?;
    let slots = match run.kind {
        Kind::Latency => 2,
        Kind::Bandwidth => u64::from(run.flows) * bandwidth::slots(run.size),
    };
    let memory = session
        .device
        .alloc(len * size(slots)?, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    for slot in 0..slots {
        check::fill(&memory, size(slot)? * len, len)?;
        check::stamp(&memory, size(slot)? * len, len, 0)?;
    }
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
        (Operation::Send, Kind::Latency) => latency::answer_sends(session, to, &memory, &run)?,
        (Operation::Write, Kind::Latency) => {
            let another = latency::answer_writes(session, requests, to, &memory, &run)?;
            if another.is_some() {
                return Ok(another);
            }
            0
        }
        (Operation::Send, Kind::Bandwidth) => bandwidth::absorb(session, &memory, &run)?,
        _ => 0,
    };
    // The client says when it is done, so that the memory stays until then, however long it writes or reads.
    let asked = requests.watch(session)?;
    if asked != source {
        return Ok(Some(asked));
    }
    let wrong = match (run.op, run.kind) {
        (Operation::Write, Kind::Latency) => latency::wrong_write(&memory, &run)?,
        (Operation::Write, Kind::Bandwidth) => bandwidth::wrong_writes(&memory, &run)?,
        _ => wrong,
    };
    reply(session, to, &Reply { remote, wrong })?;
    Ok(None)
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
    let request = session.device.alloc(RUN, Access::LOCAL)?;
    request.write(0, &run.encode())?;
    ask(session, WorkRequest::send(to, request.buffer(0, RUN)?))
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
    let answer = session.device.alloc(REPLY, Access::LOCAL)?;
    session.ep.post_recv(0, answer.buffer(0, REPLY)?)?;
    session.ep.post(&request.unsignaled())?;
    session.ep.submit()?;
    let done = session.answer()?;
    ensure!(
        done.op == Op::Receive && size(done.len.into())? == REPLY,
        "the other end is no bench server: start `usb4ctl bench --serve` there, of the same version"
    );
    let mut bytes = [0; REPLY];
    answer.read(0, &mut bytes)?;
    Reply::decode(&bytes)
}
