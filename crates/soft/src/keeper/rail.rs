//! Rails: the control channel of a joined cable, and the link that comes of it.

use std::os::fd::AsFd;
use std::sync::Arc;

use usb4_device::{DeviceError, LinkId, Object};
use usb4_engine::{Action, LinkConfig, LinkStorage, LocalInfo, Nanos, PeerInfo, RailConfig, RailFsm};
use usb4_wire::{Control, FRAME_VERSION, NodeId, RING_RESERVE};

use super::Keeper;
use super::calls::Stage;
use crate::cable::{Cable, SLOTS};
use crate::clock::now;
use crate::core::{Port, RAIL, Work};
use crate::crc::crc32c;
use crate::directory::Failure;
use crate::faults::Faults;
use crate::home::random;
use crate::socket;

/// What a soft cable is taken to deliver before it is measured.
const RATE_BPS: u64 = 40_000_000_000;
/// See [`RATE_BPS`].
const LATENCY: Nanos = 1_000;

/// How long a device that closes goes on serving its links at most, so that what it owes its peers (mostly
/// acknowledgements) is sent.
const LINGER: Nanos = 2_000_000;

/// A joined cable and its session.
pub(super) struct Rail {
    pub(super) node: NodeId,
    pub(super) fsm: RailFsm,
    cable: Arc<Cable>,
    link: Option<LinkId>,
}

/// The limits of a soft link.
pub(crate) fn link_config(local: NodeId, peer: NodeId) -> LinkConfig {
    let mut config = LinkConfig::new(local, peer);
    config.tx_slots = SLOTS_U16;
    config.rx_tokens = u32::from(SLOTS_U16);
    config.max_rails = 1;
    config
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "at most 1024, see `cable::layout`"
)]
const SLOTS_U16: u16 = SLOTS as u16;

#[expect(clippy::cast_possible_truncation, reason = "32")]
const RESERVE: u16 = RING_RESERVE as u16;

/// The receive ring a soft device announces: its neighbour has [`SLOTS`] slots to fill it with, so that it can
/// never overflow.
pub(crate) const RING: u16 = SLOTS_U16 + RESERVE;

/// How a rail over a soft cable is attached.
pub(crate) fn rail_config(tx_tag: u64, rx_tag: u64, peer_ring: u16, peer_max_ack_delay: Nanos) -> RailConfig {
    RailConfig {
        tx_tag,
        rx_tag,
        peer_ring,
        tx_depth: SLOTS_U16,
        peer_max_ack_delay,
        rate_bps: RATE_BPS,
        latency: LATENCY,
    }
}

pub(crate) fn local_info(config: &LinkConfig) -> LocalInfo {
    LocalInfo {
        node: config.local,
        ver_min: FRAME_VERSION,
        ver_max: FRAME_VERSION,
        tx_hop: 0,
        ring_size: u32::from(RING),
        max_ack_delay_us: u32::try_from(config.max_ack_delay / 1000).unwrap_or(u32::MAX),
        features: 0,
        max_flows: config.max_rx_flows,
        max_reads: config.max_reads,
    }
}

