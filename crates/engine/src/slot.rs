//! TX slots: a frame from staging until it is acknowledged *and* its descriptor has completed.
//!
//! ```text
//! free -> staging -> ready -> posted -> acked and completed -> free
//!                       ^        |
//!                       |        v
//!                     resend <- lost and completed
//! ```

use crate::ahead::Ahead;
use crate::list::{Linked, List, NONE, OUT, at, at_mut};
use crate::rail::Outcome;
use crate::{Slab, TxSlot};

/// Where a slot is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Being gathered by the home.
    Staging,
    /// Waits for a rail; never posted before.
    Ready,
    /// Its descriptor is with a rail, or the peer's verdict is awaited.
    Posted,
    /// Lost; waits for a rail.
    Resend,
}

/// A TX slot. Its size is a power of two, so that finding one takes a shift.
#[derive(Debug)]
#[repr(align(32))]
pub struct Slot {
    link: u32,
    state: State,
    /// The peer holds the frame (pure acknowledgements and probes: nobody asks).
    acked: bool,
    lost: bool,
    /// The descriptor of the latest post has been consumed.
    completed: bool,
    /// The round of stagings it belongs to.
    round: bool,
    /// Part of the set whose end a closed flow waits for.
    marked: bool,
    /// It is a probe, for the rail in `rail`.
    probe: bool,
    /// The rail of the latest post.
    pub(crate) rail: u8,
    /// Its round in [`Ahead`].
    ahead: u8,
    pub(crate) frame: Frame,
}

/// What is noted of a frame when it is staged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// If all chunks are requests of one flow: that flow. Else [`NONE`].
    pub(crate) flow: u32,
    /// CRC of the chunk headers.
    pub(crate) crc: u32,
    /// Frame header and chunk headers.
    pub(crate) head_len: u16,
    /// The whole frame.
    pub(crate) len: u16,
    /// If all chunks are requests of one flow: their epoch.
    pub(crate) epoch: u8,
    /// It carries responses only.
    pub(crate) response: bool,
    /// It wants an acknowledgement without delay.
    pub(crate) ack_now: bool,
}

impl Slot {
    #[inline(always)]
    fn begin(&mut self, frame: Frame, round: bool) {
        self.state = State::Staging;
        self.acked = false;
        self.probe = false;
        self.round = round;
        self.frame = frame;
    }

    #[inline(always)]
    fn post(&mut self, rail: u8) {
        self.state = State::Posted;
        self.rail = rail;
        self.lost = false;
        self.completed = false;
    }
}

/// The home's name for the slot at `index`; there are no more than that has numbers for.
#[inline(always)]
fn slot_of(index: u32) -> TxSlot {
    TxSlot((index & 0xffff) as u16)
}

impl Linked<0> for Slot {
    #[inline]
    fn link(&mut self) -> &mut u32 {
        &mut self.link
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            link: OUT,
            state: State::Free,
            acked: false,
            lost: false,
            completed: false,
            round: false,
            marked: false,
            probe: false,
            rail: 0,
            ahead: 0,
            frame: Frame {
                flow: NONE,
                crc: 0,
                head_len: 0,
                len: 0,
                epoch: 0,
                response: false,
                ack_now: false,
            },
        }
    }
}

/// All TX slots of a link.
#[derive(Debug)]
pub(crate) struct Slots {
    slab: Slab<Slot>,
    /// Frames staged and not acknowledged, probes aside.
    ahead: Ahead,
    free: List<0>,
    free_count: u32,
    /// Staged or ready, in the order of staging.
    requests: List<0>,
    responses: List<0>,
    probes: List<0>,
    resend: List<0>,
    /// Staged, ready or lost, probes aside.
    queued: u32,
    /// Staged or ready: frames with requests.
    waiting_requests: u32,
    /// Staged or ready: frames with responses only.
    waiting_responses: u32,
    /// Number of the latest staging; stagings are numbered from 1.
    staged: u64,
    /// Every staging up to here has been gathered.
    gathered: u64,
    /// Stagings belong to one of two rounds: `round` for those after `boundary`, the other for those up to it.
    /// When the older round has been gathered, the newer one takes its place.
    round: bool,
    boundary: u64,
    gathering: [u32; 2],
    marked: u32,
    /// Slots kept for pure acknowledgements and probes.
    control_reserve: u32,
    /// Slots kept for those and for responses.
    response_reserve: u32,
}

