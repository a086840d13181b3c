//! Frames out, second half: which frame goes to which rail, under which number.

use usb4_wire::{Chunk, FrameHeader};

use super::Link;
use crate::frame::{Composer, HEADER, trailer};
use crate::list::{NONE, at};
use crate::rail::{Class, DUE, NEVER, NO_SLOT, Rail, not_due};
use crate::slot::Frame;
use crate::{Host, Nanos, Post, RailId, Staged, TxSlot};

/// How much later than on the best rail a frame may arrive when the best rail is full. Bounds how far rails drift
/// apart, and with it how much the receiver has to park.
const MAX_SKEW: Nanos = 100_000;

/// Where a frame to be posted comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Resend,
    Responses,
    Requests,
}

/// What has become of the next frame in the queues.
enum Queued {
    Posted(Post),
    /// It was not worth posting and is gone.
    Stale,
    /// It cannot go now, nor can what waits behind it.
    Blocked,
}

impl Link {
    /// The next frame to post and its header: retransmissions first, then staged frames, then pure
    /// acknowledgements and probes that are due. The header goes to the start of the slot; the order of posts on
    /// a rail must be the order of these calls.
    #[inline]
    pub fn next_post<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        host: &H,
        header: &mut [u8; 40],
    ) -> Option<Post> {
        if self.failed {
            return None;
        }
        if self.slots.has_queued() {
            if self.takes_short_ways() {
                let post = self.post_plain(now, host, header);
                if post.is_some() {
                    return post;
                }
            }
            let post = self.post_any(now, host, header);
            if post.is_some() {
                return post;
            }
        }
        if self.slots.has_probes() || self.any_rail(|rail| rail.ack_due(now)) {
            return self.post_control(now, host, header);
        }
        None
    }

    /// Posts the next frame if that carries requests and the link has one rail. `None`, and nothing has changed, if
    /// that is not so or it cannot go.
    #[inline(never)]
    fn post_plain<H: Host + ?Sized>(&mut self, now: Nanos, host: &H, header: &mut [u8; 40]) -> Option<Post> {
        if self.rails_span != 1 {
            return None;
        }
        let rail = self.rails.first()?;
        if !rail.attached() || !rail.can_send(Class::Request) {
            return None;
        }
        let (slot, &frame) = self.slots.next_request()?;
        if at(&self.tx_flows, frame.flow).is_some_and(|flow| flow.epoch != frame.epoch) {
            return None;
        }
        self.slots.post_request(0);
        self.stamp(now, 0, slot, &frame, host, header)
    }

    /// Numbers a frame that has been marked as posted on a rail that can take it.
    #[inline(always)]
    pub(super) fn stamp<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        id: u8,
        slot: TxSlot,
        frame: &Frame,
        host: &H,
        header: &mut [u8; 40],
    ) -> Option<Post> {
        let rail = self.rails.get_mut(usize::from(id))?;
        let stamp = rail.send(now, slot.0, frame.len, true)?;
        // The peer should not wait with an acknowledgement this side is waiting for.
        let ack_now = stamp.ack_now || frame.ack_now || rail.is_window_full();
        let counters = &mut self.counters;
        counters.tx_frames = counters.tx_frames.wrapping_add(1);
        counters.tx_bytes = counters.tx_bytes.wrapping_add(u64::from(frame.len));
        FrameHeader {
            head_len: frame.head_len,
            tag: stamp.tag,
            packet: stamp.packet,
            ack: stamp.ack,
            ack_now,
            payload_crc: self.config.payload_crc,
        }
        .seal(frame.crc, |crc, bytes| host.crc32c(crc, bytes), header);
        Some(Post {
            rail: RailId(id),
            slot,
            len: frame.len,
        })
    }

    /// Posts the next frame that waits for a rail.
    #[inline(never)]
    fn post_any<H: Host + ?Sized>(&mut self, now: Nanos, host: &H, header: &mut [u8; 40]) -> Option<Post> {
        while self.slots.has_queued() {
            match self.post_queued(now, host, header) {
                Queued::Posted(post) => return Some(post),
                // What was held up by it, or waited for its slot, may be composed now.
                Queued::Stale => self.ask_again = true,
                Queued::Blocked => break,
            }
        }
        None
    }

    #[inline]
    fn post_queued<H: Host + ?Sized>(&mut self, now: Nanos, host: &H, header: &mut [u8; 40]) -> Queued {
        let Some((index, queue)) = self.next_frame() else {
            return Queued::Blocked;
        };
        // A lost frame has been counted against the window once; it may use all of it.
        let class = if queue == Queue::Requests {
            Class::Request
        } else {
            Class::Response
        };
        let Some(slot) = self.slots.get(index) else {
            return Queued::Blocked;
        };
        let Frame { flow, epoch, len, .. } = slot.frame;
        // Nothing in it but requests that a replay has superseded.
        let stale = at(&self.tx_flows, flow).is_some_and(|flow| flow.epoch != epoch);
        // Requests have less room than the others: if this one cannot go, nothing can.
        let Some(rail) = self.pick_rail(now, class, len) else {
            return Queued::Blocked;
        };
        match queue {
            Queue::Resend => self.slots.pop_resend(),
            Queue::Responses => self.slots.pop_response(),
            Queue::Requests => self.slots.pop_request(),
        }
        if stale {
            self.slots.free(index);
            self.counters.tx_stale = self.counters.tx_stale.wrapping_add(1);
            return Queued::Stale;
        }
        if queue == Queue::Resend {
            self.counters.tx_resent = self.counters.tx_resent.wrapping_add(1);
        }
        match self.post_frame(now, index, rail, queue == Queue::Resend, host, header) {
            Some(post) => Queued::Posted(post),
            None => Queued::Blocked,
        }
    }

    /// The frame to be posted next.
    #[inline]
    fn next_frame(&self) -> Option<(u32, Queue)> {
        if let Some(index) = self.slots.front_resend() {
            return Some((index, Queue::Resend));
        }
        if let Some(index) = self.slots.front_response() {
            return Some((index, Queue::Responses));
        }
        self.slots.front_request().map(|index| (index, Queue::Requests))
    }

    /// The rail on which a frame arrives first. If that one is full, another that is not much later.
    #[inline]
    fn pick_rail(&self, now: Nanos, class: Class, len: u16) -> Option<u8> {
        if self.rails_span == 1 {
            return self
                .rails
                .first()
                .filter(|rail| rail.attached() && rail.can_send(class))
                .map(|_| 0);
        }
        self.pick_from_several(now, class, len)
    }

    #[inline(never)]
    fn pick_from_several(&self, now: Nanos, class: Class, len: u16) -> Option<u8> {
        let mut earliest = Nanos::MAX;
        let mut best: Option<(u8, Nanos)> = None;
        for (id, rail) in (0..self.rails_span).zip(self.rails.iter()) {
            if !rail.attached() {
                continue;
            }
            let finish = rail.expected_finish(now, len);
            earliest = earliest.min(finish);
            if rail.can_send(class) && best.is_none_or(|(_, best)| finish < best) {
                best = Some((id, finish));
            }
        }
        best.filter(|&(_, finish)| finish <= earliest.saturating_add(MAX_SKEW))
            .map(|(id, _)| id)
    }

    #[inline]
    fn post_frame<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        index: u32,
        id: u8,
        again: bool,
        host: &H,
        header: &mut [u8; 40],
    ) -> Option<Post> {
        let slot = TxSlot(u16::try_from(index).ok()?);
        let mut frame = self.slots.get(index)?.frame;
        frame.ack_now |= again;
        self.slots.post(index, id);
        self.stamp(now, id, slot, &frame, host, header)
    }

    /// Probes that have been staged, and acknowledgements nothing else has carried.
    #[inline(never)]
    fn post_control<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        host: &H,
        header: &mut [u8; 40],
    ) -> Option<Post> {
        if let Some(post) = self.post_probe(now, host, header) {
            return Some(post);
        }
        // A frame that is being gathered will carry the acknowledgement.
        if self.slots.is_gathering() {
            return None;
        }
        for (id, rail) in (0..self.rails_span).zip(self.rails.iter()) {
            if !rail.attached() || !rail.ack_due(now) {
                continue;
            }
            let index = if rail.can_send(Class::Reserve) {
                self.slots.post_control(id)
            } else {
                None
            };
            let Some(index) = index else {
                self.held_up = true;
                continue;
            };
            self.counters.tx_acks = self.counters.tx_acks.wrapping_add(1);
            return self.post_unkept(now, index, id, (0, HEADER, false), host, header);
        }
        None
    }

    #[inline]
    fn post_probe<H: Host + ?Sized>(&mut self, now: Nanos, host: &H, header: &mut [u8; 40]) -> Option<Post> {
        while let Some(index) = self.slots.front_probe() {
            let id = self.slots.get(index)?.rail;
            let wanted = self.rails.get(usize::from(id)).is_some_and(Rail::probe_due);
            if wanted
                && !self
                    .rails
                    .get(usize::from(id))
                    .is_some_and(|rail| rail.can_send(Class::Reserve))
            {
                break;
            }
            self.slots.pop_probe();
            self.probing &= !rail_bit(id);
            if !wanted {
                self.slots.free(index);
                continue;
            }
            let Frame { crc, len, .. } = self.slots.get(index)?.frame;
            self.slots.post(index, id);
            self.counters.tx_pings = self.counters.tx_pings.wrapping_add(1);
            return self.post_unkept(now, index, id, (crc, len, true), host, header);
        }
        None
    }

    /// Posts a frame that is not resent when it is lost.
    #[inline(never)]
    fn post_unkept<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        index: u32,
        id: u8,
        (crc, len, elicits): (u32, u16, bool),
        host: &H,
        header: &mut [u8; 40],
    ) -> Option<Post> {
        let rail = self.rails.get_mut(usize::from(id))?;
        let stamp = rail.send(now, NO_SLOT, len, elicits)?;
        let payload_crc = elicits && self.config.payload_crc;
        let head_len = len.wrapping_sub(trailer(payload_crc));
        let ack_now = stamp.ack_now;
        FrameHeader {
            head_len,
            tag: stamp.tag,
            packet: stamp.packet,
            ack: stamp.ack,
            ack_now,
            payload_crc,
        }
        .seal(crc, |crc, bytes| host.crc32c(crc, bytes), header);
        self.counters.tx_bytes = self.counters.tx_bytes.wrapping_add(u64::from(len));
        Some(Post {
            rail: RailId(id),
            slot: TxSlot(u16::try_from(index).ok()?),
            len,
        })
    }

    /// Stages a probe for a rail that waits for news, unless a frame with chunks is about to serve as one.
    pub(super) fn stage_probe<H: Host + ?Sized>(&mut self, host: &H, out: &mut Staged) -> bool {
        let due = (0..self.rails_span).zip(self.rails.iter()).find(|&(id, rail)| {
            rail.attached()
                && rail.probe_due()
                && self.probing & rail_bit(id) == 0
                && rail.can_send(Class::Reserve)
        });
        let Some((id, _)) = due else { return false };
        let Some(slot) = self.slots.peek_free() else {
            return false;
        };
        let payload_crc = self.config.payload_crc;
        let mut frame = Composer::new(out, self.config.frame_size, payload_crc, self.slots.next_gather());
        frame.response(&Chunk::Ping);
        let head_len = frame.finish(payload_crc);
        let crc = host.crc32c(0, out.head());
        out.slot = slot;
        self.probing |= rail_bit(id);
        let frame = Frame {
            response: false,
            ack_now: false,
            flow: NONE,
            epoch: 0,
            crc,
            head_len,
            len: out.len,
        };
        self.slots.stage_probe(id, frame);
        true
    }

    /// The rail has consumed the slot's descriptor. Each slot completes once per post.
    #[inline]
    pub fn tx_completed(&mut self, _now: Nanos, rail: RailId, slot: TxSlot) {
        if self.slots.completed(slot, rail.0) {
            if let Some(rail) = self.rails.get_mut(usize::from(rail.0)) {
                rail.on_completed();
            }
        }
    }

    /// Acts on timers that have expired: acknowledgements and probes become due, reports of progress, too, and flows
    /// give up that have waited for as long as their [`crate::Limits`] allow. What is due is sent by [`Link::stage`] and
    /// [`Link::next_post`].
    pub fn on_timer<H: Host + ?Sized>(&mut self, now: Nanos, host: &H) {
        self.catch_up_with_ack();
        self.ask_again = false;
        self.probe_wanted = false;
        for rail in self.rails.iter_mut().filter(|rail| rail.attached()) {
            rail.on_timer(now);
            self.probe_wanted |= rail.probe_due();
        }
        if self.report_at <= now {
            self.report_at = DUE;
        }
        if self.patience_at <= now {
            self.give_up(now, host);
        }
    }

    /// When [`Link::on_timer`] must be called next, and [`Link::stage`] after it.
    #[inline(always)]
    pub fn deadline(&self) -> Option<Nanos> {
        if self.ask_again {
            return Some(0);
        }
        let rails = if self.rails_span == 1 {
            let rail = self.rails.first().filter(|rail| rail.attached());
            rail.map_or(NEVER, Rail::deadline)
        } else {
            self.attached().map(Rail::deadline).min().unwrap_or(NEVER)
        };
        let at = rails.min(not_due(self.report_at)).min(self.patience_at);
        (at != NEVER).then_some(at)
    }
}

/// The bit of a rail in a set.
#[inline]
fn rail_bit(id: u8) -> u8 {
    1u8.checked_shl(u32::from(id)).unwrap_or(0)
}
