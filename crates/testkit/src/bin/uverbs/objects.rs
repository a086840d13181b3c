//! What the device says of itself, what it refuses, and what a context's own descriptor is good for.

use std::fs;
use std::os::fd::AsRawFd;

use anyhow::{Context as _, Result, ensure};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use usb4_ring_abi::{ABI_VERSION, MAX_INLINE, MAX_PIECES, uapi};

use crate::command::{Command, Number};
use crate::context::{Context, PORT, call, gid, open, port_file};
use crate::map::Map;
use crate::states::{ALL, Change, INIT, Kind, LOCAL_WRITE, PATIENT, REMOTE_WRITE, RTS, To, modify, state};

/// Fails unless the kernel said `want`.
fn refused<T>(what: &str, said: Result<T, Errno>, want: Errno) -> Result<()> {
    let said = said.map(drop);
    ensure!(said == Err(want), "{what}: {said:?}, not {want:?}");
    Ok(())
}

/// What the ring API says a client may have.
fn limits(context: &Context) -> Result<uapi::Info> {
    let mut info = uapi::Info::new();
    context.call(uapi::IOC_INFO, &mut info).context("INFO")?;
    Ok(info)
}

pub(crate) fn the_device_says_what_a_client_may_have(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let (said, info) = (context.query_device()?, limits(&context)?);
    for (what, at, want) in [
        ("max_qp", 52, info.max_eps),
        ("max_qp_wr", 56, info.max_depth),
        ("max_sge", 64, MAX_PIECES),
        ("max_sge_rd", 68, MAX_PIECES),
        ("max_cq", 72, info.max_cqs),
        ("max_cqe", 76, info.max_depth),
        ("max_mr", 80, info.max_mrs),
        ("max_srq", 156, info.max_eps),
        ("max_srq_wr", 160, info.max_depth),
        ("max_srq_sge", 164, MAX_PIECES),
    ] {
        ensure!(said.u32(at) == want, "{what} is {}, not {want}", said.u32(at));
    }
    ensure!(
        context.ring_abi == ABI_VERSION,
        "the ring ABI is {}",
        context.ring_abi
    );
    ensure!(
        context.notice == (info.notice_offset, info.notice_bytes),
        "the notice page is at {:?}",
        context.notice
    );
    Map::with(
        &context.ring,
        context.notice.0,
        u64::from(context.notice.1),
        ProtFlags::READ,
    )?;
    Ok(())
}