impl Slots {
    /// `parks`: chunks the peer can park.
    pub(crate) fn new(mut slab: Slab<Slot>, count: u16, parks: u32) -> Self {
        for slot in slab.iter_mut() {
            *slot = Slot::default();
        }
        let mut free = List::default();
        let count = u32::from(count).min(u32::try_from(slab.len()).unwrap_or(NONE));
        for index in (0..count).rev() {
            free.push_front(&mut slab, index);
        }
        // An eighth for each, and not more than one rail can use.
        let reserve = (count >> 3).clamp(1, 32);
        Self {
            slab,
            ahead: Ahead::new(parks),
            free,
            free_count: count,
            requests: List::default(),
            responses: List::default(),
            probes: List::default(),
            resend: List::default(),
            queued: 0,
            waiting_requests: 0,
            waiting_responses: 0,
            staged: 0,
            gathered: 0,
            round: false,
            boundary: 0,
            gathering: [0; 2],
            marked: 0,
            control_reserve: reserve,
            response_reserve: reserve.wrapping_mul(2),
        }
    }

    pub(crate) fn into_slab(self) -> Slab<Slot> {
        self.slab
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Slot> {
        at(&self.slab, index)
    }

    /// Slots that are free.
    pub(crate) fn free_count(&self) -> u32 {
        self.free_count
    }

    /// Whether a frame with requests may take a slot.
    #[inline]
    pub(crate) fn has_for_requests(&self) -> bool {
        self.free_count > self.response_reserve
    }

    /// Whether a frame with responses may take a slot.
    #[inline]
    pub(crate) fn has_for_responses(&self) -> bool {
        self.free_count > self.control_reserve
    }

    /// Whether the peer can park another frame with requests, should it have to.
    #[inline]
    pub(crate) fn may_park_requests(&self) -> bool {
        self.ahead.may_request()
    }

    /// Whether the peer can park another frame with responses.
    #[inline]
    pub(crate) fn may_park_responses(&self) -> bool {
        self.ahead.may_respond()
    }

    /// Frames staged or ready that carry requests.
    #[inline]
    pub(crate) fn waiting_requests(&self) -> u32 {
        self.waiting_requests
    }

    /// Frames staged or ready that carry responses only.
    #[inline]
    pub(crate) fn waiting_responses(&self) -> u32 {
        self.waiting_responses
    }

    /// Whether the home is gathering.
    #[inline]
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathering != [0; 2]
    }

    /// Whether the gather of staging `number` is over.
    #[inline]
    pub(crate) fn is_gathered(&self, number: u64) -> bool {
        number <= self.gathered
    }

    /// The number the next staging gets.
    #[inline]
    pub(crate) fn next_gather(&self) -> u64 {
        self.staged.wrapping_add(1)
    }

    /// The slot the next staging gets.
    #[inline]
    pub(crate) fn peek_free(&self) -> Option<TxSlot> {
        self.free.front().map(slot_of)
    }

    /// Begins the staging of a frame of so many chunks in the slot [`Slots::peek_free`] has told.
    #[inline(always)]
    pub(crate) fn stage(&mut self, chunks: u32, frame: Frame) {
        let ahead = self.ahead.sent(chunks);
        let (queue, waiting) = if frame.response {
            (&mut self.responses, &mut self.waiting_responses)
        } else {
            (&mut self.requests, &mut self.waiting_requests)
        };
        // As a slice, so that it is looked up once.
        let slab: &mut [Slot] = &mut self.slab;
        let Some(index) = self.free.pop(slab) else {
            return;
        };
        self.free_count = self.free_count.wrapping_sub(1);
        *waiting = waiting.wrapping_add(1);
        self.queued = self.queued.wrapping_add(1);
        if let Some(slot) = at_mut(slab, index) {
            slot.begin(frame, self.round);
            slot.ahead = ahead;
        }
        queue.push(slab, index);
        self.begin();
    }

    /// Takes the slot [`Slots::peek_free`] has told for a frame of so many chunks that the home gathers and posts at
    /// once.
    #[inline(always)]
    pub(crate) fn stage_posted(&mut self, chunks: u32, rail: u8, frame: Frame) {
        let ahead = self.ahead.sent(chunks);
        let slab: &mut [Slot] = &mut self.slab;
        let Some(index) = self.free.pop(slab) else {
            return;
        };
        self.free_count = self.free_count.wrapping_sub(1);
        if let Some(slot) = at_mut(slab, index) {
            slot.begin(frame, self.round);
            slot.ahead = ahead;
            slot.post(rail);
        }
    }

    /// One more gather is under way.
    #[inline(always)]
    fn begin(&mut self) {
        self.staged = self.staged.wrapping_add(1);
        let [even, odd] = &mut self.gathering;
        let gathering = if self.round { odd } else { even };
        *gathering = gathering.wrapping_add(1);
    }

