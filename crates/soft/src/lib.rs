//! The soft device: the RDMA stack in user space, over shared-memory cables between the processes of one user.
#![allow(dead_code)]

mod cable;
mod memory;
