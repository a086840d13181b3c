//! Devices on one fabric, on one or two hosts, driven by one thread.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use usb4_ring::{
    Access, AddressHandle, Completion, EndpointConfig, EndpointKind, KERNEL_DEVICE, Status, WorkRequest,
};

use crate::{Cq, Device, Endpoint, Host, Region, Remote};

/// How long a case waits for one completion before it counts as hung.
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// Which backend the devices of a world come from, and where they are.
#[derive(Clone, Debug)]
pub struct Fabric {
    kind: Kind,
    unique: String,
    /// Where the agent of the second host listens.
    second: Option<String>,
}

#[derive(Clone, Debug)]
enum Kind {
    SoftInline,
    SoftDetached,
    Kernel(String),
}

impl Fabric {
    /// For one case on backend `device` (`soft`, `soft,detached` or `/dev/usb4ring`): a fabric of its own if it is a
    /// soft one; the kernel's device has one, on which every peer is another client. With `second`, where an agent
    /// ([`crate::serve`]) listens, every second peer is on that host.
    ///
    /// # Errors
    ///
    /// When the backend is not known.
    pub fn new(device: &str, second: Option<&str>, case: usize) -> Result<Self> {
        let kind = match device {
            "soft" => Kind::SoftInline,
            "soft,detached" => Kind::SoftDetached,
            path if path.starts_with("/dev/") => Kind::Kernel(path.into()),
            other => bail!("unknown backend {other:?}: use soft, soft,detached or {KERNEL_DEVICE}"),
        };
        Ok(Self {
            kind,
            unique: format!("conf-{}-{case}", std::process::id()),
            second: second.map(Into::into),
        })
    }

    fn spec(&self, peer: usize) -> String {
        match &self.kind {
            Kind::SoftInline => format!("soft:{}", self.unique),
            Kind::SoftDetached => format!("soft:{},detached=h{peer}", self.unique),
            Kind::Kernel(path) => path.clone(),
        }
    }
}

/// One device with a completion queue and an endpoint on it.
pub struct Peer {
    /// The endpoint.
    pub ep: Endpoint,
    /// Completions seen and not yet asked for, oldest first.
    pub seen: VecDeque<Completion>,
    /// The queue for sends and receives.
    pub cq: Cq,
    /// The device.
    pub device: Device,
}

impl Peer {
    /// Opens the device `spec` of `host` with an endpoint of `config`.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn open(host: &Host, spec: &str, config: &EndpointConfig) -> Result<Self> {
        let device = host.open(spec).with_context(|| format!("opening {spec}"))?;
        Self::on(device, config)
    }

    /// A further endpoint on an open device.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn on(device: Device, config: &EndpointConfig) -> Result<Self> {
        let cq = device.create_cq(1024)?;
        let ep = device.create_endpoint(config, &cq)?;
        Ok(Self {
            ep,
            seen: VecDeque::new(),
            cq,
            device,
        })
    }

    /// Allocated memory filled with `fill(index)`.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn memory(&self, len: usize, access: Access, fill: impl Fn(usize) -> u8) -> Result<Region> {
        let region = self.device.alloc(len.max(1), access)?;
        let bytes: Vec<u8> = (0..len).map(fill).collect();
        region.write(0, &bytes)?;
        Ok(region)
    }

    /// Posts one request and submits it.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn post(&mut self, request: &WorkRequest) -> Result<()> {
        self.ep.post(request)?;
        Ok(self.ep.submit()?)
    }

    /// Posts one receive of all of `region` and submits it.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn receive(&mut self, user_data: u64, region: &Region) -> Result<()> {
        self.ep.post_recv(user_data, region.buffer(0, region.len())?)?;
        Ok(self.ep.submit()?)
    }

    fn poll(&mut self) -> Result<()> {
        self.seen.extend(self.cq.poll(32)?);
        Ok(())
    }
}

/// Peers on one fabric. Peer 0 and 1 exist from the start.
pub struct World {
    /// The peers; a case may add and remove.
    pub peers: Vec<Peer>,
    fabric: Fabric,
    /// This host, and the second if there is one.
    hosts: Vec<Host>,
}

