//! What comes out of the completion queues.

use usb4_ffi::Level;
use usb4_ring::{Backend, Completion, Op, Status};

use super::comm::{Side, State};
use super::fault::Blame;
use super::hub::Inner;
use super::id::{COMM_GENERATION_MASK, Id, Kind};
use super::recv::{Bytes, Taken, Unfit};
use super::send::{Nonsense, SendComm, SendState};
use super::table::Key;
use super::wire::{Closing, Message, PREFIX, Placed, Refusal, low16};

/// Completions taken in one call.
const BATCH: u32 = 64;

/// Calls in vain between two looks at the clock.
const LOOK_EVERY: u32 = 64;

impl Inner {
    /// Takes what has arrived and what has ended. Whether there was anything.
    #[inline]
    pub(crate) fn poll(&mut self) -> bool {
        let mut any = false;
        for _ in 0..BATCH {
            let Some(done) = self.port.received() else { break };
            any = true;
            self.arrived(&done);
        }
        for _ in 0..BATCH {
            let Some(done) = self.port.sent() else { break };
            any = true;
            self.ended(&done);
        }
        if !self.waiting.is_empty() || !self.outbox.is_empty() {
            self.go_on();
        }
        any
    }

    /// There was nothing: from time to time looks whether the peers, and the device, are there. Whether it is such a time.
    #[inline]
    pub(crate) fn wait(&mut self) -> bool {
        self.idle = self.idle.wrapping_add(1);
        let look = self.idle % LOOK_EVERY == 0;
        if look {
            self.look();
        }
        look
    }

    #[cold]
    fn look(&mut self) {
        let place = self.place;
        self.peers
            .probe_sometimes(&mut self.port, |peer| place.id(Kind::Probe, peer));
        if let Err(error) = self.device.check() {
            let why = error.to_string();
            for peer in self.peers.present() {
                self.lose(peer, Blame::System, &why);
            }
        }
    }

    /// A message is in one of our buffers, or in a receive's.
    #[inline]
    fn arrived(&mut self, done: &Completion) {
        let buffer = u32::try_from(done.user_data).unwrap_or(u32::MAX);
        if done.status != Status::Ok {
            return self.spoiled(done, buffer);
        }
        let kept = match (done.op, done.imm) {
            (Op::ReceiveWrite, Some(imm)) => {
                let placed = Placed::decode(imm);
                let bytes = Bytes::Placed(u64::from(done.len));
                self.message(done, placed.to, placed.seq, u32::from(placed.tag), bytes);
                false
            }
            (Op::Receive, Some(imm)) if done.len >= PREFIX => {
                let words = self.port.words(buffer);
                let len = done.len - PREFIX;
                match Message::decode((words, imm)) {
                    Some(Message::Eager { to, seq, tag }) => {
                        let bytes = Bytes::Eager { buffer, len };
                        self.message(done, to, low16(seq), tag, bytes)
                    }
                    Some(message) if len == 0 => {
                        self.control(done, message);
                        false
                    }
                    _ => self.nonsense(done, "a message that is none of this protocol's"),
                }
            }
            _ => self.nonsense(done, "a message that is none of this protocol's"),
        };
        if !kept {
            self.port.receive_into(buffer);
        } else if let Err(error) = self.port.receive_into_another() {
            self.notes.push((
                Level::Warn,
                format!("no memory for messages that come early, so fewer are taken: {error}"),
            ));
        }
    }

    #[cold]
    fn spoiled(&mut self, done: &Completion, buffer: u32) {
        // Flushed: its sender has given it up half-way.
        if done.status != Status::Flushed {
            self.nonsense(done, "a message larger than our buffers");
        }
        self.port.receive_into(buffer);
    }

    /// Something a peer may not send. It changes nothing; the first is told of.
    #[cold]
    fn nonsense(&mut self, done: &Completion, what: &str) -> bool {
        if !std::mem::replace(&mut self.nonsense_told, true) {
            let from = self.port.endpoint().source(done.source);
            let from = from.map_or_else(|| "somebody".into(), |from| from.node.to_string());
            let rail = self.port.rail();
            self.notes.push((
                Level::Warn,
                format!("peer {from} rail {rail}: dropped {what} ({} bytes)", done.len),
            ));
        }
        false
    }

