//! All the memory of queues that one user may have, and that others do not miss it.
//!
//! It is more than most guests have: no check of the list, but an act, `usb4-uapi --act exhaust-queue-memory`, for root.

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use usb4_ring_abi::{MAX_DEPTH, uapi};

use crate::Rig;
use crate::acts::{self, Act, Other, User};
use crate::client::Client;
use crate::hostile::{greet_itself, loner};

/// Of a process, and of a user (docs/kmod.md, "Quotas").
const OF_A_PROCESS: u64 = 128 << 20;
const OF_A_USER: u64 = 1 << 30;

/// Clients one user may have.
const CLIENTS: usize = 64;

const GREEDY: User = User(4242);
const MODEST: User = User(4243);

/// One user takes all it may have; others, there before or not, do as ever.
pub(crate) fn exhaust(rig: &Rig) -> Result<()> {
    let mut neighbour = loner(rig)?;
    greet_itself(&mut neighbour)?;
    let mut greedy = Other::start_as(GREEDY, rig, Act::TakeQueueMemory)?;
    greedy.hear("full")?;
    acts::run_as(GREEDY, rig, Act::BeRefusedAQueue).context("another process of that user")?;
    acts::run_as(MODEST, rig, Act::GreetItself).context("another user")?;
    greet_itself(&mut neighbour).context("who was there before")?;
    greedy.tell()?;
    greedy.hear("full").context("after all was closed")?;
    greedy.kill()?;
    acts::run_as(GREEDY, rig, Act::GreetItself).context("after its death")?;
    println!(
        "{} MiB of queues taken twice, then refused; two other users send and receive",
        OF_A_USER >> 20
    );
    Ok(())
}

/// Takes all it may have, twice.
pub(crate) fn take_all(rig: &Rig) -> Result<()> {
    for _ in 0..2 {
        let clients = all(rig)?;
        acts::wait("full")?;
        drop(clients);
    }
    Ok(())
}

/// Is as others are.
pub(crate) fn greet(rig: &Rig) -> Result<()> {
    greet_itself(&mut loner(rig)?)
}

/// As many clients as it takes to have all the memory that a user may have.
fn all(rig: &Rig) -> Result<Vec<Client>> {
    let mut clients = vec![];
    let mut total = 0;
    loop {
        let client = Client::open(rig)?;
        let bytes = fill(&client)?;
        ensure!(bytes <= OF_A_PROCESS, "one client has {bytes} bytes of queues");
        total += bytes;
        if bytes == 0 {
            break;
        }
        clients.push(client);
        ensure!(clients.len() < CLIENTS, "{total} bytes of queues, and no end");
    }
    // There is no room for the smallest queue. Part of it may be what else counts of endpoints.
    ensure!(
        total <= OF_A_USER && total > OF_A_USER - OF_A_USER / 64,
        "{total} bytes of queues in {} clients, then refused",
        clients.len()
    );
    Ok(clients)
}

/// Makes queues until there is no room for the smallest; returns their bytes.
fn fill(client: &Client) -> Result<u64> {
    let Some(cq) = quota(client.cq(1))? else {
        return Ok(0);
    };
    let mut bytes = cq.bytes;
    for depth in (0..=MAX_DEPTH.ilog2()).rev().map(|bits| 1 << bits) {
        while let Some(ep) = quota(client.ep_of(uapi::EP_DATAGRAM, cq.cq, depth))? {
            bytes += ep.sq_bytes + ep.rq_bytes;
        }
    }
    while let Some(cq) = quota(client.cq(1))? {
        bytes += cq.bytes;
    }
    Ok(bytes)
}

/// What was made, if the quota allowed it. Any other error is one.
fn quota<T>(made: Result<T, Errno>) -> Result<Option<T>> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(Errno::DQUOT) => Ok(None),
        Err(errno) => Err(errno).context("a queue"),
    }
}
