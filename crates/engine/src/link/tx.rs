//! Frames out, first half: which chunks go into the next frame.

use usb4_wire::{Chunk, NakCode, Request, Response, SendFirst, Seq, csn_before};

use super::Link;
use crate::frame::{Composer, Step};
use crate::list::{NONE, at, at_mut};
use crate::op::Op;
use crate::rail::{Class, NEVER, Rail};
use crate::rx_flow::RxState;
use crate::slot::Frame;
use crate::stream::Answer;
use crate::tx_flow::TxFlow;
use crate::{Host, MemAt, Nanos, Operation, Source, Staged, Status, TxSlot};

/// EXEC_ACKs that ride along in a frame with requests.
const REPORTS_ABOARD: u32 = 4;

impl Link {
    /// Composes the next frame, if there is something to send and the rails can take it soon. True: gather it
    /// and call [`Link::staged`].
    #[inline]
    pub fn stage<H: Host + ?Sized>(&mut self, now: Nanos, host: &H, out: &mut Staged) -> bool {
        self.ask_again = false;
        let report = self.is_report_due(now);
        let seldom = self.has_seldom();
        // Homes ask until there is nothing: that answer is as frequent as the others.
        if (!seldom && !report && self.active.is_empty()) || self.failed {
            return false;
        }
        self.stage_frame(now, report, seldom, host, out)
    }

    /// Whether something is to be sent that seldom is, or that takes precautions.
    #[inline(always)]
    pub(super) fn has_seldom(&self) -> bool {
        self.respond.bits() & self.read_wait.bits() != NONE
            || self.join_offer.is_some()
            || self.resting
            || self.probe_wanted
    }

