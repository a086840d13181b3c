//! [`Device`]: its tables.

use usb4_engine::{NodeId, Slab};

use crate::attention::Attention;
use crate::client::{ClientSlot, Control};
use crate::cq::CqSlot;
use crate::endpoint::EndpointSlot;
use crate::id::MAX_OBJECTS;
use crate::links::LinkSlot;
use crate::lists::ListsSlot;
use crate::memory::{RegionSlot, Regions};
use crate::source::{SourceSlot, Sources};
use crate::sync::AtomicU32;
use crate::{DeviceConfig, DeviceError, Home, Lock};

/// Everything between clients' queues and links; see the crate documentation. Shared by reference: all methods
/// take `&self`.
#[derive(Debug)]
pub struct Device<H: Home> {
    pub(crate) home: H,
    pub(crate) node: NodeId,
    pub(crate) endpoints: Slab<EndpointSlot<H>>,
    /// By endpoint.
    pub(crate) lists: Slab<ListsSlot>,
    pub(crate) cqs: Slab<CqSlot<H>>,
    pub(crate) links: Slab<LinkSlot<H>>,
    pub(crate) regions: Regions<H::Lock, H::Mem>,
    pub(crate) sources: Lock<H::Lock, Sources>,
    pub(crate) control: Lock<H::Lock, Control>,
    pub(crate) attention: Lock<H::Lock, Attention>,
    /// Endpoints on the attention list.
    pub(crate) waiting: AtomicU32,
}

/// The memory a device lives in, by table; every element a default.
pub struct DeviceStorage<H: Home> {
    /// One per client.
    pub clients: Slab<ClientSlot>,
    /// One per endpoint.
    pub endpoints: Slab<EndpointSlot<H>>,
    /// One per endpoint.
    pub attention: Slab<u16>,
    /// One per endpoint; none if no queue pair has lists.
    pub lists: Slab<ListsSlot>,
    /// One per completion queue.
    pub cqs: Slab<CqSlot<H>>,
    /// One per memory region.
    pub regions: Slab<RegionSlot<H::Mem>>,
    /// One per memory region.
    pub free_regions: Slab<u16>,
    /// One per link.
    pub links: Slab<LinkSlot<H>>,
    /// One per source.
    pub sources: Slab<SourceSlot>,
    /// A power of two, about as many as sources.
    pub source_buckets: Slab<u32>,
}

#[cfg(any(test, feature = "alloc"))]
impl<H: Home> DeviceStorage<H> {
    /// Storage on the heap, without any for lists.
    pub fn boxed(config: &DeviceConfig) -> Self {
        Self {
            clients: Slab::boxed(config.max_clients),
            endpoints: Slab::boxed(config.max_endpoints),
            attention: Slab::boxed(config.max_endpoints),
            lists: Slab::empty(),
            cqs: Slab::boxed(config.max_cqs),
            regions: Slab::boxed(config.max_regions),
            free_regions: Slab::boxed(config.max_regions),
            links: Slab::boxed(config.max_links),
            sources: Slab::boxed(config.max_sources),
            source_buckets: Slab::boxed(config.max_sources.next_power_of_two()),
        }
    }
}

impl<H: Home> core::fmt::Debug for DeviceStorage<H> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DeviceStorage").finish_non_exhaustive()
    }
}

impl<H: Home> Device<H> {
    /// A device without clients and links, with tables as large as `storage`.
    ///
    /// # Errors
    /// Tables that do not fit together or have more than 65536 places (clients: 16384).
    pub fn new(home: H, config: &DeviceConfig, storage: DeviceStorage<H>) -> Result<Self, DeviceError> {
        let DeviceStorage {
            clients,
            endpoints,
            attention,
            lists,
            cqs,
            regions,
            free_regions,
            links,
            sources,
            source_buckets,
        } = storage;
        if endpoints.len() > MAX_OBJECTS || cqs.len() > MAX_OBJECTS || links.len() > MAX_OBJECTS {
            return Err(DeviceError::Storage);
        }
        let seed = home.random();
        Ok(Self {
            home,
            node: config.node,
            attention: Lock::new(Attention::new(attention, endpoints.len())?),
            endpoints,
            lists,
            cqs,
            links,
            regions: Regions::new(regions, free_regions)?,
            sources: Lock::new(Sources::new(sources, source_buckets, seed)?),
            control: Lock::new(Control::new(clients)?),
            waiting: AtomicU32::new(0),
        })
    }

    /// The environment.
    pub fn home(&self) -> &H {
        &self.home
    }

    /// This host.
    pub fn node(&self) -> NodeId {
        self.node
    }
}
