//! An endpoint's two ring endpoints: one for messages, one for `usb4-tagged`'s control lane. Each has its own queues
//! and completion queues, its own flows to peers and its own receive slots, so nothing that messages wait for holds up
//! the lane. An endpoint that exchanges no long messages opens no flow on it.

use std::sync::Arc;

use parking_lot::Mutex;
use usb4_ring::{Cq, Device, Endpoint, EndpointConfig, EndpointKind, Error};
use usb4_tagged::{
    Arrival, Control, Done, HEADER_LEN, HeaderWords, Lanes, PeerId, PostError, Remote, Segment, Transport,
};

use crate::addr::{Name, lane_name};
use crate::av::Peers;
use crate::bounce::Exposed;
use crate::transport::{Cqs, RingTransport};

/// Receive slots of the control lane. They are given back as soon as they are looked at.
const CONTROL_SLOTS: u32 = 64;

/// Entries of the control lane's submission queue; what finds no room there waits in the messenger.
const CONTROL_SENDS: u32 = 256;

/// A ring endpoint and its completion queues.
pub(crate) struct Lane {
    endpoint: Endpoint,
    cqs: Cqs,
}

impl Lane {
    fn open(device: &Device, sq_depth: u32, rq_depth: u32) -> Result<Self, Error> {
        let most = device.info().max_cq_depth;
        let cqs = Cqs {
            sends: device.create_cq(sq_depth.min(most))?,
            receives: device.create_cq(rq_depth.min(most))?,
        };
        let config = EndpointConfig {
            kind: EndpointKind::Datagram,
            sq_depth,
            rq_depth,
        };
        let endpoint = device.create_endpoint(&config, &cqs.sends, &cqs.receives)?;
        Ok(Self { endpoint, cqs })
    }
}

/// Both lanes before there is memory for messages.
pub(crate) struct Parts {
    messages: Lane,
    control: Lane,
}

impl Parts {
    /// `depths`: of the submission and receive queue for messages.
    ///
    /// # Errors
    /// The device has no room for them.
    pub(crate) fn open(device: &Device, depths: (usize, usize)) -> Result<Self, Error> {
        let limit = device.info().max_queue_depth;
        let depth = |wanted: usize| u32::try_from(wanted).unwrap_or(limit).min(limit);
        Ok(Self {
            messages: Lane::open(device, depth(depths.0), depth(depths.1))?,
            control: Lane::open(device, CONTROL_SENDS.min(limit), CONTROL_SLOTS.min(limit))?,
        })
    }

    /// Their address.
    pub(crate) fn name(&self) -> Name {
        Name {
            address: self.messages.endpoint.address(),
            lane: lane_name(&self.control.endpoint.address()),
        }
    }

    /// The completion queues, for waiting.
    pub(crate) fn cqs(&mut self) -> [&mut Cq; 4] {
        let ([a, b], [c, d]) = (self.messages.cqs.each(), self.control.cqs.each());
        [a, b, c, d]
    }
}

/// Both lanes.
pub(crate) struct RingLanes {
    messages: RingTransport,
    /// Apart, so that what messages use lies close together.
    control: Box<RingTransport>,
    lane: u64,
    peers: Arc<Mutex<Peers>>,
}

impl RingLanes {
    /// # Errors
    /// No memory for the slots.
    pub(crate) fn new(
        device: &Device,
        parts: Parts,
        slots: usize,
        eager_size: usize,
        peers: &Arc<Mutex<Peers>>,
    ) -> Result<Self, Error> {
        let lane = parts.name().lane;
        let open = |lane: Lane, slots, eager| {
            let Lane { endpoint, cqs } = lane;
            RingTransport::new(device.clone(), endpoint, cqs, slots, eager, peers.clone())
        };
        let mut lanes = Self {
            messages: open(parts.messages, slots, eager_size)?,
            control: Box::new(open(parts.control, CONTROL_SLOTS as usize, 0)?),
            lane,
            peers: peers.clone(),
        };
        for slot in 0..CONTROL_SLOTS {
            lanes.give_back(slot);
        }
        Ok(lanes)
    }