    /// `report`: the peer must be told of progress now; `seldom`: something is to be sent that seldom is.
    #[inline(never)]
    fn stage_frame<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        report: bool,
        seldom: bool,
        host: &H,
        out: &mut Staged,
    ) -> bool {
        if !seldom && self.takes_short_ways() && self.stage_plain(report, host, out).is_some() {
            self.resume_stalled(now, host);
            return true;
        }
        self.stage_any(now, report, host, out)
    }

    #[inline(never)]
    fn stage_any<H: Host + ?Sized>(&mut self, now: Nanos, report: bool, host: &H, out: &mut Staged) -> bool {
        if self.resting {
            self.end_rests();
        }
        if !self.read_wait.is_empty() {
            self.wake_readers();
        }
        // Whatever was sent meanwhile may have been the probe, or news may have come.
        self.probe_wanted = self.probe_wanted && self.any_rail(Rail::probe_due);
        // On a link's only rail, a frame with chunks is as good as a probe.
        if self.probe_wanted && self.rails_up > 1 && self.stage_probe(host, out) {
            return true;
        }
        self.stage_chunks(now, report, host, out) || (self.probe_wanted && self.stage_probe(host, out))
    }

    #[inline]
    fn stage_chunks<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        report: bool,
        host: &H,
        out: &mut Staged,
    ) -> bool {
        let requests = !self.active.is_empty() && self.can_stage_requests();
        let answers = report || !self.respond.is_empty() || self.join_offer.is_some();
        let responses = answers && self.can_stage_responses();
        let slot = self.slots.peek_free().filter(|_| requests || responses);
        let Some(slot) = slot else {
            self.held_up |= answers;
            return false;
        };
        let payload_crc = self.config.payload_crc;
        let mut frame = Composer::new(out, self.config.frame_size, payload_crc, self.slots.next_gather());
        if let Some(nonce) = self.join_offer.take() {
            frame.response(&Chunk::Join { nonce });
        }
        // Refusals come before the progress that covers them.
        let mut full = self.add_responses(&mut frame, host) == Step::Full;
        if report {
            full |= self.add_reports(&mut frame, u32::MAX) == Step::Full;
        }
        if requests && !full && !frame.nak {
            full = self.add_requests(&mut frame, host) == Step::Full;
        }
        if !report && !full && !frame.is_empty() {
            self.add_reports(&mut frame, REPORTS_ABOARD);
        }
        if frame.is_empty() {
            return false;
        }
        let response = !frame.requests;
        let (flow, epoch) = if frame.responses {
            (NONE, 0)
        } else {
            (frame.flow, frame.epoch)
        };
        let urgent = self.active.is_empty() && (frame.ends_bulk || self.ops.is_low());
        let ack_now = urgent || !self.slots.has_for_requests();
        let chunks = frame.chunks();
        let head_len = frame.finish(payload_crc);
        let crc = host.crc32c(0, out.head());
        let len = out.len;
        out.slot = slot;
        self.slots.stage(
            chunks,
            Frame {
                response,
                ack_now,
                flow,
                epoch,
                crc,
                head_len,
                len,
            },
        );
        self.resume_stalled(now, host);
        true
    }

    /// The frame in `slot` has been gathered and may be posted.
    pub fn staged<H: Host + ?Sized>(&mut self, now: Nanos, slot: TxSlot, host: &H) {
        if !self.slots.gathered(slot) {
            return;
        }
        if self.failed {
            return self.finish_failing(host);
        }
        self.resume_blocked(host);
        self.resume_stalled(now, host);
    }

    /// Requests wait until a rail has room for them, so that what is posted meanwhile can share a frame.
    #[inline]
    pub(super) fn can_stage_requests(&self) -> bool {
        let waiting = self
            .slots
            .waiting_requests()
            .wrapping_add(self.slots.waiting_responses());
        waiting < u32::from(self.config.max_ready)
            && self.slots.has_for_requests()
            && self.slots.may_park_requests()
            && self.slots.front_resend().is_none()
            && self.any_rail(|rail| rail.can_send(Class::Request))
    }

    #[inline]
    fn can_stage_responses(&self) -> bool {
        self.slots.waiting_responses() < u32::from(self.config.max_ready)
            && self.slots.has_for_responses()
            && self.slots.may_park_responses()
            && self.any_rail(|rail| rail.can_send(Class::Response))
    }

    /// Whether the peer must be told of progress now: an acknowledgement that is due carries it, too.
    #[inline]
    pub(super) fn is_report_due(&self, now: Nanos) -> bool {
        !self.report.is_empty() && (self.report_at <= now || self.any_rail(|rail| rail.ack_due(now)))
    }

    /// Flows whose next operation is a read come back while the peer has read slots.
    #[inline]
    fn wake_readers(&mut self) {
        let mut slots = self.config.peer_max_reads.saturating_sub(self.reads);
        while slots != 0 {
            let Some(index) = self.read_wait.pop(&mut self.tx_flows) else {
                return;
            };
            self.active.push(&mut self.tx_flows, index);
            slots = slots.wrapping_sub(1);
        }
    }

    /// Adds request chunks, one per flow in turn.
    #[inline]
    fn add_requests<H: Host + ?Sized>(&mut self, frame: &mut Composer<'_>, host: &H) -> Step {
        while let Some(index) = self.active.front() {
            if frame.is_full() {
                return Step::Full;
            }
            let step = self.add_request(index, frame, host);
            if step == Step::Full {
                return step;
            }
            let more = at(&self.tx_flows, index).is_some_and(TxFlow::wants_to_send);
            let alone = self.active.back() == Some(index);
            if more && alone && step == Step::Added {
                continue;
            }
            self.active.pop(&mut self.tx_flows);
            if more && step == Step::Added {
                self.active.push(&mut self.tx_flows, index);
            }
        }
        Step::Nothing
    }

    /// Adds the next request chunk of a flow.
    #[inline]
    fn add_request<H: Host + ?Sized>(&mut self, index: u32, frame: &mut Composer<'_>, host: &H) -> Step {
        let Some(flow) = at_mut(&mut self.tx_flows, index) else {
            return Step::Nothing;
        };
        if !flow.wants_to_send() {
            return Step::Nothing;
        }
        let seq = Seq {
            flow: index,
            epoch: flow.epoch,
            csn: flow.next_csn,
        };
        if !flow.opened {
            let open = Request::FlowOpen {
                src_ep: flow.src_ep,
                src_incarnation: flow.src_incarnation,
                dst_ep: flow.dst_ep,
                dst_incarnation: flow.dst_incarnation,
            };
            if frame.room_for(32).is_none() {
                return Step::Full;
            }
            flow.opened = true;
            flow.next_csn = 1;
            return frame.request(seq, open);
        }
        if flow.undone != 0
            && self
                .ops
                .get(flow.cursor)
                .is_some_and(|op| op.fenced && !op.started)
        {
            flow.held = true;
            return Step::Nothing;
        }
        let Some(op) = self.ops.get_mut(flow.cursor) else {
            // The flow closes.
            if frame.room_for(16).is_none() {
                return Step::Full;
            }
            flow.closed = true;
            flow.next_csn = flow.next_csn.wrapping_add(1);
            return frame.request(seq, Request::FlowClose);
        };
        let part = match op.work.op {
            Operation::Send { .. } | Operation::Write { .. } if op.started && op.status != Status::Ok => {
                end_refused(op, seq, frame)
            }
            Operation::Send { .. } | Operation::Write { .. } if !op.can_be_read(host) => cut(op, seq, frame),
            Operation::Send { .. } if op.started => next_of_send(op, seq, frame),
            Operation::Send { .. } => first_of_send(op, seq, frame),
            Operation::Write { .. } => part_of_write(op, seq, frame),
            Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                if self.reads >= self.config.peer_max_reads {
                    self.read_wait.push(&mut self.tx_flows, index);
                    return Step::Nothing;
                }
                if flow.reads >= flow.limits.reads {
                    flow.held = true;
                    return Step::Nothing;
                }
                let part = whole_read(op, flow.cursor, seq, frame);
                if part.is_some() {
                    self.reads = self.reads.wrapping_add(1);
                    flow.reads = flow.reads.wrapping_add(1);
                    flow.undone = flow.undone.wrapping_add(1);
                }
                part
            }
        };
        let Some(Part { len, last }) = part else {
            return Step::Full;
        };
        flow.next_csn = seq.csn.wrapping_add(1);
        if last {
            flow.cursor = op.link;
            frame.ends_bulk |= op.started;
        }
        op.staged(seq.csn, len, last);
        Step::Added
    }

    /// Adds refusals, READYs and answers, one per flow in turn.
    #[inline]
    fn add_responses<H: Host + ?Sized>(&mut self, frame: &mut Composer<'_>, host: &H) -> Step {
        while let Some(index) = self.respond.pop(&mut self.rx_flows) {
            match self.add_response(index, frame, host) {
                Step::Added => {
                    let more = at_mut(&mut self.rx_flows, index).is_some_and(|flow| flow.wants_to_respond());
                    if more {
                        self.respond.push(&mut self.rx_flows, index);
                    }
                }
                Step::Full => {
                    self.respond.push_front(&mut self.rx_flows, index);
                    return Step::Full;
                }
                Step::Nothing => {}
            }
        }
        Step::Nothing
    }

    fn add_response<H: Host + ?Sized>(&mut self, index: u32, frame: &mut Composer<'_>, host: &H) -> Step {
        let Some(flow) = at_mut(&mut self.rx_flows, index) else {
            return Step::Nothing;
        };
        if !flow.wants_to_respond() {
            return Step::Nothing;
        }
        // Longer than every response header.
        if frame.room_for(24).is_none() {
            return Step::Full;
        }
        let mut seq = Seq {
            flow: index,
            epoch: flow.open_epoch,
            csn: flow.response_csn,
        };
        let response = if let Some(code) = flow.nak.take() {
            let mut csn = flow.nak_csn;
            if code == NakCode::Gone && csn_before(flow.executed, csn) {
                // It confirms what is before it.
                csn = flow.executed;
            }
            if core::mem::take(&mut flow.gone) {
                flow.nak = Some(NakCode::Gone);
                flow.nak_csn = flow.next_csn;
            }
            frame.nak = true;
            if !flow.parked.is_empty() {
                self.stalled_requests.push(&mut self.rx_flows, index);
            }
            self.count_nak(code);
            Response::Nak { csn, code }
        } else if core::mem::take(&mut flow.ready) {
            seq.epoch = flow.epoch;
            Response::Ready { csn: flow.next_csn }
        } else {
            let Some(stream_index) = flow.streams.front() else {
                return Step::Nothing;
            };
            let Some(stream) = self.streams.get_mut(stream_index) else {
                return Step::Nothing;
            };
            let req_id = stream.req_id;
            match stream.answer {
                Answer::Atomic { value } => {
                    flow.answered();
                    flow.streams.pop(&mut self.streams.slab);
                    self.streams.free(stream_index);
                    Response::Atomic { req_id, value }
                }
                Answer::Read { from, .. } if !host.lives(from.mem) => {
                    flow.answered();
                    flow.streams.pop(&mut self.streams.slab);
                    self.streams.ending.push(&mut self.streams.slab, stream_index);
                    Response::ReadCut { req_id }
                }
                Answer::Read { from, len: total } => {
                    let offset = stream.sent;
                    let rest = total.wrapping_sub(offset);
                    let Some(len) = frame.share(24, rest) else {
                        return Step::Full;
                    };
                    let last = u32::from(len) == rest;
                    let at = MemAt {
                        mem: from.mem,
                        offset: from.offset.wrapping_add(u64::from(offset)),
                    };
                    frame.piece(0, Source::Mem(at), len);
                    stream.gather = frame.gather;
                    stream.sent = offset.wrapping_add(u32::from(len));
                    if last {
                        frame.ends_bulk |= offset != 0;
                        flow.answered();
                        flow.streams.pop(&mut self.streams.slab);
                        self.streams.ending.push(&mut self.streams.slab, stream_index);
                    }
                    Response::ReadData {
                        req_id,
                        offset,
                        len,
                        last,
                    }
                }
            }
        };
        if let Some(flow) = at_mut(&mut self.rx_flows, index) {
            flow.response_csn = flow.response_csn.wrapping_add(1);
        }
        frame.response(&Chunk::Response(seq, response))
    }

    /// Adds up to `limit` EXEC_ACKs.
    #[inline]
    fn add_reports(&mut self, frame: &mut Composer<'_>, limit: u32) -> Step {
        let mut added = 0u32;
        let step = loop {
            if added == limit {
                break Step::Added;
            }
            let Some(index) = self.report.front() else {
                break Step::Nothing;
            };
            let Some(flow) = at_mut(&mut self.rx_flows, index) else {
                break Step::Nothing;
            };
            // A refusal that is still to be sent comes first.
            if frame.room_for(16).is_none() || flow.nak.is_some() {
                break Step::Full;
            }
            if !matches!(flow.state, RxState::Free | RxState::Waiting) {
                let seq = Seq {
                    flow: index,
                    epoch: flow.open_epoch,
                    csn: flow.response_csn,
                };
                frame.response(&Chunk::Response(seq, Response::ExecAck { csn: flow.executed }));
                flow.response_csn = flow.response_csn.wrapping_add(1);
                added = added.wrapping_add(1);
            }
            if flow.state == RxState::Closed {
                // The peer may open the flow again as soon as it has read this.
                flow.reset(RxState::Free);
            }
            self.report.pop(&mut self.rx_flows);
        };
        if self.report.is_empty() {
            self.unreported = 0;
            self.report_at = NEVER;
        }
        step
    }
}

