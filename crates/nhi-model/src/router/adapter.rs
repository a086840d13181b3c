//! Adapters: configuration space and what may be written to it.

use super::path::Hop;
use super::{LANE_BUFFERS, LANE_HOP_MAX, Refusal, RouterConfig, TMU_CAPABILITY, lane};
use crate::bits::{index, masked, word};

/// Doublewords of adapter space.
const WORDS: usize = 0x40;
/// Capabilities of a lane adapter.
pub(super) const TMU: usize = 0x10;
pub(super) const LANE: usize = 0x20;
pub(super) const LANE_1: usize = LANE + 1;
pub(super) const PORT: usize = 0x28;
const LANE_CAPABILITY: u32 = 0x01;
const PORT_CAPABILITY: u32 = 0x06;

// Basic adapter configuration (USB4 1.0 section 8.2.2; `tb_regs.h`).
pub(super) const CS_4: usize = 4;
const CS_4_BUFFERS_SHIFT: u32 = 20;
pub(super) const CS_4_LOCKED: u32 = 1 << 31;
const CS_4_WRITABLE: u32 = 0x3ff | CS_4_LOCKED;
pub(super) const CS_5: usize = 5;
/// Hot plug events are off.
pub(super) const CS_5_DISABLE_HOT_PLUG: u32 = 1 << 31;
const CS_5_WRITABLE: u32 = 0x7f << 22 | CS_5_DISABLE_HOT_PLUG;
/// Buffers of the host interface adapter.
const HOST_INTERFACE_BUFFERS: u32 = 0x40;

// Lane adapter capability.
/// Gen 2 and 3.
const LANE_SPEEDS: u32 = 0xc;
const LANE_1_GEN3: u32 = 0x4;
/// Target speed and width, CL states, lane disable, lane bonding. State and current width are ours: the driver does
/// read-modify-write, and would write stale values back.
const LANE_1_WRITABLE: u32 = 0xffff;

// USB4 port capability.
/// Sideband access.
const PORT_1: usize = PORT + 1;
const PORT_1_PENDING: u32 = 1 << 31;
const PORT_1_NO_RESPONSE: u32 = 1 << 25;
const PORT_1_RESULT: u32 = 1 << 26;
const PORT_1_TARGET_SHIFT: u32 = 16;
const PORT_18: usize = PORT + 18;
/// Lane bonding can be done.
const PORT_18_BONDING: u32 = 1 << 8;
pub(super) const PORT_19: usize = PORT + 19;
/// Downstream port reset.
pub(super) const PORT_19_RESET: u32 = 1 << 0;
pub(super) const PORT_19_WAKE_ON_CONNECT: u32 = 1 << 16;
pub(super) const PORT_19_WAKE_ON_DISCONNECT: u32 = 1 << 17;
const PORT_19_START_ASYM: u32 = 1 << 24;

/// What an adapter is (`enum tb_port_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Inactive,
    /// Lane 0 or 1 of a USB4 port.
    Lane(u32),
    HostInterface,
}

/// One adapter.
#[derive(Clone, Debug)]
pub(super) struct Adapter {
    pub(super) kind: Kind,
    pub(super) words: Vec<u32>,
    /// Paths that come in here, by HopID.
    pub(super) hops: Vec<Hop>,
}

impl Adapter {
    pub(super) fn new(number: u32, kind: Kind, config: &RouterConfig, ids: u32) -> Self {
        let mut adapter = Self {
            kind,
            words: vec![0; WORDS],
            hops: Vec::new(),
        };
        let code = match kind {
            Kind::Inactive => 0,
            Kind::Lane(_) => 1,
            Kind::HostInterface => 2,
        };
        adapter.set(0, ids);
        adapter.set(2, code | config.usb4 << 29);
        adapter.set(3, number << 20);
        match kind {
            Kind::Inactive => {}
            Kind::Lane(lane) => adapter.make_lane(lane, config),
            Kind::HostInterface => {
                let max = word(config.hops).saturating_sub(1);
                adapter.set(1, 1 << 24);
                adapter.set(CS_4, HOST_INTERFACE_BUFFERS << CS_4_BUFFERS_SHIFT);
                adapter.set(CS_5, max | max << 11);
                adapter.hops = vec![Hop::default(); config.hops];
            }
        }
        adapter
    }

