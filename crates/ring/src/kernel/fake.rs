//! The kernel's side of the ioctls, played by a soft device: the device code is the same.
//!
//! What it cannot play is the kernel: pinning, eventfds, `mmap` of a file, another process.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use usb4_ring_abi::{ABI_VERSION, Cqe, Entry, MAX_DEPTH, MAX_MESSAGE, Rqe, Sqe, uapi};
use usb4_soft::{
    Access, CqParts, DeviceError, EndpointKind, EndpointParts, Object, QueueMemory, Reach, RegionParts,
    Sharing,
};
use usb4_wire::{EpAddr, NodeId};

/// What a device answers to.
pub(crate) trait Kernel: Debug + Send + Sync {
    fn call(&self, number: u32, argument: &mut [u8]) -> Result<i32, Errno>;
    fn map(&self, offset: u64) -> io::Result<QueueMemory>;
}

/// A kernel with one client, on a soft fabric.
#[derive(Debug)]
pub(super) struct FakeKernel {
    client: usb4_soft::Client,
    pub(super) abi_version: u32,
    /// Its word says how many links nobody drives.
    pub(super) notice: QueueMemory,
    /// Calls of ENTER.
    pub(super) entered: AtomicU32,
    /// Flags of the last deregistration.
    pub(super) deregistered: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    maps: HashMap<u64, QueueMemory>,
    cqs: HashMap<u32, CqParts>,
    kinds: HashMap<u32, EndpointKind>,
    regions: HashMap<u32, RegionParts>,
}

const NOTICE_OFFSET: u64 = 4096;

