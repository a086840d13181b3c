//! Who does a host's part: the ring API's objects of one host, and calls that use them.
//!
//! A suite that runs in one process calls its agents directly; one that runs on two hosts reaches the other's over TCP
//! (`tcp.rs`). The calls are the same, so the cases are.

pub(crate) mod call;
mod tcp;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use usb4_ring::{Completion, Cq, Device, Endpoint, EndpointConfig, EndpointKind, MemoryRegion, Rqe, Sqe};

use call::{Address, Answer, Call, Id, access_of};
pub use call::{Failure, FailureKind};
pub use tcp::{Remote, serve};

/// Most completions taken in one call.
const BATCH: usize = 64;

/// Longest memory region: what a stranger asks for must not take the machine.
const MAX_REGION: usize = 1 << 28;

/// Does calls.
pub(crate) trait Ask {
    /// Does one, with the bytes of a write; bytes of a read go to `out`.
    ///
    /// # Errors
    /// What the ring API reports.
    fn ask(&self, call: &Call, bytes: &[u8], out: &mut Vec<u8>) -> Result<Answer, Failure>;
}

/// What an agent holds.
enum Object {
    Device(Device),
    Cq(Cq, Device),
    Endpoint(Box<Endpoint>),
    Region(MemoryRegion),
}

/// The objects of one host. All of them go with it.
#[derive(Default)]
pub(crate) struct Agent {
    objects: HashMap<Id, Object>,
    last: Id,
}

type Done = Result<Answer, Failure>;

impl Agent {
    /// Does one call.
    pub(crate) fn serve(&mut self, call: &Call, bytes: &[u8], out: &mut Vec<u8>) -> Done {
        match *call {
            Call::Open { ref spec } => {
                let device = Device::open(spec)?;
                Ok(Answer::Id(self.keep(Object::Device(device))))
            }
            Call::CreateCq { device, depth } => {
                let device = self.device(device)?.clone();
                let cq = device.create_cq(depth)?;
                Ok(Answer::Id(self.keep(Object::Cq(cq, device))))
            }
            Call::CreateEndpoint {
                device,
                cq,
                connected,
                sq_depth,
                rq_depth,
            } => {
                let kind = if connected {
                    EndpointKind::Connected
                } else {
                    EndpointKind::Datagram
                };
                let config = EndpointConfig {
                    kind,
                    sq_depth,
                    rq_depth,
                };
                let device = self.device(device)?.clone();
                let (cq, _) = self.cq(cq)?;
                let endpoint = device.create_endpoint(&config, cq, cq)?;
                let address = endpoint.address().into();
                let id = self.keep(Object::Endpoint(Box::new(endpoint)));
                Ok(Answer::Endpoint { id, address })
            }
            Call::AddressHandle { endpoint, peer } => {
                let handle = self.endpoint(endpoint)?.address_handle(&peer.into())?;
                Ok(Answer::Number(handle.raw()))
            }
            Call::Post { endpoint, words } => {
                let entry = Sqe::from_words(&words);
                names_a_region(entry.local_key, entry.len)?;
                // SAFETY: it names no plain memory of this process.
                unsafe { self.endpoint(endpoint)?.post_raw(&entry)? };
                Ok(Answer::Done)
            }
            Call::PostRecv {
                endpoint,
                user_data,
                addr,
                key,
                len,
            } => {
                names_a_region(key, len)?;
                let entry = Rqe {
                    user_data,
                    addr,
                    local_key: key,
                    len,
                    reserved: 0,
                };
                // SAFETY: as above.
                unsafe { self.endpoint(endpoint)?.post_recv_raw(&entry)? };
                Ok(Answer::Done)
            }
            Call::Submit { endpoint } => {
                self.endpoint(endpoint)?.submit()?;
                Ok(Answer::Done)
            }
            Call::RecvSpace { endpoint } => Ok(Answer::Number(self.endpoint(endpoint)?.recv_space())),
            Call::Source { endpoint, source } => {
                let address = self.endpoint(endpoint)?.source(usb4_ring::SourceId(source));
                Ok(Answer::Address(address.map(Address::from)))
            }
            Call::Alloc { device, len, access } => self.alloc(device, len, access),
            Call::Read { region, offset, len } => {
                out.resize(len.min(MAX_REGION), 0);
                self.region(region)?.read(offset, out)?;
                Ok(Answer::Done)
            }
            Call::Write { region, offset } => {
                self.region(region)?.write(offset, bytes)?;
                Ok(Answer::Done)
            }
            Call::Poll { cq, max } => {
                let (cq, device) = self.cq(cq)?;
                device.progress();
                let mut batch = [Completion::default(); BATCH];
                let room = batch.get_mut(..max.min(BATCH)).unwrap_or_default();
                let count = cq.poll(room);
                let entries = batch.iter().take(count).map(|done| (*done).into());
                Ok(Answer::Completions(entries.collect()))
            }
            Call::Wait { cq, timeout_ms } => {
                let (cq, _) = self.cq(cq)?;
                let ready = cq.wait(Some(Duration::from_millis(timeout_ms)))?;
                Ok(Answer::Number(ready.into()))
            }
            Call::WaitReadable { cq, timeout_ms } => {
                let (cq, _) = self.cq(cq)?;
                Ok(Answer::Number(
                    wait_readable(cq, Duration::from_millis(timeout_ms))?.into(),
                ))
            }
            Call::Drop { id } => match self.objects.remove(&id) {
                Some(_) => Ok(Answer::Done),
                None => Err(no_such_object()),
            },
        }
    }

