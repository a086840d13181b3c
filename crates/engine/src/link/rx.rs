//! Frames in: what is accepted, whether it can be held, whose turn each chunk is.

use usb4_wire::{AckBlock, Chunk, Chunks, FrameView, Request, Seq};

use super::Link;
use crate::list::{NONE, at_mut};
use crate::park::{Parking, Place};
use crate::plan::Plans;
use crate::rail::Outcome;
use crate::rx_flow::RxState;
use crate::stream::Streams;
use crate::{Fate, Host, Nanos, RailId, RxToken};

/// How far ahead of its turn a chunk can be: more than a peer can have outstanding (65536 frames of 16 chunks).
const MAX_AHEAD: u32 = 1 << 20;

/// Whose turn it is.
pub(super) enum Turn {
    /// Its own.
    Now,
    /// That of an earlier chunk.
    Early,
    /// It has been executed.
    Past,
    /// No peer that keeps the protocol is there yet.
    Never,
}

/// Compares a chunk number with the one whose turn it is.
#[inline]
pub(super) fn turn(csn: u32, next: u32) -> Turn {
    match csn.wrapping_sub(next) {
        0 => Turn::Now,
        1..=MAX_AHEAD => Turn::Early,
        ahead if ahead > u32::MAX >> 1 => Turn::Past,
        _ => Turn::Never,
    }
}

/// Plans an incoming chunk may need: its own, and one for a receive it cuts off.
pub(super) const PLANS_PER_REQUEST: u32 = 2;

/// Whether a request can be executed: there is room for its plans, and no answer given keeps the stream it may need.
#[inline]
fn has_room(plans: &Plans, streams: &Streams) -> bool {
    plans.room() >= PLANS_PER_REQUEST && !streams.is_jammed()
}

