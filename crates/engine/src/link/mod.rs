//! [`Link`]: the session with one peer over all its rails.
//!
//! A link performs no I/O and reads no clock. The home (device, simulator) feeds it frames, work and time, and
//! turns what it yields into I/O. One turn of the home, under the link's lock except where said:
//!
//! 1. for every received frame: replace its descriptor, check the payload CRC if [`Link::payload_crc`] (see
//!    [`crate::payload_span`]), then [`Link::on_frame`];
//! 2. take plans with [`Link::next_plan`], run them *without the lock*, first in, first out, then call
//!    [`Link::plan_done`] once for each, in the same order; give buffers back from [`Link::next_released`];
//! 3. if [`Link::deadline`] has passed: [`Link::on_timer`];
//! 4. [`Link::stage`] while it returns true; gather each frame *without the lock*; then [`Link::staged`];
//! 5. [`Link::next_post`] while it yields: write the header, post the slot;
//! 6. for every TX descriptor consumed: [`Link::tx_completed`].
//!
//! Steps 4 and 5 follow every call that can give the link something to say, plan completions and posts included.

use usb4_wire::EpAddr;

use crate::{
    AttachError, Counters, Fate, FlowId, Host, LinkConfig, LinkStorage, Nanos, OpenError, Plan, Post,
    PostError, RailConfig, RailId, RxToken, Staged, TxSlot, Work,
};

/// The session with one peer.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    counters: Counters,
    _storage: LinkStorage,
}

impl Link {
    /// A link without rails. It is up once the first rail is attached.
    pub fn new(config: LinkConfig, storage: LinkStorage) -> Self {
        Self {
            config,
            counters: Counters::default(),
            _storage: storage,
        }
    }

    /// Adds a rail: both sides have enabled their paths and exchanged tags.
    ///
    /// # Errors
    /// The rail number is not free, or the link has failed.
    pub fn attach_rail(&mut self, now: Nanos, rail: RailId, config: &RailConfig) -> Result<(), AttachError> {
        let _ = (now, rail, config);
        Ok(())
    }

    /// Removes a rail. The home has stopped it: none of its descriptors is pending any more, and those that were
    /// count as completed. What the peer has not acknowledged goes out again on the other rails. Without another
    /// rail the link fails, as by [`Link::fail`].
    pub fn detach_rail<H: Host + ?Sized>(&mut self, now: Nanos, rail: RailId, host: &H) {
        let _ = (now, rail, host);
    }

    /// Ends the session: work completes with `LinkDown`, receives in progress with `Flushed`, incoming flows are
    /// closed towards the host, references and frame buffers come back. Plans already taken and frames being
    /// gathered still touch memory, so the home goes on calling [`Link::plan_done`] and [`Link::staged`] for
    /// them; what depends on them completes there. Once [`Link::is_quiet`], nothing is left.
    pub fn fail<H: Host + ?Sized>(&mut self, now: Nanos, host: &H) {
        let _ = (now, host);
    }

    /// Whether the link has a rail and has not failed.
    pub fn is_up(&self) -> bool {
        true
    }

    /// Whether the link holds nothing: no operation, receive, plan, frame buffer or reference.
    pub fn is_quiet(&self) -> bool {
        true
    }

    /// Opens a flow from a local endpoint to an endpoint of the peer. The peer's refusal, if any, comes as the
    /// failure of posted work with `Refused(Gone)`.
    ///
    /// # Errors
    /// No flow is free, or the link has failed.
    pub fn open_flow(
        &mut self,
        src_ep: u32,
        src_incarnation: u32,
        dst: &EpAddr,
    ) -> Result<FlowId, OpenError> {
        let _ = (src_ep, src_incarnation, dst);
        Err(OpenError::Down)
    }

    /// Closes a flow: its work completes with `Flushed`, at once unless a plan or a gather still uses its
    /// memory. The id is used again only after the peer has executed the close.
    pub fn close_flow<H: Host + ?Sized>(&mut self, now: Nanos, flow: FlowId, host: &H) {
        let _ = (now, flow, host);
    }

    /// Queues work on a flow, first in, first out. On success the link owns the reference in `work.local` until
    /// it releases it.
    ///
    /// # Errors
    /// The work is not accepted and nothing has changed.
    pub fn post(&mut self, now: Nanos, flow: FlowId, work: Work) -> Result<(), PostError> {
        let _ = (now, flow, work);
        Err(PostError::Down)
    }

    /// Endpoint `ep` has got a receive (or is gone): flows that were refused for lack of one may resume.
    pub fn receive_posted(&mut self, now: Nanos, ep: u32) {
        let _ = (now, ep);
    }

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
        let _ = (now, rail, token, head, frame_len, host);
        Fate::Done
    }

    /// Counts a frame the home has dropped because its payload CRC was wrong. It is lost, as if it had never
    /// arrived.
    pub fn payload_corrupt(&mut self) {
        self.counters.rx_corrupt = self.counters.rx_corrupt.wrapping_add(1);
    }

    /// The next thing to do to memory, in order.
    pub fn next_plan(&mut self) -> Option<Plan> {
        None
    }

    /// The oldest plan taken is done; `old_value` is an atomic's value before the operation, else 0.
    pub fn plan_done<H: Host + ?Sized>(&mut self, now: Nanos, old_value: u64, host: &H) {
        let _ = (now, old_value, host);
    }

    /// A receive buffer the link held and needs no more.
    pub fn next_released(&mut self) -> Option<RxToken> {
        None
    }

    /// Composes the next frame, if there is something to send and the rails can take it soon. True: gather it
    /// and call [`Link::staged`].
    pub fn stage<H: Host + ?Sized>(&mut self, now: Nanos, host: &H, out: &mut Staged) -> bool {
        let _ = (now, host, out);
        false
    }

    /// The frame in `slot` has been gathered and may be posted.
    pub fn staged<H: Host + ?Sized>(&mut self, now: Nanos, slot: TxSlot, host: &H) {
        let _ = (now, slot, host);
    }

    /// The next frame to post and its header: retransmissions first, then staged frames, then pure
    /// acknowledgements and probes that are due. The header goes to the start of the slot; the order of posts on
    /// a rail must be the order of these calls.
    pub fn next_post<H: Host + ?Sized>(
        &mut self,
        now: Nanos,
        host: &H,
        header: &mut [u8; 40],
    ) -> Option<Post> {
        let _ = (now, host, header);
        None
    }

    /// The rail has consumed the slot's descriptor. Each slot completes once per post.
    pub fn tx_completed(&mut self, now: Nanos, rail: RailId, slot: TxSlot) {
        let _ = (now, rail, slot);
    }

    /// Acts on timers that have expired: acknowledgements and probes become due for [`Link::next_post`].
    pub fn on_timer(&mut self, now: Nanos) {
        let _ = now;
    }

    /// When [`Link::on_timer`] must be called next.
    pub fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// A rail on which a frame of another session has arrived since the last call: the home answers with a
    /// rate-limited RESET on the control channel.
    pub fn take_reset(&mut self) -> Option<RailId> {
        None
    }

    /// Whether frames carry a CRC over their payload, which the home computes when it gathers and checks before
    /// it hands a frame to [`Link::on_frame`].
    pub fn payload_crc(&self) -> bool {
        self.config.payload_crc
    }

    /// What the link was created with.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// What has happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
