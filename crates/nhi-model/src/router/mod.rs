//! Configuration spaces of one USB4 host router.
//!
//! Adapters:
//!
//! ```text
//!   0                control adapter (no configuration space)
//!   1, 2             USB4 port 0: lane 0, lane 1
//!   3, 4             USB4 port 1: lane 0, lane 1
//!   ...
//!   2 * ports + 1    host interface, the "upstream" adapter
//! ```
//!
//! Capabilities, offsets in doublewords:
//!
//! ```text
//!   router:         0x20 TMU
//!   lane adapter:   0x10 TMU   0x20 lane   0x28 USB4 port (lane 0 only)
//!   host interface: none
//! ```
//!
//! What stock Linux demands beyond the specification:
//!
//! * When a capability walk runs off the list's end, it reads doubleword 0 once more and takes bits 15:8, the vendor
//!   id's high byte, for a capability id (`cap.c`). That byte must be none of 1 to 6.
//! * The adapter number in replies is not the one addressed, it is the upstream adapter: the connection manager
//!   learns its upstream adapter that way (`tb_cfg_get_upstream_port` in `ctl.c`).
//! * A lane-1 adapter must have no USB4 port capability, or the driver makes a second port device of it.
//! * Every HopID of a lane adapter from 8 up costs the driver one read at start (`tb_switch_reset_host`), so there are
//!   few.

mod adapter;
mod lanes;
mod operations;
mod path;

pub(crate) use lanes::lane;
pub(crate) use path::Hop;

use crate::bits::{bit, get, halves, index, masked, put, word};
use crate::{Nhi, Topology};
use adapter::{Adapter, Kind};

/// Spaces (`enum tb_cfg_space`). Counters do not exist: Max Counters reads 0.
pub(crate) mod space {
    pub(crate) const PATH: u32 = 0;
    pub(crate) const ADAPTER: u32 = 1;
    pub(crate) const ROUTER: u32 = 2;
}

/// Doublewords of router space.
const ROUTER_WORDS: usize = 0x40;
/// Where its TMU capability is.
const TMU: usize = 0x20;
const TMU_CAPABILITY: u32 = 0x03;
const TMU_UNIDIRECTIONAL: u32 = 1 << 30;
/// Vendor id the router shows. It is the Linux Foundation's; its high byte is not a capability id.
const VENDOR: u16 = 0x1d6b;
const DEVICE: u16 = 0x0040;
/// Highest HopID of a lane adapter: ingress HopIDs of inter-domain paths start at 8 (USB4 1.0 section 5.1).
const LANE_HOP_MAX: u32 = 23;
/// Buffers of one lane adapter; lane 0 of a bonded pair has twice that.
const LANE_BUFFERS: u32 = 60;
/// UID of the first router; the others count up from it. It becomes the XDomain UUID, so no two may be alike.
const UID: u64 = 0x00e0_4c00_0000_0001;

// Router space (USB4 1.0 section 8.2.1; `tb_regs.h`).
const CS_ROUTE_AND_VALID: usize = 3;
const CS_5: usize = 5;
// Bit numbers.
const CS_5_SLEEP: u32 = 0;
const CS_5_CONFIGURATION_VALID: u32 = 31;
const CS_6: usize = 6;
const CS_6_SLEEP_READY: u32 = 0;
const CS_6_ROUTER_READY: u32 = 24;
const CS_6_CONFIGURATION_READY: u32 = 25;
const CS_UID: usize = 7;
const CS_UID_HIGH: usize = 8;
const CS_26: usize = 26;

/// Why a configuration request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    BadAddress,
    NoSuchAdapter,
}

/// What a router is made as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterConfig {
    uid: u64,
    usb4: u32,
    ports: usize,
    lanes: u32,
    hops: usize,
}

impl RouterConfig {
    pub(crate) fn new(id: Nhi, topology: &Topology) -> Self {
        Self {
            uid: UID.wrapping_add(u64::from(word(id.0))),
            usb4: u32::from(topology.usb4),
            ports: topology.ports,
            lanes: u32::from(topology.lanes),
            hops: usize::from(topology.hops),
        }
    }
}

/// One host router.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    config: RouterConfig,
    words: Vec<u32>,
    adapters: Vec<Adapter>,
}

impl Router {
    pub(crate) fn new(config: RouterConfig) -> Self {
        let mut router = Self {
            config,
            words: Vec::new(),
            adapters: Vec::new(),
        };
        router.reset();
        router
    }

