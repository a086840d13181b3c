//! `ncclNetProperties`: what a device is.

use std::ffi::{c_char, c_int};

/// Declares one version's properties.
macro_rules! properties {
    ($(#[$doc:meta])* $type:ident, $size:literal, { $($(#[$field_doc:meta])* $field:ident: $kind:ty = $offset:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $type {
            /// Its name, for the log.
            pub name: *mut c_char,
            /// Its place in `/sys`, NULL if it has none.
            pub pciPath: *mut c_char,
            /// Tells one device from another, whichever host sees it.
            pub guid: u64,
            /// `NCCL_PTR_*`: what memory it reaches.
            pub ptrSupport: c_int,
            $($(#[$field_doc])* pub $field: $kind,)*
        }
        layout!($type, $size, { name @ 0, pciPath @ 8, guid @ 16, ptrSupport @ 24, $($field @ $offset),* });
    };
}

properties! {
    /// Properties in v6. The same as in v5.
    ncclNetProperties_v6_t, 48, {
        /// Mb/s.
        speed: c_int = 28,
        /// Port number.
        port: c_int = 32,
        /// Microseconds.
        latency: f32 = 36,
        /// Most connections.
        maxComms: c_int = 40,
        /// Most buffers of a grouped receive.
        maxRecvs: c_int = 44,
    }
}

properties! {
    /// Properties in v7.
    ncclNetProperties_v7_t, 56, {
        /// Mb/s.
        speed: c_int = 28,
        /// Port number.
        port: c_int = 32,
        /// Microseconds.
        latency: f32 = 36,
        /// Most connections.
        maxComms: c_int = 40,
        /// Most buffers of a grouped receive.
        maxRecvs: c_int = 44,
        /// [`crate::NCCL_NET_DEVICE_HOST`] unless the GPU drives it.
        netDeviceType: c_int = 48,
        /// Version of that.
        netDeviceVersion: c_int = 52,
    }
}

properties! {
    /// Properties in v8.
    ncclNetProperties_v8_t, 64, {
        /// Whether memory registered for one communicator serves all.
        regIsGlobal: c_int = 28,
        /// Mb/s.
        speed: c_int = 32,
        /// Port number.
        port: c_int = 36,
        /// Microseconds.
        latency: f32 = 40,
        /// Most connections.
        maxComms: c_int = 44,
        /// Most buffers of a grouped receive.
        maxRecvs: c_int = 48,
        /// [`crate::NCCL_NET_DEVICE_HOST`] unless the GPU drives it.
        netDeviceType: c_int = 52,
        /// Version of that.
        netDeviceVersion: c_int = 56,
    }
}

/// The devices a virtual one is made of (v9 to v11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ncclNetVDeviceProps_v9_t {
    /// How many.
    pub ndevs: c_int,
    /// Which.
    pub devs: [c_int; 4],
}
layout!(ncclNetVDeviceProps_v9_t, 20, { ndevs @ 0, devs @ 4 });

/// The devices a virtual one is made of (v12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ncclNetVDeviceProps_v12_t {
    /// How many.
    pub ndevs: c_int,
    /// Which.
    pub devs: [c_int; 8],
}
layout!(ncclNetVDeviceProps_v12_t, 36, { ndevs @ 0, devs @ 4 });

properties! {
    /// Properties in v9.
    ncclNetProperties_v9_t, 104, {
        /// Whether memory registered for one communicator serves all.
        regIsGlobal: c_int = 28,
        /// Whether received data must be flushed.
        forceFlush: c_int = 32,
        /// Mb/s.
        speed: c_int = 36,
        /// Port number.
        port: c_int = 40,
        /// Microseconds.
        latency: f32 = 44,
        /// Most connections.
        maxComms: c_int = 48,
        /// Most buffers of a grouped receive.
        maxRecvs: c_int = 52,
        /// [`crate::NCCL_NET_DEVICE_HOST`] unless the GPU drives it.
        netDeviceType: c_int = 56,
        /// Version of that.
        netDeviceVersion: c_int = 60,
        /// What it is made of.
        vProps: ncclNetVDeviceProps_v9_t = 64,
        /// Longest message of point-to-point operations: not 0, at most [`crate::NCCL_MAX_NET_SIZE_BYTES`].
        maxP2pBytes: usize = 88,
        /// Longest message of collectives: the same.
        maxCollBytes: usize = 96,
    }
}

/// Properties in v10: as in v9.
pub type ncclNetProperties_v10_t = ncclNetProperties_v9_t;

properties! {
    /// Properties in v11.
    ncclNetProperties_v11_t, 112, {
        /// Whether memory registered for one communicator serves all.
        regIsGlobal: c_int = 28,
        /// Whether received data must be flushed.
        forceFlush: c_int = 32,
        /// Mb/s.
        speed: c_int = 36,
        /// Port number.
        port: c_int = 40,
        /// Microseconds.
        latency: f32 = 44,
        /// Most connections.
        maxComms: c_int = 48,
        /// Most buffers of a grouped receive.
        maxRecvs: c_int = 52,
        /// [`crate::NCCL_NET_DEVICE_HOST`] unless the GPU drives it.
        netDeviceType: c_int = 56,
        /// Version of that.
        netDeviceVersion: c_int = 60,
        /// What it is made of.
        vProps: ncclNetVDeviceProps_v9_t = 64,
        /// Longest message of point-to-point operations: not 0, at most [`crate::NCCL_MAX_NET_SIZE_BYTES`].
        maxP2pBytes: usize = 88,
        /// Longest message of collectives: the same.
        maxCollBytes: usize = 96,
        /// Most requests of one that is made of several.
        maxMultiRequestSize: c_int = 104,
    }
}

properties! {
    /// Properties in v12.
    ncclNetProperties_v12_t, 128, {
        /// Whether memory registered for one communicator serves all.
        regIsGlobal: c_int = 28,
        /// Whether received data must be flushed.
        forceFlush: c_int = 32,
        /// Mb/s.
        speed: c_int = 36,
        /// Port number.
        port: c_int = 40,
        /// Microseconds.
        latency: f32 = 44,
        /// Most connections.
        maxComms: c_int = 48,
        /// Most buffers of a grouped receive.
        maxRecvs: c_int = 52,
        /// [`crate::NCCL_NET_DEVICE_HOST`] unless the GPU drives it.
        netDeviceType: c_int = 56,
        /// Version of that.
        netDeviceVersion: c_int = 60,
        /// What it is made of.
        vProps: ncclNetVDeviceProps_v12_t = 64,
        /// Longest message of point-to-point operations: not 0, at most [`crate::NCCL_MAX_NET_SIZE_BYTES`].
        maxP2pBytes: usize = 104,
        /// Longest message of collectives: the same.
        maxCollBytes: usize = 112,
        /// Most requests of one that is made of several.
        maxMultiRequestSize: c_int = 120,
        /// Rail of a rail-optimised fabric, or [`crate::NCCL_NET_ID_UNDEF`].
        railId: i16 = 124,
        /// Plane of a multi-plane fabric, or [`crate::NCCL_NET_ID_UNDEF`].
        planeId: i16 = 126,
    }
}
