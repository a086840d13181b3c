//! `usb4ctl`: sees and measures a USB4 RDMA fabric.
//!
//! One file per command: `devices.rs`, `status/`, `peers/`, `ping.rs`, `bench/`, `doctor/`, `lab/`. All but `status` and
//! `lab` use the ring API and nothing below it, so they work alike over the software cable and the real device; `status`
//! reads what the kernel shows, `lab` speaks to the emulator. Exit status: 0 done, 1 failed, 2 wrong usage; of `doctor` 0
//! no problem, 1 problems found, 2 could not look.

mod address;
mod bench;
mod devices;
mod doctor;
mod lab;
mod output;
mod peers;
mod ping;
mod session;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Sees and measures a USB4 RDMA fabric.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// Device: soft:NAME (software cable, the device in this process), soft:NAME,detached[=HOST] (in a process that
    /// all programs naming the same HOST share) or /dev/usb4ring (the kernel module's; this one if none is named)
    #[arg(long, env = "USB4_DEVICE", global = true)]
    device: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the device and the peers it sees.
    Devices(devices::Arguments),
    /// Shows links and rails, what they wait for, cables, controllers and counters.
    Status(status::Arguments),
    /// Shows and says which neighbours the kernel module lets in.
    Peers(peers::Arguments),
    /// Measures round trips to a peer that runs `usb4ctl ping --serve`.
    Ping(ping::Arguments),
    /// Measures latency and bandwidth over message sizes; alone it runs both ends.
    Bench(bench::Arguments),
    /// Finds what keeps NCCL or RCCL from using USB4, and says what mends it.
    Doctor(doctor::Arguments),
    /// Plugs, breaks and watches the emulated cables of a lab (a running usb4-nhi-emu).
    Lab(lab::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let device = arguments.device.as_deref().filter(|device| !device.is_empty());
    let outcome = match &arguments.command {
        Command::Devices(command) => devices::run(device, command),
        Command::Status(command) => status::run(device, command),
        Command::Peers(command) => peers::run(device, command),
        Command::Ping(command) => ping::run(device, command),
        Command::Bench(command) => bench::run(device, command),
        Command::Doctor(command) => return doctor::run(device, command),
        Command::Lab(command) => lab::run(command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let closed = error
                .downcast_ref::<output::Unwritable>()
                .is_some_and(output::Unwritable::is_closed);
            if !closed {
                output::remark(format_args!("usb4ctl: {}", sentence(&error)));
            }
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, but for those it has said already.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_cause_is_told_once() {
        let cause = std::io::Error::from(std::io::ErrorKind::NotFound);
        let text = cause.to_string();
        let told = Err::<(), _>(cause)
            .context(format!("cannot open: {text}"))
            .unwrap_err();
        assert_eq!(sentence(&told), format!("cannot open: {text}"));
        let told = Err::<(), _>(anyhow::anyhow!("b")).context("a").unwrap_err();
        assert_eq!(sentence(&told), "a: b");
    }
}
