//! Interface of the device; bodies follow.
#![allow(unused_variables)]
use core::marker::PhantomData;

use usb4_engine::{
    Counters, EpAddr, Fate, LinkConfig, LinkStorage, Nanos, NodeId, Plan, RailConfig, RailId, RxToken, Slab,
    Staged, TxSlot,
};

use crate::{
    ClientId, CqConfig, CqId, DeviceConfig, DeviceError, EndpointConfig, EndpointId, EndpointState, Home,
    Keys, LinkId, Owner, Quota, RegionConfig,
};

/// Place of an operation in flight; opaque, handed over with a completion queue.
#[derive(Debug, Default)]
pub struct OpSlot;
/// Place of an address handle; opaque, handed over with an endpoint.
#[derive(Debug, Default)]
pub struct AhSlot;

/// Tables of a device.
pub struct DeviceStorage<H>(PhantomData<H>);

#[cfg(feature = "alloc")]
impl<H: Home> DeviceStorage<H> {
    /// On the heap.
    pub fn boxed(config: &DeviceConfig) -> Self {
        Self(PhantomData)
    }
}

/// What [`Device::service`] works with; one per polling thread, too large for a kernel stack.
pub struct Scratch {
    _plans: Slab<Plan>,
    _staged: Slab<Staged>,
}

#[cfg(feature = "alloc")]
impl Scratch {
    /// On the heap.
    pub fn boxed() -> Self {
        Self {
            _plans: Slab::empty(),
            _staged: Slab::empty(),
        }
    }
}

/// What a turn of [`Device::service`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serviced {
    /// Something was done: call again.
    pub progress: bool,
    /// Another thread is servicing this link; nothing was done.
    pub busy: bool,
    /// When to call again at the latest, if nothing happens.
    pub deadline: Option<Nanos>,
    /// A frame of a foreign session arrived on this rail: answer with a rate-limited RESET on the control channel.
    pub reset: Option<RailId>,
    /// The link is down (it failed or lost its last rail) and may be removed.
    pub down: bool,
}

/// The device; see the crate documentation. `Send + Sync`; homes share it by reference or `Arc`.
pub struct Device<H: Home> {
    home: H,
}

impl<H: Home> Device<H> {
    /// A device without clients and links.
    pub fn new(home: H, config: &DeviceConfig, storage: DeviceStorage<H>) -> Result<Self, DeviceError> {
        Ok(Self { home })
    }

    /// The environment.
    pub fn home(&self) -> &H {
        &self.home
    }

    /// This host.
    pub fn node(&self) -> NodeId {
        NodeId(0)
    }

    // ---- clients ----

    /// Adds a client. `process` is how the home reaches the client's whole address space, if it can: entries may
    /// then use `LOCAL_PROCESS` with plain addresses (region offset = address).
    pub fn add_client(&self, quota: Quota, process: Option<H::Mem>) -> Result<ClientId, DeviceError> {
        Err(DeviceError::NoClient)
    }

    /// Removes a client with all it has, at any moment. When this returns nothing touches its memory or queues
    /// any more. Waits only for copies that are running.
    pub fn remove_client(&self, client: ClientId, now: Nanos) -> Result<(), DeviceError> {
        Err(DeviceError::NoClient)
    }

    // ---- memory ----

    /// Registers memory.
    pub fn register(&self, client: ClientId, region: RegionConfig<H::Mem>) -> Result<Keys, DeviceError> {
        Err(DeviceError::NoClient)
    }

    /// Kills a region's keys at once. True: nothing used it and it is gone (the `Mem` has been dropped). False:
    /// work in flight still uses it; [`Self::reclaim`] it later ([`Home::region_idle`] says when).
    pub fn deregister(&self, client: ClientId, local_key: u32) -> Result<bool, DeviceError> {
        Err(DeviceError::NoRegion)
    }

    /// Finishes a deregistration. True: the region is gone. With `force` it always is: waits only for copies
    /// that are running; work in flight that still names the region then sends zeros and drops what it receives.
    pub fn reclaim(&self, client: ClientId, local_key: u32, force: bool) -> Result<bool, DeviceError> {
        Err(DeviceError::NoRegion)
    }

    // ---- completion queues, endpoints, address handles ----

    /// Creates a completion queue.
    pub fn create_cq(&self, client: ClientId, config: CqConfig<H>) -> Result<CqId, DeviceError> {
        Err(DeviceError::NoClient)
    }

    /// Destroys a completion queue that no endpoint uses.
    pub fn destroy_cq(&self, client: ClientId, cq: CqId) -> Result<(), DeviceError> {
        Err(DeviceError::NoCq)
    }

    /// Creates an endpoint. A connected one takes no work before [`Self::connect`].
    pub fn create_endpoint(
        &self,
        client: ClientId,
        config: EndpointConfig<H>,
    ) -> Result<(EndpointId, EpAddr), DeviceError> {
        Err(DeviceError::NoClient)
    }

    /// Destroys an endpoint. Work in flight completes `FLUSHED`; receives not taken are forgotten.
    pub fn destroy_endpoint(&self, client: ClientId, ep: EndpointId, now: Nanos) -> Result<(), DeviceError> {
        Err(DeviceError::NoEndpoint)
    }