    pub(crate) fn reset(&mut self) {
        let last = self.upstream();
        let ids = u32::from(VENDOR) | u32::from(DEVICE) << 16;
        self.words = vec![0; ROUTER_WORDS];
        self.set(0, ids);
        // First capability, upstream adapter, max adapter; revision 1.
        self.set(1, word(TMU) | last << 8 | last << 14 | 1 << 24);
        self.set(4, self.config.usb4 << 29);
        self.set(CS_6, bit(CS_6_ROUTER_READY));
        let [low, high] = halves(self.config.uid);
        self.set(CS_UID, low);
        self.set(CS_UID_HIGH, high);
        self.set(TMU, TMU_CAPABILITY << 8 | TMU_UNIDIRECTIONAL);
        self.adapters = (0..=last)
            .map(|number| Adapter::new(number, self.kind(number), &self.config, ids))
            .collect();
    }

    fn kind(&self, number: u32) -> Kind {
        let lane = 1u32.wrapping_sub(number & 1);
        if number == self.upstream() {
            Kind::HostInterface
        } else if number == 0 || lane >= self.config.lanes {
            Kind::Inactive
        } else {
            Kind::Lane(lane)
        }
    }

    fn word(&self, at: usize) -> u32 {
        self.words.get(at).copied().unwrap_or(0)
    }

    fn set(&mut self, at: usize, value: u32) {
        if let Some(slot) = self.words.get_mut(at) {
            *slot = value;
        }
    }

    /// Number of the host interface adapter.
    pub(crate) fn upstream(&self) -> u32 {
        word(self.config.ports).saturating_mul(2).saturating_add(1)
    }

    /// Number of the lane 0 adapter of a USB4 port.
    pub(crate) fn lane0(port: usize) -> u32 {
        word(port).saturating_mul(2).saturating_add(1)
    }

    /// USB4 port of a lane adapter.
    pub(crate) fn port_of(&self, adapter: u32) -> Option<usize> {
        (1..self.upstream())
            .contains(&adapter)
            .then(|| index(adapter.saturating_sub(1) / 2))
    }

    fn adapter(&self, number: u32) -> Option<&Adapter> {
        self.adapters.get(index(number))
    }

    fn adapter_mut(&mut self, number: u32) -> Option<&mut Adapter> {
        self.adapters.get_mut(index(number))
    }

    /// Reads `len` doublewords. `busy` says whether frames are under way on an ingress HopID of a lane adapter, which
    /// the path's pending bit shows.
    pub(crate) fn read(
        &self,
        adapter: u32,
        which: u32,
        offset: usize,
        len: usize,
        busy: &dyn Fn(u32, u32) -> bool,
    ) -> Result<Vec<u32>, Refusal> {
        let range = offset..offset.saturating_add(len);
        if which == space::ROUTER {
            return Ok(self.words.get(range).ok_or(Refusal::BadAddress)?.to_vec());
        }
        let it = self.adapter(adapter).ok_or(Refusal::NoSuchAdapter)?;
        match which {
            space::ADAPTER => Ok(it.words.get(range).ok_or(Refusal::BadAddress)?.to_vec()),
            space::PATH => range
                .map(|at| it.path_word(at, adapter, busy).ok_or(Refusal::BadAddress))
                .collect(),
            _ => Err(Refusal::BadAddress),
        }
    }

    /// Writes doublewords; read-only bits keep their values. What comes before a bad address is written.
    pub(crate) fn write(
        &mut self,
        adapter: u32,
        which: u32,
        offset: usize,
        data: &[u32],
    ) -> Result<(), Refusal> {
        for (at, &value) in (offset..).zip(data) {
            if which == space::ROUTER {
                self.write_router(at, value)?;
                continue;
            }
            let it = self.adapter_mut(adapter).ok_or(Refusal::NoSuchAdapter)?;
            match which {
                space::ADAPTER => it.write(at, value)?,
                space::PATH => it.write_path(at, value).ok_or(Refusal::BadAddress)?,
                _ => return Err(Refusal::BadAddress),
            }
        }
        Ok(())
    }

    fn write_router(&mut self, at: usize, value: u32) -> Result<(), Refusal> {
        let old = *self.words.get(at).ok_or(Refusal::BadAddress)?;
        let new = match at {
            0 | CS_6 | CS_UID | CS_UID_HIGH => old,
            1 => masked(old, value, 7 << 20), // only the depth
            4 => masked(old, value, 0xffff),  // notification timeout, connection manager version
            CS_5 => {
                // The manager polls for the answers to both.
                let six = put(self.word(CS_6), CS_6_SLEEP_READY, 1, get(value, CS_5_SLEEP, 1));
                self.set(
                    CS_6,
                    put(
                        six,
                        CS_6_CONFIGURATION_READY,
                        1,
                        get(value, CS_5_CONFIGURATION_VALID, 1),
                    ),
                );
                value
            }
            CS_26 => operations::run(value, &mut self.words),
            TMU => masked(old, value, 0xffff_0000 & !TMU_UNIDIRECTIONAL),
            _ => value,
        };
        self.set(at, new);
        Ok(())
    }

