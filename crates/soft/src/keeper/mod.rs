//! The keeper: the device's own thread.
//!
//! It accepts and makes calls, carries the control channel, notices the end of peers, and drives the device
//! when nobody else does. While somebody polls it sleeps, and looks every `GRACE` whether somebody still does.

mod calls;
mod drive;
mod rail;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{Timespec, epoll};
use usb4_engine::Nanos;
use usb4_wire::NodeId;

use crate::clock::now;
use crate::core::Core;
use crate::directory::Directory;
use crate::faults::Plan;
use crate::fork::Descriptor;
use crate::names::Fabric;
use crate::{Error, socket};
use calls::Connection;
use drive::Mode;
#[cfg(test)]
pub(crate) use rail::local_info;
pub(crate) use rail::{RING, link_config, rail_config};

/// Most peers, and calls being answered, at a time.
const MAX_CONNECTIONS: usize = 256;

const LISTENER: u64 = 0;
const BELL: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

/// The running keeper, as its device holds it. Dropping it says BYE to the peers and ends the thread.
#[derive(Debug)]
pub(crate) struct KeeperHandle {
    core: Arc<Core>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for KeeperHandle {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.core.check_process().is_err() {
            // The thread exists in the parent only.
            std::mem::forget(thread);
            return;
        }
        self.stop.store(true, Ordering::Release);
        self.core.wake_keeper();
        if let Some(thread) = thread {
            // A panic has been reported by then; there is nobody to tell again.
            let _ = thread.join();
        }
    }
}

/// The keeper's own state.
struct Keeper {
    core: Arc<Core>,
    directory: Arc<Directory>,
    stop: Arc<AtomicBool>,
    fabric: Fabric,
    node: NodeId,
    /// What is to go wrong on the cables to peers.
    faults: Option<Plan>,
    epoll: OwnedFd,
    listener: Descriptor,
    connections: HashMap<u64, Connection>,
    by_node: HashMap<NodeId, u64>,
    next_id: u64,
    /// Calls to be tried again.
    retries: Vec<(Nanos, NodeId)>,
    /// There were no descriptors left for another caller; at this time the listener is looked at again.
    paused: Option<Nanos>,
    mode: Mode,
    /// The bell has rung since the last turn of the loop.
    rung: bool,
}

/// Listens for peers as `node` and starts the thread.
pub(crate) fn start(
    core: Arc<Core>,
    directory: Arc<Directory>,
    fabric: Fabric,
    node: NodeId,
    faults: Option<Plan>,
) -> Result<KeeperHandle, Error> {
    let listener = socket::listen(&fabric.device_socket(node)).map_err(Error::os("listen for peers"))?;
    let listener = Descriptor::new(listener).map_err(Error::os("listen for peers"))?;
    let epoll = watch(&core, &listener).map_err(Error::os("create an epoll instance"))?;
    let stop = Arc::new(AtomicBool::new(false));
    let keeper = Keeper {
        core: Arc::clone(&core),
        directory,
        stop: Arc::clone(&stop),
        fabric,
        node,
        faults,
        epoll,
        listener,
        connections: HashMap::new(),
        by_node: HashMap::new(),
        next_id: FIRST_CONNECTION,
        retries: Vec::new(),
        paused: None,
        mode: Mode::Awake,
        rung: false,
    };
    let thread = without_signals(|| {
        std::thread::Builder::new()
            .name("usb4-soft".into())
            .spawn(|| keeper.run())
    })
    .map_err(Error::os("start the device's thread"))?;
    Ok(KeeperHandle {
        core,
        stop,
        thread: Some(thread),
    })
}

fn watch(core: &Core, listener: &Descriptor) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        listener,
        epoll::EventData::new_u64(LISTENER),
        epoll::EventFlags::IN,
    )?;
    epoll::add(
        &epoll,
        core.bell(),
        epoll::EventData::new_u64(BELL),
        epoll::EventFlags::IN,
    )?;
    Ok(epoll)
}

/// Runs `spawn` with all signals blocked, for the new thread to inherit: the application's handlers are for its
/// own threads.
fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    // SAFETY: `sigset_t` is plain data, filled in by the calls; both sets outlive them.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        let blocked = libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) == 0;
        let result = spawn();
        if blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        }
        result
    }
}

impl Keeper {
    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.stop.load(Ordering::Acquire) {
            self.drive();
            let timeout = self.timeout();
            events.clear();
            // Interrupted or not: what there is to do is looked at below.
            let _ = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    BELL => {
                        socket::silence(self.core.bell());
                        self.rung = true;
                    }
                    id => self.on_readable(id),
                }
            }
            for node in self.directory.take_wanted() {
                self.call(node);
            }
            self.on_time(now());
            if self.core.trouble.swap(false, Ordering::Acquire) {
                self.drop_broken();
            }
        }
        self.farewell();
    }

    /// How long to sleep at most.
    fn timeout(&self) -> Option<Timespec> {
        let retries = self.retries.iter().map(|retry| retry.0);
        let connections = self.connections.values().filter_map(Connection::deadline);
        let first = retries
            .chain(connections)
            .chain(self.paused)
            .chain(self.drive_deadline())
            .min()?;
        let nanos = first.saturating_sub(now());
        Some(Timespec {
            tv_sec: (nanos / 1_000_000_000) as i64,
            tv_nsec: (nanos % 1_000_000_000) as i64,
        })
    }
}