    /// A message for a communicator. Whether its buffer is kept.
    #[inline]
    fn message(&mut self, done: &Completion, to: u32, seq: u16, tag: u32, bytes: Bytes) -> bool {
        let Some(key) = self.comm_of(done, to) else {
            return false;
        };
        let Some(comm) = self.comms.get_mut(key) else {
            return false;
        };
        let (State::Open, Side::Recv(recv)) = (comm.common.state, &mut comm.side) else {
            return false;
        };
        // SAFETY: the requests' buffers are NCCL's until they are done, and deregistering one withdraws it.
        match unsafe { recv.arrive(&mut self.port, seq, tag, bytes) } {
            Ok(Taken::Done { tag: None }) => false,
            Ok(Taken::Done { tag: Some(expected) }) => {
                self.tags_differ(key, tag, expected);
                false
            }
            Ok(Taken::Held) => true,
            Err(unfit) => {
                self.unfit(key, unfit);
                false
            }
        }
    }

    /// The communicator a peer names, if it is one with that peer.
    #[inline]
    pub(crate) fn comm_of(&mut self, done: &Completion, to: u32) -> Option<Key> {
        let key = self.comms.find_wire(to)?;
        let peer = self.comms.get(key)?.common.peer;
        if self.peers.sent_by(&mut self.port, peer, done.source) {
            return Some(key);
        }
        self.nonsense(done, "a message for somebody else's connection");
        None
    }

    /// Says once per communicator that the ranks may not mean the same message.
    #[cold]
    pub(crate) fn tags_differ(&mut self, key: Key, sent: u32, expected: u32) {
        let Some(comm) = self.comms.get_mut(key) else {
            return;
        };
        if std::mem::replace(&mut comm.common.tag_told, true) {
            return;
        }
        let peer = comm.common.peer;
        let note = self.about(
            peer,
            &format!("a message with tag {sent:#x} went to a receive with tag {expected:#x}: do the ranks run the same?"),
        );
        self.notes.push((Level::Warn, note));
    }

    /// A message cannot be taken: ends its communicator.
    #[cold]
    pub(crate) fn unfit(&mut self, key: Key, unfit: Unfit) {
        match unfit {
            Unfit::TooLong(closing) => self.too_long(key, closing, true),
            Unfit::Nonsense(what) => {
                self.fail(key, Blame::Peer, &format!("it has sent {}", what.0));
                self.tell_remote(key, Closing::Failed);
            }
        }
    }

    /// A control message.
    fn control(&mut self, done: &Completion, message: Message) {
        match message {
            Message::Ping | Message::Eager { .. } => {}
            Message::Connect {
                to,
                nonce,
                from,
                version,
            } => self.knock(done, to, nonce, from, version),
            Message::Accept {
                to,
                from,
                credits,
                eager,
            } => self.accepted(done, to, from, credits, eager),
            Message::Refuse { to, why } => self.refused(done, to, why),
            Message::Grant {
                to,
                seq,
                tag: _,
                addr,
                key,
                capacity,
            } => self.with_sender(done, to, |send| send.grant(seq, addr, key, capacity)),
            Message::Credit { to, posted } => self.with_sender(done, to, |send| send.credit(posted)),
            Message::Written { to, seq, tag, size } => {
                let seq = low16(seq);
                self.message(done, to, seq, tag, Bytes::Placed(size));
            }
            Message::Close { to, why } => self.closed(done, to, why),
        }
    }

    #[inline]
    fn with_sender(
        &mut self,
        done: &Completion,
        to: u32,
        f: impl FnOnce(&mut SendComm) -> Result<(), Nonsense>,
    ) {
        let Some(key) = self.comm_of(done, to) else {
            return;
        };
        let Some(comm) = self.comms.get_mut(key) else {
            return;
        };
        let Side::Send(send) = &mut comm.side else { return };
        match f(send) {
            Ok(()) => self.pump(key),
            Err(what) => self.unfit(key, Unfit::Nonsense(what)),
        }
    }

    /// The other side of a connection has ended.
    #[cold]
    fn closed(&mut self, done: &Completion, to: u32, why: Closing) {
        let Some(key) = self.comm_of(done, to) else {
            return;
        };
        match why {
            Closing::Closed => {
                if let Some(comm) = self.comms.get_mut(key)
                    && comm.common.state == State::Open
                {
                    comm.common.state = State::Closed;
                }
            }
            Closing::TooLong { .. } => self.too_long(key, why, false),
            Closing::Failed => self.fail(key, Blame::Peer, "its side of the connection has failed"),
        }
    }