pub(crate) fn the_port_is_what_the_links_are(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let port = context.query_port(PORT)?;
    let links = fs::read_dir("/sys/class/usb4_rdma").map_or(0, |entries| {
        let is_up = |entry: &fs::DirEntry| {
            fs::read_to_string(entry.path().join("state")).is_ok_and(|state| state.trim() == "up")
        };
        entries.flatten().filter(is_up).count()
    });
    // The link of this host to itself may be one of these, and makes no port active.
    let active = port.u8(26) == 4;
    ensure!(links > 0 || !active, "no link is up, and the port is active");
    ensure!(port.u8(28) == 5, "the MTU is {}", port.u8(28));
    ensure!(port.u8(37) == 2, "the link layer is {}", port.u8(37));
    ensure!(port.u8(38) & 1 != 0, "no GRH is required");
    let (gid, prefix) = (gid(device)?, [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
    ensure!(gid.starts_with(&prefix), "the GID is {gid:x?}");
    ensure!(port_file(device, "pkeys/0")? == "0xffff", "another partition");
    refused("another port", context.query_port(PORT + 1), Errno::INVAL)
}

pub(crate) fn queues_have_limits(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let depth = limits(&context)?.max_depth;
    refused("no entries", context.try_cq(0, -1), Errno::INVAL)?;
    refused("too many entries", context.try_cq(depth + 1, -1), Errno::INVAL)?;
    let cq = context.cq(100, -1)?;
    ensure!(cq.depth == 128, "a queue of 100 has {}", cq.depth);
    let pd = context.pd()?;
    let rc = Kind::Rc as u8;
    refused(
        "too many requests",
        context.try_qp(rc, pd, cq.handle, depth + 1, 1),
        Errno::INVAL,
    )?;
    refused(
        "too many elements",
        context.try_qp(rc, pd, cq.handle, 1, MAX_PIECES + 1),
        Errno::INVAL,
    )?;
    refused(
        "too much inline data",
        context.try_qp_of(rc, pd, cq.handle, 1, (1, MAX_INLINE + 1), None),
        Errno::INVAL,
    )?;
    // What is asked for is rounded up to the slots it takes, and said.
    for (room, sge, inline) in [
        ((1, 0), (1, 1), 0),
        ((1, 1), (4, 1), 64),
        ((3, 0), (4, 4), 64),
        ((5, 200), (16, 8), 256),
        ((MAX_PIECES, MAX_INLINE), (16, 16), 256),
    ] {
        let qp = context.qp_of(rc, pd, cq.handle, 4, room, None)?;
        ensure!(
            (qp.sge, qp.inline) == (sge, inline),
            "{room:?} were asked for, and are {:?} and {}",
            qp.sge,
            qp.inline
        );
        context.destroy_qp(qp.handle)?;
    }
    let qp = context.qp(rc, pd, cq.handle, 5)?;
    ensure!((qp.sq_depth, qp.rq_depth) == (8, 8), "queues of 5 are others");
    ensure!(
        qp.number > 1 && qp.number < 1 << 24,
        "the number is {}",
        qp.number
    );
    refused("a queue in use", context.destroy_cq(cq.handle), Errno::BUSY)?;
    refused("a domain in use", context.dealloc_pd(pd), Errno::BUSY)?;
    context.destroy_qp(qp.handle)?;
    context.destroy_cq(cq.handle)?;
    Ok(context.dealloc_pd(pd)?)
}

pub(crate) fn shared_queues_have_limits_and_are_not_destroyed_in_use(device: &str) -> Result<()> {
    /// `enum ib_srq_attr_mask`.
    const MAX_WR: u32 = 1;
    const LIMIT: u32 = 2;
    let context = Context::new(device)?;
    let depth = limits(&context)?.max_depth;
    let (pd, cq) = (context.pd()?, context.cq(8, -1)?);
    refused("no entries", context.try_srq(pd, 0, 1), Errno::INVAL)?;
    refused(
        "too many entries",
        context.try_srq(pd, depth + 1, 1),
        Errno::INVAL,
    )?;
    let too_many = context.try_srq(pd, 8, MAX_PIECES + 1);
    refused("too many elements", too_many, Errno::INVAL)?;
    for (asked, given) in [(0, 1), (3, 4), (MAX_PIECES, MAX_PIECES)] {
        let srq = context.srq(pd, 8, asked)?;
        let found = context.query_srq(srq.handle)?;
        ensure!(
            (srq.sge, found[1]) == (given, given),
            "{asked} elements: {found:?}"
        );
        context.destroy_srq(srq.handle)?;
    }
    let srq = context.srq(pd, 100, 1)?;
    ensure!(srq.depth == 128, "a queue of 100 has {}", srq.depth);
    let change = |mask, entries, limit| context.modify_srq(srq.handle, mask, entries, limit);
    refused("another size", change(MAX_WR, 64, 0), Errno::OPNOTSUPP)?;
    refused("a limit beyond it", change(LIMIT, 0, 129), Errno::INVAL)?;
    let found = context.query_srq(srq.handle)?;
    ensure!(found == [128, 1, 0], "it is {found:?}");
    // XRC, and with tags.
    for kind in [1, 2] {
        let said = context.try_xsrq(pd, cq.handle, kind).map(drop);
        ensure!(said.is_err(), "a queue of kind {kind}: {said:?}");
    }
    let qp = context.qp_of(Kind::Rc as u8, pd, cq.handle, 8, (1, 0), Some(srq))?;
    refused("a queue in use", context.destroy_srq(srq.handle), Errno::BUSY)?;
    refused("a domain in use", context.dealloc_pd(pd), Errno::BUSY)?;
    context.destroy_qp(qp.handle)?;
    Ok(context.destroy_srq(srq.handle)?)
}

pub(crate) fn what_there_is_not_is_refused(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let (pd, cq) = (context.pd()?, context.cq(8, -1)?);
    // XRC, raw packets, and what only the kernel has.
    for kind in [8, 9, 10, 1] {
        let said = context.try_qp(kind, pd, cq.handle, 8, 1).map(drop);
        ensure!(said.is_err(), "a queue pair of kind {kind}: {said:?}");
    }
    let window = Command::with_answer(Number::AllocMw, 8).u32(pd).u8(1).zeros(3);
    refused("a memory window", window.run(&context.uverbs), Errno::OPNOTSUPP)?;
    let qp = context.qp(Kind::Rc as u8, pd, cq.handle, 8)?;
    let post = Command::with_answer(Number::PostSend, 4);
    let post = post.u32(qp.handle).u32(0).u32(0).u32(64);
    refused(
        "a send through uverbs",
        post.run(&context.uverbs),
        Errno::OPNOTSUPP,
    )?;
    refused(
        "a mapping of the uverbs device",
        Map::new(&context.uverbs, 0, 4096),
        Errno::NODEV,
    )
}

pub(crate) fn protection_domains_have_a_limit(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let most = context.query_device()?.u32(84);
    for _ in 0..most {
        context.pd().context("a domain that is to be had")?;
    }
    refused("one more", context.pd(), Errno::NOSPC)
}

pub(crate) fn queue_pairs_have_a_limit(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let (pd, cq) = (context.pd()?, context.cq(8, -1)?);
    let most = context.query_device()?.u32(52);
    for number in 0..most {
        let made = context.try_qp(Kind::Uc as u8, pd, cq.handle, 1, 1);
        made.with_context(|| format!("queue pair {number} of {most}"))?;
    }
    let more = context.try_qp(Kind::Uc as u8, pd, cq.handle, 1, 1);
    refused("one more", more, Errno::DQUOT)
}

pub(crate) fn transitions_are_checked(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let (pd, cq) = (context.pd()?, context.cq(8, -1)?);
    let qp = context.qp(Kind::Rc as u8, pd, cq.handle, 8)?.handle;
    let to = To {
        gid: gid(device)?,
        number: 2,
    };
    let early = modify(&context, qp, &Change::rtr(Kind::Rc, to));
    refused("RESET to RTR", early, Errno::INVAL)?;
    refused(
        "without a port",
        modify(&context, qp, &Change::to(INIT)),
        Errno::INVAL,
    )?;
    modify(&context, qp, &Change::init(Kind::Rc, ALL))?;
    // Link-local, so that nobody has to be asked for it, and nobody's.
    let mut far = to;
    far.gid[15] ^= 0xff;
    let said = modify(&context, qp, &Change::rtr(Kind::Rc, far));
    refused("a host that is not there", said, Errno::HOSTUNREACH)?;
    let mut greedy = Change::rtr(Kind::Rc, to);
    greedy.reads = 255;
    refused("too many reads", modify(&context, qp, &greedy), Errno::INVAL)?;
    ensure!(state(&context, qp)? == INIT, "a refusal has moved it");
    modify(&context, qp, &Change::rtr(Kind::Rc, to))?;
    modify(&context, qp, &Change::rts(Kind::Rc, PATIENT))?;
    ensure!(state(&context, qp)? == RTS, "it is not ready");
    let found = context.query_qp(qp)?;
    ensure!(found.u32(96) == to.number, "it is connected to {}", found.u32(96));
    let mut seen = [0; 16];
    for (at, byte) in seen.iter_mut().enumerate() {
        *byte = found.u8(at);
    }
    ensure!(seen == to.gid, "it is connected to {seen:x?}");
    Ok(())
}

pub(crate) fn memory_that_is_not_there_is_refused(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let pd = context.pd()?;
    let buffer = Map::buffer(8192, ProtFlags::READ | ProtFlags::WRITE)?;
    let fixed = Map::buffer(8192, ProtFlags::READ)?;
    let at = buffer.address();
    refused(
        "nothing",
        context.reg(pd, 0x1000, 4096, LOCAL_WRITE),
        Errno::FAULT,
    )?;
    refused("no bytes", context.reg(pd, at, 0, LOCAL_WRITE), Errno::INVAL)?;
    refused(
        "writing what is to be read",
        context.reg(pd, fixed.address(), 8192, LOCAL_WRITE),
        Errno::FAULT,
    )?;
    refused(
        "remote writes only",
        context.reg(pd, at, 8192, REMOTE_WRITE),
        Errno::INVAL,
    )?;
    // On demand; a memory window's.
    for flag in [1 << 6, 1 << 4] {
        let said = context.reg(pd, at, 8192, flag | LOCAL_WRITE).map(drop);
        ensure!(said.is_err(), "access {flag:#x}: {said:?}");
    }
    refused(
        "an address in another page",
        context.reg_as(pd, at, 1, 8192, ALL),
        Errno::INVAL,
    )?;
    let read = context
        .reg(pd, fixed.address(), 8192, 0)
        .context("memory to be read")?;
    let named = context
        .reg_as(pd, at, 0x7_0000, 8192, ALL)
        .context("memory by another name")?;
    ensure!(
        read.lkey != named.lkey && read.rkey != named.rkey,
        "two regions have a key in common"
    );
    for mr in [read, named] {
        context.dereg(mr.handle)?;
    }
    Ok(())
}

/// Calls that make objects of the ring API are not permitted there; what is of use is.
pub(crate) fn the_ring_descriptor_makes_nothing(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let mut cq = uapi::CreateCq {
        depth: 8,
        event_fd: -1,
        ..uapi::CreateCq::new()
    };
    refused(
        "CREATE_CQ",
        context.call(uapi::IOC_CREATE_CQ, &mut cq),
        Errno::PERM,
    )?;
    let mut ep = uapi::CreateEp::new();
    refused(
        "CREATE_EP",
        context.call(uapi::IOC_CREATE_EP, &mut ep),
        Errno::PERM,
    )?;
    let mut mr = uapi::RegMr::new();
    refused("REG_MR", context.call(uapi::IOC_REG_MR, &mut mr), Errno::PERM)?;
    let mut gone = uapi::Destroy::new();
    for number in [uapi::IOC_DESTROY_CQ, uapi::IOC_DESTROY_EP] {
        refused("a DESTROY", context.call(number, &mut gone), Errno::PERM)?;
    }
    let mut mr = uapi::DeregMr::new();
    refused("DEREG_MR", context.call(uapi::IOC_DEREG_MR, &mut mr), Errno::PERM)?;
    let mut peers = uapi::Peers::new();
    refused("PEERS", context.call(uapi::IOC_PEERS, &mut peers), Errno::PERM)?;
    let mut rules = uapi::Rules::new();
    refused(
        "SET_RULES",
        context.call(uapi::IOC_SET_RULES, &mut rules),
        Errno::PERM,
    )?;
    let mut ah = uapi::CreateAh::new();
    refused(
        "CREATE_AH",
        context.call(uapi::IOC_CREATE_AH, &mut ah),
        Errno::NOENT,
    )?;
    let mut enter = uapi::Enter {
        flags: uapi::ENTER_PROGRESS,
        ..uapi::Enter::new()
    };
    context.call(uapi::IOC_ENTER, &mut enter).context("ENTER")?;
    Ok(())
}

/// It may outlive its context, and is then of no use.
pub(crate) fn the_ring_descriptor_may_outlive_its_context(device: &str) -> Result<()> {
    let context = Context::new(device)?;
    let (pd, cq) = (context.pd()?, context.cq(8, -1)?);
    let qp = context.qp(Kind::Rc as u8, pd, cq.handle, 8)?;
    let Context { uverbs, ring, .. } = context;
    drop(uverbs);
    let mut enter = uapi::Enter {
        flags: uapi::ENTER_SUBMIT,
        ep: qp.ep,
        ..uapi::Enter::new()
    };
    refused("ENTER", call(&ring, uapi::IOC_ENTER, &mut enter), Errno::NOENT)?;
    let again = Map::new(&ring, 1 << 32, 4096).map(drop);
    ensure!(again == Err(Errno::INVAL), "a queue that is gone: {again:?}");
    // What is mapped stays.
    ensure!(cq.map.words().len() > 32, "the queue is short");
    Ok(())
}

/// A call that says what the kernel does not know, or has no room for what it must be told, is refused.
pub(crate) fn other_versions_are_told_apart(device: &str) -> Result<()> {
    let uverbs = open(device)?;
    let short = Command::with_answer(Number::GetContext, 8 + 16);
    refused("a short answer", short.run(&uverbs), Errno::INVAL)?;
    let strange = Command::with_answer(Number::GetContext, 8 + 24).u64(1);
    refused("a strange request", strange.run(&uverbs), Errno::OPNOTSUPP)?;
    let longer = Command::with_answer(Number::GetContext, 8 + 32).u64(0);
    let answer = longer.run(&uverbs).context("a longer call")?;
    ensure!(answer.u64(32) == 0, "what is not known is not zero");
    Ok(())
}

/// Contexts, and what is in them, come and go without end: more than a user may have at a time.
pub(crate) fn contexts_leave_nothing(device: &str) -> Result<()> {
    for round in 0..200 {
        let context = Context::new(device).with_context(|| format!("context {round}"))?;
        let (pd, cq) = (context.pd()?, context.cq(64, -1)?);
        context.qp(Kind::Rc as u8, pd, cq.handle, 64)?;
        let srq = context.srq(pd, 64, 3)?;
        context.qp_of(Kind::Ud as u8, pd, cq.handle, 64, (1, 0), Some(srq))?;
        let buffer = Map::buffer(1 << 16, ProtFlags::READ | ProtFlags::WRITE)?;
        context.reg(pd, buffer.address(), 1 << 16, ALL)?;
        ensure!(context.ring.as_raw_fd() > 2, "a strange descriptor");
    }
    Ok(())
}
