//! `usb4-tagged`'s transport over the ring API.

use std::sync::Arc;

use parking_lot::Mutex;
use usb4_ffi::{Level, log};
use usb4_ring::{
    Access, AddressHandle, Buffer, Cq, Device, Endpoint, Error, MemoryRegion, Object, Remote, SourceId,
    Status, WorkRequest,
};
use usb4_tagged::{Arrival, Done, Failure, HEADER_LEN, HeaderWords, PeerId, PostError, Segment, Transport};

use crate::av::Peers;
use crate::bounce::{Bounce, Exposed};
use crate::handles::{Handles, Place};

/// Entries of the cache of senders.
const SOURCES: usize = 64;

/// Where in a request's user data the place of its handle is; below is the cookie, which needs less.
const PLACE_SHIFT: u32 = 48;

/// The completion queues of an endpoint: who waits for a message need not look at finished sends first.
pub(crate) struct Cqs {
    pub(crate) sends: Cq,
    pub(crate) receives: Cq,
}

impl Cqs {
    /// Both.
    pub(crate) fn each(&mut self) -> [&mut Cq; 2] {
        [&mut self.receives, &mut self.sends]
    }
}

/// An endpoint, its completion queues and its receive slots.
pub(crate) struct RingTransport {
    device: Device,
    endpoint: Endpoint,
    cqs: Cqs,
    memory: MemoryRegion,
    slots: Vec<Buffer>,
    stride: usize,
    slot_size: u32,
    peers: Arc<Mutex<Peers>>,
    handles: Handles,
    /// Peers removed from the address vector when that was last looked at.
    removals: u64,
    /// Where the device does not reach the process.
    bounce: Option<Box<Bounce>>,
    sources: [Option<(SourceId, PeerId)>; SOURCES],
}

impl RingTransport {
    /// `eager_size`: longest message; 0 for an endpoint of reads and messages that are all header.
    ///
    /// # Errors
    /// No memory for the slots.
    pub(crate) fn new(
        device: Device,
        endpoint: Endpoint,
        cqs: Cqs,
        slots: usize,
        eager_size: usize,
        peers: Arc<Mutex<Peers>>,
    ) -> Result<Self, Error> {
        let slot_size = eager_size + HEADER_LEN;
        // An odd number of cache lines, so that the heads of the slots do not share cache sets.
        let stride = slot_size.next_multiple_of(128) + 64;
        let memory = device.alloc(stride * slots, Access::LOCAL)?;
        let slots = (0..slots)
            .map(|slot| memory.buffer(slot * stride, slot_size))
            .collect::<Result<_, _>>()?;
        let bounce = if device.info().process_memory {
            None
        } else {
            Some(Box::new(Bounce::new(&device, eager_size)?))
        };
        Ok(Self {
            device,
            endpoint,
            cqs,
            memory,
            slots,
            stride,
            slot_size: u32::try_from(slot_size).unwrap_or(u32::MAX),
            peers,
            handles: Handles::default(),
            removals: 0,
            bounce,
            sources: [None; SOURCES],
        })
    }

    /// The completion queues, for waiting.
    pub(crate) fn cqs(&mut self) -> &mut Cqs {
        &mut self.cqs
    }

    /// The handle of a peer, for work that [`Self::post`] posts next.
    #[inline(always)]
    fn handle(&mut self, peer: PeerId) -> Result<(AddressHandle, Place), PostError> {
        match self.handles.begin(peer) {
            Some(open) => Ok(open),
            None => {
                self.open_handle(peer)?;
                self.handles.begin(peer).ok_or(PostError::Full)
            }
        }
    }

    #[cold]
    fn open_handle(&mut self, peer: PeerId) -> Result<(), PostError> {
        let (address, removals) = {
            let peers = self.peers.lock();
            (peers.address(peer), peers.removals())
        };
        let address = address.ok_or(PostError::Unreachable)?;
        if self.removals != removals {
            self.removals = removals;
            self.close_removed();
        }
        let mut opened = self.endpoint.try_address_handle(&address);
        if matches!(opened, Err(Error::Limit(Object::Handle))) && self.close_idle() {
            opened = self.endpoint.try_address_handle(&address);
        }
        match opened {
            Ok(Some(handle)) if self.handles.insert(peer, handle) => Ok(()),
            Ok(Some(handle)) => {
                self.endpoint.close_handle(handle);
                self.close_idle();
                Err(PostError::Full)
            }
            // While all handles have work under way, the caller waits until some of it has finished.
            Ok(None) | Err(Error::Limit(Object::Handle)) => Err(PostError::Full),
            Err(error @ (Error::Gone | Error::Forked | Error::EndpointError)) => {
                log(
                    Level::Warn,
                    format_args!("no address handle for {address}: {error}"),
                );
                Err(PostError::Dead)
            }
            Err(error) => {
                log(Level::Warn, format_args!("{error}"));
                Err(PostError::Unreachable)
            }
        }
    }

