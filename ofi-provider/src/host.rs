//! The libfabric that loaded us: found at run time, because linking to it would tie this object to its
//! version.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use libfabric_sys::*;
use usb4_ffi::{Level, Sink};

use crate::init::provider;

/// Functions of the host library. Each may be missing: then there is no log, and parameters come from the
/// environment.
pub(crate) struct Host {
    version: Option<fi_version_fn>,
    log_enabled: Option<fi_log_enabled_fn>,
    log: Option<fi_log_fn>,
    param_define: Option<fi_param_define_fn>,
    param_get: Option<fi_param_get_fn>,
}

/// The host library.
pub(crate) fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(Host::find)
}

impl Host {
    fn find() -> Self {
        // SAFETY: the name is a C string; `RTLD_NOLOAD` only finds what is loaded. The handle is never
        // closed, so the symbols stay valid.
        let library =
            unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        let library = if library.is_null() {
            libc::RTLD_DEFAULT
        } else {
            library
        };
        // SAFETY: each type is that of the exported function of this name (rdma/providers/*.h).
        unsafe {
            Self {
                version: symbol(library, c"fi_version"),
                log_enabled: symbol(library, c"fi_log_enabled"),
                log: symbol(library, c"fi_log"),
                param_define: symbol(library, c"fi_param_define"),
                param_get: symbol(library, c"fi_param_get"),
            }
        }
    }

    /// Its interface version. A host that does not say gets a version no application exceeds: the core skips
    /// providers older than the version asked for.
    pub(crate) fn version(&self) -> u32 {
        // SAFETY: `fi_version` has no preconditions.
        self.version
            .map_or(fi_version(99, 0), |version| unsafe { version() })
    }

    /// Whether it has a logger.
    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some() && self.log_enabled.is_some()
    }

    /// Tells the host of a parameter, for `fi_info -g`.
    pub(crate) fn define(&self, name: &CStr, kind: c_int, help: &CStr) {
        if let Some(define) = self.param_define {
            // SAFETY: all strings are terminated and `help` goes through "%s".
            unsafe { define(provider(), name.as_ptr(), kind, c"%s".as_ptr(), help.as_ptr()) };
        }
    }

    /// The value of a size parameter, if the user set one that parses.
    pub(crate) fn size_param(&self, name: &CStr) -> Option<usize> {
        let Some(get) = self.param_get else {
            let variable = format!("FI_USB4_{}", name.to_string_lossy().to_uppercase());
            return std::env::var(variable).ok()?.parse().ok();
        };
        let mut value: usize = 0;
        // SAFETY: the parameter was defined as a size_t, which is what is written.
        let rc = unsafe { get(provider(), name.as_ptr(), (&raw mut value).cast()) };
        (rc == 0).then_some(value)
    }
}

/// # Safety
/// `F` is the type of the function of this name.
unsafe fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    // SAFETY: a handle from `dlopen` or `RTLD_DEFAULT`, and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: a function pointer has the size of a data pointer here; its type is the caller's promise.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}

/// Sends log lines to the host's logger (`FI_LOG_LEVEL`).
pub(crate) struct HostLog;

impl Sink for HostLog {
    fn enabled(&self, level: Level) -> bool {
        let Some(enabled) = host().log_enabled else {
            return false;
        };
        // SAFETY: the provider is a valid static.
        unsafe { enabled(provider(), code(level), FI_LOG_CORE) != 0 }
    }

    fn line(&self, level: Level, line: &str) {
        let (Some(log), Ok(text)) = (host().log, CString::new(line.replace('\0', " "))) else {
            return;
        };
        let func: *const c_char = c"usb4".as_ptr();
        // SAFETY: all strings are terminated and the text goes through "%s".
        unsafe {
            log(
                provider(),
                code(level),
                FI_LOG_CORE,
                func,
                0,
                c"%s\n".as_ptr(),
                text.as_ptr(),
            )
        };
    }
}

fn code(level: Level) -> c_int {
    match level {
        Level::Error | Level::Warn => FI_LOG_WARN,
        Level::Info => FI_LOG_INFO,
        Level::Debug => FI_LOG_DEBUG,
    }
}
