//! Clients of a detached device that die or lie, and devices that die.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use usb4_ring::{
    Access, Buffer, Completion, Cq, Device, Endpoint, EndpointConfig, Error, Status, WorkRequest,
};
use usb4_soft::{Client, EndpointKind};

const HANG: Duration = Duration::from_secs(30);

/// In a child: the device to open.
const SPEC: &str = "USB4_SOFT_TEST_SPEC";

fn fabric(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static SERVER: Once = Once::new();
    // SAFETY: before any other thread of this program reads the environment through this crate.
    SERVER.call_once(|| unsafe {
        std::env::set_var(usb4_soft::SERVER_VARIABLE, env!("CARGO_BIN_EXE_usb4-softd"))
    });
    format!(
        "{test}-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

struct Host {
    ep: Endpoint,
    cq: Cq,
    device: Device,
}

impl Host {
    fn open(spec: &str) -> Self {
        let device = Device::open(spec).unwrap();
        let cq = device.create_cq(256).unwrap();
        let ep = device
            .create_endpoint(&EndpointConfig::default(), &cq, &cq)
            .unwrap();
        Self { ep, cq, device }
    }

    fn next(&mut self) -> Completion {
        let start = Instant::now();
        let mut out = [Completion::default()];
        while self.cq.poll(&mut out) == 0 {
            assert!(start.elapsed() < HANG, "no completion");
            self.device.progress();
        }
        out[0]
    }

    /// A message to oneself: the device works.
    fn works(&mut self) {
        let me = self.ep.address();
        let to = self.ep.address_handle(&me).unwrap();
        self.ep.post_recv(1, Buffer::EMPTY).unwrap();
        self.ep.post(&WorkRequest::send(to, Buffer::EMPTY)).unwrap();
        self.ep.submit().unwrap();
        for _ in 0..2 {
            assert_eq!(self.next().status, Status::Ok);
        }
        self.ep.close_handle(to);
    }
}

/// Not a test: a client that allocates, announces its address and waits to be killed.
#[test]
fn child() {
    let Ok(spec) = std::env::var(SPEC) else { return };
    let mut host = Host::open(&spec);
    let memory = host.device.alloc(1 << 20, Access::REMOTE_ALL).unwrap();
    host.ep.post_recv(1, memory.buffer(0, 64).unwrap()).unwrap();
    host.ep.submit().unwrap();
    println!("address {:?}", host.ep.address().to_bytes());
    loop {
        std::thread::park();
    }
}

#[allow(clippy::zombie_processes, reason = "the caller waits for it")]
fn start(spec: &str) -> (Child, usb4_ring::EpAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(SPEC, spec)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    for line in stdout.lines() {
        let line = line.unwrap();
        if let Some(at) = line.find("address [") {
            let list = line[at..].trim_start_matches("address [").trim_end_matches(']');
            let bytes: Vec<u8> = list.split(", ").map(|byte| byte.parse().unwrap()).collect();
            return (child, usb4_ring::EpAddr::from_bytes(&bytes.try_into().unwrap()));
        }
    }
    panic!("the child has ended");
}

#[test]
fn a_killed_client_is_torn_down_with_all_it_had() {
    let spec = format!("soft:{},detached=h", fabric("killed"));
    let mut host = Host::open(&spec);
    // More rounds than a device has places for clients.
    for _ in 0..20 {
        let (mut child, address) = start(&spec);
        let to = host.ep.address_handle(&address).unwrap();
        // One message is received, the others wait for receives that never come.
        for i in 0..8 {
            host.ep
                .post(&WorkRequest::send(to, Buffer::EMPTY).user_data(i))
                .unwrap();
        }
        host.ep.submit().unwrap();
        assert_eq!(
            (host.next().status, host.cq.poll(&mut [Completion::default()])),
            (Status::Ok, 0)
        );
        child.kill().unwrap();
        child.wait().unwrap();
        for _ in 1..8 {
            assert_eq!(host.next().status, Status::Gone);
        }
        host.ep.close_handle(to);
    }
    host.works();
}

#[test]
fn a_killed_device_is_noticed_by_its_clients() {
    let fabric = fabric("device");
    let mut server = Command::new(env!("CARGO_BIN_EXE_usb4-softd"))
        .args(["--foreground", &fabric, "h"])
        .spawn()
        .unwrap();
    while !std::fs::read_to_string("/proc/net/unix")
        .unwrap()
        .contains(&fabric)
    {
        std::thread::yield_now();
    }
    let mut host = Host::open(&format!("soft:{fabric},detached=h"));
    host.works();
    let to = host.ep.address_handle(&host.ep.address()).unwrap();
    assert!(!host.cq.wait(Some(Duration::from_millis(5))).unwrap());
    server.kill().unwrap();
    server.wait().unwrap();
    // The sleeper is woken by the end of its device.
    assert!(matches!(host.cq.wait(Some(HANG)), Err(Error::Gone)));
    host.ep.post(&WorkRequest::send(to, Buffer::EMPTY)).unwrap();
    assert!(matches!(host.ep.submit(), Err(Error::Gone)));
    assert!(matches!(host.device.create_cq(8), Err(Error::Gone)));
    assert!(matches!(
        host.ep.address_handle(&host.ep.address()),
        Err(Error::Gone)
    ));
}

/// A client that scribbles over its queues while the device reads them.
#[test]
fn a_hostile_client_kills_only_its_own_endpoint() {
    let fabric = fabric("hostile");
    let mut host = Host::open(&format!("soft:{fabric},detached=h"));
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..30 {
        let client = Client::detached(&fabric, "h").unwrap();
        let cq = client.create_cq(64).unwrap();
        let ep = client
            .create_endpoint(EndpointKind::Datagram, (16, 16), (cq.id, cq.id))
            .unwrap();
        let region = client.alloc(4096, usb4_soft::Access::REMOTE_WRITE).unwrap();
        let handle = client
            .address_handle(ep.id, EndpointKind::Datagram, &ep.address, Some(HANG))
            .unwrap();
        let words: Vec<&std::sync::atomic::AtomicU64> =
            ep.sq.iter().chain(ep.rq.iter()).chain(cq.memory.iter()).collect();
        for step in 0..2000 {
            let at = usize::try_from(random() % words.len() as u64).unwrap();
            // Half of the time something that looks right: small numbers, our keys, our addresses.
            let value = match random() % 8 {
                0 => random() % 64,
                1 => u64::from(region.local_key) | (64 << 32),
                2 => region.start as u64 + random() % 8192,
                3 => (u64::from(handle.unwrap()) << 32) | (random() % 6) | ((random() % 4) << 8),
                _ => random(),
            };
            words[at].store(value, Ordering::Relaxed);
            if step % 64 == 0 {
                // The producer's index moves on, or jumps.
                ep.sq[0].fetch_add(random() % 3, Ordering::Release);
                let _ = client.submit(ep.id, || true);
            }
        }
        if round % 5 == 0 {
            host.works();
        }
    }
    host.works();
}
