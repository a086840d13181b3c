//! `usb4ctl ping`: round trips of a message, one line each.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use usb4_ring::{Access, AddressHandle, MemoryRegion, Status, WorkRequest};

use crate::address;
use crate::output::{announce, line};
use crate::session::{Session, message_len, size};

/// Longest ping a server answers.
const MAX_SIZE: u64 = 1 << 20;
/// Receives a server keeps posted: all together are less memory than anybody may pin by default (8 MiB).
const SERVER_RECEIVES: u64 = 4;
const RECEIVED: u64 = 1 << 32;

/// Measures round trips to a peer. The server sleeps between pings, so a time includes its wake-up; `usb4ctl bench`
/// polls on both sides.
#[derive(clap::Args)]
#[command(override_usage = "usb4ctl ping [OPTIONS] ADDRESS\n       usb4ctl ping [OPTIONS] --serve")]
pub(crate) struct Arguments {
    /// Address printed by `usb4ctl ping --serve` at the peer.
    #[arg(required_unless_present = "serve", conflicts_with = "serve")]
    address: Option<String>,
    /// Answers pings until interrupted; prints the address to ping.
    #[arg(long)]
    serve: bool,
    /// Pings to send.
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Message size in bytes.
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=MAX_SIZE))]
    size: u64,
    /// Milliseconds between pings.
    #[arg(short, long, default_value_t = 100)]
    interval: u64,
}

pub(crate) fn run(device: Option<&str>, arguments: &Arguments) -> Result<()> {
    let session = Session::open(device)?;
    match &arguments.address {
        Some(address) => ping(session, address, arguments),
        None => serve(session),
    }
}

fn serve(mut session: Session) -> Result<()> {
    let memory = session
        .device
        .alloc(size(MAX_SIZE * SERVER_RECEIVES)?, Access::LOCAL)?;
    let slot = |index: u64, len| {
        memory
            .buffer(size(index * MAX_SIZE)?, len)
            .map_err(anyhow::Error::from)
    };
    for index in 0..SERVER_RECEIVES {
        session
            .ep
            .post_recv(RECEIVED | index, slot(index, size(MAX_SIZE)?)?)?;
    }
    session.ep.submit()?;
    announce("ping", &session.ep.address())?;
    loop {
        let done = session.sleep()?;
        let index = done.user_data & (RECEIVED - 1);
        let client = match (done.user_data & RECEIVED, done.status) {
            (RECEIVED, Status::Ok) => session.ep.source(done.source),
            // Answered; or the client has gone, and the next one may come.
            _ => None,
        };
        match client.and_then(|client| session.handle(&client).ok()) {
            Some(handle) => {
                let answer = WorkRequest::send(handle, slot(index, size(done.len.into())?)?);
                session.ep.post(&answer.user_data(index))?;
            }
            None => session
                .ep
                .post_recv(RECEIVED | index, slot(index, size(MAX_SIZE)?)?)?,
        }
        session.ep.submit()?;
    }
}

fn ping(mut session: Session, address: &str, arguments: &Arguments) -> Result<()> {
    let address = address::parse(address)?;
    let len = size(message_len(&session.device, arguments.size)?.into())?;
    let memory = session.device.alloc(2 * len, Access::LOCAL)?;
    let handle = session.ep.address_handle(&address)?;
    line(format_args!(
        "ping {address} with {len} bytes over {}",
        session.device.info().name
    ))?;
    let mut times = Vec::new();
    let outcome = rounds(&mut session, &memory, handle, len, arguments, &mut times);
    times.sort_unstable();
    if let (Some(least), Some(middle), Some(most)) = (times.first(), times.get(times.len() / 2), times.last())
    {
        let us = |time: &Duration| time.as_secs_f64() * 1e6;
        line(format_args!(
            "{} of {} pings answered; round trip, the server's wake-up included, min/median/max {:.2}/{:.2}/{:.2} us",
            times.len(),
            arguments.count,
            us(least),
            us(middle),
            us(most)
        ))?;
    }
    outcome
}

/// Pings until one fails; what each took goes to `times`.
fn rounds(
    session: &mut Session,
    memory: &MemoryRegion,
    handle: AddressHandle,
    len: usize,
    arguments: &Arguments,
    times: &mut Vec<Duration>,
) -> Result<()> {
    for sequence in 0..arguments.count {
        if sequence > 0 {
            std::thread::sleep(Duration::from_millis(arguments.interval));
        }
        memory.write(0, &sequence.to_le_bytes())?;
        memory.write(len, &[0xff; 8])?;
        let start = Instant::now();
        session.ep.post_recv(1, memory.buffer(len, len)?)?;
        session
            .ep
            .post(&WorkRequest::send(handle, memory.buffer(0, len)?).unsignaled())?;
        session.ep.submit()?;
        let done = session.next(Duration::from_secs(10))?;
        let spent = start.elapsed();
        let mut echo = [0; 8];
        memory.read(len, &mut echo)?;
        ensure!(
            size(done.len.into())? == len,
            "sent {len} bytes, {} came back",
            done.len
        );
        ensure!(
            u64::from_le_bytes(echo) == sequence,
            "ping {sequence} came back with another's bytes"
        );
        line(format_args!(
            "{len} bytes: seq={sequence} time={:.2} us",
            spent.as_secs_f64() * 1e6
        ))?;
        times.push(spent);
    }
    Ok(())
}
