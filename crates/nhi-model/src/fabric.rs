//! The fabric: every controller, every cable, and the calls a front end makes.

use crate::pci::PciConfig;
use crate::{
    BAR0_SIZE, Cable, CableStats, Command, CommandError, Counters, Env, LinkState, MappedPage, Nanos, Nhi,
    NhiStats, Reply, Stats, Topology, TopologyError,
};

/// All hosts' controllers and the cables between them. See the crate's documentation for how to drive it.
#[derive(Debug)]
pub struct Fabric {
    topology: Topology,
    nhis: Vec<Controller>,
}

#[derive(Debug)]
struct Controller {
    connected: bool,
    pci: PciConfig,
    bar0: Vec<u32>,
    bar2: Vec<u32>,
    counters: Counters,
}

impl Fabric {
    /// A fabric with every cable plugged and no guest attached. Everything random comes from `seed`.
    pub fn new(topology: Topology, seed: u64) -> Result<Self, TopologyError> {
        let _ = seed;
        topology.check()?;
        let nhis = (0..topology.nhis()).map(|_| Controller::new(&topology)).collect();
        Ok(Self { topology, nhis })
    }

    /// What it is made of.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// A guest has attached to a controller: it starts from power-on state.
    pub fn connected(&mut self, nhi: Nhi, now: Nanos, env: &mut dyn Env) {
        self.reset(nhi, now, env);
        if let Some(controller) = self.nhis.get_mut(nhi.0) {
            controller.connected = true;
        }
    }

    /// The guest is gone, as when its machine is switched off: its links go down. Guest memory is not touched again.
    pub fn disconnected(&mut self, nhi: Nhi, now: Nanos, env: &mut dyn Env) {
        self.reset(nhi, now, env);
        if let Some(controller) = self.nhis.get_mut(nhi.0) {
            controller.connected = false;
        }
    }

    /// Function reset: PCI configuration, registers, router. Vectors stay as they are.
    pub fn reset(&mut self, nhi: Nhi, now: Nanos, env: &mut dyn Env) {
        let _ = (now, env);
        if let Some(controller) = self.nhis.get_mut(nhi.0) {
            let connected = controller.connected;
            *controller = Controller {
                connected,
                ..Controller::new(&self.topology)
            };
        }
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
        let _ = (now, env);
        if let Some(controller) = self.nhis.get_mut(nhi.0) {
            controller.pci.write(offset, bytes);
        }
    }

    /// Reads the doubleword of BAR0 at `offset`, which is rounded down to a multiple of 4.
    pub fn bar0_read(&mut self, nhi: Nhi, offset: u64, now: Nanos, env: &mut dyn Env) -> u32 {
        let _ = (now, env);
        word(
            self.nhis.get(nhi.0).map(|controller| &controller.bar0[..]),
            offset,
            BAR0_SIZE,
        )
    }

    /// Writes a doubleword of BAR0. Narrower accesses are no use to any driver and have no place here.
    pub fn bar0_write(&mut self, nhi: Nhi, offset: u64, value: u32, now: Nanos, env: &mut dyn Env) {
        let _ = (now, env);
        let index = usize::try_from(offset / 4).unwrap_or(usize::MAX);
        if let Some(word) = self
            .nhis
            .get_mut(nhi.0)
            .and_then(|controller| controller.bar0.get_mut(index))
        {
            *word = value;
        }
    }

    /// Reads the MSI-X table (four doublewords per vector) or the pending bits (at 0x800).
    ///
    /// The table is only stored: whether a vector can be signalled is what [`Fabric::set_vector`] says, since a
    /// vfio-user client keeps the guest's view of the table to itself.
    #[must_use]
    pub fn bar2_read(&self, nhi: Nhi, offset: u64) -> u32 {
        word(
            self.nhis.get(nhi.0).map(|controller| &controller.bar2[..]),
            offset,
            crate::BAR2_SIZE,
        )
    }

    /// Writes the MSI-X table.
    pub fn bar2_write(&mut self, nhi: Nhi, offset: u64, value: u32) {
        let index = usize::try_from(offset / 4).unwrap_or(usize::MAX);
        if let Some(word) = self
            .nhis
            .get_mut(nhi.0)
            .and_then(|controller| controller.bar2.get_mut(index))
        {
            *word = value;
        }
    }

    /// Says whether [`Env::interrupt`] can deliver this vector now. What is pending for it goes out at once.
    pub fn set_vector(&mut self, nhi: Nhi, vector: u16, open: bool, now: Nanos, env: &mut dyn Env) {
        let _ = (nhi, vector, open, now, env);
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
        let _ = (nhi, page, word, now, env);
        false
    }

    /// When [`Fabric::advance`] must be called next; it may lie in the past, and then there is work left.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Does what is due at `now`.
    pub fn advance(&mut self, now: Nanos, env: &mut dyn Env) {
        let _ = (now, env);
    }

    /// Carries out a command.
    pub fn command(
        &mut self,
        now: Nanos,
        command: Command,
        env: &mut dyn Env,
    ) -> Result<Reply, CommandError> {
        let _ = (now, command, env);
        Ok(Reply::Stats(self.stats()))
    }

    fn stats(&self) -> Stats {
        let nhis = self.nhis.iter().enumerate().map(|(i, controller)| NhiStats {
            nhi: Nhi(i),
            host: self.topology.host_of(Nhi(i)),
            connected: controller.connected,
            counters: controller.counters,
        });
        let cables = self
            .topology
            .cables
            .iter()
            .enumerate()
            .map(|(i, &ends)| CableStats {
                cable: Cable(i),
                ends,
                plugged: true,
                link: LinkState::Down,
                counters: Default::default(),
            });
        Stats {
            nhis: nhis.collect(),
            cables: cables.collect(),
        }
    }
}

impl Controller {
    fn new(topology: &Topology) -> Self {
        Self {
            connected: false,
            pci: PciConfig::new(topology.pci),
            bar0: vec![0; 0x10000],
            bar2: vec![0; 0x400],
            counters: Counters::default(),
        }
    }
}

fn word(words: Option<&[u32]>, offset: u64, size: u64) -> u32 {
    let index = if offset < size {
        usize::try_from(offset / 4).ok()
    } else {
        None
    };
    words
        .zip(index)
        .and_then(|(words, index)| words.get(index))
        .copied()
        .unwrap_or(u32::MAX)
}
