//! The fabric: every controller, every cable, and the calls a front end makes.

mod commands;
mod control;
mod frames;
mod links;

use std::collections::VecDeque;

use crate::cable::CableState;
use crate::nhi::{Controller, Effect};
use crate::rng::Rng;
use crate::{
    BAR2_SIZE, Cable, CableStats, Command, CommandError, Env, MappedPage, Nanos, Nhi, NhiStats, Port, Reply,
    Stats, Topology, TopologyError,
};

/// Frames and control packets one call moves at most; the rest waits for [`Fabric::advance`].
const BURST: usize = 256;

/// All hosts' controllers and the cables between them. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Fabric {
    topology: Topology,
    nhis: Vec<Controller>,
    cables: Vec<CableState>,
    /// Resets of each controller.
    resets: Vec<u64>,
    /// The latest time any call was given; time does not go back.
    now: Nanos,
    /// TX rings with something to send, served in turn: controller and ring.
    ready: VecDeque<(usize, usize)>,
    /// When the first of them can go on.
    ready_at: Option<Nanos>,
    /// The last call stopped because it had done enough.
    left: bool,
    /// Frame buffers to use again.
    spare: Vec<Vec<u8>>,
}

impl Fabric {
    /// A fabric with every cable plugged and no guest attached. Everything random comes from `seed`.
    pub fn new(topology: Topology, seed: u64) -> Result<Self, TopologyError> {
        topology.check()?;
        let mut rng = Rng::new(seed);
        let cables = topology
            .cables
            .iter()
            .map(|&ends| CableState::new(ends, &mut rng))
            .collect();
        let nhis: Vec<_> = (0..topology.nhis())
            .map(|n| Controller::new(Nhi(n), &topology, rng.fork()))
            .collect();
        Ok(Self {
            resets: vec![0; nhis.len()],
            topology,
            nhis,
            cables,
            now: 0,
            ready: VecDeque::new(),
            ready_at: None,
            left: false,
            spare: Vec::new(),
        })
    }

    /// What it is made of.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// A guest has attached to a controller: it starts from power-on state, all vectors closed.
    pub fn connected(&mut self, nhi: Nhi, now: Nanos, env: &mut dyn Env) {
        self.attach(nhi, true, now, env);
    }

    /// The guest is gone, as when its machine is switched off: its links go down. Guest memory is not touched again.
    pub fn disconnected(&mut self, nhi: Nhi, now: Nanos, env: &mut dyn Env) {
        self.attach(nhi, false, now, env);
    }

    fn attach(&mut self, nhi: Nhi, connected: bool, now: Nanos, env: &mut dyn Env) {
        if let Some(controller) = self.nhis.get_mut(nhi.0) {
            controller.connected = connected;
            controller.close_vectors();
        }
        self.reset(nhi, now, env);
    }

    /// Function reset: PCI configuration, registers, router. Vectors stay as they are.
    pub fn reset(&mut self, nhi: Nhi, now: Nanos, env: &mut dyn Env) {
        let now = self.at(now);
        if let Some(controller) = self.nhis.get_mut(nhi.0) {
            controller.reset_function();
            self.after_reset(nhi.0, now, env);
            self.settle(now, env);
        }
    }

    /// How often a controller has been reset, by whatever. A front end that maps pages zeroes them when this changes,
    /// before it polls them again.
    #[must_use]
    pub fn resets(&self, nhi: Nhi) -> u64 {
        self.resets.get(nhi.0).copied().unwrap_or(0)
    }

    /// Reads PCI configuration space; all ones past its end.
    pub fn config_read(&self, nhi: Nhi, offset: usize, buf: &mut [u8]) {
        match self.nhis.get(nhi.0) {
            Some(controller) => controller.pci.read(offset, buf),
            None => buf.fill(0xff),
        }
    }

