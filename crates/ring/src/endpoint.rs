//! Endpoints.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use usb4_ring_abi::{Hostile, Producer, PushError, Rqe, Sqe};
use usb4_soft::QueueMemory;

use crate::cq::CqShared;
use crate::device::Inner;
use crate::{AddressHandle, Buffer, Cq, EpAddr, Error, Result, SourceId, WorkRequest};

/// How long [`Endpoint::address_handle`] waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sources an endpoint remembers before it asks the device again.
const MAX_SOURCES: usize = 4096;

/// Whom an endpoint talks to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EndpointKind {
    /// Reliable datagram: any peer, each by an address handle.
    #[default]
    Datagram,
    /// Connected: the first address handle is the only one, and only its endpoint is heard. After an error
    /// everything is flushed.
    Connected,
}

/// What an endpoint is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Whom it talks to.
    pub kind: EndpointKind,
    /// Entries of its submission queue (rounded up to a power of two).
    pub sq_depth: u32,
    /// Entries of its receive queue (rounded up to a power of two).
    pub rq_depth: u32,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            kind: EndpointKind::Datagram,
            sq_depth: 256,
            rq_depth: 256,
        }
    }
}

/// An endpoint: one submission and one receive queue, one address.
///
/// `Endpoint` is `Send`; posting takes `&mut self`, so one thread at a time is the writer of its queues.
/// Dropping it closes it: work not completed is flushed, with completions where its queue is still polled.
#[derive(Debug)]
pub struct Endpoint {
    sq: Producer<QueueMemory, WorkRequest>,
    rq: Producer<QueueMemory, Rqe>,
    sources: HashMap<SourceId, EpAddr>,
    kind: usb4_soft::EndpointKind,
    id: u32,
    address: EpAddr,
    device: Arc<Inner>,
    /// Completion queues outlive their endpoints.
    _cqs: [Arc<CqShared>; 2],
}

impl Endpoint {
    pub(crate) fn create(
        device: Arc<Inner>,
        kind: EndpointKind,
        depths: (u32, u32),
        send_cq: &Cq,
        recv_cq: &Cq,
    ) -> Result<Self> {
        let cqs = [Arc::clone(send_cq.shared()), Arc::clone(recv_cq.shared())];
        if cqs.iter().any(|cq| !Arc::ptr_eq(&cq.device, &device)) {
            return Err(Error::Invalid("the completion queue belongs to another device"));
        }
        let kind = match kind {
            EndpointKind::Datagram => usb4_soft::EndpointKind::Datagram,
            EndpointKind::Connected => usb4_soft::EndpointKind::Connected,
        };
        let parts = device
            .client
            .create_endpoint(kind, depths, (cqs[0].parts.id, cqs[1].parts.id))?;
        let bad_depth = |_| Error::Invalid("a queue has 1 to 65536 entries");
        Ok(Self {
            sq: Producer::new(parts.sq, parts.sq_depth).map_err(bad_depth)?,
            rq: Producer::new(parts.rq, parts.rq_depth).map_err(bad_depth)?,
            sources: HashMap::new(),
            kind,
            id: parts.id,
            address: parts.address,
            device,
            _cqs: cqs,
        })
    }

    /// Its address, to be told to peers.
    pub fn address(&self) -> EpAddr {
        self.address
    }

