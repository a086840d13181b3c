//! The one device NCCL sees: all rails of this host to all its peers.

use nccl_net_sys::NCCL_PTR_HOST;
use usb4_ffi::{Level, log};
use usb4_ring::{Backend, Device, Error, PeerState};

use super::fault::{Blame, Fault};
use super::hub::MAX_COMMS;
use super::params::Params;

/// Mb/s of a link whose device does not say: one USB4 lane pair at 40 Gb/s, less what coding and tunnels leave.
const USUAL_SPEED: i32 = 32_000;

/// Mb/s of the software cable: about what two processes copy through shared memory.
const SOFT_SPEED: i32 = 50_000;

/// Microseconds between two processes over the software cable, and between two hosts.
const SOFT_LATENCY: u16 = 2;
const USUAL_LATENCY: u16 = 10;

/// What NCCL wants to know of it, whatever the version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Facts {
    pub(crate) guid: u64,
    pub(crate) speed: i32,
    pub(crate) latency: f32,
    pub(crate) max_comms: i32,
    pub(crate) memory: i32,
}

/// Opens the device and makes sure that it can be used.
///
/// A host without a link up has no use for it. The software cable has always one: to the process itself; others appear
/// when they start, as ranks do.
pub(crate) fn open() -> Result<Device, Fault> {
    let device = Device::open_env().map_err(|error| {
        let blame = match error {
            Error::BadSpec { .. } => Blame::Usage,
            _ => Blame::System,
        };
        Fault::new(blame, error)
    })?;
    check(&device)?;
    Ok(device)
}

/// Whether the device can be used.
pub(crate) fn check(device: &Device) -> Result<(), Fault> {
    device.check()?;
    let info = device.info();
    if info.backend == Backend::SoftDetached {
        return Err(Fault::new(
            Blame::Usage,
            format_args!(
                "{}: a device in another process cannot reach the memory NCCL sends from; use the same name without \
                 `,detached`",
                info.name
            ),
        ));
    }
    let peers = device.peers();
    let up = peers.iter().filter(|peer| peer.state == PeerState::Up).count();
    if info.backend == Backend::Kernel && up == 0 {
        let seen = peers.len();
        return Err(Fault::new(
            Blame::System,
            format_args!(
                "no link is up on {} ({seen} peers seen): is the USB4 cable plugged in at both ends, and the module usb4_rdma \
                 loaded on the other host? `usb4ctl doctor` looks closer",
                info.name
            ),
        ));
    }
    log(
        Level::Info,
        format_args!(
            "{}: node {}, {up} links to other hosts are up",
            info.name, info.node
        ),
    );
    Ok(())
}

/// What there is to say of it. It is as quick as its slowest link that is up.
pub(crate) fn facts(device: &Device, params: &Params) -> Facts {
    let info = device.info();
    let (low, high) = info.node.halves();
    let peers = device.peers();
    let up = peers.iter().filter(|peer| peer.state == PeerState::Up);
    let rate = up.map(|peer| peer.rate_mbps).filter(|rate| *rate != 0).min();
    let rate = rate.and_then(|rate| i32::try_from(rate).ok());
    let (speed, latency) = match info.backend {
        Backend::Kernel => (USUAL_SPEED, USUAL_LATENCY),
        _ => (SOFT_SPEED, SOFT_LATENCY),
    };
    Facts {
        guid: low ^ high,
        speed: params.speed.or(rate).unwrap_or(speed),
        latency: f32::from(params.latency.unwrap_or(latency)),
        max_comms: i32::try_from(MAX_COMMS).unwrap_or(i32::MAX),
        memory: NCCL_PTR_HOST,
    }
}
