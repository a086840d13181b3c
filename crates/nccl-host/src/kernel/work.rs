//! Launches, blocks and their work.

use super::combine::Element;
use super::fifo::{Receiver, Sender};
use super::layout::{Layout, args, batch, channel, comm, p2p, peer};
use super::p2p::Message;
use super::place::Place;
use super::ring::Ring;
use super::transfer::{Ends, Part, Transfer};
use super::{Progress, Protocol, protocol, unsupported};
use std::collections::VecDeque;
use std::ptr;

/// One launch of a kernel.
pub(crate) struct Launch<'a> {
    name: &'a str,
    args: Place,
    comm: Place,
    layout: &'a Layout,
}

/// A block: the work of one channel.
pub(crate) struct Block {
    channel: usize,
    /// The next batch.
    next: Option<usize>,
    /// Collectives of the batch that have not begun, each with its function: one begins where the one before ended.
    waiting: VecDeque<(u32, Place)>,
    /// Messages of the batch, or the collective that has begun.
    tasks: Vec<Task>,
}

struct Task {
    ends: Ends,
    protocol: Protocol,
    element: Element,
    plan: Plan,
    transfer: Option<Transfer>,
}

/// Where the parts of a task come from.
enum Plan {
    Ring(Ring),
    Message(Message),
}

impl<'a> Launch<'a> {
    pub(crate) fn new(name: &'a str, args: Place, layout: &'a Layout) -> Launch<'a> {
        Launch {
            name,
            args,
            comm: args.place(args::COMM),
            layout,
        }
    }

    fn channel(&self, id: usize) -> Place {
        self.comm.at(comm::CHANNELS + id * channel::SIZE)
    }

    /// A connection of a channel, for collectives (0) or point-to-point (1).
    fn connection(&self, id: usize, rank: usize, direction: usize, which: usize) -> Place {
        let peers = self.channel(id).place(channel::PEERS);
        let peer = peers.place(rank * size_of::<usize>());
        peer.at(direction + which * peer::CONNECTION)
    }

    /// The work item at `offset`, wherever this launch keeps them.
    fn item(&self, offset: usize) -> Place {
        match self.args.u32(args::STORAGE) & 0xff {
            args::IN_ARGUMENTS => self.args.at(offset),
            args::IN_RING => {
                let mask = self.args.u32(args::WORK_MASK) as usize;
                self.args.place(args::WORK_BUFFER).at(offset & mask)
            }
            _ => self.args.place(args::WORK_BUFFER).at(offset),
        }
    }

    fn messages(&self, id: usize, work: Place, tasks: &mut Vec<Task>) {
        let own = self.comm.u32(comm::RANK) as usize;
        let messages = Message::read(work, id);
        if let [to, from] = messages.as_slice()
            && (to.peer, from.peer) == (own, own)
        {
            let ((source, len), (target, room)) = (to.span(), from.span());
            // SAFETY: the caller's buffers of a message to itself; a GPU copies either order, so may they overlap.
            unsafe { ptr::copy(source.bytes(), target.bytes(), len.min(room)) };
            return;
        }
        for message in messages {
            let protocol = if message.ll {
                Protocol::Ll
            } else {
                Protocol::Simple { slices: 1, steps: 1 }
            };
            let direction = if message.send { peer::SEND } else { peer::RECEIVE };
            let connection = self.connection(id, message.peer, direction, 1);
            tasks.push(Task {
                ends: Ends {
                    receiver: (!message.send).then(|| Receiver::open(self.comm, connection, protocol)),
                    sender: message
                        .send
                        .then(|| Sender::open(self.comm, connection, protocol)),
                },
                protocol,
                element: Element::U8,
                plan: Plan::Message(message),
                transfer: None,
            });
        }
    }

    fn collective(&self, id: usize, function: u32, work: Place, tasks: &mut Vec<Task>) {
        let kernel = protocol::kernel(self.name, function);
        let place = self.channel(id);
        let Some(ring) = Ring::read(
            kernel.what,
            kernel.element.size(),
            kernel.protocol,
            self.comm,
            (id, place),
            work,
            self.layout,
        ) else {
            return;
        };
        let (receives, sends) = ring.uses();
        let previous = place.u32(channel::RING_PREVIOUS) as usize;
        let next = place.u32(channel::RING_NEXT) as usize;
        let open = |rank, direction| self.connection(id, rank, direction, 0);
        let ends = Ends {
            receiver: receives
                .then(|| Receiver::open(self.comm, open(previous, peer::RECEIVE), kernel.protocol)),
            sender: sends.then(|| Sender::open(self.comm, open(next, peer::SEND), kernel.protocol)),
        };
        tasks.push(Task {
            ends,
            protocol: kernel.protocol,
            element: kernel.element,
            plan: Plan::Ring(ring),
            transfer: None,
        });
    }
}

impl Block {
    pub(crate) fn new(at: usize, channel: usize) -> Block {
        Block {
            channel,
            next: Some(at),
            waiting: VecDeque::new(),
            tasks: vec![],
        }
    }

    /// Does what can be done now.
    pub(crate) fn step(&mut self, launch: &Launch<'_>) -> Progress {
        if self.tasks.is_empty() {
            if let Some((function, work)) = self.waiting.pop_front() {
                launch.collective(self.channel, function, work, &mut self.tasks);
            } else if let Some(at) = self.next {
                self.load(launch, at);
            } else {
                return Progress::Done;
            }
            return Progress::Moved;
        }
        let mut moved = false;
        self.tasks.retain_mut(|task| {
            let progress = task.step();
            moved |= progress != Progress::Stuck;
            progress != Progress::Done
        });
        if moved { Progress::Moved } else { Progress::Stuck }
    }

    /// Loads the batch at `at`, with those that extend it.
    fn load(&mut self, launch: &Launch<'_>, mut at: usize) {
        loop {
            let place = launch.args.at(args::BATCHES + at * batch::SIZE);
            let bits = place.u32(batch::BITS);
            let kind = bits >> batch::TYPE_SHIFT & batch::TYPE;
            let function = bits >> batch::FUNCTION_SHIFT;
            let (offset, items) = (place.u32(batch::OFFSET) as usize, place.u64(batch::ITEMS));
            for item in (0..64).filter(|item| items >> item & 1 == 1) {
                match kind {
                    batch::P2P => {
                        let work = launch.item(offset + item * p2p::SIZE);
                        launch.messages(self.channel, work, &mut self.tasks);
                    }
                    batch::COLLECTIVE => {
                        let work = launch.item(offset + item * launch.layout.collective_size);
                        self.waiting.push_back((function, work));
                    }
                    _ => unsupported("a work item of another type"),
                }
            }
            let jump = (bits & batch::JUMP) as usize;
            if bits & batch::EXTENDS == 0 {
                self.next = (jump > 0).then_some(at + jump);
                return;
            }
            at += jump;
        }
    }
}

impl Task {
    fn step(&mut self) -> Progress {
        let transfer = match &mut self.transfer {
            Some(transfer) => transfer,
            none => match self.plan.next() {
                None => return Progress::Done,
                Some(part) => none.insert(Transfer::new(part)),
            },
        };
        match transfer.step(&mut self.ends, self.protocol, self.element) {
            Progress::Done => {
                self.transfer = None;
                Progress::Moved
            }
            other => other,
        }
    }
}

impl Plan {
    fn next(&mut self) -> Option<Part> {
        match self {
            Plan::Ring(ring) => ring.next(),
            Plan::Message(message) => message.next(),
        }
    }
}
