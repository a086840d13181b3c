//! `ncclNet`: the table a plugin exports as the data symbol `ncclNetPlugin_vN`.
//!
//! | version | its newest runtime |
//! | --- | --- |
//! | v6 | NCCL 2.13 to 2.18 (8 requests per communicator); Debian's RCCL |
//! | v7 | NCCL 2.19 |
//! | v8 | NCCL 2.20 to 2.23 |
//! | v9 | NCCL 2.24 and 2.25 |
//! | v10 | NCCL 2.26 and 2.27 |
//! | v11 | NCCL 2.28 and 2.29 |
//! | v12 | NCCL 2.30 to 2.32 |
//!
//! A member declared `Option` may be NULL; every other one is called without a check.

use std::ffi::{c_char, c_int};

use crate::{
    Accept_v6, Accept_v7, Close, Connect_v6, Connect_v7, Connect_v10, Connect_v11, DeregMr, Devices,
    GetDeviceMr, GetProperties, Iflush, Init_v6, Init_v10, Init_v11, Irecv_v6, Irecv_v10, IrecvConsumed,
    Isend_v6, Isend_v9, Isend_v10, Listen_v6, Listen_v11, MakeVDevice_v9, MakeVDevice_v12, RegMr_v6,
    RegMr_v8, RegMrDmaBuf, SetNetAttr, Test, ncclNetProperties_v6_t, ncclNetProperties_v7_t,
    ncclNetProperties_v8_t, ncclNetProperties_v9_t, ncclNetProperties_v10_t, ncclNetProperties_v11_t,
    ncclNetProperties_v12_t,
};