impl Keeper {
    /// A cable is joined: begins to offer a session over it.
    pub(super) fn start_rail(&mut self, id: u64, node: NodeId, cable: Cable) {
        if let Some(plan) = self.faults {
            let faults = Faults::new(plan, now(), node.halves().0);
            // SAFETY: nobody else knows this cable yet.
            unsafe { cable.receiver() }.spoil(faults);
        }
        let local = local_info(&link_config(self.node, node));
        let fsm = RailFsm::new(now(), local, &mut random);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.stage = Stage::Joined(Box::new(Rail {
                node,
                fsm,
                cable: Arc::new(cable),
                link: None,
            }));
        }
        self.act(id);
    }

    fn rail(&mut self, id: u64) -> Option<&mut Rail> {
        match self
            .connections
            .get_mut(&id)
            .map(|connection| &mut connection.stage)
        {
            Some(Stage::Joined(rail)) => Some(rail),
            _ => None,
        }
    }

    /// A control message, or what pretends to be one.
    pub(super) fn on_control(&mut self, id: u64, bytes: &[u8]) {
        let Ok(control) = Control::parse(bytes, crc32c) else {
            return;
        };
        if let Some(rail) = self.rail(id) {
            rail.fsm.on_control(now(), &control, &mut random);
            self.act(id);
        }
    }

    /// The state machine's timer.
    pub(super) fn on_rail_timer(&mut self, id: u64, time: Nanos) {
        if let Some(rail) = self.rail(id) {
            rail.fsm.on_timer(time);
            self.act(id);
        }
    }

    /// Does what the state machine asks.
    fn act(&mut self, id: u64) {
        while let Some(action) = self.rail(id).and_then(|rail| rail.fsm.poll_output()) {
            match action {
                Action::Send(control) => self.send_control(id, &control),
                Action::EnablePaths { .. } => {
                    if let Some(rail) = self.rail(id) {
                        rail.fsm.paths_enabled(now());
                    }
                }
                Action::DisablePaths => {
                    if let Some(rail) = self.rail(id) {
                        rail.fsm.paths_disabled(now());
                    }
                }
                Action::Up(peer) => self.rail_up(id, &peer),
                // A soft cable carries one session: the next one is over a new cable.
                Action::Down(_) => return self.end_rail(id, true),
            }
        }
    }

    fn send_control(&self, id: u64, control: &Control) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        // The control channel may lose messages: a peer that is stopped does not empty its socket.
        let _ = socket::send(connection.socket.as_fd(), &control.emit(crc32c), &[]);
    }

    /// The session is agreed: makes the link.
    fn rail_up(&mut self, id: u64, peer: &PeerInfo) {
        let local = self.node;
        let core = Arc::clone(&self.core);
        let Some(rail) = self.rail(id) else { return };
        // The control channel says who the peer is; the socket's name, which one process at a time can have, too.
        if peer.node != rail.node {
            return self.end_rail(id, false);
        }
        let mut config = link_config(local, rail.node);
        config.max_tx_flows = config.max_tx_flows.min(peer.max_flows);
        config.peer_max_reads = peer.max_reads;
        config.payload_crc = false;
        let time = now();
        let link = core
            .device
            .add_link(config, LinkStorage::boxed(&config))
            .and_then(|link| {
                let rail_config = rail_config(peer.tx_tag, peer.rx_tag, peer.ring_size, peer.max_ack_delay);
                core.device
                    .attach_rail(link, time, RAIL, &rail_config)
                    .map(|()| link)
            });
        match link {
            Ok(link) => {
                rail.link = Some(link);
                let (node, cable) = (rail.node, Arc::clone(&rail.cable));
                let pid = self.connections.get(&id).map_or(0, |connection| connection.pid);
                core.add_port(Port::new(link, cable));
                self.directory.set_up(node, pid);
                // The new cable has to be polled or armed.
                self.own();
            }
            Err(error) => {
                let node = rail.node;
                let failure = match error {
                    DeviceError::Full(Object::Link) => Failure::Full,
                    error => Failure::Device(error),
                };
                // Before the rail ends: the first reason given stays.
                self.directory.set_failed(node, failure);
                self.end_rail(id, false);
            }
        }
    }

    /// Ends a rail and its link: all its work completes. With `drain`, after what the peer has sent before its
    /// end has been taken in: messages, and confirmations of ours.
    pub(super) fn end_rail(&mut self, id: u64, drain: bool) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        let Stage::Joined(rail) = connection.stage else {
            return;
        };
        self.by_node.remove(&rail.node);
        if let Some(link) = rail.link {
            self.own();
            if drain {
                // Bounded: the peer can fill its slots no more than a few times once it is gone.
                for _ in 0..64 {
                    // SAFETY: the keeper owns.
                    if !unsafe { self.core.turn(Work::Posted(now())) } {
                        break;
                    }
                }
            }
            self.core.remove_port(link);
            // First: who sees its work fail and asks for the peer again must not be told that the link is up.
            self.directory.forget(rail.node);
            let _ = self.core.device.remove_link(link, &rail.cable, now());
        } else {
            self.directory.set_failed(rail.node, Failure::Unreachable);
        }
    }

    /// Ends the rails whose cable or link the owner has found broken.
    pub(super) fn drop_broken(&mut self) {
        let broken: Vec<LinkId> = self
            .core
            .ports()
            .iter()
            .filter(|port| port.is_broken())
            .map(|port| port.link)
            .collect();
        let is_broken = |stage: &Stage| matches!(stage, Stage::Joined(rail) if rail.link.is_some_and(|link| broken.contains(&link)));
        let ids: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, c)| is_broken(&c.stage))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.end_rail(id, false);
        }
    }

    /// The device closes: sends what is owed to the peers, says BYE.
    pub(super) fn farewell(&mut self) {
        self.own();
        let end = now().saturating_add(LINGER);
        loop {
            // Asked before the turn: the processor may be away for as long between the two.
            let late = now() > end;
            // SAFETY: the keeper owns.
            let done = unsafe { self.core.turn(Work::Posted(now())) };
            let quiet = self.core.ports().iter().all(|port| port.deadline().is_none());
            if (quiet && !done) || late {
                break;
            }
            std::thread::yield_now();
        }
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            if let Some(rail) = self.rail(id) {
                rail.fsm.close(now());
                while let Some(action) = self.rail(id).and_then(|rail| rail.fsm.poll_output()) {
                    if let Action::Send(control) = action {
                        self.send_control(id, &control);
                    }
                }
            }
            self.end_rail(id, false);
        }
        for port in self.core.ports().iter() {
            self.core.remove_port(port.link);
            let _ = self.core.device.remove_link(port.link, &port.cable, now());
        }
    }
}
