//! What `libibverbs/driver.h` has, which no package installs. What is here was the same from rdma-core 36 to 65.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::AtomicI32;

use libc::{dev_t, timespec};

use crate::{IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX, ibv_context, ibv_cq_ex, ibv_device, ibv_mr, ibv_qp_ex};

/// Two pointers of a list (`ccan/list.h`).
#[repr(C)]
pub struct list_node {
    /// The one after.
    pub next: *mut list_node,
    /// The one before.
    pub prev: *mut list_node,
}

/// A device found in sysfs.
#[repr(C)]
pub struct verbs_sysfs_dev {
    /// The library's.
    pub entry: list_node,
    /// The provider's.
    pub provider_data: *mut c_void,
    /// The entry of the match table that fits, or null.
    pub r#match: *const verbs_match_ent,
    /// The library's.
    pub flags: u32,
    /// Name of the uverbs device.
    pub sysfs_name: [c_char; IBV_SYSFS_NAME_MAX],
    /// The uverbs device.
    pub sysfs_cdev: dev_t,
    /// Name of the kernel's device.
    pub ibdev_name: [c_char; IBV_SYSFS_NAME_MAX],
    /// Path of the kernel's device.
    pub ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
    /// The library's.
    pub modalias: [c_char; 512],
    /// Its GUID, if it was asked for.
    pub node_guid: u64,
    /// The kernel's `rdma_driver_id`.
    pub driver_id: u32,
    /// `ibv_node_type`.
    pub node_type: c_int,
    /// The kernel's number, or -1.
    pub ibdev_idx: c_int,
    /// Ports.
    pub num_ports: u32,
    /// `uverbs_abi_ver` of the kernel's driver.
    pub abi_ver: u32,
    /// When the device was made.
    pub time_created: timespec,
}

/// `verbs_match_ent.kind`: the end of a table.
pub const VERBS_MATCH_SENTINEL: u8 = 0;

/// Which devices a provider is for.
#[repr(C)]
pub struct verbs_match_ent {
    /// The provider's.
    pub driver_data: *mut c_void,
    /// A pattern of modaliases, or a driver's number.
    pub u: u64,
    /// Of PCI.
    pub vendor: u16,
    /// Of PCI.
    pub device: u16,
    /// [`VERBS_MATCH_SENTINEL`] and so on.
    pub kind: u8,
}

/// Only pointed to here: its size depends on the [`crate::Layout`], which knows where its last field begins.
#[repr(C)]
pub struct verbs_context {
    _opaque: [u8; 0],
}

/// Only pointed to here.
#[repr(C)]
pub struct ibv_command_buffer {
    _opaque: [u8; 0],
}

/// Only pointed to here.
#[repr(C)]
pub struct ibv_fd_arr {
    _opaque: [u8; 0],
}

/// A provider.
#[repr(C)]
pub struct verbs_device_ops {
    /// Its name.
    pub name: *const c_char,
    /// Least `uverbs_abi_ver` it speaks.
    pub match_min_abi_version: u32,
    /// Greatest `uverbs_abi_ver` it speaks.
    pub match_max_abi_version: u32,
    /// Which devices it is for, or null.
    pub match_table: *const verbs_match_ent,
    /// Of static linking.
    pub static_providers: *const *const verbs_device_ops,
    /// Whether it is for this one; asked whatever the table says.
    pub match_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> bool>,
    /// Opens a device; the descriptor is given away.
    pub alloc_context:
        Option<unsafe extern "C" fn(*mut ibv_device, c_int, *mut c_void) -> *mut verbs_context>,
    /// Opens a device that another process has opened.
    pub import_context: Option<unsafe extern "C" fn(*mut ibv_device, c_int) -> *mut verbs_context>,
    /// Makes a device.
    pub alloc_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> *mut verbs_device>,
    /// Frees it.
    pub uninit_device: Option<unsafe extern "C" fn(*mut verbs_device)>,
}

// SAFETY: tables of constants, which nobody writes to.
unsafe impl Sync for verbs_device_ops {}

/// A device with its provider.
#[repr(C)]
pub struct verbs_device {
    /// What applications see.
    pub device: ibv_device,
    /// Its provider.
    pub ops: *const verbs_device_ops,
    /// The library's.
    pub refcount: AtomicI32,
    /// The library's.
    pub entry: list_node,
    /// What was found.
    pub sysfs: *mut verbs_sysfs_dev,
    /// What uverbs can do.
    pub core_support: u64,
}

/// A memory region with what the library keeps of it.
#[repr(C)]
pub struct verbs_mr {
    /// What applications see.
    pub ibv_mr: ibv_mr,
    /// `ibv_mr_type`.
    pub mr_type: c_int,
    /// Rights.
    pub access: c_int,
}

/// `verbs_qp.comp_mask`: it is an [`ibv_qp_ex`].
pub const VERBS_QP_EX: u32 = 2;

/// A queue pair with what the library keeps of it: room for any release's, in which `comp_mask` is at one of
/// [`crate::QP_COMP_MASK`].
#[repr(C)]
pub struct verbs_qp {
    /// What applications see.
    pub qp_ex: ibv_qp_ex,
    /// Flags, since rdma-core 45.
    pub comp_mask: u32,
    /// Of XRC.
    pub xrcd: *mut c_void,
}

/// A completion queue as the library knows it.
#[repr(C)]
pub struct verbs_cq {
    /// What applications see.
    pub cq_ex: ibv_cq_ex,
}

/// `verbs_register_driver_NN`.
pub type verbs_register_driver_fn = unsafe extern "C" fn(*const verbs_device_ops);
/// The [`ibv_context`] at the end of a `verbs_context`, which is what operations are called with.
///
/// # Safety
/// `context` is the `verbs_context` of a library of this `layout`.
pub unsafe fn context_of(context: *mut verbs_context, layout: crate::Layout) -> *mut ibv_context {
    // SAFETY: it is that long, by the caller's promise.
    unsafe { context.byte_add(layout.context_front()).cast() }
}
