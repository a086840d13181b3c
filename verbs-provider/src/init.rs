//! Entry: what libibverbs finds when it loads the object, and how the provider knows its device.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use rdma_core_sys::*;
use usb4_ffi::{boundary, boundary_or, log_panics};

use crate::object::Object;
use crate::{abi, context, host};

/// The provider's name.
pub(crate) const NAME: &CStr = c"usb4";

type Device = Object<verbs_device, ()>;

static OPS: verbs_device_ops = verbs_device_ops {
    name: NAME.as_ptr(),
    match_min_abi_version: abi::ABI_VERSION,
    match_max_abi_version: abi::ABI_VERSION,
    match_table: ptr::null(),
    static_providers: ptr::null(),
    match_device: Some(match_device),
    alloc_context: Some(context::alloc_context),
    import_context: None,
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
};

/// The dynamic linker calls it when the object is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    boundary_or((), || {
        log_panics();
        match host::find() {
            // SAFETY: the function takes a table that stays, which this is.
            Ok(library) => unsafe { (library.register_driver)(&raw const OPS) },
            // Nobody who has verbs: a test, or somebody who looks what the file is.
            Err(NotFound::Library) => {}
            Err(error) => complain(format_args!("{error}")),
        }
    });
}

/// Says what keeps the device from being used, where libibverbs says such things.
pub(crate) fn complain(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "libusb4-rdmav: {what}");
}

/// Whether a device of the kernel's is ours: asked for each that no other provider has claimed.
unsafe extern "C" fn match_device(device: *mut verbs_sysfs_dev) -> bool {
    boundary_or(false, || {
        // SAFETY: libibverbs gives a device it has found, whose path ends with a zero.
        let path = unsafe { CStr::from_ptr((*device).ibdev_path.as_ptr().cast::<c_char>()) };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        driver(path).is_some_and(|driver| driver == abi::DRIVER)
    })
}

/// The driver of the device at `path` in sysfs: its parent's. It stays what it is when the device is renamed.
fn driver(path: &Path) -> Option<OsString> {
    let link = std::fs::read_link(path.join("device/driver")).ok()?;
    link.file_name().map(OsStr::to_os_string)
}

unsafe extern "C" fn alloc_device(_: *mut verbs_sysfs_dev) -> *mut verbs_device {
    boundary(|| {
        let device = Device::alloc();
        // SAFETY: just made.
        unsafe { Device::verbs(device) }
    })
}

unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: libibverbs gives back what `alloc_device` has made.
    boundary(|| unsafe { Device::free(device) });
}

/// What a call returns after an internal error.
pub(crate) const PANICKED: c_int = libc::EIO;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A device `name` in a made-up sysfs, bound to `driver`.
    fn device(name: &str, driver: &str) -> Box<verbs_sysfs_dev> {
        let root = std::env::temp_dir().join(format!("usb4-match-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("device")).unwrap();
        symlink(
            format!("../../bus/platform/drivers/{driver}"),
            root.join("device/driver"),
        )
        .unwrap();
        // SAFETY: integers and pointers.
        let mut device: Box<verbs_sysfs_dev> = Box::new(unsafe { std::mem::zeroed() });
        let path = root.as_os_str().as_bytes();
        for (to, from) in device.ibdev_path.iter_mut().zip(path) {
            *to = c_char::from_ne_bytes([*from]);
        }
        device
    }

    #[test]
    fn a_device_is_known_by_its_driver_whatever_its_name() {
        for (name, driver, ours) in [
            ("usb4_0", "usb4_rdma_ib", true),
            ("rocep0s1", "usb4_rdma_ib", true),
            ("usb4_1", "mlx5_core", false),
            ("usb4_rdma_ib", "usb4_rdma", false),
        ] {
            let mut device = device(name, driver);
            // SAFETY: a device with a path that ends with a zero.
            assert_eq!(unsafe { match_device(&raw mut *device) }, ours, "{name}");
        }
    }

    #[test]
    fn a_device_without_a_driver_is_not_ours() {
        // SAFETY: integers and pointers.
        let mut device: Box<verbs_sysfs_dev> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: an empty path.
        assert!(!unsafe { match_device(&raw mut *device) });
    }

    #[test]
    fn a_new_device_is_empty_as_libibverbs_wants_it() {
        // SAFETY: the argument is not looked at; what was made is given back.
        unsafe {
            let device = alloc_device(ptr::null_mut());
            assert!((*device).device._ops.iter().all(|op| op.is_null()));
            uninit_device(device);
        }
    }
}