    /// Begins the staging of a probe for a rail in the slot [`Slots::peek_free`] has told. It is free again when its
    /// descriptor completes.
    pub(crate) fn stage_probe(&mut self, rail: u8, frame: Frame) {
        let Some(index) = self.take() else { return };
        if let Some(slot) = at_mut(&mut self.slab, index) {
            slot.begin(frame, self.round);
            slot.probe = true;
            slot.acked = true;
            slot.rail = rail;
        }
        self.probes.push(&mut self.slab, index);
        self.begin();
    }

    /// The home has gathered a slot; it may be posted when those staged before it have been. False if it was not
    /// being gathered.
    #[inline]
    pub(crate) fn gathered(&mut self, slot: TxSlot) -> bool {
        let round = match at_mut(&mut self.slab, u32::from(slot.0)) {
            Some(slot) if slot.state == State::Staging => {
                slot.state = State::Ready;
                slot.round
            }
            _ => return false,
        };
        let [even, odd] = &mut self.gathering;
        if even.wrapping_add(*odd) == 1 {
            // The only one under way.
            (*even, *odd) = (0, 0);
            self.gathered = self.staged;
            self.boundary = self.staged;
            return true;
        }
        let gathering = if round { &mut *odd } else { &mut *even };
        *gathering = gathering.wrapping_sub(1);
        let older = if self.round { *even } else { *odd };
        if older == 0 {
            self.gathered = self.boundary;
            self.boundary = self.staged;
            self.round = !self.round;
        }
        true
    }

    /// The first of a queue, if it has been gathered.
    #[inline]
    fn ready(&self, queue: &List<0>) -> Option<u32> {
        let index = queue.front()?;
        let ready = at(&self.slab, index).is_some_and(|slot| slot.state == State::Ready);
        ready.then_some(index)
    }