    /// Our request to connect was refused.
    #[cold]
    fn refused(&mut self, done: &Completion, to: u32, why: Refusal) {
        let Some(key) = self.comm_of(done, to) else {
            return;
        };
        let (blame, why) = match why {
            Refusal::NoListener => (Blame::Peer, "nobody listens there any more"),
            Refusal::Version => (
                Blame::Usage,
                "it runs another version of the USB4 plugin: install the same on all hosts",
            ),
            Refusal::Full => (Blame::System, "it has as many connections as it can have"),
        };
        self.fail(key, blame, why);
    }

    /// Work of ours has ended.
    #[inline]
    fn ended(&mut self, done: &Completion) {
        let id = Id::from_raw(done.user_data);
        if done.status == Status::Ok && id.is(Kind::Request) {
            let (generation, slot, own) = id.request_parts();
            let found = self.comms.find(id.key().index, generation, COMM_GENERATION_MASK);
            let Some(key) = found else {
                return;
            };
            if let Some(comm) = self.comms.get_mut(key)
                && let Side::Send(send) = &mut comm.side
                && let Some(request) = send.requests.find(slot, own)
            {
                match request.state {
                    SendState::Placing => {
                        request.state = SendState::Placed;
                        self.pump(key);
                    }
                    // A piece of it is not where it belongs, whatever has come after.
                    SendState::Lost => {}
                    _ => request.state = SendState::Done,
                }
            }
            return;
        }
        self.ended_otherwise(done, id);
    }

    #[cold]
    fn ended_otherwise(&mut self, done: &Completion, id: Id) {
        if done.status == Status::Ok {
            return self.answered(id);
        }
        if matches!(done.status, Status::Access | Status::Flushed) && id.is(Kind::Request) {
            return self.withdrawn(id);
        }
        let (blame, gone, why) = self.meaning(done.status);
        if id.is(Kind::Probe) {
            if let Some(peer) = self.peers.get_mut(id.key()) {
                peer.probing = false;
            }
            return self.lose(id.key(), blame, why);
        }
        let key = if id.is(Kind::Request) {
            let (generation, ..) = id.request_parts();
            self.comms.find(id.key().index, generation, COMM_GENERATION_MASK)
        } else {
            Some(id.key())
        };
        let Some((key, comm)) = key.and_then(|key| Some((key, self.comms.get(key)?))) else {
            return;
        };
        let peer = comm.common.peer;
        if gone {
            self.lose(peer, blame, why);
        } else {
            self.fail(key, blame, why);
            self.tell_remote(key, Closing::Failed);
        }
    }

    /// The peer has withdrawn the buffer of a message, or NCCL the memory it comes from: one of them is closing its side, and
    /// this is no failure until somebody waits for the message.
    fn withdrawn(&mut self, id: Id) {
        let (generation, slot, own) = id.request_parts();
        let found = self.comms.find(id.key().index, generation, COMM_GENERATION_MASK);
        let Some(comm) = found.and_then(|key| self.comms.get_mut(key)) else {
            return;
        };
        if comm.common.state == State::Open {
            comm.common.state = State::Closed;
        }
        if let Side::Send(send) = &mut comm.side
            && let Some(request) = send.requests.find(slot, own)
        {
            request.state = SendState::Lost;
        }
    }

    /// A question has arrived: a probe, or a request to connect.
    fn answered(&mut self, id: Id) {
        if id.is(Kind::Probe) {
            if let Some(peer) = self.peers.get_mut(id.key()) {
                peer.probing = false;
            }
        } else if let Some(comm) = self.comms.get_mut(id.key())
            && let Side::Send(send) = &mut comm.side
        {
            send.asked = true;
        }
    }

    /// What a status says: who is to blame, whether the peer is gone, and why.
    fn meaning(&self, status: Status) -> (Blame, bool, &'static str) {
        match status {
            Status::LinkDown | Status::Unreachable if self.device.info().backend == Backend::Kernel => (
                Blame::System,
                true,
                "the link is down: was the cable pulled, or the host reset or switched off?",
            ),
            Status::LinkDown | Status::Unreachable => (
                Blame::Peer,
                true,
                "its process has ended, or the link to it is broken",
            ),
            Status::Gone => (
                Blame::Peer,
                true,
                "its process has ended, or has closed the plugin",
            ),
            Status::Access => (
                Blame::Peer,
                false,
                "it has withdrawn the buffer of a message under way",
            ),
            Status::Length => (Blame::Peer, false, "its buffers are smaller than it said"),
            Status::Resource => (Blame::Peer, false, "it is out of resources"),
            Status::Flushed => (Blame::System, false, "our endpoint was closed"),
            Status::Invalid => (Blame::Internal, false, "the device refused a request"),
            _ => (Blame::System, false, "an operation failed"),
        }
    }
}
