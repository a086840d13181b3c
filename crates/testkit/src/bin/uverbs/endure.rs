//! A client that reads back what it writes, without end; when its queue pair is lost it says how, and connects another.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use usb4_ring_abi::{CqeStatus, Op};

use crate::party::{BUFFER, Completion, Party, Place, Request};
use crate::peer::Peer;
use crate::states::{ERR, Kind};
use crate::traffic;

/// Bytes of each write and read: some frames.
const LEN: u32 = 16384;

/// Where the peer has what is written, and this side what is read.
const INBOX: u64 = BUFFER as u64 / 2;

/// Where the peer counts exchanges.
const COUNTER: u64 = 1 << 20;

/// How long a peer may be away.
const AWAY: Duration = Duration::from_secs(120);

/// How long a peer that is there may take to notice that the link is lost.
const NOTICED: Duration = Duration::from_secs(20);

/// Writes, reads back and counts, until it is ended. Says `moving` with every queue pair it has connected, and `lost` with
/// the statuses of what was outstanding when that failed.
///
/// # Errors
/// A byte was wrong, the peer counted wrong, a loss did not look like one, or nothing could be connected for [`AWAY`].
pub(crate) fn run(device: &str, address: &str) -> Result<()> {
    let mut seed = 0;
    loop {
        let (mut me, mut peer, place) = join(device, address)?;
        say("moving")?;
        let mut counted = 0;
        let lost = loop {
            seed += 1;
            match exchange(&mut me, &place, seed, counted)? {
                Ok(()) => counted += 1,
                Err(lost) => break lost,
            }
        };
        looks_lost(&me, &lost)?;
        let statuses: Vec<String> = lost.iter().map(status).collect();
        say(&format!("lost {} after {counted} exchanges", statuses.join(" ")))?;
        has_seen_it(&mut peer)?;
    }
}

/// If the peer is there still, its queue pair sees the same: later than this side, perhaps, as each host has to notice that by
/// itself.
fn has_seen_it(peer: &mut Peer) -> Result<()> {
    let start = Instant::now();
    while let Ok(state) = peer.number(&Request::State) {
        if state == u64::from(ERR) {
            break;
        }
        ensure!(
            start.elapsed() < NOTICED,
            "the peer's queue pair is still in state {state}"
        );
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Connects new queue pairs as soon as there is a peer and a way to it.
fn join(device: &str, address: &str) -> Result<(Party, Peer, Place)> {
    let start = Instant::now();
    loop {
        match try_join(device, address) {
            Ok(joined) => return Ok(joined),
            Err(error) if start.elapsed() > AWAY => return Err(error).context("no way to the peer"),
            // Nobody tells when link, module or process of the other side are back.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn try_join(device: &str, address: &str) -> Result<(Party, Peer, Place)> {
    let (mut me, mut peer) = (Party::new(device)?, Peer::connect(address)?);
    let place = traffic::join(&mut me, &mut peer, Kind::Rc)?;
    let at = usize::try_from(COUNTER)?;
    peer.done(&Request::SetWord { at, value: 0 })?;
    // The first exchange: both ends may have been connected to what has just gone.
    match exchange(&mut me, &place, 0, 0)? {
        Ok(()) => {}
        Err(lost) => bail!("{lost:?}"),
    }
    peer.done(&Request::SetWord { at, value: 0 })?;
    Ok((me, peer, place))
}

/// A write, a read of what was written, and a count, all outstanding at a time. The inner error is the completions, if any of
/// them failed.
fn exchange(me: &mut Party, place: &Place, seed: u64, counted: u64) -> Result<Result<(), Vec<Completion>>> {
    let len = LEN as usize;
    me.buffer.fill(0, len, seed);
    let write = me.remote(Op::Write, 0, LEN, place, INBOX);
    me.post(&write)?;
    let read = me.remote(Op::Read, INBOX, LEN, place, INBOX);
    me.post(&read)?;
    let mut count = me.remote(Op::FetchAdd, COUNTER, 8, place, COUNTER);
    let [_, _, addend, _] = &mut count.args;
    *addend = 1;
    me.post(&count)?;
    let mut completions = vec![];
    for _ in 0..3 {
        completions.push(me.wait()?);
    }
    if completions
        .iter()
        .any(|completion| status_of(completion) != Some(CqeStatus::Ok))
    {
        return Ok(Err(completions));
    }
    let at = usize::try_from(INBOX)?;
    if let Some(byte) = me.buffer.differs(at, len, seed) {
        bail!("exchange {seed}: byte {byte} of {len} is wrong");
    }
    let found = me.word(usize::try_from(COUNTER)?)?;
    ensure!(found == counted, "the peer has counted {found}, not {counted}");
    Ok(Ok(()))
}

fn status_of(completion: &Completion) -> Option<CqeStatus> {
    CqeStatus::from_code(completion.status)
}

fn status(completion: &Completion) -> String {
    status_of(completion).map_or_else(|| completion.status.to_string(), |status| format!("{status:?}"))
}

/// What is outstanding on a reliable connection that is lost: some of it was done; the next was tried in vain, in a way that a
/// provider calls `IBV_WC_RETRY_EXC_ERR`, or was flushed if the queue pair was told first; what follows is flushed. The queue
/// pair is in error.
fn looks_lost(me: &Party, lost: &[Completion]) -> Result<()> {
    let mut statuses = lost
        .iter()
        .map(status_of)
        .skip_while(|found| *found == Some(CqeStatus::Ok));
    let first = statuses.next().flatten();
    ensure!(
        matches!(
            first,
            Some(CqeStatus::RetryExceeded | CqeStatus::LinkDown | CqeStatus::Flushed)
        ),
        "a lost queue pair's work ends with {lost:?}"
    );
    ensure!(
        statuses.all(|found| found == Some(CqeStatus::Flushed)),
        "what follows a lost request is not flushed: {lost:?}"
    );
    // It may be that the device has gone as well.
    if let Ok(state) = me.state() {
        ensure!(state == ERR, "a lost queue pair is in state {state}");
    }
    Ok(())
}