    /// Closes the handles of peers that are in the address vector no more, except those with work under way.
    fn close_removed(&mut self) {
        let peers = self.peers.lock();
        while let Some(handle) = self.handles.remove_idle(|peer| peers.is_removed(peer)) {
            self.endpoint.close_handle(handle);
        }
    }

    /// Closes the handle that has been without work for longest. False if all have some.
    fn close_idle(&mut self) -> bool {
        let idle = self.handles.remove_idle(|_| true);
        if let Some(handle) = idle {
            self.endpoint.close_handle(handle);
        }
        idle.is_some()
    }

    #[inline(always)]
    fn post(&mut self, request: WorkRequest, cookie: u64, place: Place) -> Result<(), PostError> {
        debug_assert!(cookie >> PLACE_SHIFT == 0, "a cookie leaves room for the place");
        let user_data = cookie | u64::from(place.0) << PLACE_SHIFT;
        let posted = self.endpoint.post(&request.user_data(user_data));
        posted.map_err(|error| {
            self.handles.end(place);
            match error {
                Error::QueueFull => PostError::Full,
                _ => PostError::Dead,
            }
        })
    }

    /// [`Transport::send`] where the device does not reach the process.
    ///
    /// # Safety
    /// The payload is readable.
    #[cold]
    unsafe fn send_copy(
        &mut self,
        to: PeerId,
        header: HeaderWords,
        payload: Segment,
        cookie: u64,
    ) -> Result<(), PostError> {
        let (handle, place) = self.handle(to)?;
        let Some(bounce) = &mut self.bounce else {
            return Err(PostError::Dead);
        };
        // SAFETY: promised by the caller.
        let copied = unsafe { bounce.message(payload, cookie) };
        let (buffer, cookie) = copied.inspect_err(|_| self.handles.end(place))?;
        let request = WorkRequest::send(handle, buffer).prefix_words(header);
        let posted = self.post(request, cookie, place);
        self.take_back(posted, cookie)
    }

    /// Gives up what work was to use that has not been posted after all.
    fn take_back(&mut self, posted: Result<(), PostError>, cookie: u64) -> Result<(), PostError> {
        posted.inspect_err(|_| {
            if let Some(bounce) = &mut self.bounce {
                bounce.end(cookie, false);
            }
        })
    }

    #[inline]
    fn peer(&mut self, source: SourceId) -> Option<PeerId> {
        match self.sources[source.0 as usize % SOURCES] {
            Some((cached, peer)) if cached == source => Some(peer),
            _ => self.find_peer(source),
        }
    }

    #[cold]
    fn find_peer(&mut self, source: SourceId) -> Option<PeerId> {
        let address = self.endpoint.source(source)?;
        let peer = self.peers.lock().peer(&address);
        self.sources[source.0 as usize % SOURCES] = Some((source, peer));
        Some(peer)
    }
}

/// What a status means to the messenger.
#[cold]
fn failure(status: Status) -> Failure {
    log(Level::Info, format_args!("an operation failed: {status:?}"));
    match status {
        Status::Gone | Status::LinkDown | Status::Unreachable => Failure::PeerLost,
        Status::Access => Failure::Access,
        Status::Length => Failure::Truncated,
        Status::Resource => Failure::Resource,
        Status::Flushed => Failure::Flushed,
        _ => Failure::Other,
    }
}

/// Plain memory as the ring API names it.
///
/// # Safety
/// As [`Buffer::process`].
#[inline]
unsafe fn process(segment: Segment) -> Result<Buffer, PostError> {
    let len = u32::try_from(segment.len).map_err(|_| PostError::Dead)?;
    // SAFETY: promised by the caller.
    Ok(unsafe { Buffer::process(segment.addr, len) })
}

