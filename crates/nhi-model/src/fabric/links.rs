//! Links: training, bonding, recovery, and the plug events that tell hosts.

use super::Fabric;
use crate::bits::index;
use crate::cable::Link;
use crate::router::{Router, lane};
use crate::{Cable, Env, Event, Nanos, Nhi, Port};

/// Nanoseconds of a millisecond.
const MS: Nanos = 1_000_000;

impl Fabric {
    /// Brings every cable's link to the state its ends allow.
    ///
    /// A link trains once both hosts' connection managers have enumerated their routers and enabled plug events, and
    /// then stays up whether or not a driver is there. Real links train earlier; holding them down saves the driver
    /// the plug events from before its own port reset.
    pub(super) fn update_links(&mut self, now: Nanos, env: &mut dyn Env) {
        for number in 0..self.cables.len() {
            // A link may take several steps at once, where training takes no time.
            while self.step_link(number, now, env) {}
        }
    }

    /// One change of a cable's link, if one is due.
    fn step_link(&mut self, number: usize, now: Nanos, env: &mut dyn Env) -> bool {
        let Some(cable) = self.cables.get(number) else {
            return false;
        };
        let (ends, link) = (cable.ends, cable.link);
        let ready = cable.plugged && ends.iter().all(|&end| self.port_ready(end));
        let next = match link {
            Link::Down if ready => Link::Training(now.saturating_add(self.topology.training)),
            Link::Training(_) | Link::Up | Link::Recovery(_) if !ready => Link::Down,
            Link::Training(at) | Link::Recovery(at) if now >= at => Link::Up,
            Link::Up => return self.update_width(number, now, env),
            _ => return false,
        };
        self.set_link(number, next, now, env);
        match (link, next) {
            (_, Link::Training(_)) => self.show_lanes(ends, lane::TRAINING),
            (Link::Training(_), Link::Up) => self.come_up(number, ends, now, env),
            (Link::Recovery(_), Link::Up) => self.show_lanes(ends, lane::UP),
            (_, Link::Down) => self.go_down(number, ends, link, now, env),
            _ => {}
        }
        true
    }

    fn set_link(&mut self, number: usize, link: Link, now: Nanos, env: &mut dyn Env) {
        if let Some(cable) = self.cables.get_mut(number) {
            cable.link = link;
            env.observe(
                now,
                &Event::Link {
                    cable: Cable(number),
                    state: cable.state(),
                },
            );
        }
    }

    fn port_ready(&self, end: Port) -> bool {
        self.nhis
            .get(end.nhi.0)
            .is_some_and(|controller| controller.router.port_ready(end.port))
    }

    fn router(&mut self, end: Port) -> Option<&mut Router> {
        self.nhis
            .get_mut(end.nhi.0)
            .map(|controller| &mut controller.router)
    }

    fn show_lanes(&mut self, ends: [Port; 2], state: u32) {
        for end in ends {
            if let Some(router) = self.router(end) {
                router.set_lane_state(end.port, state);
            }
        }
    }

    fn come_up(&mut self, number: usize, ends: [Port; 2], now: Nanos, env: &mut dyn Env) {
        self.set_bonded(number, ends, false);
        self.show_lanes(ends, lane::UP);
        for end in ends {
            if let Some(router) = self.router(end) {
                router.lock(end.port);
            }
            self.plug_event(end, false, now, env);
        }
        self.requeue_held();
    }

    fn go_down(&mut self, number: usize, ends: [Port; 2], was: Link, now: Nanos, env: &mut dyn Env) {
        self.show_lanes(ends, lane::UNPLUGGED);
        self.set_bonded(number, ends, false);
        for way in 0..2 {
            let Some(cable) = self.cables.get_mut(number) else {
                return;
            };
            let (_, to) = cable.wire_ends(way);
            let Some(wire) = cable.wires.get_mut(way) else {
                return;
            };
            for flight in wire.cut() {
                if let (Some(ring), Some(far)) = (flight.reserved, self.nhis.get_mut(to.nhi.0)) {
                    far.release(ring);
                }
                self.recycle(flight.bytes);
            }
        }
        if !matches!(was, Link::Training(_)) {
            ends.into_iter()
                .for_each(|end| self.plug_event(end, true, now, env));
        }
        self.requeue_held();
    }