    fn alloc(&mut self, device: Id, len: usize, access: u8) -> Done {
        if len > MAX_REGION {
            return Err(Failure::other("a region of the suite is smaller than that"));
        }
        let region = self.device(device)?.alloc(len, access_of(access))?;
        let (addr, local_key, remote_key) = (region.addr(), region.local_key(), region.remote_key());
        let id = self.keep(Object::Region(region));
        Ok(Answer::Region {
            id,
            addr,
            local_key,
            remote_key,
        })
    }

    fn keep(&mut self, object: Object) -> Id {
        self.last += 1;
        self.objects.insert(self.last, object);
        self.last
    }

    fn device(&mut self, id: Id) -> Result<&mut Device, Failure> {
        match self.objects.get_mut(&id) {
            Some(Object::Device(device)) => Ok(device),
            _ => Err(no_such_object()),
        }
    }

    fn cq(&mut self, id: Id) -> Result<(&mut Cq, &mut Device), Failure> {
        match self.objects.get_mut(&id) {
            Some(Object::Cq(cq, device)) => Ok((cq, device)),
            _ => Err(no_such_object()),
        }
    }

    fn endpoint(&mut self, id: Id) -> Result<&mut Endpoint, Failure> {
        match self.objects.get_mut(&id) {
            Some(Object::Endpoint(endpoint)) => Ok(endpoint),
            _ => Err(no_such_object()),
        }
    }

    fn region(&mut self, id: Id) -> Result<&MemoryRegion, Failure> {
        match self.objects.get(&id) {
            Some(Object::Region(region)) => Ok(region),
            _ => Err(no_such_object()),
        }
    }
}

/// Sleeps on the descriptor of a queue, as a program with an event loop does.
fn wait_readable(cq: &mut Cq, timeout: Duration) -> Result<bool, Failure> {
    if !cq.arm()? {
        return Ok(true);
    }
    let fd = cq.wait_fd()?;
    let timeout = Timespec::try_from(timeout).map_err(Failure::other)?;
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    let ready = rustix::event::poll(&mut fds, Some(&timeout)).map_err(Failure::other)?;
    Ok(ready != 0)
}

/// Whether an entry names registered memory: nobody may name other memory of this process from afar.
fn names_a_region(key: u32, len: u32) -> Result<(), Failure> {
    match (NonZeroU32::new(key), len) {
        (None, 1..) => Err(Failure::other("an entry without a region")),
        _ => Ok(()),
    }
}

fn no_such_object() -> Failure {
    Failure::other("the agent has no such object")
}

impl Ask for std::cell::RefCell<Agent> {
    fn ask(&self, call: &Call, bytes: &[u8], out: &mut Vec<u8>) -> Done {
        self.borrow_mut().serve(call, bytes, out)
    }
}
