//! Limits of a device, and what is said when they are reached.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Host, fabric, next_ok};
use usb4_ring::{Device, EndpointConfig, WorkRequest};

/// Peers a device can have, as the provider's README says.
const PEERS: usize = 63;

fn small(spec: &str) -> Host {
    let config = EndpointConfig {
        sq_depth: 16,
        rq_depth: 16,
        ..EndpointConfig::default()
    };
    Host::with(Device::open(spec).unwrap(), &config)
}

#[test]
fn one_peer_too_many_is_told_of_the_limit_and_fits_once_another_has_gone() {
    let spec = format!("soft:{}", fabric("peers"));
    let mut hub = small(&spec);
    let mut peers: Vec<Host> = (0..PEERS).map(|_| small(&spec)).collect();
    for peer in &peers {
        hub.ep.address_handle(&peer.ep.address()).unwrap();
    }
    let mut late = small(&spec);
    let called = hub.ep.address_handle(&late.ep.address()).unwrap_err();
    let calls = late.ep.address_handle(&hub.ep.address()).unwrap_err();
    for error in [called, calls] {
        let text = error.to_string();
        assert!(text.contains("63 peers already"), "{text}");
    }
    peers.pop();
    let start = std::time::Instant::now();
    let to = loop {
        match late.ep.address_handle(&hub.ep.address()) {
            Ok(to) => break to,
            Err(error) => assert!(start.elapsed() < common::HANG, "{error}"),
        }
    };
    let (from, into) = (late.memory(8, 1), hub.memory(8, 0));
    hub.ep.post_recv(1, into.buffer(0, 8).unwrap()).unwrap();
    hub.ep.submit().unwrap();
    late.ep
        .post(&WorkRequest::send(to, from.buffer(0, 8).unwrap()))
        .unwrap();
    late.ep.submit().unwrap();
    next_ok(&mut [&mut hub, &mut late], 0);
}
