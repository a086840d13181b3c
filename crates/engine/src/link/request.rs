//! Requests of the peer that have their turn: what they do and what is answered.

use usb4_wire::{EpAddr, NakCode, Request, SendFirst, SendRef, Seq};

use super::Link;
use super::rx::PLANS_PER_REQUEST;
use crate::list::at_mut;
use crate::park::Place;
use crate::plan::Then;
use crate::rx_flow::{Message, RxState};
use crate::stream::Answer;
use crate::{
    Admission, Host, MemAt, MemRef, Nanos, Plan, Receive, ReceiveDone, RemoteAccess, RxToken, Status,
};

/// The chunk being executed.
#[derive(Clone, Copy)]
struct Now {
    now: Nanos,
    /// The flow.
    flow: u32,
    place: Place,
    /// Payload bytes.
    len: u16,
    /// It ends its message.
    last: bool,
}

/// The reference a receive holds.
pub(super) fn receive_mem(receive: &Receive) -> Option<MemRef> {
    (receive.capacity != 0).then_some(receive.at.mem)
}

impl Link {
    /// A SEND chunk without immediate data of an incoming flow. What nearly all of them are, a whole message or one
    /// of many in its middle that has its turn on an open flow, is executed here; the rest goes the way of all
    /// requests.
    #[inline(always)]
    pub(super) fn on_send<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        send: SendRef,
        token: RxToken,
        urgent: bool,
        host: &H,
    ) -> bool {
        let SendRef { seq, len, .. } = send;
        if !self.takes_short_ways() {
            return self.on_any_send(now, send, token, urgent, host);
        }
        let Self {
            rx_flows,
            tokens,
            plans,
            ..
        } = self;
        let room = plans.room() >= PLANS_PER_REQUEST;
        let flow = match at_mut(rx_flows, seq.flow) {
            Some(flow) if room && flow.is_plainly_next(seq) => flow,
            _ => return self.on_any_send(now, send, token, urgent, host),
        };
        let copy = |to| Plan::Copy {
            from: token,
            at: send.at,
            len,
            to,
        };
        match flow.message {
            Message::None if send.last && send.total == Some(u32::from(len)) && len != 0 => {
                let receive = match host.take_receive(flow.target, u32::from(len)) {
                    Ok(receive) if u32::from(len) <= receive.capacity => receive,
                    other => return self.refuse_whole(now, send, token, urgent, other, host),
                };
                let then = Then::Received {
                    flow: seq.flow,
                    written: None,
                    mem: Some(receive.at.mem),
                    done: ReceiveDone {
                        cookie: receive.cookie,
                        status: Status::Ok,
                        len: u32::from(len),
                        imm: None,
                        write: false,
                    },
                    counts: true,
                };
                plans.push(copy(receive.at), then);
            }
            Message::Send {
                ref receive,
                total,
                ref mut got,
                ..
            } if send.total.is_none() && *got == send.offset && !send.last => {
                let end = got.wrapping_add(u32::from(len));
                if end >= total {
                    return self.on_any_send(now, send, token, urgent, host);
                }
                let to = MemAt {
                    mem: receive.at.mem,
                    offset: receive.at.offset.wrapping_add(u64::from(*got)),
                };
                *got = end;
                plans.push(copy(to), Then::Executed { flow: seq.flow });
            }
            _ => return self.on_any_send(now, send, token, urgent, host),
        }
        flow.urgent |= urgent;
        flow.next_csn = flow.next_csn.wrapping_add(1);
        flow.plans = flow.plans.wrapping_add(1);
        tokens.hold(token);
        true
    }

    #[inline(never)]
    fn on_any_send<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        send: SendRef,
        token: RxToken,
        urgent: bool,
        host: &H,
    ) -> bool {
        let request = Request::Send {
            offset: send.offset,
            len: send.len,
            first: send.total.map(|total| SendFirst { total, imm: None }),
            last: send.last,
        };
        let place = Place { token, at: send.at };
        self.on_request(now, send.seq, &request, place, urgent, host)
    }

    /// There is no receive for a whole message, or it does not fit.
    #[cold]
    fn refuse_whole<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        send: SendRef,
        token: RxToken,
        urgent: bool,
        receive: Result<Receive, NakCode>,
        host: &H,
    ) -> bool {
        if let Some(flow) = at_mut(&mut self.rx_flows, send.seq.flow) {
            flow.urgent |= urgent;
        }
        let at = Now {
            now,
            flow: send.seq.flow,
            place: Place { token, at: send.at },
            len: send.len,
            last: true,
        };
        match receive {
            Ok(receive) => {
                let len = u32::from(send.len);
                self.refuse_message(at, &receive, (len, None), NakCode::Length, host);
            }
            Err(code) => self.refuse_receive(at, code, host),
        }
        true
    }

    /// Executes a request chunk that has its turn; the caller has made sure of the room.
    pub(super) fn execute<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        seq: Seq,
        request: &Request,
        place: Place,
        host: &H,
    ) {
        let mut at = Now {
            now,
            flow: seq.flow,
            place,
            len: 0,
            last: true,
        };
        let Some(flow) = at_mut(&mut self.rx_flows, seq.flow) else {
            return;
        };
        if flow.state == RxState::Refused && !matches!(request, Request::FlowClose) {
            self.cut_message(now, seq.flow, host);
            return self.skip(at, host);
        }
        if flow.state == RxState::Unready && !self.admit(&mut at, request, host) {
            return;
        }
        match *request {
            Request::Send {
                offset,
                len,
                first,
                last,
            } => {
                (at.len, at.last) = (len, last);
                self.execute_send(at, offset, first, host);
            }
            Request::Write {
                total,
                len,
                remote_addr,
                remote_key,
                first,
                last,
                imm,
            } => {
                (at.len, at.last) = (len, last);
                self.execute_write(at, total, (remote_key, remote_addr), first, imm, host);
            }
            Request::Read {
                req_id,
                len,
                remote_addr,
                remote_key,
            } => {
                self.execute_read(at, req_id, len, (remote_key, remote_addr), host);
            }
            Request::FetchAdd {
                req_id,
                remote_addr,
                remote_key,
                add,
            } => {
                let plan = |at| Plan::FetchAdd { at, add };
                self.execute_atomic(at, req_id, (remote_key, remote_addr), plan, host);
            }
            Request::CompareSwap {
                req_id,
                remote_addr,
                remote_key,
                compare,
                swap,
            } => {
                let plan = |at| Plan::CompareSwap { at, compare, swap };
                self.execute_atomic(at, req_id, (remote_key, remote_addr), plan, host);
            }
            Request::FlowOpen {
                src_ep,
                src_incarnation,
                dst_ep,
                dst_incarnation,
            } => {
                let src = EpAddr {
                    node: self.config.peer,
                    ep: src_ep,
                    incarnation: src_incarnation,
                };
                self.execute_open(at, seq, &src, (dst_ep, dst_incarnation), host);
            }
            Request::FlowClose => self.execute_close(at, host),
            Request::Cut => {
                self.cut_message(now, seq.flow, host);
                self.skip(at, host);
            }
        }
    }

    #[inline(never)]
    fn execute_send<H: Host + ?Sized>(&mut self, at: Now, offset: u32, first: Option<SendFirst>, host: &H) {
        let Some(flow) = at_mut(&mut self.rx_flows, at.flow) else {
            return;
        };
        let (receive, total, got, imm) = match (first, flow.message) {
            (None, Message::Discard) => return self.skip(at, host),
            (
                None,
                Message::Send {
                    receive,
                    total,
                    got,
                    imm,
                },
            ) if got == offset => (receive, total, got, imm),
            (Some(SendFirst { total, imm }), Message::None) => match host.take_receive(flow.target, total) {
                Ok(receive) if total <= receive.capacity => (receive, total, 0, imm),
                Ok(receive) => {
                    return self.refuse_message(at, &receive, (total, imm), NakCode::Length, host);
                }
                Err(code) => return self.refuse_receive(at, code, host),
            },
            _ => return self.broken(at, host),
        };
        let end = got.wrapping_add(u32::from(at.len));
        if end > total || at.last != (end == total) {
            return self.broken(at, host);
        }
        if let Some(word) = imm.filter(|_| at.last) {
            if let Err(code) = host.arriving(flow.target, word) {
                return self.refuse_message(at, &receive, (total, imm), code, host);
            }
        }
        let to = MemAt {
            mem: receive.at.mem,
            offset: receive.at.offset.wrapping_add(u64::from(got)),
        };
        let done = ReceiveDone {
            cookie: receive.cookie,
            status: Status::Ok,
            len: total,
            imm,
            write: false,
        };
        if at.last {
            let mem = receive_mem(&receive);
            let then = Then::Received {
                flow: at.flow,
                written: None,
                mem,
                done,
                counts: true,
            };
            flow.message = Message::None;
            self.place(at, to, then, host);
        } else {
            flow.message = Message::Send {
                receive,
                total,
                got: end,
                imm,
            };
            self.place(at, to, Then::Executed { flow: at.flow }, host);
        }
    }

    fn execute_write<H: Host + ?Sized>(
        &mut self,
        at: Now,
        total: u32,
        (key, addr): (u64, u64),
        first: bool,
        imm: Option<u64>,
        host: &H,
    ) {
        let Some(flow) = at_mut(&mut self.rx_flows, at.flow) else {
            return;
        };
        let got = match flow.message {
            Message::Discard if !first => return self.skip(at, host),
            Message::None if first => 0,
            Message::Write { total: whole, got } if !first && whole == total => got,
            _ => return self.broken(at, host),
        };
        let end = got.wrapping_add(u32::from(at.len));
        if end > total || at.last != (end == total) {
            return self.broken(at, host);
        }
        let target = flow.target;
        // A write of nothing touches nothing, so it needs no right.
        let to = if at.len == 0 {
            None
        } else {
            match host.remote_access(target, key, addr, u32::from(at.len), RemoteAccess::Write) {
                Ok(to) => Some(to),
                Err(code) => return self.reject(at, code, host),
            }
        };
        let written = to.map(|to| to.mem);
        let to = to.unwrap_or(MemAt {
            mem: MemRef(0),
            offset: 0,
        });
        let Some(imm) = imm else {
            flow.message = if at.last {
                Message::None
            } else {
                Message::Write { total, got: end }
            };
            let then = match written {
                Some(mem) => Then::Written { flow: at.flow, mem },
                None => Then::Executed { flow: at.flow },
            };
            return self.place(at, to, then, host);
        };
        match host.take_receive(target, 0) {
            Ok(receive) => {
                flow.message = Message::None;
                let cookie = receive.cookie;
                let done = ReceiveDone {
                    cookie,
                    status: Status::Ok,
                    len: total,
                    imm: Some(imm),
                    write: true,
                };
                let mem = receive_mem(&receive);
                let then = Then::Received {
                    flow: at.flow,
                    written,
                    mem,
                    done,
                    counts: true,
                };
                self.place(at, to, then, host);
            }
            Err(code) => {
                if let Some(mem) = written {
                    host.release(mem);
                }
                // Without a receive the message stays as it is: the peer resumes with this very chunk.
                self.refuse_receive(at, code, host);
            }
        }
    }

    fn execute_read<H: Host + ?Sized>(
        &mut self,
        at: Now,
        req_id: u32,
        len: u32,
        (key, addr): (u64, u64),
        host: &H,
    ) {
        let Some(flow) = at_mut(&mut self.rx_flows, at.flow) else {
            return;
        };
        if flow.message != Message::None {
            return self.broken(at, host);
        }
        if !flow.may_ask() {
            return self.reject(at, NakCode::Unsupported, host);
        }
        let from = match host.remote_access(flow.target, key, addr, len, RemoteAccess::Read) {
            Ok(from) => from,
            Err(code) => return self.reject(at, code, host),
        };
        match self.streams.alloc(req_id, Answer::Read { from, len }) {
            Some(stream) => {
                flow.answers = flow.answers.wrapping_add(1);
                let then = Then::Streamed {
                    flow: at.flow,
                    stream,
                };
                self.take_turn(at, then, host);
            }
            None => {
                host.release(from.mem);
                self.reject(at, NakCode::Resource, host);
            }
        }
    }

    fn execute_atomic<H: Host + ?Sized>(
        &mut self,
        at: Now,
        req_id: u32,
        (key, addr): (u64, u64),
        plan: impl FnOnce(MemAt) -> Plan,
        host: &H,
    ) {
        let Some(flow) = at_mut(&mut self.rx_flows, at.flow) else {
            return;
        };
        if flow.message != Message::None {
            return self.broken(at, host);
        }
        if !flow.may_ask() {
            return self.reject(at, NakCode::Unsupported, host);
        }
        if addr & 7 != 0 {
            return self.reject(at, NakCode::Access, host);
        }
        let target = match host.remote_access(flow.target, key, addr, 8, RemoteAccess::Atomic) {
            Ok(target) => target,
            Err(code) => return self.reject(at, code, host),
        };
        match self.streams.alloc(req_id, Answer::Atomic { value: 0 }) {
            Some(stream) => {
                flow.answers = flow.answers.wrapping_add(1);
                self.advance(at.flow);
                self.queue_plan(
                    plan(target),
                    Then::Atomic {
                        flow: at.flow,
                        stream,
                        mem: target.mem,
                    },
                );
            }
            None => {
                host.release(target.mem);
                self.reject(at, NakCode::Resource, host);
            }
        }
    }

    fn execute_open<H: Host + ?Sized>(
        &mut self,
        at: Now,
        seq: Seq,
        src: &EpAddr,
        (dst_ep, dst_incarnation): (u32, u32),
        host: &H,
    ) {
        let Some(flow) = at_mut(&mut self.rx_flows, at.flow) else {
            return;
        };
        if flow.state != RxState::Waiting {
            // Chunk 0 of a later round of the numbers.
            return self.broken(at, host);
        }
        flow.open_epoch = seq.epoch;
        flow.epoch = seq.epoch;
        match host.open_flow(src, dst_ep, dst_incarnation) {
            Ok(target) => {
                flow.state = RxState::Unready;
                flow.target = target;
                flow.has_target = true;
                if let Ok(Admission::Reads(reads)) = host.admit(target) {
                    flow.state = RxState::Open;
                    flow.max_answers = reads;
                }
            }
            Err(code) => {
                flow.state = RxState::Refused;
                self.queue_nak(at.flow, final_code(code));
            }
        }
        self.skip(at, host);
    }

    /// Asks whether a target that has taken nothing yet takes a request now. If not, the request has been seen to.
    #[cold]
    fn admit<H: Host + ?Sized>(&mut self, at: &mut Now, request: &Request, host: &H) -> bool {
        at.last = match *request {
            Request::FlowOpen { .. } | Request::FlowClose | Request::Cut => return true,
            Request::Send { last, .. } | Request::Write { last, .. } => last,
            Request::Read { .. } | Request::FetchAdd { .. } | Request::CompareSwap { .. } => true,
        };
        let Some(flow) = at_mut(&mut self.rx_flows, at.flow) else {
            return false;
        };
        let wants_answer = !matches!(request, Request::Send { .. } | Request::Write { .. });
        match host.admit(flow.target) {
            Ok(Admission::Reads(reads)) => {
                flow.state = RxState::Open;
                flow.max_answers = reads;
                return true;
            }
            Ok(Admission::Later) => self.not_ready(at.flow, NakCode::NotReady),
            Ok(Admission::Drop) if wants_answer => self.reject(*at, NakCode::Unsupported, host),
            Ok(Admission::Drop) => {
                flow.message = Message::Discard;
                self.skip(*at, host);
            }
            Err(code) => self.reject(*at, code, host),
        }
        false
    }

    fn execute_close<H: Host + ?Sized>(&mut self, at: Now, host: &H) {
        self.cut_message(at.now, at.flow, host);
        let Some(flow) = at_mut(&mut self.rx_flows, at.flow) else {
            return;
        };
        flow.state = RxState::Closing;
        flow.nak = None;
        flow.ready = false;
        self.purge_requests(at.flow);
        self.take_turn(at, Then::Closed { flow: at.flow }, host);
    }

    /// The chunk is executed and has no effect: the rest of a refused message, or a flow without a target.
    fn skip<H: Host + ?Sized>(&mut self, at: Now, host: &H) {
        if at.last {
            if let Some(flow) = at_mut(&mut self.rx_flows, at.flow) {
                flow.message = Message::None;
            }
        }
        self.take_turn(at, Then::Executed { flow: at.flow }, host);
    }

    /// The operation is refused; the rest of its message has no effect, later ones have.
    fn reject<H: Host + ?Sized>(&mut self, at: Now, code: NakCode, host: &H) {
        self.queue_nak(at.flow, final_code(code));
        if code == NakCode::Gone {
            self.cut_message(at.now, at.flow, host);
        }
        if let Some(flow) = at_mut(&mut self.rx_flows, at.flow) {
            if code == NakCode::Gone {
                flow.state = RxState::Refused;
            }
            if flow.has_target {
                host.refused(flow.target, code);
            }
            flow.message = Message::Discard;
        }
        self.skip(at, host);
    }

    /// The chunk contradicts the message it belongs to, or interrupts one.
    #[cold]
    fn broken<H: Host + ?Sized>(&mut self, at: Now, host: &H) {
        self.violation();
        self.cut_message(at.now, at.flow, host);
        self.reject(at, NakCode::Unsupported, host);
    }

    /// A receive the flow has taken for a message that will not be complete comes back flushed.
    pub(super) fn cut_message<H: Host + ?Sized>(&mut self, now: Nanos, index: u32, host: &H) {
        let Some(flow) = at_mut(&mut self.rx_flows, index) else {
            return;
        };
        let Message::Send { receive, .. } = flow.message else {
            return;
        };
        flow.message = Message::None;
        let cookie = receive.cookie;
        let done = ReceiveDone {
            cookie,
            status: Status::Flushed,
            len: 0,
            imm: None,
            write: false,
        };
        let mem = receive_mem(&receive);
        let then = Then::Received {
            flow: index,
            written: None,
            mem,
            done,
            counts: false,
        };
        self.follow(now, index, then, host);
    }

    /// The message does not fit, or asks for something it has no right to: its receive ends with this chunk, which is not
    /// placed.
    #[cold]
    fn refuse_message<H: Host + ?Sized>(
        &mut self,
        at: Now,
        receive: &Receive,
        (total, imm): (u32, Option<u64>),
        code: NakCode,
        host: &H,
    ) {
        self.queue_nak(at.flow, code);
        if let Some(flow) = at_mut(&mut self.rx_flows, at.flow) {
            flow.message = if at.last { Message::None } else { Message::Discard };
            host.refused(flow.target, code);
        }
        let then = Then::Received {
            flow: at.flow,
            written: None,
            mem: receive_mem(receive),
            done: ReceiveDone {
                cookie: receive.cookie,
                status: Status::Refused(code),
                len: total,
                imm,
                write: false,
            },
            counts: true,
        };
        self.take_turn(at, then, host);
    }

    /// The host has no receive for the chunk.
    #[cold]
    fn refuse_receive<H: Host + ?Sized>(&mut self, at: Now, code: NakCode, host: &H) {
        match code {
            NakCode::Rnr => self.not_ready(at.flow, code),
            code => self.reject(at, code, host),
        }
    }

    /// No receive is posted, or the target is not ready: the chunk keeps its turn, everything behind it is discarded.
    fn not_ready(&mut self, index: u32, code: NakCode) {
        self.queue_nak(index, code);
        if let Some(flow) = at_mut(&mut self.rx_flows, index) {
            flow.rnr = true;
        }
        self.not_ready.push(&mut self.rx_flows, index);
        self.purge_requests(index);
    }

    /// A NAK for the chunk that has its turn.
    pub(super) fn queue_nak(&mut self, index: u32, code: NakCode) {
        if let Some(flow) = at_mut(&mut self.rx_flows, index) {
            flow.nak = Some(code);
            flow.nak_csn = flow.next_csn;
        }
        self.respond.push(&mut self.rx_flows, index);
    }

    /// Places the payload, if there is some, and goes on with `then` afterwards. Always inlined: `then` is written
    /// where it stays.
    #[inline(always)]
    fn place<H: Host + ?Sized>(&mut self, at: Now, to: MemAt, then: Then, host: &H) {
        if at.len == 0 {
            return self.take_turn(at, then, host);
        }
        let Place {
            token: from,
            at: payload,
        } = at.place;
        self.tokens.hold(from);
        if let Some(flow) = at_mut(&mut self.rx_flows, at.flow) {
            flow.next_csn = flow.next_csn.wrapping_add(1);
            flow.plans = flow.plans.wrapping_add(1);
        }
        self.plans.push(
            Plan::Copy {
                from,
                at: payload,
                len: at.len,
                to,
            },
            then,
        );
    }

    /// The chunk has had its turn; `then` follows what the flow has under way.
    #[inline]
    fn take_turn<H: Host + ?Sized>(&mut self, at: Now, then: Then, host: &H) {
        self.advance(at.flow);
        self.follow(at.now, at.flow, then, host);
    }

    #[inline]
    fn advance(&mut self, index: u32) {
        if let Some(flow) = at_mut(&mut self.rx_flows, index) {
            flow.next_csn = flow.next_csn.wrapping_add(1);
        }
    }
}

/// Only the lack of a receive, or of a ready target, is answered by a replay.
fn final_code(code: NakCode) -> NakCode {
    if code.is_resumed() {
        NakCode::Resource
    } else {
        code
    }
}
