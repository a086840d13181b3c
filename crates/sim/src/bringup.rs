//! Rails coming up and going down: the home's side of [`RailFsm`], and the control channel it talks over.

use crate::home::LinkHome;
use crate::profile::{MS, SEC, US};
use crate::queue::Event;
use crate::world::{CableId, HostId, LinkId, TooLate, World};
use usb4_engine::{
    Action, Link, LinkConfig, LinkStorage, LocalInfo, MAX_RAILS, Nanos, PeerInfo, Place, RailConfig, RailFsm,
    RailId, RailState,
};
use usb4_wire::{CONTROL_LEN, Control, FEATURE_PAYLOAD_CRC, FRAME_VERSION, NodeId};

/// Shortest and longest time to switch the paths of a rail: a few router configuration writes each way.
const PATH_TIME: (Nanos, Nanos) = (200 * US, 2 * MS);

/// How long a peer is silent before it is asked.
const SILENT: Nanos = 2 * SEC;

/// Shortest time of a control message on its way.
const CONTROL_TIME: Nanos = 50 * US;

impl World {
    /// Waits until every plugged cable is up, and all cables between two hosts belong to one link.
    ///
    /// # Errors
    /// They are not within a minute.
    pub fn bring_up(&mut self) -> Result<(), TooLate> {
        self.run_until(60 * SEC, Self::is_up)?;
        // What joins does so by taking a session's place; wait for the last such change to be known on both sides.
        self.run_for(5 * MS);
        self.run_until(60 * SEC, Self::is_up)
    }

    /// Whether every plugged cable carries data, and all between two hosts belong to one link.
    pub fn is_up(&mut self) -> bool {
        (0..self.ports.len())
            .step_by(2)
            .filter(|&port| self.ports[port].plugged)
            .all(|port| {
                let (a, b) = (self.ports[port].host, self.ports[port + 1].host);
                let linked = |port: usize, from, to| {
                    self.ports[port].link.is_some() && self.ports[port].link == self.link_between(from, to)
                };
                linked(port, a, b) && linked(port + 1, b, a)
            })
    }

    /// How far a host's end of a cable has come; `None` without a cable or a living host.
    pub fn rail_state(&self, cable: CableId, host: HostId) -> Option<RailState> {
        self.ports[self.port_of(cable, host)]
            .fsm
            .as_ref()
            .map(RailFsm::state)
    }

    pub(crate) fn begin_bringup(&mut self, port: usize) {
        let now = self.now();
        let p = &mut self.ports[port];
        let node = &self.hosts[p.host];
        if !p.plugged || node.stopped {
            return;
        }
        let mut config = LinkConfig::new(node.host.node(), NodeId(0));
        (self.limits)(&mut config);
        let local = LocalInfo {
            node: node.host.node(),
            ver_min: FRAME_VERSION,
            ver_max: FRAME_VERSION,
            tx_hop: 8,
            ring_size: u32::from(self.profile.ring) - 1,
            max_ack_delay_us: u32::try_from(self.profile.max_ack_delay / US).unwrap_or(u32::MAX),
            features: if self.payload_crc { FEATURE_PAYLOAD_CRC } else { 0 },
            max_flows: config.max_rx_flows,
            max_reads: config.max_reads,
        };
        let rng = &mut p.rng;
        p.fsm = Some(RailFsm::new(now, local, &mut || rng.next_u64()));
        self.drive(port, |_, _, _| ());
    }

    /// Feeds the port's state machine and carries out what it asks for.
    fn drive(&mut self, port: usize, feed: impl FnOnce(&mut RailFsm, Nanos, &mut dyn FnMut() -> u64)) {
        let now = self.now();
        let Some(mut fsm) = self.ports[port].fsm.take() else {
            return;
        };
        let rng = &mut self.ports[port].rng;
        feed(&mut fsm, now, &mut || rng.next_u64());
        let mut changed = false;
        while let Some(action) = fsm.poll_output() {
            match action {
                Action::Send(message) => self.send_control(port, message.emit(crc32c::crc32c_append)),
                Action::EnablePaths { .. } => self.switch_paths(port, true),
                Action::DisablePaths => self.switch_paths(port, false),
                Action::Up(info) => {
                    changed = true;
                    self.rail_up(port, &info);
                }
                Action::Down(_) => {
                    changed = true;
                    self.rail_down(port);
                }
            }
        }
        let p = &mut self.ports[port];
        if let Some(due) = fsm.deadline() {
            if p.bringup_at.is_none_or(|at| due < at || at < now) {
                p.bringup_at = Some(due);
                let epoch = p.boot;
                self.queue.at(due, Event::Bringup { port, epoch });
            }
        }
        self.ports[port].fsm = Some(fsm);
        if changed {
            self.sort_rails(self.ports[port].host);
        }
    }

