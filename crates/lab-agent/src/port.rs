//! The port to the host, written to by many threads.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use usb4_lab_agent::{BODY_MAX, Frame, Kind};

#[derive(Clone)]
pub(crate) struct Port {
    to_host: Arc<Mutex<File>>,
}

impl Port {
    /// Opens the only port there is, waiting for its device node in `folder`: the kernel makes it when the host has
    /// answered the driver.
    pub(crate) fn open(folder: &Path) -> io::Result<Port> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&watch, folder, inotify::WatchFlags::CREATE)?;
        let path = loop {
            if let Some(path) = node(folder)? {
                break path;
            }
            poll(&mut [PollFd::new(&watch, PollFlags::IN)], None)?;
            let mut events = [std::mem::MaybeUninit::uninit(); 4096];
            inotify::Reader::new(&watch, &mut events).next()?;
        };
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Port {
            to_host: Arc::new(Mutex::new(file)),
        })
    }

    pub(crate) fn reader(&self) -> io::Result<File> {
        self.to_host
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_clone()
    }

    /// Sends `bytes`, in as many frames as it takes. If the host is gone the main loop will see it.
    pub(crate) fn send(&self, id: u32, kind: Kind, bytes: &[u8]) {
        let mut file = self.to_host.lock().unwrap_or_else(PoisonError::into_inner);
        for body in bytes.chunks(BODY_MAX) {
            let frame = Frame {
                id,
                kind,
                body: body.to_vec(),
            };
            if let Err(error) = frame.write(&mut *file) {
                eprintln!("lab-agent: cannot write to the host: {error}");
            }
        }
    }
}

/// The node of the first virtio-serial port (drivers/char/virtio_console.c names them `vport0p1` and so on). The symbolic
/// links by name are udev's, which guests do not have.
fn node(folder: &Path) -> io::Result<Option<PathBuf>> {
    let mut entries = fs::read_dir(folder)?.flatten();
    let found = entries.find(|entry| entry.file_name().to_string_lossy().starts_with("vport"));
    Ok(found.map(|entry| entry.path()))
}
