//! The ring API: RDMA over USB4 in safe Rust.
//!
//! A [`Device`] gives completion queues ([`Cq`]), endpoints ([`Endpoint`]) and memory regions
//! ([`MemoryRegion`]). Queues are shared with the device by memory: posting is a store, and while both sides
//! poll no system call is made. One [`Endpoint`] reaches every peer through address handles.
//!
//! This crate is the client side. The protocol is in `usb4-engine`, the device's side of the queues in
//! `usb4-device`, the soft device in `usb4-soft`; `kernel` speaks to the kernel module's.
//!
//! Where to start: [`Device::open_env`], then `tests/two_devices.rs`.
//!
//! ```no_run
//! use usb4_ring::{Access, Completion, Device, EndpointConfig, WorkRequest};
//!
//! # fn main() -> usb4_ring::Result<()> {
//! let device = Device::open("soft:demo")?;
//! let mut cq = device.create_cq(64)?;
//! let mut endpoint = device.create_endpoint(&EndpointConfig::default(), &cq, &cq)?;
//! let memory = device.alloc(4096, Access::LOCAL)?;
//! let to_myself = endpoint.address_handle(&endpoint.address())?;
//! endpoint.post_recv(1, memory.buffer(0, 64)?)?;
//! endpoint.post(&WorkRequest::send(to_myself, memory.buffer(64, 64)?).user_data(2))?;
//! endpoint.submit()?;
//! let mut done = [Completion::default(); 2];
//! let mut seen = 0;
//! while seen < 2 {
//!     device.progress();
//!     seen += cq.poll(&mut done[seen..]);
//! }
//! # Ok(())
//! # }
//! ```

mod admission;
mod backend;
mod completion;
mod cq;
mod device;
mod endpoint;
mod error;
mod kernel;
mod memory;
pub mod raw;
mod spec;
mod work;

pub use admission::{Cable, CableState, ParseRouterIdError, Policy, Refusal, RouterId, Rule, Rules};
pub use completion::{Completion, Op, SourceId, Status};
pub use cq::Cq;
pub use device::{Backend, Device, DeviceInfo, PeerInfo, PeerState};
pub use endpoint::{Endpoint, EndpointConfig, EndpointKind};
pub use error::{Error, Result};
pub use memory::{Access, MemoryRegion, Registration};
pub use spec::{DEVICE_VARIABLE, KERNEL_DEVICE, SoftKind, Spec};
pub use usb4_ring_abi::{Rqe, Sqe};
pub use usb4_soft::{DeviceError, Error as SoftError, Object, Reach};
pub use usb4_wire::{EP_ADDR_LEN, EpAddr, NodeId};
pub use work::{AddressHandle, Buffer, MAX_PREFIX, Remote, WorkRequest};
