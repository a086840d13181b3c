//! The built object in the libibverbs of this machine: loaded by it, found fit for a device of a made-up sysfs, and opened as
//! far as a device that is none can be.
//!
//! `RDMA_CORE_ROOTS` names other systems' libraries, unpacked, with `:` between the folders: the object is loaded into their
//! libibverbs as well (`cargo xtask rdma-core`).

mod common;

use common::{Stage, Verbs, everywhere};

#[test]
fn libibverbs_loads_the_object_and_opens_the_device_with_it() {
    everywhere("load", |text| {
        assert!(text.contains("devices: renamed0"), "{text}");
        // Past the comparison of structures with libibverbs's own; a device that answers nothing gives no descriptor.
        let expected = format!("open: {}", std::io::Error::from_raw_os_error(libc::EPROTO));
        assert!(text.contains(&expected), "{text}");
    });
}

#[test]
fn libibverbs_does_not_give_it_devices_of_other_drivers() {
    let stage = Stage::new("theirs", "another_driver");
    let Some(text) = stage.run(None) else { return };
    assert!(text.contains("devices: none"), "{text}");
}

/// Not a test by itself: it runs in the namespace of one.
#[test]
#[ignore = "runs in the namespace that another test makes"]
fn child() {
    let Some(verbs) = Verbs::load() else { return };
    let Some(device) = verbs.device() else { return };
    match verbs.open(device) {
        Ok(_) => panic!("/dev/null is no device"),
        Err(error) => println!("open: {error}"),
    }
}
