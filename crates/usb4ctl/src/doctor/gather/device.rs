//! Opens the device and tries its links.

use usb4_ring::{CableState, Device, EndpointConfig, EpAddr, Error, PeerInfo, PeerState, Refusal, SoftError};

use crate::doctor::facts::{DeviceState, Peer, Standing};

/// Whether `spec` opens, and how its links stand.
pub(crate) fn state(spec: &str) -> DeviceState {
    match Device::open(spec) {
        Ok(device) => DeviceState::Open {
            backend: device.info().backend,
            node: device.info().node.to_string(),
            peers: peers(&device),
        },
        Err(error @ Error::BadSpec { .. }) => DeviceState::BadSpec(error.to_string()),
        Err(Error::NoDevice) => DeviceState::Missing,
        Err(Error::OpenDevice { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            DeviceState::Missing
        }
        Err(error @ Error::Permission { .. }) => DeviceState::Permission(error.to_string()),
        Err(error @ Error::AbiVersion { .. } | error @ Error::Soft(SoftError::ServerVersion)) => {
            DeviceState::Version(error.to_string())
        }
        Err(error) => DeviceState::Failed(error.to_string()),
    }
}

/// The peers there are, and hosts that are refused.
fn peers(device: &Device) -> Vec<Peer> {
    let mut peers: Vec<Peer> = device
        .peers()
        .into_iter()
        .map(|peer| Peer {
            node: peer.node.to_string(),
            standing: standing(device, &peer),
        })
        .collect();
    // A module of before there were rules does not tell.
    for cable in device.cables().unwrap_or_default() {
        let CableState::Refused(why) = cable.state else {
            continue;
        };
        let node = cable.node.map_or_else(
            || format!("the host at router {}", cable.router),
            |node| node.to_string(),
        );
        let standing = Standing::Refused {
            ours: why == Refusal::Rules,
            why: why.to_string(),
        };
        match peers.iter_mut().find(|peer| peer.node == node) {
            // By one cable and not by another.
            Some(peer) if matches!(peer.standing, Standing::Up { .. }) => {}
            Some(peer) => peer.standing = standing,
            None => peers.push(Peer { node, standing }),
        }
    }
    peers
}

/// How the link to `peer` stands. One that is made when it is first used is used.
fn standing(device: &Device, peer: &PeerInfo) -> Standing {
    match peer.state {
        PeerState::Up => return Standing::Up { rails: peer.rails },
        PeerState::Seen => {}
        _ => return Standing::Connecting,
    }
    match connect(device, peer) {
        Ok(()) => {
            let now = device.peers().into_iter().find(|one| one.node == peer.node);
            Standing::Up {
                rails: now.map_or(1, |now| now.rails),
            }
        }
        Err(error @ Error::Soft(SoftError::Version(_))) => Standing::Version(error.to_string()),
        Err(error) => Standing::Failed(error.to_string()),
    }
}

fn connect(device: &Device, peer: &PeerInfo) -> usb4_ring::Result<()> {
    let cq = device.create_cq(1)?;
    let mut endpoint = device.create_endpoint(&EndpointConfig::default(), &cq, &cq)?;
    // A handle is to a host; which endpoint of it matters only to what is sent.
    endpoint
        .address_handle(&EpAddr {
            node: peer.node,
            ep: 0,
            incarnation: 0,
        })
        .map(drop)
}
