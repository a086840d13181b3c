//! Entry: what libfabric finds when it loads the object.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::sync::Once;

use libfabric_sys::*;
use usb4_ffi::{boundary, log_panics, set_sink};

use crate::host::{HostLog, host};
use crate::{env, exit, fabric, getinfo};

/// The provider's name.
pub(crate) const NAME: &CStr = c"usb4";

/// The provider's own version.
pub(crate) const VERSION: u32 = fi_version(0, 1);

struct Provider(UnsafeCell<fi_provider>);

// SAFETY: this library writes to it once, in `fi_prov_ini`, which the core calls under a lock; the core owns
// its `context` field.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi_provider {
    version: VERSION,
    fi_version: 0,
    context: fi_context {
        internal: [std::ptr::null_mut(); 4],
    },
    name: NAME.as_ptr(),
    getinfo: getinfo::getinfo,
    fabric: fabric::open,
    cleanup,
}));

/// The provider structure, as the host's functions want it.
pub(crate) fn provider() -> *mut fi_provider {
    PROVIDER.0.get()
}

/// Called by libfabric once in every process that initialises it, whether it will use us or not: opens
/// nothing and starts nothing.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    static ONCE: Once = Once::new();
    boundary(|| {
        ONCE.call_once(|| {
            log_panics();
            if host().has_log() {
                set_sink(Box::new(HostLog));
            }
            env::define();
            // SAFETY: within `Once`, before anybody else has the pointer.
            unsafe { (*provider()).fi_version = host().version() };
        });
        provider()
    })
}

/// Called when libfabric's destructor runs. Domains may still be open and their threads running, so nothing
/// is torn down: the object stays loaded (`-z nodelete`).
unsafe extern "C" fn cleanup() {
    boundary(exit::settle);
}

/// What a call returns after an internal error.
pub(crate) const PANICKED: c_int = -FI_EOTHER;
