//! Loads NCCL and puts our functions in the place of CUDA's. RCCL, which finds a fake HIP by itself, stays as it is.

use crate::cuda;
use crate::kernel::layout;
use crate::patch::{self, Thunks};
use crate::runtime;
use crate::symbols;
use anyhow::{Context, Result, bail};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A loaded library, which stays for as long as the process.
#[derive(Debug)]
pub(crate) struct Library {
    handle: *mut c_void,
}

/// What was done to the library.
#[derive(Clone, Copy, Debug)]
pub struct Patched {
    /// CUDA functions that work.
    pub implemented: usize,
    /// CUDA functions that only say they are missing.
    pub missing: usize,
    /// Kernels it has.
    pub kernels: usize,
    /// Kernels can be run: the layout of this release is known.
    pub emulated: bool,
}

impl Library {
    /// Loads the NCCL at `path`, which nothing may have used yet.
    pub(crate) fn load(path: &Path) -> Result<(Library, Patched)> {
        let functions = symbols::read(path)?;
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: loading runs NCCL's constructors, which touch nothing of ours.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            bail!("load {}: {}", path.display(), last_error());
        }
        let library = Library { handle };
        let base = library.base(c"ncclGetVersion", path)?;
        let mut thunks = Thunks::default();
        let mut patched = Patched {
            implemented: 0,
            missing: 0,
            kernels: functions.kernels.len(),
            emulated: false,
        };
        for function in &functions.cuda {
            let to = match cuda::function(&function.name) {
                Some(ours) => {
                    patched.implemented += 1;
                    ours
                }
                // Variants for per-thread streams that NCCL does not call are often too short for a jump.
                None if function.size < patch::LENGTH => continue,
                None => {
                    patched.missing += 1;
                    thunks.add(&function.name, cuda::missing)?
                }
            };
            // SAFETY: the symbol table says that a function is there; nothing has called NCCL yet, and ours has the
            // signature that CUDA documents, or returns an error whatever the arguments are.
            unsafe { patch::redirect(base.wrapping_add(function.offset), to)? };
        }
        for offset in functions.yields {
            // SAFETY: the relocations say that the address of `sched_yield` is there.
            unsafe { patch::replace(base.wrapping_add(offset), lend as *const () as usize)? };
        }
        let names = functions
            .kernels
            .into_iter()
            .map(|kernel| (base.addr() + kernel.offset, kernel.name));
        cuda::set_kernels(names.collect::<HashMap<_, _>>());
        let version: unsafe extern "C" fn(*mut c_int) -> c_int = library.symbol(c"ncclGetVersion")?;
        let mut number = 0;
        // SAFETY: NCCL's function with its documented signature.
        let rc = unsafe { version(&raw mut number) };
        if rc != 0 {
            bail!("ncclGetVersion: {rc}");
        }
        patched.emulated = !functions.hip && layout::choose(number);
        Ok((library, patched))
    }

    /// The function called `name`.
    ///
    /// `T` must be the type of its pointer: who calls it vouches for that.
    pub(crate) fn symbol<T: Copy>(&self, name: &CStr) -> Result<T> {
        const { assert!(size_of::<T>() == size_of::<*mut c_void>(), "a function pointer") };
        // SAFETY: a handle from dlopen and a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            bail!("{} is not in the library", name.to_string_lossy());
        }
        // SAFETY: T has the size of a pointer, and the caller names the function's type.
        Ok(unsafe { std::mem::transmute_copy::<*mut c_void, T>(&address) })
    }

    /// Where the library is loaded.
    fn base(&self, some_function: &CStr, path: &Path) -> Result<*mut u8> {
        let function: *const c_void = self.symbol(some_function)?;
        // SAFETY: all zeroes are valid for this structure of pointers.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: an address and a structure for the result.
        let found = unsafe { libc::dladdr(function, &raw mut info) };
        if found == 0 || info.dli_fbase.is_null() {
            bail!("{} is loaded nowhere", path.display());
        }
        Ok(info.dli_fbase.cast())
    }
}

/// Calls in vain before the scheduler is asked: it costs more than the network takes, and what is waited for is near.
const YIELD_AFTER: u32 = 8;

/// `sched_yield`, for NCCL's threads: one that has nothing to do lends its processor to the GPU.
///
/// On a machine with fewer processors than threads, kernels with threads of their own would have each message wait for
/// some turns of the scheduler, which is longer than what is looked at here.
extern "C" fn lend() -> c_int {
    thread_local! {
        /// Calls in a row in which there was nothing to do.
        static VAIN: Cell<u32> = const { Cell::new(0) };
    }
    let vain = if runtime::advance_tasks() {
        0
    } else {
        VAIN.get() + 1
    };
    VAIN.set(vain % YIELD_AFTER);
    if vain == YIELD_AFTER {
        std::thread::yield_now();
    }
    0
}

fn last_error() -> String {
    // SAFETY: returns null or a C string that stays until the next call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".to_string();
    }
    // SAFETY: not null, so a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Checks that a path names a file, with a sentence that says which.
pub(crate) fn require(path: &Path) -> Result<()> {
    std::fs::metadata(path)
        .map(|_| ())
        .with_context(|| format!("there is no {}", path.display()))
}
