//! Endpoints.

use crate::{AddressHandle, Buffer, EpAddr, Error, Result, SourceId, WorkRequest};

/// Whom an endpoint talks to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EndpointKind {
    /// Reliable datagram: any peer, each by an address handle.
    #[default]
    Datagram,
    /// Connected: the first address handle is the only one, and only its endpoint is heard.
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
/// Dropping it closes it: work not completed is flushed, without completions.
#[derive(Debug)]
pub struct Endpoint {
    _private: (),
}

impl Endpoint {
    /// Its address, to be told to peers.
    pub fn address(&self) -> EpAddr {
        unreachable!()
    }

    /// A handle to send to `peer`. Connects to its host first if there is no link yet, and waits for that
    /// (at most a few seconds).
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::ConnectTimeout`], [`Error::Limit`].
    pub fn address_handle(&mut self, _peer: &EpAddr) -> Result<AddressHandle> {
        Err(Error::Unsupported("address handles"))
    }

    /// As [`Endpoint::address_handle`], but never waits: `None` while the link is coming up; ask again.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::address_handle`].
    pub fn try_address_handle(&mut self, _peer: &EpAddr) -> Result<Option<AddressHandle>> {
        Err(Error::Unsupported("address handles"))
    }

    /// Gives an address handle back; work on it that has not completed is flushed.
    pub fn close_handle(&mut self, _handle: AddressHandle) {}

    /// Writes a request into the submission queue. The device sees it at the next [`Endpoint::submit`].
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`]: submit, reap completions and post again.
    #[inline]
    pub fn post(&mut self, _request: &WorkRequest) -> Result<()> {
        Err(Error::QueueFull)
    }

    /// Writes a receive into the receive queue. Peers may use it after the next [`Endpoint::submit`].
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`].
    #[inline]
    pub fn post_recv(&mut self, _user_data: u64, _buffer: Buffer) -> Result<()> {
        Err(Error::QueueFull)
    }

    /// Makes everything posted visible to the device and lets it start: the caller's thread drives the
    /// device if nobody else does. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::EndpointError`], [`Error::Gone`], [`Error::Forked`].
    #[inline]
    pub fn submit(&mut self) -> Result<()> {
        Err(Error::Gone)
    }

    /// Free entries of the submission queue.
    #[inline]
    pub fn send_space(&mut self) -> u32 {
        0
    }

    /// Free entries of the receive queue.
    #[inline]
    pub fn recv_space(&mut self) -> u32 {
        0
    }

    /// The address behind [`crate::Completion::source`]; `None` when it has been forgotten since. Cached: a
    /// lookup in the device happens once per source.
    pub fn source(&mut self, _source: SourceId) -> Option<EpAddr> {
        None
    }
}
