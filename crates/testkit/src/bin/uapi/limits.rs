//! What pinned memory and quotas count, and that whoever ends gives all of it back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use usb4_ring_abi::{MAX_DEPTH, uapi};

use crate::Rig;
use crate::acts::{self, Act, Other};
use crate::client::{Client, Map, refused};

const PAGE: u64 = 4096;

/// Memory that is pinned: more than others pin meanwhile.
const PINNED: u64 = 8 << 20;

/// How long what has ended may keep what it had.
const HANG: Duration = Duration::from_secs(10);

/// Pages that are pinned, by anybody (`mm/vmstat.c`).
fn pinned_pages() -> Result<i64> {
    // Has every processor's share counted. Only root may; others see the count up to a second late.
    let _ = std::fs::read("/proc/sys/vm/stat_refresh");
    let text = std::fs::read_to_string("/proc/vmstat")?;
    let count = |name: &str| -> Result<i64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.with_context(|| format!("/proc/vmstat has no {name}"))?;
        Ok(number.trim().parse()?)
    };
    Ok(count("nr_foll_pin_acquired ")? - count("nr_foll_pin_released ")?)
}

/// Bytes this process has pinned, as its limit counts them.
fn pinned_here() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let number = line.and_then(|line| line.trim().strip_suffix("kB"));
    Ok(number.context("no VmPin")?.trim().parse::<u64>()? << 10)
}

/// Waits until no more pages are pinned than `before`.
fn given_back(before: i64) -> Result<()> {
    let start = Instant::now();
    loop {
        let more = pinned_pages()? - before;
        if more <= 0 {
            return Ok(());
        }
        ensure!(start.elapsed() < HANG, "{more} pages more than before are pinned");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Memory of whole pages, there.
fn memory(bytes: u64) -> Result<(Vec<u8>, u64)> {
    let mut memory = vec![1_u8; usize::try_from(bytes + PAGE)?];
    let start = (memory.as_mut_ptr().addr() as u64).next_multiple_of(PAGE);
    Ok((memory, start))
}

pub(crate) fn pinned_memory_has_the_limit_of_its_process(rig: &Rig) -> Result<()> {
    acts::run(rig, Act::PinToTheLimit)
}

pub(crate) fn pin_to_the_limit(rig: &Rig) -> Result<()> {
    const LIMIT: u64 = 1 << 20;
    let (_memory, start) = memory(2 * LIMIT)?;
    let client = Client::open(rig)?;
    let limit = Some(LIMIT);
    let limits = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Memlock, limits)?;
    // Root may pin what it likes.
    client.dereg(client.reg(start, 2 * LIMIT, 0).context("as root")?.local_key)?;
    acts::drop_privilege()?;
    refused(
        "a page too many",
        client.reg(start, LIMIT + PAGE, 0),
        Errno::NOMEM,
    )?;
    ensure!(pinned_here()? == 0, "what was refused counts");
    let most = client.reg(start, LIMIT, 0).context("all it may")?;
    ensure!(
        pinned_here()? == LIMIT,
        "{} of {LIMIT} bytes count",
        pinned_here()?
    );
    refused("another page", client.reg(start, 1, 0), Errno::NOMEM)?;
    let other = Client::open(rig)?;
    refused("of another client", other.reg(start, 1, 0), Errno::NOMEM)?;
    client.dereg(most.local_key)?;
    ensure!(pinned_here()? == 0, "what was deregistered counts");
    other.reg(start, LIMIT, 0).context("given back, all it may")?;
    drop(other);
    ensure!(pinned_here()? == 0, "what went with its descriptor counts");
    Ok(())
}

pub(crate) fn all_clients_of_a_user_have_a_quota_together(rig: &Rig) -> Result<()> {
    acts::run(rig, Act::UseUpTheQuota)
}

pub(crate) fn use_up_the_quota(rig: &Rig) -> Result<()> {
    acts::drop_privilege()?;
    let mut clients = vec![];
    let mut full = None;
    // More than one user may have of 256.
    for _ in 0..256 {
        match Client::try_open(rig) {
            Ok(client) => clients.push(client),
            Err(errno) => {
                full = Some(errno);
                break;
            }
        }
    }
    ensure!(
        full == Some(Errno::NOSPC) && clients.len() <= 64,
        "{full:?} after {} clients",
        clients.len()
    );
    let each = clients.first().context("not one client")?.info()?.max_cqs;
    let mut made = 0_u32;
    let full = 'made: loop {
        for client in &clients {
            match client.cq(1) {
                Ok(_) => made += 1,
                Err(error) => break 'made error,
            }
        }
        ensure!(made < 4 * each, "{made} completion queues, and no end");
    };
    ensure!(
        full == Errno::DQUOT && made >= each && made <= 2 * each,
        "{full:?} after {made} completion queues, of which one client may have {each}"
    );
    drop(clients);
    Client::open(rig)?.cq(1).context("after all of them have gone")?;
    Ok(())
}

