//! Processes that mean it ill, started and killed at random, beside a client that minds its own business.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::io::{FdFlags, fcntl_setfd};
use usb4_ring_abi::{
    CONSUMER_WORD, ENTRIES_WORD, FLAGS_WORD, PIECE_WORDS, PRODUCER_WORD, Piece, RQE_WORDS, Rqe, SQE_WORDS,
    Sqe, sqe_flags, uapi,
};

use crate::command::{COMMANDS, Command};
use crate::context::{Context, Cq, Mr, Qp, Srq};
use crate::map::Map;
use crate::party::Party;
use crate::peer::Peer;
use crate::states::{ALL, Change, Kind, PATIENT, Patience, RESET, To, modify};
use crate::traffic;

/// Longest life of a hostile process, in milliseconds.
const LIFE: usize = 400;

/// Bytes of memory that it registers.
const MEMORY: usize = 1 << 20;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }

    /// Mostly small.
    fn number(&mut self) -> u64 {
        let shift = self.below(64);
        self.next() >> shift
    }

    fn u32(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.number().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    fn byte(&mut self) -> u8 {
        let [byte, ..] = self.number().to_le_bytes();
        byte
    }

    fn kind(&mut self) -> Kind {
        [Kind::Rc, Kind::Uc, Kind::Ud][self.below(3)]
    }
}

/// Starts hostile processes, one after the other, for `span`, and kills each at some moment. Between two queue pairs of
/// another client every message arrives meanwhile. Returns how many there were.
pub(crate) fn run(device: &str, span: Duration, seed: u64) -> Result<u32> {
    let mut rng = Rng(seed);
    let (mut me, mut peer) = (Party::new(device)?, Peer::Here(Box::new(Party::new(device)?)));
    traffic::meet(&mut me, &mut peer)?;
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < span {
        let seed = rng.next();
        let mut hostile = Hostile::start(device, seed)?;
        let until = Instant::now() + Duration::from_millis(rng.below(LIFE) as u64);
        let mut met = Ok(());
        while met.is_ok() && Instant::now() < until {
            met = traffic::greet(&mut me, &mut peer, rng.next());
        }
        hostile.end()?;
        met.and_then(|()| traffic::greet(&mut me, &mut peer, rng.next()))
            .with_context(|| format!("round {rounds}, beside a hostile process of seed {seed}"))?;
        rounds += 1;
    }
    // There is as much room as ever.
    drop((me, peer));
    let (mut me, mut peer) = (Party::new(device)?, Peer::Here(Box::new(Party::new(device)?)));
    traffic::meet(&mut me, &mut peer)?;
    traffic::greet(&mut me, &mut peer, seed)?;
    Ok(rounds)
}

/// One of them.
struct Hostile(Child);

impl Hostile {
    fn start(device: &str, seed: u64) -> Result<Self> {
        let child = own(device, seed)?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting a hostile process")?;
        Ok(Self(child))
    }

    fn end(&mut self) -> Result<()> {
        self.0.kill().context("killing a hostile process")?;
        self.0.wait().context("waiting for a hostile process")?;
        Ok(())
    }
}

/// This program, to do harm.
fn own(device: &str, seed: u64) -> Result<Program> {
    let mut program = Program::new(std::env::current_exe()?);
    program.args(["--device", device, "--seed", &seed.to_string(), "--hostile"]);
    Ok(program)
}

/// What a hostile process has of the device.
struct Loot {
    context: Context,
    pd: u32,
    cq: Cq,
    srq: Option<Srq>,
    qps: Vec<Qp>,
    memory: Map,
    mr: Mr,
}

