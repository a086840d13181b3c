//! What sysfs shows of the fabric: `docs/abi/sysfs-usb4_rdma.md`, and what the kernel shows of cables and controllers.
//!
//! Everything that may be missing is an option: older modules, hosts without an IOMMU, files that went while they
//! were read.

use std::collections::BTreeMap;

use serde::Serialize;

/// Counters by name.
pub(super) type Counters = BTreeMap<String, u64>;

/// This host.
#[derive(Debug, Default, Serialize)]
pub(super) struct Facts {
    /// The module `usb4_rdma`, if it is loaded.
    pub(super) module: Option<Module>,
    pub(super) links: Vec<Link>,
    pub(super) rails: Vec<Rail>,
    /// Hosts at the other ends of cables, with this service or without.
    pub(super) hosts: Vec<Host>,
    pub(super) controllers: Vec<Controller>,
    /// Services that share the cables with us.
    pub(super) services: Vec<Service>,
}

/// The module.
#[derive(Debug, Default, Serialize)]
pub(super) struct Module {
    pub(super) version: Option<String>,
    /// Version of the ioctls.
    pub(super) abi: Option<u32>,
    pub(super) node: Option<String>,
}

/// The session with a host.
#[derive(Debug, Default, Serialize)]
pub(super) struct Link {
    /// `link0`.
    pub(super) name: String,
    pub(super) peer: Option<String>,
    pub(super) state: Option<String>,
    pub(super) rails: Option<u32>,
    pub(super) age_ms: Option<u64>,
    pub(super) counters: Counters,
}

/// A cable to a host with this service.
#[derive(Debug, Default, Serialize)]
pub(super) struct Rail {
    /// The service's device: `0-1.1`.
    pub(super) name: String,
    /// The device of the host at the other end: `0-1`.
    pub(super) host: String,
    pub(super) state: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) retry_ms: Option<u64>,
    pub(super) peer: Option<String>,
    pub(super) link: Option<String>,
    pub(super) controller: Option<String>,
    pub(super) route: Option<String>,
    pub(super) tx_ring: Option<u32>,
    pub(super) rx_ring: Option<u32>,
    pub(super) tx_hop: Option<u32>,
    pub(super) rx_hop: Option<u32>,
    pub(super) rate_mbps: Option<u64>,
    pub(super) rtt_ns: Option<u64>,
    pub(super) interrupt_throttle_ns: Option<u64>,
    pub(super) counters: Counters,
}

/// A host at the other end of a cable.
#[derive(Debug, Default, Serialize)]
pub(super) struct Host {
    /// Its device: `0-1`.
    pub(super) name: String,
    /// What it calls itself.
    pub(super) called: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) uuid: Option<String>,
    /// Of one lane, as the kernel says it: `20.0 Gb/s`.
    pub(super) tx_speed: Option<String>,
    pub(super) rx_speed: Option<String>,
    pub(super) tx_lanes: Option<u32>,
    pub(super) rx_lanes: Option<u32>,
}

/// A host controller.
#[derive(Debug, Default, Serialize)]
pub(super) struct Controller {
    /// Its PCI address.
    pub(super) name: String,
    /// The domain the thunderbolt driver made of it: `domain0`.
    pub(super) domain: String,
    pub(super) vendor: Option<String>,
    pub(super) device: Option<String>,
    pub(super) iommu_group: Option<String>,
    /// `DMA`, `DMA-FQ`, `identity`.
    pub(super) iommu_type: Option<String>,
    /// The firmware says that cables cannot reach memory they should not.
    pub(super) dma_protection: Option<bool>,
}

/// A service of somebody else's.
#[derive(Debug, Default, Serialize)]
pub(super) struct Service {
    /// Its device: `0-1.0`.
    pub(super) name: String,
    /// `network`.
    pub(super) key: String,
    pub(super) driver: Option<String>,
    /// Network interfaces it has made.
    pub(super) interfaces: Vec<String>,
}
