//! Puts a jump to one of our functions over the beginning of a loaded one.

use anyhow::{Context, Result, bail};
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// `jmp *0(%rip)`, then the address: 14 bytes.
const JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];

/// Bytes that a patched function must have.
pub(crate) const LENGTH: usize = JUMP.len() + 8;

/// Lets the function at `at` begin with a jump to `to`.
///
/// # Safety
/// `at` is a loaded function of at least [`LENGTH`] bytes that no thread runs, `to` a function with its signature.
pub(crate) unsafe fn redirect(at: *mut u8, to: usize) -> Result<()> {
    // SAFETY: the function's bytes.
    unsafe { protect(at, LENGTH, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)? };
    // SAFETY: the bytes belong to the function, are writable now, and nobody runs them (caller).
    unsafe {
        ptr::copy_nonoverlapping(JUMP.as_ptr(), at, JUMP.len());
        at.add(JUMP.len()).cast::<usize>().write_unaligned(to);
    }
    // SAFETY: as above.
    unsafe { protect(at, LENGTH, libc::PROT_READ | libc::PROT_EXEC) }
}

/// Lets a library call the function at `to` instead of the one whose address it has at `at`, in its global offset table.
///
/// # Safety
/// `at` is the place of a relocation of a loaded library for a function with the signature of `to`.
pub(crate) unsafe fn replace(at: *mut u8, to: usize) -> Result<()> {
    // SAFETY: the table's entry, which stays writable: without lazy binding its page may hold other entries that have to be.
    unsafe { protect(at, size_of::<usize>(), libc::PROT_READ | libc::PROT_WRITE)? };
    // SAFETY: an entry is an aligned word, which other threads read at once.
    unsafe { AtomicUsize::from_ptr(at.cast()) }.store(to, Ordering::Relaxed);
    Ok(())
}

/// Changes the protection of the pages that `len` bytes are on.
///
/// # Safety
/// They are mapped, and nobody depends on the protection they have.
unsafe fn protect(at: *mut u8, len: usize, access: c_int) -> Result<()> {
    let page = at.map_addr(|address| address & !(PAGE - 1));
    let span = at.addr() + len - page.addr();
    // SAFETY: the pages are mapped (caller); only their protection changes.
    let rc = unsafe { libc::mprotect(page.cast(), span.next_multiple_of(PAGE), access) };
    if rc == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error()).context("change the protection of memory")
}

/// Pages of small functions that each say the name of a missing function.
#[derive(Debug, Default)]
pub(crate) struct Thunks {
    page: Option<(*mut u8, usize)>,
}

/// `movabs $name, %rdi; movabs $missing, %rax; jmp *%rax`, rounded up.
const THUNK: usize = 32;

impl Thunks {
    /// The address of a function that passes `name` to `missing` and returns what that returns.
    pub(crate) fn add(
        &mut self,
        name: &str,
        missing: unsafe extern "C" fn(*const c_char) -> c_int,
    ) -> Result<usize> {
        let (page, used) = match self.page {
            Some((page, used)) if used + THUNK <= PAGE => (page, used),
            _ => (code_page()?, 0),
        };
        // Never freed: the thunk may be called until the process ends.
        let name = CString::new(name)?.into_raw();
        let mut code = [0xcc; THUNK];
        let (load, rest) = code.split_at_mut(10);
        let (target, jump) = rest.split_at_mut(10);
        load[..2].copy_from_slice(&[0x48, 0xbf]);
        load[2..].copy_from_slice(&name.addr().to_le_bytes());
        target[..2].copy_from_slice(&[0x48, 0xb8]);
        target[2..].copy_from_slice(&(missing as *const () as usize).to_le_bytes());
        jump[..2].copy_from_slice(&[0xff, 0xe0]);
        // SAFETY: the page is ours, writable, and has room for one more thunk.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), page.add(used), THUNK) };
        self.page = Some((page, used + THUNK));
        Ok(page.addr() + used)
    }
}

fn code_page() -> Result<*mut u8> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        bail!("map a page for code: {}", io::Error::last_os_error());
    }
    Ok(page.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::hint::black_box;

    #[inline(never)]
    extern "C" fn old(x: c_int) -> c_int {
        // Long enough for a jump.
        (0..black_box(x)).map(|n| black_box(n) * 3).sum()
    }

    extern "C" fn new(x: c_int) -> c_int {
        x + 1000
    }

    #[test]
    fn a_patched_function_is_the_other_one() {
        let function = black_box(old as extern "C" fn(c_int) -> c_int);
        assert_eq!(function(3), 9);
        // SAFETY: only this test calls `old`, and both have one signature.
        unsafe { redirect(function as *mut u8, new as *const () as usize) }.unwrap();
        assert_eq!(function(3), 1003);
    }

    unsafe extern "C" fn length(name: *const c_char) -> c_int {
        // SAFETY: thunks pass the C string they were made with.
        let name = unsafe { CStr::from_ptr(name) };
        c_int::try_from(name.to_bytes().len()).unwrap()
    }

    #[test]
    fn each_thunk_passes_its_own_name() {
        let mut thunks = Thunks::default();
        for n in 1..300 {
            let address = thunks.add(&"x".repeat(n), length).unwrap();
            // SAFETY: the address is of code that follows the C calling convention.
            let thunk: extern "C" fn() -> c_int = unsafe { std::mem::transmute(address) };
            assert_eq!(thunk(), c_int::try_from(n).unwrap());
        }
    }
}
