//! Hosts in virtual time over seeded, faulty cables: the transport's deterministic simulator, and its main test tool.
//!
//! It runs the real engine: every host has its own [`usb4_engine::RailFsm`]s and [`usb4_engine::Link`]s, and frames of
//! real bytes travel from TX slots over cables into RX rings, so that corruption shows. Everything random comes from one
//! seed: the same seed and the same calls give the same history, event for event.
//!
//! It is not a model of the hardware's speed. [`Profile`]s give rate, latency, ring size and interrupt moderation as they
//! were measured, and [`Costs`] charges each link's thread for frames, messages and copies; that makes curves
//! comparable from one commit to the next, not figures to print beside a machine's.
//!
//! What is modelled, and where to find it:
//!
//! * `cable`: rate, latency, loss, bursts, duplication, bit flips, stalls; a rail never reorders. Control messages
//!   travel beside the rails and are lost, repeated and reordered;
//! * `wires`, `nic`: TX rings with completions, RX rings with descriptors, moderated and lost interrupts, ignored
//!   doorbells, stranded completions, stalled rings; a frame into a path that is not there wedges the sender's ring;
//! * `home`: the thread that drives a link as device and kernel module do, with copies that may take their time;
//! * `bringup`, `join`: the home's side of rails that come up, go down and join a link;
//! * `host`, `memory`: endpoints, receive queues, memory whose references are checked at each use.
//!
//! Broken rules are collected ([`World::violations`]), and whatever is held without a reason is listed
//! ([`World::leaks`]).
//!
//! Where to start: `tests/first_message.rs`, then [`World`] and [`Line`] for a test of one situation, [`Scenario`] and
//! [`Mix`] for random traffic under an oracle, [`recovery`] and [`stream`] for measurements. The binary `usb4-sim` runs
//! busy and sparse traffic over each profile. `SIM_SEEDS=1000 cargo test -p usb4-sim` tries more seeds than usual, and
//! `UPDATE_SNAPSHOTS=1` accepts changed curves under `snapshots/`.
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