pub(crate) fn queue_memory_counts_until_it_is_unmapped(rig: &Rig) -> Result<()> {
    /// More than a process may have of 128 MiB.
    const MOST: usize = 128;
    let client = Client::open(rig)?;
    let destroyed = || -> Result<Map, Errno> {
        let (cq, map) = client.mapped_cq(65536)?;
        client.destroy(uapi::IOC_DESTROY_CQ, cq)?;
        Ok(map)
    };
    let mut maps = vec![];
    let full = loop {
        match destroyed() {
            Ok(map) => maps.push(map),
            Err(errno) => break errno,
        }
        ensure!(
            maps.len() < MOST,
            "{MOST} destroyed queues are mapped, and no end"
        );
    };
    ensure!(
        full == Errno::DQUOT,
        "{full:?} after {} destroyed queues that are mapped",
        maps.len()
    );
    let last = maps.pop().context("not one queue")?;
    last.split()?;
    refused(
        "beside the ends of one whose middle was unmapped",
        destroyed().map(drop),
        Errno::DQUOT,
    )?;
    drop(last);
    maps.push(destroyed().context("in the place of one that was unmapped")?);
    drop(maps);
    drop(destroyed().context("after all were unmapped")?);
    Ok(())
}

pub(crate) fn room_for_address_handles_counts(rig: &Rig) -> Result<()> {
    /// With as many handles as there may be, endpoints that take more than a process may have of 128 MiB.
    const MOST: usize = 64;
    let client = Client::open(rig)?;
    let cq = client.cq(8)?.cq;
    let large = || -> Result<u32, Errno> {
        let mut ep = uapi::CreateEp {
            send_cq: cq,
            recv_cq: cq,
            sq_depth: 8,
            rq_depth: 8,
            max_ahs: MAX_DEPTH,
            ..uapi::CreateEp::new()
        };
        client.call(uapi::IOC_CREATE_EP, &mut ep)?;
        Ok(ep.ep)
    };
    let mut eps = vec![];
    let full = loop {
        match large() {
            Ok(ep) => eps.push(ep),
            Err(errno) => break errno,
        }
        ensure!(
            eps.len() < MOST,
            "{MOST} endpoints with room for {MAX_DEPTH} handles, and no end"
        );
    };
    ensure!(full == Errno::DQUOT, "{full:?} after {} endpoints", eps.len());
    let last = eps.pop().context("not one endpoint")?;
    client.destroy(uapi::IOC_DESTROY_EP, last)?;
    large().context("in the place of one that was destroyed")?;
    Ok(())
}

pub(crate) fn who_may_exceed_a_user_s_quota_counts_all_the_same(rig: &Rig) -> Result<()> {
    let mut clients = vec![];
    // As many as one may have, of as many as make up a user's quota, and more.
    for _ in 0..3 {
        let client = Client::open(rig)?;
        for _ in 0..client.info()?.max_cqs {
            client.cq(1).context("as root, who may exceed it")?;
        }
        clients.push(client);
    }
    acts::run(rig, Act::BeRefusedAQueue)
}

/// Of the same user, without the right to exceed quotas.
pub(crate) fn be_refused_a_queue(rig: &Rig) -> Result<()> {
    acts::drop_privilege()?;
    refused("another queue", Client::open(rig)?.cq(1), Errno::DQUOT)
}

pub(crate) fn a_process_that_becomes_another_keeps_nothing_pinned(rig: &Rig) -> Result<()> {
    let before = pinned_pages()?;
    let mut other = Other::start(rig, Act::PinAndExec)?;
    other.hear("pinned")?;
    let held = pinned_pages()? - before;
    ensure!(held >= i64::try_from(PINNED / PAGE)?, "{held} pages are pinned");
    other.tell()?;
    other.hear("waiting")?;
    given_back(before).context("with the descriptor open in what it has become")?;
    other.kill()?;
    given_back(before)
}

/// Pins, and becomes another program with the descriptor open.
pub(crate) fn pin_and_exec(rig: &Rig) -> Result<()> {
    let (_memory, start) = memory(PINNED)?;
    let client = Client::open(rig)?;
    client.share()?;
    client.reg(start, PINNED, uapi::ACCESS_REMOTE_WRITE)?;
    acts::wait("pinned")?;
    acts::become_another(rig, Act::Wait)
}

pub(crate) fn a_process_that_dies_keeps_nothing_pinned(rig: &Rig) -> Result<()> {
    let before = pinned_pages()?;
    let mut other = Other::start(rig, Act::PinAndFork)?;
    other.hear("pinned")?;
    let held = pinned_pages()? - before;
    ensure!(held >= i64::try_from(PINNED / PAGE)?, "{held} pages are pinned");
    other.kill()?;
    given_back(before).context("with the descriptor open in a child")
}

/// Pins, and leaves a child with the descriptor, which ends when its input does.
pub(crate) fn pin_and_fork(rig: &Rig) -> Result<()> {
    let (_memory, start) = memory(PINNED)?;
    let client = Client::open(rig)?;
    client.reg(start, PINNED, uapi::ACCESS_REMOTE_WRITE)?;
    // SAFETY: there is one thread; the child makes two calls that only touch its stack.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: room for one byte; ends the child at once.
        unsafe {
            libc::read(0, (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    if child < 0 {
        bail!("fork: {}", std::io::Error::last_os_error());
    }
    acts::wait("pinned")
}

/// Says by how much its memory cgroup's charge grows with queues, and what these are.
pub(crate) fn charge(rig: &Rig) -> Result<()> {
    let place = std::fs::read_to_string("/proc/self/cgroup")?;
    let place = place.lines().find_map(|line| line.strip_prefix("0::"));
    let path = format!("/sys/fs/cgroup{}/memory.current", place.context("no cgroup")?);
    let current = || -> Result<u64> {
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        Ok(text.trim().parse()?)
    };
    let client = Client::open(rig)?;
    let before = current()?;
    let mut bytes = 0;
    for _ in 0..8 {
        bytes += client.cq(65536)?.bytes;
    }
    println!("{bytes} {}", current()?.saturating_sub(before));
    Ok(())
}
