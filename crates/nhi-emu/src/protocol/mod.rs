//! Messages of the vfio-user protocol, version 0.0, as bytes and as values. No I/O.
//!
//! Layouts are those of `docs/interop/vfio-user.rst` in QEMU; the structures inside the messages are those of
//! `include/uapi/linux/vfio.h`. All little endian, as the hosts are.
//!
//! * `request.rs`: what a client asks, checked.
//! * `reply.rs`: what we answer.

mod reply;
mod request;

pub(crate) use reply::{Area, Replies, device_info, irq_info, region_info, version};
pub(crate) use request::{Header, HeaderError, Irqs, Request};

use rustix::io::Errno;

/// Bytes of a message header.
pub(crate) const HEADER: usize = 16;
/// Largest message taken or sent. QEMU's largest is a write of many registers: 200 entries of 24 bytes
/// (`VFIO_USER_MULTI_MAX` in `hw/vfio-user/protocol.h`).
pub(crate) const MESSAGE_MAX: usize = 8 << 10;
/// Largest transfer in one region access; the configuration space is read whole.
pub(crate) const TRANSFER_MAX: usize = 4096;
/// Most file descriptors in one message: one for each vector (and QEMU's own limit).
pub(crate) const FDS_MAX: usize = usb4_nhi_model::VECTORS;

/// Message types.
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DEVICE_RESET: u16 = 13;
    pub(crate) const REGION_WRITE_MULTI: u16 = 15;
}

/// Header flags.
pub(crate) mod flag {
    /// Low four bits: 0 for a command, 1 for a reply.
    pub(crate) const TYPE: u32 = 0xf;
    pub(crate) const REPLY: u32 = 1;
    /// The sender wants no reply.
    pub(crate) const NO_REPLY: u32 = 1 << 4;
    pub(crate) const ERROR: u32 = 1 << 5;
}

/// Region numbers (`VFIO_PCI_*_REGION_INDEX`).
pub(crate) mod region {
    pub(crate) const BAR0: u32 = 0;
    pub(crate) const BAR2: u32 = 2;
    pub(crate) const CONFIG: u32 = 7;
    pub(crate) const COUNT: u32 = 9;
}

/// Interrupt kinds (`VFIO_PCI_*_IRQ_INDEX`).
pub(crate) mod irq {
    pub(crate) const MSIX: u32 = 2;
    pub(crate) const COUNT: u32 = 5;
}

/// Why a message was refused, as the number its reply carries.
pub(crate) type Refused = Errno;
