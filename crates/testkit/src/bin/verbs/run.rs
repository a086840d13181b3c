//! A case, as each side does it: in rounds, both ways at once. Before a round both sides have made room for it, and after it
//! both have everything: so that no message has to wait for a receive, and a byte that comes too late, too often or elsewhere is in
//! a place that is looked at.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdma_core_sys::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_RDMA_READ,
    IBV_WC_RDMA_WRITE, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_WITH_IMM,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_send_wr, ibv_send_wr_atomic,
    ibv_send_wr_rdma, ibv_send_wr_ud, ibv_wc,
};
use serde::{Deserialize, Serialize};

use crate::atomics::{Atomic, Atomics, Sums};
use crate::case::{Case, LONGEST, Message, Op, Transport};
use crate::device::{Device, QKEY, Queues};
use crate::memory::mix;
use crate::peer::Peer;
use crate::places::{ADDED, GRH, Place, SWAPPED, own, received};

/// What counts as hung.
const HANG: Duration = Duration::from_secs(30);

/// How one side's queue pairs and memory are reached.
#[derive(Serialize, Deserialize)]
struct Card {
    gid: [u8; 16],
    numbers: Vec<u32>,
    address: u64,
    rkey: u32,
}

/// What a case moved, to one side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

struct Side<'a> {
    case: &'a Case,
    device: &'a Device,
    queues: Queues<'a>,
    /// 0 for who listens, 1 for who connects.
    number: u32,
    them: Card,
    /// Queue pairs by their numbers.
    mine: HashMap<u32, u32>,
    atomics: Atomics,
}

/// A message whose completion is to come.
struct Pending {
    place: Place,
    message: Message,
    signalled: bool,
    atomic: Option<Atomic>,
}

/// What a round waits for: by queue pair, in order.
struct Expected {
    sends: Vec<VecDeque<Pending>>,
    arrivals: Vec<VecDeque<(Place, Message)>>,
    /// Receives that are posted, by queue pair where these have their own.
    receives: Vec<VecDeque<u64>>,
}

/// Does its part of a case.
pub(crate) fn run(device: &Device, peer: &mut Peer, case: &Case, number: u32) -> Result<Moved> {
    let queues = Queues::new(device, case)?;
    for word in (0..case.queues).map(own).chain([ADDED, SWAPPED]) {
        device.memory.set_word(word, 0);
    }
    let numbers = queues.numbers();
    let mine = numbers.iter().copied().zip(0..).collect();
    let them = peer.exchange(Card {
        gid: device.gid,
        numbers,
        address: device.memory.address(),
        rkey: device.rkey(),
    })?;
    let mut side = Side {
        case,
        device,
        queues,
        number,
        them,
        mine,
        atomics: Atomics::new(case.queues),
    };
    side.queues.connect(side.them.gid, &side.them.numbers)?;
    let mut moved = Moved::default();
    for round in 0..case.rounds {
        side.round(peer, round, &mut moved)
            .with_context(|| format!("round {round}"))?;
    }
    side.end(peer)?;
    Ok(moved)
}

