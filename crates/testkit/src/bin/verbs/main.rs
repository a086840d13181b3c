//! `usb4-verbs`: moves data between two hosts through libibverbs, on whatever device, both ways at once, and looks at every byte.
//! It runs every operation over every transport that has it, with 1, 4 and 32 queue pairs. The exit status is the verdict.

mod atomics;
mod case;
mod device;
mod memory;
mod peer;
mod places;
mod run;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use case::Case;
use device::{Device, Wanted};
use peer::Peer;
use run::Moved;

/// Moves data between two hosts through libibverbs, and looks at every byte.
#[derive(Parser)]
struct Arguments {
    /// The device, as `ibv_devices` names it.
    #[arg(long, default_value = "usb4_0")]
    device: String,
    /// Index of its GID.
    #[arg(long, default_value_t = 0)]
    gid: u8,
    /// Bytes of a frame, and of the longest datagram.
    #[arg(long, default_value_t = 4096, value_parser = mtu)]
    mtu: u32,
    /// Is the other side, at this address, until it is ended.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "connect")]
    listen: Option<String>,
    /// Where that is.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "listen")]
    connect: Option<String>,
    /// Runs only cases whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// How many times as many messages.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    times: u32,
}

fn mtu(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
        _ => Err("256, 512, 1024, 2048 or 4096".to_string()),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match begin(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usb4-verbs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn begin(arguments: &Arguments) -> Result<()> {
    let device = Device::open(
        &Wanted {
            name: arguments.device.clone(),
            gid_index: arguments.gid,
            mtu: arguments.mtu,
        },
        places::BYTES,
    )?;
    match (&arguments.listen, &arguments.connect) {
        (Some(address), _) => serve(&device, address),
        (_, address) => all(arguments, &device, address.as_deref().unwrap_or_default()),
    }
}

/// Does the other side's part, of one case after the other, without end.
fn serve(device: &Device, address: &str) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen at {address}"))?;
    for stream in listener.incoming() {
        let mut peer = Peer::new(stream?)?;
        let result = peer
            .hear()
            .and_then(|case: Case| run::run(device, &mut peer, &case, 0));
        if let Err(error) = result {
            peer.fail(&error);
            eprintln!("usb4-verbs: {error:#}");
        }
    }
    Ok(())
}

/// Each has a connection of its own, as one that fails leaves that in any state.
fn one(device: &Device, address: &str, case: &Case) -> Result<Moved> {
    let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    let mut peer = Peer::new(stream)?;
    peer.say(case)?;
    let result = run::run(device, &mut peer, case, 1);
    if let Err(error) = &result {
        peer.fail(error);
    }
    result
}

fn all(arguments: &Arguments, device: &Device, address: &str) -> Result<()> {
    let mut out = std::io::stdout();
    let (mut passed, mut failed, mut total) = (0, 0, Moved::default());
    for case in case::all(arguments.times, arguments.mtu) {
        if !case.to_string().contains(&arguments.filter) {
            continue;
        }
        match one(device, address, &case) {
            Ok(moved) => {
                passed += 1;
                total.messages += moved.messages;
                total.bytes += moved.bytes;
                writeln!(out, "ok    {case}")?;
            }
            Err(error) => {
                failed += 1;
                writeln!(out, "FAIL  {case}: {error:#}")?;
            }
        }
    }
    let mega = total.bytes / 1_000_000;
    writeln!(
        out,
        "verbs {}: {} messages and {mega} MB each way, every byte looked at: {passed} passed, {failed} failed",
        arguments.device, total.messages
    )?;
    ensure!(passed + failed > 0, "no case matches {:?}", arguments.filter);
    ensure!(failed == 0, "{failed} cases failed");
    Ok(())
}
