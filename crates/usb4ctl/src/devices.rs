//! `usb4ctl devices`.

use anyhow::Result;
use serde::Serialize;
use usb4_ring::{Backend, PeerState};

use crate::output::line;
use crate::session::{self, backend};

/// Shows the device and the peers it sees.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    name: String,
    backend: &'static str,
    node: String,
    process_memory: bool,
    max_message: u32,
    max_queue_depth: u32,
    max_cq_depth: u32,
    max_endpoints: u32,
    max_cqs: u32,
    max_regions: u32,
    peers: Vec<Peer>,
}

#[derive(Serialize)]
struct Peer {
    node: String,
    state: &'static str,
    rails: u8,
    pid: Option<u32>,
}

pub(crate) fn run(device: Option<&str>, arguments: &Arguments) -> Result<()> {
    show(device, arguments.json)
}

/// Shows a device, to programs or to people.
///
/// # Errors
///
/// Whatever keeps it from opening.
pub(crate) fn show(device: Option<&str>, json: bool) -> Result<()> {
    let device = session::open(device)?;
    let info = device.info();
    let peers = device.peers().into_iter().map(|peer| Peer {
        node: peer.node.to_string(),
        state: state(peer.state),
        rails: peer.rails,
        pid: peer.pid,
    });
    let report = Report {
        name: info.name.clone(),
        backend: backend(info.backend).0,
        node: info.node.to_string(),
        process_memory: info.process_memory,
        max_message: info.max_message,
        max_queue_depth: info.max_queue_depth,
        max_cq_depth: info.max_cq_depth,
        max_endpoints: info.max_endpoints,
        max_cqs: info.max_cqs,
        max_regions: info.max_regions,
        peers: peers.collect(),
    };
    if json {
        return line(serde_json::to_string_pretty(&report)?);
    }
    line(format_args!(
        "device   {} ({})",
        report.name,
        backend(info.backend).1
    ))?;
    line(format_args!("node     {}", report.node))?;
    line(format_args!(
        "limits   message {} B, queue {}, CQ {}",
        report.max_message, report.max_queue_depth, report.max_cq_depth
    ))?;
    line(format_args!(
        "         {} endpoints, {} CQs, {} memory regions",
        report.max_endpoints, report.max_cqs, report.max_regions
    ))?;
    if report.peers.is_empty() {
        line(format_args!(
            "peers    none: {}",
            how_to_meet_one(&report.name, info.backend)
        ))?;
    }
    for peer in &report.peers {
        let pid = peer.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
        let rails = match (peer.state, peer.rails) {
            ("seen", _) => "no link yet: made when it is first used".to_string(),
            (_, 1) => "1 rail".to_string(),
            (_, rails) => format!("{rails} rails"),
        };
        line(format_args!(
            "peer     {} {} ({rails}{pid})",
            peer.node, peer.state
        ))?;
    }
    Ok(())
}

fn state(state: PeerState) -> &'static str {
    match state {
        PeerState::Seen => "seen",
        PeerState::Connecting => "connecting",
        PeerState::Up => "up",
        _ => "unknown",
    }
}

/// What gives the device called `name` a peer.
fn how_to_meet_one(name: &str, backend: Backend) -> String {
    match (backend, name.split_once(',')) {
        (Backend::SoftDetached, Some((cable, _))) => format!(
            "every process with {name} shares this device; a peer is another HOST on the cable: \
             {cable},detached=HOST, or {cable}"
        ),
        (Backend::Kernel, _) => "is a cable plugged in, and usb4_rdma loaded at its other end?".to_string(),
        _ => "start another process with the same USB4_DEVICE".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detached_device_is_told_of_another_host_and_not_of_the_same_name() {
        let hint = how_to_meet_one("soft:a,detached", Backend::SoftDetached);
        assert!(hint.contains("soft:a,detached=HOST"), "{hint}");
        assert!(!hint.contains("same USB4_DEVICE"), "{hint}");
    }
}
