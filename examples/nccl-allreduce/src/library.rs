//! Libraries that are loaded when the program runs.

use std::ffi::{CStr, CString, c_void};

use anyhow::{Context, Result, bail};

/// A loaded library, which stays for as long as the process.
pub(crate) struct Library {
    handle: *mut c_void,
    pub(crate) name: String,
}

impl Library {
    /// The first of `names` that loads.
    ///
    /// # Errors
    ///
    /// None does; the loader's words about the last are passed on.
    pub(crate) fn load(names: &[&str]) -> Result<Self> {
        let mut reason = String::from("no name");
        for name in names {
            let c_name = CString::new(*name).context("a file name")?;
            // SAFETY: the name is a C string. These are the libraries this program is there to use.
            let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            if !handle.is_null() {
                return Ok(Self {
                    handle,
                    name: (*name).to_string(),
                });
            }
            // SAFETY: the loader has just failed in this thread, so there is a message.
            reason = unsafe { CStr::from_ptr(libc::dlerror()) }
                .to_string_lossy()
                .into_owned();
        }
        bail!("{reason}: say which with an option, or in LD_LIBRARY_PATH")
    }

    /// A function of it.
    ///
    /// # Errors
    ///
    /// There is none of that name.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to that function.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Result<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let c_name = CString::new(name).context("a function's name")?;
        // SAFETY: the handle stays open, the name is a C string.
        let at = unsafe { libc::dlsym(self.handle, c_name.as_ptr()) };
        if at.is_null() {
            bail!("{} has no {name}", self.name);
        }
        // SAFETY: of one size, and of the right type as the caller promises.
        Ok(unsafe { std::mem::transmute_copy(&at) })
    }
}
