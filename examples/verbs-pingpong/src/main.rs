//! Ping-pong over libibverbs: a reliable connection, each message looked at by who gets it. Nothing here is special to USB4.
//! It plays with `examples/c/verbs-pingpong.c`, too.

mod side;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use rdma_core_sys::client::Gid;

use crate::side::{Completed, ROOM, Side, context};

/// Plays ping-pong over libibverbs; without HOST it waits for whoever does.
#[derive(Parser)]
struct Arguments {
    /// Who waits for a ping-pong: an IPv4 address, or a name that has one.
    host: Option<String>,
    /// Messages each way.
    #[arg(default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Bytes of each.
    #[arg(default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=ROOM as i64))]
    size: u32,
    /// The device, as `ibv_devices` names it.
    #[arg(long, env = "IBV_DEVICE", default_value = "usb4_0")]
    device: String,
    /// Index of its GID.
    #[arg(long, env = "IBV_GID", default_value_t = 0)]
    gid: u8,
}

/// Where both sides tell each other how their queue pairs are reached.
const PORT: u16 = 18516;

/// How a queue pair is reached, and what is to be played.
struct Card {
    gid: Gid,
    number: u32,
    count: u32,
    size: u32,
}

impl Card {
    fn to_bytes(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        let numbers = [self.number, self.count, self.size].map(u32::to_be_bytes);
        let all = self.gid.iter().chain(numbers.iter().flatten());
        for (place, byte) in bytes.iter_mut().zip(all) {
            *place = *byte;
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; 28]) -> Result<Self> {
        let (gid, numbers) = bytes.split_first_chunk().context("no GID")?;
        let mut numbers = numbers.chunks_exact(4).map(<[u8; 4]>::try_from);
        let mut next =
            || -> Result<u32> { Ok(u32::from_be_bytes(numbers.next().context("a card is short")??)) };
        Ok(Self {
            gid: *gid,
            number: next()?,
            count: next()?,
            size: next()?,
        })
    }
}

fn exchange<const N: usize>(stream: &mut TcpStream, mine: &[u8; N]) -> Result<[u8; N]> {
    let mut theirs = [0; N];
    context(stream.write_all(mine))?;
    context(stream.read_exact(&mut theirs))?;
    Ok(theirs)
}

fn meet(host: Option<&str>) -> Result<TcpStream> {
    match host {
        Some(host) => TcpStream::connect((host, PORT)).with_context(|| format!("connect to {host}")),
        None => {
            let listener =
                TcpListener::bind(("0.0.0.0", PORT)).with_context(|| format!("listen at port {PORT}"))?;
            Ok(listener.accept()?.0)
        }
    }
}

/// One message each way for each of `count`; whoever is `first` begins.
fn play(side: &mut Side, (count, size): (u32, usize), first: bool) -> Result<()> {
    let (mut sent, mut received) = (0, 0);
    let mut wait = |side: &Side, sends: u32, receives: u32| -> Result<()> {
        while sent < sends || received < receives {
            match side.wait()? {
                Completed::Sent => sent += 1,
                Completed::Received(len) => {
                    ensure!(len == size, "{len} bytes came, not {size}");
                    received += 1;
                }
            }
        }
        Ok(())
    };
    for message in 0..count {
        let [value, ..] = message.to_le_bytes();
        let is_last = message + 1 == count;
        if !first {
            wait(side, message, message + 1)?;
            side.check(size, value)?;
            if !is_last {
                side.post_receive()?;
            }
        }
        side.send(size, value)?;
        if first {
            wait(side, message + 1, message + 1)?;
            side.check(size, value)?;
            if !is_last {
                side.post_receive()?;
            }
        } else {
            wait(side, message + 1, message + 1)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbs-pingpong: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = Arguments::parse();
    let mut side = Side::open(&arguments.device, arguments.gid)?;
    side.post_receive()?;
    let (gid, number) = side.address()?;
    let mut stream = meet(arguments.host.as_deref())?;
    let (count, size) = (arguments.count, arguments.size);
    let card = Card {
        gid,
        number,
        count,
        size,
    };
    let peer = Card::from_bytes(&exchange(&mut stream, &card.to_bytes())?)?;
    side.connect(peer.gid, peer.number)?;
    let first = arguments.host.is_some();
    // The client says what is played.
    let (count, size) = if first {
        (count, size)
    } else {
        (peer.count, peer.size)
    };
    let size = usize::try_from(size)?;
    ensure!(
        (1..=1_000_000).contains(&count) && size <= ROOM,
        "the client asks for {count} messages of {size} bytes"
    );
    exchange(&mut stream, &[0])?;
    let began = Instant::now();
    play(&mut side, (count, size), first)?;
    let us = began.elapsed().as_secs_f64() * 1e6 / (2.0 * f64::from(count));
    // Who leaves first would take what the other still waits for along.
    exchange(&mut stream, &[0])?;
    let line = format!("{count} messages of {size} bytes each way, every byte right: {us:.2} us each");
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_the_bytes_of_the_example_in_c() {
        let card = Card {
            gid: [7; 16],
            number: 0x1_0203,
            count: 5,
            size: 6,
        };
        let bytes = card.to_bytes();
        assert_eq!(bytes[16..], [0, 1, 2, 3, 0, 0, 0, 5, 0, 0, 0, 6]);
        let read = Card::from_bytes(&bytes).unwrap();
        assert_eq!(
            (read.gid, read.number, read.count, read.size),
            ([7; 16], 0x1_0203, 5, 6)
        );
    }
}
