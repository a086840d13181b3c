//! Sans-IO transport engine of the USB4 RDMA protocol.
//!
//! It takes frames, posted work and the time, and yields frames, copy plans and completions. It owns no thread,
//! clock, socket or allocator: state lives in slabs handed over at creation, so that the same code runs in the
//! kernel, in user space, in the simulator and under a fuzzer. It does not touch payload: it says which bytes go
//! where, and its home moves them without the link's lock.
//!
//! Where to start: [`Link`], the session with one peer; [`Host`], what a link asks of its surroundings; the rail
//! state machine, which brings a rail up before it is attached to a link. Frame formats are in `usb4-wire`;
//! endpoints, memory regions and queues are in `usb4-device`.
#![no_std]
#![forbid(unsafe_code)]
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
        clippy::cast_possible_truncation,
        clippy::panic
    )
)]

#[cfg(any(test, feature = "alloc"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod ack;
mod ahead;
mod bringup;
mod config;
mod counters;
mod errors;
mod frame;
mod frame_check;
mod joins;
mod link;
mod list;
mod op;
mod park;
mod plan;
mod rail;
mod recovery;
mod rtt;
mod rx_flow;
mod slab;
mod slot;
mod staged;
mod storage;
mod stream;
mod token;
mod tx_flow;
mod types;

pub use bringup::{Action, DownReason, LocalInfo, PeerInfo, RailFsm, RailState};
pub use config::{LinkConfig, MAX_RAILS, PEER_PARKS, RailConfig};
pub use counters::Counters;
pub use errors::{AttachError, OpenError, PostError};
pub use frame_check::payload_span;
pub use joins::{JoinOrder, Joins, Place};
pub use link::{Link, Usage};
pub use rail::{InFlight, RailStatus};
pub use slab::Slab;
pub use staged::{Fate, HEAD_MAX, MAX_CHUNKS, MAX_SEGS, Post, Seg, Source, Staged};
pub use storage::LinkStorage;
pub use types::{
    Admission, FlowId, Host, Limits, MemAt, MemRef, Nanos, Operation, Plan, RailId, Receive, ReceiveDone,
    RemoteAccess, RxToken, Status, Target, TxSlot, Work, WorkDone,
};
pub use usb4_wire::{EpAddr, NakCode, NodeId};

/// Elements of the slabs a link lives in; opaque. For homes that lend the memory, as the kernel does.
pub mod elements {
    pub use crate::joins::{JoinLink, JoinRail};
    pub use crate::op::Op;
    pub use crate::park::Parked;
    pub use crate::plan::PlanEntry;
    pub use crate::rail::Rail;
    pub use crate::rx_flow::RxFlow;
    pub use crate::slot::Slot;
    pub use crate::stream::Stream;
    pub use crate::token::Token;
    pub use crate::tx_flow::TxFlow;
}
