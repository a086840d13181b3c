//! `usb4-sim`: random traffic between simulated hosts, checked byte by byte.
//!
//! One line per profile, then a verdict. A run that fails prints the command that replays it. Each profile has two
//! kinds of traffic: *busy*, in which both ends poll all the time, and *sparse*, whose pauses let the receivers' threads
//! fall asleep, so that interrupts and their moderation matter.

use clap::Parser;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;
use usb4_sim::{Failure, Faults, Mix, Profile, Scenario, Summary, US};

/// Random traffic between simulated hosts over faulty cables: each message exactly once, in order, bytes equal.
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Args {
    /// Operations of the busy part per profile, which runs a read-back more where the last of them asks for it; the
    /// sparse part has a twentieth as many.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
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

    fn busy(&self, profile: &Profile) -> Scenario {
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

    /// A few operations one way, then a pause in which the receivers' threads fall asleep: up to 500 us, of which they
    /// poll the first 50.
    fn sparse(&self, profile: &Profile) -> Scenario {
        Scenario {
            mix: Mix {
                both_ways: false,
                burst: 20,
                pause: 500 * US,
                ..Mix::everything(self.messages.div_ceil(20))
            },
            ..self.busy(profile)
        }
    }

    fn run(&self, profile: &Profile) -> Result<(Summary, Summary), Failure> {
        let named = |part: &str, failure: Failure| Failure(format!("{part} part: {failure}"));
        let busy = self
            .busy(profile)
            .run()
            .map_err(|failure| named("busy", failure))?;
        let sparse = self
            .sparse(profile)
            .run()
            .map_err(|failure| named("sparse", failure))?;
        Ok((busy, sparse))
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
    match simulate(&args, &profiles, &mut io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // A reader that has seen enough is not told so.
            if error.kind() != io::ErrorKind::BrokenPipe {
                eprintln!("usb4-sim: cannot write to standard output: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs all profiles; whether all went well.
fn simulate(args: &Args, profiles: &[Profile], out: &mut impl Write) -> io::Result<bool> {
    let (mut failed, mut operations) = (0, 0);
    for profile in profiles {
        write!(out, "{:<15}", profile.name)?;
        out.flush()?;
        let begun = Instant::now();
        match args.run(profile) {
            Ok((busy, sparse)) => {
                operations += busy.totals.messages + sparse.totals.messages;
                let seconds = begun.elapsed().as_secs_f64();
                writeln!(
                    out,
                    "{}; {}; {seconds:.1} s",
                    describe(&busy),
                    describe_sparse(&sparse)
                )?;
            }
            Err(failure) => {
                failed += 1;
                writeln!(
                    out,
                    "FAILED (seed {}): {failure}\n  replay: {}",
                    args.seed,
                    args.replay(profile)
                )?;
            }
        }
    }
    match failed {
        0 => writeln!(
            out,
            "PASS: {} profiles, {operations} operations, every one exactly once, in order, bytes equal",
            profiles.len(),
        )?,
        _ => writeln!(out, "FAIL: {failed} of {} profiles", profiles.len())?,
    }
    Ok(failed == 0)
}

fn describe_sparse(summary: &Summary) -> String {
    format!(
        "sparse: {} operations over {:.1} ms, {} interrupts",
        summary.totals.messages,
        summary.totals.elapsed as f64 / 1e6,
        summary.ports.irqs,
    )
}

fn describe(summary: &Summary) -> String {
    let Summary { totals, engine, .. } = summary;
    let cables = summary.cables();
    format!(
        "{} operations ({} atomics, {:.1} MB), {:.2} Gb/s over {:.0} ms; {} frames, {} lost, {} twice, {} broken, {} resent, {} not ready",
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn interrupt_moderation_shows_in_sparse_traffic() {
        let args = Args::parse_from(["usb4-sim", "--messages", "4000", "--control-faults", "0"]);
        let [soon, late] = [Profile::STRIX, Profile::STOCK_THROTTLE].map(|profile| {
            let summary = args.sparse(&profile).run().unwrap();
            assert!(summary.ports.irqs > 0, "{}: nobody slept", profile.name);
            summary.totals.elapsed
        });
        // Ten bursts, each of which finds its receiver asleep and waits 64 us on average.
        assert!(
            late > soon + 300 * US,
            "{soon} ns without, {late} ns with moderation"
        );
    }

    #[test]
    fn a_closed_output_ends_the_run() {
        let args = Args::parse_from(["usb4-sim", "--messages", "20"]);
        let mut none: &mut [u8] = &mut [];
        assert!(simulate(&args, &[Profile::STRIX], &mut none).is_err());
    }
}
