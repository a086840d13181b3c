//! The world: hosts, cables, and virtual time.

use crate::cable::{CableCounters, Direction, Pool};
use crate::faults::Faults;
use crate::home::LinkHome;
use crate::host::SimHost;
use crate::join::nothing_known;
use crate::nic::{Port, PortCounters};
use crate::profile::Profile;
use crate::queue::{Event, Queue};
use crate::rng::Rng;
use std::collections::VecDeque;
use std::fmt;
use usb4_engine::{Counters, Joins, Link, LinkConfig, Nanos};
use usb4_wire::{CONTROL_LEN, NodeId};

/// A host's index in its world.
pub type HostId = usize;
/// A cable's index in its world. Cable `c` has port `2 c` at its first host and `2 c + 1` at its second.
pub type CableId = usize;
/// A link's index in its world: one side of a session with one peer.
pub type LinkId = usize;

/// Events that may happen at one instant before that counts as a livelock.
const MOST_SPINS: u32 = 1_000_000;

/// Virtual time ran out before what was awaited came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLate {
    /// The instant at which waiting ended.
    pub now: Nanos,
    /// Whether events were still due (a livelock), or none (a deadlock).
    pub busy: bool,
}

impl fmt::Display for TooLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.busy {
            "events go on without progress"
        } else {
            "nothing is left to happen"
        };
        write!(f, "at {} us of virtual time {what}", self.now / 1_000)
    }
}

impl std::error::Error for TooLate {}

/// One host of the world.
pub(crate) struct HostNode {
    pub(crate) host: SimHost,
    pub(crate) ports: Vec<usize>,
    pub(crate) rng: Rng,
    pub(crate) joins: Joins,
    /// A stopped host runs nothing, but its NIC goes on receiving.
    pub(crate) stopped: bool,
}

/// Hosts, cables and virtual time. The same seed and the same calls give the same history, event for event.
pub struct World {
    pub(crate) queue: Queue,
    pub(crate) profile: Profile,
    pub(crate) rng: Rng,
    pub(crate) pool: Pool,
    pub(crate) hosts: Vec<HostNode>,
    pub(crate) ports: Vec<Port>,
    /// `directions[p]` leads away from port `p`.
    pub(crate) directions: Vec<Direction>,
    pub(crate) links: Vec<LinkHome>,
    pub(crate) messages: Vec<Option<[u8; CONTROL_LEN]>>,
    pub(crate) violations: Vec<String>,
    pub(crate) plan_delay: Nanos,
    pub(crate) payload_crc: bool,
    pub(crate) limits: fn(&mut LinkConfig),
    timers: VecDeque<u64>,
    /// Events since time last moved on.
    spins: u32,
}

impl World {
    /// An empty world with machines of the given kind.
    pub fn new(seed: u64, profile: &Profile) -> Self {
        Self {
            queue: Queue::default(),
            profile: profile.clone(),
            rng: Rng::new(seed),
            pool: Pool::default(),
            hosts: Vec::new(),
            ports: Vec::new(),
            directions: Vec::new(),
            links: Vec::new(),
            messages: Vec::new(),
            violations: Vec::new(),
            plan_delay: 0,
            payload_crc: false,
            limits: |_| (),
            timers: VecDeque::new(),
            spins: 0,
        }
    }

    /// Two hosts joined by `rails` cables with the same faults, and brought up.
    ///
    /// # Errors
    /// The rails did not come up within ten seconds.
    pub fn pair(
        seed: u64,
        profile: &Profile,
        rails: usize,
        faults: Faults,
    ) -> Result<(Self, HostId, HostId), TooLate> {
        let mut world = Self::new(seed, profile);
        let (a, b) = (world.add_host(), world.add_host());
        for _ in 0..rails {
            world.connect(a, b, faults);
        }
        world.bring_up()?;
        Ok((world, a, b))
    }

    /// Sets limits of links created from now on.
    pub fn set_limits(&mut self, limits: fn(&mut LinkConfig)) {
        self.limits = limits;
    }

    /// Has hosts ask for a payload CRC from the next session on.
    pub fn use_payload_crc(&mut self) {
        self.payload_crc = true;
    }

    /// Adds a host with a node id of its own.
    pub fn add_host(&mut self) -> HostId {
        let node = NodeId(u128::from(self.rng.next_u64()) << 64 | u128::from(self.rng.next_u64()));
        self.add_host_named(node)
    }

