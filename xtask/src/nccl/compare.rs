//! AllReduce over usb4 next to NCCL's own sockets.

use super::Net;
use super::checks::Bench;
use super::job::{Cure, Job};
use super::report::Timed;
use crate::load::Load;
use crate::ui::Task;
use anyhow::{Context, Result};
use std::time::Duration;

/// At least so many times quicker than sockets: up to 64 KiB, and at 16 MiB.
const SMALL: (u64, f64) = (64 << 10, 2.0);
const LARGE: (u64, f64) = (16 << 20, 1.5);

/// `NCCL_BUFFSIZE`. NCCL's own 4 MiB, for each channel and direction of each rank, are 32 MiB together, which the caches of
/// one machine do not hold: what would be compared is then its memory. Two hosts have two.
const BUFFER: u32 = 1 << 20;

/// Rounds of both in turn: what disturbs one of them for a while disturbs the other as well.
const ROUNDS: u32 = 3;

/// Runs both, prints a table and returns what fell short.
pub(crate) fn run(bench: &Bench<'_>) -> Result<Vec<String>> {
    let load = Load::now()?;
    let (mut usb4, mut socket) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        quickest(&mut usb4, times(bench, Net::Usb4)?);
        quickest(&mut socket, times(bench, Net::Socket)?);
    }
    say!("");
    say!(
        "AllReduce f32 on two ranks, NCCL {}, microseconds, best of {ROUNDS} rounds, NCCL_BUFFSIZE={BUFFER}",
        bench.release.version
    );
    say!("(in brackets: of these, the emulated kernel copies and adds)");
    say!(
        "{:>9} {:>20} {:>20} {:>7}",
        "bytes",
        "usb4 (soft)",
        "socket",
        "ratio"
    );
    let mut short = vec![];
    for (ours, theirs) in usb4.iter().zip(&socket) {
        let ratio = theirs.micros / ours.micros;
        say!(
            "{:>9} {:>20} {:>20} {ratio:>6.2}x",
            ours.bytes,
            cell(ours),
            cell(theirs)
        );
        let wanted = match ours.bytes {
            bytes if bytes <= SMALL.0 => SMALL.1,
            bytes if bytes == LARGE.0 => LARGE.1,
            _ => continue,
        };
        if ratio < wanted {
            short.push(format!(
                "AllReduce of {} B is {ratio:.2} x socket, not {wanted} x",
                ours.bytes
            ));
        }
    }
    load.warn()?;
    Ok(short)
}

/// Keeps the quicker of each size.
fn quickest(best: &mut Vec<Timed>, round: Vec<Timed>) {
    if best.is_empty() {
        *best = round;
        return;
    }
    for (best, new) in best.iter_mut().zip(round) {
        if new.micros < best.micros {
            *best = new;
        }
    }
}

fn cell(timed: &Timed) -> String {
    format!("{:.1} ({:.1})", timed.micros, timed.busy)
}

fn times(bench: &Bench<'_>, net: Net) -> Result<Vec<Timed>> {
    let mut task = Task::start(
        format!(
            "time AllReduce, NCCL {} over {}",
            bench.release.version,
            net.name()
        ),
        None,
    );
    let job = Job {
        release: bench.release,
        built: bench.built,
        place: &bench.place,
        net,
        device: bench.device,
        ranks: 2,
        protocol: "^LL128",
        buffer: Some(BUFFER),
        scenario: &["bench"],
        faults: None,
        cure: Cure::Count,
        limit: Duration::from_secs(600),
    };
    let ranks = job.run(&mut task)?;
    task.done("timed");
    ranks
        .first()
        .map(|rank| rank.report.timed())
        .filter(|times| !times.is_empty())
        .context("nothing was timed")
}
