//! A process in a namespace of its own, in which libibverbs finds a device and the built object.
//!
//! In a mount namespace `/dev/infiniband/uverbs0` is `/dev/null`; where there is none to be had, or the machine has RDMA
//! devices, or no libibverbs, a test says so and ends.

#![allow(clippy::expect_used, dead_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rdma_core_sys::ibv_context;

/// Private ABIs there are names for.
const NUMBERS: [u32; 5] = [34, 57, 59, 64, 65];

/// The object, in the folder of the test's.
fn object() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let deps = test.parent().expect("target/PROFILE/deps");
    let found = [
        deps.to_path_buf(),
        deps.parent().expect("target/PROFILE").to_path_buf(),
    ]
    .map(|folder| folder.join("libusb4_verbs.so"))
    .into_iter()
    .find(|path| path.exists());
    found.expect("cargo builds the object before this test")
}

/// What the child in its namespace finds: a device whose driver is `driver`, and the object by all its names.
pub(crate) struct Stage {
    root: PathBuf,
}

impl Stage {
    pub(crate) fn new(name: &str, driver: &str) -> Self {
        let root = std::env::temp_dir().join(format!("usb4-load-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for number in NUMBERS {
            let link = root.join(format!("libusb4-rdmav{number}.so"));
            fs::create_dir_all(&root).expect("a folder");
            symlink(object(), link).expect("a name of the object");
        }
        let sys = root.join("sys");
        let verbs = sys.join("class/infiniband_verbs");
        let device = sys.join("class/infiniband/renamed0");
        fs::create_dir_all(verbs.join("uverbs0")).expect("a folder");
        fs::create_dir_all(device.join("device")).expect("a folder");
        // Of /dev/null.
        for (file, text) in [
            (verbs.join("abi_version"), "6\n"),
            (verbs.join("uverbs0/ibdev"), "renamed0\n"),
            (verbs.join("uverbs0/dev"), "1:3\n"),
            (verbs.join("uverbs0/abi_version"), "1\n"),
            (device.join("node_type"), "1: CA\n"),
            (device.join("node_guid"), "0000:0000:0000:0001\n"),
        ] {
            fs::write(file, text).expect("a file of sysfs");
        }
        symlink(
            format!("../../../bus/platform/drivers/{driver}"),
            device.join("device/driver"),
        )
        .expect("a driver");
        Self { root }
    }

    /// Runs the ignored test `child` in a namespace of its own, with the libraries under `system` if it is said; what it
    /// says, if there is a namespace to be had.
    pub(crate) fn run(&self, system: Option<&Path>) -> Option<String> {
        let test = std::env::current_exe().expect("a path");
        let mut command = match system {
            None => Command::new(test),
            Some(root) => {
                let libraries =
                    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|folder| root.join(folder));
                let loader = libraries
                    .iter()
                    .map(|folder| folder.join("ld-linux-x86-64.so.2"))
                    .find(|loader| loader.exists());
                let mut command = Command::new(loader.expect("a system's libraries"));
                let [first, second] = libraries;
                command.arg("--library-path");
                command
                    .arg(format!("{}:{}", first.display(), second.display()))
                    .arg(test);
                command
            }
        };
        command
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env("SYSFS_PATH", self.root.join("sys"))
            .env("IBV_DRIVERS", self.root.join("libusb4"))
            .env("IBV_SHOW_WARNINGS", "1");
        // SAFETY: system calls only.
        unsafe { command.pre_exec(namespace) };
        let out = match command.output() {
            Ok(out) => out,
            Err(error) => {
                println!("skipped: no mount namespace: {error}");
                return None;
            }
        };
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{}\n{text}", out.status);
        if let Some(why) = text.lines().find(|line| line.contains("skipped: ")) {
            println!("{why}");
            return None;
        }
        Some(text)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A mount namespace in which there is an `/dev/infiniband/uverbs0`.
fn namespace() -> std::io::Result<()> {
    let check = |result: c_int| match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    let none = std::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    let tmpfs = c"tmpfs".as_ptr();
    let file = c"/dev/infiniband/uverbs0".as_ptr();
    // SAFETY: C strings, and a namespace that is this process's alone.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) != 0 {
            check(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS))?;
        }
        check(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
        // The device is opened before another folder hides it, and bound by its descriptor.
        let fd = libc::open(c"/dev/null".as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        check(libc::mount(tmpfs, c"/dev".as_ptr(), tmpfs, 0, none.cast()))?;
        check(libc::mkdir(c"/dev/infiniband".as_ptr(), 0o755))?;
        let made = libc::open(file, libc::O_CREAT | libc::O_CLOEXEC | libc::O_WRONLY, 0o666);
        if made < 0 {
            return Err(std::io::Error::last_os_error());
        }
        libc::close(made);
        let mut path = *b"/proc/self/fd/0000\0";
        let digits = path.len() - 5;
        let mut rest = fd;
        for place in path[digits..digits + 4].iter_mut().rev() {
            *place = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        // `/proc/self/fd` knows no leading zeros.
        let zeros = path[digits..digits + 3]
            .iter()
            .take_while(|digit| **digit == b'0')
            .count();
        path.copy_within(digits + zeros.., digits);
        check(libc::mount(
            path.as_ptr().cast(),
            file,
            none,
            libc::MS_BIND,
            none.cast(),
        ))?;
        libc::close(fd);
    }
    Ok(())
}

/// Calls `check` with what a child says with this machine's libibverbs, and with those of the systems that
/// `RDMA_CORE_ROOTS` names.
pub(crate) fn everywhere(name: &str, check: impl Fn(&str)) {
    let roots = std::env::var("RDMA_CORE_ROOTS").unwrap_or_default();
    let systems = roots.split(':').filter(|root| !root.is_empty()).map(Path::new);
    for system in std::iter::once(None).chain(systems.map(Some)) {
        let stage = Stage::new(name, "usb4_rdma_ib");
        let Some(text) = stage.run(system) else { return };
        check(&text);
        let whose = system.map_or("this machine".into(), |system| system.display().to_string());
        println!("{name}: with libibverbs of {whose}");
    }
}

/// libibverbs, in the child.
pub(crate) struct Verbs(*mut c_void);

impl Verbs {
    /// None outside of a namespace, or on a machine without it.
    pub(crate) fn load() -> Option<Self> {
        if std::env::var_os("IBV_DRIVERS").is_none()
            || Path::new("/dev/infiniband/uverbs0").metadata().is_err()
        {
            println!("skipped: not in a namespace");
            return None;
        }
        // SAFETY: a C string; the handle is never closed.
        let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            println!("skipped: this machine has no libibverbs.so.1");
            return None;
        }
        Some(Self(library))
    }

    /// # Safety
    /// `F` is the type of the function of this name.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: a handle of `dlopen`, and a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "libibverbs has no {name:?}");
        // SAFETY: a function pointer has the size of a data pointer here; its type is the caller's promise.
        unsafe { std::mem::transmute_copy(&found) }
    }

