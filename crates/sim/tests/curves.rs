//! Curves in virtual time, committed as text under `snapshots/`: a regression is a difference in review.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

use std::fmt::Write;
use usb4_sim::{
    Faults, Lost, MS, Mix, Nanos, Profile, Summary, US, check_snapshot, percentile, recovery, stream,
};

/// Message lengths, flows with 256 messages outstanding each, and messages: enough to meet losses of 1e-4.
const STREAMS: [(u32, usize, u64); 5] = [
    (64, 16, 100_000),
    (256, 1, 100_000),
    (512, 16, 60_000),
    (4_096, 1, 20_000),
    (65_536, 1, 1_500),
];

const LOSSES: [f64; 4] = [0.0, 1e-4, 1e-3, 1e-2];

fn goodput(profile: &Profile, (len, flows, messages): (u32, usize, u64), loss: f64) -> f64 {
    let mix = Mix {
        flows,
        endpoints: flows,
        ..Mix::stream(messages, len)
    };
    stream(profile, mix, Faults::loss(loss), 1)
        .unwrap()
        .totals
        .goodput_bps()
        / 1e9
}

#[test]
fn goodput_under_loss() {
    let mut text = String::from(
        "One-way SENDs, Gb/s of payload at a loss probability per frame of\n\
         profile          bytes  flows       0    1e-4    1e-3    1e-2\n",
    );
    let mut poor = Vec::new();
    for profile in &Profile::ALL {
        for what @ (len, flows, _) in STREAMS {
            let rates = LOSSES.map(|loss| goodput(profile, what, loss));
            write!(text, "{:<15}{len:>7}{flows:>7}", profile.name).unwrap();
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
        "Delay that one lost frame causes, microseconds rounded up to tens, over 100 seeds\n\
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
            let (a, b, c) = (rounded(p50), rounded(p99), rounded(max));
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

/// Microseconds, rounded up to tens: finer differences are of no interest.
fn rounded(time: Nanos) -> Nanos {
    time.div_ceil(10 * US) * 10
}

/// Message lengths, messages outstanding, messages.
const RUNS: [(u32, usize, u64); 6] = [
    (64, 1, 2_000),
    (64, 256, 20_000),
    (256, 256, 20_000),
    (4_096, 1, 2_000),
    (4_096, 256, 5_000),
    (1 << 20, 256, 100),
];

#[test]
fn efficiency_on_the_wire() {
    let mut text = String::from(
        "One-way SENDs without loss: payload share of all bytes sent that way, frames that way per message,\n\
         frames the other way per frame\n\
         profile          bytes  depth  payload  frames/msg  back/frame\n",
    );
    for profile in &Profile::ALL {
        for (len, depth, messages) in RUNS {
            let mix = Mix {
                depth,
                ..Mix::stream(messages, len)
            };
            let summary = stream(profile, mix, Faults::NONE, 1).unwrap();
            let Efficiency {
                payload,
                frames,
                back,
            } = Efficiency::of(&summary);
            let percent = payload * 100.0;
            writeln!(
                text,
                "{:<14}{len:>8}{depth:>7}{percent:>8.1}%{frames:>12.2}{back:>12.2}",
                profile.name
            )
            .unwrap();
            if len > 4_096 {
                assert!(payload >= 0.98, "{}: {payload:.4}", profile.name);
            }
        }
    }
    println!("{text}");
    check_snapshot("efficiency", &text).unwrap();
}

struct Efficiency {
    payload: f64,
    frames: f64,
    back: f64,
}

impl Efficiency {
    /// Of a one-way stream: everything the first host sends is data or belongs to it, everything the second sends is an
    /// answer.
    fn of(summary: &Summary) -> Self {
        let frames = summary.forward.frames as f64;
        Self {
            payload: summary.totals.bytes as f64 / summary.forward.bytes as f64,
            frames: frames / summary.totals.messages as f64,
            back: summary.backward.frames as f64 / frames,
        }
    }
}
