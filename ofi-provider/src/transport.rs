//! `usb4-tagged`'s transport over the ring API.

use std::sync::Arc;

use parking_lot::Mutex;
use usb4_ffi::{Level, log};
use usb4_ring::{
    Access, AddressHandle, Buffer, Completion, Cq, Device, Endpoint, Error, MemoryRegion, Op, Remote,
    SourceId, Status, WorkRequest,
};
use usb4_tagged::{Event, Failure, HEADER_LEN, PeerId, PostError, Segment, Transport};

use crate::av::Peers;

/// Completions taken from the queue at a time.
const BATCH: usize = 16;

/// Entries of the cache of senders.
const SOURCES: usize = 64;

/// An endpoint, its completion queue and its receive slots.
pub(crate) struct RingTransport {
    device: Device,
    endpoint: Endpoint,
    cq: Cq,
    memory: MemoryRegion,
    slots: Vec<Buffer>,
    stride: usize,
    slot_size: u32,
    peers: Arc<Mutex<Peers>>,
    handles: Vec<Option<AddressHandle>>,
    sources: [Option<(SourceId, PeerId)>; SOURCES],
    completions: [Completion; BATCH],
    /// The part of `completions` not handed on yet.
    pending: std::ops::Range<usize>,
}

impl RingTransport {
    /// # Errors
    /// No memory for the slots.
    pub(crate) fn new(
        device: Device,
        endpoint: Endpoint,
        cq: Cq,
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
        Ok(Self {
            device,
            endpoint,
            cq,
            memory,
            slots,
            stride,
            slot_size: u32::try_from(slot_size).unwrap_or(u32::MAX),
            peers,
            handles: Vec::new(),
            sources: [None; SOURCES],
            completions: [Completion::default(); BATCH],
            pending: 0..0,
        })
    }

    /// The completion queue, for waiting.
    pub(crate) fn cq(&mut self) -> &mut Cq {
        &mut self.cq
    }

    /// Whether completions have been taken from the queue that the messenger has not seen.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    #[inline]
    fn handle(&mut self, peer: PeerId) -> Result<AddressHandle, PostError> {
        match self.handles.get(peer.0 as usize) {
            Some(Some(handle)) => Ok(*handle),
            _ => self.open_handle(peer),
        }
    }

    #[cold]
    fn open_handle(&mut self, peer: PeerId) -> Result<AddressHandle, PostError> {
        let address = self.peers.lock().address(peer).ok_or(PostError::Unreachable)?;
        match self.endpoint.try_address_handle(&address) {
            Ok(Some(handle)) => {
                let index = peer.0 as usize;
                if self.handles.len() <= index {
                    self.handles.resize(index + 1, None);
                }
                self.handles[index] = Some(handle);
                Ok(handle)
            }
            Ok(None) => Err(PostError::Full),
            Err(error @ (Error::Unreachable(_) | Error::ConnectTimeout(_))) => {
                log(Level::Warn, format_args!("{error}"));
                Err(PostError::Unreachable)
            }
            Err(error) => {
                log(
                    Level::Warn,
                    format_args!("no address handle for {address}: {error}"),
                );
                Err(PostError::Dead)
            }
        }
    }

    #[inline]
    fn post(&mut self, request: &WorkRequest) -> Result<(), PostError> {
        self.endpoint.post(request).map_err(|error| match error {
            Error::QueueFull => PostError::Full,
            _ => PostError::Dead,
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

    #[inline]
    fn event(&mut self, done: &Completion) -> Event {
        match done.op {
            Op::Receive | Op::ReceiveWrite => {
                let slot = u32::try_from(done.user_data).unwrap_or(0);
                match (done.status, self.peer(done.source)) {
                    (Status::Ok, Some(from)) => Event::Received {
                        slot,
                        len: done.len,
                        from,
                    },
                    _ => Event::Returned { slot },
                }
            }
            _ => Event::Done {
                cookie: done.user_data,
                result: result(done.status),
            },
        }
    }
}

/// What a status means to the messenger.
#[inline]
fn result(status: Status) -> Result<(), Failure> {
    if status == Status::Ok {
        Ok(())
    } else {
        Err(failure(status))
    }
}

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
    type Exposed = MemoryRegion;

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

    #[inline]
    unsafe fn send(
        &mut self,
        to: PeerId,
        header: &[u8; HEADER_LEN],
        payload: Segment,
        cookie: u64,
    ) -> Result<(), PostError> {
        let handle = self.handle(to)?;
        // SAFETY: promised by the caller.
        let buffer = unsafe { process(payload)? };
        self.post(&WorkRequest::send(handle, buffer).prefix(header).user_data(cookie))
    }

    unsafe fn read(
        &mut self,
        from: PeerId,
        remote: usb4_tagged::Remote,
        into: Segment,
        cookie: u64,
    ) -> Result<(), PostError> {
        let handle = self.handle(from)?;
        // SAFETY: promised by the caller.
        let buffer = unsafe { process(into)? };
        let remote = Remote {
            addr: remote.addr,
            key: remote.key,
        };
        self.post(&WorkRequest::read(handle, buffer, remote).user_data(cookie))
    }

    unsafe fn expose(&mut self, memory: Segment) -> Result<MemoryRegion, PostError> {
        let len = usize::try_from(memory.len).map_err(|_| PostError::Dead)?;
        // SAFETY: promised by the caller.
        let region = unsafe {
            self.device
                .register(memory.addr as *mut u8, len, Access::REMOTE_READ)
        };
        region.map_err(|error| match error {
            Error::Limit(_) => PostError::Full,
            error => {
                log(Level::Warn, format_args!("cannot register {len} bytes: {error}"));
                PostError::Dead
            }
        })
    }

    fn remote(exposed: &MemoryRegion) -> usb4_tagged::Remote {
        usb4_tagged::Remote {
            addr: exposed.addr(),
            key: exposed.remote_key(),
        }
    }

    #[inline]
    fn submit(&mut self) {
        if let Err(error) = self.endpoint.submit() {
            log(Level::Warn, format_args!("{error}"));
        }
    }

    #[inline]
    fn drive(&mut self) {
        self.device.progress();
    }

    #[inline]
    fn next(&mut self) -> Option<Event> {
        if self.pending.is_empty() {
            self.pending = 0..self.cq.poll(&mut self.completions);
        }
        let done = self.completions[self.pending.next()?];
        Some(self.event(&done))
    }
}
