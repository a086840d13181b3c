//! Runs a stock NCCL on a machine without a GPU, so that a net plugin is driven by NVIDIA's own proxy threads.
//!
//! It loads `libnccl.so.2` as the wheels ship it and replaces the CUDA functions that are linked into it by functions
//! on host memory (`cuda`, over `runtime`); kernels run on host threads (`kernel`), as far as they move data between
//! buffers and connections. Everything between the API and the network is NCCL's own.
//!
//! It is not a CUDA emulator: there is one GPU per process, nothing of a program's own runs on it, and the kernels are
//! those of point-to-point messages and of the ring algorithms with sums. What is missing says so and ends the process.
//!
//! Start at [`Nccl::load`]; `src/bin/rank` is one rank of a job, `cargo xtask nccl` starts several.

pub mod api;
mod cuda;
mod kernel;
mod library;
mod patch;
pub mod runtime;
mod symbols;

pub use api::{Communicator, Failure, Nccl, UniqueId};
pub use kernel::take_busy_time;
