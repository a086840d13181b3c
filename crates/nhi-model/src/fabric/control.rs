//! Control packets: from hosts to their routers and to other domains.

use super::Fabric;
use super::frames::Turn;
use crate::cable::{ControlFlight, flip};
use crate::control::{Address, CONTROL_MAX, ControlPacket, notify, pdf};
use crate::nhi::add;
use crate::router::{Refusal, Router, space};
use crate::{Cable, Env, Event, Fate, Nanos, Nhi, Place, Port};

/// Word of a packet after its route.
const FIRST: usize = 2;
/// Routes below this name an adapter of the host router itself (one hop, 6 bits).
const ADAPTERS: u64 = 0x40;
/// Bits 31:30 of a plug event's acknowledgement (`struct cfg_ack_pkg` in `tb_msgs.h`: pg).
const ACK_UNPLUG: u32 = 3;

impl Fabric {
    /// One turn of ring 0 of a controller.
    pub(super) fn send_control(&mut self, n: usize, now: Nanos, env: &mut dyn Env) -> Turn {
        let mut bytes = self.spare.pop().unwrap_or_default();
        let Some(controller) = self.nhis.get_mut(n) else {
            return Turn::Empty;
        };
        // A host that does not take its replies gets to ask no more.
        if !controller.pci.may_dma() || controller.channel_full() {
            return Turn::Held;
        }
        let Some(taken) = controller.tx_peek(0, env) else {
            return Turn::Empty;
        };
        let fetched = taken.len <= CONTROL_MAX && controller.tx_fetch(&taken, &mut bytes, env);
        if !fetched {
            bytes.clear();
        }
        controller.tx_complete(0, &taken, env);
        add(&mut controller.counters.control_out, 1);
        let lost = controller.lose_from_host();
        let packet = ControlPacket::decode(taken.eof, &bytes);
        let fate = match packet {
            _ if lost => Fate::Dropped("injected loss"),
            Err(_) => Fate::Dropped("not a control packet"),
            Ok(_) => Fate::Passed,
        };
        let at = Place::FromHost(Nhi(n));
        env.observe(
            now,
            &Event::Control {
                at,
                pdf: taken.eof,
                bytes: &bytes,
                fate,
            },
        );
        match packet {
            Ok(packet) if !lost => self.handle(n, packet, &bytes, now, env),
            _ => add(&mut controller.counters.control_lost, 1),
        }
        self.recycle(bytes);
        Turn::Sent
    }

    fn handle(&mut self, n: usize, packet: ControlPacket, bytes: &[u8], now: Nanos, env: &mut dyn Env) {
        let route = packet.route();
        match packet.pdf {
            pdf::READ | pdf::WRITE if route == 0 => self.configure(n, &packet, now, env),
            pdf::READ | pdf::WRITE => self.refuse(n, route, now, env),
            pdf::NOTIFY => self.acknowledged(n, &packet, now, env),
            pdf::XDOMAIN_REQUEST | pdf::XDOMAIN_RESPONSE if route < ADAPTERS => {
                self.cross(n, packet, bytes, now, env);
            }
            // Acknowledgements of notifications are not waited for; nothing else is known.
            _ => {}
        }
    }

    /// A request to a router beyond: a host router has nothing but other domains below it.
    fn refuse(&mut self, n: usize, route: u64, now: Nanos, env: &mut dyn Env) {
        let adapter = u32::try_from(route % ADAPTERS).unwrap_or(0);
        let Some(controller) = self.nhis.get(n) else {
            return;
        };
        let code = match controller.router.port_of(adapter) {
            None => notify::NO_SUCH_ADAPTER,
            Some(port) if self.across(Port { nhi: Nhi(n), port }).is_none() => notify::NOT_CONNECTED,
            Some(port) if controller.router.locked(port) => notify::LOCKED,
            // This is how Linux learns that the port leads to another domain.
            Some(_) => notify::ENUMERATED,
        };
        self.reply(n, &ControlPacket::notification(route, adapter, code), now, env);
    }

    fn reply(&mut self, n: usize, packet: &ControlPacket, now: Nanos, env: &mut dyn Env) {
        if let Some(controller) = self.nhis.get_mut(n) {
            controller.reply(packet, now, env);
        }
    }