    fn make_lane(&mut self, lane: u32, config: &RouterConfig) {
        let dual = config.lanes == 2;
        self.set(1, word(TMU) | 1 << 24);
        self.set(CS_4, LANE_BUFFERS << CS_4_BUFFERS_SHIFT);
        self.set(CS_5, LANE_HOP_MAX | LANE_HOP_MAX << 11 | CS_5_DISABLE_HOT_PLUG);
        self.set(TMU, word(LANE) | TMU_CAPABILITY << 8);
        let next = if lane == 0 { word(PORT) } else { 0 };
        let widths = if dual { 3 } else { 1 };
        self.set(
            LANE,
            next | LANE_CAPABILITY << 8 | LANE_SPEEDS << 16 | widths << 20,
        );
        // Target speed and width single, current speed Gen 3, width single, nothing there.
        let state = lane::UNPLUGGED << 26;
        self.set(LANE_1, LANE_SPEEDS | 1 << 4 | LANE_1_GEN3 << 16 | 1 << 20 | state);
        if lane == 0 {
            self.set(PORT, PORT_CAPABILITY << 8);
            self.set(PORT_18, if dual { PORT_18_BONDING } else { 0 });
        }
        self.hops = vec![Hop::default(); index(LANE_HOP_MAX).saturating_add(1)];
        if let Some(control) = self.hops.first_mut() {
            *control = Hop::CONTROL;
        }
    }

    pub(super) fn word(&self, at: usize) -> u32 {
        self.words.get(at).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, at: usize, value: u32) {
        if let Some(slot) = self.words.get_mut(at) {
            *slot = value;
        }
    }

    pub(super) fn write(&mut self, at: usize, value: u32) -> Result<(), Refusal> {
        let old = *self.words.get(at).ok_or(Refusal::BadAddress)?;
        let new = match at {
            CS_4 => masked(old, value, CS_4_WRITABLE),
            CS_5 => masked(old, value, CS_5_WRITABLE),
            0..=7 => old,
            _ if !matches!(self.kind, Kind::Lane(_)) => old,
            LANE | PORT | PORT_18 => old,
            LANE_1 => masked(old, value, LANE_1_WRITABLE),
            PORT_1 => sideband(value),
            PORT_19 => value & !PORT_19_START_ASYM, // clears itself
            TMU => masked(old, value, 0xffff_0000),
            _ => value,
        };
        self.set(at, new);
        Ok(())
    }
}

/// A sideband request is done at once. There are no retimers: every target but the router itself gives no response;
/// were the request left pending, Linux would wait 500 ms for each of six.
fn sideband(value: u32) -> u32 {
    let target = value >> PORT_1_TARGET_SHIFT & 7;
    let done = value & !(PORT_1_PENDING | PORT_1_NO_RESPONSE | PORT_1_RESULT);
    done | if target == 0 { 0 } else { PORT_1_NO_RESPONSE }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read, router};
    use super::super::{Router, space};
    use super::*;

    /// Capability ids in list order, as Linux walks them.
    fn walk(router: &Router, adapter: u32) -> Vec<u32> {
        let mut seen = Vec::new();
        let mut at = read(router, adapter, space::ADAPTER, 1) & 0xff;
        while at != 0 {
            let head = read(router, adapter, space::ADAPTER, index(at));
            seen.push(head >> 8 & 0xff);
            at = head & 0xff;
        }
        seen
    }

    #[test]
    fn capability_lists_end_and_only_lane_0_has_the_port() {
        let router = router(2);
        assert_eq!(walk(&router, 1), [3, 1, 6]);
        assert_eq!(walk(&router, 2), [3, 1]);
        assert_eq!(walk(&router, 5), []);
    }

    #[test]
    fn with_one_lane_the_second_adapter_is_inactive() {
        let router = router(1);
        assert_eq!(read(&router, 2, space::ADAPTER, 2) & 0xff_ffff, 0);
        assert_eq!(read(&router, 1, space::ADAPTER, LANE) >> 20 & 0x3f, 1);
    }

    #[test]
    fn lane_state_and_width_survive_read_modify_write() {
        let mut router = router(2);
        let before = read(&router, 1, space::ADAPTER, LANE_1);
        router.write(1, space::ADAPTER, LANE_1, &[0]).unwrap();
        let after = read(&router, 1, space::ADAPTER, LANE_1);
        assert_eq!((after & 0xffff, after >> 16), (0, before >> 16));
    }

    #[test]
    fn sideband_requests_are_answered_at_once_and_only_by_the_router() {
        let mut router = router(2);
        for (target, no_response) in [(0, 0), (1, PORT_1_NO_RESPONSE), (2, PORT_1_NO_RESPONSE)] {
            router
                .write(1, space::ADAPTER, PORT_1, &[PORT_1_PENDING | target << 16])
                .unwrap();
            assert_eq!(
                read(&router, 1, space::ADAPTER, PORT_1),
                target << 16 | no_response
            );
        }
    }
}
