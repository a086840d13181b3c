//! The tables.

#![allow(non_upper_case_globals, reason = "the names NCCL looks for")]

use std::ffi::c_char;

use nccl_net_sys::{
    ncclNet_v6_t, ncclNet_v7_t, ncclNet_v8_t, ncclNet_v9_t, ncclNet_v10_t, ncclNet_v11_t, ncclNet_v12_t,
};

use super::{data, properties, setup};

/// What `NCCL_NET` selects it by.
const NAME: *const c_char = c"USB4".as_ptr();

/// For NCCL 2.13 to 2.18, Debian's RCCL.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v6: ncclNet_v6_t = ncclNet_v6_t {
    name: NAME,
    init: setup::init_v6,
    devices: setup::devices,
    getProperties: properties::v6,
    listen: setup::listen_v6,
    connect: setup::connect_v6,
    accept: setup::accept_v6,
    regMr: setup::reg_mr_v6,
    regMrDmaBuf: None,
    deregMr: setup::dereg_mr,
    isend: data::isend_v6,
    irecv: data::irecv_v6,
    iflush: data::iflush,
    test: data::test,
    closeSend: setup::close,
    closeRecv: setup::close,
    closeListen: setup::close_listen,
};

/// For NCCL 2.19.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v7: ncclNet_v7_t = ncclNet_v7_t {
    name: NAME,
    init: setup::init_v6,
    devices: setup::devices,
    getProperties: properties::v7,
    listen: setup::listen_v6,
    connect: setup::connect_v7,
    accept: setup::accept_v7,
    regMr: setup::reg_mr_v6,
    regMrDmaBuf: None,
    deregMr: setup::dereg_mr,
    isend: data::isend_v6,
    irecv: data::irecv_v6,
    iflush: data::iflush,
    test: data::test,
    closeSend: setup::close,
    closeRecv: setup::close,
    closeListen: setup::close_listen,
    getDeviceMr: None,
    irecvConsumed: None,
};

/// For NCCL 2.20 to 2.23.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v8: ncclNet_v8_t = ncclNet_v8_t {
    name: NAME,
    init: setup::init_v6,
    devices: setup::devices,
    getProperties: properties::v8,
    listen: setup::listen_v6,
    connect: setup::connect_v7,
    accept: setup::accept_v7,
    regMr: setup::reg_mr_v8,
    regMrDmaBuf: None,
    deregMr: setup::dereg_mr,
    isend: data::isend_v6,
    irecv: data::irecv_v6,
    iflush: data::iflush,
    test: data::test,
    closeSend: setup::close,
    closeRecv: setup::close,
    closeListen: setup::close_listen,
    getDeviceMr: None,
    irecvConsumed: None,
};

/// For NCCL 2.24 and 2.25.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v9: ncclNet_v9_t = ncclNet_v9_t {
    name: NAME,
    init: setup::init_v6,
    devices: setup::devices,
    getProperties: properties::v9,
    listen: setup::listen_v6,
    connect: setup::connect_v7,
    accept: setup::accept_v7,
    regMr: setup::reg_mr_v8,
    regMrDmaBuf: None,
    deregMr: setup::dereg_mr,
    isend: data::isend_v9,
    irecv: data::irecv_v9,
    iflush: data::iflush,
    test: data::test,
    closeSend: setup::close,
    closeRecv: setup::close,
    closeListen: setup::close_listen,
    getDeviceMr: None,
    irecvConsumed: None,
    makeVDevice: None,
};

/// For NCCL 2.26 and 2.27.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v10: ncclNet_v10_t = ncclNet_v10_t {
    name: NAME,
    init: setup::init_v10,
    devices: setup::devices,
    getProperties: properties::v9,
    listen: setup::listen_v6,
    connect: setup::connect_v10,
    accept: setup::accept_v7,
    regMr: setup::reg_mr_v8,
    regMrDmaBuf: None,
    deregMr: setup::dereg_mr,
    isend: data::isend_v10,
    irecv: data::irecv_v10,
    iflush: data::iflush,
    test: data::test,
    closeSend: setup::close,
    closeRecv: setup::close,
    closeListen: setup::close_listen,
    getDeviceMr: None,
    irecvConsumed: None,
    makeVDevice: None,
};

/// For NCCL 2.28 and 2.29.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v11: ncclNet_v11_t = ncclNet_v11_t {
    name: NAME,
    init: setup::init_v11,
    devices: setup::devices,
    getProperties: properties::v11,
    listen: setup::listen_v11,
    connect: setup::connect_v11,
    accept: setup::accept_v7,
    regMr: setup::reg_mr_v8,
    regMrDmaBuf: None,
    deregMr: setup::dereg_mr,
    isend: data::isend_v10,
    irecv: data::irecv_v10,
    iflush: data::iflush,
    test: data::test,
    closeSend: setup::close,
    closeRecv: setup::close,
    closeListen: setup::close_listen,
    getDeviceMr: None,
    irecvConsumed: None,
    makeVDevice: None,
    finalize: setup::finalize,
    setNetAttr: None,
};

/// For NCCL 2.30 to 2.32.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v12: ncclNet_v12_t = ncclNet_v12_t {
    name: NAME,
    init: setup::init_v11,
    devices: setup::devices,
    getProperties: properties::v12,
    listen: setup::listen_v11,
    connect: setup::connect_v11,
    accept: setup::accept_v7,
    regMr: setup::reg_mr_v8,
    regMrDmaBuf: None,
    deregMr: setup::dereg_mr,
    isend: data::isend_v10,
    irecv: data::irecv_v10,
    iflush: data::iflush,
    test: data::test,
    closeSend: setup::close,
    closeRecv: setup::close,
    closeListen: setup::close_listen,
    getDeviceMr: None,
    irecvConsumed: None,
    makeVDevice: None,
    finalize: setup::finalize,
    setNetAttr: None,
};
