//! Formats of the USB4 RDMA wire protocol.
#![no_std]
#![forbid(unsafe_code)]
