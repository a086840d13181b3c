//! `cargo xtask bench`: usb4 on the soft cable next to libfabric's own shm and tcp, measured in one run.
//!
//! fi_pingpong (from Intel MPI's libfabric, which has all three) with tagged messages, server and client each
//! pinned to a core, the providers taking turns; the best of several rounds counts, since noise only slows.
//! Not a CI gate: other load on the machine changes the ratios, and the verdict says so where there was any.

use crate::load::Load;
use crate::process;
use crate::provider;
use crate::ui::{Task, Verdict};
use crate::wheel::INTEL_MPI;
use crate::workspace::work;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds; the best counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Cores for server and client.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "0,1")]
    cores: Vec<u32>,
    /// `USB4_DEVICE` for usb4.
    #[arg(long, default_value = "soft")]
    device: String,
}

const PROVIDERS: [&str; 3] = ["usb4", "shm", "tcp"];
/// Bytes and round trips. fi_pingpong has no warm-up: enough of them that the milliseconds in which the two find each other
/// do not count.
const SIZES: [(u32, u32); 3] = [(64, 200_000), (4096, 50_000), (1 << 20, 500)];

/// What one provider did best.
#[derive(Clone, Copy)]
struct Best {
    /// Microseconds for half a round trip, per entry of [`SIZES`].
    half: [f64; SIZES.len()],
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let [server, client] = args.cores.as_slice() else {
        bail!("--cores takes two numbers, such as 0,1")
    };
    let allowed = allowed_cores()?;
    if let Some(core) = args.cores.iter().find(|core| !allowed.contains(core)) {
        bail!("--cores {server},{client}: core {core} is not one of this process's {allowed:?}");
    }
    let device = crate::mpi::device(&args.device)?;
    let prefix = INTEL_MPI.prefix()?;
    let ours = provider::folder()?;
    let began = Load::now()?;
    let mut best = [Best {
        half: [f64::INFINITY; SIZES.len()],
    }; PROVIDERS.len()];
    let mut task = Task::start("measure", Some(u64::from(args.rounds) * PROVIDERS.len() as u64));
    for round in 0..args.rounds {
        for (at, (provider, best)) in PROVIDERS.iter().zip(&mut best).enumerate() {
            for ((size, count), half) in SIZES.iter().zip(&mut best.half) {
                let pair = Pair {
                    prefix: &prefix,
                    ours: &ours,
                    device: &device,
                    provider,
                    cores: (*server, *client),
                };
                *half = half.min(pair.measure(*size, *count, &mut task)?);
            }
            task.set(u64::from(round) * PROVIDERS.len() as u64 + at as u64 + 1);
        }
    }
    task.done(&format!("best of {} rounds", args.rounds));
    let [usb4, shm, tcp] = &best;
    say!(
        "{:>10} {:>14} {:>14} {:>14} {:>14}",
        "",
        "64 B us",
        "4 KiB us",
        "1 MiB us",
        "1 MiB MB/s"
    );
    for (provider, best) in PROVIDERS.iter().zip(&best) {
        let [small, page, large] = best.half;
        say!(
            "{provider:>10} {small:>14.2} {page:>14.2} {large:>14.1} {:>14.0}",
            f64::from(1 << 20) / large
        );
    }
    let checks = [
        check(
            "64 B: usb4 / shm",
            usb4.half[0] / shm.half[0],
            |ratio| ratio <= 3.0,
            "<= 3",
        ),
        check(
            "64 B: usb4 / tcp",
            usb4.half[0] / tcp.half[0],
            |ratio| ratio < 0.2,
            "< 0.2",
        ),
        check(
            "1 MiB bandwidth: usb4 / shm",
            shm.half[2] / usb4.half[2],
            |ratio| ratio >= 0.4,
            ">= 0.4",
        ),
        check(
            "1 MiB bandwidth: usb4 / tcp",
            tcp.half[2] / usb4.half[2],
            |ratio| ratio > 1.0,
            "> 1",
        ),
    ];
    let busy = began.warn()?.map_or(String::new(), |busy| format!(" ({busy})"));
    let held = checks.iter().filter(|held| **held).count();
    let line = format!(
        "{held} of {} ratios hold, best of {} rounds{busy}",
        checks.len(),
        args.rounds
    );
    Ok(Verdict::new(held == checks.len(), line))
}

