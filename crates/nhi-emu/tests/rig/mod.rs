//! An emulator in a thread, clients that speak vfio-user to it, and guests that drive a controller as a driver would.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "each test uses a part of it; a panic is how a test fails"
)]

pub mod client;
pub mod guest;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use usb4_nhi_control::{Client, Request};
use usb4_nhi_emu::{Emulator, Map, Options};

/// Far longer than anything takes: what is not there by then never comes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A folder of its own that goes with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("usb4-nhi-emu-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running emulator, which ends with the test.
pub struct Running {
    folder: Folder,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Frames take no time, and links are up at once.
    pub fn start(topology: &str, map: Map) -> Self {
        let folder = Folder::new();
        let options = Options {
            dir: folder.0.clone(),
            topology: format!("{topology},train=0").parse().unwrap(),
            seed: 1,
            map,
            spin: Duration::ZERO,
        };
        let mut emulator = Emulator::new(options).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || emulator.run(stopped.as_fd()).unwrap());
        Self {
            folder,
            stop,
            thread: Some(thread),
        }
    }

    pub fn dir(&self) -> &Path {
        &self.folder.0
    }

    /// Puts a line to the control socket; what is refused comes back as an error.
    pub fn ask(&self, line: &str) -> Result<Value, String> {
        let request: Request = line.parse().unwrap();
        let answer = Client::connect(self.dir()).unwrap().ask(&request).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer["stats"].clone()),
        }
    }

    /// A counter of a controller.
    pub fn counter(&self, nhi: usize, name: &str) -> u64 {
        self.ask("stats").unwrap()["nhis"][nhi]["counters"][name]
            .as_u64()
            .unwrap()
    }

    /// Waits until `done`, looking again and again: for what no message tells of.
    pub fn wait(&self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let start = std::time::Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        std::io::Write::write_all(&mut self.stop, b"x").unwrap();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.expect("the emulator panicked");
        }
    }
}
