//! A host as cases see it: the ring API's objects, wherever they are.

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use usb4_ring::{
    Access, AddressHandle, Buffer, Completion, EndpointConfig, EndpointKind, EpAddr, Remote, SourceId,
    WorkRequest,
};

use crate::agent::call::{Answer, Call, Id, access_bits};
use crate::agent::{self, Agent, Ask, Failure};

type Result<T> = std::result::Result<T, Failure>;

/// A host: this one, or another one.
#[derive(Clone)]
pub struct Host(Rc<dyn Ask>);

impl Host {
    /// This process's.
    pub fn here() -> Self {
        Self(Rc::new(RefCell::new(Agent::default())))
    }

    /// That of an agent elsewhere.
    pub fn there(remote: agent::Remote) -> Self {
        Self(Rc::new(remote))
    }

    /// Opens a device.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn open(&self, spec: &str) -> Result<Device> {
        match self.ask(&Call::Open { spec: spec.into() })? {
            Answer::Id(id) => Ok(Device(Rc::new(self.object(id)))),
            answer => Err(unexpected(&answer)),
        }
    }

    fn object(&self, id: Id) -> Object {
        Object {
            host: self.clone(),
            id,
        }
    }

    fn ask(&self, call: &Call) -> Result<Answer> {
        self.0.ask(call, &[], &mut Vec::new())
    }
}

/// Something a host has; it goes with this.
struct Object {
    host: Host,
    id: Id,
}

impl Drop for Object {
    fn drop(&mut self) {
        // Fails only if the host has gone, with all it had.
        let _ = self.host.ask(&Call::Drop { id: self.id });
    }
}

impl Object {
    fn done(&self, call: &Call) -> Result<()> {
        match self.host.ask(call)? {
            Answer::Done => Ok(()),
            answer => Err(unexpected(&answer)),
        }
    }

    fn number(&self, call: &Call) -> Result<u32> {
        match self.host.ask(call)? {
            Answer::Number(number) => Ok(number),
            answer => Err(unexpected(&answer)),
        }
    }
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::other(format_args!("the agent answered {answer:?}"))
}

/// An open device; a clone is the same.
#[derive(Clone)]
pub struct Device(Rc<Object>);

impl Device {
    /// Creates a completion queue.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn create_cq(&self, depth: u32) -> Result<Cq> {
        let device = self.0.id;
        match self.0.host.ask(&Call::CreateCq { device, depth })? {
            Answer::Id(id) => Ok(Cq(self.0.host.object(id))),
            answer => Err(unexpected(&answer)),
        }
    }

    /// Creates an endpoint whose sends and receives complete on `cq`.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn create_endpoint(&self, config: &EndpointConfig, cq: &Cq) -> Result<Endpoint> {
        let call = Call::CreateEndpoint {
            device: self.0.id,
            cq: cq.0.id,
            connected: config.kind == EndpointKind::Connected,
            sq_depth: config.sq_depth,
            rq_depth: config.rq_depth,
        };
        match self.0.host.ask(&call)? {
            Answer::Endpoint { id, address } => Ok(Endpoint {
                object: self.0.host.object(id),
                address: address.into(),
            }),
            answer => Err(unexpected(&answer)),
        }
    }

    /// Allocates and registers memory.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn alloc(&self, len: usize, access: Access) -> Result<Region> {
        let call = Call::Alloc {
            device: self.0.id,
            len,
            access: access_bits(access),
        };
        match self.0.host.ask(&call)? {
            Answer::Region {
                id,
                addr,
                local_key,
                remote_key,
            } => Ok(Region {
                object: self.0.host.object(id),
                len,
                addr,
                local_key: NonZeroU32::new(local_key).ok_or_else(|| Failure::other("a key is 0"))?,
                remote_key,
            }),
            answer => Err(unexpected(&answer)),
        }
    }
}

/// A completion queue.
pub struct Cq(Object);

impl Cq {
    /// Drives the device once and takes completions, at most 64.
    ///
    /// # Errors
    ///
    /// The agent has gone.
    pub fn poll(&self, max: usize) -> Result<impl Iterator<Item = Completion>> {
        match self.0.host.ask(&Call::Poll { cq: self.0.id, max })? {
            Answer::Completions(entries) => Ok(entries.into_iter().map(Completion::from)),
            answer => Err(unexpected(&answer)),
        }
    }