/// The part of an operation a chunk carries.
struct Part {
    len: u16,
    /// It ends the operation.
    last: bool,
}

impl Part {
    /// Adds the chunk; `None` if there is no room.
    #[inline(always)]
    fn add(self, seq: Seq, request: Request, frame: &mut Composer<'_>) -> Option<Self> {
        (frame.request(seq, request) == Step::Added).then_some(self)
    }
}

/// The peer waits for the end of a message it has refused: a byte ends it.
#[cold]
fn end_refused(op: &mut Op, seq: Seq, frame: &mut Composer<'_>) -> Option<Part> {
    frame.share(40, 1)?;
    frame.piece(0, Source::Bytes([0; 24]), 1);
    let request = match op.work.op {
        Operation::Send { .. } => Request::Send {
            offset: op.sent,
            len: 1,
            first: None,
            last: true,
        },
        _ => Request::Write {
            total: op.total,
            len: 1,
            remote_addr: 0,
            remote_key: 0,
            first: false,
            last: true,
            imm: None,
        },
    };
    Part { len: 1, last: true }.add(seq, request, frame)
}

/// The memory it is sent from has been taken back: the peer is told that nothing more comes.
#[cold]
fn cut(op: &mut Op, seq: Seq, frame: &mut Composer<'_>) -> Option<Part> {
    let part = Part { len: 0, last: true }.add(seq, Request::Cut, frame)?;
    if op.status == Status::Ok {
        op.status = Status::Flushed;
    }
    Some(part)
}