    /// A handle to send to `peer`. Connects to its host first if there is no link yet, and waits for that
    /// (at most a few seconds).
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::RefusedPeer`], [`Error::ConnectTimeout`], [`Error::Limit`], [`Error::Invalid`] for
    /// a second handle of a connected endpoint.
    pub fn address_handle(&mut self, peer: &EpAddr) -> Result<AddressHandle> {
        let handle = self
            .device
            .client
            .address_handle(self.id, self.kind, peer, Some(CONNECT_TIMEOUT))?;
        handle.map(AddressHandle).ok_or(Error::ConnectTimeout(peer.node))
    }

    /// As [`Endpoint::address_handle`], but never waits: `None` while the link is coming up; ask again.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::address_handle`].
    pub fn try_address_handle(&mut self, peer: &EpAddr) -> Result<Option<AddressHandle>> {
        let handle = self
            .device
            .client
            .address_handle(self.id, self.kind, peer, None)?;
        Ok(handle.map(AddressHandle))
    }

    /// Gives an address handle back; work on it that has not completed is flushed.
    pub fn close_handle(&mut self, handle: AddressHandle) {
        self.device.client.close_handle(self.id, handle.0);
    }

    /// Writes a request into the submission queue. The device sees it at the next [`Endpoint::submit`].
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`]: submit, reap completions and post again.
    #[inline]
    pub fn post(&mut self, request: &WorkRequest) -> Result<()> {
        self.sq.push(request).map_err(|error| self.refused(error))
    }

    /// As [`Endpoint::post`], for an entry made by hand.
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`].
    ///
    /// # Safety
    ///
    /// If the entry names memory of the process (local key 0), as for [`Buffer::process`].
    #[inline]
    pub unsafe fn post_raw(&mut self, entry: &Sqe) -> Result<()> {
        self.post(&WorkRequest::from_entry(entry))
    }

    /// Writes a receive into the receive queue. Peers may use it after the next [`Endpoint::submit`].
    ///
    /// Messages take receives in the order in which these were posted, when they begin to arrive. Those of one sender
    /// complete in order; of several senders, one that began later may be whole sooner. `user_data` says which it is.
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`].
    #[inline]
    pub fn post_recv(&mut self, user_data: u64, buffer: Buffer) -> Result<()> {
        let Buffer { addr, key, len } = buffer;
        let entry = Rqe {
            user_data,
            addr,
            local_key: key,
            len,
            reserved: 0,
        };
        self.rq.push(&entry).map_err(|error| self.refused(error))
    }

    /// As [`Endpoint::post_recv`], for an entry made by hand.
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`].
    ///
    /// # Safety
    ///
    /// If the entry names memory of the process (local key 0), as for [`Buffer::process`].
    #[inline]
    pub unsafe fn post_recv_raw(&mut self, entry: &Rqe) -> Result<()> {
        self.rq.push(entry).map_err(|error| self.refused(error))
    }

    /// Makes everything posted visible to the device and lets it start: the caller's thread drives the
    /// device if nobody else does. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`], [`Error::Forked`].
    #[inline]
    pub fn submit(&mut self) -> Result<()> {
        let (receives, requests) = (self.rq.publish(), self.sq.publish());
        // Receives alone the device finds when it needs them, unless it has needed one already.
        if requests == 0 && self.is_drained() && (receives == 0 || !self.rq.needs_wakeup()) {
            return self.device.client.check_quick();
        }
        let asleep = || self.sq.needs_wakeup() || self.rq.needs_wakeup();
        self.device.client.submit(self.id, asleep)
    }

    /// Why a queue did not take an entry.
    #[cold]
    fn refused(&self, error: PushError) -> Error {
        match (error, self.device.client.check_quick()) {
            (PushError::Full, _) => Error::QueueFull,
            // The queues of a child are not those of the device.
            (PushError::Hostile(Hostile { .. }), Err(error)) => error,
            (PushError::Hostile(Hostile { .. }), Ok(())) => Error::EndpointError,
        }
    }

    /// Whether the device has taken every request.
    #[inline]
    fn is_drained(&mut self) -> bool {
        let depth = self.sq.depth();
        self.sq.free(depth) == Ok(depth)
    }

    /// Free entries of the submission queue.
    #[inline]
    pub fn send_space(&mut self) -> u32 {
        let depth = self.sq.depth();
        self.sq.free(depth).unwrap_or(0)
    }

    /// Free entries of the receive queue.
    #[inline]
    pub fn recv_space(&mut self) -> u32 {
        let depth = self.rq.depth();
        self.rq.free(depth).unwrap_or(0)
    }

    /// The address behind [`crate::Completion::source`]; `None` when it has been forgotten since. Cached: a
    /// lookup in the device happens once per source.
    pub fn source(&mut self, source: SourceId) -> Option<EpAddr> {
        if let Some(address) = self.sources.get(&source) {
            return Some(*address);
        }
        let address = self.device.client.source(source.0)?;
        if self.sources.len() >= MAX_SOURCES {
            self.sources.clear();
        }
        self.sources.insert(source, address);
        Some(address)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.device.client.destroy_endpoint(self.id);
    }
}
