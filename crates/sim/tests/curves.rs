//! Curves in virtual time, committed as text under `snapshots/`: a regression is a difference in review.

use std::fmt::Write;
use usb4_sim::{Faults, Lost, MS, Profile, Summary, as_us, check_snapshot, percentile, recovery, stream};

/// Message lengths and how many of each make a run long enough to meet losses of 1e-4.
const STREAMS: [(u32, u64); 3] = [(256, 100_000), (4_096, 20_000), (65_536, 1_500)];

const LOSSES: [f64; 4] = [0.0, 1e-4, 1e-3, 1e-2];

fn goodput(profile: &Profile, len: u32, messages: u64, loss: f64) -> f64 {
    stream(profile, messages, len, Faults::loss(loss), 1)
        .unwrap()
        .totals
        .goodput_bps()
        / 1e9
}

#[test]
fn goodput_under_loss() {
    let mut text = String::from(
        "One-way SENDs, Gb/s of payload at a loss probability per frame of\n\
         profile          bytes       0    1e-4    1e-3    1e-2\n",
    );
    let mut poor = Vec::new();
    for profile in &Profile::ALL {
        for (len, messages) in STREAMS {
            let rates = LOSSES.map(|loss| goodput(profile, len, messages, loss));
            write!(text, "{:<15}{len:>7}", profile.name).unwrap();
            for rate in rates {
                write!(text, "{rate:>8.1}").unwrap();
            }
            text.push('\n');
            let least = if len < 512 { 0.85 } else { 0.90 };
            if rates[2] < least * rates[0] {
                poor.push(format!(
                    "{} {len}: {:.2} of {:.2} Gb/s at 1e-3",
                    profile.name, rates[2], rates[0]
                ));
            }
        }
    }
    println!("{text}");
    assert_eq!(poor, [""; 0]);
    check_snapshot("goodput", &text).unwrap();
}

#[test]
fn recovery_of_one_lost_frame() {
    const SEEDS: u64 = 100;
    let mut text = String::from(
        "Delay that one lost frame causes, microseconds over 100 seeds\n\
         profile          lost              p50     p99     max\n",
    );
    let mut slow = Vec::new();
    for profile in &Profile::ALL {
        for lost in Lost::ALL {
            let mut times: Vec<_> = (0..SEEDS)
                .map(|seed| recovery(profile, lost, seed).unwrap())
                .collect();
            let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
            let max = percentile(&mut times, 100);
            let name = format!("{lost:?}");
            let (a, b, c) = (as_us(p50), as_us(p99), as_us(max));
            writeln!(text, "{:<17}{name:<14}{a:>7}{b:>8}{c:>8}", profile.name).unwrap();
            if p99 > 2 * MS {
                slow.push(format!("{} {lost:?}: p99 {b} us", profile.name));
            }
        }
    }
    println!("{text}");
    assert_eq!(slow, [""; 0]);
    check_snapshot("recovery", &text).unwrap();
}

#[test]
fn efficiency_on_the_wire() {
    let mut text = String::from(
        "One-way SENDs without loss: payload share of the bytes of data frames, data frames per message,\n\
         frames the other way per data frame\n\
         profile          bytes  depth  payload  frames/msg  acks/frame\n",
    );
    for profile in &Profile::ALL {
        for (len, messages) in [(64, 20_000), (256, 20_000), (4_096, 5_000), (1 << 20, 100)] {
            let summary = stream(profile, messages, len, Faults::NONE, 1).unwrap();
            let efficiency = Efficiency::of(&summary);
            writeln!(
                text,
                "{:<14}{len:>8}{:>7}{:>8.2}%{:>12.3}{:>12.3}",
                profile.name,
                256,
                efficiency.payload * 100.0,
                efficiency.frames,
                efficiency.acks
            )
            .unwrap();
            if len > 4_096 {
                assert!(
                    efficiency.payload >= 0.98,
                    "{}: {:.4}",
                    profile.name,
                    efficiency.payload
                );
            }
        }
    }
    println!("{text}");
    check_snapshot("efficiency", &text).unwrap();
}

struct Efficiency {
    payload: f64,
    frames: f64,
    acks: f64,
}

impl Efficiency {
    /// Of a one-way stream: everything the first host sends is data, everything the second sends is an answer.
    fn of(summary: &Summary) -> Self {
        let frames = summary.forward.frames as f64;
        Self {
            payload: summary.totals.bytes as f64 / summary.forward.bytes as f64,
            frames: frames / summary.totals.messages as f64,
            acks: summary.backward.frames as f64 / frames,
        }
    }
}
