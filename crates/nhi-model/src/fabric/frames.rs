//! Data frames: from TX rings onto wires, and from wires into RX rings.

use super::Fabric;
use crate::cable::Flight;
use crate::nhi::{Arrival, Taken, add};
use crate::router::Router;
use crate::{Cable, Env, Event, Fate, Nanos, Nhi, Place, Port};

/// Frame buffers kept for later.
const SPARE_MAX: usize = 64;

/// What one turn of a TX ring came to.
pub(super) enum Turn {
    /// A frame left.
    Sent,
    /// The ring has nothing to send, or never will again.
    Empty,
    /// It must wait until then.
    Busy(Nanos),
    /// It must wait for something that calls [`Fabric::requeue_held`].
    Held,
}

/// Where a TX ring's frames leave the router.
#[derive(Clone, Copy)]
struct Egress {
    cable: usize,
    way: usize,
    /// Lane adapter of the port, 0 or 1.
    lane: u32,
    /// HopID on the link.
    hop: u32,
}

impl Fabric {
    /// Puts a TX ring into the queue of those to serve, unless it is there or has nothing to send.
    pub(super) fn queue(&mut self, n: usize, hop: usize) {
        if let Some(ring) = self
            .nhis
            .get_mut(n)
            .and_then(|controller| controller.tx_ring(hop))
        {
            if ring.pending() && !ring.queued {
                ring.queued = true;
                self.ready.push_back((n, hop));
            }
        }
    }

    /// Lets rings that wait for something try again.
    pub(super) fn requeue_held(&mut self) {
        let held = |(n, controller): (usize, &crate::nhi::Controller)| {
            let hops = controller
                .tx_rings()
                .enumerate()
                .filter(|(_, ring)| ring.held && !ring.queued);
            hops.map(|(hop, _)| (n, hop)).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.nhis.iter().enumerate().flat_map(held).collect();
        for (n, hop) in all {
            // It competes for the link from now on only.
            if let Some(ring) = self
                .nhis
                .get_mut(n)
                .and_then(|controller| controller.tx_ring(hop))
            {
                ring.posted_at = self.now;
            }
            self.queue(n, hop);
        }
    }

    /// Serves TX rings in turn, one frame each, while any can send.
    pub(super) fn pump(&mut self, now: Nanos, budget: &mut usize, env: &mut dyn Env) {
        // Rings passed over in a row because their link is busy, and when the first is not.
        let (mut passed, mut earliest) = (0usize, None);
        while *budget != 0 && passed < self.ready.len() {
            let Some((n, hop)) = self.ready.pop_front() else {
                break;
            };
            let turn = if hop == 0 {
                self.send_control(n, now, env)
            } else {
                self.send(n, hop, now, env)
            };
            let Some(ring) = self
                .nhis
                .get_mut(n)
                .and_then(|controller| controller.tx_ring(hop))
            else {
                continue;
            };
            match turn {
                Turn::Sent => {
                    *budget = budget.saturating_sub(1);
                    (passed, earliest) = (0, None);
                    ring.held = false;
                }
                Turn::Busy(until) => {
                    passed = passed.saturating_add(1);
                    earliest = Some(earliest.map_or(until, |earliest: Nanos| earliest.min(until)));
                }
                Turn::Empty | Turn::Held => {
                    let held = matches!(turn, Turn::Held);
                    let starts = held && !ring.held;
                    (ring.held, ring.queued) = (held, false);
                    if let Some(controller) = self.nhis.get_mut(n) {
                        add(&mut controller.counters.held, usize::from(starts));
                    }
                    continue;
                }
            }
            self.ready.push_back((n, hop));
        }
        self.ready_at = earliest;
    }

    /// The path a TX ring's frames take: path space of the host interface adapter at HopID = ring.
    fn egress(&self, n: usize, hop: usize) -> Result<Egress, &'static str> {
        let router = &self.nhis.get(n).ok_or("no such controller")?.router;
        let entry = router
            .hop(router.upstream(), crate::bits::word(hop))
            .ok_or("no such HopID")?;
        if !entry.enabled() {
            return Err("TX path not enabled");
        }
        let port = router
            .port_of(entry.out_adapter())
            .ok_or("path leads to no lane adapter")?;
        let (cable, way) = self.across(Port { nhi: Nhi(n), port }).ok_or("link down")?;
        let lane = entry.out_adapter().saturating_sub(Router::lane0(port));
        Ok(Egress {
            cable,
            way,
            lane,
            hop: entry.next_hop(),
        })
    }

