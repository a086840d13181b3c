//! `libusb4-fi.so`: a native reliable-datagram libfabric provider over the ring API. `FI_PROVIDER=usb4`
//! selects it; libfabric 1.14 to 2.6 loads one and the same object.
//!
//! It offers `FI_EP_RDM` with tagged and untagged messages, multi-receive, directed receive, address vectors,
//! completion queues with wait objects, counters and memory registration. Remote memory access and atomics are
//! not offered yet; nothing else of libfabric (connected endpoints, device memory, shared contexts) is.
//!
//! Each file is named after the libfabric object it implements; `init` is where libfabric comes in. Matching,
//! eager and rendezvous live in `usb4-tagged`, of which `lanes` and `transport` are the lower side. The object links to
//! nothing of libfabric: `host` finds the functions of the one that loaded it.

mod addr;
mod attr;
mod av;
mod bounce;
mod cntr;
mod cq;
mod domain;
mod env;
mod ep;
mod eq;
mod exit;
mod fabric;
mod fork;
mod getinfo;
mod handles;
mod host;
mod init;
mod lanes;
mod lock;
mod mr;
mod msg;
mod nosys;
mod sink;
mod tagged;
mod transfer;
mod transport;
mod wait;

pub use init::fi_prov_ini;