    pub(crate) fn bringup_timer(&mut self, port: usize, epoch: u32) {
        let stopped = self.hosts[self.ports[port].host].stopped;
        if self.ports[port].boot == epoch && !stopped {
            self.ports[port].bringup_at = None;
            self.drive(port, |fsm, now, _| fsm.on_timer(now));
        }
    }

    pub(crate) fn set_join(&mut self, port: usize, nonce: u64) {
        self.drive(port, |fsm, now, mut rng| fsm.set_join(now, nonce, &mut rng));
    }

    /// A frame of a session this side does not know has come.
    pub(crate) fn unknown_tag(&mut self, port: usize, tag: u64) {
        self.drive(port, |fsm, now, _| fsm.unknown_tag(now, tag));
    }

    pub(crate) fn abort_bringup(&mut self, port: usize) {
        self.drive(port, |fsm, now, _| fsm.abort(now));
    }

    pub(crate) fn close_rail(&mut self, port: usize) {
        self.drive(port, |fsm, now, _| fsm.close(now));
    }

    pub(crate) fn resume_bringup(&mut self, port: usize) {
        self.ports[port].bringup_at = None;
        self.drive(port, |fsm, now, _| fsm.on_timer(now));
    }

    /// What homes do once a second: they ask peers that have left probes unanswered whether they are there, and begin anew
    /// with rails that were closed for it.
    pub fn look_for_silence(&mut self) {
        let now = self.now();
        for port in 0..self.ports.len() {
            let p = &self.ports[port];
            if self.hosts[p.host].stopped {
                continue;
            }
            if p.plugged && p.fsm.as_ref().is_some_and(RailFsm::is_closed) {
                let rail = self.rail_number(port);
                self.hosts[self.ports[port].host].joins.closed(rail);
                self.begin_bringup(port);
                continue;
            }
            let status = p.link.and_then(|link| self.links[link].link.rail_status(p.rail));
            let since = status.and_then(|status| status.silent_since);
            if since.is_some_and(|since| now.saturating_sub(since) >= SILENT) {
                self.drive(port, |fsm, now, _| fsm.silent(now));
            }
        }
    }

    fn switch_paths(&mut self, port: usize, on: bool) {
        let when = self.now() + self.ports[port].rng.between(PATH_TIME.0, PATH_TIME.1);
        let epoch = self.ports[port].boot;
        if on {
            // Rings run and receive descriptors are posted before the path leads anywhere.
            self.ports[port].rx.free = usize::from(self.profile.ring) - 1;
            self.queue.at(when, Event::PathsEnabled { port, epoch });
        } else {
            self.queue.at(when, Event::PathsDisabled { port, epoch });
        }
    }

    pub(crate) fn paths_enabled(&mut self, port: usize, epoch: u32) {
        let p = &mut self.ports[port];
        if p.boot == epoch {
            p.path_up = true;
            p.forgetful = false;
            self.drive(port, |fsm, now, _| fsm.paths_enabled(now));
        }
    }

    pub(crate) fn paths_disabled(&mut self, port: usize, epoch: u32) {
        let p = &mut self.ports[port];
        if p.boot == epoch {
            p.path_up = false;
            p.reset_rings(&mut self.pool);
            self.drive(port, |fsm, now, _| fsm.paths_disabled(now));
        }
    }

    /// Puts a control message on its way from `port`, with the faults of the control channel.
    pub(crate) fn send_control(&mut self, port: usize, message: [u8; CONTROL_LEN]) {
        let faults = self.directions[port].faults;
        let peer = port ^ 1;
        let p = &mut self.ports[port];
        if let (Some(_), Ok(message)) = (&p.tap, Control::parse(&message, crc32c::crc32c_append)) {
            p.control_tap.push(message);
        }
        let rng = &mut self.directions[port].rng;
        if rng.chance(faults.control_loss) {
            return;
        }
        for _ in 0..1 + usize::from(rng.chance(faults.control_dup)) {
            let when = self.queue.now() + CONTROL_TIME + rng.below(faults.control_delay);
            let slot = self
                .messages
                .iter()
                .position(Option::is_none)
                .unwrap_or(self.messages.len());
            if slot == self.messages.len() {
                self.messages.push(None);
            }
            self.messages[slot] = Some(message);
            self.queue.at(
                when,
                Event::Control {
                    port: peer,
                    message: slot,
                },
            );
        }
    }