    /// Writes PCI configuration space. The BARs are the front end's affair and read as 0.
    pub fn config_write(&mut self, nhi: Nhi, offset: usize, bytes: &[u8], now: Nanos, env: &mut dyn Env) {
        let now = self.at(now);
        if let Some(controller) = self.nhis.get_mut(nhi.0) {
            controller.pci.write(offset, bytes);
            controller.flush_control(env);
            self.requeue_held();
            self.settle(now, env);
        }
    }

    /// Reads the doubleword of BAR0 at `offset`, which is rounded down to a multiple of 4.
    pub fn bar0_read(&mut self, nhi: Nhi, offset: u64, now: Nanos, env: &mut dyn Env) -> u32 {
        let now = self.at(now);
        let value = match self
            .nhis
            .get_mut(nhi.0)
            .filter(|controller| controller.pci.awake())
        {
            Some(controller) => controller.read(offset & !3, now),
            None => u32::MAX,
        };
        self.settle(now, env);
        value
    }

    /// Writes the doubleword of BAR0 at `offset`, which is rounded down to a multiple of 4. Narrower accesses are no use
    /// to any driver and have no place here.
    pub fn bar0_write(&mut self, nhi: Nhi, offset: u64, value: u32, now: Nanos, env: &mut dyn Env) {
        let now = self.at(now);
        if let Some(controller) = self
            .nhis
            .get_mut(nhi.0)
            .filter(|controller| controller.pci.awake())
        {
            let effect = controller.write(offset & !3, value, now);
            self.apply(nhi.0, effect, now, env);
            self.settle(now, env);
        }
    }

    /// Reads the MSI-X table (four doublewords per vector) or the pending bits (at 0x800).
    ///
    /// The table is only stored: whether a vector can be signalled is what [`Fabric::set_vector`] says, since a
    /// vfio-user client keeps the guest's view of the table to itself.
    #[must_use]
    pub fn bar2_read(&self, nhi: Nhi, offset: u64) -> u32 {
        let controller = self
            .nhis
            .get(nhi.0)
            .filter(|controller| controller.pci.awake() && offset < BAR2_SIZE);
        controller.map_or(u32::MAX, |controller| controller.bar2_read(offset))
    }

    /// Writes the MSI-X table.
    pub fn bar2_write(&mut self, nhi: Nhi, offset: u64, value: u32) {
        if let Some(controller) = self
            .nhis
            .get_mut(nhi.0)
            .filter(|controller| controller.pci.awake())
        {
            controller.bar2_write(offset, value);
        }
    }

    /// Says whether [`Env::interrupt`] can deliver this vector now. What is pending for it goes out at once.
    pub fn set_vector(&mut self, nhi: Nhi, vector: u16, open: bool, now: Nanos, env: &mut dyn Env) {
        let now = self.at(now);
        if let Some(controller) = self.nhis.get_mut(nhi.0) {
            controller.set_vector(vector, open);
            controller.send_interrupts(now, env);
        }
    }

    /// Takes over what the guest has written to a page that is mapped into it. `word` reads the doubleword at an
    /// offset of BAR0; only those that matter are asked for. True if anything had changed.
    pub fn poll(
        &mut self,
        nhi: Nhi,
        page: MappedPage,
        word: &mut dyn FnMut(u64) -> u32,
        now: Nanos,
        env: &mut dyn Env,
    ) -> bool {
        let now = self.at(now);
        let Some(controller) = self.nhis.get(nhi.0).filter(|controller| controller.pci.awake()) else {
            return false;
        };
        let mut changed = false;
        for offset in controller.mapped_offsets(page) {
            let value = word(offset);
            let Some(controller) = self.nhis.get_mut(nhi.0) else {
                break;
            };
            if let Some(effect) = controller.take_over(offset, value, now) {
                changed = true;
                self.apply(nhi.0, effect, now, env);
            }
        }
        if changed {
            self.settle(now, env);
        }
        changed
    }