    /// Gives a connected endpoint its peer; address handle 0 is then that peer.
    pub fn connect(&self, client: ClientId, ep: EndpointId, peer: &EpAddr) -> Result<(), DeviceError> {
        Err(DeviceError::NoEndpoint)
    }

    /// Takes a connected endpoint out of its error state, back to unconnected, under a new incarnation.
    pub fn reset_endpoint(
        &self,
        client: ClientId,
        ep: EndpointId,
        now: Nanos,
    ) -> Result<EpAddr, DeviceError> {
        Err(DeviceError::NoEndpoint)
    }

    /// Where an endpoint stands.
    pub fn endpoint_state(&self, client: ClientId, ep: EndpointId) -> Result<EndpointState, DeviceError> {
        Err(DeviceError::NoEndpoint)
    }

    /// Creates an address handle on a datagram endpoint: resolves the host to its link.
    pub fn create_ah(&self, client: ClientId, ep: EndpointId, dst: &EpAddr) -> Result<u32, DeviceError> {
        Err(DeviceError::NoEndpoint)
    }

    /// Destroys an address handle; work in flight through it completes `FLUSHED`.
    pub fn destroy_ah(
        &self,
        client: ClientId,
        ep: EndpointId,
        ah: u32,
        now: Nanos,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::NoEndpoint)
    }

    /// The address behind a completion's `src`; remembered after the flow is closed, until the place is needed.
    pub fn source(&self, src: u32) -> Option<EpAddr> {
        None
    }

    // ---- links ----

    /// Adds a link to a peer (or to this host itself: loopback), without rails.
    pub fn add_link(&self, config: LinkConfig, storage: LinkStorage) -> Result<LinkId, DeviceError> {
        Err(DeviceError::Storage)
    }

    /// Adds a rail to a link; with the first the link is up.
    pub fn attach_rail(
        &self,
        link: LinkId,
        now: Nanos,
        rail: RailId,
        config: &RailConfig,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::NoLink)
    }

    /// Removes a rail that has been stopped. Without another one the link fails.
    pub fn detach_rail(
        &self,
        link: LinkId,
        port: &H::Port,
        now: Nanos,
        rail: RailId,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::NoLink)
    }

    /// Fails a link: all work on it completes `LINK_DOWN`, connected endpoints go to error.
    pub fn fail_link(&self, link: LinkId, port: &H::Port, now: Nanos) -> Result<(), DeviceError> {
        Err(DeviceError::NoLink)
    }

    /// Fails a link, waits for a running [`Self::service`] and forgets the link. Its storage is dropped.
    pub fn remove_link(&self, link: LinkId, port: &H::Port, now: Nanos) -> Result<(), DeviceError> {
        Err(DeviceError::NoLink)
    }

    /// The link to a host.
    pub fn link_to(&self, node: NodeId) -> Option<LinkId> {
        None
    }

    /// Who drives the link. A home that drives all its links together uses an [`Owner`] of its own.
    pub fn owner(&self, link: LinkId) -> Option<&Owner> {
        None
    }

    /// What has happened on a link.
    pub fn counters(&self, link: LinkId) -> Option<Counters> {
        None
    }

    // ---- data path ----

    /// Takes what the client has posted on an endpoint's queues, at most 64 entries. Returns whether there was
    /// anything. Call [`Self::service`] on the links afterwards.
    pub fn submit(&self, ep: EndpointId, now: Nanos) -> bool {
        false
    }

    /// [`Self::submit`] for every endpoint; for homes that poll their clients' queues.
    pub fn submit_all(&self, now: Nanos) -> bool {
        false
    }

    /// Before a home that polls its clients' queues sleeps: asks all clients to call `ENTER` (sets NEED_WAKEUP).
    /// True if all submission queues were empty afterwards, so that it may sleep.
    pub fn arm_all(&self) -> bool {
        true
    }

    /// The home polls again: clients need not call `ENTER`.
    pub fn disarm_all(&self) {}

    /// A frame has arrived and its RX descriptor has been replaced. `head` is the whole frame or at least its
    /// head; see `Link::on_frame`.
    pub fn receive_frame(
        &self,
        link: LinkId,
        now: Nanos,
        rail: RailId,
        token: RxToken,
        head: &[u8],
        frame_len: u16,
    ) -> Fate {
        Fate::Done
    }

    /// Takes frames under one hold of the link's lock: `next` receives a function to call for each, at most 64
    /// times. False if the link is not there (then `next` was not called).
    pub fn receive_frames(
        &self,
        link: LinkId,
        now: Nanos,
        next: impl FnOnce(&mut dyn FnMut(RailId, RxToken, &[u8], u16) -> Fate),
    ) -> bool {
        false
    }

    /// The home dropped a frame whose payload CRC was wrong.
    pub fn payload_corrupt(&self, link: LinkId) {}

    /// A TX descriptor has been consumed.
    pub fn tx_completed(&self, link: LinkId, now: Nanos, rail: RailId, slot: TxSlot) {}

    /// One turn: runs plans, composes, gathers and posts frames, serves timers and endpoints that wait. One
    /// thread at a time per link.
    pub fn service(&self, link: LinkId, port: &H::Port, now: Nanos, scratch: &mut Scratch) -> Serviced {
        Serviced::default()
    }
}
