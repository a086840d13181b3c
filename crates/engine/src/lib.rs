//! Sans-IO transport engine of the USB4 RDMA protocol.
#![no_std]
#![forbid(unsafe_code)]