    /// When [`Fabric::advance`] must be called next; it may lie in the past, and then there is work left.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        if self.left {
            return Some(self.now);
        }
        let controllers = self.nhis.iter().flat_map(|controller| {
            let plug = controller.plugs.front().and_then(|plug| plug.resend);
            controller.interrupt_deadline().into_iter().chain(plug)
        });
        let cables = self.cables.iter().filter_map(CableState::deadline);
        controllers.chain(cables).chain(self.ready_at).min()
    }

    /// Does what is due at `now`.
    pub fn advance(&mut self, now: Nanos, env: &mut dyn Env) {
        let now = self.at(now);
        self.update_links(now, env);
        for n in 0..self.nhis.len() {
            self.send_plug(n, now, env);
        }
        self.settle(now, env);
    }

    /// Carries out a command.
    pub fn command(
        &mut self,
        now: Nanos,
        command: Command,
        env: &mut dyn Env,
    ) -> Result<Reply, CommandError> {
        let now = self.at(now);
        let reply = self.execute(command, now, env);
        self.settle(now, env);
        reply
    }

    fn at(&mut self, now: Nanos) -> Nanos {
        self.now = self.now.max(now);
        self.now
    }

    fn apply(&mut self, n: usize, effect: Effect, now: Nanos, env: &mut dyn Env) {
        match effect {
            Effect::None => {}
            Effect::Tx(hop) => self.queue(n, hop),
            Effect::Rx(hop) => {
                if hop == 0 {
                    if let Some(controller) = self.nhis.get_mut(n) {
                        controller.flush_control(env);
                    }
                }
                self.requeue_held();
            }
            Effect::Rings => {
                let hops = self.nhis.get(n).map_or(0, Controller::hops);
                (0..hops).for_each(|hop| self.queue(n, hop));
                self.send_plug(n, now, env);
                self.update_links(now, env);
                self.requeue_held();
            }
            Effect::Reset => {
                if let Some(controller) = self.nhis.get_mut(n) {
                    controller.reset_router();
                }
                self.after_reset(n, now, env);
            }
        }
    }

    fn after_reset(&mut self, n: usize, now: Nanos, env: &mut dyn Env) {
        if let Some(resets) = self.resets.get_mut(n) {
            *resets = resets.wrapping_add(1);
        }
        self.update_links(now, env);
        self.requeue_held();
    }

    /// Moves frames and control packets until nothing more can move or enough has been done, then sends interrupts.
    fn settle(&mut self, now: Nanos, env: &mut dyn Env) {
        let mut budget = BURST;
        loop {
            let before = budget;
            self.deliver(now, &mut budget, env);
            self.pump(now, &mut budget, env);
            if budget == 0 || budget == before {
                break;
            }
        }
        self.left = budget == 0;
        for controller in &mut self.nhis {
            controller.send_interrupts(now, env);
        }
    }

    /// The cable in a port whose link can carry packets: its number and which of its wires leads away from the port.
    fn across(&self, port: Port) -> Option<(usize, usize)> {
        let mut cables = self
            .cables
            .iter()
            .enumerate()
            .filter(|(_, cable)| cable.carries());
        cables.find_map(|(number, cable)| Some((number, cable.way_from(port)?)))
    }

    fn stats(&self) -> Stats {
        let nhis = self.nhis.iter().enumerate().map(|(n, controller)| NhiStats {
            nhi: Nhi(n),
            host: self.topology.host_of(Nhi(n)),
            connected: controller.connected,
            counters: controller.counters,
        });
        let cables = self.cables.iter().enumerate().map(|(number, cable)| CableStats {
            cable: Cable(number),
            ends: cable.ends,
            plugged: cable.plugged,
            link: cable.state(),
            counters: cable.wires.each_ref().map(|wire| wire.counters),
        });
        Stats {
            nhis: nhis.collect(),
            cables: cables.collect(),
        }
    }
}
