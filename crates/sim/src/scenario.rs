//! One run: machines, cables, faults, traffic and a seed.

use crate::cable::CableCounters;
use crate::faults::Faults;
use crate::nic::PortCounters;
use crate::profile::Profile;
use crate::traffic::{Failure, Mix, Totals, Traffic};
use crate::world::World;
use usb4_engine::Counters;

/// Everything a run depends on.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The machines.
    pub profile: Profile,
    /// Hosts, each joined to every other.
    pub hosts: usize,
    /// Rails between each two hosts.
    pub rails: usize,
    /// What goes wrong.
    pub faults: Faults,
    /// The traffic.
    pub mix: Mix,
    /// Frames carry a CRC over their payload.
    pub payload_crc: bool,
    /// Where all chance comes from.
    pub seed: u64,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// What the traffic did.
    pub totals: Totals,
    /// All cables together: what left their first hosts.
    pub forward: CableCounters,
    /// All cables together: what left their second hosts.
    pub backward: CableCounters,
    /// All ports together.
    pub ports: PortCounters,
    /// All links, both sides, together.
    pub engine: Counters,
}

/// Seeds a test tries: `default` of them, or as many as `SIM_SEEDS` says, from `SIM_FIRST_SEED` (0) on.
///
/// # Panics
/// One of them is no number: a test that tried the wrong seeds would prove nothing.
pub fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is to be a number, not {text:?}")),
        Err(_) => default,
    };
    let first = number("SIM_FIRST_SEED", 0);
    first..first + number("SIM_SEEDS", default)
}

impl Summary {
    /// Both directions of all cables.
    pub fn cables(&self) -> CableCounters {
        let mut both = self.forward;
        both += self.backward;
        both
    }
}

impl Scenario {
    /// Two hosts with two rails, everything at once.
    pub fn new(profile: &Profile, messages: u64, faults: Faults, seed: u64) -> Self {
        Self {
            profile: profile.clone(),
            hosts: 2,
            rails: 2,
            faults,
            mix: Mix::everything(messages),
            payload_crc: false,
            seed,
        }
    }

    /// Builds the world and brings it up.
    ///
    /// # Errors
    /// It does not come up.
    pub fn world(&self) -> Result<(World, Vec<usize>), Failure> {
        let mut world = World::new(self.seed, &self.profile);
        if self.payload_crc {
            world.use_payload_crc();
        }
        let hosts: Vec<usize> = (0..self.hosts).map(|_| world.add_host()).collect();
        for (nth, &a) in hosts.iter().enumerate() {
            for &b in &hosts[nth + 1..] {
                for _ in 0..self.rails {
                    world.connect(a, b, self.faults);
                }
            }
        }
        world
            .bring_up()
            .map_err(|late| Failure(format!("rails do not come up: {late}")))?;
        Ok((world, hosts))
    }

    /// Runs it.
    ///
    /// # Errors
    /// The first promise found broken.
    pub fn run(&self) -> Result<Summary, Failure> {
        let (mut world, hosts) = self.world()?;
        let totals = Traffic::new(&mut world, &hosts, &self.mix, self.seed)?.run(&mut world)?;
        Ok(Summary {
            totals,
            ..world.summary()
        })
    }
}

impl World {
    /// What all cables, ports and links have counted, added up.
    pub fn summary(&self) -> Summary {
        let mut sum = Summary::default();
        for (port, direction) in self.directions.iter().enumerate() {
            *(if port % 2 == 0 {
                &mut sum.forward
            } else {
                &mut sum.backward
            }) += direction.counters;
        }
        for port in &self.ports {
            sum.ports += port.counters;
        }
        for home in &self.links {
            add_engine(&mut sum.engine, home.link.counters());
        }
        sum
    }
}

impl std::ops::AddAssign for CableCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            frames,
            bytes,
            acks,
            lost,
            duplicated,
            corrupted,
        } = other;
        self.frames += frames;
        self.bytes += bytes;
        self.acks += acks;
        self.lost += lost;
        self.duplicated += duplicated;
        self.corrupted += corrupted;
    }
}

impl std::ops::AddAssign for PortCounters {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.crc_errors += other.crc_errors;
        self.overruns += other.overruns;
        self.into_the_void += other.into_the_void;
        self.irqs += other.irqs;
        self.lost_irqs += other.lost_irqs;
        self.ignored_doorbells += other.ignored_doorbells;
        self.stranded += other.stranded;
        self.tx_stalls += other.tx_stalls;
    }
}

fn add_engine(sum: &mut Counters, other: &Counters) {
    sum.tx_frames += other.tx_frames;
    sum.tx_bytes += other.tx_bytes;
    sum.tx_acks += other.tx_acks;
    sum.tx_pings += other.tx_pings;
    sum.tx_resent += other.tx_resent;
    sum.tx_lost += other.tx_lost;
    sum.tx_stale += other.tx_stale;
    sum.rx_frames += other.rx_frames;
    sum.rx_bytes += other.rx_bytes;
    sum.rx_malformed += other.rx_malformed;
    sum.rx_corrupt += other.rx_corrupt;
    sum.rx_wrong_tag += other.rx_wrong_tag;
    sum.rx_duplicate += other.rx_duplicate;
    sum.rx_no_room += other.rx_no_room;
    sum.rx_chunk_duplicate += other.rx_chunk_duplicate;
    sum.rx_chunk_stale += other.rx_chunk_stale;
    sum.rx_parked += other.rx_parked;
    sum.violations += other.violations;
    sum.executed += other.executed;
    sum.completed += other.completed;
    sum.failed += other.failed;
    sum.rnr_sent += other.rnr_sent;
    sum.rnr_received += other.rnr_received;
    sum.nak_sent += other.nak_sent;
    sum.nak_received += other.nak_received;
}
