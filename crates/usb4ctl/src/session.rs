//! An open device with one endpoint, and waiting on it.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use usb4_ring::{
    AddressHandle, Backend, Completion, Cq, Device, Endpoint, EndpointConfig, EndpointKind, EpAddr,
    KERNEL_DEVICE, Status,
};

/// Entries of the session's queues.
pub(crate) const DEPTH: u32 = 512;

const CONFIG: EndpointConfig = EndpointConfig {
    kind: EndpointKind::Datagram,
    sq_depth: DEPTH,
    rq_depth: DEPTH,
};

/// How long to wait for the other end, unless it is said otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Peers a session remembers at most: a server outlives many clients.
const MAX_PEERS: usize = 64;

/// Opens the device named on the command line or in the environment, else the kernel's.
///
/// # Errors
///
/// Whatever keeps it from opening.
pub(crate) fn open(device: Option<&str>) -> Result<Device> {
    Ok(Device::open(device.unwrap_or(KERNEL_DEVICE))?)
}

/// A backend's name for programs, and what it is for people.
pub(crate) fn backend(backend: Backend) -> (&'static str, &'static str) {
    match backend {
        Backend::SoftInline => ("soft-inline", "software, in this process"),
        Backend::SoftDetached => ("soft-detached", "software, in a process of its own"),
        Backend::Kernel => ("kernel", "kernel module"),
        _ => ("unknown", "unknown"),
    }
}

/// One endpoint whose sends and receives complete on one queue.
pub(crate) struct Session {
    pub(crate) ep: Endpoint,
    pub(crate) device: Device,
    /// How long [`Session::answer`] waits for the other end.
    pub(crate) patience: Duration,
    cq: Cq,
    ready: VecDeque<Completion>,
    handles: HashMap<EpAddr, AddressHandle>,
}

impl Session {
    /// Opens the device and an endpoint on it.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub(crate) fn open(device: Option<&str>) -> Result<Self> {
        let device = open(device)?;
        let cq = device.create_cq(4 * DEPTH)?;
        let ep = device.create_endpoint(&CONFIG, &cq, &cq)?;
        Ok(Self {
            ep,
            device,
            patience: PATIENCE,
            cq,
            ready: VecDeque::with_capacity(64),
            handles: HashMap::new(),
        })
    }

    /// Another endpoint, which completes on the same queue.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub(crate) fn endpoint(&self) -> Result<Endpoint> {
        Ok(self.device.create_endpoint(&CONFIG, &self.cq, &self.cq)?)
    }

    /// The handle of a peer, the same one each time.
    ///
    /// # Errors
    ///
    /// When the peer cannot be reached.
    pub(crate) fn handle(&mut self, peer: &EpAddr) -> Result<AddressHandle> {
        if let Some(handle) = self.handles.get(peer) {
            return Ok(*handle);
        }
        if self.handles.len() >= MAX_PEERS {
            for (_, handle) in self.handles.drain() {
                self.ep.close_handle(handle);
            }
        }
        let handle = self.ep.address_handle(peer)?;
        self.handles.insert(*peer, handle);
        Ok(handle)
    }

    /// Takes one completion, if there is one; drives the device once if there is none at first.
    pub(crate) fn poll(&mut self) -> Option<Completion> {
        // Others may have driven it: to do so as well may cost a system call.
        if self.ready.is_empty() && self.cq.is_empty() {
            self.device.progress();
        }
        self.take()
    }

    fn fetch(&mut self) {
        let mut batch = [Completion::default(); 32];
        let count = self.cq.poll(&mut batch);
        self.ready.extend(batch.iter().take(count));
    }

    /// Takes the next completion, which must be a success, polling all the time; but others on this processor, of which
    /// the peer may be one, get their turn when there is none for a while.
    ///
    /// # Errors
    ///
    /// When it failed, or none came for `patience`.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Completion> {
        let mut wait = Wait::new(patience);
        loop {
            if let Some(done) = self.poll() {
                return checked(done);
            }
            wait.pause()?;
        }
    }

    /// Takes a completion that is there already, failed or not.
    pub(crate) fn take(&mut self) -> Option<Completion> {
        if self.ready.is_empty() {
            self.fetch();
        }
        self.ready.pop_front()
    }

    /// Takes a completion that is there already, which must be a success.
    ///
    /// # Errors
    ///
    /// When it failed.
    pub(crate) fn ready(&mut self) -> Result<Option<Completion>> {
        self.take().map(checked).transpose()
    }

    /// Drives the device until memory shows what is waited for. What completes meanwhile must be a success.
    ///
    /// # Errors
    ///
    /// When it was none; when memory cannot be looked at, or does not show that within the session's patience.
    pub(crate) fn watch(&mut self, mut seen: impl FnMut() -> Result<bool>) -> Result<()> {
        let mut wait = Wait::new(self.patience);
        while !seen()? {
            if self.ready()?.is_none() && !self.device.progress() {
                wait.pause()?;
            }
        }
        Ok(())
    }

    /// [`Session::next`], as long as this session is patient.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn answer(&mut self) -> Result<Completion> {
        self.next(self.patience)
    }

    /// Takes the next completion, failed or not, sleeping until there is one.
    ///
    /// # Errors
    ///
    /// When the device is gone.
    pub(crate) fn sleep(&mut self) -> Result<Completion> {
        loop {
            if let Some(done) = self.poll() {
                return Ok(done);
            }
            self.cq.wait(None)?;
        }
    }
}

/// How long a processor is kept without a completion: longer than an answer takes that is under way.
pub(crate) const ALONE: Duration = Duration::from_micros(50);

/// Waiting for the other end, polling all the time.
struct Wait {
    patience: Duration,
    start: Option<Instant>,
}

impl Wait {
    fn new(patience: Duration) -> Self {
        Self {
            patience,
            start: None,
        }
    }

    /// There was nothing.
    fn pause(&mut self) -> Result<()> {
        let waited = self.start.get_or_insert_with(Instant::now).elapsed();
        if waited > self.patience {
            bail!("the peer did not answer within {:?}", self.patience);
        }
        if waited > ALONE {
            std::thread::yield_now();
        }
        Ok(())
    }
}

fn checked(done: Completion) -> Result<Completion> {
    match done.status {
        Status::Ok => Ok(done),
        Status::Gone | Status::LinkDown | Status::Unreachable => {
            bail!("the peer is gone ({:?} ended with {:?})", done.op, done.status)
        }
        Status::Length => bail!(
            "the other end expects other messages: `usb4ctl ping` needs `usb4ctl ping --serve` there, `usb4ctl bench` \
             needs `usb4ctl bench --serve`"
        ),
        status => bail!("{:?} ended with {status:?}", done.op),
    }
}

/// `value` as an index or length of this machine.
///
/// # Errors
///
/// When it does not fit.
pub(crate) fn size(value: u64) -> Result<usize> {
    usize::try_from(value).context("length does not fit this machine")
}

/// `value` as a message length.
///
/// # Errors
///
/// When the device does not take messages of that length.
pub(crate) fn message_len(device: &Device, value: u64) -> Result<u32> {
    let max = device.info().max_message;
    let len = u32::try_from(value).unwrap_or(u32::MAX);
    ensure!(
        len <= max,
        "a message of {value} bytes is longer than the device's {max}"
    );
    Ok(len)
}
