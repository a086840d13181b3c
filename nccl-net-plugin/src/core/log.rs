//! NCCL's logger, the only place this library writes to.

use std::ffi::{CString, c_char, c_int, c_ulong};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use nccl_net_sys::{NCCL_INIT, NCCL_LOG_INFO, NCCL_LOG_WARN, NCCL_NET, ncclDebugLogger_t};
use usb4_ffi::{Level, Sink, log_panics, set_sink};

/// The logger of the newest `init`; NULL before the first, and after the last `finalize`.
static LOGGER: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// What a logger is when it is there.
type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// From now on the log goes to this logger.
pub(crate) fn set_logger(logger: ncclDebugLogger_t) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_sink(Box::new(Nccl));
        log_panics();
    });
    LOGGER.store(
        logger.map_or(null_mut(), |logger| logger as *mut ()),
        Ordering::Release,
    );
}

/// NCCL's logger as a sink.
struct Nccl;

impl Nccl {
    fn logger() -> Option<Logger> {
        let raw = LOGGER.load(Ordering::Acquire);
        // SAFETY: stored by `set_logger`, which got it as such a function; NULL is `None`.
        unsafe { transmute::<*mut (), ncclDebugLogger_t>(raw) }
    }
}

impl Sink for Nccl {
    fn enabled(&self, level: Level) -> bool {
        level <= Level::Info && !LOGGER.load(Ordering::Relaxed).is_null()
    }

    fn line(&self, level: Level, line: &str) {
        let Some(logger) = Self::logger() else { return };
        let level = match level {
            Level::Error | Level::Warn => NCCL_LOG_WARN,
            Level::Info | Level::Debug => NCCL_LOG_INFO,
        };
        let Ok(line) = CString::new(line) else { return };
        // SAFETY: the logger NCCL gave, with a format that takes one string, which is one.
        unsafe {
            logger(
                level,
                NCCL_INIT | NCCL_NET,
                c"NET/USB4".as_ptr(),
                0,
                c"NET/USB4: %s".as_ptr(),
                line.as_ptr(),
            );
        }
    }
}