impl Transport for RingTransport {
    type Exposed = Exposed;

    fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    fn slot_size(&self) -> u32 {
        self.slot_size
    }

    #[inline]
    fn slot(&self, slot: u32, len: u32) -> &[u8] {
        let slot = slot as usize;
        assert!(
            slot < self.slots.len() && len <= self.slot_size,
            "a slot of this pool"
        );
        // SAFETY: within the memory, by the assertion; a slot that is not posted is written by nobody.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(slot * self.stride), len as usize) }
    }

    #[inline]
    fn post_slot(&mut self, slot: u32) -> Result<(), PostError> {
        let buffer = self.slots[slot as usize];
        self.endpoint
            .post_recv(u64::from(slot), buffer)
            .map_err(|error| match error {
                Error::QueueFull => PostError::Full,
                _ => PostError::Dead,
            })
    }

    #[inline(always)]
    unsafe fn send(
        &mut self,
        to: PeerId,
        header: HeaderWords,
        payload: Segment,
        cookie: u64,
    ) -> Result<(), PostError> {
        if self.bounce.is_some() {
            // SAFETY: promised by the caller.
            return unsafe { self.send_copy(to, header, payload, cookie) };
        }
        // SAFETY: promised by the caller.
        let buffer = unsafe { process(payload)? };
        let (handle, place) = self.handle(to)?;
        self.post(
            WorkRequest::send(handle, buffer).prefix_words(header),
            cookie,
            place,
        )
    }

    unsafe fn read(
        &mut self,
        from: PeerId,
        remote: usb4_tagged::Remote,
        into: Segment,
        cookie: u64,
    ) -> Result<u64, PostError> {
        // Before memory is registered for it.
        let (handle, place) = self.handle(from)?;
        let target = match &mut self.bounce {
            // SAFETY: promised by the caller.
            None => unsafe { process(into) }.map(|buffer| (buffer, cookie)),
            // SAFETY: promised by the caller.
            Some(bounce) => unsafe { bounce.target(into, cookie) },
        };
        let (buffer, cookie) = target.inspect_err(|_| self.handles.end(place))?;
        let remote = Remote {
            addr: remote.addr,
            key: remote.key,
        };
        let posted = self.post(WorkRequest::read(handle, buffer, remote), cookie, place);
        self.take_back(posted, cookie)?;
        Ok(u64::from(buffer.len()))
    }

    unsafe fn expose(&mut self, memory: Segment) -> Result<Exposed, PostError> {
        // SAFETY: promised by the caller.
        unsafe { Exposed::new(&self.device, memory) }
    }

    fn remote(exposed: &Exposed) -> usb4_tagged::Remote {
        exposed.remote()
    }

    #[inline]
    fn submit(&mut self) {
        if let Err(error) = self.endpoint.submit() {
            log(Level::Warn, format_args!("{error}"));
        }
    }

    #[inline(always)]
    fn drive(&mut self) -> bool {
        self.device.progress()
    }

    #[inline(always)]
    fn has_events(&mut self) -> bool {
        !self.cqs.receives.is_empty() || !self.cqs.sends.is_empty()
    }

    #[inline(always)]
    fn arrival(&mut self) -> Option<Arrival> {
        let done = self.cqs.receives.take()?;
        let slot = u32::try_from(done.user_data).unwrap_or(0);
        let arrival = match self.peer(done.source) {
            Some(from) if done.status == Status::Ok => Arrival::Message {
                slot,
                len: done.len,
                from,
            },
            _ => Arrival::Returned { slot },
        };
        Some(arrival)
    }

    #[inline(always)]
    fn done(&mut self) -> Option<Done> {
        let done = self.cqs.sends.take()?;
        let result = match done.status {
            Status::Ok => Ok(()),
            status => Err(failure(status)),
        };
        let [.., low, high] = done.user_data.to_le_bytes();
        self.handles.end(Place(u16::from_le_bytes([low, high])));
        let cookie = done.user_data & ((1 << PLACE_SHIFT) - 1);
        let cookie = match &mut self.bounce {
            None => cookie,
            Some(bounce) => bounce.end(cookie, result.is_ok()),
        };
        Some(Done { cookie, result })
    }
}