impl Link {
    /// Takes in a frame. `head` is the whole frame or at least its first `head_len` bytes; it is not kept.
    /// The home has already replaced the RX descriptor: an acknowledgement may tell the peer so.
    pub fn on_frame<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        rail: RailId,
        token: RxToken,
        head: &[u8],
        frame_len: u16,
        host: &H,
    ) -> Fate {
        self.on_frame_at::<false, H>(now, rail, token, head, frame_len, host)
    }

    /// As [`Link::on_frame`], for a home that first sees to what a frame brings, then to the rest: if it has payload and
    /// acknowledges something, what it says about this side's own sending waits for [`Link::catch_up`], or for the
    /// next frame.
    #[inline]
    pub fn on_frame_first<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        rail: RailId,
        token: RxToken,
        head: &[u8],
        frame_len: u16,
        host: &H,
    ) -> Fate {
        self.on_frame_at::<true, H>(now, rail, token, head, frame_len, host)
    }

    #[inline]
    fn on_frame_at<const FIRST: bool, H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        rail: RailId,
        token: RxToken,
        head: &[u8],
        frame_len: u16,
        host: &H,
    ) -> Fate {
        self.catch_up(host);
        if self
            .take_frame::<FIRST, H>(now, rail, token, head, frame_len, host)
            .is_none()
        {
            return Fate::Done;
        }
        if self.tokens.close(token) {
            Fate::Held
        } else {
            Fate::Done
        }
    }

    /// `Some` if the token has been opened.
    #[inline]
    fn take_frame<const FIRST: bool, H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        id: RailId,
        token: RxToken,
        head: &[u8],
        frame_len: u16,
        host: &H,
    ) -> Option<()> {
        let Self {
            rails,
            counters,
            config,
            ..
        } = self;
        let rail = rails.get(usize::from(id.0)).filter(|rail| rail.attached())?;
        let Ok(view) = FrameView::parse(head, usize::from(frame_len)) else {
            counters.rx_malformed = counters.rx_malformed.wrapping_add(1);
            return None;
        };
        if !view.crc_ok(|crc, bytes| host.crc32c(crc, bytes)) {
            counters.rx_corrupt = counters.rx_corrupt.wrapping_add(1);
            return None;
        }
        let header = view.header();
        if header.tag != rail.rx_tag() {
            counters.rx_wrong_tag = counters.rx_wrong_tag.wrapping_add(1);
            self.reset = Some(id);
            return None;
        }
        if header.payload_crc != config.payload_crc && !view.payload().is_empty() {
            counters.violations = counters.violations.wrapping_add(1);
            return None;
        }
        let is_new = rail.is_new(header.packet);
        match header.ack {
            Some(ack) if !rail.is_news(ack) => {}
            // What is impossible now may be possible later.
            Some(ack) if FIRST && is_new && !view.payload().is_empty() && rail.is_possible(ack) => {
                self.put_off_ack(now, id, ack);
            }
            Some(ack) => self.on_ack(now, id, ack),
            None => {}
        }
        if !is_new {
            self.counters.rx_duplicate = self.counters.rx_duplicate.wrapping_add(1);
            return None;
        }
        let elicits = header.elicits_ack();
        let mut held = true;
        if elicits {
            if !self.tokens.open(token) {
                return None;
            }
            held = self.take_chunks(now, &view.chunks(), token, header.ack_now, host);
        }
        if held {
            self.counters.rx_frames = self.counters.rx_frames.wrapping_add(1);
            self.counters.rx_bytes = self.counters.rx_bytes.wrapping_add(u64::from(frame_len));
            if let Some(rail) = self.rails.get_mut(usize::from(id.0)) {
                rail.on_received(now, header.packet, elicits, header.ack_now);
            }
        } else {
            // Not acknowledged, so it is lost and comes again. What had its turn has been executed all the same:
            // that makes room, and it is how two flows that wait for each other's chunks get on.
            self.counters.rx_no_room = self.counters.rx_no_room.wrapping_add(1);
        }
        elicits.then_some(())
    }

    /// Takes the acknowledgement a frame carries, be that frame new or a duplicate.
    #[inline(never)]
    pub(super) fn on_ack(&mut self, now: Nanos, id: RailId, ack: AckBlock) {
        let Self {
            rails,
            slots,
            counters,
            ..
        } = self;
        let Some(rail) = rails.get_mut(usize::from(id.0)) else {
            return;
        };
        let before = counters.tx_lost;
        let possible = rail.on_ack(now, ack, |slot, outcome| {
            if outcome == Outcome::Lost {
                counters.tx_lost = counters.tx_lost.wrapping_add(1);
            }
            slots.decided(slot, outcome);
        });
        rail.count_lost(counters.tx_lost.wrapping_sub(before));
        if !possible {
            self.violation();
        }
    }

    /// Executes or parks every chunk, or drops it for good. False if one would have to be parked and cannot.
    #[inline]
    fn take_chunks<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        all: &Chunks<'_>,
        token: RxToken,
        urgent: bool,
        host: &H,
    ) -> bool {
        let mut held = true;
        self.park.begin_frame();
        let mut taken = 0usize;
        let mut chunks = all.clone();
        while !chunks.is_empty() {
            // What nearly all frames consist of comes first and is not decoded into anything larger.
            held &= if let Some((seq, csn)) = chunks.next_exec_ack() {
                (chunks.is_empty() && self.put_off_exec_ack(seq, csn))
                    || self.on_exec_ack(now, seq, csn, token, host)
            } else if let Some(send) = chunks.next_send() {
                self.on_send(now, send, token, urgent, host)
            } else {
                return self.take_rest(now, (all, taken), token, urgent, host) && held;
            };
            taken = taken.wrapping_add(1);
        }
        held
    }

    /// [`Link::take_chunks`] for chunks of any kind, without the first so many.
    #[inline(never)]
    fn take_rest<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        (all, taken): (&Chunks<'_>, usize),
        token: RxToken,
        urgent: bool,
        host: &H,
    ) -> bool {
        let mut held = true;
        for item in all.clone().skip(taken) {
            let place = Place { token, at: item.at };
            held &= match item.chunk {
                Chunk::Request(seq, ref request) => self.on_request(now, seq, request, place, urgent, host),
                Chunk::Response(seq, ref response) => self.on_response(now, seq, response, place, host),
                Chunk::Join { nonce } => {
                    self.join_received = Some(nonce);
                    true
                }
                Chunk::Ping => true,
            };
        }
        held
    }

    /// A request chunk of an incoming flow.
    #[inline(never)]
    pub(super) fn on_request<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        seq: Seq,
        request: &Request,
        place: Place,
        urgent: bool,
        host: &H,
    ) -> bool {
        let Some(flow) = at_mut(&mut self.rx_flows, seq.flow) else {
            self.violation();
            return true;
        };
        flow.urgent |= urgent;
        let turn = match flow.state {
            RxState::Unready | RxState::Open | RxState::Refused => {
                if flow.epoch == seq.epoch && !flow.rnr {
                    turn(seq.csn, flow.next_csn)
                } else if flow.closes_while_not_ready(seq, request) {
                    flow.epoch = seq.epoch;
                    flow.rnr = false;
                    Turn::Now
                } else {
                    self.stale();
                    return true;
                }
            }
            RxState::Free | RxState::Waiting => {
                if !flow.is_next_life(seq.epoch) {
                    self.stale();
                    return true;
                }
                if flow.state == RxState::Free {
                    flow.reset(RxState::Waiting);
                }
                match request {
                    Request::FlowOpen { .. } => Turn::Now,
                    _ if seq.csn == 0 => Turn::Never,
                    _ => turn(seq.csn, 0),
                }
            }
            RxState::Closing | RxState::Closed => Turn::Past,
        };
        match turn {
            Turn::Now if has_room(&self.plans, &self.streams) && flow.nak.is_none() => {
                // A refusal may empty the park, but nothing fills it.
                let more = !flow.parked.is_empty();
                self.execute(now, seq, request, place, host);
                if more {
                    self.drain_requests(now, seq.flow, host);
                }
                true
            }
            turn => self.put_off(turn, Chunk::Request(seq, *request), place),
        }
    }

    /// A chunk is not executed now: it is parked, or dropped for good. False if it would have to be parked and cannot.
    pub(super) fn put_off(&mut self, turn: Turn, chunk: Chunk, place: Place) -> bool {
        let stalled = matches!(turn, Turn::Now);
        let (queue, seq) = match chunk {
            Chunk::Request(seq, _) => {
                if stalled {
                    self.stalled_requests.push(&mut self.rx_flows, seq.flow);
                }
                let flow = at_mut(&mut self.rx_flows, seq.flow);
                (flow.map(|flow| &mut flow.parked), seq)
            }
            Chunk::Response(seq, _) => {
                if stalled {
                    self.stalled_responses.push(&mut self.tx_flows, seq.flow);
                }
                let flow = at_mut(&mut self.tx_flows, seq.flow);
                (flow.map(|flow| &mut flow.parked), seq)
            }
            Chunk::Ping | Chunk::Join { .. } => return true,
        };
        let Some(queue) = queue else { return true };
        match turn {
            Turn::Now | Turn::Early => match self.park.insert(queue, seq, chunk, place) {
                Parking::Parked => {
                    self.tokens.hold(place.token);
                    self.counters.rx_parked = self.counters.rx_parked.wrapping_add(1);
                }
                Parking::Duplicate => self.duplicate(),
                Parking::NoRoom => return false,
            },
            Turn::Past => self.duplicate(),
            Turn::Never => self.violation(),
        }
        true
    }

    /// Executes what is parked and has its turn now.
    pub(super) fn drain_requests<H: Host + ?Sized>(&mut self, now: Nanos, index: u32, host: &H) {
        loop {
            let Some(flow) = at_mut(&mut self.rx_flows, index) else {
                return;
            };
            let Some(seq) = self.park.first(&flow.parked) else {
                return;
            };
            let stale = match flow.state {
                RxState::Unready | RxState::Open | RxState::Refused => seq.epoch != flow.epoch || flow.rnr,
                // Nothing but FLOW_OPEN, which has number 0 and tells the epoch.
                RxState::Free | RxState::Waiting if seq.csn == 0 => false,
                RxState::Free | RxState::Waiting => return,
                RxState::Closing | RxState::Closed => return self.purge_requests(index),
            };
            match turn(seq.csn, flow.next_csn) {
                Turn::Now if !stale && (!has_room(&self.plans, &self.streams) || flow.nak.is_some()) => {
                    return self.stalled_requests.push(&mut self.rx_flows, index);
                }
                Turn::Early | Turn::Never if !stale => return,
                _ => {}
            }
            let now_due = !stale && seq.csn == flow.next_csn;
            let Some((chunk, place)) = self.park.pop(&mut flow.parked) else {
                return;
            };
            if now_due {
                if let Chunk::Request(seq, ref request) = chunk {
                    self.execute(now, seq, request, place, host);
                }
            } else if stale {
                self.stale();
            } else {
                self.duplicate();
            }
            self.tokens.drop_ref(place.token);
        }
    }

    /// Drops everything an incoming flow has parked.
    pub(super) fn purge_requests(&mut self, index: u32) {
        if let Some(flow) = at_mut(&mut self.rx_flows, index) {
            self.park.empty(&mut flow.parked, &mut self.tokens);
        }
    }

    /// Goes on with flows that lacked room for a plan or a NAK.
    #[inline]
    pub(super) fn resume_stalled<H: Host + ?Sized>(&mut self, now: Nanos, host: &H) {
        if self.stalled_requests.bits() & self.stalled_responses.bits() != NONE {
            self.resume_each(now, host);
        }
    }

    #[cold]
    fn resume_each<H: Host + ?Sized>(&mut self, now: Nanos, host: &H) {
        // One that stalls again is put back at the end: a single round each.
        let last = self.stalled_requests.back();
        while has_room(&self.plans, &self.streams) {
            let Some(index) = self.stalled_requests.pop(&mut self.rx_flows) else {
                break;
            };
            self.drain_requests(now, index, host);
            if Some(index) == last {
                break;
            }
        }
        let last = self.stalled_responses.back();
        while self.plans.room() != 0 {
            let Some(index) = self.stalled_responses.pop(&mut self.tx_flows) else {
                break;
            };
            self.drain_responses(now, index, host);
            if Some(index) == last {
                break;
            }
        }
    }

    /// Counts something a peer that keeps the protocol does not do. The chunk is dropped for good, as by the
    /// two functions below.
    #[cold]
    pub(super) fn violation(&mut self) {
        self.counters.violations = self.counters.violations.wrapping_add(1);
    }

    /// Counts a chunk that a replay has superseded.
    #[cold]
    pub(super) fn stale(&mut self) {
        self.counters.rx_chunk_stale = self.counters.rx_chunk_stale.wrapping_add(1);
    }

    /// Counts a chunk that has been there before.
    #[cold]
    pub(super) fn duplicate(&mut self) {
        self.counters.rx_chunk_duplicate = self.counters.rx_chunk_duplicate.wrapping_add(1);
    }
}
