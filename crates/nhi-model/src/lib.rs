//! USB4 host routers and the cables between them, as one state machine.
//!
//! A [`Fabric`] is everything a stock `thunderbolt` driver can see of two to four hosts: for each controller the PCI
//! configuration space, the native host interface (NHI) with its rings and interrupts, and the router with its
//! adapters; between them cables with training, rate, latency and faults. It has no thread, clock, socket or memory of
//! its own: every call is given the time, and reaches guest memory and interrupts through [`Env`]. The same seed and
//! the same calls give the same history.
//!
//! It is not a front end: `usb4-nhi-emu` puts it behind vfio-user. It is not a model of speed either, unless
//! [`Topology::rate`] and [`Topology::latency`] are set; by default frames arrive as soon as they are posted.
//!
//! # What a front end does
//!
//! * [`Fabric::connected`] when a guest attaches to a controller, [`Fabric::disconnected`] when it is gone,
//!   [`Fabric::reset`] for a function reset.
//! * Register accesses go to [`Fabric::bar0_read`], [`Fabric::bar0_write`], [`Fabric::bar2_read`],
//!   [`Fabric::bar2_write`], [`Fabric::config_read`], [`Fabric::config_write`].
//! * [`Fabric::set_vector`] says whether an MSI-X vector can be signalled now. What happens meanwhile stays pending:
//!   QEMU takes all vectors away for a moment whenever the driver allocates one more.
//! * After each batch of calls, look at [`Fabric::deadline`]; when that time has come, call [`Fabric::advance`].
//! * Pages the guest has mapped ([`MappedPage`]) are handed in by [`Fabric::poll`]: when the front end sees a change,
//!   and before it passes on any trapped access of the same controller. The driver writes base and size of a ring
//!   into such a page before it writes the (trapped) options register.
//! * [`Fabric::command`] is what a person or a test does to the fabric.
//!
//! A controller that does not exist reads as all ones and ignores writes, as does one in D3hot.
//!
//! A call does a bounded amount of work; what is left makes [`Fabric::deadline`] lie in the past. No guest can make
//! it panic, loop or read what it may not: all memory goes through [`Env`], which checks it.
//!
//! # What is modelled, and what is not
//!
//! * `pci`: one conventional function with power management (PME from D3hot) and MSI-X. No BARs, MSI or INTx.
//! * `nhi`: registers, rings, descriptors, moderated interrupts with both ways of clearing them; see
//!   `nhi/interrupts.rs` for why no clear can swallow an event. Rings above 0 in raw mode are treated as frames.
//! * `router`: router, adapter, lane, USB4 port and path spaces; router operations; sleep. No DROM, NVM, retimers, path
//!   counters, or adapters for PCIe, USB 3 and DisplayPort; nothing below the host router but other hosts.
//! * `cable`: rate, latency, loss, corruption, duplication and delay, per direction. A frame is timed with its packet
//!   headers, but crosses whole. No link-level errors, CL states or asymmetric links.
//! * `fabric`: paths, end-to-end flow control (credits are counted at once, not in packets), packets between domains,
//!   training, bonding, recovery to one lane, plug events, commands. Credits within a path are not modelled except
//!   where they run out for good ([`Topology::wedge`]).
//!
//! # Changes of the API since its first version
//!
//! * [`Fabric::resets`] tells a front end with mapped pages when to zero them.
//!
//! Where to start: [`Topology`], then [`Fabric`]; `tests/` shows two hosts driven by register writes.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::panic)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::panic
    )
)]

mod bits;
mod cable;
mod command;
mod control;
mod counters;
mod env;
mod fabric;
mod nhi;
mod pci;
mod regs;
mod rng;
mod router;
mod topology;
mod types;

pub use command::{CableFaults, Command, CommandError, Reply};
pub use control::{ControlError, ControlPacket};
pub use counters::{CableCounters, CableStats, Counters, LinkState, NhiStats, Stats};
pub use env::{Env, Event, Fate, Place};
pub use fabric::Fabric;
pub use pci::{CONFIG_SIZE, PciId};
pub use regs::{BAR0_SIZE, BAR2_SIZE, MappedPage, VECTORS};
pub use topology::{Topology, TopologyError};
pub use types::{Cable, Direction, Nanos, Nhi, Port, Ring, RingKind, Towards};
