//! The plugin, whatever the version of the table it is called through.
//!
//! `world` is what the process has; a `hub` in it is an endpoint with everything that is multiplexed over it. Connections
//! are made in `listen` and `connect`; `send` and `recv` decide what may go where; `progress` takes what comes. `wire` is
//! what goes over the cable: see `docs/spec/nccl.md`.

mod calls;
mod comm;
mod connect;
mod device;
mod fault;
mod handle;
mod hub;
mod id;
mod listen;
mod log;
mod memory;
mod params;
mod peers;
mod port;
mod progress;
mod recv;
mod request;
mod send;
mod table;
mod transfer;
mod wire;
mod world;

pub(crate) use calls::{
    Buffer, accept, close, close_listen, connect, dereg_mr, irecv, isend, listen, reg_mr, test,
};
pub(crate) use device::Facts;
pub(crate) use fault::Fault;
pub(crate) use handle::Raw;
pub(crate) use world::World;
