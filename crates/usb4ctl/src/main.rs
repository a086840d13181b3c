//! `usb4ctl`: sees and measures a USB4 RDMA fabric.
//!
//! One file per command: `devices.rs`, `ping.rs`, `bench/`. All of them use the ring API and nothing below it, so
//! they work alike over the software cable and the real device. Exit status: 0 done, 1 failed, 2 wrong usage.

mod address;
mod bench;
mod devices;
mod ping;
mod session;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Sees and measures a USB4 RDMA fabric.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// Device: soft:NAME, soft:NAME,detached or /dev/usb4ring [default: the real device]
    #[arg(long, env = "USB4_DEVICE", global = true)]
    device: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the device and the peers it sees.
    Devices(devices::Arguments),
    /// Measures round trips to a peer that runs `usb4ctl ping --serve`.
    Ping(ping::Arguments),
    /// Measures latency and bandwidth over message sizes; alone it runs both ends.
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let device = arguments.device.as_deref();
    let outcome = match &arguments.command {
        Command::Devices(command) => devices::run(device, command),
        Command::Ping(command) => ping::run(device, command),
        Command::Bench(command) => bench::run(device, command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usb4ctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}
