//! What links need of a router, and what they show in it: lane states, widths, plug and wake settings.

use super::adapter::{
    Adapter, CS_4, CS_4_LOCKED, CS_5, CS_5_DISABLE_HOT_PLUG, Kind, LANE_1, PORT_19, PORT_19_RESET,
    PORT_19_WAKE_ON_CONNECT, PORT_19_WAKE_ON_DISCONNECT,
};
use super::{LANE_BUFFERS, Router};
use crate::bits::{get, put};

/// Adapter states (LANE_ADP_CS_1 bits 29:26; `enum tb_port_state`).
pub(crate) mod lane {
    pub(crate) const DISABLED: u32 = 0;
    pub(crate) const TRAINING: u32 = 1;
    pub(crate) const UP: u32 = 2;
    pub(crate) const UNPLUGGED: u32 = 7;
}

// Fields of LANE_ADP_CS_1: lowest bit and width.
const TARGET_WIDTH: (u32, u32) = (4, 2);
const TARGET_DUAL: u32 = 3;
const DISABLE: (u32, u32) = (14, 1);
const BOND: (u32, u32) = (15, 1);
const CURRENT_WIDTH: (u32, u32) = (20, 6);
const STATE: (u32, u32) = (26, 4);

impl Adapter {
    fn lane_field(&self, (low, width): (u32, u32)) -> u32 {
        get(self.word(LANE_1), low, width)
    }

    fn set_lane_field(&mut self, (low, width): (u32, u32), value: u32) {
        self.set(LANE_1, put(self.word(LANE_1), low, width, value));
    }
}

impl Router {
    fn lane0_of(&self, port: usize) -> Option<&Adapter> {
        self.adapter(Self::lane0(port))
    }

    /// The lane adapters of a port: one or two.
    fn lanes(&self, port: usize) -> impl Iterator<Item = &Adapter> {
        let first = Self::lane0(port);
        let both = [first, first.saturating_add(1)]
            .into_iter()
            .filter_map(|number| self.adapter(number));
        both.filter(|adapter| matches!(adapter.kind, Kind::Lane(_)))
    }

    fn each_lane(&mut self, port: usize, mut change: impl FnMut(u32, &mut Adapter)) {
        let first = Self::lane0(port);
        for number in [first, first.saturating_add(1)] {
            if let Some(adapter) = self.adapter_mut(number) {
                if let Kind::Lane(lane) = adapter.kind {
                    change(lane, adapter);
                }
            }
        }
    }

    /// The manager wants plug events of this port.
    pub(crate) fn hot_plug_enabled(&self, port: usize) -> bool {
        self.lane0_of(port)
            .is_some_and(|lane| lane.word(CS_5) & CS_5_DISABLE_HOT_PLUG == 0)
    }

    /// Whether the port would train, were a cable to a willing partner there: the manager has enumerated the router,
    /// wants plug events and does not hold the port in reset.
    pub(crate) fn port_ready(&self, port: usize) -> bool {
        let reset = self
            .lane0_of(port)
            .is_none_or(|lane| lane.word(PORT_19) & PORT_19_RESET != 0);
        self.enumerated() && self.hot_plug_enabled(port) && !reset
    }

    /// Whether a plug (or unplug) is to wake the sleeping host.
    pub(crate) fn wakes_host(&self, port: usize, unplug: bool) -> bool {
        let bit = if unplug {
            PORT_19_WAKE_ON_DISCONNECT
        } else {
            PORT_19_WAKE_ON_CONNECT
        };
        self.asleep()
            && self
                .lane0_of(port)
                .is_some_and(|lane| lane.word(PORT_19) & bit != 0)
    }

    /// The manager has not unlocked the port since the last plug.
    pub(crate) fn locked(&self, port: usize) -> bool {
        self.lane0_of(port)
            .is_some_and(|lane| lane.word(CS_4) & CS_4_LOCKED != 0)
    }

    /// Locks the port, as a plug does.
    pub(crate) fn lock(&mut self, port: usize) {
        self.each_lane(port, |_, lane| lane.set(CS_4, lane.word(CS_4) | CS_4_LOCKED));
    }

