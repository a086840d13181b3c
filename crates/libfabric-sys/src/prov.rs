//! What a provider is to the core (`rdma/providers/fi_prov.h`, `fi_log.h`).

use core::ffi::{c_char, c_int, c_void};

use crate::{fi_context, fi_fabric_attr, fi_info, fid_fabric};

/// A provider. The core writes to `context`, so it lives in mutable memory for the whole process.
#[repr(C)]
pub struct fi_provider {
    /// Version of the provider.
    pub version: u32,
    /// Interface version it serves.
    pub fi_version: u32,
    /// The core's own.
    pub context: fi_context,
    /// Name.
    pub name: *const c_char,
    /// Offers what matches the hints.
    pub getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const fi_info,
        *mut *mut fi_info,
    ) -> c_int,
    /// Opens a fabric.
    pub fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    /// Runs when the library goes.
    pub cleanup: unsafe extern "C" fn(),
}

/// `fi_param_type`: text.
pub const FI_PARAM_STRING: c_int = 0;
/// `fi_param_type`: `int`.
pub const FI_PARAM_INT: c_int = 1;
/// `fi_param_type`: `int` that holds 0 or 1.
pub const FI_PARAM_BOOL: c_int = 2;
/// `fi_param_type`: `size_t`.
pub const FI_PARAM_SIZE_T: c_int = 3;

/// `fi_log_level`: something is wrong.
pub const FI_LOG_WARN: c_int = 0;
/// `fi_log_level`: trace.
pub const FI_LOG_TRACE: c_int = 1;
/// `fi_log_level`: information.
pub const FI_LOG_INFO: c_int = 2;
/// `fi_log_level`: debug.
pub const FI_LOG_DEBUG: c_int = 3;
/// `fi_log_subsys`: core.
pub const FI_LOG_CORE: c_int = 0;

/// `fi_version()` of the host library.
pub type fi_version_fn = unsafe extern "C" fn() -> u32;
/// `fi_log_enabled()` of the host library.
pub type fi_log_enabled_fn = unsafe extern "C" fn(*const fi_provider, c_int, c_int) -> c_int;
/// `fi_log()` of the host library.
pub type fi_log_fn =
    unsafe extern "C" fn(*const fi_provider, c_int, c_int, *const c_char, c_int, *const c_char, ...);
/// `fi_param_define()` of the host library.
pub type fi_param_define_fn =
    unsafe extern "C" fn(*const fi_provider, *const c_char, c_int, *const c_char, ...) -> c_int;
/// `fi_param_get()` of the host library.
pub type fi_param_get_fn = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;