/// The first part of a SEND, with its prefix. It fits: no first part is shorter than the longest prefix, unless
/// the message is.
#[inline(never)]
fn first_of_send(op: &mut Op, seq: Seq, frame: &mut Composer<'_>) -> Option<Part> {
    let Operation::Send {
        imm,
        ref prefix,
        prefix_len,
    } = op.work.op
    else {
        return None;
    };
    let len = frame.share(if imm.is_some() { 32 } else { 24 }, op.total)?;
    let prefix_len = u16::from(prefix_len);
    if prefix_len != 0 {
        frame.piece(0, Source::Bytes(*prefix), prefix_len);
    }
    if let Some(at) = op.work.local {
        frame.piece(prefix_len, Source::Mem(at), len.wrapping_sub(prefix_len));
        op.gather = frame.gather;
    }
    let last = u32::from(len) == op.total;
    let request = Request::Send {
        offset: 0,
        len,
        first: Some(SendFirst { total: op.total, imm }),
        last,
    };
    Part { len, last }.add(seq, request, frame)
}

/// A later part of a SEND.
#[inline(never)]
fn next_of_send(op: &mut Op, seq: Seq, frame: &mut Composer<'_>) -> Option<Part> {
    let Operation::Send { prefix_len, .. } = op.work.op else {
        return None;
    };
    let rest = op.total.wrapping_sub(op.sent);
    let len = frame.share(16, rest)?;
    if let Some(at) = op.local_at(op.sent.wrapping_sub(u32::from(prefix_len))) {
        frame.piece(0, Source::Mem(at), len);
        op.gather = frame.gather;
    }
    let last = u32::from(len) == rest;
    let request = Request::Send {
        offset: op.sent,
        len,
        first: None,
        last,
    };
    Part { len, last }.add(seq, request, frame)
}

