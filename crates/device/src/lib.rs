//! The device: everything between a client's queues and the engine's links.
//!
//! [`Device`] holds clients and their quotas, endpoints, completion queues, memory regions, address handles and
//! the table of links. It takes entries off queues that clients may rewrite at any moment, validates a private
//! copy of each, and turns them into engine work; it answers the engine's [`usb4_engine::Host`] questions; and
//! [`Device::turn`] moves payload between frames and registered memory, without holding a link's lock where it is
//! more than a kibibyte.
//!
//! Endpoints are of the ring interface or queue pairs, with the states and rules of verbs ([`Device::create_qp`]).
//!
//! It is not a driver: rails, rings, frame buffers, mappings and threads are the [`Home`]'s, be it a process
//! (`usb4-soft`) or the kernel. It allocates nothing; tables and queues come as slabs and mappings.
//!
//! # Locks
//!
//! submission queue of an endpoint -> link -> receive queue of an endpoint -> completion queue; the others
//! (clients, sources, regions' free list, attention list) are leaves. Memory regions are reached without a lock.
//!
//! Where to start: [`Home`] and [`Port`] (what to implement), [`Device::submit`] and [`Device::turn`] (what
//! to call), [`Owner`] (who calls).
#![no_std]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used
)]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::panic,
        clippy::unwrap_used
    )
)]

#[cfg(any(test, feature = "alloc"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod ah;
mod attention;
mod client;
mod config;
mod cq;
mod device;
mod endpoint;
mod error;
mod grace;
mod habit;
mod home;
mod host;
mod id;
mod invalidate;
mod links;
mod lists;
mod lists_use;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory;
mod objects;
mod owner;
mod pump;
mod qp;
mod qp_receive;
mod qp_send;
mod region;
mod source;
mod srq;
mod submit;
mod sync;

pub use ah::AhSlot;
pub use client::ClientSlot;
pub use config::{
    Access, CqConfig, DeviceConfig, EndpointConfig, EndpointKind, EndpointState, Keys, Quota, RegionConfig,
    User,
};
pub use cq::{CqSlot, OpSlot};
pub use device::{Device, DeviceStorage};
pub use endpoint::EndpointSlot;
pub use error::{DeviceError, Object};
pub use grace::Grace;
pub use habit::{Habit, Left};
pub use home::{Home, Port, QueueWords};
pub use id::{ClientId, CqId, EndpointId, LinkId};
pub use links::{LinkHeld, LinkSlot};
pub use lists::{ListWord, ListsSlot, list_words};
pub use lock::{Lock, LockGuard, RawLock, SpinLock};
pub use memory::RegionSlot;
pub use owner::{Expired, Leave, Notified, Owner};
pub use pump::{Arrivals, Scratch, Serviced};
pub use qp::{QpAttr, QpConfig, QpEvent, QpInfo, QpKind, QpState};
pub use source::SourceSlot;
pub use srq::SrqConfig;
pub use submit::Submitted;
