//! Frames in: what is accepted, whether it can be held, whose turn each chunk is.

use usb4_wire::{Chunk, FrameView, Request, Response, Seq};

use super::Link;
use crate::frame::HEADER;
use crate::list::{at, at_mut};
use crate::park::Arrived;
use crate::rx_flow::RxState;
use crate::{Fate, Host, Nanos, RailId, RxToken};

/// How far ahead of its turn a chunk can be: more than a peer can have outstanding (65536 frames of 16 chunks).
const MAX_AHEAD: u32 = 1 << 20;

/// Of the parked chunks, those kept for chunks that have their turn but lack room for a plan: a full frame's.
const TURN_RESERVE: u32 = 256;

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
        if self.take_frame(now, rail, token, head, frame_len, host).is_none() {
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
    fn take_frame<H: Host + ?Sized>(
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
            slots,
            counters,
            config,
            ..
        } = self;
        let rail = rails.get_mut(usize::from(id.0)).filter(|rail| rail.attached())?;
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
        if let Some(ack) = header.ack {
            let possible = rail.on_ack(now, ack, |slot, outcome| {
                if outcome == crate::rail::Outcome::Lost {
                    counters.tx_lost = counters.tx_lost.wrapping_add(1);
                }
                slots.decided(slot, outcome);
            });
            if !possible {
                counters.violations = counters.violations.wrapping_add(1);
            }
        }
        if !rail.is_new(header.packet) {
            counters.rx_duplicate = counters.rx_duplicate.wrapping_add(1);
            return None;
        }
        let elicits = header.elicits_ack();
        if elicits && !self.can_hold(&view) {
            self.counters.rx_no_room = self.counters.rx_no_room.wrapping_add(1);
            self.take_what_needs_no_room(now, token, &view, host);
            return None;
        }
        if elicits && !self.tokens.open(token) {
            return None;
        }
        // The filter above has found the rail; it is looked up again because `can_hold` needed all of `self`.
        if let Some(rail) = self.rails.get_mut(usize::from(id.0)) {
            rail.on_received(now, header.packet, elicits, header.ack_now);
        }
        self.counters.rx_frames = self.counters.rx_frames.wrapping_add(1);
        self.counters.rx_bytes = self.counters.rx_bytes.wrapping_add(u64::from(frame_len));
        if !elicits {
            return None;
        }
        for item in view.chunks() {
            let arrived = Arrived {
                payload_at: item.at,
                token,
                chunk: item.chunk,
            };
            self.on_chunk(now, &arrived, header.ack_now, host);
        }
        Some(())
    }

    #[inline]
    fn on_chunk<H: Host + ?Sized>(&mut self, now: Nanos, arrived: &Arrived, urgent: bool, host: &H) {
        match arrived.chunk {
            Chunk::Request(seq, ref request) => self.on_request(now, seq, request, arrived, urgent, host),
            Chunk::Response(seq, ref response) => self.on_response(now, seq, response, arrived, host),
            Chunk::Join { nonce } => self.join_received = Some(nonce),
            Chunk::Ping => {}
        }
    }

    /// Whether everything in the frame can be executed or parked. What cannot must not be acknowledged.
    #[inline]
    fn can_hold(&self, view: &FrameView<'_>) -> bool {
        // No chunk header is shorter than 16 bytes.
        let chunks = u32::from(view.header().head_len.wrapping_sub(HEADER) >> 4);
        let room = self.park.room();
        room >= chunks.wrapping_add(self.turn_reserve()) || self.can_take_turns(view, room)
    }

    /// Entries of the park only for chunks that have their turn.
    #[inline]
    fn turn_reserve(&self) -> u32 {
        TURN_RESERVE.min(self.config.max_parked >> 1)
    }

    /// The park is nearly full: only a frame whose chunks all have their turn gets in, for it makes room. Its
    /// chunks may still need an entry each, until there is room for their plan.
    #[cold]
    fn can_take_turns(&self, view: &FrameView<'_>, room: u32) -> bool {
        let mut needed = 0u32;
        let mut last: Option<(bool, u32, u32)> = None;
        for item in view.chunks() {
            let (request, seq, next) = match item.chunk {
                Chunk::Request(seq, ref request) => match at(&self.rx_flows, seq.flow) {
                    Some(flow) if flow.state == RxState::Waiting || flow.state == RxState::Free => {
                        if !matches!(request, Request::FlowOpen { .. })
                            && last != Some((true, seq.flow, seq.csn))
                        {
                            return false;
                        }
                        (true, seq, seq.csn)
                    }
                    Some(flow) if flow.epoch == seq.epoch && !flow.rnr => (true, seq, flow.next_csn),
                    _ => continue,
                },
                Chunk::Response(seq, _) => match at(&self.tx_flows, seq.flow) {
                    Some(flow) if flow.takes_responses() => (false, seq, flow.response_csn),
                    _ => continue,
                },
                Chunk::Ping | Chunk::Join { .. } => continue,
            };
            let follows = last == Some((request, seq.flow, seq.csn));
            match turn(seq.csn, next) {
                Turn::Past | Turn::Never => continue,
                Turn::Early if !follows => return false,
                Turn::Now | Turn::Early => {}
            }
            last = Some((request, seq.flow, seq.csn.wrapping_add(1)));
            needed = needed.wrapping_add(1);
        }
        needed <= room
    }

    /// A frame that cannot be held is lost, but what its responses say is taken all the same, where that needs no
    /// room: two sides that are short of it could otherwise wait for each other. When the frame comes again,
    /// those chunks have had their turn.
    #[cold]
    fn take_what_needs_no_room<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        token: RxToken,
        view: &FrameView<'_>,
        host: &H,
    ) {
        for item in view.chunks() {
            let Chunk::Response(seq, response) = item.chunk else {
                continue;
            };
            if matches!(response, Response::ReadData { .. } | Response::Atomic { .. }) || !self.has_turn(seq)
            {
                continue;
            }
            let arrived = Arrived {
                payload_at: item.at,
                token,
                chunk: item.chunk,
            };
            self.on_response(now, seq, &response, &arrived, host);
        }
    }

    fn has_turn(&self, seq: Seq) -> bool {
        at(&self.tx_flows, seq.flow).is_some_and(|flow| flow.response_csn == seq.csn)
    }

    /// A request chunk of an incoming flow.
    #[inline]
    fn on_request<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        seq: Seq,
        request: &Request,
        arrived: &Arrived,
        urgent: bool,
        host: &H,
    ) {
        let Some(flow) = at_mut(&mut self.rx_flows, seq.flow) else {
            return self.violation();
        };
        flow.urgent |= urgent;
        let turn = match flow.state {
            RxState::Open | RxState::Refused => {
                if flow.epoch == seq.epoch && !flow.rnr {
                    turn(seq.csn, flow.next_csn)
                } else if flow.closes_while_not_ready(seq, request) {
                    flow.epoch = seq.epoch;
                    flow.rnr = false;
                    Turn::Now
                } else {
                    return self.stale();
                }
            }
            RxState::Free | RxState::Waiting => {
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
            Turn::Now if self.can_execute(seq.flow) => {
                self.execute(now, seq, request, arrived, host);
                self.drain_requests(now, seq.flow, host);
            }
            Turn::Now => {
                self.park_request(seq, arrived);
                self.stalled_requests.push(&mut self.rx_flows, seq.flow);
            }
            Turn::Early => self.park_request(seq, arrived),
            Turn::Past => self.counters.rx_chunk_duplicate = self.counters.rx_chunk_duplicate.wrapping_add(1),
            Turn::Never => self.violation(),
        }
    }

    fn park_request(&mut self, seq: Seq, arrived: &Arrived) {
        let Some(flow) = at_mut(&mut self.rx_flows, seq.flow) else {
            return;
        };
        if self.park.insert(&mut flow.parked, seq, arrived) {
            self.tokens.hold(arrived.token);
            self.counters.rx_parked = self.counters.rx_parked.wrapping_add(1);
        } else {
            self.counters.rx_chunk_duplicate = self.counters.rx_chunk_duplicate.wrapping_add(1);
        }
    }

    /// Whether there is room for the effects of one request chunk: a plan of its own, one for a receive it cuts
    /// off, and a NAK.
    #[inline]
    fn can_execute(&self, index: u32) -> bool {
        self.plans.room() >= 2 && at(&self.rx_flows, index).is_some_and(|flow| flow.nak.is_none())
    }

    /// Executes what is parked and has its turn now.
    #[inline]
    pub(super) fn drain_requests<H: Host + ?Sized>(&mut self, now: Nanos, index: u32, host: &H) {
        loop {
            let Some(flow) = at_mut(&mut self.rx_flows, index) else {
                return;
            };
            let Some(seq) = self.park.first(&flow.parked) else {
                return;
            };
            let stale = match flow.state {
                RxState::Open | RxState::Refused => seq.epoch != flow.epoch || flow.rnr,
                // Nothing but FLOW_OPEN, which has number 0 and tells the epoch.
                RxState::Free | RxState::Waiting if seq.csn == 0 => false,
                RxState::Free | RxState::Waiting => return,
                RxState::Closing | RxState::Closed => return self.purge_requests(index),
            };
            match turn(seq.csn, flow.next_csn) {
                Turn::Now if !stale => {
                    if !self.can_execute(index) {
                        return self.stalled_requests.push(&mut self.rx_flows, index);
                    }
                }
                Turn::Early | Turn::Never if !stale => return,
                _ => {}
            }
            let Some(flow) = at_mut(&mut self.rx_flows, index) else {
                return;
            };
            let now_due = !stale && seq.csn == flow.next_csn;
            let Some(arrived) = self.park.pop(&mut flow.parked) else {
                return;
            };
            if now_due {
                if let Chunk::Request(seq, ref request) = arrived.chunk {
                    self.execute(now, seq, request, &arrived, host);
                }
            } else if stale {
                self.stale();
            } else {
                self.counters.rx_chunk_duplicate = self.counters.rx_chunk_duplicate.wrapping_add(1);
            }
            self.tokens.drop_ref(arrived.token);
        }
    }

    /// Drops everything an incoming flow has parked.
    pub(super) fn purge_requests(&mut self, index: u32) {
        let Some(flow) = at_mut(&mut self.rx_flows, index) else {
            return;
        };
        while let Some(arrived) = self.park.pop(&mut flow.parked) {
            self.tokens.drop_ref(arrived.token);
        }
    }

    /// Goes on with flows that lacked room for a plan or a NAK.
    #[inline]
    pub(super) fn resume_stalled<H: Host + ?Sized>(&mut self, now: Nanos, host: &H) {
        // One that stalls again is put back at the end: a single round each.
        let last = self.stalled_requests.back();
        while self.plans.room() >= 2 {
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

    #[cold]
    pub(super) fn violation(&mut self) {
        self.counters.violations = self.counters.violations.wrapping_add(1);
    }

    #[cold]
    pub(super) fn stale(&mut self) {
        self.counters.rx_chunk_stale = self.counters.rx_chunk_stale.wrapping_add(1);
    }
}