    /// Reads or writes a configuration space of the host router.
    fn configure(&mut self, n: usize, packet: &ControlPacket, now: Nanos, env: &mut dyn Env) {
        let address = Address(packet.word(FIRST));
        let (adapter, which) = (address.adapter(), address.space());
        let data = packet.words.get(FIRST.saturating_add(1)..).unwrap_or_default();
        let Some(controller) = self.nhis.get(n) else {
            return;
        };
        let upstream = controller.router.upstream();
        let result = if packet.pdf == pdf::READ {
            let busy = |adapter, hop| self.path_busy(n, adapter, hop);
            controller
                .router
                .read(adapter, which, address.offset(), address.length(), &busy)
        } else if data.len() == address.length() {
            let Some(controller) = self.nhis.get_mut(n) else {
                return;
            };
            controller
                .router
                .write(adapter, which, address.offset(), data)
                .map(|()| Vec::new())
        } else {
            Err(Refusal::BadAddress)
        };
        let reply = match result {
            Ok(data) => {
                let mut words = vec![0, 0, address.with_adapter(upstream)];
                words.extend(data);
                let mut reply = ControlPacket::new(packet.pdf, words);
                reply.route_to_manager(0);
                reply
            }
            Err(Refusal::BadAddress) => ControlPacket::notification(0, adapter, notify::BAD_ADDRESS),
            Err(Refusal::NoSuchAdapter) => ControlPacket::notification(0, adapter, notify::NO_SUCH_ADAPTER),
        };
        self.reply(n, &reply, now, env);
        if packet.pdf == pdf::WRITE {
            if which == space::PATH {
                self.requeue_held(); // a path may have opened
            } else {
                self.update_links(now, env);
            }
        }
    }

    /// Frames are under way towards an ingress HopID of a lane adapter.
    fn path_busy(&self, n: usize, adapter: u32, hop: u32) -> bool {
        let Some(port) = self
            .nhis
            .get(n)
            .and_then(|controller| controller.router.port_of(adapter))
        else {
            return false;
        };
        let lane = adapter.saturating_sub(Router::lane0(port));
        let end = Port { nhi: Nhi(n), port };
        let arriving = |cable: &crate::cable::CableState, way: usize| cable.wire_ends(way).1 == end;
        let mut wires = self.cables.iter().flat_map(|cable| {
            let ways = cable.wires.iter().enumerate();
            ways.filter(move |&(way, _)| arriving(cable, way))
                .map(|(_, wire)| wire)
        });
        wires.any(|wire| wire.busy(lane, hop))
    }

    /// The host has acknowledged a plug event: the next one can go.
    fn acknowledged(&mut self, n: usize, packet: &ControlPacket, now: Nanos, env: &mut dyn Env) {
        let word = packet.word(FIRST);
        if word & 0xff != notify::HOT_PLUG_ACK {
            return;
        }
        let (adapter, unplug) = (word >> 8 & 0x3f, word >> 30 == ACK_UNPLUG);
        if let Some(controller) = self.nhis.get_mut(n) {
            if controller
                .plugs
                .front()
                .is_some_and(|plug| (plug.adapter, plug.unplug) == (adapter, unplug))
            {
                controller.plugs.pop_front();
            }
        }
        self.send_plug(n, now, env);
    }

    /// A packet for another domain: it keeps its payload and crosses the cable.
    fn cross(&mut self, n: usize, packet: ControlPacket, bytes: &[u8], now: Nanos, env: &mut dyn Env) {
        let route = packet.route();
        let adapter = u32::try_from(route).unwrap_or(0);
        let Some(port) = self
            .nhis
            .get(n)
            .and_then(|controller| controller.router.port_of(adapter))
        else {
            return;
        };
        let Some((number, way)) = self.across(Port { nhi: Nhi(n), port }) else {
            return self.reply(
                n,
                &ControlPacket::notification(route, adapter, notify::NOT_CONNECTED),
                now,
                env,
            );
        };
        let latency = self.topology.latency;
        let Some(cable) = self.cables.get_mut(number) else {
            return;
        };
        let (from, to) = cable.wire_ends(way);
        let Some(wire) = cable.wires.get_mut(way) else {
            return;
        };
        let pdf = packet.pdf;
        let fate = wire.enter_control(pdf, packet.words, now, latency);
        let at = Place::Cable {
            cable: Cable(number),
            from,
            to,
        };
        env.observe(now, &Event::Control { at, pdf, bytes, fate });
    }

    /// It arrives: the router puts its own route to the adapter in place of the sender's.
    pub(super) fn arrive_control(&mut self, to: Port, flight: ControlFlight, now: Nanos, env: &mut dyn Env) {
        let Some(controller) = self.nhis.get_mut(to.nhi.0) else {
            return;
        };
        let mut packet = ControlPacket::new(flight.pdf, flight.words);
        packet.route_to_manager(u64::from(Router::lane0(to.port)));
        let mut bytes = packet.encode();
        if let Some(random) = flight.damage {
            flip(&mut bytes, random);
        }
        controller.tell_host(flight.pdf, bytes, now, env);
    }
}