/// A part of a WRITE. The immediate travels with the last chunk, so a part that would be the last one without it may
/// have to leave that to a chunk of its own.
#[inline(never)]
fn part_of_write(op: &mut Op, seq: Seq, frame: &mut Composer<'_>) -> Option<Part> {
    let Operation::Write {
        remote_addr,
        remote_key,
        imm,
    } = op.work.op
    else {
        return None;
    };
    let rest = op.total.wrapping_sub(op.sent);
    let mut len = frame.share(32, rest)?;
    if imm.is_some() && u32::from(len) == rest {
        len = frame.share(40, rest)?;
    }
    let last = u32::from(len) == rest;
    if let Some(at) = op.local_at(op.sent) {
        frame.piece(0, Source::Mem(at), len);
        op.gather = frame.gather;
    }
    let request = Request::Write {
        total: op.total,
        len,
        remote_addr: remote_addr.wrapping_add(u64::from(op.sent)),
        remote_key,
        first: !op.started,
        last,
        imm: if last { imm } else { None },
    };
    Part { len, last }.add(seq, request, frame)
}

/// A read or an atomic: one chunk without payload.
#[inline(never)]
fn whole_read(op: &mut Op, req_id: u32, seq: Seq, frame: &mut Composer<'_>) -> Option<Part> {
    let request = match op.work.op {
        Operation::Read {
            remote_addr,
            remote_key,
        } => Request::Read {
            req_id,
            len: op.total,
            remote_addr,
            remote_key,
        },
        Operation::FetchAdd {
            remote_addr,
            remote_key,
            add,
        } => Request::FetchAdd {
            req_id,
            remote_addr,
            remote_key,
            add,
        },
        Operation::CompareSwap {
            remote_addr,
            remote_key,
            compare,
            swap,
        } => Request::CompareSwap {
            req_id,
            remote_addr,
            remote_key,
            compare,
            swap,
        },
        Operation::Send { .. } | Operation::Write { .. } => return None,
    };
    frame.room_for(48)?;
    Part { len: 0, last: true }.add(seq, request, frame)
}