/// Declares one version's table.
macro_rules! table {
    ($(#[$doc:meta])* $type:ident, $size:literal, { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        #[allow(missing_docs, reason = "each member is documented by its type")]
        pub struct $type {
            /// What `NCCL_NET` is compared with, without regard to case.
            pub name: *const c_char,
            $(pub $field: $kind,)*
        }
        pointers!($type, $size, [name, $($field),*]);

        // SAFETY: functions, and a name that is a constant of whoever makes the table.
        unsafe impl Sync for $type {}
    };
}

table! {
    /// `ncclNet` v6: NCCL 2.13 to 2.18 (8 requests per communicator); Debian's RCCL.
    ncclNet_v6_t, 136, {
        init: Init_v6,
        devices: Devices,
        getProperties: GetProperties<ncclNetProperties_v6_t>,
        listen: Listen_v6,
        connect: Connect_v6,
        accept: Accept_v6,
        regMr: RegMr_v6,
        regMrDmaBuf: Option<RegMrDmaBuf>,
        deregMr: DeregMr,
        isend: Isend_v6,
        irecv: Irecv_v6<c_int>,
        iflush: Iflush,
        test: Test,
        closeSend: Close,
        closeRecv: Close,
        closeListen: Close,
    }
}

table! {
    /// `ncclNet` v7: NCCL 2.19.
    ncclNet_v7_t, 152, {
        init: Init_v6,
        devices: Devices,
        getProperties: GetProperties<ncclNetProperties_v7_t>,
        listen: Listen_v6,
        connect: Connect_v7,
        accept: Accept_v7,
        regMr: RegMr_v6,
        regMrDmaBuf: Option<RegMrDmaBuf>,
        deregMr: DeregMr,
        isend: Isend_v6,
        irecv: Irecv_v6<c_int>,
        iflush: Iflush,
        test: Test,
        closeSend: Close,
        closeRecv: Close,
        closeListen: Close,
        getDeviceMr: Option<GetDeviceMr>,
        irecvConsumed: Option<IrecvConsumed>,
    }
}

table! {
    /// `ncclNet` v8: NCCL 2.20 to 2.23.
    ncclNet_v8_t, 152, {
        init: Init_v6,
        devices: Devices,
        getProperties: GetProperties<ncclNetProperties_v8_t>,
        listen: Listen_v6,
        connect: Connect_v7,
        accept: Accept_v7,
        regMr: RegMr_v8,
        regMrDmaBuf: Option<RegMrDmaBuf>,
        deregMr: DeregMr,
        isend: Isend_v6,
        irecv: Irecv_v6<c_int>,
        iflush: Iflush,
        test: Test,
        closeSend: Close,
        closeRecv: Close,
        closeListen: Close,
        getDeviceMr: Option<GetDeviceMr>,
        irecvConsumed: Option<IrecvConsumed>,
    }
}

table! {
    /// `ncclNet` v9: NCCL 2.24 and 2.25.
    ncclNet_v9_t, 160, {
        init: Init_v6,
        devices: Devices,
        getProperties: GetProperties<ncclNetProperties_v9_t>,
        listen: Listen_v6,
        connect: Connect_v7,
        accept: Accept_v7,
        regMr: RegMr_v8,
        regMrDmaBuf: Option<RegMrDmaBuf>,
        deregMr: DeregMr,
        isend: Isend_v9,
        irecv: Irecv_v6<usize>,
        iflush: Iflush,
        test: Test,
        closeSend: Close,
        closeRecv: Close,
        closeListen: Close,
        getDeviceMr: Option<GetDeviceMr>,
        irecvConsumed: Option<IrecvConsumed>,
        makeVDevice: Option<MakeVDevice_v9>,
    }
}

table! {
    /// `ncclNet` v10: NCCL 2.26 and 2.27.
    ncclNet_v10_t, 160, {
        init: Init_v10,
        devices: Devices,
        getProperties: GetProperties<ncclNetProperties_v10_t>,
        listen: Listen_v6,
        connect: Connect_v10,
        accept: Accept_v7,
        regMr: RegMr_v8,
        regMrDmaBuf: Option<RegMrDmaBuf>,
        deregMr: DeregMr,
        isend: Isend_v10,
        irecv: Irecv_v10,
        iflush: Iflush,
        test: Test,
        closeSend: Close,
        closeRecv: Close,
        closeListen: Close,
        getDeviceMr: Option<GetDeviceMr>,
        irecvConsumed: Option<IrecvConsumed>,
        makeVDevice: Option<MakeVDevice_v9>,
    }
}

table! {
    /// `ncclNet` v11: NCCL 2.28 and 2.29.
    ncclNet_v11_t, 176, {
        init: Init_v11,
        devices: Devices,
        getProperties: GetProperties<ncclNetProperties_v11_t>,
        listen: Listen_v11,
        connect: Connect_v11,
        accept: Accept_v7,
        regMr: RegMr_v8,
        regMrDmaBuf: Option<RegMrDmaBuf>,
        deregMr: DeregMr,
        isend: Isend_v10,
        irecv: Irecv_v10,
        iflush: Iflush,
        test: Test,
        closeSend: Close,
        closeRecv: Close,
        closeListen: Close,
        getDeviceMr: Option<GetDeviceMr>,
        irecvConsumed: Option<IrecvConsumed>,
        makeVDevice: Option<MakeVDevice_v9>,
        finalize: Close,
        setNetAttr: Option<SetNetAttr>,
    }
}

table! {
    /// `ncclNet` v12: NCCL 2.30 to 2.32.
    ncclNet_v12_t, 176, {
        init: Init_v11,
        devices: Devices,
        getProperties: GetProperties<ncclNetProperties_v12_t>,
        listen: Listen_v11,
        connect: Connect_v11,
        accept: Accept_v7,
        regMr: RegMr_v8,
        regMrDmaBuf: Option<RegMrDmaBuf>,
        deregMr: DeregMr,
        isend: Isend_v10,
        irecv: Irecv_v10,
        iflush: Iflush,
        test: Test,
        closeSend: Close,
        closeRecv: Close,
        closeListen: Close,
        getDeviceMr: Option<GetDeviceMr>,
        irecvConsumed: Option<IrecvConsumed>,
        makeVDevice: Option<MakeVDevice_v12>,
        finalize: Close,
        setNetAttr: Option<SetNetAttr>,
    }
}
