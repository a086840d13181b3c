//! `usb4-nhi-emu`: emulates USB4 host routers for QEMU.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{ArgAction, Parser};
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing::Level;
use usb4_nhi_emu::{Emulator, Map, Options};
use usb4_nhi_model::Topology;

/// Emulates USB4 host routers and the cables between them. QEMU attaches to DIR/nhi0.sock, DIR/nhi1.sock ... by
/// vfio-user.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// Folder of the sockets
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Hosts and cables: pair, pair2, triangle, chain, chain4 or none, then settings, as in
    /// pair,lanes=1,hops=strix,pci=8086:ff01
    #[arg(long, default_value = "pair", value_parser = |text: &str| text.parse::<Topology>())]
    topology: Topology,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Guests write doorbells into shared memory instead of trapping: faster, but the order of events is not the same
    /// every time
    #[arg(long)]
    mmap: bool,
    /// Like --mmap, and the interrupt mask too (needs Intel's vendor id)
    #[arg(long)]
    mmap_interrupts: bool,
    /// Microseconds for which mapped registers are looked at without a pause after the last change; more than 0 only
    /// pays with more cores than guests
    #[arg(long, default_value_t = 0, value_name = "US")]
    spin: u64,
    /// Say more: -v what happens, -vv control packets, -vvv everything
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("usb4-nhi-emu: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let level = match arguments.verbose {
        0 => Level::WARN,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_timer(tracing_subscriber::fmt::time::uptime())
        .with_target(false)
        .init();
    // The default slack of 50 us is as long as the shortest interrupt moderation.
    let slack = std::num::NonZeroU64::new(1);
    rustix::thread::set_current_timer_slack(slack).context("cannot set the timer slack")?;

    let (mut stopped, stop) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, stop.try_clone()?)?;
    }
    let mut emulator = Emulator::new(Options {
        dir: arguments.dir.clone(),
        topology: arguments.topology.clone(),
        seed: arguments.seed,
        map: match (arguments.mmap_interrupts, arguments.mmap) {
            (true, _) => Map::DoorbellsAndInterrupts,
            (false, true) => Map::Doorbells,
            (false, false) => Map::Nothing,
        },
        spin: Duration::from_micros(arguments.spin),
    })?;
    emulator.run(stopped.as_fd())?;
    stopped.set_nonblocking(true)?;
    let _signals = stopped.read(&mut [0; 16])?;
    Ok(())
}