impl Loot {
    fn new(device: &str, rng: &mut Rng) -> Result<Self> {
        let context = Context::new(device)?;
        let pd = context.pd()?;
        let cq = context.cq(64, -1)?;
        let memory = Map::buffer(MEMORY, rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE)?;
        let mr = context.reg(pd, memory.address(), MEMORY as u64, ALL)?;
        let srq = context.srq(pd, 16, 4).ok();
        let mut loot = Self {
            context,
            pd,
            cq,
            srq,
            qps: vec![],
            memory,
            mr,
        };
        for _ in 0..=rng.below(3) {
            let kind = rng.kind();
            let srq = loot.srq.filter(|_| rng.next() & 1 == 0);
            let room = [(1, 0), (4, 0), (16, 256)][rng.below(3)];
            let qp = loot
                .context
                .qp_of(kind as u8, pd, loot.cq.handle, 16, room, srq)?;
            let _ = modify(&loot.context, qp.handle, &Change::init(kind, ALL));
            let gid = crate::context::gid(device)?;
            let number = qp.number;
            let _ = modify(&loot.context, qp.handle, &Change::rtr(kind, To { gid, number }));
            let _ = modify(&loot.context, qp.handle, &Change::rts(kind, PATIENT));
            loot.qps.push(qp);
        }
        Ok(loot)
    }

    fn qp(&self, rng: &mut Rng) -> Option<&Qp> {
        self.qps.get(rng.below(self.qps.len()))
    }
}

/// Does harm, as well as it can, until it is killed. Nothing it is told counts.
pub(crate) fn be_hostile(device: &str, seed: u64) -> Result<()> {
    let mut rng = Rng(seed);
    let mut all: Vec<Loot> = vec![];
    loop {
        if all.len() < 8 {
            all.extend(Loot::new(device, &mut rng));
        }
        let chosen = rng.below(all.len());
        let Some(loot) = all.get_mut(chosen) else {
            bail!("the device cannot be opened");
        };
        match rng.below(12) {
            0 | 1 => scribble(&mut rng, loot),
            2 => wild_entries(&mut rng, loot),
            3 => wild_commands(&mut rng, loot),
            4 => wild_states(&mut rng, loot),
            5 => wild_regions(&mut rng, loot),
            6 => wild_calls(&mut rng, loot),
            7 => undermine(&mut rng, loot),
            8 => outlive(loot)?,
            9 => drop(all.swap_remove(chosen)),
            10 => wild_lists(&mut rng, loot),
            _ if rng.below(8) == 0 => return Err(become_another(device, &mut rng, loot)),
            _ => all.clear(),
        }
    }
}

fn enter(rng: &mut Rng, loot: &Loot, ep: u32) {
    let flags = [uapi::ENTER_SUBMIT, uapi::ENTER_PROGRESS, uapi::ENTER_WAIT];
    let mut enter = uapi::Enter {
        flags: flags.iter().filter(|_| rng.next() & 1 == 0).sum(),
        ep,
        cq: rng.u32(),
        timeout_ns: rng.next() % 1_000_000,
        ..uapi::Enter::new()
    };
    let _ = loot.context.call(uapi::IOC_ENTER, &mut enter);
}