impl World {
    /// Two peers with datagram endpoints.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn pair(fabric: &Fabric) -> Result<Self> {
        let mut hosts = vec![Host::here()];
        if let Some(second) = &fabric.second {
            let remote = Remote::connect(second).with_context(|| format!("connecting to {second}"))?;
            hosts.push(Host::there(remote));
        }
        let mut world = Self {
            peers: Vec::new(),
            fabric: fabric.clone(),
            hosts,
        };
        world.add(EndpointConfig::default())?;
        world.add(EndpointConfig::default())?;
        Ok(world)
    }

    /// Adds a peer with one endpoint, on the hosts by turns; returns its index.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn add(&mut self, config: EndpointConfig) -> Result<usize> {
        let peer = self.peers.len();
        let host = &self.hosts[peer % self.hosts.len()];
        self.peers
            .push(Peer::open(host, &self.fabric.spec(peer), &config)?);
        Ok(peer)
    }

    /// Adds a peer with a connected endpoint.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn add_connected(&mut self) -> Result<usize> {
        self.add(EndpointConfig {
            kind: EndpointKind::Connected,
            ..EndpointConfig::default()
        })
    }

    /// A handle at peer `from` for the endpoint of peer `to`.
    ///
    /// # Errors
    ///
    /// Whatever the ring API reports.
    pub fn handle(&mut self, from: usize, to: usize) -> Result<AddressHandle> {
        let address = self.peers[to].ep.address();
        Ok(self.peers[from].ep.address_handle(&address)?)
    }

    /// Lets every peer make progress once.
    ///
    /// # Errors
    ///
    /// When the other host has gone.
    pub fn step(&mut self) -> Result<()> {
        self.peers.iter_mut().try_for_each(Peer::poll)
    }

    /// Drives everybody until peer `at` has a completion, and takes the oldest.
    ///
    /// # Errors
    ///
    /// When none comes in time.
    pub fn next(&mut self, at: usize) -> Result<Completion> {
        let start = Instant::now();
        loop {
            if let Some(done) = self.peers[at].seen.pop_front() {
                return Ok(done);
            }
            ensure!(
                start.elapsed() < HANG,
                "no completion at peer {at} within {HANG:?}"
            );
            self.step()?;
        }
    }

    /// As [`World::next`], for the completion with this `user_data`; others stay queued.
    ///
    /// # Errors
    ///
    /// When it does not come in time.
    pub fn wait(&mut self, at: usize, user_data: u64) -> Result<Completion> {
        let start = Instant::now();
        loop {
            let seen = &mut self.peers[at].seen;
            if let Some(found) = seen.iter().position(|done| done.user_data == user_data) {
                return seen.remove(found).context("completion vanished");
            }
            ensure!(
                start.elapsed() < HANG,
                "no completion {user_data} at peer {at} within {HANG:?}"
            );
            self.step()?;
        }
    }

    /// As [`World::wait`], and it must be [`Status::Ok`].
    ///
    /// # Errors
    ///
    /// When it is not, or does not come in time.
    pub fn wait_ok(&mut self, at: usize, user_data: u64) -> Result<Completion> {
        let done = self.wait(at, user_data)?;
        ensure!(
            done.status == Status::Ok,
            "completion {user_data} at peer {at} ended with {:?}",
            done.status
        );
        Ok(done)
    }

    /// Drives everybody for a while (many rounds) and fails if peer `at` completes anything.
    ///
    /// # Errors
    ///
    /// When something completes.
    pub fn quiet(&mut self, at: usize) -> Result<()> {
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            self.step()?;
            if let Some(done) = self.peers[at].seen.front() {
                bail!("peer {at} completed {done:?}, which nothing allows yet");
            }
        }
        Ok(())
    }
}

/// The bytes of `region` from `offset`.
///
/// # Errors
///
/// When the range is not within the region.
pub(crate) fn bytes(region: &Region, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut out = vec![0; len];
    region.read(offset, &mut out)?;
    Ok(out)
}

/// A byte that depends on its position and a seed, so that shifted or swapped data shows.
#[allow(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
pub(crate) fn pattern(seed: u64) -> impl Fn(usize) -> u8 {
    move |index| {
        let mixed =
            (index as u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 56) as u8
    }
}

/// Fails unless `region` holds `pattern(seed)` in its first `len` bytes.
///
/// # Errors
///
/// Naming the first byte that differs.
pub(crate) fn expect(region: &Region, len: usize, seed: u64) -> Result<()> {
    let want = pattern(seed);
    match bytes(region, 0, len)?
        .iter()
        .enumerate()
        .find(|(index, byte)| want(*index) != **byte)
    {
        Some((index, _)) => bail!("byte {index} of {len} is wrong"),
        None => Ok(()),
    }
}
