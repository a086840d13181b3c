//! Frames out: the two kinds that nearly all are. Either is what [`Link::stage`] would compose anyway; this is the
//! short way there, and a shorter one for a home that gathers at once.

use usb4_wire::{Chunk, Request, Response, SendFirst, Seq};

use super::Link;
use crate::frame::{HEADER, trailer};
use crate::list::{NONE, at_mut};
use crate::rail::{Class, NEVER};
use crate::rx_flow::RxState;
use crate::slot::Frame;
use crate::{Host, Nanos, Operation, Post, Seg, Source, Staged, Status};

/// Lengths of the headers of an EXEC_ACK, of a SEND that begins a message and of one that goes on with it.
const EXEC_ACK: u16 = 16;
const FIRST: u16 = 24;
const NEXT: u16 = 16;

impl Link {
    /// Composes the next frame if all it consists of is a part of a SEND, without immediate data and the only thing
    /// to be sent, and perhaps an EXEC_ACK. `None`, and nothing has changed, if it does not.
    #[inline(always)]
    pub(super) fn stage_plain<H: Host + ?Sized>(
        &mut self,
        report: bool,
        host: &H,
        out: &mut Staged,
    ) -> Option<()> {
        let index = self.active.only()?;
        if !self.can_stage_requests() {
            return None;
        }
        let flow = at_mut(&mut self.tx_flows, index)?;
        if !flow.sends_plainly() {
            return None;
        }
        let op = self.ops.get(flow.cursor)?;
        let room = self
            .config
            .frame_size
            .wrapping_sub(HEADER)
            .wrapping_sub(trailer(self.config.payload_crc));
        let rest = op.total.wrapping_sub(op.sent);
        let whole = rest <= u32::from(room.wrapping_sub(FIRST).wrapping_sub(EXEC_ACK));
        if op.status != Status::Ok || op.fenced {
            None
        } else if whole && !op.started && op.link == NONE {
            out.slot = self.slots.peek_free()?;
            let gather = self.slots.next_gather();
            let (chunks, frame) = self.compose_whole(index, report, gather, host, out)?;
            self.slots.stage(chunks, frame);
            Some(())
        } else if !whole && !report && rest > u32::from(room) {
            self.stage_part(index, room, host, out)
        } else {
            None
        }
    }

