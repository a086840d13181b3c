//! Hosts in virtual time over seeded, faulty cables: the transport's deterministic simulator.
#![forbid(unsafe_code)]

mod apps;
mod bringup;
mod cable;
mod events;
mod faults;
mod home;
mod host;
mod join;
mod line;
mod measure;
mod memory;
mod nic;
mod profile;
mod queue;
mod rng;
mod scenario;
mod snapshot;
mod traffic;
mod wires;
mod world;

pub use apps::{Buf, Flow};
pub use cable::CableCounters;
pub use faults::Faults;
pub use host::{Endpoint, Received, SimHost};
pub use line::Line;
pub use measure::{Lost, percentile, recovery, stream};
pub use memory::{Access, Region};
pub use nic::PortCounters;
pub use profile::{Costs, MS, Profile, RailSpec, SEC, US};
pub use rng::{Rng, mix};
pub use scenario::{Scenario, Summary, seeds};
pub use snapshot::check as check_snapshot;
pub use traffic::{Failure, Kind, Mix, Sizes, Totals, Traffic};
pub use usb4_engine::Nanos;
pub use world::{CableId, HostId, LinkId, TooLate, World};