    /// The RX ring a frame on a wire leads to: path space of the lane adapter it comes in at.
    fn ingress(&self, to: Port, lane: u32, hop: u32) -> Result<usize, &'static str> {
        let router = &self.nhis.get(to.nhi.0).ok_or("no such controller")?.router;
        let adapter = Router::lane0(to.port).saturating_add(lane);
        let entry = router.hop(adapter, hop).ok_or("HopID beyond the far adapter")?;
        if !entry.enabled() {
            Err("far path not enabled")
        } else if entry.out_adapter() != router.upstream() {
            Err("far path does not end at the host interface")
        } else {
            Ok(crate::bits::index(entry.next_hop()))
        }
    }

    /// One turn of a data ring.
    fn send(&mut self, n: usize, hop: usize, now: Nanos, env: &mut dyn Env) -> Turn {
        let Some(controller) = self.nhis.get_mut(n) else {
            return Turn::Empty;
        };
        if !controller.pci.may_dma() {
            return Turn::Held;
        }
        let Some(taken) = controller.tx_peek(hop, env) else {
            return Turn::Empty;
        };
        let (e2e, posted_at) = controller
            .tx_ring(hop)
            .map_or((false, 0), |ring| (ring.e2e, ring.posted_at));
        let egress = match self.egress(n, hop) {
            Ok(egress) => egress,
            // A ring with end-to-end flow control has no credits before the far ring has given some.
            Err(_) if e2e => return Turn::Held,
            Err(why) => return self.give_up(n, hop, taken, why, now, env),
        };
        let Some(cable) = self.cables.get(egress.cable) else {
            return Turn::Empty;
        };
        let (from, to) = cable.wire_ends(egress.way);
        let Some(wire) = cable.wires.get(egress.way) else {
            return Turn::Empty;
        };
        if self.topology.wedge && wire.wedged(egress.hop) {
            return Turn::Held;
        }
        let start = posted_at.max(wire.free_at());
        if start > now {
            return Turn::Busy(start);
        }
        let mut reserved = None;
        match self.ingress(to, egress.lane, egress.hop) {
            Ok(ring) if e2e || self.nhis.get(to.nhi.0).is_some_and(|far| far.rx_e2e(ring)) => {
                if !self.nhis.get(to.nhi.0).is_some_and(|far| far.rx_room(ring)) {
                    return Turn::Held;
                }
                reserved = Some(ring);
            }
            Err(_) if e2e => return Turn::Held,
            Ok(_) | Err(_) => {}
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        let Some(controller) = self.nhis.get_mut(n) else {
            return Turn::Empty;
        };
        if !controller.tx_fetch(&taken, &mut bytes, env) {
            self.recycle(bytes);
            return self.give_up(n, hop, taken, "TX buffer outside memory", now, env);
        }
        add(&mut controller.counters.tx_frames, 1);
        add(&mut controller.counters.tx_bytes, bytes.len());
        controller.tx_complete(hop, &taken, env);
        if let (Some(ring), Some(far)) = (reserved, self.nhis.get_mut(to.nhi.0)) {
            far.reserve(ring);
        }
        let (sof, eof) = (taken.sof, taken.eof);
        let flight = Flight {
            due: 0,
            hop: egress.hop,
            lane: egress.lane,
            sof,
            eof,
            bytes,
            crc_error: false,
            reserved,
        };
        let at = Place::Cable {
            cable: Cable(egress.cable),
            from,
            to,
        };
        self.enter(egress, start, flight, at, now, env);
        Turn::Sent
    }

    /// Puts a frame onto its wire.
    fn enter(
        &mut self,
        egress: Egress,
        start: Nanos,
        flight: Flight,
        at: Place,
        now: Nanos,
        env: &mut dyn Env,
    ) {
        let Some(cable) = self.cables.get_mut(egress.cable) else {
            return;
        };
        let lanes = if cable.bonded { 2 } else { 1 };
        let rate = self.topology.rate.saturating_mul(lanes);
        let Some(wire) = cable.wires.get_mut(egress.way) else {
            return;
        };
        let fate = wire.draw();
        let Flight { hop, sof, eof, .. } = flight;
        env.observe(
            now,
            &Event::Frame {
                at,
                hop,
                sof,
                eof,
                bytes: &flight.bytes,
                fate,
            },
        );
        let Some(lost) = wire.enter(flight, fate, start, rate, self.topology.latency) else {
            return;
        };
        if let (Some(ring), Place::Cable { to, .. }) = (lost.reserved, at) {
            if let Some(far) = self.nhis.get_mut(to.nhi.0) {
                far.release(ring);
            }
        }
        self.recycle(lost.bytes);
    }

    /// The frame goes nowhere, but its descriptor is consumed: a completion says no more than that.
    fn give_up(
        &mut self,
        n: usize,
        hop: usize,
        taken: Taken,
        why: &'static str,
        now: Nanos,
        env: &mut dyn Env,
    ) -> Turn {
        if let Some(controller) = self.nhis.get_mut(n) {
            add(&mut controller.counters.dropped, 1);
            controller.tx_complete(hop, &taken, env);
        }
        let (at, hop, fate) = (
            Place::FromHost(Nhi(n)),
            crate::bits::word(hop),
            Fate::Dropped(why),
        );
        env.observe(
            now,
            &Event::Frame {
                at,
                hop,
                sof: taken.sof,
                eof: taken.eof,
                bytes: &[],
                fate,
            },
        );
        Turn::Sent
    }

    /// Takes what has arrived off the wires.
    pub(super) fn deliver(&mut self, now: Nanos, budget: &mut usize, env: &mut dyn Env) {
        for number in 0..self.cables.len() {
            for way in 0..2 {
                while *budget != 0 {
                    let Some(cable) = self.cables.get_mut(number) else {
                        break;
                    };
                    let (_, to) = cable.wire_ends(way);
                    let Some(wire) = cable.wires.get_mut(way) else {
                        break;
                    };
                    if let Some(packet) = wire.arrived_control(now) {
                        self.arrive_control(to, packet, now, env);
                    } else if let Some(flight) = wire.arrived(now) {
                        self.arrive(number, way, to, flight, now, env);
                    } else {
                        break;
                    }
                    *budget = budget.saturating_sub(1);
                }
            }
        }
    }

    fn arrive(&mut self, cable: usize, way: usize, to: Port, flight: Flight, now: Nanos, env: &mut dyn Env) {
        let ring = self.ingress(to, flight.lane, flight.hop);
        let Some(far) = self.nhis.get_mut(to.nhi.0) else {
            return;
        };
        if let Some(kept) = flight.reserved {
            far.release(kept);
        }
        let Flight {
            sof, eof, crc_error, ..
        } = flight;
        let result = match ring {
            Ok(ring) => far.receive(
                ring,
                Arrival {
                    sof,
                    eof,
                    bytes: &flight.bytes,
                    crc_error,
                },
                env,
            ),
            Err(why) => {
                add(&mut far.counters.dropped, 1);
                if self.topology.wedge {
                    self.leak(cable, way, &flight);
                }
                Err(why)
            }
        };
        if flight.reserved.is_some() && result.is_err() {
            self.requeue_held(); // its buffer is free for another
        }
        let fate = result.map_or_else(Fate::Dropped, |()| Fate::Passed);
        let hop = crate::bits::word(ring.unwrap_or(0));
        let at = Place::ToHost(to.nhi);
        env.observe(
            now,
            &Event::Frame {
                at,
                hop,
                sof,
                eof,
                bytes: &flight.bytes,
                fate,
            },
        );
        self.recycle(flight.bytes);
    }

    /// A frame into an absent path takes credits that nobody gives back.
    fn leak(&mut self, cable: usize, way: usize, flight: &Flight) {
        let Some(cable) = self.cables.get_mut(cable) else {
            return;
        };
        let (from, _) = cable.wire_ends(way);
        let Some(wire) = cable.wires.get_mut(way) else {
            return;
        };
        let before = wire.wedged(flight.hop);
        wire.leak(flight.hop, flight.bytes.len());
        let wedges = wire.wedged(flight.hop) && !before;
        if let Some(sender) = self.nhis.get_mut(from.nhi.0) {
            add(&mut sender.counters.wedged, usize::from(wedges));
        }
    }

    pub(super) fn recycle(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(bytes);
        }
    }
}