    /// Sleeps in the ring API's wait: whether there is a completion.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        let (cq, timeout_ms) = (self.0.id, millis(timeout));
        Ok(self.0.number(&Call::Wait { cq, timeout_ms })? != 0)
    }

    /// Sleeps on the queue's descriptor: whether it became readable, or a completion was there before.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn wait_readable(&self, timeout: Duration) -> Result<bool> {
        let (cq, timeout_ms) = (self.0.id, millis(timeout));
        Ok(self.0.number(&Call::WaitReadable { cq, timeout_ms })? != 0)
    }
}

fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}

/// An endpoint.
pub struct Endpoint {
    object: Object,
    address: EpAddr,
}

impl Endpoint {
    /// Its address.
    pub fn address(&self) -> EpAddr {
        self.address
    }

    /// A handle for `peer`.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn address_handle(&self, peer: &EpAddr) -> Result<AddressHandle> {
        let call = Call::AddressHandle {
            endpoint: self.object.id,
            peer: (*peer).into(),
        };
        self.object.number(&call).map(AddressHandle::from_raw)
    }

    /// Writes a request into the submission queue.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn post(&self, request: &WorkRequest) -> Result<()> {
        self.object.done(&Call::Post {
            endpoint: self.object.id,
            words: request.to_entry().to_words(),
        })
    }

    /// Writes a receive into the receive queue.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn post_recv(&self, user_data: u64, buffer: Buffer) -> Result<()> {
        self.object.done(&Call::PostRecv {
            endpoint: self.object.id,
            user_data,
            addr: buffer.addr(),
            key: buffer.local_key().map_or(0, NonZeroU32::get),
            len: buffer.len(),
        })
    }

    /// Shows the device what was posted.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn submit(&self) -> Result<()> {
        let endpoint = self.object.id;
        self.object.done(&Call::Submit { endpoint })
    }

    /// Free entries of the receive queue.
    ///
    /// # Errors
    ///
    /// The agent has gone.
    pub fn recv_space(&self) -> Result<u32> {
        let endpoint = self.object.id;
        self.object.number(&Call::RecvSpace { endpoint })
    }

    /// Who has sent a message.
    ///
    /// # Errors
    ///
    /// The agent has gone.
    pub fn source(&self, source: SourceId) -> Result<Option<EpAddr>> {
        let call = Call::Source {
            endpoint: self.object.id,
            source: source.0,
        };
        match self.object.host.ask(&call)? {
            Answer::Address(address) => Ok(address.map(EpAddr::from)),
            answer => Err(unexpected(&answer)),
        }
    }
}

/// Registered memory.
pub struct Region {
    object: Object,
    len: usize,
    addr: u64,
    local_key: NonZeroU32,
    remote_key: u64,
}

impl Region {
    /// Its address, for peers.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its key for peers.
    pub fn remote_key(&self) -> u64 {
        self.remote_key
    }

    /// Its first byte, for peers.
    pub fn remote(&self) -> Remote {
        Remote {
            addr: self.addr,
            key: self.remote_key,
        }
    }

    /// `len` bytes from `offset`, for a request of its host.
    ///
    /// # Errors
    ///
    /// They are not within the region.
    pub fn buffer(&self, offset: usize, len: usize) -> Result<Buffer> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Failure::other("the range is not within the memory region"));
        }
        let len = u32::try_from(len).map_err(Failure::other)?;
        Ok(Buffer::of_key(self.addr + offset as u64, self.local_key, len))
    }

    /// Copies bytes from `offset` out of the region.
    ///
    /// # Errors
    ///
    /// They are not within the region.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let call = Call::Read {
            region: self.object.id,
            offset,
            len: bytes.len(),
        };
        let mut out = Vec::new();
        self.object.host.0.ask(&call, &[], &mut out)?;
        if out.len() != bytes.len() {
            return Err(Failure::other("the agent gave other bytes than asked for"));
        }
        bytes.copy_from_slice(&out);
        Ok(())
    }

    /// Copies bytes to `offset` in the region.
    ///
    /// # Errors
    ///
    /// They do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let region = self.object.id;
        let call = Call::Write { region, offset };
        self.object.host.0.ask(&call, bytes, &mut Vec::new())?;
        Ok(())
    }
}
