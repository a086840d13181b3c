//! Half-round-trip time and bandwidth between two processes, each polling on a processor of its own:
//! `cargo run --release -p usb4-ring --example pingpong -- [BYTES [MESSAGES]]`. Best of twenty rounds.
//!
//! The second process is this program again; the two find each other on a fabric named after the first.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use usb4_ring::{
    Access, AddressHandle, Completion, Cq, Device, EP_ADDR_LEN, Endpoint, EndpointConfig, EpAddr,
    MemoryRegion, Status, WorkRequest,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The best of so many rounds counts.
const ROUNDS: usize = 20;

/// Sends in flight in the bandwidth part.
const WINDOW: usize = 16;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: usize| arguments.get(i).map_or(Ok(or), |text| text.parse());
    if arguments.first().is_some_and(|first| first == "peer") {
        return peer(&arguments[1], number(2, 64)?, number(3, 5_000)?);
    }
    let (len, count) = (number(0, 64)?, number(1, 5_000)?);
    let fabric = format!("pingpong-{}", std::process::id());
    let mut child = Command::new(std::env::current_exe()?)
        .args(["peer", &fabric, &len.to_string(), &count.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    pin(0);
    let mut side = Side::open(&fabric, len)?;
    let mut to_peer = child.stdin.take().ok_or("no standard input")?;
    writeln!(to_peer, "{}", hex(&side.ep.address()))?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
    let to = side.ep.address_handle(&address(&line)?)?;

    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..count {
            side.send(to)?;
            side.receive()?;
        }
        best = best.min(start.elapsed().as_secs_f64() / count as f64 / 2.0);
    }
    println!("{len} bytes: {:.3} us half round trip", best * 1e6);

    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        side.stream(to, count)?;
        best = best.min(start.elapsed().as_secs_f64() / count as f64);
    }
    let (rate, bytes) = (1.0 / best, len as f64 / best);
    println!(
        "{len} bytes: {:.3} GB/s, {:.3} million messages/s one way",
        bytes / 1e9,
        rate / 1e6
    );
    drop(to_peer);
    child.wait()?;
    Ok(())
}

/// The other process: sends back what it gets, then takes in a stream.
fn peer(fabric: &str, len: usize, count: usize) -> Result<()> {
    pin(1);
    let mut side = Side::open(fabric, len)?;
    println!("{}", hex(&side.ep.address()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let to = side.ep.address_handle(&address(&line)?)?;
    for _ in 0..ROUNDS * count {
        side.receive()?;
        side.send(to)?;
    }
    for _ in 0..ROUNDS * count {
        side.receive()?;
    }
    // Until the other side has seen that everything has arrived.
    while std::io::stdin().read_line(&mut line)? != 0 {}
    Ok(())
}

/// An endpoint that always has a full queue of receives.
struct Side {
    ep: Endpoint,
    sends: Cq,
    receives: Cq,
    device: Device,
    memory: MemoryRegion,
    len: usize,
    outstanding: usize,
}

impl Side {
    fn open(fabric: &str, len: usize) -> Result<Self> {
        let suffix = std::env::var("PINGPONG_OPTIONS").unwrap_or_default();
        let device = Device::open(&format!("soft:{fabric}{suffix}"))?;
        let (sends, receives) = (device.create_cq(256)?, device.create_cq(256)?);
        let mut ep = device.create_endpoint(&EndpointConfig::default(), &sends, &receives)?;
        let memory = device.alloc((len * 2).max(1), Access::LOCAL)?;
        for _ in 0..128 {
            ep.post_recv(0, memory.buffer(len, len)?)?;
        }
        ep.submit()?;
        Ok(Self {
            ep,
            sends,
            receives,
            device,
            memory,
            len,
            outstanding: 0,
        })
    }

    fn send(&mut self, to: AddressHandle) -> Result<()> {
        self.ep
            .post(&WorkRequest::send(to, self.memory.buffer(0, self.len)?))?;
        self.outstanding += 1;
        Ok(self.ep.submit()?)
    }

    /// Waits for the next message and replaces its receive.
    fn receive(&mut self) -> Result<()> {
        let mut done = [Completion::default()];
        while self.receives.poll(&mut done) == 0 {
            self.device.progress();
        }
        check(&done)?;
        self.reap()?;
        self.ep.post_recv(0, self.memory.buffer(self.len, self.len)?)?;
        Ok(self.ep.submit()?)
    }

    fn reap(&mut self) -> Result<()> {
        let mut done = [Completion::default(); 16];
        let count = self.sends.poll(&mut done);
        self.outstanding -= count;
        check(&done[..count])
    }

    fn stream(&mut self, to: AddressHandle, count: usize) -> Result<()> {
        for _ in 0..count {
            self.send(to)?;
            while self.outstanding >= WINDOW {
                self.device.progress();
                self.reap()?;
            }
        }
        while self.outstanding > 0 {
            self.device.progress();
            self.reap()?;
        }
        Ok(())
    }
}

fn check(done: &[Completion]) -> Result<()> {
    match done.iter().find(|done| done.status != Status::Ok) {
        Some(bad) => Err(format!("{bad:?}").into()),
        None => Ok(()),
    }
}

fn hex(address: &EpAddr) -> String {
    address
        .to_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn address(text: &str) -> Result<EpAddr> {
    let mut bytes = [0; EP_ADDR_LEN];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2).ok_or("a short address")?, 16)?;
    }
    Ok(EpAddr::from_bytes(&bytes))
}

/// Keeps this thread on one processor, if there is that processor.
fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
