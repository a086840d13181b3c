//! Devices of one fabric and a thread that drives them.
#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use usb4_ring::{
    Access, AddressHandle, Completion, Cq, Device, Endpoint, EndpointConfig, MemoryRegion, Status,
};

/// What counts as hung.
pub(crate) const HANG: Duration = Duration::from_secs(30);

/// A fabric name nobody else uses.
pub(crate) fn fabric(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{test}-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// A device with a completion queue and an endpoint.
pub(crate) struct Host {
    pub(crate) ep: Endpoint,
    pub(crate) cq: Cq,
    pub(crate) device: Device,
}

impl Host {
    pub(crate) fn open(spec: &str) -> Self {
        Self::with(Device::open(spec).unwrap(), &EndpointConfig::default())
    }

    pub(crate) fn with(device: Device, config: &EndpointConfig) -> Self {
        let cq = device.create_cq(1024).unwrap();
        let ep = device.create_endpoint(config, &cq, &cq).unwrap();
        Self { ep, cq, device }
    }

    pub(crate) fn handle(&mut self, peer: &Self) -> AddressHandle {
        self.ep.address_handle(&peer.ep.address()).unwrap()
    }

    /// Memory with `byte` everywhere.
    pub(crate) fn memory(&self, len: usize, byte: u8) -> MemoryRegion {
        let region = self.device.alloc(len, Access::REMOTE_ALL).unwrap();
        region.write(0, &vec![byte; len]).unwrap();
        region
    }

    pub(crate) fn poll(&mut self) -> Option<Completion> {
        let mut out = [Completion::default()];
        self.device.progress();
        (self.cq.poll(&mut out) == 1).then(|| out[0])
    }
}

/// Drives `hosts` until `hosts[at]` has a completion.
pub(crate) fn next(hosts: &mut [&mut Host], at: usize) -> Completion {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < HANG, "no completion at host {at}");
        for (i, host) in hosts.iter_mut().enumerate() {
            if i != at {
                host.device.progress();
            }
        }
        if let Some(done) = hosts[at].poll() {
            return done;
        }
    }
}

/// As [`next`], and it must be good.
pub(crate) fn next_ok(hosts: &mut [&mut Host], at: usize) -> Completion {
    let done = next(hosts, at);
    assert_eq!(done.status, Status::Ok, "{done:?}");
    done
}

/// The bytes of a region.
pub(crate) fn bytes(region: &MemoryRegion) -> Vec<u8> {
    let mut out = vec![0; region.len()];
    region.read(0, &mut out).unwrap();
    out
}