    /// Shows a state on all lanes of a port; disabled lanes stay disabled.
    pub(crate) fn set_lane_state(&mut self, port: usize, state: u32) {
        self.each_lane(port, |_, adapter| {
            let disabled = adapter.lane_field(DISABLE) != 0;
            adapter.set_lane_field(STATE, if disabled { lane::DISABLED } else { state });
        });
    }

    /// Both lanes are on and have dual width as their target.
    pub(crate) fn wants_dual(&self, port: usize) -> bool {
        let willing =
            |lane: &Adapter| lane.lane_field(TARGET_WIDTH) == TARGET_DUAL && lane.lane_field(DISABLE) == 0;
        self.lanes(port).filter(|lane| willing(lane)).count() == 2
    }

    /// Lane bonding has been asked for.
    pub(crate) fn bonding_asked(&self, port: usize) -> bool {
        self.lanes(port).any(|lane| lane.lane_field(BOND) != 0)
    }

    /// Shows the link's width, and the buffers that go with it.
    pub(crate) fn set_bonded(&mut self, port: usize, bonded: bool) {
        self.each_lane(port, |lane, adapter| {
            adapter.set_lane_field(CURRENT_WIDTH, if bonded { 2 } else { 1 });
            let factor = if bonded && lane == 0 { 2 } else { 1 };
            adapter.set(
                CS_4,
                put(adapter.word(CS_4), 20, 10, LANE_BUFFERS.saturating_mul(factor)),
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::space;
    use super::super::tests::{read, router};
    use super::*;

    fn ready(router: &mut Router) {
        router.write(0, space::ROUTER, 3, &[1 << 31]).unwrap();
        router.write(1, space::ADAPTER, CS_5, &[0]).unwrap();
    }

    #[test]
    fn a_port_waits_for_the_manager_and_for_the_end_of_its_reset() {
        let mut router = router(2);
        assert!(!router.port_ready(0));
        ready(&mut router);
        assert!(router.port_ready(0) && !router.port_ready(1));
        router
            .write(1, space::ADAPTER, PORT_19, &[PORT_19_RESET])
            .unwrap();
        assert!(!router.port_ready(0));
    }

    #[test]
    fn bonding_needs_both_lanes_and_doubles_the_buffers_of_lane_0() {
        let mut router = router(2);
        router.write(1, space::ADAPTER, LANE_1, &[3 << 4]).unwrap();
        assert!(!router.wants_dual(0));
        router
            .write(2, space::ADAPTER, LANE_1, &[3 << 4 | 1 << 15])
            .unwrap();
        assert!(router.wants_dual(0) && router.bonding_asked(0));
        router.set_bonded(0, true);
        let buffers = |adapter| read(&router, adapter, space::ADAPTER, CS_4) >> 20 & 0x3ff;
        assert_eq!((buffers(1), buffers(2)), (120, 60));
        assert_eq!(read(&router, 2, space::ADAPTER, LANE_1) >> 20 & 0x3f, 2);
    }

    #[test]
    fn a_port_of_one_lane_never_bonds() {
        let mut router = router(1);
        router
            .write(1, space::ADAPTER, LANE_1, &[3 << 4 | 1 << 15])
            .unwrap();
        assert!(!router.wants_dual(0));
    }

    #[test]
    fn a_disabled_lane_stays_disabled() {
        let mut router = router(2);
        router.write(2, space::ADAPTER, LANE_1, &[1 << 14]).unwrap();
        router.set_lane_state(0, lane::UP);
        let state = |adapter| read(&router, adapter, space::ADAPTER, LANE_1) >> 26 & 0xf;
        assert_eq!((state(1), state(2)), (lane::UP, lane::DISABLED));
    }

    #[test]
    fn only_a_sleeping_router_that_was_asked_to_wakes_its_host() {
        let mut router = router(2);
        router
            .write(1, space::ADAPTER, PORT_19, &[PORT_19_WAKE_ON_CONNECT])
            .unwrap();
        assert!(!router.wakes_host(0, false));
        router.write(0, space::ROUTER, 5, &[1]).unwrap();
        assert!(router.wakes_host(0, false) && !router.wakes_host(0, true) && !router.wakes_host(1, false));
    }
}