/// Writes what it likes into queues, and has them looked at.
fn scribble(rng: &mut Rng, loot: &Loot) {
    let Some(qp) = loot.qp(rng) else { return };
    for _ in 0..50 {
        let words = [&qp.sq, &qp.rq, &loot.cq.map][rng.below(3)].words();
        let index = match rng.below(5) {
            0 => PRODUCER_WORD,
            1 => CONSUMER_WORD,
            2 => FLAGS_WORD,
            3 => rng.below(words.len()),
            _ => {
                let name = [qp.ep, qp.receives][rng.below(2)];
                enter(rng, loot, name);
                continue;
            }
        };
        let value = if rng.next() & 1 == 0 {
            rng.next() % 20
        } else {
            rng.number()
        };
        if let Some(word) = words.get(index) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// Posts entries that may be ones, with its own keys and others.
fn wild_entries(rng: &mut Rng, loot: &Loot) {
    let Some(qp) = loot.qp(rng) else { return };
    for _ in 0..20 {
        let queue = if rng.next() & 1 == 0 { &qp.sq } else { &qp.rq };
        let words = queue.words();
        let at = 32 + rng.below(words.len().saturating_sub(40));
        let key = if rng.below(4) == 0 {
            rng.u32()
        } else {
            loot.mr.lkey
        };
        let len = rng.u32() % (2 << 20);
        let address = loot.memory.address() + rng.next() % MEMORY as u64;
        let entry = [
            // An operation, flags, and an address handle.
            rng.number() & 0x0003_0000_ff3f,
            rng.next(),
            address,
            u64::from(key) | u64::from(len) << 32,
            address,
            u64::from(loot.mr.rkey),
            rng.number(),
            rng.number(),
        ];
        for (word, value) in words.iter().skip(at).zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
        if let Some(word) = words.get(PRODUCER_WORD) {
            word.fetch_add(rng.next() % 3, Ordering::Release);
        }
        let name = [qp.ep, qp.receives][rng.below(2)];
        enter(rng, loot, name);
    }
}

/// Posts lists and inline data that are nearly right, and writes to their slots while they are under way.
fn wild_lists(rng: &mut Rng, loot: &Loot) {
    let Some(qp) = loot.qp(rng) else { return };
    for _ in 0..20 {
        let sends = rng.next() & 1 == 0;
        let (queue, depth, slots, entry) = if sends {
            (&qp.sq, qp.sq_depth, qp.sq_slots, SQE_WORDS)
        } else {
            (&qp.rq, qp.rq_depth, qp.rq_slots, RQE_WORDS)
        };
        let words = queue.words();
        let Some(producer) = words.get(PRODUCER_WORD) else {
            return;
        };
        let index = producer.load(Ordering::Relaxed) % u64::from(depth);
        let index = usize::try_from(index).unwrap_or(0);
        let slot = ENTRIES_WORD + entry * depth as usize + slots.words() * index;
        let slot = words.get(slot..slot + slots.words()).unwrap_or_default();
        let count = rng.below(slots.pieces() as usize + 1);
        let mut sum = 0;
        for place in slot.chunks_exact(PIECE_WORDS).take(count) {
            let len = rng.u32() % 5000;
            sum += len;
            let piece = Piece {
                addr: loot.memory.address() + rng.next() % MEMORY as u64,
                local_key: if rng.below(20) == 0 {
                    rng.u32()
                } else {
                    loot.mr.lkey
                },
                len,
            };
            for (word, value) in place.iter().zip(piece.to_words()) {
                word.store(value, Ordering::Relaxed);
            }
        }
        let len = if rng.below(10) == 0 { rng.u32() } else { sum };
        let inline = rng.below(3) == 0;
        let flags = if inline {
            sqe_flags::INLINE
        } else {
            sqe_flags::LIST
        };
        let place = words.iter().skip(ENTRIES_WORD + entry * index);
        let values = if sends {
            let sqe = Sqe {
                op: 1 + rng.byte() % 3,
                flags: flags | rng.byte() & 3,
                local_key: if inline {
                    0
                } else {
                    u32::try_from(count).unwrap_or(0)
                },
                len: if inline { len % 300 } else { len },
                args: [loot.memory.address(), u64::from(loot.mr.rkey), 0, 0],
                ..Sqe::default()
            };
            sqe.to_words().to_vec()
        } else {
            let rqe = Rqe {
                len,
                reserved: count as u64,
                ..Rqe::default()
            };
            rqe.to_words().to_vec()
        };
        for (word, value) in place.zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        producer.fetch_add(1, Ordering::Release);
        enter(rng, loot, qp.ep);
        if let Some(word) = slot.get(rng.below(slot.len().max(1))) {
            word.store(rng.number(), Ordering::Relaxed);
        }
        enter(rng, loot, qp.ep);
    }
}

/// Any command with any bytes as its argument, small numbers among them.
fn wild_commands(rng: &mut Rng, loot: &Loot) {
    for _ in 0..30 {
        let number = COMMANDS[rng.below(COMMANDS.len())];
        let mut command = Command::with_answer(number, 8 * (1 + rng.below(32)));
        for _ in 0..rng.below(40) {
            command = command.u32(rng.u32());
        }
        let _ = command.run(&loot.context.uverbs);
    }
}

/// Takes queue pairs from any state to any, with anything said.
fn wild_states(rng: &mut Rng, loot: &Loot) {
    let Some(qp) = loot.qp(rng) else { return };
    for _ in 0..20 {
        let mut change = Change::to(rng.byte() & 7);
        change.mask |= rng.u32();
        change.to.number = rng.u32();
        change.access = rng.u32() & 0xf;
        change.reads = rng.byte();
        change.patience = Patience {
            timeout: rng.byte(),
            retries: rng.byte(),
            rnr_retries: rng.byte(),
        };
        let _ = modify(&loot.context, qp.handle, &change);
        enter(rng, loot, qp.ep);
        if let Some(srq) = loot.srq {
            let (mask, entries, limit) = (rng.u32() & 3, rng.u32(), rng.u32() & 31);
            let _ = loot.context.modify_srq(srq.handle, mask, entries, limit);
        }
        if rng.below(4) == 0 {
            let kind = rng.kind();
            let _ = modify(&loot.context, qp.handle, &Change::to(RESET));
            let _ = modify(&loot.context, qp.handle, &Change::init(kind, ALL));
        }
    }
}

/// Registers memory of any address and length, and gives some of it back, its own among it.
fn wild_regions(rng: &mut Rng, loot: &mut Loot) {
    for _ in 0..10 {
        let _ = loot.context.reg_as(
            loot.pd,
            rng.number(),
            rng.number(),
            rng.number(),
            rng.u32() & 0xff,
        );
        let at = loot.memory.address() + rng.next() % MEMORY as u64;
        let len = 1 + rng.next() % (2 * MEMORY as u64);
        if let Ok(mr) = loot.context.reg(loot.pd, at, len, ALL) {
            if rng.next() & 1 == 0 {
                let _ = loot.context.dereg(std::mem::replace(&mut loot.mr, mr).handle);
            }
        }
    }
}

/// Calls and mappings of the ring descriptor that a context has.
fn wild_calls(rng: &mut Rng, loot: &Loot) {
    for _ in 0..20 {
        let Some(qp) = loot.qp(rng) else { return };
        let mut make = uapi::CreateAh {
            ep: if rng.next() & 1 == 0 { qp.ep } else { rng.u32() },
            ..uapi::CreateAh::new()
        };
        let _ = loot.context.call(uapi::IOC_CREATE_AH, &mut make);
        let offset = rng.number() & !0xfff;
        let len = 4096 * (1 + rng.next() % 64);
        if let Ok(map) = Map::new(&loot.context.ring, offset, len) {
            let words = map.words();
            if let Some(word) = words.get(rng.below(words.len().min(64))) {
                let _ = word.load(Ordering::Relaxed);
            }
        }
    }
}

/// Destroys what is in use by another thread, in any order.
fn undermine(rng: &mut Rng, loot: &mut Loot) {
    let Some(qp) = loot.qps.pop() else { return };
    let (loot, seed) = (&*loot, rng.next());
    let ep = qp.ep;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut rng = Rng(seed);
            for _ in 0..20 {
                enter(&mut rng, loot, ep);
            }
        });
        let _ = loot.context.destroy_cq(loot.cq.handle);
        if let Some(srq) = loot.srq {
            let _ = loot.context.destroy_srq(srq.handle);
            enter(rng, loot, srq.name);
        }
        let _ = loot.context.dealloc_pd(loot.pd);
        enter(rng, loot, ep);
        let _ = loot.context.destroy_qp(qp.handle);
        let _ = loot.context.destroy_qp(qp.handle);
        enter(rng, loot, ep);
    });
}

/// Has its descriptors passed on to whoever it starts.
fn share(loot: &Loot) -> Result<()> {
    for fd in [loot.context.uverbs.as_fd(), loot.context.ring.as_fd()] {
        fcntl_setfd(fd, FdFlags::empty())?;
    }
    Ok(())
}

/// Leaves the descriptors with others, who hold them for longer than this process lives.
fn outlive(loot: &Loot) -> Result<()> {
    share(loot)?;
    let _ = Program::new("sh").args(["-c", "sleep 0.3 & sleep 0.2"]).spawn();
    Ok(())
}

/// Goes on as another program, with the descriptors of this one.
fn become_another(device: &str, rng: &mut Rng, loot: &Loot) -> anyhow::Error {
    if let Err(error) = share(loot) {
        return error;
    }
    match own(device, rng.next()) {
        Ok(mut program) => program.exec().into(),
        Err(error) => error,
    }
}