    /// The completion queues, for waiting.
    pub(crate) fn cqs(&mut self) -> [&mut Cq; 4] {
        let ([a, b], [c, d]) = (self.messages.cqs().each(), self.control.cqs().each());
        [a, b, c, d]
    }

    /// Posts a slot of the control lane; the queue has room for all of them.
    fn give_back(&mut self, slot: u32) {
        if self.control.post_slot(slot).is_ok() {
            self.control.submit();
        }
    }

    /// The peer of the control lane behind a peer.
    fn lane_of(&self, peer: PeerId) -> Result<PeerId, PostError> {
        self.peers.lock().lane_of(peer).ok_or(PostError::Unreachable)
    }
}

impl Transport for RingLanes {
    type Exposed = Exposed;

    fn slots(&self) -> u32 {
        self.messages.slots()
    }

    fn slot_size(&self) -> u32 {
        self.messages.slot_size()
    }

    #[inline(always)]
    fn slot(&self, slot: u32, len: u32) -> &[u8] {
        self.messages.slot(slot, len)
    }

    #[inline(always)]
    fn post_slot(&mut self, slot: u32) -> Result<(), PostError> {
        self.messages.post_slot(slot)
    }

    #[inline(always)]
    unsafe fn send(
        &mut self,
        to: PeerId,
        header: HeaderWords,
        payload: Segment,
        cookie: u64,
    ) -> Result<(), PostError> {
        // SAFETY: promised by the caller.
        unsafe { self.messages.send(to, header, payload, cookie) }
    }

    unsafe fn read(
        &mut self,
        from: PeerId,
        remote: Remote,
        into: Segment,
        cookie: u64,
    ) -> Result<u64, PostError> {
        let from = self.lane_of(from)?;
        // SAFETY: promised by the caller.
        let len = unsafe { self.control.read(from, remote, into, cookie)? };
        self.control.submit();
        Ok(len)
    }

    unsafe fn expose(&mut self, memory: Segment) -> Result<Exposed, PostError> {
        // SAFETY: promised by the caller.
        unsafe { self.messages.expose(memory) }
    }

    fn remote(exposed: &Exposed) -> Remote {
        RingTransport::remote(exposed)
    }

    #[inline(always)]
    fn submit(&mut self) {
        self.messages.submit();
    }

    #[inline(always)]
    fn drive(&mut self) -> bool {
        // The device drives all endpoints.
        self.messages.drive()
    }

    #[inline(always)]
    fn has_events(&mut self) -> bool {
        self.messages.has_events()
    }

    #[inline(always)]
    fn arrival(&mut self) -> Option<Arrival> {
        self.messages.arrival()
    }

    #[inline(always)]
    fn done(&mut self) -> Option<Done> {
        self.messages.done()
    }
}

impl Lanes for RingLanes {
    fn lane(&self) -> u64 {
        self.lane
    }

    fn introduce(&mut self, peer: PeerId, lane: u64) {
        self.peers.lock().introduce(peer, lane, false);
    }

    fn send_control(&mut self, to: PeerId, header: HeaderWords, cookie: u64) -> Result<(), PostError> {
        let to = self.lane_of(to)?;
        // SAFETY: there is no payload.
        unsafe { self.control.send(to, header, Segment::EMPTY, cookie)? };
        self.control.submit();
        Ok(())
    }

    #[inline(always)]
    fn has_control(&mut self) -> bool {
        self.control.has_events()
    }

    fn control(&mut self) -> Option<Control> {
        loop {
            let (slot, message) = match self.control.arrival()? {
                Arrival::Returned { slot } => (slot, None),
                Arrival::Message { slot, len, from } => {
                    let bytes = self.control.slot(slot, len).first_chunk::<HEADER_LEN>();
                    (slot, bytes.copied().map(|bytes| (bytes, from)))
                }
            };
            self.give_back(slot);
            let Some((bytes, from)) = message else { continue };
            // A lane that nobody has named has no business here.
            if let Some(from) = self.peers.lock().owner_of(from) {
                return Some(Control { bytes, from });
            }
        }
    }

    fn control_done(&mut self) -> Option<Done> {
        self.control.done()
    }
}
