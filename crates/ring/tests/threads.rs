//! Several threads: devices that call each other at the same moment, and one device used by many.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod common;

use std::sync::Barrier;
use std::time::Instant;

use common::{HANG, Host, fabric};
use usb4_ring::{Buffer, Completion, Device, EndpointConfig, Op, Status, WorkRequest};

#[test]
fn devices_that_all_call_each_other_at_once_get_one_link_per_pair() {
    const DEVICES: usize = 6;
    for _ in 0..5 {
        let spec = format!("soft:{}", fabric("mesh"));
        let mut hosts: Vec<Host> = (0..DEVICES).map(|_| Host::open(&spec)).collect();
        let addresses: Vec<_> = hosts.iter().map(|host| host.ep.address()).collect();
        let start = Barrier::new(DEVICES);
        std::thread::scope(|scope| {
            for (me, host) in hosts.iter_mut().enumerate() {
                let (addresses, start) = (&addresses, &start);
                scope.spawn(move || {
                    start.wait();
                    for offset in 0..DEVICES {
                        let peer = &addresses[(me + offset) % DEVICES];
                        let to = host.ep.address_handle(peer).unwrap();
                        host.ep
                            .post(&WorkRequest::send(to, Buffer::EMPTY).imm(me as u64))
                            .unwrap();
                        host.ep.post_recv(0, Buffer::EMPTY).unwrap();
                    }
                    host.ep.submit().unwrap();
                    let (mut heard, mut sent) = (vec![false; DEVICES], 0);
                    let began = Instant::now();
                    while sent < DEVICES || heard.contains(&false) {
                        assert!(began.elapsed() < HANG, "{me}: {sent} sent, heard {heard:?}");
                        let Some(done) = host.poll() else { continue };
                        assert_eq!(done.status, Status::Ok);
                        if done.op == Op::Receive {
                            heard[usize::try_from(done.imm.unwrap()).unwrap()] = true;
                        } else {
                            sent += 1;
                        }
                    }
                });
            }
        });
        for host in &hosts {
            let up = host.device.peers().iter().filter(|peer| peer.rails == 1).count();
            assert_eq!(up, DEVICES - 1);
        }
    }
}

/// Each thread has an endpoint of the same device and sends to all others; all of them drive.
#[test]
fn threads_share_a_device() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 2000;
    let device = Device::open(&format!("soft:{}", fabric("shared"))).unwrap();
    let mut hosts: Vec<Host> = (0..THREADS)
        .map(|_| Host::with(device.clone(), &EndpointConfig::default()))
        .collect();
    let addresses: Vec<_> = hosts.iter().map(|host| host.ep.address()).collect();
    std::thread::scope(|scope| {
        for host in &mut hosts {
            let addresses = &addresses;
            scope.spawn(move || {
                let memory = host.memory(8192, 3);
                let to: Vec<_> = addresses
                    .iter()
                    .map(|peer| host.ep.address_handle(peer).unwrap())
                    .collect();
                for _ in 0..64 {
                    host.ep.post_recv(0, memory.buffer(4096, 4096).unwrap()).unwrap();
                }
                host.ep.submit().unwrap();
                let all = ROUNDS * THREADS as u64;
                let (mut posted, mut sent, mut received) = (0, 0, 0);
                let began = Instant::now();
                while sent < all || received < all {
                    assert!(
                        began.elapsed() < HANG,
                        "{sent} sent, {received} received of {all}"
                    );
                    while posted < all && posted - sent < 32 {
                        let len = usize::try_from(posted * 37 % 4097).unwrap();
                        let peer = to[usize::try_from(posted).unwrap() % THREADS];
                        let request = WorkRequest::send(peer, memory.buffer(0, len).unwrap());
                        host.ep.post(&request).unwrap();
                        posted += 1;
                    }
                    host.ep.submit().unwrap();
                    host.device.progress();
                    let mut out = [Completion::default(); 32];
                    let count = host.cq.poll(&mut out);
                    for done in &out[..count] {
                        assert_eq!(done.status, Status::Ok);
                        if done.op == Op::Receive {
                            received += 1;
                            host.ep.post_recv(0, memory.buffer(4096, 4096).unwrap()).unwrap();
                        } else {
                            sent += 1;
                        }
                    }
                }
            });
        }
    });
}
