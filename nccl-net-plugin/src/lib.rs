//! `libnccl-net-usb4.so` and `librccl-net-usb4.so`: the net plugin of NCCL and RCCL over the ring API.
//! `NCCL_NET_PLUGIN=usb4` loads it; NCCL 2.13 to 2.32 and RCCL to 2.31 find their table in one and the same object.
//!
//! It offers one device per host, which reaches every peer the ring device reaches, and memory of the host: NCCL stages
//! what is in a GPU. It offers no CollNet, no tuner and no profiler. All progress is made inside of NCCL's calls: there is
//! no thread here.
//!
//! [`abi`] has the tables, v6 to v12, which are thin: every call of every version ends in `core`, whose `mod.rs` says how
//! it hangs together. What goes over the cable is in `docs/spec/nccl.md`; the environment variables are in
//! `core/params.rs`.

pub mod abi;
mod core;

pub use abi::{
    ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10,
    ncclNetPlugin_v11, ncclNetPlugin_v12,
};
