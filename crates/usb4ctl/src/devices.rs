//! `usb4ctl devices`.

use anyhow::Result;
use serde::Serialize;

use crate::session;

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
    backend: String,
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
    state: String,
    rails: u8,
    pid: Option<u32>,
}

pub(crate) fn run(device: Option<&str>, arguments: &Arguments) -> Result<()> {
    let device = session::open(device)?;
    let info = device.info();
    let peers = device.peers().into_iter().map(|peer| Peer {
        node: peer.node.to_string(),
        state: format!("{:?}", peer.state).to_lowercase(),
        rails: peer.rails,
        pid: peer.pid,
    });
    let report = Report {
        name: info.name.clone(),
        backend: format!("{:?}", info.backend),
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
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!("device   {} ({})", report.name, report.backend);
    println!("node     {}", report.node);
    println!(
        "limits   message {} B, queue {}, CQ {}",
        report.max_message, report.max_queue_depth, report.max_cq_depth
    );
    println!(
        "         {} endpoints, {} CQs, {} memory regions",
        report.max_endpoints, report.max_cqs, report.max_regions
    );
    if report.peers.is_empty() {
        println!("peers    none: start another process with the same USB4_DEVICE");
    }
    for peer in &report.peers {
        let pid = peer.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
        println!(
            "peer     {} {} ({} rails{pid})",
            peer.node, peer.state, peer.rails
        );
    }
    Ok(())
}