impl Side<'_> {
    /// What tells a message of this side, or of the other, from others.
    fn key(&self, mine: bool, queue: u32, message: Message) -> u64 {
        let side = if mine { self.number } else { 1 - self.number };
        mix([side, queue, message.number])
    }

    fn round(&mut self, peer: &mut Peer, round: u32, moved: &mut Moved) -> Result<()> {
        let rounds: Vec<Vec<Message>> = (0..self.case.queues)
            .map(|queue| self.case.round(queue, round))
            .collect();
        let places = |queue: u32, messages: &[Message]| -> Vec<(Place, Message)> {
            let places = (0..).map(|index| Place { queue, index });
            places.zip(messages.iter().copied()).collect()
        };
        let all: Vec<Vec<(Place, Message)>> = (0..).zip(&rounds).map(|(q, m)| places(q, m)).collect();
        self.prepare(all.iter().flatten());
        let mut expected = Expected {
            sends: all.iter().map(|_| VecDeque::new()).collect(),
            arrivals: all
                .iter()
                .map(|messages| {
                    messages
                        .iter()
                        .copied()
                        .filter(|(_, m)| m.op.takes_receive())
                        .collect()
                })
                .collect(),
            receives: vec![],
        };
        expected.receives = self.post_receives(&expected.arrivals)?;
        peer.exchange(round)?;
        // One of each queue pair's, then the next.
        let longest = rounds.iter().map(Vec::len).max().unwrap_or(0);
        for index in 0..longest {
            for (messages, sends) in all.iter().zip(&mut expected.sends) {
                if let Some((place, message)) = messages.get(index) {
                    let is_last = index + 1 == messages.len();
                    sends.push_back(self.post(*place, *message, is_last || round % 2 == 0)?);
                    moved.messages += 1;
                    moved.bytes += u64::from(message.len);
                }
            }
        }
        self.complete(&mut expected)?;
        for (place, message) in all.iter().flatten().filter(|(_, message)| message.op == Op::Read) {
            self.look(place.incoming(self.case), message.len, place.queue, *message)?;
        }
        peer.exchange(round)?;
        for (place, message) in all.iter().flatten() {
            if message.op == Op::Write {
                self.look(place.incoming(self.case), message.len, place.queue, *message)?;
            }
        }
        match self.queues.poll()? {
            Some(completion) => bail!("one completion more than there were requests: {completion:?}"),
            None => Ok(()),
        }
    }

    /// Writes what is sent, and makes room for what comes.
    fn prepare<'m>(&self, messages: impl Iterator<Item = &'m (Place, Message)>) {
        for (place, message) in messages {
            // A fence has no place, and needs none.
            if place.index >= self.case.window() {
                continue;
            }
            let len = message.len as usize;
            let key = self.key(true, place.queue, *message);
            self.device.memory.fill(place.outgoing(self.case), len, key);
            self.device.memory.clear(place.incoming(self.case), len);
        }
    }

    /// As many receives as there are messages to come; which are posted, by queue pair or all together.
    fn post_receives(&self, arrivals: &[VecDeque<(Place, Message)>]) -> Result<Vec<VecDeque<u64>>> {
        let front = if self.case.transport == Transport::Ud {
            GRH
        } else {
            0
        };
        let longest = arrivals.iter().flatten().map(|(_, message)| message.len).max();
        // Longer than what comes, so that its length is looked at.
        let room = longest.unwrap_or(0).min(LONGEST - 1) + 1;
        let mut posted = vec![];
        let mut number = 0;
        for (queue, arrivals) in arrivals.iter().enumerate() {
            let mut own = VecDeque::new();
            for _ in arrivals {
                let at = received(number);
                self.device.memory.clear(at, (room + front) as usize);
                let buffer = self.device.buffer(at, room + front);
                self.queues.receive(queue, number as u64, buffer)?;
                own.push_back(number as u64);
                number += 1;
            }
            posted.push(own);
        }
        if self.case.shared {
            return Ok(vec![posted.into_iter().flatten().collect()]);
        }
        Ok(posted)
    }

    fn post(&mut self, place: Place, message: Message, signalled: bool) -> Result<Pending> {
        // SAFETY: all zero is a request: integers, null pointers and a union of these.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.wr_id = u64::from(place.queue) << 32 | u64::from(message.number);
        request.imm_data = message.number.to_be();
        request.send_flags = if signalled { IBV_SEND_SIGNALED } else { 0 };
        request.opcode = match message.op {
            Op::Write => IBV_WR_RDMA_WRITE,
            Op::WriteImm => IBV_WR_RDMA_WRITE_WITH_IMM,
            Op::Send => IBV_WR_SEND,
            Op::SendImm => IBV_WR_SEND_WITH_IMM,
            Op::Read => IBV_WR_RDMA_READ,
            Op::FetchAdd => IBV_WR_ATOMIC_FETCH_AND_ADD,
            Op::CompareSwap => IBV_WR_ATOMIC_CMP_AND_SWP,
        };
        let queue = place.queue as usize;
        let mut at = place.outgoing(self.case);
        let mut atomic = None;
        let there = |at: usize| self.them.address + at as u64;
        let rkey = self.them.rkey;
        match message.op {
            Op::Write | Op::WriteImm | Op::Read => {
                let mut target = place.incoming(self.case);
                if message.op == Op::Read {
                    std::mem::swap(&mut at, &mut target);
                }
                let remote_addr = there(target);
                request.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
            }
            Op::FetchAdd | Op::CompareSwap => {
                at = place.incoming(self.case);
                let next = self.atomics.next(place.queue, message);
                request.wr.atomic = ibv_send_wr_atomic {
                    remote_addr: there(next.at),
                    compare_add: next.operand,
                    swap: next.swap,
                    rkey,
                };
                atomic = Some(next);
            }
            Op::Send | Op::SendImm if self.case.transport == Transport::Ud => {
                let number = self.them.numbers.get(queue);
                request.wr.ud = ibv_send_wr_ud {
                    ah: self.queues.handle(),
                    remote_qpn: *number.context("no such queue pair there")?,
                    remote_qkey: QKEY,
                };
            }
            Op::Send | Op::SendImm => {}
        }
        let reads = message.op == Op::Read || message.op.is_atomic();
        if !reads && message.len <= self.queues.inline {
            request.send_flags |= IBV_SEND_INLINE;
        }
        let buffer = self.device.buffer(at, message.len);
        self.queues.send(queue, &mut request, buffer)?;
        Ok(Pending {
            place,
            message,
            signalled,
            atomic,
        })
    }

    /// Waits for everything that a round has to bring.
    fn complete(&mut self, expected: &mut Expected) -> Result<()> {
        let mut start = Instant::now();
        while expected.sends.iter().any(|sends| !sends.is_empty())
            || expected.arrivals.iter().any(|arrivals| !arrivals.is_empty())
        {
            let Some(completion) = self.queues.poll()? else {
                ensure!(
                    start.elapsed() < HANG,
                    "nothing for {HANG:?}, and {} sends and {} arrivals are missing",
                    expected.sends.iter().map(VecDeque::len).sum::<usize>(),
                    expected.arrivals.iter().map(VecDeque::len).sum::<usize>()
                );
                continue;
            };
            start = Instant::now();
            let queue = *self
                .mine
                .get(&completion.qp_num)
                .with_context(|| format!("{completion:?} is of no queue pair"))?;
            if completion.opcode & IBV_WC_RECV != 0 {
                self.arrived(queue, &completion, expected)?;
            } else {
                let sends = expected.sends.get_mut(queue as usize);
                self.sent(&completion, sends.context("no such queue pair")?)?;
            }
        }
        Ok(())
    }

    /// A request is complete, and with it those before it that do not say so.
    fn sent(&mut self, completion: &ibv_wc, sends: &mut VecDeque<Pending>) -> Result<()> {
        loop {
            let pending = sends.pop_front();
            let pending = pending.with_context(|| format!("{completion:?} is of no request"))?;
            let Pending { place, message, .. } = pending;
            if let Some(atomic) = pending.atomic {
                let at = place.incoming(self.case);
                let old = self.device.memory.word(at);
                self.atomics.gave(place.queue, atomic, old)?;
                self.look(at + 8, 0, place.queue, message)
                    .context("more than a word is written")?;
            }
            if !pending.signalled {
                continue;
            }
            let wr_id = u64::from(place.queue) << 32 | u64::from(message.number);
            let opcode = match message.op {
                Op::Write | Op::WriteImm => IBV_WC_RDMA_WRITE,
                Op::Send | Op::SendImm => IBV_WC_SEND,
                Op::Read => IBV_WC_RDMA_READ,
                Op::FetchAdd => IBV_WC_FETCH_ADD,
                Op::CompareSwap => IBV_WC_COMP_SWAP,
            };
            ensure!(
                (completion.wr_id, completion.opcode) == (wr_id, opcode),
                "{completion:?} instead of that of {message:?}"
            );
            return Ok(());
        }
    }

    /// A message has come, and is what it has to be.
    fn arrived(&self, queue: u32, completion: &ibv_wc, expected: &mut Expected) -> Result<()> {
        let said = || format!("{completion:?} of queue pair {queue}");
        let arrivals = expected.arrivals.get_mut(queue as usize);
        let next = arrivals.and_then(VecDeque::pop_front);
        let (place, message) = next.with_context(|| format!("{} was not to come", said()))?;
        let which = if self.case.shared { 0 } else { queue as usize };
        let posted = expected.receives.get_mut(which).context("no receives")?;
        let first = posted
            .iter()
            .position(|number| *number == completion.wr_id)
            .with_context(|| format!("{} has a receive that is not posted", said()))?;
        // Messages of several queue pairs take shared receives in one order, and end in another.
        ensure!(
            first == 0 || self.case.shared,
            "{} takes a receive before others",
            said()
        );
        posted.remove(first);
        let datagram = self.case.transport == Transport::Ud;
        let front = if datagram { GRH } else { 0 };
        let written = message.op == Op::WriteImm;
        let opcode = if written {
            IBV_WC_RECV_RDMA_WITH_IMM
        } else {
            IBV_WC_RECV
        };
        ensure!(
            (completion.opcode, completion.byte_len) == (opcode, message.len + front),
            "{} instead of that of {message:?}",
            said()
        );
        let has_immediate = completion.wc_flags & IBV_WC_WITH_IMM != 0;
        ensure!(
            has_immediate == message.op.has_immediate()
                && (!has_immediate || u32::from_be(completion.imm_data) == message.number),
            "{} has other immediate data than {message:?}",
            said()
        );
        if datagram {
            let sender = self.them.numbers.get(queue as usize);
            ensure!(
                sender == Some(&completion.src_qp),
                "{} is not from {sender:?}",
                said()
            );
        }
        let at = received(usize::try_from(completion.wr_id)?);
        if !written {
            return self.look(at + front as usize, message.len, queue, message);
        }
        self.look(place.incoming(self.case), message.len, queue, message)?;
        self.look(at, 0, queue, message)
            .context("the receive of a write is written to")
    }

    /// Sees that a message of the other side's is there, and nothing behind it.
    fn look(&self, at: usize, len: u32, queue: u32, message: Message) -> Result<()> {
        let key = self.key(false, queue, message);
        if let Some(byte) = self.device.memory.differs(at, len as usize, key) {
            bail!("byte {byte} of {message:?} of queue pair {queue} is wrong");
        }
        Ok(())
    }

    /// Compares words with what the other side has done to them.
    fn end(self, peer: &mut Peer) -> Result<()> {
        let theirs: Sums = peer.exchange(self.atomics.end()?)?;
        let memory = &self.device.memory;
        let words = (0..self.case.queues).map(own);
        for at in words.clone().chain([ADDED, SWAPPED]) {
            ensure!(memory.is_untouched(at + 8), "a word beside is written to");
        }
        let found = Sums {
            own: words.map(|at| memory.word(at)).collect(),
            added: memory.word(ADDED),
            swapped: memory.word(SWAPPED),
        };
        ensure!(found == theirs, "words are {found:x?}, and not {theirs:x?}");
        Ok(())
    }
}