    /// Adds a host that claims to be `node`.
    pub fn add_host_named(&mut self, node: NodeId) -> HostId {
        let id = self.hosts.len();
        let mut rng = self.rng.fork();
        let host = SimHost::new(id, node, rng.fork());
        self.hosts.push(HostNode {
            host,
            ports: Vec::new(),
            rng,
            joins: nothing_known(node),
            stopped: false,
        });
        id
    }

    /// Lays a cable between two hosts; bring-up begins at once.
    pub fn connect(&mut self, a: HostId, b: HostId, faults: Faults) -> CableId {
        let cable = self.ports.len() / 2;
        let nth = self.cables_between(a, b).len();
        for host in [a, b] {
            let port = self.ports.len();
            let rng = self.rng.fork();
            self.directions
                .push(Direction::new(self.profile.rail(nth), faults, self.rng.fork()));
            self.ports.push(Port::new(host, rng));
            self.hosts[host].ports.push(port);
        }
        self.plan_delay = self.plan_delay.max(faults.plan_delay);
        self.begin_bringup(2 * cable);
        self.begin_bringup(2 * cable + 1);
        cable
    }

    /// The cables between two hosts.
    pub fn cables_between(&self, a: HostId, b: HostId) -> Vec<CableId> {
        let ends = |cable: usize| (self.ports[2 * cable].host, self.ports[2 * cable + 1].host);
        (0..self.ports.len() / 2)
            .filter(|&cable| ends(cable) == (a, b) || ends(cable) == (b, a))
            .collect()
    }

    /// Changes the faults of a cable, both directions.
    pub fn set_faults(&mut self, cable: CableId, faults: Faults) {
        self.directions[2 * cable].faults = faults;
        self.directions[2 * cable + 1].faults = faults;
        self.plan_delay = self
            .directions
            .iter()
            .map(|d| d.faults.plan_delay)
            .max()
            .unwrap_or(0);
    }

    /// Changes the faults of what leaves `from` on a cable.
    pub fn set_faults_from(&mut self, cable: CableId, from: HostId, faults: Faults) {
        let port = self.port_of(cable, from);
        self.directions[port].faults = faults;
    }

    /// Lets `pass` frames that `from` puts on a cable through, then loses the next `drop`.
    pub fn cut(&mut self, cable: CableId, from: HostId, pass: u64, drop: u64) {
        let port = self.port_of(cable, from);
        self.directions[port].cut = (pass, drop);
    }

    /// The port a host has on a cable.
    pub(crate) fn port_of(&self, cable: CableId, host: HostId) -> usize {
        if self.ports[2 * cable].host == host {
            2 * cable
        } else {
            2 * cable + 1
        }
    }

    /// The world's clock.
    pub fn now(&self) -> Nanos {
        self.queue.now()
    }

    /// Has [`World::next_timer`] yield `id` at `when`.
    pub fn set_timer(&mut self, when: Nanos, id: u64) {
        self.queue.at(when, Event::User { id });
    }

    /// A timer that has gone off.
    pub fn next_timer(&mut self) -> Option<u64> {
        self.timers.pop_front()
    }

    /// Lets the next event happen; false if there is none, or time has stopped moving on.
    #[inline]
    pub fn step(&mut self) -> bool {
        let before = self.queue.now();
        let Some(event) = self.queue.pop() else {
            return false;
        };
        self.spins = if self.queue.now() == before {
            self.spins + 1
        } else {
            0
        };
        if self.spins > MOST_SPINS {
            self.violations.push(format!(
                "livelock: {event:?} and others go on for ever at {before} ns"
            ));
            return false;
        }
        match event {
            Event::TxDone { port, epoch } => self.tx_done(port, epoch),
            Event::Arrive { port } => self.arrive(port),
            Event::Control { port, message } => self.control_arrives(port, message),
            Event::Bringup { port, epoch } => self.bringup_timer(port, epoch),
            Event::PathsEnabled { port, epoch } => self.paths_enabled(port, epoch),
            Event::PathsDisabled { port, epoch } => self.paths_disabled(port, epoch),
            Event::Service { link } => self.service(link),
            Event::Rekick { port } => self.rekick(port),
            Event::Unstrand { port } => self.unstrand(port),
            Event::User { id } => self.timers.push_back(id),
        }
        true
    }

    /// Lets `time` pass.
    pub fn run_for(&mut self, time: Nanos) {
        let end = self.now() + time;
        while self.queue.next_at().is_some_and(|when| when <= end) {
            if !self.step() {
                return;
            }
        }
        self.queue.advance_to(end);
    }