    /// The device of the made-up sysfs, if it is listed.
    pub(crate) fn device(&self) -> Option<*mut c_void> {
        type List = unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void;
        type Name = unsafe extern "C" fn(*mut c_void) -> *const c_char;
        // SAFETY: libibverbs's own functions, called as its header has them.
        unsafe {
            let mut count = -1;
            let devices = self.symbol::<List>(c"ibv_get_device_list")(&mut count);
            assert!(!devices.is_null(), "{}", std::io::Error::last_os_error());
            if count == 0 {
                println!("devices: none");
                return None;
            }
            let device = devices.read();
            if CStr::from_ptr(self.symbol::<Name>(c"ibv_get_device_name")(device)) != c"renamed0" {
                println!(
                    "skipped: this machine has RDMA devices of its own, which libibverbs asks the kernel for"
                );
                return None;
            }
            println!("devices: renamed0");
            Some(device)
        }
    }

    /// Opens it.
    pub(crate) fn open(&self, device: *mut c_void) -> std::io::Result<*mut ibv_context> {
        type Open = unsafe extern "C" fn(*mut c_void) -> *mut ibv_context;
        // SAFETY: as above.
        let context = unsafe { self.symbol::<Open>(c"ibv_open_device")(device) };
        if context.is_null() {
            return Err(std::io::Error::last_os_error());
        }
        Ok(context)
    }
}
