//! `usb4-sim`: random traffic between simulated hosts, checked byte by byte.
//!
//! One line per profile, then a verdict. A run that fails prints the command that replays it.

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;
use usb4_sim::{Faults, Mix, Profile, Scenario, Summary, US};

/// Random traffic between simulated hosts over faulty cables: each message exactly once, in order, bytes equal.
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Args {
    /// Operations per profile.
    #[arg(long, default_value_t = 100_000)]
    messages: u64,
    /// Rails between each two hosts.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    rails: u8,
    /// Hosts, each joined to every other.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=8))]
    hosts: u8,
    /// strix, intel, stock-throttle, mixed or all.
    #[arg(long, default_value = "all")]
    profile: String,
    /// Where all chance comes from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Probability that a frame is lost.
    #[arg(long, default_value_t = 0.0, value_parser = probability)]
    loss: f64,
    /// Probability that a frame begins a burst of loss of up to 200 us.
    #[arg(long, default_value_t = 0.0, value_parser = probability)]
    burst: f64,
    /// Probability that a pure acknowledgement is lost.
    #[arg(long, default_value_t = 0.0, value_parser = probability)]
    ack_loss: f64,
    /// Probability that a frame arrives twice.
    #[arg(long, default_value_t = 0.0, value_parser = probability)]
    dup: f64,
    /// Probability that bits of a frame flip.
    #[arg(long, default_value_t = 0.0, value_parser = probability)]
    corrupt: f64,
    /// Probability per frame that the cable or the TX ring stalls for up to 500 us.
    #[arg(long, default_value_t = 0.0, value_parser = probability)]
    stall: f64,
    /// Probability that an interrupt is lost.
    #[arg(long, default_value_t = 0.0, value_parser = probability)]
    lost_irq: f64,
    /// Probability that a doorbell is ignored.
    #[arg(long, default_value_t = 0.0, value_parser = probability)]
    ignored_doorbell: f64,
    /// Probability that a TX completion stays unseen until the fallback timer.
    #[arg(long, default_value_t = 0.0, value_parser = probability)]
    stranded: f64,
    /// Longest random delay of a copy, in microseconds.
    #[arg(long, default_value_t = 0)]
    plan_delay: u64,
    /// Probability that a control message is lost, and that it arrives twice.
    #[arg(long, default_value_t = 0.1, value_parser = probability)]
    control_faults: f64,
    /// Frames carry a CRC over their payload.
    #[arg(long)]
    payload_crc: bool,
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err("a probability from 0 to 1 is wanted".into()),
    }
}

impl Args {
    fn faults(&self) -> Faults {
        Faults {
            loss: self.loss,
            burst: self.burst,
            ack_loss: self.ack_loss,
            dup: self.dup,
            corrupt: self.corrupt,
            link_stall: self.stall,
            tx_stall: self.stall,
            lost_irq: self.lost_irq,
            ignored_doorbell: self.ignored_doorbell,
            stranded: self.stranded,
            plan_delay: self.plan_delay * US,
            control_loss: self.control_faults,
            control_dup: self.control_faults,
            ..Faults::NONE
        }
    }

    fn scenario(&self, profile: &Profile) -> Scenario {
        Scenario {
            profile: profile.clone(),
            hosts: usize::from(self.hosts),
            rails: usize::from(self.rails),
            faults: self.faults(),
            mix: Mix::everything(self.messages),
            payload_crc: self.payload_crc,
            seed: self.seed,
        }
    }

    /// The command that runs one profile of this again.
    fn replay(&self, profile: &Profile) -> String {
        let mut command = format!(
            "usb4-sim --messages {} --rails {} --hosts {} --profile {} --seed {} --control-faults {}",
            self.messages, self.rails, self.hosts, profile.name, self.seed, self.control_faults
        );
        let faults = [
            ("loss", self.loss),
            ("burst", self.burst),
            ("ack-loss", self.ack_loss),
            ("dup", self.dup),
            ("corrupt", self.corrupt),
            ("stall", self.stall),
            ("lost-irq", self.lost_irq),
            ("ignored-doorbell", self.ignored_doorbell),
            ("stranded", self.stranded),
        ];
        for (name, p) in faults.iter().filter(|(_, p)| *p > 0.0) {
            command.push_str(&format!(" --{name} {p}"));
        }
        if self.plan_delay > 0 {
            command.push_str(&format!(" --plan-delay {}", self.plan_delay));
        }
        if self.payload_crc {
            command.push_str(" --payload-crc");
        }
        command
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let profiles: Vec<Profile> = match args.profile.as_str() {
        "all" => Profile::ALL.to_vec(),
        name => match Profile::named(name) {
            Some(profile) => vec![profile],
            None => {
                eprintln!(
                    "no profile is called {name}; there are strix, intel, stock-throttle, mixed and all"
                );
                return ExitCode::from(2);
            }
        },
    };
    let mut failed = 0;
    for profile in &profiles {
        print!("{:<15}", profile.name);
        let _ = std::io::stdout().flush();
        let begun = Instant::now();
        match args.scenario(profile).run() {
            Ok(summary) => println!("{} in {:.1} s", describe(&summary), begun.elapsed().as_secs_f64()),
            Err(failure) => {
                failed += 1;
                println!(
                    "FAILED (seed {}): {failure}\n  replay: {}",
                    args.seed,
                    args.replay(profile)
                );
            }
        }
    }
    if failed == 0 {
        println!(
            "PASS: {} profiles, {} operations each, every one exactly once, in order, bytes equal",
            profiles.len(),
            args.messages
        );
        ExitCode::SUCCESS
    } else {
        println!("FAIL: {failed} of {} profiles", profiles.len());
        ExitCode::FAILURE
    }
}

fn describe(summary: &Summary) -> String {
    let Summary { totals, engine, .. } = summary;
    let cables = summary.cables();
    format!(
        "{} operations ({} atomics, {:.1} MB), {:.2} Gb/s over {:.0} ms; {} frames, {} lost, {} twice, {} broken, {} resent, {} not ready;",
        totals.messages,
        totals.atomics,
        totals.bytes as f64 / 1e6,
        totals.goodput_bps() / 1e9,
        totals.elapsed as f64 / 1e6,
        cables.frames,
        cables.lost,
        cables.duplicated,
        cables.corrupted,
        engine.tx_resent,
        engine.rnr_sent,
    )
}