    /// Runs until `done` says so.
    ///
    /// # Errors
    /// It did not within `budget` of virtual time, or nothing is left to happen.
    pub fn run_until(
        &mut self,
        budget: Nanos,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), TooLate> {
        let end = self.now() + budget;
        while !done(self) {
            let next = self.queue.next_at();
            if next.is_none_or(|when| when > end) || !self.step() {
                return Err(TooLate {
                    now: self.now(),
                    busy: next.is_some(),
                });
            }
        }
        Ok(())
    }

    /// A host, for its memory and completions.
    pub fn host(&self, host: HostId) -> &SimHost {
        &self.hosts[host].host
    }

    /// The links a host has now, in order of their creation.
    pub fn links_of(&self, host: HostId) -> Vec<LinkId> {
        let alive = |link: &LinkId| {
            let home = &self.links[*link];
            home.host == host && !home.dead && home.link.is_up()
        };
        (0..self.links.len()).filter(alive).collect()
    }

    /// The oldest living link from `host` to the host `peer`, or to whoever claims to be that.
    pub fn link_between(&self, host: HostId, peer: HostId) -> Option<LinkId> {
        let node = self.hosts[peer].host.node();
        self.links_of(host)
            .into_iter()
            .find(|&link| self.links[link].peer == node)
    }

    /// The engine's link, for its state and counters.
    pub fn link(&self, link: LinkId) -> &Link {
        &self.links[link].link
    }

    /// Rails attached to a link now.
    pub fn rails_of(&self, link: LinkId) -> usize {
        self.links[link].ports.len()
    }

    /// What a link has counted.
    pub fn counters(&self, link: LinkId) -> Counters {
        *self.links[link].link.counters()
    }

    /// What happened to frames leaving `from` on a cable.
    pub fn cable_counters(&self, cable: CableId, from: HostId) -> CableCounters {
        self.directions[self.port_of(cable, from)].counters
    }

    /// What happened at a host's end of a cable.
    pub fn port_counters(&self, cable: CableId, host: HostId) -> PortCounters {
        self.ports[self.port_of(cable, host)].counters
    }

    /// Broken rules of the whole world: by the engine towards its home, or on the wire. Empty if all is well.
    pub fn violations(&self) -> Vec<String> {
        let mut all = self.violations.clone();
        for (index, port) in self.ports.iter().enumerate() {
            if port.counters.overruns > 0 {
                all.push(format!(
                    "port {index}: {} frames found no RX descriptor",
                    port.counters.overruns
                ));
            }
        }
        for (index, node) in self.hosts.iter().enumerate() {
            all.extend(
                node.host
                    .violations()
                    .into_iter()
                    .map(|what| format!("host {index}: {what}")),
            );
        }
        all
    }

    /// What is still held although no work is outstanding: an empty list means no leak. Call it when the world has
    /// come to rest.
    pub fn leaks(&self) -> Vec<String> {
        let mut leaks = Vec::new();
        for (index, home) in self.links.iter().enumerate().filter(|(_, home)| !home.dead) {
            if home.held() > 0 || home.unfinished() > 0 || !home.link.is_quiet() {
                leaks.push(format!(
                    "link {index}: {} RX buffers held, {} plans and gathers unfinished, {:?}",
                    home.held(),
                    home.unfinished(),
                    home.link.usage()
                ));
            }
        }
        for (index, node) in self.hosts.iter().enumerate() {
            let references = node.host.references();
            if references > 0 {
                leaks.push(format!("host {index}: {references} memory references held"));
            }
        }
        leaks
    }
}

/// Rails and links as they stand, one a line: for whoever looks into a failing seed.
impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "at {} us", self.now() / 1_000)?;
        for (index, port) in self.ports.iter().enumerate() {
            let state = port.fsm.as_ref().map(usb4_engine::RailFsm::state);
            writeln!(
                f,
                "port {index} of host {}: {state:?}, path up {}, link {:?} {:?}; ring {} posted, {} ready",
                port.host,
                port.path_up,
                port.link,
                port.rail,
                port.tx.used(),
                port.rx.ready.len()
            )?;
        }
        for (index, home) in self.links.iter().enumerate().filter(|(_, home)| !home.dead) {
            writeln!(
                f,
                "link {index} of host {}: up {}, due {:?}, {:?}",
                home.host,
                home.link.is_up(),
                home.link.deadline(),
                home.link.usage()
            )?;
        }
        Ok(())
    }
}