impl FakeKernel {
    pub(super) fn new(fabric: &str) -> Self {
        let file = memfd_create("notice", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let notice =
            QueueMemory::device(std::os::fd::AsFd::as_fd(&file), 0, 512, Sharing::ReadWrite).unwrap();
        notice[uapi::NOTICE_UNDRIVEN_WORD].store(1, Ordering::Relaxed);
        Self {
            client: usb4_soft::Client::inline(fabric, Reach::Registered).unwrap(),
            abi_version: ABI_VERSION,
            notice,
            entered: AtomicU32::new(0),
            deregistered: AtomicU32::new(u32::MAX),
            state: Mutex::default(),
        }
    }

    /// Keeps a queue where it can be mapped; offset and bytes.
    fn keep<E: Entry>(state: &mut State, memory: &QueueMemory, depth: u32) -> (u64, u64) {
        let offset = (state.maps.len() as u64 + 16) << 32;
        state.maps.insert(offset, memory.clone());
        let words = 32 + E::WORDS * depth as usize;
        (offset, (words as u64 * 8).next_multiple_of(4096))
    }

    fn info(&self, info: &mut uapi::Info) {
        let limits = self.client.limits();
        (info.node_low, info.node_high) = self.client.node().halves();
        info.abi_version = self.abi_version;
        info.release[..4].copy_from_slice(b"fake");
        (info.max_message, info.max_depth) = (MAX_MESSAGE, MAX_DEPTH);
        (info.max_cqs, info.max_eps, info.max_mrs) = (limits.cqs, limits.endpoints, limits.regions);
        (info.notice_bytes, info.notice_offset) = (4096, NOTICE_OFFSET);
    }

    fn create_cq(&self, cq: &mut uapi::CreateCq) -> Result<(), Errno> {
        let parts = self.client.create_cq(cq.depth).map_err(errno)?;
        let mut state = self.state.lock();
        cq.cq = parts.id;
        (cq.offset, cq.bytes) = Self::keep::<Cqe>(&mut state, &parts.memory, cq.depth);
        state.cqs.insert(parts.id, parts);
        Ok(())
    }

    fn create_ep(&self, ep: &mut uapi::CreateEp) -> Result<(), Errno> {
        let kind = match ep.kind {
            uapi::EP_DATAGRAM => EndpointKind::Datagram,
            uapi::EP_CONNECTED => EndpointKind::Connected,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let made = self
            .client
            .create_endpoint(kind, (ep.sq_depth, ep.rq_depth), (ep.send_cq, ep.recv_cq));
        let EndpointParts {
            id, address, sq, rq, ..
        } = made.map_err(errno)?;
        let mut state = self.state.lock();
        (ep.ep, ep.addr) = (id, addr(&address));
        (ep.sq_offset, ep.sq_bytes) = Self::keep::<Sqe>(&mut state, &sq, ep.sq_depth);
        (ep.rq_offset, ep.rq_bytes) = Self::keep::<Rqe>(&mut state, &rq, ep.rq_depth);
        state.kinds.insert(id, kind);
        Ok(())
    }

    fn create_ah(&self, ah: &mut uapi::CreateAh) -> Result<(), Errno> {
        let kind = *self.state.lock().kinds.get(&ah.ep).ok_or(Errno::NOENT)?;
        let wait = (ah.timeout_ns != 0).then(|| Duration::from_nanos(ah.timeout_ns));
        let made = self.client.address_handle(ah.ep, kind, &ep_addr(&ah.addr), wait);
        ah.ah = made.map_err(errno)?.ok_or(Errno::AGAIN)?;
        Ok(())
    }

    fn reg_mr(&self, mr: &mut uapi::RegMr) -> Result<(), Errno> {
        let access = u8::try_from(mr.access).ok().and_then(Access::from_bits);
        let access = access.filter(|_| mr.len != 0).ok_or(Errno::INVAL)?;
        let start = std::ptr::with_exposed_provenance_mut(usize::try_from(mr.addr).unwrap());
        let len = usize::try_from(mr.len).unwrap();
        // SAFETY: it is the client's, which deregisters it before it goes; a kernel would have pinned it.
        let parts = unsafe { self.client.register(start, len, access) }.map_err(errno)?;
        (mr.local_key, mr.remote_key) = (parts.local_key, parts.remote_key);
        self.state.lock().regions.insert(parts.local_key, parts);
        Ok(())
    }

    fn enter(&self, what: &uapi::Enter) -> Result<i32, Errno> {
        self.entered.fetch_add(1, Ordering::Relaxed);
        let mut done = false;
        if what.flags & uapi::ENTER_SUBMIT != 0 {
            self.client.submit(what.ep, || true).map_err(errno)?;
            done = true;
        }
        if what.flags & uapi::ENTER_PROGRESS != 0 {
            done |= self.client.progress();
        }
        let mut result = if done { uapi::ENTERED_PROGRESS } else { 0 };
        if what.flags & uapi::ENTER_WAIT != 0 && self.wait(what)? {
            result |= uapi::ENTERED_READY;
        }
        Ok(result)
    }

    /// Looks at the queue's indices, and sleeps on what the device rings if they are the same.
    fn wait(&self, what: &uapi::Enter) -> Result<bool, Errno> {
        let (memory, bell) = {
            let state = self.state.lock();
            let cq = state.cqs.get(&what.cq).ok_or(Errno::NOENT)?;
            (cq.memory.clone(), Arc::clone(&cq.bell))
        };
        let word = |at: usize| memory[at].load(Ordering::Acquire);
        let ready = || word(usb4_ring_abi::PRODUCER_WORD) != word(usb4_ring_abi::CONSUMER_WORD);
        let over = || ready() || word(usb4_ring_abi::FLAGS_WORD) & usb4_ring_abi::ARMED == 0;
        let fd = bell.fd().unwrap();
        bell.silence();
        if over() {
            return Ok(ready());
        }
        self.client.hand_over();
        // The bell may not have been there when it was to be rung: looked at again from time to time.
        let nap = Duration::from_millis(10).min(Duration::from_nanos(what.timeout_ns));
        let mut left = Duration::from_nanos(what.timeout_ns);
        while !over() && !left.is_zero() {
            let timeout = Timespec::try_from(nap).ok();
            rustix::event::poll(
                &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
                timeout.as_ref(),
            )?;
            left = left.saturating_sub(nap);
        }
        Ok(ready())
    }

    fn peers(&self, list: &mut uapi::Peers) -> Result<(), Errno> {
        assert_eq!(list.stride as usize, size_of::<uapi::Peer>());
        let peers = self.client.peers().map_err(errno)?;
        let start: *mut uapi::Peer =
            std::ptr::with_exposed_provenance_mut(usize::try_from(list.peers).unwrap());
        for (at, peer) in peers.iter().take(list.count as usize).enumerate() {
            let (node_low, node_high) = peer.node.halves();
            let entry = uapi::Peer {
                node_low,
                node_high,
                state: uapi::PEER_UP,
                rails: 1,
                ..uapi::Peer::default()
            };
            // SAFETY: the caller has room for `count`.
            unsafe { start.add(at).write(entry) };
        }
        list.count = u32::try_from(peers.len()).unwrap();
        Ok(())
    }
}

impl Kernel for Arc<FakeKernel> {
    fn call(&self, number: u32, bytes: &mut [u8]) -> Result<i32, Errno> {
        match number {
            uapi::IOC_INFO => with(bytes, |info| {
                self.info(info);
                Ok(0)
            }),
            uapi::IOC_CREATE_CQ => with(bytes, |cq| self.create_cq(cq).map(|()| 0)),
            uapi::IOC_CREATE_EP => with(bytes, |ep| self.create_ep(ep).map(|()| 0)),
            uapi::IOC_CREATE_AH => with(bytes, |ah| self.create_ah(ah).map(|()| 0)),
            uapi::IOC_REG_MR => with(bytes, |mr| self.reg_mr(mr).map(|()| 0)),
            uapi::IOC_PEERS => with(bytes, |list| self.peers(list).map(|()| 0)),
            uapi::IOC_ENTER => with(bytes, |what| self.enter(what)),
            uapi::IOC_DESTROY_CQ => with(bytes, |destroy: &mut uapi::Destroy| {
                let cq = self.state.lock().cqs.remove(&destroy.id).ok_or(Errno::NOENT)?;
                self.client.destroy_cq(&cq);
                Ok(0)
            }),
            uapi::IOC_DESTROY_EP => with(bytes, |destroy: &mut uapi::Destroy| {
                self.client.destroy_endpoint(destroy.id);
                Ok(0)
            }),
            uapi::IOC_DESTROY_AH => with(bytes, |ah: &mut uapi::DestroyAh| {
                self.client.close_handle(ah.ep, ah.ah);
                Ok(0)
            }),
            uapi::IOC_DEREG_MR => with(bytes, |mr: &mut uapi::DeregMr| {
                let region = self.state.lock().regions.remove(&mr.local_key);
                self.client.deregister(&region.ok_or(Errno::NOENT)?);
                self.deregistered.store(mr.flags, Ordering::Relaxed);
                Ok(0)
            }),
            uapi::IOC_SOURCE => with(bytes, |source: &mut uapi::Source| {
                source.addr = addr(&self.client.source(source.src).ok_or(Errno::NOENT)?);
                Ok(0)
            }),
            _ => Err(Errno::NOTTY),
        }
    }

    fn map(&self, offset: u64) -> io::Result<QueueMemory> {
        if offset == NOTICE_OFFSET {
            return Ok(self.notice.clone());
        }
        let map = self.state.lock().maps.get(&offset).cloned();
        map.ok_or_else(|| Errno::INVAL.into())
    }
}

/// The argument in `bytes`, read and written back.
fn with<T: uapi::Argument>(
    bytes: &mut [u8],
    f: impl FnOnce(&mut T) -> Result<i32, Errno>,
) -> Result<i32, Errno> {
    let said = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
    assert_eq!((said as usize, bytes.len()), (size_of::<T>(), size_of::<T>()));
    let place = bytes.as_mut_ptr().cast::<T>();
    // SAFETY: as many bytes as `T` has, all of them integers.
    let mut argument = unsafe { place.read_unaligned() };
    let result = f(&mut argument)?;
    // SAFETY: as above.
    unsafe { place.write_unaligned(argument) };
    Ok(result)
}

/// The errno for what a device refuses.
fn errno(error: usb4_soft::Error) -> Errno {
    use usb4_soft::Error as Soft;
    match error {
        Soft::Unreachable(_) => Errno::HOSTUNREACH,
        Soft::ConnectTimeout(_) => Errno::TIMEDOUT,
        Soft::Device(DeviceError::NoCq | DeviceError::NoEndpoint | DeviceError::NoHandle) => Errno::NOENT,
        Soft::Device(DeviceError::Quota(_)) => Errno::DQUOT,
        Soft::Device(DeviceError::Full(Object::Client)) => Errno::NODEV,
        Soft::Device(DeviceError::Full(_)) => Errno::NOSPC,
        Soft::Device(DeviceError::State) => Errno::ISCONN,
        _ => Errno::INVAL,
    }
}

fn addr(address: &EpAddr) -> uapi::Addr {
    let (node_low, node_high) = address.node.halves();
    uapi::Addr {
        node_low,
        node_high,
        ep: address.ep,
        incarnation: address.incarnation,
    }
}

fn ep_addr(addr: &uapi::Addr) -> EpAddr {
    EpAddr {
        node: NodeId::from_halves(addr.node_low, addr.node_high),
        ep: addr.ep,
        incarnation: addr.incarnation,
    }
}