fn check(what: &str, ratio: f64, holds: impl Fn(f64) -> bool, wanted: &str) -> bool {
    let held = holds(ratio);
    say!(
        "{what}: {ratio:.2}, wanted {wanted}: {}",
        if held { "holds" } else { "DOES NOT HOLD" }
    );
    held
}

struct Pair<'a> {
    prefix: &'a Path,
    ours: &'a Path,
    device: &'a str,
    provider: &'a str,
    cores: (u32, u32),
}

impl Pair<'_> {
    /// Half a round trip of `size` bytes in microseconds, over `count` round trips.
    fn measure(&self, size: u32, count: u32, task: &mut Task) -> Result<f64> {
        // The client tries again until the server listens.
        const SCRIPT: &str = r#"
            run() { taskset -c "$1" "$PINGPONG" -p "$PROVIDER" -e rdm -m tagged -S "$SIZE" -I "$COUNT" "${@:2}"; }
            run "$SERVER" -B "$PORT" >/dev/null 2>&1 &
            for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
                sleep 0.1
                kill -0 $! || exit 1
                run "$CLIENT" -P "$PORT" 127.0.0.1 && wait $! && exit 0
            done
            exit 1"#;
        let lib = self.prefix.join("lib");
        let mut command = Command::new("bash");
        command
            .args(["-c", SCRIPT])
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        command
            .env("LD_LIBRARY_PATH", &lib)
            .env("FI_PROVIDER", self.provider)
            .env("USB4_DEVICE", self.device);
        command.env(
            "FI_PROVIDER_PATH",
            format!("{}:+{}/libusb4-fi.so", lib.display(), self.ours.display()),
        );
        command
            .env("PINGPONG", self.prefix.join("bin/libfabric/fi_pingpong"))
            .env("PROVIDER", self.provider);
        command
            .env("SIZE", size.to_string())
            .env("COUNT", count.to_string())
            .env("PORT", free_port()?.to_string());
        command
            .env("SERVER", self.cores.0.to_string())
            .env("CLIENT", self.cores.1.to_string());
        let what = format!("fi_pingpong over {}, {size} bytes", self.provider);
        let log = work().join("bench").join(format!("{}-{size}.log", self.provider));
        let outcome =
            process::run(&mut command, Duration::from_secs(120), &log, Some(task))?.require(&what)?;
        half_round_trip(&outcome.text).with_context(|| format!("{what}: no result in\n{}", outcome.text))
    }
}

/// The `usec/xfer` column of fi_pingpong's table.
fn half_round_trip(text: &str) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("bytes"));
    let at = lines
        .next()?
        .split_whitespace()
        .position(|title| title == "usec/xfer")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

/// The cores this process may run on.
fn allowed_cores() -> Result<Vec<u32>> {
    let text = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(core_list)
        .context("/proc/self/status has no list of cores")
}

/// Reads `0-3,6`.
fn core_list(text: &str) -> Option<Vec<u32>> {
    let mut cores = vec![];
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(cores)
}

/// A TCP port that was free a moment ago.
fn free_port() -> Result<u16> {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(socket.local_addr().context("find a free port")?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_half_round_trip_is_read_from_the_table() {
        let text = "[error] util/pingpong.c:411 : failed to connect: Connection refused\n\
                    bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64      2k      =2k      250k        0.07s      3.70      17.28       0.06\n";
        assert_eq!(half_round_trip(text), Some(17.28));
        assert_eq!(half_round_trip("bytes"), None);
    }

    #[test]
    fn lists_of_cores_are_read_as_the_kernel_writes_them() {
        assert_eq!(core_list("\t0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(core_list("x"), None);
    }
}