    /// [`Link::stage`], [`Link::staged`] and [`Link::next_post`] in one, for a whole message that is the only thing to
    /// be sent, in a frame of at most `limit` bytes, and can go at once. The home gathers the frame, writes the header
    /// and posts the slot before it calls anything else of the link. `None`, and nothing has changed, for all other
    /// frames: ask [`Link::stage`].
    #[inline]
    pub fn stage_post<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        limit: u16,
        host: &H,
        out: &mut Staged,
        header: &mut [u8; 40],
    ) -> Option<Post> {
        let index = self.active.only()?;
        if self.failed || self.slots.has_queued() || self.has_seldom() || !self.takes_short_ways() {
            return None;
        }
        self.stage_post_whole(now, (index, limit), host, out, header)
    }

    #[inline(never)]
    fn stage_post_whole<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        (index, limit): (u32, u16),
        host: &H,
        out: &mut Staged,
        header: &mut [u8; 40],
    ) -> Option<Post> {
        if self.rails_span != 1 || !self.slots.has_for_requests() || !self.slots.may_park_requests() {
            return None;
        }
        let report = self.is_report_due(now);
        let flow = at_mut(&mut self.tx_flows, index)?;
        let op = self.ops.get(flow.cursor)?;
        let payload_crc = self.config.payload_crc;
        let heads = HEADER.wrapping_add(FIRST).wrapping_add(EXEC_ACK);
        let most = u32::from(limit.min(self.config.frame_size)).checked_sub(u32::from(heads))?;
        let fits = op.total.saturating_add(u32::from(trailer(payload_crc))) <= most;
        let plain = !op.started && !op.fenced && op.link == NONE && op.status == Status::Ok;
        let whole = fits && plain && op.can_be_read(host);
        let rail = self.rails.first()?;
        if !whole || !flow.sends_plainly() || !rail.attached() || !rail.can_send(Class::Request) {
            return None;
        }
        out.slot = self.slots.peek_free()?;
        // Gathered before anybody asks: nothing may complete between here and the return.
        let (chunks, frame) = self.compose_whole(index, report, 0, host, out)?;
        self.slots.stage_posted(chunks, 0, frame);
        self.stamp(now, 0, out.slot, &frame, host, header)
    }

    /// A whole message, the last one of its flow, in a frame of so many chunks. `gather`: the number of its staging.
    #[inline(always)]
    fn compose_whole<H: Host + ?Sized>(
        &mut self,
        index: u32,
        report: bool,
        gather: u64,
        host: &H,
        out: &mut Staged,
    ) -> Option<(u32, Frame)> {
        let flow = at_mut(&mut self.tx_flows, index)?;
        let ops_low = self.ops.is_low();
        let op = self.ops.get_mut(flow.cursor)?;
        let Operation::Send {
            imm: None,
            ref prefix,
            prefix_len,
        } = op.work.op
        else {
            return None;
        };
        // Whoever has a report makes it now; a report that is due goes first.
        let (send_at, head_len, reporter) = if self.report.is_empty() {
            (0, FIRST, None)
        } else {
            let reporter = self.report.only()?;
            let flow = at_mut(&mut self.rx_flows, reporter)?;
            if flow.state != RxState::Open || flow.nak.is_some() {
                return None;
            }
            let seq = Seq {
                flow: reporter,
                epoch: flow.open_epoch,
                csn: flow.response_csn,
            };
            let csn = flow.executed;
            let (send_at, ack_at) = if report { (EXEC_ACK, 0) } else { (0, FIRST) };
            let ack = Chunk::Response(seq, Response::ExecAck { csn });
            ack.emit(out.head.get_mut(usize::from(ack_at)..)?)?;
            (send_at, FIRST.wrapping_add(EXEC_ACK), Some(flow))
        };
        let len = u16::try_from(op.total).ok()?;
        let seq = Seq {
            flow: index,
            epoch: flow.epoch,
            csn: flow.next_csn,
        };
        let first = Some(SendFirst {
            total: u32::from(len),
            imm: None,
        });
        let send = Request::Send {
            offset: 0,
            len,
            first,
            last: true,
        };
        let head = out.head.get_mut(usize::from(send_at)..)?;
        Chunk::Request(seq, send).emit(head)?;

        let payload = HEADER.wrapping_add(head_len);
        let prefix_len = u16::from(prefix_len);
        let mut segs = out.segs.iter_mut();
        out.seg_count = 0;
        if prefix_len != 0 {
            *segs.next()? = Seg {
                source: Source::Bytes(*prefix),
                at: payload,
                len: prefix_len,
            };
            out.seg_count = 1;
        }
        let local = len.wrapping_sub(prefix_len);
        if let Some(from) = op.work.local {
            if local != 0 {
                *segs.next()? = Seg {
                    source: Source::Mem(from),
                    at: payload.wrapping_add(prefix_len),
                    len: local,
                };
                out.seg_count = out.seg_count.wrapping_add(1);
            }
            op.gather = gather;
        }
        flow.next_csn = seq.csn.wrapping_add(1);
        flow.cursor = NONE;
        op.staged(seq.csn, len, true);
        self.active.pop_only(flow);
        let (mut chunks, mut of) = (1, (index, seq.epoch));
        if let Some(flow) = reporter {
            (chunks, of) = (2, (NONE, 0));
            flow.response_csn = flow.response_csn.wrapping_add(1);
            self.report.pop_only(flow);
            self.unreported = 0;
            self.report_at = NEVER;
        }
        Some((chunks, self.finish_plain(of, (head_len, len), ops_low, host, out)))
    }

    /// A part of a message that fills its frame and is not the last.
    #[inline(always)]
    fn stage_part<H: Host + ?Sized>(
        &mut self,
        index: u32,
        room: u16,
        host: &H,
        out: &mut Staged,
    ) -> Option<()> {
        out.slot = self.slots.peek_free()?;
        let flow = at_mut(&mut self.tx_flows, index)?;
        let op = self.ops.get_mut(flow.cursor)?;
        let Operation::Send {
            imm: None,
            prefix_len,
            ..
        } = op.work.op
        else {
            return None;
        };
        if !op.started || !op.can_be_read(host) {
            return None;
        }
        let len = room.wrapping_sub(NEXT);
        let seq = Seq {
            flow: index,
            epoch: flow.epoch,
            csn: flow.next_csn,
        };
        let send = Request::Send {
            offset: op.sent,
            len,
            first: None,
            last: false,
        };
        Chunk::Request(seq, send).emit(&mut out.head)?;
        out.seg_count = 0;
        if let Some(from) = op.local_at(op.sent.wrapping_sub(u32::from(prefix_len))) {
            *out.segs.first_mut()? = Seg {
                source: Source::Mem(from),
                at: HEADER.wrapping_add(NEXT),
                len,
            };
            out.seg_count = 1;
            op.gather = self.slots.next_gather();
        }
        flow.next_csn = seq.csn.wrapping_add(1);
        op.staged(seq.csn, len, false);
        let frame = self.finish_plain((index, seq.epoch), (NEXT, len), false, host, out);
        self.slots.stage(1, frame);
        Some(())
    }

    /// `of`: the flow and epoch of all chunks, or [`NONE`].
    #[inline(always)]
    fn finish_plain<H: Host + ?Sized>(
        &mut self,
        (flow, epoch): (u32, u8),
        (head_len, len): (u16, u16),
        urgent: bool,
        host: &H,
        out: &mut Staged,
    ) -> Frame {
        let ack_now = urgent || !self.slots.has_for_requests();
        out.head_len = head_len;
        let head_len = head_len.wrapping_add(HEADER);
        let len = head_len
            .wrapping_add(len)
            .wrapping_add(trailer(self.config.payload_crc));
        out.len = len;
        let crc = host.crc32c(0, out.head());
        Frame {
            response: false,
            ack_now,
            flow,
            epoch,
            crc,
            head_len,
            len,
        }
    }
}
