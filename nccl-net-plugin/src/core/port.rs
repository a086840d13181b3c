//! A hub's endpoint: its queues, and the buffers messages arrive in.

use usb4_ring::{
    Access, AddressHandle, Buffer, Completion, Cq, Device, Endpoint, EndpointConfig, EndpointKind, Error,
    MemoryRegion, WorkRequest,
};

use super::id::Id;
use super::wire::{Message, PREFIX};

/// Messages that may arrive before anybody looks; more wait at their senders.
const RECEIVES: u32 = 256;

/// Entries of the submission queue.
const SENDS: u32 = 512;

/// Work under way: a bulk transfer holds its place until the peer has acknowledged it.
const IN_FLIGHT: u32 = 2048;

/// Buffers that are allocated together.
const CHUNK: u32 = 64;

/// Why work was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The queue is full: later.
    Full,
    /// The endpoint is dead.
    Dead,
}

/// An endpoint, its completion queues and its receive buffers.
#[derive(Debug)]
pub(crate) struct Port {
    endpoint: Endpoint,
    receives: Cq,
    sends: Cq,
    device: Device,
    buffers: Buffers,
    /// Receives that could not be posted again for lack of a buffer.
    missing: u32,
    /// Something was posted that the device has not been told of.
    posted: bool,
    /// Whether requests may be posted that are not the whole of a message.
    pub(crate) max_message: u32,
}

impl Port {
    pub(crate) fn new(device: &Device, eager: u32) -> Result<Self, Error> {
        let receives = device.create_cq(RECEIVES)?;
        let sends = device.create_cq(IN_FLIGHT)?;
        let config = EndpointConfig {
            kind: EndpointKind::Datagram,
            sq_depth: SENDS,
            rq_depth: RECEIVES,
        };
        let endpoint = device.create_endpoint(&config, &sends, &receives)?;
        let mut port = Self {
            endpoint,
            receives,
            sends,
            device: device.clone(),
            buffers: Buffers::new(eager),
            missing: 0,
            posted: false,
            max_message: device.info().max_message,
        };
        for _ in 0..RECEIVES {
            let buffer = port.buffers.take(&port.device)?;
            port.receive_into(buffer);
        }
        port.endpoint.submit()?;
        Ok(port)
    }

    pub(crate) fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// The device's name.
    pub(crate) fn rail(&self) -> &str {
        &self.device.info().name
    }

    #[inline]
    pub(crate) fn post(&mut self, request: &WorkRequest) -> Result<(), Refused> {
        let posted = match self.endpoint.post(request) {
            Err(Error::QueueFull) => {
                // The device may not have seen what is in it.
                let submitted = self.endpoint.submit();
                submitted.and_then(|()| self.endpoint.post(request))
            }
            posted => posted,
        };
        match posted {
            Ok(()) => {
                self.posted = true;
                Ok(())
            }
            Err(Error::QueueFull) => Err(Refused::Full),
            Err(_) => Err(Refused::Dead),
        }
    }

    /// Posts a control message, of which only the failure is heard of, under this name.
    #[inline]
    pub(crate) fn tell(&mut self, to: AddressHandle, message: &Message, cookie: Id) -> Result<(), Refused> {
        self.post(&control(to, message, cookie).unsignaled())
    }

    /// Posts a control message whose arrival is heard of.
    pub(crate) fn ask(&mut self, to: AddressHandle, message: &Message, cookie: Id) -> Result<(), Refused> {
        self.post(&control(to, message, cookie))
    }

    /// Lets the device start with what was posted.
    #[inline]
    pub(crate) fn submit(&mut self) {
        if std::mem::take(&mut self.posted) {
            // A device that is gone says so with the next request.
            let _ = self.endpoint.submit();
        }
    }

    /// What has arrived.
    #[inline]
    pub(crate) fn received(&mut self) -> Option<Completion> {
        self.receives.take()
    }

    /// What of our own work has ended.
    #[inline]
    pub(crate) fn sent(&mut self) -> Option<Completion> {
        self.sends.take()
    }

    /// Gives a buffer to the next message.
    #[inline]
    pub(crate) fn receive_into(&mut self, buffer: u32) {
        let Some(place) = self.buffers.places.get(buffer as usize) else {
            return;
        };
        // There are as many entries as buffers that are posted.
        if self.endpoint.post_recv(u64::from(buffer), *place).is_ok() {
            self.posted = true;
        }
    }

