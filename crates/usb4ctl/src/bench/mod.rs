//! `usb4ctl bench`: latency and bandwidth over message sizes.
//!
//! The client decides every run and tells the server in a [`protocol::Run`]; the server answers with what it
//! needs to know ([`protocol::Reply`]). Bytes are checked at the receiver, see `check.rs`. `latency.rs` and
//! `bandwidth.rs` hold the two measured loops, `report.rs` and `plot.rs` what is printed.

mod bandwidth;
mod check;
mod latency;
mod plot;
mod protocol;
mod report;
mod server;
mod step;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use usb4_ring::{EpAddr, Remote};

use crate::address;
use crate::output::{line, remark};
use crate::session::{PATIENCE, Session, message_len};
use protocol::{Kind, Operation, Run};
use report::{Report, Row};
use step::Step;

/// Measures latency and bandwidth over message sizes. Both ends poll: each wants a processor of its own, so pin them
/// (taskset) and leave the machine alone, or the times are the scheduler's.
#[derive(clap::Args)]
#[command(override_usage = "usb4ctl bench [OPTIONS] [ADDRESS]\n       usb4ctl bench [OPTIONS] --serve")]
pub(crate) struct Arguments {
    /// Address printed by `usb4ctl bench --serve` at the peer; without it the command runs both ends here.
    #[arg(conflicts_with = "serve")]
    address: Option<String>,
    /// Is the other end, for one client after another; prints the address to give to it.
    #[arg(long)]
    serve: bool,
    /// Operation to measure.
    #[arg(long, value_enum, default_value_t = Operation::Send)]
    op: Operation,
    /// Smallest message in bytes.
    #[arg(long, default_value_t = 8)]
    min: u64,
    /// Largest message in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    max: u64,
    /// Round trips per size.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    iterations: u64,
    /// Megabytes per size in the bandwidth part.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    megabytes: u64,
    /// Endpoints that messages of the bandwidth part are dealt out to.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    flows: u8,
    /// Measures one part only.
    #[arg(long, value_enum, value_name = "PART", conflicts_with = "svg")]
    only: Option<Kind>,
    /// For who counts what it costs elsewhere: says `ready` and waits for a line of standard input before each measured
    /// part, says `done` and the number of its messages, and waits again, after it.
    #[arg(long)]
    by_step: bool,
    /// Seconds to wait for the other end before giving up.
    #[arg(long, default_value_t = PATIENCE.as_secs())]
    patience: u64,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Draws latency and bandwidth into this SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(device: Option<&str>, arguments: &Arguments) -> Result<()> {
    let open = || -> Result<Session> {
        let mut session = Session::open(device)?;
        session.patience = Duration::from_secs(arguments.patience);
        Ok(session)
    };
    if arguments.serve {
        return server::serve(open()?);
    }
    if let Some(file) = &arguments.svg {
        // Before minutes of measuring, not after them.
        File::options()
            .create(true)
            .append(true)
            .open(file)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut session = open()?;
    let (address, _server) = match &arguments.address {
        Some(address) => (address.clone(), None),
        None => {
            if let Some(warning) = cramped(processors()) {
                remark(warning);
            }
            let (address, server) = spawn_server(&session.device.info().name)?;
            (address, Some(server))
        }
    };
    let peer = address::parse(&address)?;
    message_len(&session.device, arguments.max)?;
    let sizes = sizes(arguments.min, arguments.max)?;
    let measured = measure(&mut session, peer, arguments, sizes);
    if let Some(load) = busy() {
        remark(format_args!(
            "load {load}: two ends that poll did not have the machine's processors to themselves; times mean little"
        ));
    }
    let report = measured?;
    if arguments.json {
        line(serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(file) = &arguments.svg {
        plot::draw(&report, file).with_context(|| format!("cannot write {}", file.display()))?;
        remark(format_args!("wrote {}", file.display()));
    }
    Ok(())
}

/// Measures every size; people see each row as soon as there is one.
fn measure(session: &mut Session, peer: EpAddr, arguments: &Arguments, sizes: Vec<u64>) -> Result<Report> {
    let mut report = Report::new(session.device.info(), arguments.op);
    let progress = ProgressBar::new(2 * sizes.len() as u64);
    progress.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
    let show = |text: String| progress.suspend(|| if arguments.json { Ok(()) } else { line(text) });
    show(report.header())?;
    let step = Step {
        by_step: arguments.by_step,
    };
    for size in sizes {
        let run = |kind, count, flows| Run {
            kind,
            op: arguments.op,
            size,
            count,
            flows,
            answer: Remote { addr: 0, key: 0 },
        };
        let mut latency = None;
        if arguments.only != Some(Kind::Bandwidth) {
            progress.set_message(format!("{size} B latency"));
            let run = run(Kind::Latency, arguments.iterations, 1);
            latency = Some(latency::client(session, peer, &run, step)?);
        }
        progress.inc(1);
        let mut bandwidth = None;
        if arguments.only != Some(Kind::Latency) {
            progress.set_message(format!("{size} B bandwidth"));
            let count = (arguments.megabytes * 1_000_000 / size.max(1)).clamp(64, 1_000_000);
            let run = run(Kind::Bandwidth, count, arguments.flows);
            bandwidth = Some(bandwidth::client(session, peer, &run, step)?);
        }
        progress.inc(1);
        let row = Row::new(size, latency.as_ref(), bandwidth.as_ref());
        show(row.to_string())?;
        report.rows.push(row);
    }
    progress.finish_and_clear();
    Ok(report)
}

/// The load average if more wanted to run in the last minute than this benchmark and the machine has room for.
fn busy() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    (load > processors().max(2) as f64 + 0.5).then_some(load)
}

/// How many processors this process may use; one if that is not known.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What to say before both ends run here on so many processors.
fn cramped(processors: usize) -> Option<&'static str> {
    (processors < 2).then_some(
        "both ends poll, and share one processor here: this takes many times as long, and times mean little; use \
         two processors, or fewer --iterations and --megabytes",
    )
}

/// Powers of two from `min` to `max`, both included.
fn sizes(min: u64, max: u64) -> Result<Vec<u64>> {
    if min == 0 || min > max {
        bail!("--min {min} --max {max}: give 1 <= min <= max");
    }
    let mut sizes = vec![min];
    let mut next = min.next_power_of_two();
    while next < max {
        if next > min {
            sizes.push(next);
        }
        next *= 2;
    }
    if max > min {
        sizes.push(max);
    }
    Ok(sizes)
}

/// The other end as a child process, ended with the benchmark.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when the child is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn_server(device: &str) -> Result<(String, Server)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--device", device, "bench", "--serve"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the other end")?;
    let stdout = child.stdout.take().context("the other end has no output")?;
    let server = Server(child);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    if line.is_empty() {
        bail!("the other end ended before it printed its address");
    }
    Ok((line.trim().to_string(), server))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_between_the_ends() {
        assert_eq!(sizes(1, 1).unwrap(), [1]);
        assert_eq!(sizes(3, 20).unwrap(), [3, 4, 8, 16, 20]);
        assert_eq!(sizes(4, 16).unwrap(), [4, 8, 16]);
        assert!(sizes(0, 4).is_err() && sizes(5, 4).is_err());
    }

    #[test]
    fn who_runs_both_ends_on_one_processor_is_told_before_the_wait() {
        assert!(cramped(1).is_some_and(|text| text.contains("two processors")));
        assert_eq!(cramped(2), None);
    }
}
