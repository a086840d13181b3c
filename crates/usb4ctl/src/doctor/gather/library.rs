//! What a library is, by loading it as NCCL does.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::doctor::facts::{Library, Probe};

/// Versions of the net plugin interface that may be met, newest first.
const TABLES: [u32; 9] = [13, 12, 11, 10, 9, 8, 7, 6, 5];

/// A library that takes longer to load does not come back.
const PATIENCE: Duration = Duration::from_secs(20);

/// Loads `name` in a process of its own: a library's constructors do what they like.
///
/// # Errors
///
/// When that process cannot be started.
pub(super) fn in_a_child(name: &str) -> Result<Probe> {
    // Not current_exe(): that file may have been replaced.
    let mut child = Command::new("/proc/self/exe")
        .args(["doctor", "--probe", name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start a process to load libraries in")?;
    let start = Instant::now();
    while child
        .try_wait()
        .context("cannot wait for that process")?
        .is_none()
    {
        if start.elapsed() > PATIENCE {
            child.kill().context("cannot end that process")?;
            child.wait().context("cannot wait for that process")?;
            return Ok(Probe::Failed(format!("{name} did not load within {PATIENCE:?}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child
        .wait_with_output()
        .context("cannot read from that process")?;
    let said = String::from_utf8_lossy(&output.stdout);
    // The library may have spoken before.
    let answer = said
        .lines()
        .next_back()
        .and_then(|line| serde_json::from_str(line).ok());
    Ok(answer
        .unwrap_or_else(|| Probe::Failed(format!("{name}: loading it ended the process: {}", output.status))))
}

/// Loads `name` into this process and looks at it.
pub(crate) fn probe(name: &str) -> Probe {
    let Ok(c_name) = CString::new(name) else {
        return Probe::Failed("the name has a zero byte".into());
    };
    // SAFETY: the name is a C string. The library's constructors run in this process, which exists for that.
    let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: the last call of the loader in this thread failed, so there is a message, valid until the next.
        let message = unsafe { libc::dlerror() };
        return Probe::Failed(text(message).unwrap_or_else(|| "the loader gives no reason".into()));
    }
    let mut library = Library::default();
    for version in TABLES {
        let Some(table) = symbol(handle, &format!("ncclNetPlugin_v{version}")) else {
            continue;
        };
        if library.tables.is_empty() {
            // SAFETY: the first member of each version of this struct is the plugin's name.
            library.net = text(unsafe { table.cast::<*const c_char>().read() });
            library.path = path(table);
        }
        library.tables.push(version);
    }
    if let Some(function) = symbol(handle, "ncclGetVersion") {
        // SAFETY: `ncclResult_t ncclGetVersion(int*)` is public in every version of NCCL.
        let ask: extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(function) };
        let mut version = 0;
        library.version = (ask(&raw mut version) == 0).then_some(version);
        library.path = path(function);
    }
    if library.path.is_empty() {
        library.path = name.into();
    }
    Probe::Loaded(library)
}

fn symbol(handle: *mut c_void, name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: the handle is open and is never closed, the name is a C string.
    let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!at.is_null()).then_some(at)
}

/// The file that holds what is at `address`.
fn path(address: *mut c_void) -> String {
    // SAFETY: all-zero is a valid value of this struct of integers and pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only looked up, the struct is ours.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 {
        return String::new();
    }
    text(info.dli_fname).unwrap_or_default()
}

fn text(from: *const c_char) -> Option<String> {
    if from.is_null() {
        return None;
    }
    // SAFETY: what is passed here are C strings of the loader and of plugins' tables.
    Some(unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_gives_the_loader_s_words() {
        let Probe::Failed(reason) = probe("libusb4-not-there.so") else {
            panic!("it loaded");
        };
        assert!(reason.contains("libusb4-not-there.so"), "{reason}");
    }

    #[test]
    fn a_library_that_is_no_plugin_has_no_tables() {
        let Probe::Loaded(library) = probe("libc.so.6") else {
            panic!("there is always a libc");
        };
        assert_eq!((library.tables, library.net), (vec![], None));
    }
}