    /// Posts a receive in place of one whose buffer is kept. If there is no memory for that, one that is given back is
    /// posted instead; the error is that of the first of them.
    #[cold]
    pub(crate) fn receive_into_another(&mut self) -> Result<(), Error> {
        match self.buffers.take(&self.device) {
            Ok(buffer) => self.receive_into(buffer),
            Err(error) => {
                self.missing += 1;
                if self.missing == 1 {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A buffer that was kept is free.
    pub(crate) fn give_back(&mut self, buffer: u32) {
        if self.missing == 0 {
            self.buffers.free.push(buffer);
        } else {
            self.missing -= 1;
            self.receive_into(buffer);
        }
    }

    /// The words in front of a message that has arrived.
    #[inline]
    pub(crate) fn words(&self, buffer: u32) -> [u64; 3] {
        self.buffers.words(buffer)
    }

    /// Copies the bytes of an eager message out of a buffer.
    ///
    /// # Safety
    /// `len` bytes at `to` may be written.
    #[inline]
    pub(crate) unsafe fn copy_out(&self, buffer: u32, to: *mut u8, len: u32) {
        let Some(place) = self.buffers.places.get(buffer as usize) else {
            return;
        };
        let len = (len as usize).min(self.buffers.eager as usize);
        let from = std::ptr::with_exposed_provenance::<u8>(usize::try_from(place.addr()).unwrap_or(0));
        // SAFETY: within the buffer, which nobody writes to between its arrival and its return; the target is the
        // caller's, and is not one of our buffers.
        unsafe { std::ptr::copy_nonoverlapping(from.add(PREFIX as usize), to, len) };
    }
}

#[inline]
fn control(to: AddressHandle, message: &Message, cookie: Id) -> WorkRequest {
    let (words, imm) = message.encode();
    WorkRequest::send(to, Buffer::EMPTY)
        .prefix_words(words)
        .imm(imm)
        .user_data(cookie.raw())
}

/// Receive buffers, all of one size.
#[derive(Debug)]
struct Buffers {
    eager: u32,
    regions: Vec<MemoryRegion>,
    places: Vec<Buffer>,
    free: Vec<u32>,
}

impl Buffers {
    const fn new(eager: u32) -> Self {
        Self {
            eager,
            regions: Vec::new(),
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    fn take(&mut self, device: &Device) -> Result<u32, Error> {
        if self.free.is_empty() {
            self.grow(device)?;
        }
        self.free.pop().ok_or(Error::Invalid("a receive buffer"))
    }

    #[cold]
    fn grow(&mut self, device: &Device) -> Result<(), Error> {
        let size = (PREFIX + self.eager) as usize;
        // An odd number of cache lines, so that the heads of the buffers do not share cache sets.
        let stride = size.next_multiple_of(128) + 64;
        let region = device.alloc(stride * CHUNK as usize, Access::LOCAL)?;
        region.as_ptr().expose_provenance();
        for index in 0..CHUNK as usize {
            let place = region.buffer(index * stride, size)?;
            self.free
                .push(u32::try_from(self.places.len()).unwrap_or(u32::MAX));
            self.places.push(place);
        }
        self.free.reserve(self.places.len() - self.free.len());
        self.regions.push(region);
        Ok(())
    }

    #[inline]
    fn words(&self, buffer: u32) -> [u64; 3] {
        let Some(place) = self.places.get(buffer as usize) else {
            return [0; 3];
        };
        let at = std::ptr::with_exposed_provenance::<[u64; 3]>(usize::try_from(place.addr()).unwrap_or(0));
        // SAFETY: a buffer starts with them and is aligned to a cache line; nobody writes to it between its arrival and
        // its return. x86-64 is little-endian, as the words are.
        unsafe { at.read() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_that_could_not_be_posted_again_is_made_up_for() {
        let device = Device::open(&format!("soft:nccl-port-{}", std::process::id())).unwrap();
        let mut port = Port::new(&device, 100).unwrap();
        let mut byte = [0_u8; 8];
        // SAFETY: nobody names these regions, and they go before the bytes.
        let regions: Vec<_> =
            std::iter::from_fn(|| unsafe { device.register(byte.as_mut_ptr(), 8, Access::LOCAL) }.ok())
                .collect();
        assert!(port.receive_into_another().is_err());
        assert!(port.receive_into_another().is_ok(), "told once");
        drop(regions);
        for (buffer, missing) in [(0, 1), (1, 0), (2, 0)] {
            port.give_back(buffer);
            assert_eq!(port.missing, missing);
        }
        assert_eq!(port.buffers.free, [2]);
    }
}