    /// Whether frames wait for a rail or for their gather, probes aside.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        self.queued != 0
    }

    /// Whether probes have been staged and not posted.
    #[inline]
    pub(crate) fn has_probes(&self) -> bool {
        !self.probes.is_empty()
    }

    /// The first lost frame.
    #[inline]
    pub(crate) fn front_resend(&self) -> Option<u32> {
        self.resend.front()
    }

    /// The first ready frame that carries responses only.
    #[inline]
    pub(crate) fn front_response(&self) -> Option<u32> {
        self.ready(&self.responses)
    }

    /// The first ready frame that carries requests.
    #[inline]
    pub(crate) fn front_request(&self) -> Option<u32> {
        self.ready(&self.requests)
    }

    /// The next frame to be posted, if it carries requests and is neither lost nor to be gathered.
    #[inline(always)]
    pub(crate) fn next_request(&self) -> Option<(TxSlot, &Frame)> {
        if !self.resend.is_empty() || !self.responses.is_empty() {
            return None;
        }
        let index = self.requests.front()?;
        let slot = at(&self.slab, index)?;
        (slot.state == State::Ready).then_some((slot_of(index), &slot.frame))
    }

    /// Takes the frame [`Slots::next_request`] has told off its queue: it is posted.
    #[inline(always)]
    pub(crate) fn post_request(&mut self, rail: u8) {
        if let Some(index) = self.requests.pop(&mut self.slab) {
            self.queued = self.queued.wrapping_sub(1);
            self.waiting_requests = self.waiting_requests.wrapping_sub(1);
            self.post(index, rail);
        }
    }

    /// The first probe that is ready.
    #[inline]
    pub(crate) fn front_probe(&self) -> Option<u32> {
        self.ready(&self.probes)
    }

    /// Takes the first probe off its queue, to be posted or freed.
    pub(crate) fn pop_probe(&mut self) {
        self.probes.pop(&mut self.slab);
    }

    /// Takes the first lost frame off its queue, to be posted or freed.
    #[inline]
    pub(crate) fn pop_resend(&mut self) {
        self.resend.pop(&mut self.slab);
        self.queued = self.queued.wrapping_sub(1);
    }

    /// Takes the first ready response off its queue, to be posted or freed.
    #[inline]
    pub(crate) fn pop_response(&mut self) {
        self.responses.pop(&mut self.slab);
        self.queued = self.queued.wrapping_sub(1);
        self.waiting_responses = self.waiting_responses.wrapping_sub(1);
    }

    /// Takes the first ready request off its queue, to be posted or freed.
    #[inline]
    pub(crate) fn pop_request(&mut self) {
        self.requests.pop(&mut self.slab);
        self.queued = self.queued.wrapping_sub(1);
        self.waiting_requests = self.waiting_requests.wrapping_sub(1);
    }

    /// A frame taken off a queue is posted.
    #[inline]
    pub(crate) fn post(&mut self, index: u32, rail: u8) {
        if let Some(slot) = at_mut(&mut self.slab, index) {
            slot.post(rail);
        }
    }

    /// Takes a slot for a pure acknowledgement or a probe, which is free again when its descriptor completes.
    #[inline]
    pub(crate) fn post_control(&mut self, rail: u8) -> Option<u32> {
        let index = self.take()?;
        let slot = at_mut(&mut self.slab, index)?;
        slot.acked = true;
        self.post(index, rail);
        Some(index)
    }

    /// The peer's verdict on a posted frame. A lost frame waits for its descriptor, then is queued again.
    #[inline(always)]
    pub(crate) fn decided(&mut self, slot: u16, outcome: Outcome) {
        let index = u32::from(slot);
        match at_mut(&mut self.slab, index) {
            Some(slot) if slot.state == State::Posted => match outcome {
                Outcome::Acked => {
                    if !core::mem::replace(&mut slot.acked, true) {
                        self.ahead.done(slot.ahead);
                    }
                    if slot.completed {
                        self.free_acked(index);
                    }
                }
                Outcome::Lost => self.lost(index),
            },
            _ => {}
        }
    }

    #[cold]
    fn lost(&mut self, index: u32) {
        if let Some(slot) = at_mut(&mut self.slab, index) {
            slot.lost = true;
            if slot.completed {
                self.send_again(index);
            }
        }
    }

    /// A lost frame waits for a rail.
    #[cold]
    fn send_again(&mut self, index: u32) {
        if let Some(slot) = at_mut(&mut self.slab, index) {
            slot.state = State::Resend;
            self.resend.push(&mut self.slab, index);
            self.queued = self.queued.wrapping_add(1);
        }
    }

    /// The descriptor of the latest post has been consumed. False if there was none on that rail.
    #[inline]
    pub(crate) fn completed(&mut self, slot: TxSlot, rail: u8) -> bool {
        let index = u32::from(slot.0);
        let Some(slot) = at_mut(&mut self.slab, index) else {
            return false;
        };
        if slot.state != State::Posted || slot.completed || slot.rail != rail {
            return false;
        }
        slot.completed = true;
        if slot.acked {
            self.free_acked(index);
        } else if slot.lost {
            self.send_again(index);
        }
        true
    }

    /// A rail is gone: every descriptor it had counts as consumed.
    pub(crate) fn complete_all(&mut self, rail: u8) {
        for index in 0..=u16::MAX {
            if usize::from(index) >= self.slab.len() {
                break;
            }
            self.completed(TxSlot(index), rail);
        }
    }

    /// The link is dead: nothing will be posted again. Frames being gathered stay until they are.
    pub(crate) fn abandon(&mut self) {
        while let Some(index) = self.front_resend() {
            self.pop_resend();
            self.free(index);
        }
        while let Some(index) = self.front_response() {
            self.pop_response();
            self.free(index);
        }
        while let Some(index) = self.front_request() {
            self.pop_request();
            self.free(index);
        }
        while let Some(index) = self.front_probe() {
            self.pop_probe();
            self.free(index);
        }
        for index in (0..NONE).take(self.slab.len()) {
            if self.get(index).is_some_and(|slot| slot.state == State::Posted) {
                self.free(index);
            }
        }
    }

    /// Frees a slot that is in no queue.
    pub(crate) fn free(&mut self, index: u32) {
        if let Some(slot) = at_mut(&mut self.slab, index) {
            if !core::mem::replace(&mut slot.acked, true) {
                self.ahead.done(slot.ahead);
            }
            self.free_acked(index);
        }
    }

    /// Frees a slot that is in no queue and whose frame is acknowledged.
    #[inline(always)]
    fn free_acked(&mut self, index: u32) {
        let slab: &mut [Slot] = &mut self.slab;
        let Some(slot) = at_mut(slab, index) else {
            return;
        };
        slot.state = State::Free;
        if slot.marked {
            slot.marked = false;
            self.marked = self.marked.wrapping_sub(1);
        }
        self.free_count = self.free_count.wrapping_add(1);
        self.free.push_front(slab, index);
    }

    /// Marks all frames that may yet reach the peer (again); [`Slots::marked`] counts them down.
    pub(crate) fn mark(&mut self) {
        for slot in self.slab.iter_mut() {
            if slot.state != State::Free && !slot.marked {
                slot.marked = true;
                self.marked = self.marked.wrapping_add(1);
            }
        }
    }

    /// Marked frames that are not free yet.
    #[inline]
    pub(crate) fn marked(&self) -> u32 {
        self.marked
    }

    #[inline]
    fn take(&mut self) -> Option<u32> {
        let index = self.free.pop(&mut self.slab)?;
        self.free_count = self.free_count.wrapping_sub(1);
        Some(index)
    }
}