    pub(crate) fn control_arrives(&mut self, port: usize, message: usize) {
        let Some(bytes) = self.messages[message].take() else {
            return;
        };
        let p = &self.ports[port];
        if !p.plugged || self.hosts[p.host].stopped {
            return;
        }
        if let Ok(message) = Control::parse(&bytes, crc32c::crc32c_append) {
            self.drive(port, |fsm, now, mut rng| fsm.on_control(now, &message, &mut rng));
        }
    }

    /// Data may be sent: the rail joins the link it proves to belong to, or begins one of its own.
    fn rail_up(&mut self, port: usize, info: &PeerInfo) {
        let host = self.ports[port].host;
        let rail = self.rail_number(port);
        let link = match self.hosts[host].joins.up(rail, info) {
            Place::Nowhere => return,
            Place::With(number) => self.link_numbered(host, number),
            Place::Own => {
                let nonce = self.hosts[host].rng.next_u64() | 1;
                let link = self.new_link(host, info);
                let number = self.links[link].number;
                self.hosts[host].joins.began(rail, number, info, nonce);
                Some(link)
            }
        };
        let Some(link) = link else {
            self.violations
                .push(format!("port {port} joins a link that is gone"));
            return;
        };
        self.attach(port, link, info);
        self.request_service(link, self.now());
    }

    fn attach(&mut self, port: usize, link: LinkId, info: &PeerInfo) {
        let now = self.now();
        let spec = self.directions[port].rail;
        let config = RailConfig {
            tx_tag: info.tx_tag,
            rx_tag: info.rx_tag,
            peer_ring: info.ring_size,
            tx_depth: self.profile.tx_depth,
            peer_max_ack_delay: info.max_ack_delay,
            rate_bps: spec.rate_bps,
            latency: spec.latency,
        };
        let home = &mut self.links[link];
        let used = |rail: &u8| home.ports.iter().any(|&p| self.ports[p].rail == RailId(*rail));
        let rail = RailId((0..u8::MAX).find(|rail| !used(rail)).unwrap_or(u8::MAX));
        if let Err(error) = home.link.attach_rail(now, rail, &config) {
            self.violations
                .push(format!("link {link}: attaching {rail:?}: {error}"));
            return;
        }
        home.ports.push(port);
        self.ports[port].link = Some(link);
        self.ports[port].rail = rail;
    }

    /// The rail's session is over.
    fn rail_down(&mut self, port: usize) {
        let now = self.now();
        let p = &mut self.ports[port];
        // Posted frames carry a tag nobody knows any more: the TX ring is stopped rather than run dry.
        p.stop_tx();
        while let Some((_, frame)) = p.rx.ready.pop_front() {
            p.rx.free += 1;
            self.pool.give(frame.bytes);
        }
        let (host, link) = (p.host, p.link.take());
        let number = self.rail_number(port);
        self.hosts[host].joins.down(number);
        let Some(link) = link else { return };
        let rail = self.ports[port].rail;
        let home = &mut self.links[link];
        home.ports.retain(|&other| other != port);
        home.link.detach_rail(now, rail, &self.hosts[home.host].host);
        self.request_service(link, now);
    }

    fn new_link(&mut self, host: HostId, info: &PeerInfo) -> LinkId {
        let node = &mut self.hosts[host];
        let mut config = LinkConfig::new(node.host.node(), info.node);
        config.max_ack_delay = self.profile.max_ack_delay;
        (self.limits)(&mut config);
        config.payload_crc = info.features & FEATURE_PAYLOAD_CRC != 0;
        config.max_tx_flows = config.max_tx_flows.min(info.max_flows);
        config.peer_max_reads = info.max_reads;
        let rails = u32::try_from(MAX_RAILS)
            .unwrap_or(0)
            .min(u32::from(config.max_rails));
        config.rx_tokens = u32::from(self.profile.ring) * rails + config.max_parked + config.max_plans;
        let storage = LinkStorage::boxed(&config);
        let rng = node.rng.fork();
        let number = self.free_number(host);
        self.links.push(LinkHome::new(
            host,
            &config,
            Link::new(config, storage),
            number,
            rng,
        ));
        self.links.len() - 1
    }
}