    fn set_bonded(&mut self, number: usize, ends: [Port; 2], bonded: bool) {
        if let Some(cable) = self.cables.get_mut(number) {
            cable.bonded = bonded;
        }
        for end in ends {
            if let Some(router) = self.router(end) {
                router.set_bonded(end.port, bonded);
            }
        }
    }

    /// Follows what the managers ask of a link that is up: lanes on or off, bonding. True if the link left that state.
    fn update_width(&mut self, number: usize, now: Nanos, env: &mut dyn Env) -> bool {
        let Some(cable) = self.cables.get(number) else {
            return false;
        };
        let (ends, narrow, bonded) = (cable.ends, cable.narrow, cable.bonded);
        self.show_lanes(ends, lane::UP);
        let routers = || {
            ends.iter()
                .filter_map(|end| Some((end, &self.nhis.get(end.nhi.0)?.router)))
        };
        let dual = routers().all(|(end, router)| router.wants_dual(end.port));
        let asked = routers().any(|(end, router)| router.bonding_asked(end.port));
        let want = dual && asked && !narrow;
        if want == bonded {
            return false;
        }
        self.set_bonded(number, ends, want);
        if narrow {
            // The link retrains: frames wait that long, and no plug event is sent.
            let until = now.saturating_add(self.topology.training);
            self.set_link(number, Link::Recovery(until), now, env);
            let wires = self.cables.get_mut(number).map(|cable| &mut cable.wires);
            wires.into_iter().flatten().for_each(|wire| wire.hold(until));
            self.show_lanes(ends, lane::TRAINING);
            return true;
        }
        if let Some(cable) = self.cables.get(number) {
            env.observe(
                now,
                &Event::Link {
                    cable: Cable(number),
                    state: cable.state(),
                },
            );
        }
        false
    }

    /// Tells a host that wants to know about a plug or unplug.
    fn plug_event(&mut self, end: Port, unplug: bool, now: Nanos, env: &mut dyn Env) {
        let Some(controller) = self.nhis.get_mut(end.nhi.0) else {
            return;
        };
        if !controller.router.hot_plug_enabled(end.port) {
            return;
        }
        controller.queue_plug(Router::lane0(end.port), unplug);
        self.send_plug(end.nhi.0, now, env);
    }

    /// Sends the oldest plug event the host has not acknowledged, if that is due.
    ///
    /// While ring 0 is off the driver is gone or suspended: the event is kept, and the host woken if it asked for that.
    pub(super) fn send_plug(&mut self, n: usize, now: Nanos, env: &mut dyn Env) {
        let Some(controller) = self.nhis.get_mut(n) else {
            return;
        };
        let listening = controller.listening();
        let Some(plug) = controller.plugs.front_mut() else {
            return;
        };
        let (adapter, unplug) = (plug.adapter, plug.unplug);
        if !listening {
            plug.resend = None;
            let port = index(adapter.saturating_sub(1) / 2);
            if controller.router.wakes_host(port, unplug) && controller.pci.raise_pme() {
                env.observe(
                    now,
                    &Event::Note {
                        nhi: Nhi(n),
                        text: "asleep: PME raised",
                    },
                );
            }
            return;
        }
        if plug.resend.is_some_and(|at| at > now) {
            return;
        }
        let again = controller.router.notification_timeout().saturating_mul(MS);
        plug.resend = Some(now.saturating_add(again));
        let packet = crate::control::ControlPacket::hot_plug(adapter, unplug);
        controller.reply(&packet, now, env);
    }
}