    /// The connection manager has enumerated the router (valid bit).
    pub(crate) fn enumerated(&self) -> bool {
        self.word(CS_ROUTE_AND_VALID) & bit(31) != 0
    }

    /// The router sleeps.
    pub(crate) fn asleep(&self) -> bool {
        self.word(CS_5) & bit(CS_5_SLEEP) != 0
    }

    /// The control channel is back: leaves sleep.
    pub(crate) fn wake(&mut self) {
        self.set(CS_5, self.word(CS_5) & !bit(CS_5_SLEEP));
        self.set(CS_6, self.word(CS_6) & !bit(CS_6_SLEEP_READY));
    }

    /// Milliseconds until a notification is sent again; 0 means 255 (`plug_events_delay` in `tb_regs.h`).
    pub(crate) fn notification_timeout(&self) -> u64 {
        match get(self.word(4), 0, 8) {
            0 => 255,
            ms => u64::from(ms),
        }
    }

    /// A path's entry.
    pub(crate) fn hop(&self, adapter: u32, hop: u32) -> Option<Hop> {
        self.adapter(adapter)?.hops.get(index(hop)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn router(lanes: u8) -> Router {
        let topology = Topology {
            lanes,
            ports: 2,
            ..Topology::pair()
        };
        Router::new(RouterConfig::new(Nhi(1), &topology))
    }

    pub(super) fn read(router: &Router, adapter: u32, which: u32, at: usize) -> u32 {
        router.read(adapter, which, at, 1, &|_, _| false).unwrap()[0]
    }

    #[test]
    fn linux_finds_upstream_adapter_and_uid() {
        let router = router(2);
        let one = read(&router, 0, space::ROUTER, 1);
        assert_eq!((get(one, 8, 6), get(one, 14, 6)), (5, 5));
        assert_eq!(read(&router, 0, space::ROUTER, 7), 2);
        assert_ne!(read(&router, 0, space::ROUTER, 0) >> 8 & 0xff, 0x06);
    }

    #[test]
    fn sleep_is_answered_and_left_when_the_host_is_back() {
        let mut router = router(2);
        router.write(0, space::ROUTER, CS_5, &[1 | 1 << 31]).unwrap();
        assert!(router.asleep());
        assert_eq!(read(&router, 0, space::ROUTER, CS_6) & (1 << 25 | 1), 1 << 25 | 1);
        router.wake();
        assert!(!router.asleep());
        assert_eq!(read(&router, 0, space::ROUTER, CS_6) & 1, 0);
    }

    #[test]
    fn identity_is_read_only() {
        let mut router = router(2);
        let before: Vec<u32> = router.read(0, space::ROUTER, 0, 9, &|_, _| false).unwrap();
        router.write(0, space::ROUTER, 0, &[0, 0]).unwrap();
        router.write(0, space::ROUTER, 6, &[0, 0, 0]).unwrap();
        assert_eq!(
            router.read(0, space::ROUTER, 0, 9, &|_, _| false).unwrap(),
            before
        );
    }

    #[test]
    fn reads_and_writes_past_a_space_are_refused() {
        let mut router = router(2);
        let quiet = |_, _| false;
        assert_eq!(
            router.read(0, space::ROUTER, 0x3f, 2, &quiet),
            Err(Refusal::BadAddress)
        );
        assert_eq!(
            router.read(1, space::ADAPTER, 0x1fff, 60, &quiet),
            Err(Refusal::BadAddress)
        );
        assert_eq!(
            router.read(1, space::PATH, 48, 1, &quiet),
            Err(Refusal::BadAddress)
        );
        assert_eq!(router.read(1, 3, 0, 1, &quiet), Err(Refusal::BadAddress));
        assert_eq!(
            router.read(6, space::ADAPTER, 0, 1, &quiet),
            Err(Refusal::NoSuchAdapter)
        );
        assert_eq!(
            router.write(1, space::PATH, 47, &[0, 0]),
            Err(Refusal::BadAddress)
        );
    }

    #[test]
    fn ports_own_their_lane_adapters_and_no_others() {
        let router = router(2);
        assert_eq!(
            (1..=5).map(|a| router.port_of(a)).collect::<Vec<_>>(),
            [Some(0), Some(0), Some(1), Some(1), None]
        );
        assert_eq!((router.port_of(0), Router::lane0(1)), (None, 3));
    }
}
