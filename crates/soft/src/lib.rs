//! The soft device: the RDMA stack in user space, over shared-memory cables between the processes of one user.
#![allow(dead_code)]

#[cfg(not(loom))]
mod cable;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod memory;
mod rings;
#[cfg(not(loom))]
mod socket;
