//! `fi_getinfo`, as the core calls it.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call here hands valid objects to the provider"
)]

mod common;

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard};

use common::*;
use libfabric_sys::*;

/// The tests change the process's environment.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[test]
fn without_a_device_nothing_is_offered() {
    let _alone = alone();
    unsafe { std::env::remove_var("USB4_DEVICE") };
    assert_eq!(getinfo(None).err(), Some(-FI_ENODATA));
    unsafe { std::env::set_var("USB4_DEVICE", "soft:a/b") };
    assert_eq!(
        getinfo(None).err(),
        Some(-FI_ENODATA),
        "a name that does not parse"
    );
    unsafe { std::env::set_var("USB4_DEVICE", "") };
    assert_eq!(getinfo(None).err(), Some(-FI_ENODATA));
}

#[test]
fn a_device_that_cannot_reach_the_process_is_not_offered() {
    let _alone = alone();
    for spec in ["soft:a,detached", "soft:a,detached=h"] {
        unsafe { std::env::set_var("USB4_DEVICE", spec) };
        assert_eq!(getinfo(None).err(), Some(-FI_ENODATA), "{spec}");
    }
    soft("getinfo");
    assert!(getinfo(None).is_ok());
}

#[test]
fn the_offer_names_the_device_and_starts_no_thread() {
    let _alone = alone();
    soft("getinfo");
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let info = getinfo(None).unwrap();
    assert_eq!(threads(), before);
    let name = unsafe { CStr::from_ptr((*info.domain_attr).name) }
        .to_str()
        .unwrap();
    assert_eq!(name, std::env::var("USB4_DEVICE").unwrap());
    assert!(info.next.is_null());
}

#[test]
fn hints_of_the_layers_above_and_of_mpi_get_the_right_answer() {
    let _alone = alone();
    soft("getinfo");
    for (kind, offered) in [
        (FI_EP_UNSPEC, true),
        (FI_EP_RDM, true),
        (FI_EP_MSG, false),
        (FI_EP_DGRAM, false),
    ] {
        let hints = getinfo(None).unwrap();
        unsafe { (*hints.ep_attr).type_ = kind };
        assert_eq!(getinfo(Some(hints)).is_ok(), offered, "endpoint type {kind}");
    }
    // Open MPI 4.1's: tagged, directed receive, one thread per domain, FI_MR_ALLOCATED at most.
    let hints = getinfo(None).unwrap();
    hints.caps = FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV;
    hints.mode = FI_CONTEXT | FI_CONTEXT2;
    unsafe {
        (*hints.domain_attr).threading = FI_THREAD_DOMAIN;
        (*hints.domain_attr).av_type = FI_AV_MAP;
        (*hints.domain_attr).mr_mode = FI_MR_ALLOCATED;
        (*hints.tx_attr).caps = 0;
        (*hints.rx_attr).caps = 0;
    }
    let info = getinfo(Some(hints)).unwrap();
    assert_eq!(info.caps, hints.caps | FI_SEND | FI_RECV);
    assert_eq!(info.mode, 0);
    unsafe {
        assert_eq!((*info.domain_attr).threading, FI_THREAD_DOMAIN);
        assert_eq!((*info.domain_attr).mr_mode, FI_MR_ALLOCATED);
        assert_eq!((*info.rx_attr).caps, FI_TAGGED | FI_RECV | FI_DIRECTED_RECV);
    }
    hints.caps |= FI_RMA;
    assert_eq!(
        getinfo(Some(hints)).err(),
        Some(-FI_ENODATA),
        "remote access is not offered yet"
    );
}

#[test]
fn addresses_in_hints_and_in_the_node_come_back() {
    let _alone = alone();
    soft("getinfo");
    let hints = getinfo(None).unwrap();
    let mut address = [0u8; 32];
    (address[0], address[24]) = (9, 7);
    hints.dest_addr = address.as_mut_ptr().cast();
    hints.dest_addrlen = address.len();
    let info = getinfo(Some(hints)).unwrap();
    assert_eq!(info.dest_addrlen, 32);
    assert_eq!(
        unsafe { std::slice::from_raw_parts(info.dest_addr.cast::<u8>(), 32) },
        address
    );

    let node = c"usb4://00000000000000000000000000000009:0:00000000:0000000000000007";
    let mut info = std::ptr::null_mut();
    let ask = |node: &CStr, info: &mut *mut fi_info| unsafe {
        let (hints, service) = (std::ptr::null(), std::ptr::null());
        (provider().getinfo)(fi_version(2, 5), node.as_ptr(), service, 0, hints, info)
    };
    assert_eq!(ask(node, &mut info), 0);
    let bytes = unsafe { std::slice::from_raw_parts((*info).dest_addr.cast::<u8>(), 32) };
    assert_eq!(bytes, address);
    assert_eq!(ask(c"127.0.0.1", &mut info), -FI_ENODATA);
}
