//! What NCCL asks a GPU vendor's management library, answered for one GPU that is host memory.
//!
//! A shared library, to be found under the vendor's name: `libnvidia-ml.so.1`. The GPU itself is `crates/nccl-host`. Start at
//! [`nvml`].

pub mod nvml;
